--- doc.lua: the reference as data, read from the annotations in lua/mc/meta.
--
-- Trusted, and run by lua/reference.lua outside of the program. What editors
-- read is what help(), completion and the reference page say: there is no other
-- text.

local M = {}

-- "name type text" of a @param, @field or @return: a type may hold spaces
-- inside brackets and around | and ->.
local function split_type(text)
  local depth, i = 0, 1
  while i <= #text do
    local c = text:sub(i, i)
    if c:find("[%(<%[{]") then depth = depth + 1 end
    if c:find("[%)>%]}]") then depth = depth - 1 end
    if c == " " and depth == 0 then
      local before, after = text:sub(1, i - 1), text:sub(i + 1)
      if not before:find("[|:,]$") and not after:find("^[|:]") then
        return before, after
      end
    end
    i = i + 1
  end
  return text, ""
end

local function named(text)
  local name, rest = text:match("^(%S+) (.*)$")
  if not name then return { name = text, type = "", doc = "" } end
  local kind, doc = split_type(rest)
  return { name = name, type = kind, doc = doc }
end

local function fresh() return { doc = {}, params = {}, returns = {} } end

--- The entries of one meta file, in its order: {name, args, doc, params,
-- returns} of a function, {name, class = true, doc, fields} of a class; and the
-- text at its head. What a field says stands behind its type, or in the lines
-- before it.
function M.read(source)
  local entries, head, now, class = {}, {}, fresh(), nil
  for line in source:gmatch("([^\n]*)\n") do
    local tag, rest = line:match("^%-%-%-@(%w+) ?(.*)$")
    local text = line:match("^%-%-%- ?(.*)$")
    local name, args = line:match("^function ([%w_.:]+)(%b())")
    if tag == "class" then
      local of, about = rest:match("^([%w_.]+) ?(.*)$")
      class = { name = of, class = true, doc = now.doc, fields = {} }
      if about ~= "" then class.doc[#class.doc + 1] = about end
      entries[#entries + 1], now = class, fresh()
    elseif tag == "field" and class then
      local field = named(rest)
      if #now.doc > 0 then field.doc = table.concat(now.doc, " ") end
      class.fields[#class.fields + 1], now = field, fresh()
    elseif tag == "param" then
      now.params[#now.params + 1] = named(rest)
    elseif tag == "return" then
      local kind, doc = split_type(rest)
      now.returns[#now.returns + 1] = { type = kind, doc = doc }
    elseif tag == nil and text and line:sub(1, 3) == "---" then
      now.doc[#now.doc + 1] = text
    elseif name then
      now.name, now.args = name, args
      entries[#entries + 1], now, class = now, fresh(), nil
    elseif line:find("^%-%- ") and #entries == 0 then
      head[#head + 1] = line:sub(4)
    elseif tag == nil then
      now, class = fresh(), nil
    end
  end
  return entries, head
end

local function behind(doc) return doc ~= "" and "  " .. doc or "" end

--- What a name takes and gives, as lines: for help().
function M.text(e)
  local out = { e.class and e.name or e.name .. e.args }
  for _, line in ipairs(e.doc) do out[#out + 1] = line end
  for _, f in ipairs(e.class and e.fields or e.params) do
    out[#out + 1] = ("  %s %s%s"):format(f.name, f.type, behind(f.doc))
  end
  for _, r in ipairs(e.returns or {}) do
    out[#out + 1] = ("  -> %s%s"):format(r.type, behind(r.doc))
  end
  return table.concat(out, "\n")
end

return M
