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

return P
