-- classify.lua: which of some labels fits a text, decided token by token.
--
-- Copy it to the routes/ of your policies and name it in init.lua, then
--   curl localhost:8000/v1/classify -d '{"text": "What a lovely day!",
--     "labels": ["positive", "negative"]}'
-- The model may only go on with a token that one of the labels has there: each
-- step is a fork of one token, and it ends as soon as a single label is left.
local R = { api = 1, kind = "routes" }

-- The ids of each label as it would stand behind the question.
local function ids_of(labels)
  local all = {}
  for i, label in ipairs(labels) do
    local ids, err =
      mc.vocab.encode(" " .. label .. "\n", { bos = false, special = false })
    if not ids then return nil, err end
    all[i] = ids
  end
  return all
end

-- The labels (by number) whose token at a place is this one.
local function keep(left, ids, at, id)
  local kept = {}
  for _, i in ipairs(left) do
    if ids[i][at] == id then kept[#kept + 1] = i end
  end
  return kept
end

local function decide(root, ids)
  local left, sum, at = {}, 0, 0
  for i in ipairs(ids) do left[i] = i end
  while #left > 1 do
    at = at + 1
    local allowed = {}
    for _, i in ipairs(left) do
      if ids[i][at] then allowed[tostring(ids[i][at])] = 100 end
    end
    if not next(allowed) then break end -- the same label twice
    local s, err = root:fork {
      limit = 1,
      temperature = 0,
      logit_bias = allowed,
      logprobs = 0,
      ignore_eos = true,
    }
    local t
    if s then t, err = s:next() end
    if not t then return nil, err end
    sum = sum + t.logprob
    left = keep(left, ids, at, t.id)
    root = s
  end
  return left[1], { steps = at, logprob = sum }
end

local SCHEMA = {
  text = "string 1..100000",
  labels = "array 2..32",
  question = "string?",
}

R["POST /v1/classify"] = { schema = SCHEMA, handler = function(req, res)
  local b = req.data
  for i, label in ipairs(b.labels) do
    if type(label) ~= "string" or label == "" then
      return res:fail {
        code = "invalid_value",
        param = "labels",
        message = ("labels[%d] is no text"):format(i - 1),
      }
    end
  end
  local ids, err = ids_of(b.labels)
  local root, label, how
  if ids then
    local prompt = ("%s\n%s (%s):"):format(b.text, b.question or "Label",
      table.concat(b.labels, ", "))
    root, err = mc.submit { limit = 0, prompt = prompt }
  end
  if root then label, how = decide(root, ids) end
  if not label then return res:fail(err or how) end
  res:json {
    label = b.labels[label],
    steps = how.steps,
    logprob = how.logprob,
  }
end }

return R
