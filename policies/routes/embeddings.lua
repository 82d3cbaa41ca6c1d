-- embeddings.lua: POST /v1/embeddings: texts as vectors of length 1.
--
-- A vector is the model's last norm at the text's last token (where models
-- made for embeddings have it), or with "pooling": "mean" the mean over all of
-- its tokens. OpenAI's clients ask for base64 by themselves: little-endian f32.

local SCHEMA = {
  input = "string|array",
  model = "string?",
  encoding_format = "string?",
  dimensions = "integer?",
  user = "string?",
  pooling = "string?",
  cache_salt = "string?",
}
local AT_ONCE = 2048

local function bad(param, message, code)
  return { code = code or "invalid_value", message = message, param = param }
end

-- One text, one list of ids, or a list of either.
local function inputs_of(input)
  if type(input) == "string" then return input ~= "" and { input } or nil end
  if type(input[1]) == "number" then return { input } end
  local kind = type(input[1])
  for _, one in ipairs(input) do
    if type(one) ~= kind or one == "" then return nil end
  end
  if kind ~= "string" and kind ~= "table" then return nil end
  return input
end

return { api = 1, kind = "routes", ["POST /v1/embeddings"] = function(req, res)
  local b = req:json(SCHEMA)
  local m, err = mc.engine.model(req.model or b.model)
  if not m then return res:fail(err) end
  local inputs = inputs_of(b.input)
  if not inputs or #inputs > AT_ONCE then
    return res:fail(bad("input", "input must be a string, token ids, or a list "
      .. "of either, of at most " .. AT_ONCE .. ", none of them empty"))
  end
  local format = b.encoding_format or "float"
  if format ~= "float" and format ~= "base64" then
    return res:fail(bad("encoding_format",
      "encoding_format is float or base64"))
  end
  if b.dimensions then
    return res:fail(bad("dimensions", "dimensions is not supported here",
      "unsupported_parameter"))
  end
  local vectors, n = mc.embed(inputs,
    { model = m.id, pooling = b.pooling, salt = b.cache_salt })
  if not vectors then
    if n.param == "prompt" or n.param == "tokens" then n.param = "input" end
    return res:fail(n)
  end
  local data = mc.json.array()
  for i, v in ipairs(vectors) do
    local numbers, why
    if format == "base64" then
      numbers, why = v:base64()
    else
      numbers, why = v:table()
    end
    if not numbers then return res:fail(why) end
    if format == "float" then numbers = mc.json.array(numbers) end
    data[i] = { object = "embedding", index = i - 1, embedding = numbers }
  end
  res:json {
    object = "list",
    data = data,
    model = m.id,
    usage = { prompt_tokens = n, total_tokens = n },
  }
end }
