--- str.lua: strings that remember which of their bytes a user wrote.
--
-- A string value is a plain Lua string (every byte comes from the template), or
-- {t = STR, s = text, f = flips}. `flips` holds the ascending byte offsets at
-- which the origin changes, beginning with the template: {0} is all a user's,
-- {3, 5} is a user's in bytes 4 and 5 only. No flip lies at or past the end, so
-- a marked string is never empty, and both halves of any cut are right again.
-- Whatever is made of strings is made by `sub` and `concat`, which keep the
-- marks; what cannot be (a changed length) is marked whole. Values never
-- change.

local rt_ = require "mc.jinja.rt"

local M = {}

local type, sub, tconcat = type, string.sub, table.concat
local grow, spend, walk = rt_.grow, rt_.spend, rt_.walk

local STR = { name = "str" }
M.STR = STR
local ALL = { 0 }

--- The text of a string value, marks left aside; nil for anything else.
local function text(v)
  if type(v) == "string" then return v end
  if type(v) == "table" and v.t == STR then return v.s end
  return nil
end
M.text = text

--- A string that a user wrote.
local function user(s)
  if s == "" then return s end
  return { t = STR, s = s, f = ALL }
end
M.user = user

--- s, marked whole when v holds a user's bytes.
function M.like(v, s)
  if type(v) == "table" then return user(s) end
  return s
end

--- Bytes i to j of a string value; the caller's indices are in range.
local function cut(rt, v, i, j)
  if type(v) == "string" then
    local s = sub(v, i, j)
    walk(rt, #s)
    return s
  end
  local s = sub(v.s, i, j)
  if s == "" or s == v.s then
    return s == "" and s or v
  end
  walk(rt, #s)
  local old = v.f
  if old == ALL then
    return { t = STR, s = s, f = ALL }
  end
  local flips, n, on, k = {}, 0, false, 1
  while old[k] and old[k] < i do
    on = not on
    k = k + 1
  end
  if on then
    flips[1], n = 0, 1
  end
  while old[k] and old[k] < j do
    n = n + 1
    flips[n] = old[k] - i + 1
    k = k + 1
  end
  spend(rt, k / 8)
  if n == 0 then return s end
  return { t = STR, s = s, f = flips }
end
M.sub = cut

-- Appends the marks of part v, which begins at byte offset pos, to flips;
-- `on` is the origin at the end of what came before. Returns the new n and on.
local function add_flips(flips, n, on, pos, v)
  local f, k, mine = v.f, 1, false
  if f[1] == 0 then
    mine, k = true, 2
  end
  if mine ~= on then
    n = n + 1
    flips[n] = pos
    on = mine
  end
  for i = k, #f do
    n = n + 1
    flips[n] = pos + f[i]
    on = not on
  end
  return n, on
end

--- Joins list[1..n], string values, into one.
function M.concat(rt, list, n)
  if n == 1 then return list[1] end
  local bytes, marked = 0, false
  for i = 1, n do
    local v = list[i]
    if type(v) == "string" then
      bytes = bytes + #v
    else
      bytes = bytes + #v.s
      marked = true
    end
  end
  grow(rt, bytes)
  spend(rt, n / 8)
  if not marked then
    return tconcat(list, "", 1, n)
  end
  local parts, flips, nf, on, pos = {}, {}, 0, false, 0
  for i = 1, n do
    local v = list[i]
    if type(v) == "string" then
      parts[i] = v
      if on and v ~= "" then
        nf = nf + 1
        flips[nf], on = pos, false
      end
      pos = pos + #v
    else
      parts[i] = v.s
      nf, on = add_flips(flips, nf, on, pos, v)
      pos = pos + #v.s
    end
  end
  return { t = STR, s = tconcat(parts, "", 1, n), f = flips }
end

--- a .. b
function M.join2(rt, a, b)
  if type(a) == "string" and type(b) == "string" then
    grow(rt, #a + #b)
    return a .. b
  end
  return M.concat(rt, { a, b }, 2)
end

--- A string value n times over.
function M.rep(rt, v, n)
  local s = text(v)
  if n <= 0 or s == "" then return "" end
  grow(rt, #s * n)
  if type(v) == "string" then
    return s:rep(n)
  elseif v.f == ALL then
    return user(s:rep(n))
  end
  spend(rt, n)
  local list = {}
  for i = 1, n do
    list[i] = v
  end
  return M.concat(rt, list, n)
end

--- fn applied to the text. Marks stay where they are when the length does (case
-- of ASCII); otherwise the whole is marked.
function M.map(v, fn)
  if type(v) == "string" then return fn(v) end
  local s = fn(v.s)
  if #s == #v.s and s ~= "" then
    return { t = STR, s = s, f = v.f }
  end
  return user(s)
end

--- The string as a list of {text =, from_user =}, neighbours differing.
function M.pieces(v)
  if type(v) == "string" then
    return v == "" and {} or { { text = v, from_user = false } }
  end
  local out, n, from, on = {}, 0, 1, false
  local f, s = v.f, v.s
  for i = 1, #f + 1 do
    local to = f[i] or #s
    if to >= from then
      n = n + 1
      out[n] = { text = sub(s, from, to), from_user = on }
    end
    from, on = to + 1, not on
  end
  return out
end

return M
