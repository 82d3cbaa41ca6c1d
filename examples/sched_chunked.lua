--- sched_chunked.lua - long prompts are read in pieces: a step stays short.
--
-- opts.step_ms: what a step may take [50], by the times that recent steps took.
-- Who generates has a token in each step, however long the prompts are that are
-- read in it as well.

local P = { api = 1, kind = "scheduler" }
local step_us

function P.init(opts) step_us = (opts.step_ms or 50) * 1000 end

function P.plan(view, plan)
  local n = 0
  for _, r in view:running() do
    plan:decode(r)
    n = n + 1
  end
  for _, r in view:paused() do
    if n > 0 and r.p_step > view.kv_free - view.p_reserve then break end
    if plan:resume(r) then n = n + 1 end
  end
  local left, cost, stuck = view.tokens_left, view.prefill, false
  if n > 0 and cost.us_tok > 0 then
    local us = step_us - view.decode.us_base - view.decode.us_row * n
      - cost.us_base
    left = math.max(16, math.min(left, us / cost.us_tok))
  end
  for _, r in view:waiting() do
    local pages = math.ceil((r.n_hit + r.n_left) / view.p_tokens) - r.p_shared
    local begun = r.t_start > 0
    stuck = stuck
      or not begun and n > 0 and pages > view.kv_free - view.p_reserve
    if left >= 1 and (begun or not stuck) then
      left, n = left - plan:prefill(r, left), n + 1
    end
  end
end

function P.tests(t)
  t.it("reads as much as fits into a step, and 16 tokens at least", function()
    local rows = { { state = "decode" }, { n_prompt = 1000 } }
    local v = t.view { rows = rows, tok_cap = 512 }
    v.decode = { us_base = 9000, us_row = 1000 }
    v.prefill = { us_base = 0, us_tok = 200 }
    t.expect(t.plan(v)[2].n):is((step_us - 10000) / 200)
    v.prefill.us_tok = 1e6
    t.expect(t.plan(v)[2].n):is(16)
  end)
  t.it("gets through any view", function()
    t.random(20, function(rnd) t.plan(t.random_view(rnd)) end)
  end)
end

return P
