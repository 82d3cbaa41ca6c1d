-- fuzz.lua - random reads, writes, calls and arithmetic on whatever a script
-- can reach.
--
-- Put in front of a script's text by tests/c/test_fuzz_script.c (step VMs) and
-- tests/http/test_fuzz_script.py (edge and REPL VMs): it gives them the local
-- FUZZ. A run depends on its seed alone. Everything is inside pcall: what must
-- not happen is a crash, a hang, or an error that is neither text nor an error
-- value of the API.

local FUZZ = {}

local VALUES = {
  -1, 0, 1, 2, 3.5, 64, 1e9, -1e9, 2 ^ 31, -2 ^ 31, 2 ^ 53, 1 / 0, -1 / 0,
  0 / 0, "x", "", "1", "a.b", "%", ("y"):rep(300), ("\255\0"):rep(9),
  ("z"):rep(1e5), true, false, {}, { 1, 2, 3 }, { x = 1 },
  { prompt = "x", limit = 2 }, { -1 }, function() end, function() return 1 end,
  function() error("mine") end, function() error({}) end,
}

-- names: fields and methods to try by name. pool: the objects to begin with;
-- what calls give joins them. skip: functions that are not called. Returns how
-- many raised and how many did not.
function FUZZ.run(seed, n, names, pool, skip)
  local state = seed % 2147483646 + 1
  local function rnd(k)
    state = state * 16807 % 2147483647
    return state % k + 1
  end
  local made, n_made = {}, 0
  local raised, passed = 0, 0

  local function object()
    local r = rnd(#pool + math.min(n_made, 60))
    if r <= #pool then return pool[r] end
    return made[r - #pool]
  end
  local function value()
    local r = rnd(#VALUES + 12)
    if r <= #VALUES then return VALUES[r] end
    if r <= #VALUES + 4 then return names[rnd(#names)] end
    if r <= #VALUES + 10 then return object() end
    return nil
  end
  local function keep(v)
    if skip[v] then return end -- what gets it might call it
    local t = type(v)
    if t == "table" or t == "userdata" or t == "cdata" or t == "function" then
      n_made = n_made + 1
      made[(n_made - 1) % 60 + 1] = v
    end
  end
  local function key() return rnd(3) == 1 and value() or names[rnd(#names)] end
  local function args()
    local k = rnd(5) - 1
    if k == 0 then return end
    if k == 1 then return value() end
    if k == 2 then return value(), value() end
    if k == 3 then return value(), value(), value() end
    return value(), value(), value(), value()
  end
  local function call(f, ...)
    if type(f) == "function" and skip[f] then return end
    local a, b, c = f(...)
    keep(a) keep(b) keep(c)
  end
  local ops = {
    function(o) keep(o[key()]) end,
    function(o) call(o[key()], o, args()) end,
    function(o) call(o[key()], o, args()) end,
    function(o) call(o[key()], args()) end,
    function(o) call(o, args()) end,
    function(o) if not skip[o] then o[key()] = value() end end,
    function(o) return tostring(o), o == value(), #o end,
    function(o) return o + value() end,
    function(o) return o .. value() end,
    function(o) return o < value() end,
    function(o) for k, v in pairs(o) do keep(k) keep(v) end end,
    function(o)
      for i, v in o:running() do keep(v) if i == 3 then break end end
    end,
    function(o) for _, v in o:waiting(value(), value()) do keep(v) end end,
    function(o) for _, v in o:lanes() do keep(v) end end,
    function(o) for _, v in o:tenants() do keep(v) end end,
  }
  for _ = 1, n do
    local ok, err = pcall(ops[rnd(#ops)], object())
    if ok then
      passed = passed + 1
    else
      raised = raised + 1
      local t = type(err)
      if t ~= "string" and t ~= "table" and t ~= "userdata" then
        error("an error of type " .. t)
      end
    end
  end
  return raised, passed
end
