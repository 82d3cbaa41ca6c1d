--- pick.lua - what a sampler hook sees: candidates, its sequence, vocabulary
-- sets.
--
-- Trusted: has ffi. The same rules as step.lua: only checked accessors leave
-- this file.

local ffi, bit = ffi, bit
local abi = require "mc.abi"
local near = require "mc.near"
local state = require "mc.state"

local floor, huge = math.floor, math.huge
local band, lshift, rshift = bit.band, bit.lshift, bit.rshift
local istype = ffi.istype
local CAP, PICK = ffi.C.MC_CAND_CAP, ffi.C.MC_PARAM_PICK

local IO = abi.at("struct mc_hook_io *", "io")
local C = abi.at("const struct mc_cands *", "cands")
local S = abi.at("struct mc_pick_seq *", "seq")
local WANT = abi.at("const struct mc_params *", "want")
local OUT = abi.at("struct mc_params *", "params")
local HOST = abi.at("void *", "host") -- what the leaves take first

local piece = abi.leaf("const char *(*)(void *, int32_t, int32_t *)", "piece")
local ends_with =
  abi.leaf("int32_t (*)(void *, const char *, int32_t)", "ends_with")
local random = abi.leaf("double (*)(void *)", "random")
local find_set =
  abi.leaf("int32_t (*)(void *, const char *, int32_t)", "find_set")
local add_set = abi.leaf(
  "int32_t (*)(void *, const char *, int32_t, const uint32_t *)", "add_set")
local set_bits = abi.leaf("const uint32_t *(*)(void *, int32_t)", "set_bits")
local n_out = ffi.new("int32_t[1]")

-- The bytes of a token; "" for control tokens and ids without one.
local function text_of(id)
  local p = piece(HOST, id, n_out)
  return p ~= nil and ffi.string(p, n_out[0]) or ""
end

local function refuse_write(_, k)
  error(("'%s' can't be written"):format(tostring(k)), 2)
end

local function check_picking(what)
  if IO.picking == 0 then
    error("there is no " .. what .. " outside chain and pick", 3)
  end
end

-- ---- vocabulary sets --------------------------------------------------------

ffi.cdef [[ struct mc_h_set { const int32_t handle_; }; ]]
local Set = ffi.typeof("struct mc_h_set")
local BITS = {} -- handle -> words, of the sets that this VM asked for

local function has(set, id)
  if not istype(Set, set) then error("set expected, got " .. type(set), 2) end
  if type(id) ~= "number" or not (id >= 0 and id < IO.n_vocab)
    or id ~= floor(id) then
    error(("no token id '%s'"):format(tostring(id)), 2)
  end
  return band(BITS[set.handle_][rshift(id, 5)], lshift(1, band(id, 31))) ~= 0
end

ffi.metatype(Set, {
  __index = function(_, k)
    if k == "has" then return has end
    error(("a set has no '%s'"):format(tostring(k)), 2)
  end,
  __newindex = refuse_write,
  __tostring = function(s) return "vocabulary set " .. s.handle_ end,
})

local vocab = {}

