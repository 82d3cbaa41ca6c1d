--- sched_draft.lua - speculative lengths: guess many tokens where guesses are right.
--
-- Checking k guessed tokens costs about what k more rows would; they pay while the chance
-- that all before were right (accept^k) is above that cost's share of a step. The fuller the
-- step, the dearer: nobody guesses in one that is full.

local P = { api = 1, kind = "scheduler" }

local function guesses(view, row, n)
  local share = view.decode.us_row / (view.decode.us_base / n + view.decode.us_row)
  local accept, k = math.min(row.accept, 0.98), 0
  if not (share > 0 and accept > 0) then return 0 end
  k = math.floor(math.log(share) / math.log(accept))
  return math.max(0, math.min(k, row.n_draft_max, math.floor(view.tokens_left / n) - 1))
end

function P.plan(view, plan)
  local n = 0
  for _ in view:running() do n = n + 1 end
  for _, row in view:running() do plan:decode(row, guesses(view, row, n)) end
  for _, row in view:paused() do
    if n > 0 and row.p_step > view.kv_free - view.p_reserve then break end
    if plan:resume(row) then n = n + 1 end
  end
  local stuck = false
  for _, row in view:waiting() do
    local pages = math.ceil((row.n_hit + row.n_left) / view.p_tokens) - row.p_shared
    local begun = row.t_start > 0
    stuck = stuck or not begun and n > 0 and pages > view.kv_free - view.p_reserve
    if (begun or not stuck) and plan:prefill(row, row.n_left) > 0 then n = n + 1 end
  end
end

function P.tests(t)
  local function lengths(n, accept)
    local rows = {}
    for i = 1, n do rows[i] = { state = "decode", accept = accept, n_draft_max = 8 } end
    local v = t.view { rows = rows, tok_cap = 256, draft_cap = 8 }
    v.decode = { us_base = 8000, us_row = 1000 }
    return t.plan(v)[1].draft or 0
  end

  t.it("guesses more the better guesses are, and less the fuller the step is", function()
    t.expect({ lengths(1, 0.9), lengths(1, 0.5), lengths(1, 0) }):is { 8, 3, 0 }
    t.expect(lengths(16, 0.5)):is(0)
  end)
  t.it("gets through any view", function()
    t.random(20, function(rnd) t.plan(t.random_view(rnd)) end)
  end)
end

return P
