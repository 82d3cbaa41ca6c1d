--- rt.lua: the state of one rendering, and how anything in it fails.
--
-- A rendering is one table, `rt`, reachable from every frame: the buffer being
-- written, what is left of the budget, the line being run. The budget counts
-- closures run, items walked and bytes read or built (128 count as one), so no
-- template and no message keeps a thread for long. Owned by the call that
-- renders; never shared, never kept.

local M = {}

local format = string.format

M.MAX_DEPTH = 100 -- nesting of tags, brackets, macro calls and input data

--- Raises an error that reaches the caller of the engine as {message, line}.
function M.fail(fmt, ...)
  error({ message = select("#", ...) > 0 and format(fmt, ...) or fmt }, 0)
end

--- A fresh state. vars: name -> engine value; limits: max_steps, max_bytes.
function M.new(vars, globals, limits)
  return {
    vars = vars,
    globals = globals,
    out = { n = 0 },
    left = limits.max_steps,
    max_bytes = limits.max_bytes,
    depth = 0,
    line = 1,
  }
end

--- Takes n units from the budget.
function M.spend(rt, n)
  local left = rt.left - n
  rt.left = left
  if left < 0 then
    M.fail("the template does too much work for one rendering")
  end
end

--- Takes what reading that many bytes costs.
function M.walk(rt, bytes)
  M.spend(rt, bytes / 128)
end

--- Takes what looking for a text of n bytes in that many costs at worst.
function M.search(rt, bytes, n)
  M.walk(rt, bytes * (1 + n / 256))
end

--- Called before a string of that many bytes is built.
function M.grow(rt, bytes)
  if bytes > rt.max_bytes then
    M.fail("the rendered text is larger than %d bytes", rt.max_bytes)
  end
  M.walk(rt, bytes)
end

--- Enters a call of the template's own code (macro, caller, recursive loop):
-- what it writes goes to a buffer of its own. Returns what `leave` wants back.
function M.enter(rt)
  local depth = rt.depth + 1
  if depth > M.MAX_DEPTH then
    M.fail("calls nest deeper than %d", M.MAX_DEPTH)
  end
  rt.depth = depth
  local out = rt.out
  rt.out = { n = 0 }
  return out, rt.line
end

--- Ends what `enter` began; returns the buffer that was written.
function M.leave(rt, out, line)
  local written = rt.out
  rt.out, rt.line, rt.depth = out, line, rt.depth - 1
  return written
end

return M