--- The tokens whose text matches a Lua pattern, as a set. Control tokens are in
-- no set. Looks at the whole vocabulary: only while a file is loaded or in
-- init.
function vocab.set(pattern)
  if type(pattern) ~= "string" then
    error("vocab.set takes a pattern, not a " .. type(pattern), 2)
  end
  if IO.loading == 0 then error("vocab.set is for init, not for hooks", 2) end
  local handle = find_set(HOST, pattern, #pattern)
  if handle < 0 then
    local words = ffi.new("uint32_t[?]", floor(IO.n_vocab / 32) + 1)
    for id = 0, IO.n_vocab - 1 do
      local text = text_of(id)
      if text ~= "" and text:find(pattern) then
        words[rshift(id, 5)] =
          bit.bor(words[rshift(id, 5)], lshift(1, band(id, 31)))
      end
    end
    handle = add_set(HOST, pattern, #pattern, words)
    if handle < 0 then
      error("too many different vocabulary sets in this process", 2)
    end
  end
  BITS[handle] = set_bits(HOST, handle)
  return Set(handle)
end

-- ---- parameters -------------------------------------------------------------

-- Inclusive ranges of what chain may return.
local RANGE = {
  temperature = { 0, 100 },
  top_p = { 0, 1 },
  min_p = { 0, 1 },
  repetition_penalty = { 1e-3, 1e3 },
  presence_penalty = { -100, 100 },
  frequency_penalty = { -100, 100 },
  top_k = { -1, 2 ^ 31 - 1 },
  keep = { 1, CAP },
  min_tokens = { 0, 2 ^ 31 - 1 },
}
local WHOLE = { top_k = true, keep = true, min_tokens = true }
local CHAIN = { ban = true }
for k in pairs(RANGE) do CHAIN[k] = true end

local want = setmetatable({}, {
  __index = function(_, k)
    check_picking("want")
    if not RANGE[k] then
      error(("want has no '%s'"):format(tostring(k)) .. near.hint(k, RANGE), 2)
    end
    return WANT[k]
  end,
  __newindex = refuse_write,
  __metatable = false,
})

local function set_ban(v)
  local list = istype(Set, v) and { v } or v
  if type(list) ~= "table" or #list > 2 then
    error("chain: ban must be a vocabulary set or a list of two", 0)
  end
  for i = 1, 2 do
    if list[i] ~= nil and not istype(Set, list[i]) then
      error("chain: ban must be a vocabulary set or a list of two", 0)
    end
    OUT.ban[i - 1] = list[i] and list[i].handle_ or -1
  end
end

local function set_param(k, v)
  local range = RANGE[k]
  if k == "ban" then return set_ban(v) end
  if not range then
    error(("chain: unknown parameter '%s'"):format(tostring(k))
      .. near.hint(k, CHAIN), 0)
  end
  if type(v) ~= "number" or not (v >= range[1] and v <= range[2]) or
    (WHOLE[k] and v ~= floor(v)) then
    error(("chain: %s must be a %snumber from %g to %g, not '%s'"):format(k,
      WHOLE[k] and "whole " or "", range[1], range[2], tostring(v)), 0)
  end
  OUT[k] = v
end

-- ---- the sequence and its candidates ----------------------------------------

local Seq = {}
local SEQ_MORE =
  { id = true, done = true, n_prompt = true, want = true, state = true }
local seq_state -- set once, by bind

--- Whether the text generated so far ends with s.
function Seq:ends_with(s)
  check_picking("sequence")
  if type(s) ~= "string" or #s > 32 then
    error("ends_with takes a string of at most 32 bytes", 2)
  end
  return ends_with(HOST, s, #s) ~= 0
end

--- The next number in [0, 1) of the sequence's own: the same seed gives the
-- same numbers.
function Seq:random()
  check_picking("sequence")
  return random(HOST)
end

for k in pairs(Seq) do SEQ_MORE[k] = true end
local seq = setmetatable({}, {
  __index = function(_, k)
    local method = Seq[k]
    if method then return method end
    check_picking("sequence")
    if k == "id" then return S.seq end
    if k == "done" then return S.done end
    if k == "n_prompt" then return S.n_prompt end
    if k == "want" then return want end
    if k == "state" then return seq_state end
    error(("a sequence has no '%s'"):format(tostring(k))
      .. near.hint(k, SEQ_MORE), 2)
  end,
  __newindex = refuse_write,
  __metatable = false,
})

local Cands, CANDS_MORE = {}, { n = true, rest = true, lse = true }

local function at(i)
  if IO.picking == 0 then error("there are no candidates outside pick", 3) end
  if type(i) ~= "number" or not (i >= 1 and i <= C.n) or i ~= floor(i) then
    error(("no candidate '%s': there are %d"):format(tostring(i), C.n), 3)
  end
  return i - 1
end

--- Token id, probability, logit and text of the i-th likeliest.
function Cands:id(i) return C.id[at(i)] end
function Cands:p(i) return C.p[at(i)] end
function Cands:logit(i) return C.logit[at(i)] end
function Cands:text(i) local slot = at(i) return text_of(C.id[slot]) end

--- The token that the device drew, with the sequence's own seed.
function Cands:draw()
  check_picking("candidate")
  return C.drawn
end

for k in pairs(Cands) do CANDS_MORE[k] = true end
local cands = setmetatable({}, {
  __index = function(_, k)
    local method = Cands[k]
    if method then return method end
    if IO.picking == 0 then error("there are no candidates outside pick", 2) end
    if k == "n" then return C.n end
    if k == "rest" then return C.rest end
    if k == "lse" then return C.lse end
    error(("candidates have no '%s'"):format(tostring(k))
      .. near.hint(k, CANDS_MORE), 2)
  end,
  __newindex = refuse_write,
  __metatable = false,
})

-- ---- hooks ------------------------------------------------------------------

local pick = { vocab = vocab }

--- As step.names.
function pick.names()
  return { Cands = CANDS_MORE, PickSeq = SEQ_MORE, Want = CHAIN }
end

--- Functions without arguments that the host calls, for the hooks that a
-- sampler has.
function pick.bind(sampler)
  local run = {}
  local on_chain, on_pick = sampler.chain, sampler.pick
  seq_state = state.new("sampler", sampler.state, S.state)
  function run.chain()
    local t = on_chain(seq, want)
    if on_pick then
      OUT.flags = bit.bor(OUT.flags, PICK)
      if OUT.keep < 1 then OUT.keep = CAP end
    end
    if t == want then return end
    if type(t) ~= "table" then
      error("chain must return a table of parameters, or want; it returned a "
        .. type(t), 0)
    end
    for k, v in pairs(t) do set_param(k, v) end
  end
  run.pick = on_pick and function()
    local id = on_pick(cands, seq)
    if id == nil then
      IO.answer = -1
    elseif type(id) == "number" and id >= 0 and id < IO.n_vocab
      and id == floor(id) then
      IO.answer = id
    else
      error(("pick returned '%s', which is no token id")
        :format(tostring(id)), 0)
    end
  end
  return run
end

return pick
