--- near.lua - "did you mean": the known name that is nearest to a mistyped one.

local near = {}

-- Edits (insert, delete, replace) that turn a into b.
local function distance(a, b)
  local row = {}
  for j = 0, #b do row[j] = j end
  for i = 1, #a do
    local diagonal = row[0]
    row[0] = i
    for j = 1, #b do
      local cost = a:byte(i) == b:byte(j) and 0 or 1
      local best = math.min(row[j] + 1, row[j - 1] + 1, diagonal + cost)
      diagonal, row[j] = row[j], best
    end
  end
  return row[#b]
end

--- Text to append to an error: " (did you mean 'plan'?)", or the list of what
-- there is when nothing is near. known: a set of names.
function near.hint(name, known)
  local best, least, names = nil, math.huge, {}
  for other in pairs(known) do
    names[#names + 1] = other
  end
  table.sort(names)
  for _, other in ipairs(names) do
    local d = distance(tostring(name):sub(1, 40), other)
    if d < least then best, least = other, d end
  end
  if best and least <= math.max(1, math.floor(#best / 2)) then
    return (" (did you mean '%s'?)"):format(best)
  end
  return #names > 0 and " (there are: " .. table.concat(names, ", ") .. ")"
    or ""
end

--- What is wrong with a table's keys: " has no field 'promt' (did you mean
-- 'prompt'?)", or nil.
function near.unknown(t, known)
  for k in pairs(t) do
    if not known[k] then
      return (" has no field '%s'"):format(tostring(k)) .. near.hint(k, known)
    end
  end
end

--- The table of options that the caller's caller was given, {} for nil. Raises
-- there when it is no table or has a key that is not among known. what:
-- "mc.submit".
function near.options(what, opts, known)
  if opts == nil then return {} end
  if type(opts) ~= "table" then
    error(("%s takes a table of options, not a %s"):format(what, type(opts)), 3)
  end
  local wrong = near.unknown(opts, known)
  if wrong then error(what .. wrong, 3) end
  return opts
end

return near
