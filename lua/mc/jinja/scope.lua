--- scope.lua: which variable a name means, settled before anything runs.
--
-- A scope is a body whose assignments stay inside it: the template, a loop's
-- body, its else, its test, a macro, and the bodies of call, set, filter, with
-- and generation (`if` is none). Each name that a scope mentions gets a slot in
-- the frame of the function it runs in; functions are the template, macros,
-- callers and recursive loops. At its entry (on each turn, for a loop) a scope
-- sets its slots: from the variable of that name in the scope around it
-- (alias), from the variables given to the rendering (resolve), or to nothing
-- (clear).
--
-- Which of them follows Jinja (idtracking.py), quirks included: what counts is
-- the first mention in the text of the scope, its inner scopes left out; a name
-- that is only ever set is clear even where an inner scope reads it earlier.

local M = {}

--- The root scope, with a function of its own.
function M.root()
  return { fn = { slots = 0 }, refs = {}, entry = {} }
end

--- A scope inside parent; own_function: it runs in a frame of its own.
function M.inner(parent, own_function)
  local fn = own_function and { slots = 0, up = parent.fn } or parent.fn
  return { parent = parent, fn = fn, refs = {}, entry = {} }
end

local function find(scope, name)
  while scope do
    local slot = scope.refs[name]
    if slot then return slot end
    scope = scope.parent
  end
  return nil
end

local function define(scope, name, action, from)
  local fn = scope.fn
  fn.slots = fn.slots + 1
  local slot = { fn = fn, i = fn.slots }
  scope.refs[name] = slot
  if action then
    scope.entry[#scope.entry + 1] = {
      action = action, i = slot.i, name = name, from = from,
    }
  end
  return slot
end

--- Declares a parameter (of a macro, a loop's target, `loop`): set by whoever
-- enters the scope.
function M.param(scope, name)
  return scope.refs[name] or define(scope, name, nil)
end

local function load(scope, name)
  if not find(scope, name) then define(scope, name, "resolve") end
end

local function store(scope, name, in_branch)
  if scope.refs[name] then return end
  local outer = scope.parent and find(scope.parent, name)
  if outer then
    define(scope, name, "alias", outer)
  else
    define(scope, name, in_branch and "resolve" or "clear")
  end
end

local visit, visit_all

local function visit_args(scope, args)
  visit_all(scope, args)
  visit_all(scope, args.values)
  if args.star then visit(scope, args.star) end
  if args.star2 then visit(scope, args.star2) end
end

--- Mentions the names that an assignment's target sets.
local function visit_target(scope, n, in_branch)
  if n.k == "name" then
    store(scope, n.name, in_branch)
  elseif n.k == "nsref" then
    load(scope, n.name)
  else
    for i = 1, #n do visit_target(scope, n[i], in_branch) end
  end
end

local VISIT = {}

function VISIT.name(scope, n) load(scope, n.name) end

function VISIT.dict(scope, n)
  for i = 1, #n.keys do
    visit(scope, n.keys[i])
    visit(scope, n.values[i])
  end
end

function VISIT.cond(scope, n)
  visit(scope, n.test)
  visit(scope, n.yes)
  if n.no then visit(scope, n.no) end
end

function VISIT.slice(scope, n)
  visit(scope, n[1])
  for _, part in ipairs { "lo", "hi", "step" } do
    if n[part] then visit(scope, n[part]) end
  end
end

function VISIT.set(scope, n, in_branch)
  visit(scope, n.value)
  visit_target(scope, n.target, in_branch)
end

function VISIT.setblock(scope, n, in_branch)
  visit_target(scope, n.target, in_branch)
end

VISIT["if"] = function(scope, n)
  for _, b in ipairs(n.branches) do
    visit(scope, b.test)
    visit_all(scope, b.body, true)
  end
  visit_all(scope, n.otherwise or {}, true)
end

VISIT["for"] = function(scope, n) visit(scope, n.iter) end
function VISIT.macro(scope, n, in_branch) store(scope, n.name, in_branch) end
function VISIT.callblock(scope, n) visit(scope, n.call) end
function VISIT.filterblock(scope, n) visit(scope, n.filter) end
VISIT["with"] = function(scope, n) visit_all(scope, n.values) end
function VISIT.scope() end

function visit(scope, n, in_branch)
  local special = VISIT[n.k]
  if special then return special(scope, n, in_branch) end
  visit_all(scope, n, in_branch)
  if n.args then visit_args(scope, n.args) end
end

function visit_all(scope, list, in_branch)
  for i = 1, #list do visit(scope, list[i], in_branch) end
end

--- Mentions the names of statements or expressions in their order.
M.visit, M.visit_all = visit, visit_all

--- Declares the names of a target as parameters.
function M.param_target(scope, n)
  if n.k == "name" then
    M.param(scope, n.name)
  else
    for i = 1, #n do M.param_target(scope, n[i]) end
  end
end

--- The slot of a name in a scope that has visited it.
M.find = find

--- How many functions lie between a scope and a slot.
function M.hops(scope, slot)
  local n, fn = 0, scope.fn
  while fn ~= slot.fn do
    n, fn = n + 1, fn.up
  end
  return n
end

return M
