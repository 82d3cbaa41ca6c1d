--- sched_share.lua - by weight: the lane that is owed most goes next.
--
-- The weights are the setting lane_weight; the router says which lane a request
-- is in. The shipped sched_fair.lua does this too, and keeps room for lanes
-- that are owed more.

local P = { api = 1, kind = "scheduler", why = { "no room" } }

local function owed(view)
  local best, least = nil, math.huge
  for _, l in view:lanes() do
    local served = l.served / l.weight
    if l.ready > 0 and served < least then best, least = l.id, served end
  end
  return best and view:head(best)
end

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
  local r = owed(view)
  while r do
    local pages = math.ceil((r.n_hit + r.n_left) / view.p_tokens) - r.p_shared
    local fits = n == 0 or not stuck and pages <= view.kv_free - view.p_reserve
    fits = fits or r.t_start > 0
    stuck = stuck or not fits
    local got = fits and plan:prefill(r, 256) or 0
    if got > 0 then n = n + 1 else plan:hold(r, 1) end
    r = owed(view)
  end
end

function P.tests(t)
  t.it("gives a lane of weight 3 three times the tokens", function()
    local rows = {}
    for i = 1, 24 do rows[i] = { lane = i % 2, n_prompt = 64 } end
    local p = t.plan(t.view { rows = rows, tok_cap = 16 * 64,
      lanes = { { id = 0, weight = 3 }, { id = 1, weight = 1 } } })
    local n = { 0, 0 }
    for i = 1, 24 do
      n[i % 2 + 1] = n[i % 2 + 1] + (p[i] and p[i].n or 0)
    end
    t.expect(n):is { 12 * 64, 4 * 64 }
  end)
  t.it("gets through any view", function()
    t.random(20, function(rnd) t.plan(t.random_view(rnd)) end)
  end)
end

return P
