--- sched_swap.lua - pages are short: who gives way, and how it comes back.
--
-- To host memory when moving it there and back costs less than computing it again, by what
-- steps and copies have taken; the row whose way back is cheapest a page goes first.

local P = { api = 1, kind = "scheduler" }

function P.plan(view, plan)
  local n, stuck = 0, false
  for _, row in view:running() do
    plan:decode(row)
    n = n + 1
  end
  for _, row in view:paused() do
    if n > 0 and row.p_step > view.kv_free - view.p_reserve then break end
    if plan:resume(row) then n = n + 1 end
  end
  for _, row in view:waiting() do
    local pages = math.ceil((row.n_hit + row.n_left) / view.p_tokens) - row.p_shared
    local begun = row.t_start > 0
    stuck = stuck or not begun and n > 0 and pages > view.kv_free - view.p_reserve
    if (begun or not stuck) and plan:prefill(row, row.n_left) > 0 then n = n + 1 end
  end
end

local function give(view, need, host)
  local best, least, swap = nil, math.huge, false
  for i, row in view:running() do -- the oldest stays, so that something always ends
    local s = row.p_held <= host and row.us_swap < row.us_redo
    local us = (s and row.us_swap or row.us_redo) / row.p_own
    if i > 1 and row.p_own > 0 and us < least then best, least, swap = row, us, s end
  end
  if not best then return end
  view:preempt(best, swap and "swap" or "drop")
  if best.p_own < need then give(view, need - best.p_own, swap and host - best.p_held or host) end
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
    t.expect({ p[3].what, p[4].what, p[2].what, p[1] }):is { "swap", "drop", "drop" }
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
