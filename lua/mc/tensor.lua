--- tensor.lua: mc.tensor and the methods of a tensor.
--
-- Trusted. host.tensor checks and queues and never waits; the waiting is here.
-- What is wrong about an argument raises; what there is no room for is nil and
-- an error, save in operators, which have one result and raise.

local host = require "mc.host"
local wait = require("mc.wait").wait

local tensor = host.tensor
local meta = tensor.meta

local M = {}

local function misuse(err)
  return type(err) == "table" and err.code == "invalid_value"
end

--- Until everything that is queued now is done: true, or nil, err. Waits.
function M.sync(what)
  local fence, err = tensor.fence()
  if not fence then return nil, err end
  while true do
    local passed, why = tensor.passed(fence)
    if passed ~= false then return passed, why end
    wait(what)
  end
end

-- Queues: waits while too much is queued already.
local function queue(what, fn, ...)
  while true do
    local a, b = fn(...)
    if a then return a, b end
    if a == nil then
      if misuse(b) then error(b.message, 3) end
      return nil, b
    end
    local ok, err = M.sync(what)
    if not ok then return nil, err end
  end
end

-- ---- making -----------------------------------------------------------------

--- A tensor of zeros.
function M.zeros(dtype, shape)
  return queue("mc.tensor.zeros", tensor.zeros, dtype, shape)
end

--- A tensor of a number, or of tables of numbers, nested up to four deep.
function M.from(numbers, dtype)
  local staged, err = queue("mc.tensor.from", tensor.host, numbers)
  if not staged then return nil, err end
  local t, why = queue("mc.tensor.from", tensor.like, staged, dtype or "f32")
  if not t then return nil, why end
  local ok, full = queue("mc.tensor.from", tensor.move, staged, t)
  tensor.close(staged)
  if not ok then return nil, full end
  return t
end

local BLOCK = 262144 -- numbers that are in host memory at once

-- Until the source's job is done: true, or nil, err.
local function await(source, started, err)
  if not started then return nil, err end
  local ok, why = M.sync("mc.tensor.weight")
  if not ok then return nil, why end
  return tensor.ready(source)
end

-- Rows from.. (0..) of the source, by way of staged, into those of t: true, or
-- nil, err.
local function copy_rows(source, staged, t, from, n)
  local ok, err = await(source, tensor.rows(source, from, n, staged))
  if not ok then return nil, err end
  local whole = #tensor.shape(t) == 1
  local a = whole and staged or tensor.slice(staged, 1, n)
  local b = whole and t or tensor.slice(t, from + 1, from + n)
  ok, err = queue("mc.tensor.weight", tensor.move, a, b)
  if not whole then tensor.close(a) tensor.close(b) end
  if not ok then return nil, err end
  return M.sync("mc.tensor.weight")
end

local function read_weight(source)
  local dtype, axes, rows, columns = tensor.about(source)
  local per = math.max(1, math.min(rows, math.floor(BLOCK / columns)))
  local t, err = M.zeros(dtype, axes == 1 and { columns } or { rows, columns })
  if not t then return nil, err end
  local staged, ok
  staged, err = queue("mc.tensor.weight", tensor.zeros, "f32",
    axes == 1 and { columns } or { per, columns }, true)
  ok = staged
  for from = 0, rows - 1, per do
    if not ok then break end
    ok, err = copy_rows(source, staged, t, from, math.min(per, rows - from))
  end
  if staged then tensor.close(staged) end
  if ok then return t end
  tensor.close(t)
  return nil, err
end

--- A tensor of the model's checkpoint by its name, read from its file. Waits.
function M.weight(model, name)
  local source, err = tensor.source(model, name)
  if not source then return nil, err end
  local ok, t
  ok, err = await(source, true)
  if ok then t, err = read_weight(source) end
  tensor.done(source)
  return t, err
end

--- What tensors take, in bytes: {used, total} of the pool, {mine, quota} of
-- this VM.
function M.stats()
  local used, total, mine, quota = tensor.stats()
  if not used then return nil, total end
  return { used = used, total = total, mine = mine, quota = quota }
end

-- ---- reading ----------------------------------------------------------------

-- What `as` makes of a view's numbers, by way of a copy in host memory.
local function read(t, what, as)
  if tensor.count(t) > 1048576 then
    error(what .. ": more than 1,048,576 numbers", 3)
  end
  local staged, err = queue(what, tensor.like, t)
  if not staged then return nil, err end
  local ok, why = queue(what, tensor.move, t, staged)
  if ok then ok, why = M.sync(what) end
  if not ok then return nil, why end
  local numbers = (as or tensor.numbers)(staged)
  tensor.close(staged)
  return numbers
end

-- ---- methods ----------------------------------------------------------------

local Tensor = {}

--- Row i of the first axis, from 1, or from -1 at the end. A view.
function Tensor.row(t, i) return tensor.row(t, i) end

--- Elements from..to of an axis (the first). A view.
function Tensor.slice(t, from, to, axis)
  return tensor.slice(t, from, to, axis)
end

--- The last two axes exchanged. A view.
function Tensor.transpose(t)
  local v, err = tensor.transpose(t)
  if misuse(err) then error(err.message, 2) end
  return v, err
end

function Tensor.shape(t) return tensor.shape(t) end

--- Gives the memory back; the tensor can't be used any more.
function Tensor.close(t) tensor.close(t) end

--- One element (w).
function Tensor.get(t, ...)
  local v = t
  for n = 1, select("#", ...) do v = tensor.row(v, (select(n, ...))) end
  local got, err = read(v, "t:get")
  if type(got) == "table" then
    error("t:get takes an index for each axis", 2)
  end
  return got, err
end

--- All of it as nested tables (w).
function Tensor.table(t) return read(t, "t:table") end

--- All of it as base64 of little-endian f32 (w).
function Tensor.base64(t) return read(t, "t:base64", host.base64) end

function Tensor.matmul(a, b)
  return queue("t:matmul", tensor.work, "matmul", a, b)
end

function Tensor.topk(a, k) return queue("t:topk", tensor.work, "topk", a, k) end

function Tensor.cast(a, dtype)
  return queue("t:cast", tensor.work, "cast", a, dtype)
end

for _, name in ipairs { "sum", "mean", "norm", "max", "softmax" } do
  Tensor[name] = function(a)
    return queue("t:" .. name, tensor.work, name, a)
  end
end

-- An operand that is no tensor: a number times a tensor is a tensor times it.
local function operator(name)
  return function(a, b)
    local t, err
    if type(a) ~= "number" then
      t, err = queue("an operation on tensors", tensor.work, name, a, b)
    elseif name == "add" or name == "mul" then
      t, err = queue("an operation on tensors", tensor.work, name, b, a)
    else
      local x = M.from(a) -- of its own shape: it repeats
      t, err = queue("an operation on tensors", tensor.work, name, x, b)
    end
    if not t then error(err.message, 2) end
    return t
  end
end

meta.__add = operator "add"
meta.__sub = operator "sub"
meta.__mul = operator "mul"
meta.__div = operator "div"
meta.__unm = function(a) return a * -1 end

meta.__index = function(t, key)
  local method = Tensor[key]
  if method then return method end
  local dtype, bytes = tensor.info(t)
  if key == "dtype" then return dtype end
  if key == "bytes" then return bytes end
  return nil
end
meta.__tostring = function(t)
  if tensor.closed(t) then return "tensor (closed)" end
  local _, bytes, text = tensor.info(t)
  return ("tensor %s, %.0f bytes"):format(text, bytes)
end

meta.__doc = "tensor"

M.methods = Tensor
return M
