-- reference.lua META... - the reference page (Markdown) of the Lua API, to
-- standard output. Run by make with luajit, outside of the program.

package.path = "lua/?.lua;" .. package.path
local doc = require "mc.doc"

local function cell(s) return (s:gsub("|", "\\|")) end

local function code(type)
  return type ~= "" and "`" .. cell(type) .. "`" or ""
end

local function table_of(rows, head)
  if #rows == 0 then return end
  print("\n| " .. head .. " | type | |\n|---|---|---|")
  for _, r in ipairs(rows) do
    print(("| `%s` | %s | %s |"):format(r.name, code(r.type), cell(r.doc)))
  end
end

print [[
# The Lua API of mascon

Made from `lua/mc/meta/*.lua`, which editors read too (`mascon policy init DIR`
puts them into `DIR/types`); `help()` in `mascon attach` says the same. (w)
marks what waits: it works where a coroutine can yield, so in routes, routers,
tasks and at the prompt, not in a scheduler's or sampler's hook.]]
for _, path in ipairs(arg) do
  local f = assert(io.open(path))
  local entries, head = doc.read(f:read("*a"))
  f:close()
  local name = path:match("([%w_]+)%.lua$")
  print(("\n## %s\n\n%s"):format(name, table.concat(head, "\n")))
  for _, e in ipairs(entries) do
    print(("\n### %s\n"):format(e.name))
    if not e.class then print("    " .. e.name .. e.args .. "\n") end
    if #e.doc > 0 then print(table.concat(e.doc, "\n")) end
    if e.class then
      table_of(e.fields, "field")
    else
      table_of(e.params, "argument")
    end
    for _, r in ipairs(e.returns or {}) do
      print(("\nGives `%s` %s"):format(r.type, r.doc))
    end
  end
end
