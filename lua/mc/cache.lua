--- cache.lua - what a cache hook sees: an array of blocks, each with a score to
-- set.
--
-- Trusted: has ffi. A block is a handle {epoch_, slot_} as a row is (step.lua):
-- one that was kept is an error, and its slot was in bounds when it was made.

local ffi = ffi
local abi = require "mc.abi"
local near = require "mc.near"

local IO = abi.at("struct mc_hook_io *", "io")
local B = abi.at("struct mc_block *", "blocks") -- [io.n_block]

ffi.cdef "struct mc_h_block { const uint32_t epoch_; const int32_t slot_; };"
local Block = ffi.typeof("struct mc_h_block")
local BLOCK = abi.scalars("mc_block")

local function check(h, level)
  if h.epoch_ ~= IO.epoch then
    error("block is stale: it belongs to an earlier hook call", level + 1)
  end
end

local function refuse_unknown(what, k, known)
  error(("%s has no '%s'"):format(what, tostring(k)) .. near.hint(k, known), 3)
end

ffi.metatype(Block, {
  __index = function(h, k)
    check(h, 2)
    if BLOCK[k] then return B[h.slot_][k] end
    refuse_unknown("a block", k, BLOCK)
  end,
  __newindex = function(h, k, v)
    check(h, 2)
    if k ~= "score" then
      error(("'%s' can't be written"):format(tostring(k)), 2)
    end
    if type(v) ~= "number" or v ~= v then
      error("a score is a number, not " .. tostring(v), 2)
    end
    B[h.slot_].score = v
  end,
  __tostring = function() return "block" end,
})

local Blocks, MORE = {}, { n = true }

local function next_block(_, i)
  if type(i) ~= "number" or not (i >= 0) then
    error("an iterator takes what its method returned", 2)
  end
  if i < IO.n_block then return i + 1, Block(IO.epoch, i) end
end

--- All blocks, the least recently used first.
function Blocks:all() return next_block, nil, 0 end

local blocks = setmetatable({}, {
  __index = function(_, k)
    if Blocks[k] then return Blocks[k] end
    if k == "n" then return IO.n_block end
    for name in pairs(Blocks) do MORE[name] = true end
    refuse_unknown("blocks", k, MORE)
  end,
  __newindex = function(_, k)
    error(("'%s' can't be written"):format(tostring(k)), 2)
  end,
  __metatable = false,
})

local cache = {}

--- The names that blocks and a block have, for the check that each is in the
-- reference.
function cache.names()
  return { Block = BLOCK, Blocks = { n = true, all = true } }
end

--- Functions without arguments that the host calls, for the hooks that a cache
-- policy has.
function cache.bind(policy)
  local on_keep = policy.keep
  return { keep = function() on_keep(blocks) end }
end

return cache
