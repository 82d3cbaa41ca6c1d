--- step.lua - what a scheduler hook sees: view, plan, rows, lanes and tenants.
--
-- Trusted: has ffi. Scripts never do, and what they are handed is safe with any
-- argument:
--   * a row, lane or tenant is a handle {epoch_, slot_} of const scalars. Each
--     access compares the epoch with the hook call that is running, so a
--     handle that was kept is an error; slot_ was in bounds when the handle was
--     made and the epoch pins what it was made from.
--   * view and plan are empty tables with a hidden metatable.
-- No array, pointer or writable struct leaves this file.
--
-- A loop over rows leaves out those that this plan had decided on (granted,
-- held, preempted, rejected) when it began. JIT: iterators are stateless and
-- accessors small, so that traces inline them, and handles that do not outlive
-- the loop's body are never allocated.

local ffi = ffi
local abi = require "mc.abi"
local host = require "mc.host"
local near = require "mc.near"
local state = require "mc.state"

local floor, ceil, min = math.floor, math.ceil, math.min
local istype = ffi.istype
local K = ffi.C
local WAITING, PREFILL = K.MC_STATE_WAITING, K.MC_STATE_PREFILL
local DECODE, PAUSED = K.MC_STATE_DECODE, K.MC_STATE_PAUSED
local RUN, SWAP, DROP, BACK = K.MC_RUN, K.MC_SWAP, K.MC_DROP, K.MC_BACK
local HOLD, FAIL = K.MC_HOLD, K.MC_FAIL

local IO = abi.at("struct mc_hook_io *", "io")
local V = abi.at("const struct mc_step_view *", "view")
local P = abi.at("struct mc_plan *", "plan")
local R = abi.at("struct mc_row *", "rows")
local L = abi.at("struct mc_party *", "lanes")
local T = abi.at("struct mc_party *", "tenants")
local LANE = abi.at("struct mc_hook_lane *", "moving") -- [n_lane]
local TENANT = abi.at("struct mc_hook_lane *", "moving_tenants") -- [n_tenant]
local MARK = abi.at("uint8_t *", "marks") -- [n_row], 1: decided on
-- Slots of rows, of all loops of this call.
local LIST = abi.at("const int32_t *", "lists")
local HOST = abi.at("void *", "host")

local list_rows =
  abi.leaf("int32_t (*)(void *, int32_t, int32_t, int32_t)", "list_rows")
local head_of = abi.leaf("int32_t (*)(void *, int32_t)", "head_of")
local find_lane = abi.leaf("int32_t (*)(void *, double)", "find_lane")

ffi.cdef [[
struct mc_h_row { const uint32_t epoch_; const int32_t slot_; };
struct mc_h_lane { const uint32_t epoch_; const int32_t slot_; };
struct mc_h_tenant { const uint32_t epoch_; const int32_t slot_; };
struct mc_h_row_user { const uint32_t epoch_; const int32_t slot_; };
struct mc_h_lane_user { const uint32_t epoch_; const int32_t slot_; };
struct mc_h_tenant_user { const uint32_t epoch_; const int32_t slot_; };
struct mc_h_iter {
  const uint32_t epoch_;
  const int32_t at_;
  const int32_t n_;
};
]]
ffi.cdef("struct mc_h_cost {" .. host.cdef:match("struct mc_cost {(.-)};")
  :gsub("float", "const float") .. "};")
local Row, Lane = ffi.typeof("struct mc_h_row"), ffi.typeof("struct mc_h_lane")
local Tenant = ffi.typeof("struct mc_h_tenant")
local Iter = ffi.typeof("struct mc_h_iter")
local RowUser = ffi.typeof("struct mc_h_row_user")
local LaneUser = ffi.typeof("struct mc_h_lane_user")
local TenantUser = ffi.typeof("struct mc_h_tenant_user")

local ROW, PARTY = abi.scalars("mc_row"), abi.scalars("mc_party")
local VIEW = abi.scalars("mc_step_view")
for _, k in ipairs {
  "abi", "bytes", "epoch", "off_row", "off_lane", "off_tenant", "off_order",
  "n_order",
} do
  VIEW[k] = nil
