--- sched_fair.lua - who was served least, for its weight, goes next.
--
-- Each lane (a tenant's share of the server) has a weight; a lane of weight 2
-- gets twice the tokens of a lane of weight 1 while both have work. To use it:
-- scheduler = "sched_fair" in init.lua.

local P = {
  api = 1,
  kind = "scheduler",
  why = { "another's turn", "no pages", "another reads its prefix" },
}
local TURN, NO_PAGES, PREFIX = 1, 2, 3

-- Of each lane: what it was served, over its weight. One table for all calls.
local share = {}
local FAR, CHUNK, SHORT = 512, 512, 64 -- tokens

-- Its whole prompt has pages, beside what those that run will take. Lanes that
-- are not owed most leave an eighth of pages and places to those that will be.
local function fits(view, s, started, left)
  if s.t_start > 0 then return true end
  local pages = math.ceil((s.n_hit + s.n_left) / view.p_tokens) - s.p_shared
  return pages <= view.kv_free - view.p_reserve - left * view.kv_total
    and started < view.row_cap * (1 - left)
end

-- The lane that is owed most among those with a prompt to read, and the least
-- share of any that is in use.
local function look(view)
  local owed, most, least = nil, math.huge, math.huge
  for _, l in view:lanes() do -- served: tokens, decayed over 60 s
    local s = l.served / l.weight
    share[l.id] = s
    if l.served > 1 or l.ready > 0 then least = math.min(least, s) end
    if l.ready > 0 and s < most then owed, most = l.id, s end
  end
  return owed, least
end

-- Half-read prompts hold the pages that all wait for: the youngest gives its
-- own back.
local function give_way(view)
  local n = 0
  for _ in view:running() do n = n + 1 end
  for _, s in view:running("youngest") do
    if n > 1 and s.p_own > 0 then
      view:preempt(s, "drop")
      return
    end
  end
end

-- Decodes; lanes far ahead of one whose prompt can be read now stand still for
-- that long.
local function decode(view, plan, owed)
  local ran, started = 0, 0
  for _ in view:running() do started = started + 1 end
  local s = owed and view:head(owed)
  local waits = s and fits(view, s, started, 0)
  for _, r in view:running() do
    if waits and share[r.lane] > 2 * share[owed] + FAR then
      if r.n_left == 0 then plan:hold(r, TURN) end
    elseif plan:decode(r) then
      ran = ran + 1
    end
  end
  return ran, started, waits
end

function P.plan(view, plan)
  local owed, least = look(view)
  local ran, started, waits = decode(view, plan, owed)
  local stuck, short = false, false
  for _, s in view:paused() do -- not into the pages that others wait for
    local room = started == 0 or s.p_step <= view.kv_free - view.p_reserve
    stuck = stuck or not room or not plan:resume(s)
    if not stuck then ran, started = ran + 1, started + 1 end
  end
  -- While something runs, who was preempted has the next pages, and who starts
  -- must fit.
  while view.tokens_left > 0 and (ran == 0 or not stuck) do
    local best = look(view)
    local s = best and view:head(best)
    if not s then break end
    -- Short steps for it, if so: who is owed more may come.
    local other = share[best] > least + FAR
    if other and waits and share[best] > 2 * share[owed] + FAR then break end
    if ran > 0 and s.n_hit_soon > s.n_hit then
      plan:hold(s, PREFIX)
    else
      short = (ran > 0 and not fits(view, s, started, other and 1 / 8 or 0))
        or plan:prefill(s, other and SHORT or CHUNK) == 0
      if short then break end
      ran, started = ran + 1, started + (s.t_start == 0 and 1 or 0)
    end
  end
  if ran == 0 then give_way(view) end
  for _, s in view:waiting() do
    plan:hold(s, (stuck or short) and NO_PAGES or TURN)
  end
end

function P.tests(t)
  local function two(served)
    return t.view {
      tok_cap = 64,
      lanes = {
        { id = 0, served = served[1], weight = 1 },
        { id = 1, served = served[2], weight = 2 },
      },
      rows = { { lane = 0, n_prompt = 500 }, { lane = 1, n_prompt = 500 } },
    }
  end

  t.it("reads the prompt of the lane that is owed more", function()
    t.expect(t.plan(two { 10, 5 })[2].n):is(64)
    t.expect(t.plan(two { 5, 100 })[1].n):is(64)
    t.expect(t.plan(two { 5, 100 })[2]):is { what = "hold", why = TURN }
  end)
  t.it("counts a lane of weight 2 for half of what it was served", function()
    t.expect(t.plan(two { 60, 100 })[2].n):is(64)
  end)
  t.it("starts nobody whose prompt does not fit beside the running", function()
    local rows = { { state = "decode" }, { n_prompt = 300 } }
    t.expect(t.plan(t.view { rows = rows, pages = 5, p_reserve = 1 })[2])
      :is { what = "hold", why = NO_PAGES }
    local v = t.view { rows = rows, pages = 6, p_reserve = 1 }
    t.expect(t.plan(v)[2].what):is("run")
    v = t.view { rows = { { n_prompt = 300 } }, pages = 2 }
    t.expect(t.plan(v)[1].n):is(128)
  end)
  t.it("has the younger of two half-read prompts give way for pages", function()
    local half = { state = "prefill", n_prompt = 500 }
    t.expect(t.plan(t.view { rows = { half, half }, pages = 0 })):is {
      n = 2,
      tokens = 0,
      rows = 0,
      pages = -1,
      order = { 2, 1 },
      { what = "hold", why = NO_PAGES },
      { what = "drop" },
    }
  end)
  t.it("gets through any view", function()
    t.random(20, function(rnd) t.plan(t.random_view(rnd)) end)
  end)
end

return P
