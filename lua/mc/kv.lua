--- kv.lua: contexts that are kept: snapshots, saved to files and loaded.
--
-- Trusted. A context is the whole pages (64 tokens each) of what a sequence has
-- run; mc.submit{from = kv} goes on behind them.

local host = require "mc.host"
local near = require "mc.near"
local seq = require "mc.seq"
local tensors = require "mc.tensor"

local kv = host.kv
local meta = kv.meta

local M = {}

local OPTIONS = { model = true, salt = true, tenant = true }

local function done(job, err, what)
  if not job then return nil, err end
  while true do
    local got, why = kv.finish(job)
    if got ~= false then return got, why end
    local ok, failed = tensors.sync(what)
    if not ok then return nil, failed end
  end
end

local function who(opts)
  local context = host.task.context() or {}
  return opts.tenant or context.tenant, opts.salt
end

--- A context out of a file of --kv-dir. opts: {model, salt}. Waits.
function M.load(name, opts)
  opts = near.options("mc.kv.load", opts, OPTIONS)
  local model, err = seq.model(opts.model)
  if not model then return nil, err end
  local tenant, salt = who(opts)
  local job, why = kv.load(name, model, tenant, salt)
  return done(job, why, "mc.kv.load")
end

-- ---- methods ----------------------------------------------------------------

local Context = {}

--- How many tokens it holds.
function Context.tokens(k) return host.ids.count((kv.ids(k))) end

--- Bytes of KV that it holds, of all ranks.
function Context.bytes(k) return kv.bytes(k) end

--- Writes it to a file of --kv-dir: true. Waits.
function Context.save(k, name)
  local job, err = kv.save(k, name)
  return done(job, err, "context:save")
end

--- Lets go of its pages; what others share stays.
function Context.drop(k) kv.drop(k) end

meta.__index = Context
meta.__tostring = function(k)
  return ("context of %d tokens"):format(Context.tokens(k))
end
meta.__doc = "context"

return M