end
local ORDERS = {
  arrival = K.MC_ORDER_ARRIVAL,
  due = K.MC_ORDER_DUE,
  priority = K.MC_ORDER_PRIORITY,
  shortest = K.MC_ORDER_SHORTEST,
  youngest = K.MC_ORDER_YOUNGEST,
  vtime = K.MC_ORDER_VTIME,
  group = K.MC_ORDER_GROUP,
}
local n_why, step_state = 0, nil -- set once, by bind
local COST = abi.scalars("mc_cost")
local DECODE_COST = ffi.cast("struct mc_h_cost *", V.decode)[0]
local PREFILL_COST = ffi.cast("struct mc_h_cost *", V.prefill)[0]

-- ---- checks: level 3 is the script's line -----------------------------------

local function stale(what, level)
  error(what .. " is stale: it belongs to an earlier hook call", level + 1)
end

local function slot_of(h)
  if not istype(Row, h) then error("row expected, got " .. type(h), 3) end
  if h.epoch_ ~= IO.epoch then stale("row", 3) end
  return h.slot_
end

local function why_of(why)
  if why == nil then return 0 end
  if type(why) ~= "number" or not (why >= 1 and why <= n_why)
    or why ~= floor(why) then
    error(("why must be an index into the policy's why texts (1 to %d)")
      :format(n_why), 3)
  end
  return why
end

local function order_of(order)
  local i = ORDERS[order == nil and "arrival" or order]
  if not i then
    error(("no order '%s'"):format(tostring(order))
      .. near.hint(order, ORDERS), 3)
  end
  return i
end

-- Slot of a lane given by its id or handle.
local function lane_of(lane)
  if istype(Lane, lane) then
    if lane.epoch_ ~= IO.epoch then stale("lane", 3) end
    return lane.slot_
  end
  if type(lane) == "number" then
    local slot = find_lane(HOST, lane)
    if slot >= 0 then return slot end
  end
  error(("no lane %s"):format(tostring(lane)), 3)
end

local function refuse_write(_, k)
  error(("'%s' can't be written"):format(tostring(k)), 2)
end

local function refuse_unknown(what, k, known)
  error(("a %s has no '%s'"):format(what, tostring(k))
    .. near.hint(k, known), 3)
end

-- ---- rows and lanes ---------------------------------------------------------

-- Numbers that a policy may write, 1-based; memory(slot) is where they lie.
local function bind_user(ctype, n, memory)
  local function index(h, i)
    if h.epoch_ ~= IO.epoch then stale("user", 3) end
    if type(i) ~= "number" or not (i >= 1 and i <= n) or i ~= floor(i) then
      error(("user has numbers 1 to %d, not '%s'"):format(n, tostring(i)), 3)
    end
    return i - 1
  end
  ffi.metatype(ctype, {
    __index = function(h, i) return memory(h.slot_)[index(h, i)] end,
    __newindex = function(h, i, v)
      local at = index(h, i)
      if type(v) ~= "number" then
        error("user keeps numbers, not a " .. type(v), 2)
      end
      memory(h.slot_)[at] = v
    end,
    __len = function() return n end,
    __tostring = function() return "user" end,
  })
end
bind_user(RowUser, K.MC_N_USER, function(s) return R[s].user end)
bind_user(LaneUser, 2, function(s) return L[s].user end)
bind_user(TenantUser, 2, function(s) return T[s].user end)

local function same(a, b, ctype)
  return istype(ctype, a) and istype(ctype, b) and a.epoch_ == b.epoch_ and
    a.slot_ == b.slot_
end

ffi.metatype(Row, {
  __index = function(h, k)
    if h.epoch_ ~= IO.epoch then stale("row", 2) end
    local s = h.slot_
    if k == "lane" then
      local i = R[s].lane
      return i < V.n_lane and L[i].id or i
    end
    if k == "tenant" then
      local i = R[s].tenant
      return i < V.n_tenant and T[i].id or i
    end
    if ROW[k] then return R[s][k] end
    if k == "user" then return RowUser(h.epoch_, s) end
    refuse_unknown("row", k, ROW)
  end,
  __newindex = refuse_write,
  __eq = function(a, b) return same(a, b, Row) end,
  __tostring = function(h)
    if h.epoch_ ~= IO.epoch then return "row (stale)" end
    return ("row %d.%d"):format(R[h.slot_].seq, R[h.slot_].gen)
  end,
})

