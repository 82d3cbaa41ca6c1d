--- sched_deadline.lua - who is due soonest goes first.
--
-- Who can't make it any more is told at once. due_first and deadline are set in
-- mc.submit or by the router, in seconds from now.

local P = { api = 1, kind = "scheduler" }

-- The first token can't come before its prompt is read, if nothing else ran.
local function hopeless(view, r)
  local us = view.prefill.us_base + view.prefill.us_tok * r.n_left
  return r.due_first > 0 and view.now + us * 1e-6 > r.due_first
end

function P.plan(view, plan)
  local n, stuck = 0, false
  for _, r in view:running("due") do
    plan:decode(r)
    n = n + 1
  end
  for _, r in view:paused("due") do
    if n > 0 and r.p_step > view.kv_free - view.p_reserve then break end
    if plan:resume(r) then n = n + 1 end
  end
  for _, r in view:waiting(nil, "due") do
    local pages = math.ceil((r.n_hit + r.n_left) / view.p_tokens) - r.p_shared
    if r.t_start == 0 and hopeless(view, r) then
      plan:reject(r, "overloaded")
    else
      local begun = r.t_start > 0
      stuck = stuck
        or not begun and n > 0 and pages > view.kv_free - view.p_reserve
      if (begun or not stuck) and plan:prefill(r, r.n_left) > 0 then
        n = n + 1
      end
    end
  end
end

function P.tests(t)
  t.it("reads in order of what is due, and refuses what is too late", function()
    local v = t.view { tok_cap = 150, now = 100, rows = {
      { n_prompt = 100 },
      { n_prompt = 100, due_first = 101 },
      { n_prompt = 100, due_first = 100.001 },
    } }
    v.prefill = { us_base = 100, us_tok = 50 }
    local p = t.plan(v)
    t.expect({ p[2].n, p[1].n, p[3].code }):is { 100, 50, "overloaded" }
  end)
  t.it("gets through any view", function()
    t.random(20, function(rnd) t.plan(t.random_view(rnd)) end)
  end)
end

return P
