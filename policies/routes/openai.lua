-- openai.lua: the OpenAI endpoints. Copy it to make your own dialect of them.
--
-- A body is checked by shape here and by value in mc.submit, which names the
-- field at fault. Answers, streamed or whole, are written by the server's pump
-- (res:stream).

local R = { api = 1, kind = "routes" }
local null = mc.json.null

-- What goes to mc.submit under its own name.
local PASSED = {
  "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
  "presence_penalty", "frequency_penalty", "min_tokens", "seed", "stop",
  "stop_token_ids", "ignore_eos", "logit_bias",
}

local COMMON = {
  model = "string?",
  stream = "boolean?",
  n = "integer? 1..128",
  user = "string?",
  stream_options = {
    ["?"] = true,
    include_usage = "boolean?",
    continuous_usage_stats = "boolean?",
    include_obfuscation = "boolean?",
  },
  return_token_ids = "boolean?",
  cache_salt = "string?",
}

local function shape(more)
  local all = {}
  for k, v in pairs(COMMON) do all[k] = v end
  for k, v in pairs(more) do all[k] = v end
  return all
end

local COMPLETION = shape {
  prompt = "string|array",
  echo = "boolean?",
  logprobs = "integer? 0..20",
  best_of = "integer?",
  suffix = "string?",
}
local CHAT = shape {
  messages = "array 1..4096",
  logprobs = "boolean?",
  top_logprobs = "integer? 0..20",
  chat_template_kwargs = "object?",
  add_generation_prompt = "boolean?",
  tools = "array?",
  functions = "array?",
  tool_choice = "string|object?",
  parallel_tool_calls = "boolean?",
  response_format = "object?",
}

local function bad(param, message, code)
  return { code = code or "invalid_value", message = message, param = param }
end

-- A number of tokens: nil when absent, -1 (as room allows) when null. It is not
-- in the schema, for which null is absent.
local function count(b, name)
  local v = b[name]
  if v == nil then return nil end
  if v == null then return -1 end
  if type(v) == "table" and mc.json.kind(v) == "number" then v = v.value end
  if type(v) ~= "number" or v ~= math.floor(v) or v < 0 then
    return nil, bad(name, name .. " must be a whole number of at least 0")
  end
  return v
end

-- The model is the router's choice, else the client's.
local function common(req, b)
  local m, err = mc.engine.model(req.model or b.model)
  if not m then return nil, err end
  local o = { salt = b.cache_salt, model = m.id }
  for _, k in ipairs(PASSED) do
    local v = b[k]
    if v ~= nil and v ~= null then o[k] = v end
  end
  return o, m
end

local function stream_opts(b, dialect)
  local so = b.stream_options or {}
  return {
    dialect = dialect,
    stream = b.stream or false,
    token_ids = b.return_token_ids,
    include_usage = so.include_usage == true,
    continuous_usage = so.continuous_usage_stats == true,
  }
end