-- Lanes and tenants: what stays as it was when the hook began, and what moves
-- as the plan grants.
local PARTY_MORE = { ready = true, running = true, served = true, user = true }
local function bind_party(ctype, what, at, moving, User)
  ffi.metatype(ctype, {
    __index = function(h, k)
      if h.epoch_ ~= IO.epoch then stale(what, 2) end
      local s = h.slot_
      if k == "served" then return moving[s].served end
      if k == "ready" then return moving[s].ready end
      if k == "running" then return moving[s].running end
      if PARTY[k] then return at[s][k] end
      if k == "user" then return User(h.epoch_, s) end
      for name in pairs(PARTY) do PARTY_MORE[name] = true end
      refuse_unknown(what, k, PARTY_MORE)
    end,
    __newindex = refuse_write,
    __eq = function(a, b) return same(a, b, ctype) end,
    __tostring = function(h)
      return what .. (h.epoch_ == IO.epoch and " " .. at[h.slot_].id
        or " (stale)")
    end,
  })
end
bind_party(Lane, "lane", L, LANE, LaneUser)
bind_party(Tenant, "tenant", T, TENANT, TenantUser)
ffi.metatype("struct mc_h_cost", {
  __index = function(_, k) refuse_unknown("cost", k, COST) end,
  __tostring = function() return "cost" end,
})
ffi.metatype(Iter, { __tostring = function() return "iterator" end,
  __index = function(_, k) refuse_unknown("iterator", k, {}) end })

-- ---- iterators --------------------------------------------------------------

-- A loop over rows walks a list that the host made when it began: the filter is
-- no loop in Lua, which inside the script's own loop would keep the JIT from
-- compiling either.
local function list(kind, order, lane)
  local at = list_rows(HOST, kind, order, lane)
  if at < 0 then error("too many loops over rows in one hook call", 3) end
  return Iter(IO.epoch, at, IO.n_listed)
end

local function check_iterator(it, i)
  if not istype(Iter, it) or type(i) ~= "number" or not (i >= 0) then
    error("an iterator takes what its view method returned", 3)
  end
  if it.epoch_ ~= IO.epoch then stale("iterator", 3) end
end

local function next_row(it, i)
  check_iterator(it, i)
  if i < it.n_ then return i + 1, Row(IO.epoch, LIST[it.at_ + i]) end
end

local function next_lane(it, i)
  check_iterator(it, i)
  if i < it.n_ then return i + 1, Lane(IO.epoch, i) end
end

local function next_tenant(it, i)
  check_iterator(it, i)
  if i < it.n_ then return i + 1, Tenant(IO.epoch, i) end
end

-- ---- view -------------------------------------------------------------------

local View = {}

local function check_shown()
  if IO.epoch == 0 then
    error("there is no view outside plan, evict and admit", 3)
  end
end

--- Rows that hold pages and make progress: prefilling or decoding.
function View:running(order)
  check_shown()
  return next_row, list(K.MC_LIST_RUNNING, order_of(order), -1), 0
end

--- Rows of a lane (all lanes when it is nil) that want prompt tokens, begun or
-- not.
function View:waiting(lane, order)
  check_shown()
  lane = lane == nil and -1 or lane_of(lane)
  return next_row, list(K.MC_LIST_READY, order_of(order), lane), 0
end

--- Rows that were preempted, the longest here first.
function View:paused(order)
  check_shown()
  return next_row, list(K.MC_LIST_PAUSED, order_of(order), -1), 0
end

--- Lanes.
function View:lanes()
  check_shown()
  return next_lane, Iter(IO.epoch, 0, V.n_lane), 0
end

--- Tenants.
function View:tenants()
  check_shown()
  return next_tenant, Iter(IO.epoch, 0, V.n_tenant), 0
end

--- The row of a lane that has waited longest for prompt tokens, or nil.
function View:head(lane)
  check_shown()
  local s = head_of(HOST, lane_of(lane))
  if s >= 0 then return Row(IO.epoch, s) end
end

