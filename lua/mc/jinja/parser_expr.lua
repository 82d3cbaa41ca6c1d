--- parser_expr.lua: Jinja's expressions, by recursive descent.
--
-- A node is {k = kind, line =, children...}. Kinds, with what they hold:
--   const v | name name | tuple, list, concat, and, or: children
--   dict keys, values | neg pos not: 1 | add sub mul div floordiv mod pow: 1, 2
--   compare: 1, ops = {op}, operands 2.. | cond: test, then, else or nil
--   getattr: 1, name | getitem: 1, 2 | slice: 1, lo, hi, step
--   call: 1, args | test: 1, name, args
--   filter: 1 (nil in a filter block), name, args
-- args: {positional..., names = {}, values = {}, star =, star2 =}. Functions
-- take the parser p of parser.lua. Order of precedence, and where it surprises
-- (`-x|f` filters x's negation, `~` binds tighter than `+`), is Jinja's.

local V = require "mc.jinja.values"

local M = {}

local COMPARE = {
  ["=="] = true, ["!="] = true, [">"] = true, [">="] = true, ["<"] = true,
  ["<="] = true,
}
local ADDITIVE = { ["+"] = "add", ["-"] = "sub" }
local MULTIPLICATIVE = {
  ["*"] = "mul", ["/"] = "div", ["//"] = "floordiv", ["%"] = "mod",
}
local CONSTANTS = {
  ["true"] = true, True = true, ["false"] = false, False = false,
  none = V.none, None = V.none,
}

local expression

local function node(kind, line, a, b)
  return { k = kind, line = line, a, b }
end

-- atoms -----------------------------------------------------------------------

-- Items up to the closing bracket, comma between and maybe after.
local function items_until(p, close, read)
  local out = {}
  while p.tok.k ~= close do
    if #out > 0 then
      p:expect(",")
      if p.tok.k == close then break end
    end
    out[#out + 1] = read(p)
  end
  p:expect(close)
  return out
end

local function list(p)
  local line = p:next().line
  local n = items_until(p, "]", expression)
  n.k, n.line = "list", line
  return n
end

local function dict(p)
  local n = { k = "dict", line = p:next().line, keys = {}, values = {} }
  items_until(p, "}", function()
    local key = expression(p)
    p:expect(":")
    n.keys[#n.keys + 1], n.values[#n.values + 1] = key, expression(p)
    return key
  end)
  return n
end

local function string_constant(p)
  local parts, line = {}, p.tok.line
  while p.tok.k == "string" do
    parts[#parts + 1] = p:next().v
  end
  return { k = "const", line = line, v = table.concat(parts) }
end

--- A name or a literal; `for_set` also takes a.b, a namespace's attribute.
function M.primary(p, for_set)
  local t = p.tok
  if t.k == "name" then
    p:next()
    local constant = CONSTANTS[t.v]
    if constant ~= nil then
      return { k = "const", line = t.line, v = constant }
    elseif for_set and p:skip_if(".") then
      local attr = p:expect("name").v
      return { k = "nsref", line = t.line, name = t.v, attr = attr }
    end
    return { k = "name", line = t.line, name = t.v }
  elseif t.k == "string" then
    return string_constant(p)
  elseif t.k == "integer" then
    return { k = "const", line = p:next().line, v = t.v }
  elseif t.k == "float" then
    return { k = "const", line = p:next().line, v = V.float(t.v) }
  elseif t.k == "(" then
    p:next()
    local n = M.tuple(p, { parenthesised = true })
    p:expect(")")
    return n
  elseif t.k == "[" then
    return list(p)
  elseif t.k == "{" then
    return dict(p)
  end
  return p:fail("unexpected '%s'", t.v)
end

-- what follows an atom --------------------------------------------------------

local function subscribed(p)
  if p.tok.k == ":" or p.tok.k == "]" then
    return nil
  end
  return expression(p)
end

local function subscript(p, object)
  local line = p:next().line
  local first = subscribed(p)
  local n
  if p.tok.k == ":" then
    n = { k = "slice", line = line, object, lo = first }
    p:next()
    n.hi = subscribed(p)
    if p:skip_if(":") then n.step = subscribed(p) end
  else
    if not first then p:fail("expected an expression, got ']'") end
    if p.tok.k == "," then
      first = { k = "tuple", line = line, first }
      while p:skip_if(",") do first[#first + 1] = expression(p) end
    end
    n = node("getitem", line, object, first)
  end
  p:expect("]")
  return n
end

local function member(p, object)
  local line = p:next().line
  local t = p:next()
  if t.k == "name" then
    return { k = "getattr", line = line, object, name = t.v }
  elseif t.k ~= "integer" then
    p:fail("expected name or number")
  end
  return node("getitem", line, object, { k = "const", line = line, v = t.v })
end

-- One argument; the order positional, keyword, *, ** is checked.
local function argument(p, args)
  local function refuse_after(before)
    if before then p:fail("invalid syntax for function call expression") end
  end
  refuse_after(args.star2)
  if p:skip_if("*") then
    refuse_after(args.star)
    args.star = expression(p)
  elseif p:skip_if("**") then
    args.star2 = expression(p)
  elseif p.tok.k == "name" and p:look().k == "=" then
    args.names[#args.names + 1] = p:next().v
    p:next()
    args.values[#args.values + 1] = expression(p)
  else
    refuse_after(args.star or args.names[1])
    args[#args + 1] = expression(p)
  end
  return true
end

local function arguments(p)
  local args = { names = {}, values = {} }
  p:expect("(")
  items_until(p, ")", function() return argument(p, args) end)
  return args
end

local function call(p, fn)
  local line = p.tok.line
  return { k = "call", line = line, fn, args = arguments(p) }
end

local function postfix(p, n)
  while true do
    local k = p.tok.k
    if k == "." then
      n = member(p, n)
    elseif k == "[" then
      n = subscript(p, n)
    elseif k == "(" then
      n = call(p, n)
    else
      return n
    end
  end
end

local function dotted_name(p)
  local name = p:expect("name").v
  while p:skip_if(".") do
    name = name .. "." .. p:expect("name").v
  end
  return name
end

--- name(args), with more after `|`; n is what is filtered, nil in a filter
-- block.
function M.filters(p, n)
  repeat
    local line = p.tok.line
    local name = dotted_name(p)
    local args = p.tok.k == "(" and arguments(p) or nil
    n = { k = "filter", line = line, n, name = name, args = args }
  until not p:skip_if("|")
  return n
end

local ARGUMENT = { -- what begins the argument of a test without brackets
  name = true, string = true, integer = true, float = true, ["["] = true,
  ["{"] = true,
}
local NO_ARGUMENT = { ["else"] = true, ["or"] = true, ["and"] = true }

local function test(p, n)
  local line = p:next().line
  local negated = p:skip_name("not")
  n = { k = "test", line = line, n, name = dotted_name(p) }
  local t = p.tok
  if t.k == "(" then
    n.args = arguments(p)
  elseif ARGUMENT[t.k] and not (t.k == "name" and NO_ARGUMENT[t.v]) then
    if p:at_name("is") then
      p:fail("You cannot chain multiple tests with is")
    end
    n.args = { postfix(p, M.primary(p)), names = {}, values = {} }
  end
  return negated and node("not", line, n) or n
end

local function filters_and_tests(p, n)
  while true do
    if p:skip_if("|") then
      n = M.filters(p, n)
    elseif p:at_name("is") then
      n = test(p, n)
    elseif p.tok.k == "(" then
      n = call(p, n)
    else
      return n
    end
  end
end

-- operators -------------------------------------------------------------------

local function unary(p, bare)
  local t = p.tok
  local n
  if t.k == "-" or t.k == "+" then
    p:enter()
    p:next()
    n = node(t.k == "-" and "neg" or "pos", t.line, unary(p, true))
    p:leave()
  else
    n = M.primary(p)
  end
  n = postfix(p, n)
  return bare and n or filters_and_tests(p, n)
end

-- A level of left-associative operators: kinds maps a token to a node's kind.
local function binary(operand, kinds)
  return function(p)
    local line = p.tok.line
    local n = operand(p)
    while kinds[p.tok.k] do
      local kind = kinds[p:next().k]
      n = node(kind, line, n, operand(p))
      line = p.tok.line
    end
    return n
  end
end

local power = binary(unary, { ["**"] = "pow" })
local product = binary(power, MULTIPLICATIVE)

local function concat(p)
  local line = p.tok.line
  local n = product(p)
  if p.tok.k ~= "~" then return n end
  n = node("concat", line, n)
  while p:skip_if("~") do
    n[#n + 1] = product(p)
  end
  return n
end

local sum = binary(concat, ADDITIVE)

local function compare_operator(p)
  if COMPARE[p.tok.k] then return p:next().k end
  if p:skip_name("in") then return "in" end
  if p:at_name("not") and p:look().k == "name" and p:look().v == "in" then
    p:next()
    p:next()
    return "not in"
  end
  return nil
end

local function compare(p)
  local line = p.tok.line
  local n = sum(p)
  local op = compare_operator(p)
  if not op then return n end
  n = { k = "compare", line = line, n, ops = {} }
  repeat
    n.ops[#n.ops + 1] = op
    n[#n + 1] = sum(p)
    op = compare_operator(p)
  until not op
  return n
end

local function negation(p)
  if not p:at_name("not") then return compare(p) end
  p:enter()
  local n = node("not", p:next().line, negation(p))
  p:leave()
  return n
end

local function junction(operand, word)
  return function(p)
    local line = p.tok.line
    local n = operand(p)
    if not p:at_name(word) then return n end
    n = node(word, line, n)
    while p:skip_name(word) do
      n[#n + 1] = operand(p)
    end
    return n
  end
end

local disjunction = junction(junction(negation, "and"), "or")

--- An expression; `plain` leaves out `x if y else z`.
function expression(p, plain)
  p:enter()
  local line = p.tok.line
  local n = disjunction(p)
  while not plain and p:skip_name("if") do
    n = { k = "cond", line = line, test = disjunction(p), yes = n }
    if p:skip_name("else") then n.no = expression(p) end
    line = p.tok.line
  end
  p:leave()
  return n
end
M.expression = expression

--- Expressions with commas between; a tuple unless there is one without a
-- comma. opts: targets (of an assignment: names, brackets and, with nsref,
-- attributes), plain, parenthesised (may be empty), stop (a name that ends it).
function M.tuple(p, opts)
  local line = p.tok.line
  local out, commas = {}, false
  while true do
    local t = p.tok
    if t.k == "variable_end" or t.k == "block_end" or t.k == ")"
      or (opts.stop and p:at_name(opts.stop)) then
      break
    end
    out[#out + 1] = opts.targets and M.primary(p, opts.nsref)
      or expression(p, opts.plain)
    if not p:skip_if(",") then break end
    commas = true
  end
  if not commas then
    if out[1] then return out[1] end
    if not opts.parenthesised then
      p:fail("Expected an expression, got '%s'", p.tok.v)
    end
  end
  out.k, out.line = "tuple", line
  return out
end

return M
