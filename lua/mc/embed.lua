--- embed.lua: mc.embed: texts as vectors, out of the rows of the model's last
-- norm.
--
-- Trusted. Each text is a sequence that generates nothing, so that texts share
-- steps; pooling is work on tensors.

local host = require "mc.host"
local near = require "mc.near"
local seq = require "mc.seq"

local M = {}

local OPTIONS = { pooling = true, normalize = true, model = true, salt = true }

local POOLS = {
  last = function(rows) return rows:row(-1) end,
  mean = function(rows) return rows:transpose():mean() end,
}

-- One text's vector and how many tokens it has.
local function finish(s, pool, normalize)
  local r, err = s:wait()
  if not r then return nil, err end
  local v, why = pool(r.norm)
  if not v then return nil, why end
  if normalize then
    local length, no = v:norm()
    if not length then return nil, no end
    v = v / length
  end
  v, why = v:cast("f32")
  return v, v and r.usage.prompt or why
end

local function submit(one, opts)
  local fields = {
    limit = 0,
    capture = { norm = true },
    model = opts.model,
    salt = opts.salt,
  }
  fields[type(one) == "table" and "tokens" or "prompt"] = one
  return seq.submit(fields)
end

--- A vector [hidden], f32, for each text or list of ids, and the tokens of all.
-- Waits.
function M.embed(inputs, opts)
  opts = near.options("mc.embed", opts, OPTIONS)
  if type(inputs) == "string" then inputs = { inputs } end
  if type(inputs) ~= "table" then
    error("mc.embed takes a text or a list of them", 2)
  end
  local pool = POOLS[opts.pooling or "last"]
  if not pool then
    return nil, host.error("invalid_value",
      "pooling must be \"last\" or \"mean\"", "pooling")
  end
  local running, out, tokens, failed = {}, {}, 0, nil
  for i, one in ipairs(inputs) do
    running[i], failed = submit(one, opts)
    if not running[i] then break end
  end
  for i, s in ipairs(running) do
    local v, n
    if not failed then
      v, n = finish(s, pool, opts.normalize ~= false)
      failed = not v and n or nil
      out[i], tokens = v, v and tokens + n
    end
    if failed then s:cancel("another of its texts failed") end
  end
  if failed then return nil, failed end
  return out, tokens
end

return M
