--- sched_fair.lua - who was served least, for its weight, goes next.
--
-- Each lane (a tenant's share of the server) has a weight; a lane of weight 2 gets twice the
-- tokens of a lane of weight 1 while both have work. To use it: scheduler = "sched_fair" in
-- init.lua.

local P = { api = 1, kind = "scheduler" }

function P.plan(view, plan)
  for _, s in view:running() do plan:decode(s) end
  for _, s in view:paused() do plan:resume(s) end
  while view.tokens_left > 0 and view.kv_free > view.kv_total * 0.04 do
    local best
    for _, l in view:lanes() do -- served: tokens, decayed over 60 s
      local owed = l.ready > 0 and l.served / l.weight
      if owed and (not best or owed < best.served / best.weight) then best = l end
    end
    if not best or plan:prefill(view:head(best.id), 512) == 0 then return end
  end
end

function P.tests(t)
  local function two(served)
    return t.view { tok_cap = 64, lanes = { { id = 0, served = served[1], weight = 1 },
      { id = 1, served = served[2], weight = 2 } },
      rows = { { lane = 0, n_prompt = 500 }, { lane = 1, n_prompt = 500 } } }
  end

  t.it("reads the prompt of the lane that is owed more", function()
    t.expect(t.plan(two { 10, 5 })[2].n):is(64)
    t.expect(t.plan(two { 5, 100 })[1].n):is(64)
  end)
  t.it("counts a lane of weight 2 for half of what it was served", function()
    t.expect(t.plan(two { 60, 100 })[2].n):is(64)
  end)
  t.it("lets nothing start in the last twenty-fifth of the pages", function()
    t.expect(t.plan(t.view { rows = { {} }, pages = 40 }).n):is(0)
    t.expect(t.plan(t.view { rows = { {} }, pages = 41 }).n):is(1)
  end)
  t.it("gets through any view", function()
    t.random(20, function(rnd) t.plan(t.random_view(rnd)) end)
  end)
end

return P
