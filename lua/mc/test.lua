--- test.lua - what a policy's tests() is given: named tests, expectations,
-- random numbers.
--
-- Trusted; any VM of a generation. A test that fails refuses the generation;
-- `mascon policy test` runs all of them and says how each went (host.tested).

local apart = require "mc.apart"
local host = require "mc.host"
local near = require "mc.near"

local test = {}

local function show(v)
  if type(v) == "string" then return ("%q"):format(v) end
  if type(v) ~= "table" then return tostring(v) end
  local parts, seen = {}, {}
  for i, x in ipairs(v) do
    parts[#parts + 1], seen[i] = show(x), true
  end
  local names = {}
  for k in pairs(v) do
    if not seen[k] then names[#names + 1] = tostring(k) end
  end
  table.sort(names)
  for _, k in ipairs(names) do
    local x = v[k] == nil and v[tonumber(k)] or v[k]
    parts[#parts + 1] = k .. " = " .. show(x)
  end
  return "{" .. table.concat(parts, ", ") .. "}"
end

local function same(a, b)
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  for k, v in pairs(a) do
    if not same(v, b[k]) then return false end
  end
  for k in pairs(b) do
    if a[k] == nil then return false end
  end
  return true
end

-- ---- expect -----------------------------------------------------------------

local Expect = {}

local function refuse(...)
  error(string.format(...), 3)
end

--- Equal, tables by their contents.
function Expect.is(e, want)
  if not same(e.got, want) then
    refuse("expected %s, got %s", show(want), show(e.got))
  end
end

--- A number at most eps away.
function Expect.near(e, want, eps)
  if type(e.got) ~= "number"
    or not (math.abs(e.got - want) <= (eps or 1e-6)) then
    refuse("expected %s within %g, got %s", show(want), eps or 1e-6,
      show(e.got))
  end
end

--- A number in a range, both ends included.
function Expect.between(e, low, high)
  if type(e.got) ~= "number" or not (e.got >= low and e.got <= high) then
    refuse("expected a number from %s to %s, got %s", low, high, show(e.got))
  end
end

--- A text with this Lua pattern in it.
function Expect.matches(e, pattern)
  if type(e.got) ~= "string" or not e.got:find(pattern) then
    refuse("expected a text like %s, got %s", show(pattern), show(e.got))
  end
end

--- A function that raises an error with this pattern in its text.
function Expect.fails(e, pattern)
  local ok, err = pcall(e.got)
  if ok then
    refuse("expected an error like %s, there was none", show(pattern))
  end
  if not tostring(err):find(pattern) then
    refuse("expected an error like %s, got %s", show(pattern),
      show(tostring(err)))
  end
end

local expect_meta = { __metatable = false, __index = function(_, k)
  if k == "got" then return nil end -- what was got is nil
  return Expect[k] or error(("expect has no '%s'"):format(tostring(k))
    .. near.hint(k, Expect), 2)
end }

-- ---- tests ------------------------------------------------------------------

-- Park and Miller's generator: the same seed gives the same numbers everywhere.
local function generator(seed)
  local x = seed % 2147483646 + 1
  return function(low, high)
    x = x * 16807 % 2147483647
    return low + math.floor(x / 2147483647 * (high - low + 1))
  end
end

--- The helpers for the tests of one file. reset() runs before each test.
function test.new(file, reset)
  local t = { n = 0 }
  reset()

  --- expect(value):is(other), :near(x, eps), :between(a, b), :matches(p),
  -- :fails(p)
  function t.expect(got)
    return setmetatable({ got = got }, expect_meta)
  end

  --- A named test.
  function t.it(name, fn)
    if type(name) ~= "string" or type(fn) ~= "function" then
      error("it takes a name and a function", 2)
    end
    reset()
    local ok, err = pcall(fn)
    t.n = t.n + 1
    if host.tested then
      host.tested(file, name, not ok and tostring(err) or nil)
    elseif not ok then
      error(("%s (test '%s')"):format(tostring(err), name), 0)
    end
  end

  --- fn(rnd, seed) n times, rnd(low, high) being another generator each time; a
  -- failure says the seed.
  function t.random(n, fn)
    for seed = 1, n do
      reset()
      local ok, err = pcall(fn, generator(seed), seed)
      if not ok then error(("%s (seed %d)"):format(tostring(err), seed), 0) end
    end
  end

  return t
end

--- Runs a policy's tests; what is not in a named one is a test of its own.
function test.run(file, policy, t)
  local drop = host.shared and host.shared.set
  local ok, err = apart.run(function() policy.tests(t) end,
    host.unique and host.unique() or "", drop or function() end)
  if not host.tested then
    if not ok then error(err, 0) end
  elseif not ok or t.n == 0 then
    host.tested(file, "tests", not ok and tostring(err) or nil)
  end
end

--- Whether this file's tests are to run: all, or only those of the file that is
-- tried.
function test.wanted(kind)
  return not host.only or host.only.kind == kind
end

return test
