--- schema.lua: the small language that says what a request's body must look
-- like.
--
--   { prompt = "string", n = "integer? 1..16", stop = "string|array?" }
--
-- A field is one type or several with | between them, ? when it may be missing
-- (or null, which counts as missing), and lo..hi for a number's value or a
-- text's or list's length. Types: string, integer, number, boolean, array,
-- object, any. A table of fields is an object of that shape, which may be
-- missing when ["?"] = true is among them; { "array", item } a list whose items
-- are of that type. Fields that the schema does not name are left alone. Marked
-- numbers become plain ones where the schema says number or integer. Trusted;
-- pure.

local data = require "mc.data"

local M = {}
local parsed = {} -- text -> field

local function parse(text)
  local types, optional, range = text:match("^([%a|]+)(%??)%s*(.-)$")
  if not types then error(("schema: '%s' is no type"):format(text), 0) end
  local field = {
    optional = optional == "?",
    types = {},
    text = types:gsub("|", " or "),
  }
  for t in types:gmatch("%a+") do field.types[t] = true end
  if range ~= "" then
    local lo, hi = range:match("^(%-?[%d.e]-)%.%.(%-?[%d.e]*)$")
    field.lo, field.hi = tonumber(lo), tonumber(hi)
    if not (field.lo or field.hi) then
      error(("schema: '%s' is no range"):format(range), 0)
    end
    field.range = range
  end
  return field
end

local function type_of(v)
  local t = type(v)
  if t == "number" then return v == math.floor(v) and "integer" or "number" end
  if t ~= "table" then return t end
  return data.kind(v)
end

local check -- check(value, schema, name) -> value, or nil, message, name

local function check_object(v, schema, name)
  if schema["?"] and (v == nil or v == data.null) then return nil end
  if type_of(v) ~= "object" then
    local whole = name == "" and "the body" or name
    return nil, whole .. " must be an object", name
  end
  for key, want in pairs(schema) do
    if key ~= "?" then
      local at = name == "" and key or name .. "." .. key
      local got, message, where = check(v[key], want, at)
      if message then return nil, message, where end
      if got ~= v[key] then v[key] = got end
    end
  end
  return v
end

local function check_list(v, item, name)
  for i = 1, #v do
    local got, message, where = check(v[i], item, ("%s.%d"):format(name, i - 1))
    if message then return nil, message, where end
    v[i] = got
  end
  return v
end

local function check_field(v, field, name)
  if v == nil or v == data.null then
    if field.optional then return nil end
    local wrong = v == nil and " is missing" or " must not be null"
    return nil, name .. wrong, name
  end
  local t = type_of(v)
  if t == "number" and type(v) == "table" then
    if field.types.any then return v end
    v = v.value
    t = type_of(v)
  end
  local types = field.types
  if not (types[t] or types.any or (t == "integer" and types.number)) then
    return nil, ("%s must be %s, not %s"):format(name, field.text, t), name
  end
  if field.range then
    local size = (t == "string" or t == "array") and #v or v
    local lo, hi = field.lo or -math.huge, field.hi or math.huge
    if type(size) == "number" and not (size >= lo and size <= hi) then
      local what = size ~= v and "the length of " or ""
      return nil, ("%s%s must be in %s"):format(what, name, field.range), name
    end
  end
  return v
end

function check(v, schema, name)
  if type(schema) == "string" then
    local field = parsed[schema]
    if not field then
      field = parse(schema)
      parsed[schema] = field
    end
    return check_field(v, field, name)
  end
  if schema[1] then
    local list, message, where = check(v, schema[1], name)
    if list == nil or type_of(list) ~= "array" then
      return list, message, where
    end
    return check_list(list, schema[2], name)
  end
  return check_object(v, schema, name)
end

--- The value with what the schema names checked; nil, message, field when it is
-- wrong.
function M.check(v, schema)
  return check(v, schema, "")
end

return M
