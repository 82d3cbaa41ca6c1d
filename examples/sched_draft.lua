--- sched_draft.lua - speculation: guess many tokens where guesses are right.
--
-- Checking k guessed tokens costs about what k more rows would; they pay while
-- the chance that all before were right (accept^k) is above that cost's share
-- of a step. The fuller the step, the dearer: in a full one nobody guesses.

local P = { api = 1, kind = "scheduler" }

local function guess(view, r, n)
  local decode = view.decode
  local share = decode.us_row / (decode.us_base / n + decode.us_row)
  local accept = math.min(r.accept, 0.98)
  if not (share > 0 and accept > 0) then return 0 end
  local k = math.floor(math.log(share) / math.log(accept))
  local room = math.floor(view.tokens_left / n) - 1
  return math.max(0, math.min(k, r.n_draft_max, room))
end

function P.plan(view, plan)
  local n = 0
  for _ in view:running() do n = n + 1 end
  for _, r in view:running() do plan:decode(r, guess(view, r, n)) end
  for _, r in view:paused() do
    if n > 0 and r.p_step > view.kv_free - view.p_reserve then break end
    if plan:resume(r) then n = n + 1 end
  end
  local stuck = false
  for _, r in view:waiting() do
    local pages = math.ceil((r.n_hit + r.n_left) / view.p_tokens) - r.p_shared
    local begun = r.t_start > 0
    stuck = stuck
      or not begun and n > 0 and pages > view.kv_free - view.p_reserve
    if (begun or not stuck) and plan:prefill(r, r.n_left) > 0 then n = n + 1 end
  end
end

function P.tests(t)
  local function lengths(n, accept)
    local rows = {}
    for i = 1, n do
      rows[i] = { state = "decode", accept = accept, n_draft_max = 8 }
    end
    local v = t.view { rows = rows, tok_cap = 256, draft_cap = 8 }
    v.decode = { us_base = 8000, us_row = 1000 }
    return t.plan(v)[1].draft or 0
  end

  t.it("guesses more the better guesses are, less in fuller steps", function()
    t.expect({ lengths(1, 0.9), lengths(1, 0.5), lengths(1, 0) })
      :is { 8, 3, 0 }
    t.expect(lengths(16, 0.5)):is(0)
  end)
  t.it("gets through any view", function()
    t.random(20, function(rnd) t.plan(t.random_view(rnd)) end)
  end)
end

return P
