--- sched_first.lua - first come, first served, and nothing else.
--
-- To use this or another sched_*.lua: copy it into your policy directory and say
-- scheduler = "sched_first" in init.lua. What is left out (evict) the server does in C.

local P = { api = 1, kind = "scheduler" }

function P.plan(view, plan)
  local n = 0 -- rows that have begun
  for _, row in view:running() do
    plan:decode(row)
    n = n + 1
  end
  local function room(pages) return n == 0 or pages <= view.kv_free - view.p_reserve end
  local stuck = false
  for _, row in view:paused() do
    stuck = stuck or not room(row.p_step) or not plan:resume(row)
    n = n + (stuck and 0 or 1)
  end
  for _, row in view:waiting() do
    local pages = math.ceil((row.n_hit + row.n_left) / view.p_tokens) - row.p_shared
    stuck = stuck or row.t_start == 0 and not room(pages)
    if (row.t_start > 0 or not stuck) and plan:prefill(row, row.n_left) > 0 then n = n + 1 end
  end
end

function P.tests(t)
  t.it("lets nobody overtake one that does not fit", function()
    local p = t.plan(t.view { pages = 5, rows = { { state = "decode" }, { n_prompt = 900 },
      { n_prompt = 64 }, { state = "prefill", n_prompt = 200 } } })
    t.expect({ p[1].what, p[4].what }):is { "run", "run" }
    t.expect(p[2] or p[3]):is(nil)
  end)
  t.it("gets through any view", function()
    t.random(20, function(rnd) t.plan(t.random_view(rnd)) end)
  end)
end

return P
