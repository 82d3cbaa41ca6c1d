--- test_step.lua - views, candidates and calls for tests of policies.
--
-- Trusted: has ffi. A view is a plain table that a test makes (or that was
-- recorded); a call of a hook shows it as the engine shows a step, and gives
-- back what was planned. The hook runs as it is: what it does to the view's
-- handles is checked as ever.

local ffi = ffi
local abi = require "mc.abi"
local host = require "mc.host"
local near = require "mc.near"
local test = require "mc.test"

local K, ceil = ffi.C, math.ceil
local IO = abi.at("struct mc_hook_io *", "io")
local V = abi.at("const struct mc_step_view *", "view")
local P = abi.at("const struct mc_plan *", "plan")
local R = abi.at("const struct mc_row *", "rows")
local L = abi.at("const struct mc_party *", "lanes")
local T = abi.at("const struct mc_party *", "tenants")
local S = abi.at("struct mc_pick_seq *", "seq")
local C = abi.at("struct mc_cands *", "cands")
local OUT = abi.at("struct mc_params *", "params")
local B = abi.at("struct mc_block *", "blocks")
local HOST = abi.at("void *", "host")
local show = abi.leaf(
  "int32_t (*)(void *, const void *, int32_t, int32_t, int32_t)", "show")
local hide = abi.leaf("void (*)(void *)", "hide")
local scene = abi.leaf("const char *(*)(void *, int32_t)", "scene")
local reset = abi.leaf("void (*)(void *)", "reset")

local STATES = { waiting = K.MC_STATE_WAITING, prefill = K.MC_STATE_PREFILL,
  decode = K.MC_STATE_DECODE, paused = K.MC_STATE_PAUSED }
local WHAT = { [K.MC_RUN] = "run", [K.MC_SWAP] = "swap", [K.MC_DROP] = "drop",
  [K.MC_BACK] = "resume", [K.MC_HOLD] = "hold", [K.MC_FAIL] = "reject" }
local STATE_NAME, CODE_NAME = {}, {}
for name, n in pairs(STATES) do STATE_NAME[n] = name end
for name, n in pairs(host.codes) do CODE_NAME[n] = name end

local ROW, PARTY = abi.scalars("mc_row"), abi.scalars("mc_party")
local VIEW, PARAMS = abi.scalars("mc_step_view"), abi.scalars("mc_params")
for _, k in ipairs { "abi", "bytes", "n_row", "n_lane", "n_tenant", "n_order",
  "off_row", "off_lane", "off_tenant", "off_order" } do VIEW[k] = nil end
ROW.user, PARTY.user = true, true
local BLOCK = abi.scalars("mc_block")
local MORE = { rows = true, lanes = true, tenants = true, pages = true }
for k in pairs(VIEW) do MORE[k] = true end

local function check_keys(what, t, known, level)
  if type(t) ~= "table" then error(what .. " must be a table", level) end
  for k in pairs(t) do
    if type(k) == "string" and not known[k] then
      error(("a %s has no '%s'"):format(what, k) .. near.hint(k, known), level)
    end
  end
end

-- ---- views ------------------------------------------------------------------

local function copy(t)
  local c = {}
  for k, v in pairs(t) do c[k] = v end
  return c
end

-- A row's numbers as the engine would have them, where the test says nothing.
local function complete_row(r, i, page)
  local state = STATES[r.state or "waiting"] or r.state
  local function default(k, v) if r[k] == nil then r[k] = v end end
  default("seq", i)
  default("gen", 1)
  default("lane", 0)
  default("tenant", 0)
  default("n_prompt", 100)
  default("n_max", 128)
  default("t_arrive", i)
  default("t_start", state == STATES.waiting and 0 or r.t_arrive)
  if state == STATES.decode then
    default("n_gen", 1)
    default("n_ctx", r.n_prompt + r.n_gen - 1)
    default("p_step", r.n_ctx % page == 0 and 1 or 0)
    default("n_left", 0)
  elseif state == STATES.paused then
    default("p_step", ceil((r.n_prompt + 1) / page))
  else
    default("n_ctx",
      state == STATES.prefill and math.min(page, r.n_prompt - 1) or 0)
    default("n_hit", 0)
    default("n_left", r.n_prompt - r.n_ctx - r.n_hit)
  end
  default("n_ctx", 0)
  default("p_held", ceil(r.n_ctx / page))
  default("p_own", r.p_held)
  default("n_guess", r.n_max - (r.n_gen or 0))
  r.state = STATE_NAME[state]
    or error("state must be waiting, prefill, decode or paused", 3)
  return r
