-- json_retry.lua: an object of JSON from a model that is not sure to write one.
--
-- Copy it to the routes/ of your policies and name it in init.lua, then
--   curl localhost:8000/v1/json -d '{
--     "prompt": "A cat, as JSON with name and age:",
--     "fields": {"name": "string", "age": "number"}}'
-- What the model wrote is mended (prose around it, an open end, a comma too
-- many); when that is not enough it is asked again and shown what was wrong.
local R = { api = 1, kind = "routes" }

local CLOSE = { ["{"] = "}", ["["] = "]" }

-- The text's first object or list, with its end put right; nil: there is none.
local function mend(text)
  local at = text:find("[{%[]")
  if not at then return nil end
  local out, open, quoted, i = {}, {}, false, at
  local function last() return out[#out] end
  local function drop_comma()
    while last() and last():find("^[%s,]$") do out[#out] = nil end
  end
  while i <= #text do
    local c = text:sub(i, i)
    if quoted then
      if c == "\\" then
        if i == #text then break end
        c = text:sub(i, i + 1)
        i = i + 1
      elseif c == '"' then
        quoted = false
      end
    elseif c == '"' then
      quoted = true
    elseif CLOSE[c] then
      open[#open + 1] = CLOSE[c]
    elseif c == "}" or c == "]" then
      if c ~= open[#open] then break end
      drop_comma()
      open[#open] = nil
    end
    out[#out + 1] = c
    if #open == 0 then return table.concat(out) end
    i = i + 1
  end
  if quoted then out[#out + 1] = '"' end
  drop_comma()
  if last() == ":" then out[#out + 1] = "null" end
  for k = #open, 1, -1 do out[#out + 1] = open[k] end
  return table.concat(out)
end

-- The object in the text, or nil and what is wrong with it.
local function object_of(text, fields)
  local mended = mend(text)
  if not mended then return nil, "there is no JSON in it" end
  local value, err = mc.json.decode(mended)
  if value == nil then return nil, tostring(err) end
  for _, name in ipairs(mc.json.keys(fields or {})) do
    local got = type(value) == "table" and value[name]
    local kind = type(got) == "table" and mc.json.kind(got) or type(got)
    if kind ~= fields[name] then
      return nil, ("field '%s' must be a %s, not %s"):format(name, fields[name],
        got == nil and "missing" or kind)
    end
  end
  return value
end

local SCHEMA = {
  prompt = "string 1..100000",
  fields = "object?",
  tries = "integer? 1..8",
  max_tokens = "integer? 1..4096",
}

R["POST /v1/json"] = { schema = SCHEMA, handler = function(req, res)
  local b = req.data
  local prompt, wrong = b.prompt, nil
  for try = 1, b.tries or 3 do
    local s, err = mc.submit {
      prompt = prompt,
      limit = b.max_tokens or 256,
      temperature = try == 1 and 0 or 0.7,
      seed = try,
    }
    local r
    if s then r, err = s:wait() end
    if not r then return res:fail(err) end
    local value
    value, wrong = object_of(r.text, b.fields)
    if value ~= nil then
      return res:json { value = value, tries = try, text = r.text }
    end
    prompt = ("%s\n%s\nThat is wrong: %s. Only the JSON:\n")
      :format(b.prompt, r.text, wrong)
  end
  res:fail {
    code = "internal_error",
    message = "no answer was JSON: " .. tostring(wrong),
  }
end }

function R.tests(t)
  local function mends(text, want)
    t.expect(mc.json.encode((object_of(text)) or mc.json.null)):is(want)
  end
  t.it("takes the JSON out of prose and fences", function()
    mends('Sure! ```json\n{"a": [1, 2]}\n``` Enjoy', '{"a":[1,2]}')
  end)
  t.it("closes what is open and drops commas too many", function()
    mends('{"a": [1, 2, {"b": "x', '{"a":[1,2,{"b":"x"}]}')
    mends('{"a": 1,}', '{"a":1}')
    mends('{"a":', '{"a":null}')
    mends([=[{"a": "q\"{[",]=], [=[{"a":"q\"{["}]=])
  end)
  t.it("says which field is wrong", function()
    local _, wrong = object_of('{"a": "1"}', { a = "number" })
    t.expect(wrong):is("field 'a' must be a number, not string")
    t.expect(select(2, object_of("no", nil))):is("there is no JSON in it")
  end)
end

return R
