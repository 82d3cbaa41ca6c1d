--- sched_first.lua - first come, first served, and nothing else.
--
-- To use this or another sched_*.lua: copy it into your policy directory and
-- say scheduler = "sched_first" in init.lua. What is left out here (evict) the
-- server does in C.

local P = { api = 1, kind = "scheduler" }

function P.plan(view, plan)
  local n = 0 -- rows that have begun
  for _, r in view:running() do
    plan:decode(r)
    n = n + 1
  end
  local function room(pages)
    return n == 0 or pages <= view.kv_free - view.p_reserve
  end
  local stuck = false
  for _, r in view:paused() do
    stuck = stuck or not room(r.p_step) or not plan:resume(r)
    n = n + (stuck and 0 or 1)
  end
  for _, r in view:waiting() do
    local pages = math.ceil((r.n_hit + r.n_left) / view.p_tokens) - r.p_shared
    stuck = stuck or r.t_start == 0 and not room(pages)
    local runs = r.t_start > 0 or not stuck
    if runs and plan:prefill(r, r.n_left) > 0 then n = n + 1 end
  end
end

function P.tests(t)
  t.it("lets nobody overtake one that does not fit", function()
    local p = t.plan(t.view { pages = 5, rows = {
      { state = "decode" },
      { n_prompt = 900 },
      { n_prompt = 64 },
      { state = "prefill", n_prompt = 200 },
    } })
    t.expect({ p[1].what, p[4].what }):is { "run", "run" }
    t.expect(p[2] or p[3]):is(nil)
  end)
  t.it("gets through any view", function()
    t.random(20, function(rnd) t.plan(t.random_view(rnd)) end)
  end)
end

return P
