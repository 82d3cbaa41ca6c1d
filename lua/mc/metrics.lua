--- metrics.lua: mc.metrics, in every VM: metrics of a script's own for
-- /metrics.
--
-- Trusted. A metric is declared while a file loads and is counted up, set or
-- observed from then on; in a VM that is only being tried, and by a file's
-- tests, nothing is. raw: the host's bindings.

local apart = require "mc.apart"

local M = {}

local KINDS = { counter = { inc = true }, gauge = { inc = true, set = true },
  histogram = { observe = true } }

--- The table mc.metrics. declare may refuse: now() says why not, or nil.
function M.build(raw, refuse)
  -- metric -> {kind, id, labels, name}
  local declared = setmetatable({}, { __mode = "k" })
  local Metric = {}

  local function method(name, how)
    Metric[name] = function(m, value, ...)
      local d = declared[m]
      if not d then
        error(("metric:%s is called with a colon"):format(name), 2)
      end
      if not KINDS[d.kind][name] then
        error(("%s is a %s, which has no %s"):format(d.name, d.kind, name), 2)
      end
      value = value == nil and 1 or value
      if type(value) ~= "number" then
        error(("%s:%s takes a number, not a %s")
          :format(d.name, name, type(value)), 2)
      end
      if select("#", ...) ~= d.labels then
        error(("%s has %d labels, and %d values were given")
          :format(d.name, d.labels, select("#", ...)), 2)
      end
      if apart.on then return end
      local err = how(d.id, value, ...)
      if err then error(("%s: %s"):format(d.name, err), 2) end
    end
  end
  method("inc", raw.add)
  method("set", raw.set)
  method("observe", raw.observe)

  local meta = { __index = Metric, __metatable = false }
  local metrics = {}
  for kind in pairs(KINDS) do
    metrics[kind] = function(name, help, labels, bounds)
      local why = refuse and refuse()
      if why then error(("mc.metrics.%s %s"):format(kind, why), 2) end
      local id, err = raw.declare(kind, name, help, labels, bounds)
      if not id then error(err, 2) end
      local m = setmetatable({}, meta)
      declared[m] = {
        kind = kind,
        id = id,
        labels = labels and #labels or 0,
        name = name,
      }
      return m
    end
  end
  return metrics
end

return M
