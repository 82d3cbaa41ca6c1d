--- sched_swap.lua - pages are short: who has the cheapest way back gives way.
--
-- Host memory or computing again, by what recent steps and copies took.

local P = { api = 1, kind = "scheduler" }

function P.plan(view, plan)
  local n, stuck = 0, false
  for _, r in view:running() do
    plan:decode(r)
    n = n + 1
  end
  for _, r in view:paused() do
    if n > 0 and r.p_step > view.kv_free - view.p_reserve then break end
    if plan:resume(r) then n = n + 1 end
  end
  for _, r in view:waiting() do
    local pages = math.ceil((r.n_hit + r.n_left) / view.p_tokens) - r.p_shared
    local begun = r.t_start > 0
    stuck = stuck
      or not begun and n > 0 and pages > view.kv_free - view.p_reserve
    if (begun or not stuck) and plan:prefill(r, r.n_left) > 0 then n = n + 1 end
  end
end

local function give(view, need, host)
  local best, least, swap = nil, math.huge, false
  for i, r in view:running() do -- the oldest stays: something always ends
    local s = r.p_held <= host and r.us_swap < r.us_redo
    local us = (s and r.us_swap or r.us_redo) / r.p_own -- no pages: infinite
    if i > 1 and us < least then best, least, swap = r, us, s end
  end
  if not best or need <= 0 then return end
  view:preempt(best, swap and "swap" or "drop")
  give(view, need - best.p_own, swap and host - best.p_held or host)
end

function P.evict(view, need) give(view, need, view.p_host_free) end

function P.tests(t)
  local function row(swap, redo)
    return { state = "decode", n_prompt = 300, us_swap = swap, us_redo = redo }
  end

  t.it("takes the cheapest way back, while host memory lasts", function()
    local v = t.view { pages = 0, p_host_free = 6,
      rows = { row(1, 1), row(500, 900), row(100, 900), row(900, 400) } }
    local p = t.evict(v, 1)
    t.expect({ p.order[1], p[3].what }):is { 3, "swap" }
    p = t.evict(v, 99)
    t.expect({ p[3].what, p[4].what, p[2].what, p[1] })
      :is { "swap", "drop", "drop" }
  end)
  t.it("gets through any view", function()
    t.random(20, function(rnd)
      local v = t.random_view(rnd)
      t.plan(v)
      t.evict(v, rnd(1, 9))
    end)
  end)
end

return P
