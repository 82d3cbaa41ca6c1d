--- parser.lua: tokens to a tree; statements here, expressions in
-- parser_expr.lua.
--
-- Statements, as nodes {k =, line =, ...}; a body is a list of nodes:
--   output: parts (data {k = "data", v}, or expressions)
--   if: branches {test, body}, otherwise | for: target, iter, test, body,
--   otherwise, recursive | set: target, value | setblock: target, filter, body
--   macro: name, params {name, default}, body | callblock: params, call, body
--   filterblock: filter, body | with: names, values, body
--   scope: body (generation) | break | continue
-- A parser p is {tokens, at, tok = the current token, depth}. Templates stand
-- alone, so block, extends, include, import and autoescape are refused.

local expr = require "mc.jinja.parser_expr"
local lexer = require "mc.jinja.lexer"
local rt_ = require "mc.jinja.rt"

local M = {}

local P = {}
P.__index = P

--- Raises a syntax error at the current token.
function P:fail(fmt, ...)
  error({ message = fmt:format(...), line = self.tok.line, syntax = true }, 0)
end

--- Returns the current token and moves on.
function P:next()
  local t = self.tok
  if t.k ~= "eof" then
    self.at = self.at + 1
    self.tok = self.tokens[self.at]
  end
  return t
end

--- The token after the current one.
function P:look()
  return self.tokens[self.at + 1] or self.tok
end

--- Takes a token of that kind, or nothing.
function P:skip_if(kind)
  return self.tok.k == kind and self:next() or nil
end

--- Whether the current token is that word.
function P:at_name(word)
  return self.tok.k == "name" and self.tok.v == word
end

--- Takes that word, or nothing.
function P:skip_name(word)
  return self:at_name(word) and self:next() or nil
end

--- Takes a token that must be of that kind.
function P:expect(kind)
  if self.tok.k ~= kind then
    if self.tok.k == "eof" then
      self:fail("unexpected end of template, expected '%s'", kind)
    end
    self:fail("expected token '%s', got '%s'", kind, self.tok.v)
  end
  return self:next()
end

--- Enters a level of nesting.
function P:enter()
  self.depth = self.depth + 1
  if self.depth > rt_.MAX_DEPTH then
    self:fail("the template nests deeper than %d", rt_.MAX_DEPTH)
  end
end

--- Leaves it.
function P:leave()
  self.depth = self.depth - 1
end

