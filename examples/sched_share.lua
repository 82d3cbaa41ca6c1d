--- sched_share.lua - lanes share the server by weight: the least served for it goes next.
--
-- The weights are the setting lane_weight; the router says which lane a request is in. The
-- shipped sched_fair.lua does this with room kept for lanes that are owed more.

local P = { api = 1, kind = "scheduler", why = { "no room" } }

local function owed(view)
  local best
  for _, l in view:lanes() do
    if l.ready > 0 and (not best or l.served / l.weight < best.served / best.weight) then
      best = l
    end
  end
  return best and view:head(best.id)
end

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
  local row = owed(view)
  while row do
    local pages = math.ceil((row.n_hit + row.n_left) / view.p_tokens) - row.p_shared
    local fits = n == 0 or not stuck and pages <= view.kv_free - view.p_reserve
    fits = fits or row.t_start > 0
    stuck = stuck or not fits
    if not fits or plan:prefill(row, 256) == 0 then plan:hold(row, 1) else n = n + 1 end
    row = owed(view)
  end
end

function P.tests(t)
  t.it("gives a lane of weight 3 three times the tokens", function()
    local rows = {}
    for i = 1, 24 do rows[i] = { lane = i % 2, n_prompt = 64 } end
    local p = t.plan(t.view { rows = rows, tok_cap = 16 * 64,
      lanes = { { id = 0, weight = 3 }, { id = 1, weight = 1 } } })
    local n = { 0, 0 }
    for i = 1, 24 do n[i % 2 + 1] = n[i % 2 + 1] + (p[i] and p[i].n or 0) end
    t.expect(n):is { 12 * 64, 4 * 64 }
  end)
  t.it("gets through any view", function()
    t.random(20, function(rnd) t.plan(t.random_view(rnd)) end)
  end)
end

return P