-- Wants prompt tokens and may still get them.
local function is_ready(s)
  local r = R[s]
  return MARK[s] == 0 and (r.state == WAITING or r.state == PREFILL)
    and r.n_left > 0
end

-- The row is decided on: it leaves its lane's and its tenant's counts.
local function decide(s, r)
  local ready = is_ready(s) and 1 or 0
  local running = (r.state == PREFILL or r.state == DECODE) and 1 or 0
  if r.lane < V.n_lane then
    local l = LANE[r.lane]
    l.ready, l.running = l.ready - ready, l.running - running
  end
  if r.tenant < V.n_tenant then
    local t = TENANT[r.tenant]
    t.ready, t.running = t.ready - ready, t.running - running
  end
  MARK[s] = 1
end

local function add(s, r, what, n, draft, why)
  local item = P.item[P.n]
  item.seq, item.gen, item.what, item.why = r.seq, r.gen, what, why
  item.n, item.draft = n, draft
  P.n = P.n + 1
  decide(s, r)
end

--- Takes a running row's pages: "swap" keeps them in host memory, "drop" has
-- them computed again. Returns pages that are free now, and pages that will be
-- when work in flight ends; 0, 0 when it can't be.
function View:preempt(h, how)
  local s = slot_of(h)
  local r = R[s]
  if how ~= "swap" and how ~= "drop" then
    error(("preempt takes \"swap\" or \"drop\", not '%s'")
      :format(tostring(how)), 2)
  end
  local pages = r.p_own
  if MARK[s] ~= 0 or P.n >= P.cap
    or (r.state ~= DECODE and r.state ~= PREFILL) then
    return 0, 0
  end
  if how == "swap" then
    if r.p_held > IO.host_left then return 0, 0 end
    IO.host_left = IO.host_left - r.p_held
    add(s, r, SWAP, 0, 0, 0)
    P.page_soon = P.page_soon + pages
    return 0, pages
  end
  add(s, r, DROP, 0, 0, 0)
  if r.n_ahead > 0 then
    P.page_soon = P.page_soon + pages
    return 0, pages
  end
  P.page_left = P.page_left + pages
  return pages, 0
end

local VIEW_MORE = {
  kv_free = true, kv_total = true, tokens_left = true, rows_left = true,
  state = true, decode = true, prefill = true,
}
for k in pairs(View) do VIEW_MORE[k] = true end

local view = setmetatable({}, {
  __index = function(_, k)
    local method = View[k]
    if method then return method end
    if IO.epoch == 0 then
      error("there is no view outside plan, evict and admit", 2)
    end
    if k == "kv_free" then
      return V.p_free + V.p_evict - (IO.page_start - P.page_left)
    end
    if k == "kv_total" then return V.p_total end
    if k == "tokens_left" then return P.tok_left end
    if k == "rows_left" then return P.row_left end
    if k == "state" then return step_state end
    if k == "decode" then return DECODE_COST end
    if k == "prefill" then return PREFILL_COST end
    if VIEW[k] then return V[k] end
    for name in pairs(VIEW) do VIEW_MORE[name] = true end
    refuse_unknown("view", k, VIEW_MORE)
  end,
  __newindex = refuse_write,
  __metatable = false,
})

-- ---- plan -------------------------------------------------------------------

local Plan = {}

-- Gives a row n tokens and draft more, which cost so many pages.
local function grant(s, r, n, draft, pages, why)
  if r.lane < V.n_lane then
    LANE[r.lane].served = LANE[r.lane].served + n + draft
  end
  if r.tenant < V.n_tenant then
    TENANT[r.tenant].served = TENANT[r.tenant].served + n + draft
  end
  P.tok_left = P.tok_left - n - draft
  P.row_left = P.row_left - 1
  P.page_left = P.page_left - pages
  add(s, r, RUN, n, draft, why)
end

--- The row makes its next token, and checks up to draft guessed ones. True when
-- granted.
function Plan:decode(h, draft, why)
  local s = slot_of(h)
  why = why_of(why)
  if draft == nil then
    draft = 0
  elseif type(draft) ~= "number" or not (draft >= 0) then
    error("draft must be a number of tokens", 2)
  end
  local r = R[s]
  if MARK[s] ~= 0 or r.state ~= DECODE or P.tok_left < 1 or P.row_left < 1 or
    r.p_step > P.page_left or P.n >= P.cap then
    return false
  end
  if draft > 0 then
    draft = floor(min(draft, r.n_draft_max, V.draft_cap, P.tok_left - 1))
  end
  grant(s, r, 1, draft, r.p_step, why)
  return true
