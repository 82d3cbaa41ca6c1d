---@meta mc.tensor
-- Tensors on the device, as edge and REPL VMs have them. Operations are queued:
-- they return at once (they wait only while 192 are queued already) and run on
-- a stream that gives way to the steps'. A tensor's contents never change. Its
-- memory goes with close(), with the request, task or session that made it, or
-- with the collector.

--- operators + - * / take tensors and numbers; axes of 1 and missing ones
--- repeat
---@class mc.Tensor
---@field dtype string "f32", "f16", "bf16", "i32"; i32 is only moved and cast
---@field bytes number

--- A tensor of zeros: mc.tensor.zeros("bf16", {8192, 8192}); up to four axes.
---@param dtype string
---@param shape integer[]
---@return mc.Tensor? t
---@return mc.Error? err
function mc.tensor.zeros(dtype, shape) end

--- A tensor of a number, or of even tables of numbers, nested up to four deep;
--- dtype: "f32".
---@param numbers number|table
---@param dtype string?
---@return mc.Tensor? t
---@return mc.Error? err
function mc.tensor.from(numbers, dtype) end

--- A weight by the name that it has in the model's checkpoint, read from its
--- file and unpacked (w): bf16 or f16 where it is stored so, else f32. Names
--- are those of Hugging Face, for GGUF too; a packed matrix has the name that
--- it would have unpacked. model nil: the router's choice, else the first.
---
--- ```lua
--- local w = assert(mc.tensor.weight(nil, "model.embed_tokens.weight"))
--- print(w, w:row(6):norm():get())
--- w:close()
--- ```
---@param model string?
---@param name string
---@return mc.Tensor? t
---@return mc.Error? err
function mc.tensor.weight(model, name) end

--- A vector of the model's hidden size, f32, for a text, a list of texts or
--- lists of ids (w): its last norm at the last token, of length 1. opts:
--- {pooling = "mean", normalize = false, model, salt}. The second result is how
--- many tokens that were.
---@param inputs string|table
---@param opts table?
---@return mc.Tensor[]? vectors
---@return integer|mc.Error tokens
function mc.embed(inputs, opts) end

--- Bytes that tensors take: {used, total} of the pool (--tensor-memory), {mine,
--- quota} of this VM.
function mc.tensor.stats() end

--- Row i of the first axis, from 1, or from -1 at the end; a view.
---@param i integer
---@return mc.Tensor
function tensor:row(i) end

--- Elements from..to (the last) of an axis (the first); a view.
---@param from integer
---@param to integer?
---@param axis integer?
---@return mc.Tensor
function tensor:slice(from, to, axis) end

--- The last two axes exchanged; a view.
---@return mc.Tensor
function tensor:transpose() end

--- A list of the axes' lengths.
---@return integer[]
function tensor:shape() end

--- Gives the memory back, once what is queued is done; the tensor can't be used
--- any more.
function tensor:close() end

--- One element (w): an index for each axis.
---@return number? x
---@return mc.Error? err
function tensor:get(...) end

--- All of it as nested tables (w); at most 1,048,576 numbers.
---@return table|number|nil numbers
---@return mc.Error? err
function tensor:table() end

--- All of it as base64 of little-endian f32 (w).
---@return string? text
---@return mc.Error? err
function tensor:base64() end

--- [m, k] by [k, n]; a row [k] gives a row [n]; axes before these repeat or are
--- equal.
---@param other mc.Tensor
---@return mc.Tensor? t
---@return mc.Error? err
function tensor:matmul(other) end

--- Sums over the last axis, which goes.
---@return mc.Tensor? t
---@return mc.Error? err
function tensor:sum() end

--- Means over the last axis.
---@return mc.Tensor? t
---@return mc.Error? err
function tensor:mean() end

--- Lengths (the root of the squares' sum) over the last axis.
---@return mc.Tensor? t
---@return mc.Error? err
function tensor:norm() end

--- The largest over the last axis.
---@return mc.Tensor? t
---@return mc.Error? err
function tensor:max() end

---@return mc.Tensor? t
---@return mc.Error? err
function tensor:softmax() end

--- The k largest of the last axis, largest first, and their places: i32, from
--- 0, as token ids.
---@param k integer 1 to 1024
---@return mc.Tensor? values
---@return mc.Tensor|mc.Error places
function tensor:topk(k) end

---@param dtype string
---@return mc.Tensor? t
---@return mc.Error? err
function tensor:cast(dtype) end
