--- taps.lua: mc.submit's capture and steer: the tensors behind them, and what
-- of them a sequence shows.
--
-- Trusted. Captured rows are those of positions: row i is that of the i-th
-- token of prompt and answer, row n_prompt what the first answered token was
-- drawn from.

local host = require "mc.host"
local near = require "mc.near"
local tensors = require "mc.tensor"

local seq, tensor = host.seq, host.tensor

local M = {}

local NORM, LOGITS, MAX = -1, -2, 8 -- layers, as host.seq.open has them

local CAPTURE = { hidden = true, norm = true, logits = true }
local STEER = { layer = true, add = true, scale = true }

-- seq -> {hidden, norm, logits}
local taken = setmetatable({}, { __mode = "k" })

local function refuse(param, message)
  return nil, host.error("invalid_value", message, param)
end

-- Rows that an answer may have; limit as in mc.submit.
local function n_answer(limit, n_prompt, context)
  local room = math.max(0, context - n_prompt)
  if type(limit) ~= "number" or limit < 0 then return room end
  return math.min(limit, room)
end

--- The tensors that capture asks for: a list of {layer, tensor} for
-- host.seq.open and what keep() is given; nil, nil when it asks for nothing;
-- nil, err. May wait.
function M.capture(want, n_prompt, limit, model)
  -- A prompt of no tokens is refused by host.seq.open.
  if want == nil or n_prompt == 0 then return nil end
  local n_layer, hidden, vocab, context, rows = seq.dims(model)
  if not n_layer then return nil, hidden end
  if type(want) ~= "table" then
    return refuse("capture", "capture must be a table")
  end
  local wrong = near.unknown(want, CAPTURE)
  if wrong then return refuse("capture", "capture" .. wrong) end
  local n_gen = n_answer(limit, n_prompt, context)
  local list, kept = {}, { hidden = want.hidden and {} }

  local function add(layer, dtype, n, columns)
    local t, err = tensors.zeros(dtype, { n, columns })
    if t then list[#list + 1] = { layer, t } end
    return t, err
  end

  local layers = type(want.hidden) == "table" and want.hidden or { want.hidden }
  local err
  if #layers + 2 > MAX then
    return refuse("capture", "capture.hidden: at most " .. MAX - 2 .. " layers")
  end
  for _, layer in ipairs(layers) do
    if type(layer) ~= "number" or layer % 1 ~= 0 or layer < 0
      or layer > n_layer then
      return refuse("capture", "capture.hidden: layers are 0 to " .. n_layer)
    end
    kept.hidden[layer], err = add(layer, rows, n_prompt + n_gen, hidden)
    if err then return nil, err end
  end
  if want.norm then
    kept.norm, err = add(NORM, rows, n_prompt + n_gen, hidden)
  end
  if not err and want.logits and n_gen > 0 then
    kept.logits, err = add(LOGITS, "f32", n_gen, vocab)
  end
  if err then return nil, err end
  return list, kept
end

--- The vectors of steer, in the rows' type and computed: {layer, tensor, scale}
-- each; nil, nil when there are none; nil, err. Waits.
function M.steer(want, model)
  if want == nil then return nil end
  local n_layer, problem, _, _, rows = seq.dims(model)
  if not n_layer then return nil, problem end
  if type(want) ~= "table" then
    return refuse("steer", "steer must be a list")
  end
  if #want > MAX then
    return refuse("steer", "steer: at most " .. MAX .. " vectors")
  end
  local list = {}
  for i, s in ipairs(want) do
    if type(s) ~= "table" or type(s.layer) ~= "number" or s.layer % 1 ~= 0
      or math.abs(s.layer) > 1e6
      or (s.scale ~= nil and type(s.scale) ~= "number") then
      return refuse("steer",
        "steer: a list of {layer = number, add = tensor, scale = number}")
    end
    local wrong = near.unknown(s, STEER)
    if wrong then return refuse("steer", "steer" .. wrong) end
    local add, err = tensors.methods.cast(s.add, rows)
    if not add then return nil, err end
    list[i] = { s.layer, add, s.scale or 1 }
  end
  local ok, err = tensors.sync("mc.submit")
  if not ok then return nil, err end
  return list
end

--- From now on s shows what was captured of it.
function M.keep(s, kept) taken[s] = kept end

--- The captured rows that the token taken last came from, by layer; nil: none.
function M.behind(s)
  local kept = taken[s]
  if not kept or not kept.hidden then return nil end
  local _, n = seq.counts(s)
  local rows = {}
  for layer, t in pairs(kept.hidden) do rows[layer] = tensor.row(t, n - 1) end
  return rows
end

--- Puts into a result what was captured: a row for each position that was run.
function M.show(s, r)
  local kept = taken[s]
  if not kept then return end
  local n_gen = r.usage.gen
  local n = seq.counts(s) + math.max(n_gen, 1) - 1
  r.hidden = kept.hidden and {}
  for layer, t in pairs(kept.hidden or {}) do
    r.hidden[layer] = tensor.slice(t, 1, n)
  end
  r.norm = kept.norm and tensor.slice(kept.norm, 1, n)
  r.logits = kept.logits and n_gen > 0
    and tensor.slice(kept.logits, 1, n_gen) or nil
end

return M