-- One sequence for each prompt and index; the seed of each is its own. They
-- start together: more than may wait would be refused each time it is tried.
local function submit_all(prompts, field, n, o)
  local seqs, most = {}, mc.config.max_waiting
  if #prompts * n > most then
    local name = n > 1 and "n" or "prompt"
    return nil, bad(name, ("%s: %d choices at once are more than the %d that "
      .. "may wait here (--max-waiting)"):format(name, #prompts * n, most))
  end
  for _, p in ipairs(prompts) do
    for index = 0, n - 1 do
      o[field], o.index = p, index
      local s, err = mc.submit(o)
      if not s then return nil, err end
      seqs[#seqs + 1] = s
    end
  end
  return seqs
end

-- ---- completions ------------------------------------------------------------

-- A string, a list of strings, ids, or a list of lists of ids: always a list of
-- prompts.
local function prompts_of(p)
  if type(p) == "string" then return { p } end
  local kind = type(p[1])
  if kind == "number" then return { p } end
  for _, one in ipairs(p) do
    if type(one) ~= kind then return nil end
  end
  if kind ~= "string" and kind ~= "table" then return nil end
  return p
end

local function unsupported(b)
  if b.suffix and b.suffix ~= "" then return "suffix" end
  if b.best_of and b.best_of ~= (b.n or 1) then return "best_of" end
end

R["POST /v1/completions"] = function(req, res)
  local b = req:json(COMPLETION)
  local o, err = common(req, b)
  if not o then return res:fail(err) end
  local name = unsupported(b)
  if name then
    return res:fail(bad(name, name .. " is not supported here",
      "unsupported_parameter"))
  end
  local prompts, n = prompts_of(b.prompt), b.n or 1
  if not prompts then
    return res:fail(bad("prompt",
      "prompt must be a string, token ids, or a list of either"))
  end
  if #prompts * n > 128 then
    return res:fail(bad("n", "more than 128 choices in one request"))
  end
  o.limit, err = count(b, "max_tokens")
  if err then return res:fail(err) end
  o.limit = o.limit or 16
  o.logprobs = b.logprobs
  o.prompt_logprobs = b.echo and b.logprobs ~= nil
  local seqs
  seqs, err = submit_all(prompts, "prompt", n, o)
  if not seqs then return res:fail(err) end
  local so = stream_opts(b, "completion")
  so.prompts, so.logprobs = #prompts, b.logprobs
  so.prompt_logprobs = o.prompt_logprobs
  if b.echo then
    so.echo = {}
    for i, p in ipairs(prompts) do
      so.echo[i] = type(p) == "string" and p
        or mc.vocab.decode(p, false, o.model)
    end
  end
  res:stream(seqs, so)
end

-- ---- chat -------------------------------------------------------------------

local ROLES = { system = "system", developer = "system", user = "user",
  assistant = "assistant", tool = "tool" }

-- mc.chat.render reads every spelling of a message; which roles there are is
-- this API's.
local function check_roles(messages)
  for i, m in ipairs(messages) do
    local role = type(m) == "table" and ROLES[m.role]
    if not role then
      local at = ("messages[%d].role"):format(i - 1)
      return bad(at,
        at .. " must be system, developer, user, assistant or tool")
    end
    m.role = role
  end
end

local function unsupported_chat(b)
  if b.tools and #b.tools > 0 then return "tools" end
  if b.functions and #b.functions > 0 then return "functions" end
  local format = b.response_format
  if format and format.type ~= "text" then return "response_format" end
end

R["POST /v1/chat/completions"] = function(req, res)
  local b = req:json(CHAT)
  local o, m = common(req, b)
  if not o then return res:fail(m) end
  local name = unsupported_chat(b)
  if name then
    return res:fail(bad(name, name .. " is not supported here",
      "unsupported_parameter"))
  end
  local err = check_roles(b.messages)
  if err then return res:fail(err) end
  if b.top_logprobs and not b.logprobs then
    return res:fail(bad("top_logprobs", "top_logprobs needs logprobs"))
  end
  o.limit, err = count(b, "max_completion_tokens")
  if not o.limit and not err then o.limit, err = count(b, "max_tokens") end
  if err then return res:fail(err) end
  o.limit = o.limit or m.max_tokens_default
  o.logprobs = b.logprobs and (b.top_logprobs or 0) or nil
  o.ids, err = mc.chat.render(b.messages, {
    kwargs = b.chat_template_kwargs,
    model = o.model,
    add_generation_prompt = b.add_generation_prompt ~= false,
  })
  if not o.ids then return res:fail(err) end
  local seqs
  seqs, err = submit_all({ o.ids }, "ids", b.n or 1, o)
  if not seqs then return res:fail(err) end
  local so = stream_opts(b, "chat")
  so.logprobs = o.logprobs
  res:stream(seqs, so)
end

-- ---- models and tokens ------------------------------------------------------

local function model_of(m)
  return {
    id = m.id,
    object = "model",
    created = m.created,
    owned_by = "mascon",
    max_model_len = m.max_context,
  }
end

R["GET /v1/models"] = function(_, res)
  local list = mc.json.array {}
  for i, m in ipairs(mc.engine.models()) do list[i] = model_of(m) end
  res:json { object = "list", data = list }
end

R["GET /v1/models/{id*}"] = function(req, res)
  local m, err = mc.engine.model(req.params.id)
  if not m then return res:fail(err) end
  res:json(model_of(m))
end

R["POST /v1/tokenize"] = function(req, res)
  local b = req:json {
    prompt = "string?",
    messages = "array?",
    model = "string?",
    add_special_tokens = "boolean?",
    add_generation_prompt = "boolean?",
  }
  local m, err = mc.engine.model(req.model or b.model)
  if not m then return res:fail(err) end
  local tokens
  if b.messages then
    err = check_roles(b.messages)
    if err then return res:fail(err) end
    tokens, err = mc.chat.render(b.messages, {
      model = m.id,
      add_generation_prompt = b.add_generation_prompt ~= false,
    })
    tokens = tokens and mc.vocab.table(tokens)
  elseif b.prompt then
    tokens, err = mc.vocab.encode(b.prompt,
      { model = m.id, bos = b.add_special_tokens ~= false })
  else
    err = bad("prompt", "prompt or messages is needed")
  end
  if not tokens then return res:fail(err) end
  res:json { tokens = tokens, count = #tokens, max_model_len = m.max_context }
end

R["POST /v1/detokenize"] = function(req, res)
  local b = req:json { tokens = "array", model = "string?" }
  local m, err = mc.engine.model(req.model or b.model)
  if not m then return res:fail(err) end
  local text
  text, err = mc.vocab.decode(b.tokens, false, m.id)
  if not text then return res:fail(err) end
  res:json { prompt = text }
end

return R