end

-- Lanes or tenants: those given, else one of weight 1 for each id that a row
-- names.
local function complete_parties(given, rows, key)
  local list, by_id = {}, {}
  for _, p in ipairs(given or {}) do
    check_keys(key, p, PARTY, 4)
    local c = copy(p)
    c.weight = c.weight or 1
    list[#list + 1], by_id[c.id or -1] = c, c
    if not c.id then error("a " .. key .. " needs an id", 4) end
  end
  for _, r in ipairs(rows) do
    if not by_id[r[key]] then
      local c = { id = r[key], weight = 1 }
      list[#list + 1], by_id[c.id] = c, c
    end
  end
  return list
end

--- A view: { rows = { {state = "decode", n_prompt = 100, lane = 1, ...}, ... },
-- lanes = { {id = 1, weight = 2, served = 10} }, pages = free ones, and any
-- field of a view }. Rows are in order of arrival. What is not said is filled
-- in, and can be read back.
local function make_view(v)
  check_keys("view", v, MORE, 3)
  v = copy(v)
  local function default(k, x) if v[k] == nil then v[k] = x end end
  default("p_tokens", 64)
  default("p_free", v.pages or 1000)
  default("p_evict", 0)
  default("p_total", math.max(1000, v.p_free + v.p_evict))
  default("tok_cap", 256)
  default("row_cap", 64)
  default("step", 1000)
  default("now", 100)
  v.pages = v.p_free + v.p_evict
  local rows = {}
  for i, r in ipairs(v.rows or {}) do
    check_keys("row", r, ROW, 3)
    rows[i] = complete_row(copy(r), i, v.p_tokens)
  end
  v.rows = rows
  v.lanes = complete_parties(v.lanes, rows, "lane")
  v.tenants = complete_parties(v.tenants, rows, "tenant")
  return v
end

--- A view that depends on rnd alone: any mix of rows, lanes, pages and budgets.
local function random_view(rnd)
  local rows, states = {}, { "waiting", "prefill", "decode", "paused" }
  for i = 1, rnd(0, 40) do
    local state = states[rnd(1, 4)]
    local n_prompt = rnd(1, 10) == 1 and rnd(1, 4000) or rnd(2, 300)
    rows[i] = {
      state = state,
      n_prompt = math.max(2, n_prompt),
      lane = rnd(0, 2),
      priority = rnd(-2, 2),
      n_gen = state == "decode" and rnd(1, 200) or nil,
      n_hit = state == "waiting" and n_prompt > 64 and 64 * rnd(0, 1) or nil,
    }
  end
  return make_view {
    rows = rows,
    pages = rnd(1, 3) == 1 and rnd(0, 8) or rnd(0, 900),
    tok_cap = rnd(1, 512),
    row_cap = rnd(1, 64),
    lanes = {
      { id = 0, weight = 1, served = rnd(0, 9999) },
      { id = 1, weight = rnd(1, 4), served = rnd(0, 9999) },
    },
  }
end

local COSTS = { decode = true, prefill = true } -- structs in a view

local function scalars_of(struct, known)
  local t = {}
  for k in pairs(known) do
    if k ~= "user" and not COSTS[k] then t[k] = tonumber(struct[k]) end
  end
  return t
end

-- The i-th recorded or shipped view as a table; nil past the last.
local function recorded_view(i)
  local name = scene(HOST, i - 1)
  if name == nil then return nil end
  local v = scalars_of(V, VIEW)
  v.name, v.rows, v.lanes, v.tenants = ffi.string(name), {}, {}, {}
  v.tok_cap, v.row_cap, v.pages = P.tok_left, P.row_left, P.page_left
  for k = 1, V.n_lane do v.lanes[k] = scalars_of(L[k - 1], PARTY) end
  for k = 1, V.n_tenant do v.tenants[k] = scalars_of(T[k - 1], PARTY) end
  for k = 1, V.n_row do
    local r = scalars_of(R[k - 1], ROW)
    r.state = STATE_NAME[r.state]
    r.lane = v.lanes[r.lane + 1] and v.lanes[r.lane + 1].id or r.lane
    r.tenant = v.tenants[r.tenant + 1] and v.tenants[r.tenant + 1].id
      or r.tenant
    v.rows[k] = r
  end
  v.lanes = complete_parties(v.lanes, v.rows, "lane")
  return v
end

-- ---- showing ----------------------------------------------------------------

local Head = ffi.typeof("struct mc_step_view *")
local Rows = ffi.typeof("struct mc_row *")
local Parties = ffi.typeof("struct mc_party *")

local function put(struct, t, known)
  for k, x in pairs(t) do
    if k == "user" then
      for i, n in ipairs(x) do struct.user[i - 1] = n end
    elseif COSTS[k] and type(x) == "table" and known[k] then
      for name, us in pairs(x) do struct[k][name] = us end
    elseif known[k] and type(x) == "number" then
      struct[k] = x
    end
  end
end

local function index_of(list)
  local at = {}
  for i, p in ipairs(list) do at[p.id] = i - 1 end
  return at
end

-- One block: head, rows, lanes, tenants; room for the orders that the host
-- makes.
local function block_of(v)
  local n, nl, nt = #v.rows, #v.lanes, #v.tenants
  local row, party = ffi.sizeof("struct mc_row"), ffi.sizeof("struct mc_party")
  local off = ffi.sizeof("struct mc_step_view")
  local bytes = off + n * row + (nl + nt) * party + n * K.MC_N_ORDER * 4
  local block = ffi.new("double[?]", ceil(bytes / 8))
  local head, base = ffi.cast(Head, block), ffi.cast("char *", block)
  put(head, v, VIEW)
  head.abi, head.bytes, head.n_order = K.MC_ABI, bytes, K.MC_N_ORDER
  head.n_row, head.n_lane, head.n_tenant = n, nl, nt
  head.off_row, head.off_lane = off, off + n * row
  head.off_tenant = head.off_lane + nl * party
  head.off_order = head.off_tenant + nt * party
  local lanes, tenants = index_of(v.lanes), index_of(v.tenants)
  for i, r in ipairs(v.rows) do
    local to = ffi.cast(Rows, base + head.off_row)[i - 1]
    put(to, r, ROW)
    to.state = STATES[r.state]
    to.lane, to.tenant = lanes[r.lane], tenants[r.tenant]
    head.n_wait_all = head.n_wait_all + (r.state == "waiting" and 1 or 0)
  end
  for i, l in ipairs(v.lanes) do
    put(ffi.cast(Parties, base + head.off_lane)[i - 1], l, PARTY)
  end
  for i, p in ipairs(v.tenants) do
    put(ffi.cast(Parties, base + head.off_tenant)[i - 1], p, PARTY)
  end
  return block
end

-- What the hook wrote and planned; user numbers go back into the view.
local function result_of(v)
  local at = {}
  local out = {
    n = P.n,
    tokens = V.tok_cap - P.tok_left,
    rows = V.row_cap - P.row_left,
    pages = v.pages - P.page_left,
    order = {},
  }
  for i, r in ipairs(v.rows) do
    at[r.seq] = i
    r.user = {}
    for k = 1, K.MC_N_USER do r.user[k] = R[i - 1].user[k - 1] end
  end
  for i, l in ipairs(v.lanes) do
    l.user = { L[i - 1].user[0], L[i - 1].user[1] }
  end
  for i = 0, P.n - 1 do
    local it = P.item[i]
    local k = at[it.seq]
    out.order[i + 1] = k
    out[k] = {
      what = WHAT[it.what],
      n = it.what == K.MC_RUN and it.n or nil,
      draft = it.draft > 0 and it.draft or nil,
      why = it.why > 0 and it.why or nil,
      code = it.what == K.MC_FAIL and CODE_NAME[it.n] or nil,
    }
  end
  return out
end

-- Calls a hook with this view shown, and hides it whatever happens.
local function with_view(v, hook, need)
  if IO.epoch ~= 0 then error("a hook can't be tested inside a hook", 2) end
  if type(v) ~= "table" or type(v.rows) ~= "table" or not v.tenants then
    error("this takes a view made by t.view, t.random_view or t.recorded", 2)
  end
  local block = block_of(v)
  if show(HOST, block, v.tok_cap, v.row_cap, v.pages) < 0 then
    error("the view has more rows or lanes than can be shown", 2)
  end
  IO.need = need or 0
  local ok, err = pcall(hook)
  local out = ok and result_of(v)
  hide(HOST)
  if not ok then error(err, 0) end
  return out
end

-- ---- sequences and candidates -----------------------------------------------

local WANT = {
  temperature = 1, top_p = 1, min_p = 0, repetition_penalty = 1,
  presence_penalty = 0, frequency_penalty = 0, top_k = 0, keep = 0,
  min_tokens = 0,
}
local SEQ = {
  done = true, n_prompt = true, tail = true, want = true, seed = true,
  id = true,
}

local function put_seq(s)
  s = s or {}
  check_keys("sequence", s, SEQ, 4)
  local tail = s.tail or {}
  S.seq, S.gen = s.id or 1, 1
  S.done, S.n_prompt = s.done or #tail, s.n_prompt or 10
  S.seed_lo, S.seed_hi = s.seed or 7, 0
  S.n_tail = math.min(#tail, 32)
  for i = 1, S.n_tail do S.tail[i - 1] = tail[#tail - S.n_tail + i] end
  put(S.want, WANT, PARAMS)
  put(S.want, s.want or {}, PARAMS)
  S.want.ban[0], S.want.ban[1], S.want.flags = -1, -1, 0
end

local function with_seq(hook)
  IO.picking, IO.n_random = 1, 0
  local ok, err = pcall(hook)
  IO.picking = 0
  if not ok then error(err, 0) end
end

local function chain(run, s)
  put_seq(s)
  ffi.copy(OUT, S.want, ffi.sizeof(OUT[0]))
  with_seq(run.chain)
  local out = scalars_of(OUT, PARAMS)
  out.flags = nil
  return out
end

local function pick(run, cands, s)
  put_seq(s)
  if type(cands) ~= "table" or #cands < 1 or #cands > K.MC_CAND_CAP then
    error("pick takes a list of 1 to 64 candidates {id, p, logit}", 2)
  end
  C.n, C.rest, C.lse = #cands, cands.rest or 0, cands.lse or 0
  for i, c in ipairs(cands) do
    C.id[i - 1], C.p[i - 1] = c.id, c.p or 1 / #cands
    C.logit[i - 1] = c.logit or 0
  end
  C.drawn = cands.drawn or cands[1].id
  IO.answer = -1
  with_seq(run.pick)
  return IO.answer >= 0 and IO.answer or nil
end

-- ---- blocks -----------------------------------------------------------------

-- The scores that keep gives to blocks {tenant =, depth =, hits =, t_used =}.
local function keep(hook, list)
  if type(list) ~= "table" or #list < 1 or #list > K.MC_KEEP_CAP then
    error("keep takes a list of 1 to 256 blocks", 2)
  end
  for i, b in ipairs(list) do
    check_keys("block", b, BLOCK, 3)
    ffi.fill(B + i - 1, ffi.sizeof(B[0]))
    put(B + i - 1, b, BLOCK)
    B[i - 1].score = B[i - 1].t_used
  end
  IO.epoch, IO.n_block = 1, #list
  local ok, err = pcall(hook)
  IO.epoch, IO.n_block = 0, 0
  if not ok then error(err, 0) end
  local scores = {}
  for i = 1, #list do scores[i] = B[i - 1].score end
  return scores
end

-- ---- what tests() is given --------------------------------------------------

local M = {}

--- The helpers for the tests of a policy of this kind. run: the functions that
-- the host calls.
function M.new(file, kind, run)
  local t = test.new(file, function() reset(HOST) end)
  local function need(hook)
    return run[hook] or error(("this policy has no %s"):format(hook), 3)
  end
  if kind == "scheduler" then
    t.view, t.random_view = make_view, random_view
    function t.recorded()
      return function(_, i)
        local v = recorded_view(i + 1)
        if v then return i + 1, v end
      end, nil, 0
    end
    function t.plan(v) return with_view(v, need "plan") end
    function t.evict(v, n) return with_view(v, need "evict", n) end
    function t.admit(row)
      IO.answer = 0
      with_view(make_view { rows = { row or {} } }, need "admit")
      return IO.answer == 0, CODE_NAME[IO.answer]
    end
  elseif kind == "cache" then
    function t.keep(list) return keep(need "keep", list) end
  else
    function t.chain(s) return chain({ chain = need "chain" }, s) end
    function t.pick(cands, s) return pick({ pick = need "pick" }, cands, s) end
  end
  return t
end

return M