end

--- The row reads up to n more tokens of its prompt. Returns how many it got: as
-- many as the step and the free pages allow.
function Plan:prefill(h, n, why)
  local s = slot_of(h)
  why = why_of(why)
  if type(n) ~= "number" or not (n >= 1) then
    error("prefill takes a number of tokens from 1, not '" .. tostring(n)
      .. "'", 2)
  end
  if not is_ready(s) or P.row_left < 1 or P.n >= P.cap then return 0 end
  local r = R[s]
  local begun = r.n_ctx + r.n_hit
  local room = (P.page_left + r.p_held + r.p_shared) * V.p_tokens - begun
  n = floor(min(n, r.n_left, P.tok_left, room))
  if n < 1 then return 0 end
  local pages = ceil((begun + n) / V.p_tokens) - r.p_held - r.p_shared
  grant(s, r, n, 0, pages > 0 and pages or 0, why)
  return n
end

--- A paused row comes back. True when its pages and a place in the step were
-- there.
function Plan:resume(h)
  local s = slot_of(h)
  local r = R[s]
  if MARK[s] ~= 0 or r.state ~= PAUSED or P.row_left < 1
    or r.p_step > P.page_left or P.n >= P.cap then
    return false
  end
  P.row_left = P.row_left - 1
  P.page_left = P.page_left - r.p_step
  add(s, r, BACK, 0, 0, 0)
  return true
end

--- Notes that the row does not run in this step, and why.
function Plan:hold(h, why)
  local s = slot_of(h)
  why = why_of(why)
  if MARK[s] ~= 0 or P.n >= P.cap then return false end
  add(s, R[s], HOLD, 0, 0, why)
  return true
end

--- Ends the request with an error: one of the API's codes, like "overloaded".
function Plan:reject(h, code)
  local s = slot_of(h)
  local number = host.codes[code]
  if not number then
    error(("no error code '%s'"):format(tostring(code))
      .. near.hint(code, host.codes), 2)
  end
  if MARK[s] ~= 0 or P.n >= P.cap then return false end
  add(s, R[s], FAIL, number, 0, 0)
  return true
end

local plan = setmetatable({}, {
  __index = function(_, k)
    local method = Plan[k]
    if method then return method end
    refuse_unknown("plan", k, Plan)
  end,
  __newindex = refuse_write,
  __metatable = false,
})

-- ---- hooks ------------------------------------------------------------------

local step = {}

--- The names that view, plan, rows, lanes, tenants and costs have, for the
-- check that each is in the reference.
function step.names()
  local view_names = {}
  for k in pairs(VIEW_MORE) do view_names[k] = true end
  for k in pairs(VIEW) do view_names[k] = true end
  local row, lane = { user = true }, {}
  for k in pairs(ROW) do row[k] = true end
  for k in pairs(PARTY_MORE) do lane[k] = true end
  for k in pairs(PARTY) do lane[k] = true end
  return { View = view_names, Plan = Plan, Row = row, Lane = lane,
    Tenant = lane, Cost = COST }
end

--- Functions without arguments that the host calls, for the hooks that a
-- scheduler has.
function step.bind(scheduler)
  local run = {}
  local on_plan, on_evict = scheduler.plan, scheduler.evict
  local on_admit = scheduler.admit
  n_why = #(scheduler.why or {})
  step_state = state.new("scheduler", scheduler.state, IO.state)
  function run.plan()
    on_plan(view, plan)
  end
  run.evict = on_evict and function()
    on_evict(view, IO.need)
  end
  run.admit = on_admit and function()
    local ok, code = on_admit(Row(IO.epoch, 0))
    if ok then
      IO.answer = 0
      return
    end
    code = code == nil and "overloaded" or code
    IO.answer = host.codes[code] or error(("admit: no error code '%s'")
      :format(tostring(code)) .. near.hint(code, host.codes), 0)
  end
  return run
end

return step