-- What a tag is missing, for messages.
local function looking_for(ends)
  local words = {}
  for word in pairs(ends or {}) do words[#words + 1] = "'" .. word .. "'" end
  if not words[1] then return "" end
  table.sort(words)
  return " Jinja was looking for the following tags: "
    .. table.concat(words, " or ") .. "."
end

local subparse

-- The body of a tag: from the end of the tag to one of the words in `ends`,
-- which is the current token then.
local function body_until(p, ends)
  p:skip_if(":")
  p:expect("block_end")
  local body = subparse(p, ends)
  if p.tok.k == "eof" then
    p:fail("Unexpected end of template.%s", looking_for(ends))
  end
  return body
end

local function body(p, word)
  local out = body_until(p, { [word] = true })
  p:next()
  return out
end

local function check_target(p, n)
  if n.k == "tuple" or n.k == "list" then
    for i = 1, #n do check_target(p, n[i]) end
  elseif n.k ~= "name" and n.k ~= "nsref" then
    p:fail("can't assign to '%s'", n.k)
  end
  return n
end

local function name_target(p)
  local t = p:expect("name")
  return { k = "name", line = t.line, name = t.v }
end

local STATEMENTS = {}

function STATEMENTS.set(p, n)
  n.target = check_target(p, expr.tuple(p, { targets = true, nsref = true }))
  if p:skip_if("=") then
    n.value = expr.tuple(p, {})
  else
    n.k = "setblock"
    n.filter = p:skip_if("|") and expr.filters(p, nil)
    n.body = body(p, "endset")
  end
end

STATEMENTS["for"] = function(p, n)
  n.target = check_target(p, expr.tuple(p, { targets = true, stop = "in" }))
  if not p:skip_name("in") then p:expect("in") end
  n.iter = expr.tuple(p, { plain = true, stop = "recursive" })
  n.test = p:skip_name("if") and expr.expression(p) or nil
  n.recursive = p:skip_name("recursive") ~= nil
  n.body = body_until(p, { endfor = true, ["else"] = true })
  if p:next().v == "else" then n.otherwise = body(p, "endfor") end
end

STATEMENTS["if"] = function(p, n)
  n.branches = {}
  local ends = { ["elif"] = true, ["else"] = true, ["endif"] = true }
  repeat
    local test = expr.tuple(p, { plain = true })
    n.branches[#n.branches + 1] = { test = test, body = body_until(p, ends) }
    local word = p:next().v
    if word == "else" then n.otherwise = body(p, "endif") end
  until word ~= "elif"
end

local function parameters(p)
  local out, default = {}, false
  p:expect("(")
  while p.tok.k ~= ")" do
    if out[1] then p:expect(",") end
    local param = { name = p:expect("name").v }
    if p:skip_if("=") then
      param.default, default = expr.expression(p), true
    elseif default then
      p:fail("non-default argument follows default argument")
    end
    out[#out + 1] = param
  end
  p:next()
  return out
end

function STATEMENTS.macro(p, n)
  n.name = name_target(p).name
  n.params = parameters(p)
  n.body = body(p, "endmacro")
end

function STATEMENTS.call(p, n)
  n.k = "callblock"
  n.params = p.tok.k == "(" and parameters(p) or {}
  n.call = expr.expression(p)
  if n.call.k ~= "call" then p:fail("expected call") end
  n.body = body(p, "endcall")
end

function STATEMENTS.filter(p, n)
  n.k = "filterblock"
  n.filter = expr.filters(p, nil)
  n.body = body(p, "endfilter")
end

STATEMENTS["with"] = function(p, n)
  n.targets, n.values = {}, {}
  while p.tok.k ~= "block_end" do
    if n.targets[1] then p:expect(",") end
    local target = check_target(p, expr.tuple(p, { targets = true }))
    n.targets[#n.targets + 1] = target
    p:expect("=")
    n.values[#n.values + 1] = expr.expression(p)
  end
  n.body = body(p, "endwith")
end

function STATEMENTS.print(p, n)
  n.k = "output"
  while p.tok.k ~= "block_end" do
    if n[1] then p:expect(",") end
    n[#n + 1] = expr.expression(p)
  end
end

function STATEMENTS.generation(p, n)
  n.k = "scope"
  n.body = body(p, "endgeneration")
end

STATEMENTS["break"] = function() end
STATEMENTS["continue"] = function() end

local function statement(p, ends)
  local t = p:expect("name")
  local parse = STATEMENTS[t.v]
  if not parse then
    p.tok = t -- the error is the tag's, not what follows it
    p:fail("Encountered unknown tag '%s'.%s", t.v, looking_for(ends))
  end
  local n = { k = t.v, line = t.line }
  p:enter()
  parse(p, n)
  p:leave()
  return n
end

-- A list of nodes up to `{% word`, word in ends, or to the end of the template.
function subparse(p, ends)
  local out, output = {}, nil
  local function add(part)
    if not output then
      output = { k = "output", line = part.line }
      out[#out + 1] = output
    end
    output[#output + 1] = part
  end
  while p.tok.k ~= "eof" do
    local t = p:next()
    if t.k == "data" then
      add { k = "data", line = t.line, v = t.v }
    elseif t.k == "variable_begin" then
      add(expr.tuple(p, {}))
      p:expect("variable_end")
    else
      output = nil
      if ends and p.tok.k == "name" and ends[p.tok.v] then return out end
      out[#out + 1] = statement(p, ends)
      p:expect("block_end")
    end
  end
  return out
end

--- The tree of a template: a list of statements. Raises {message, line,
-- syntax}.
function M.parse(source)
  local tokens = lexer.tokens(source)
  local p = { tokens = tokens, at = 1, tok = tokens[1], depth = 0 }
  setmetatable(p, P)
  return subparse(p, nil)
end

return M
