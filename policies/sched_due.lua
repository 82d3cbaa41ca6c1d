--- sched_due.lua - who is due soonest goes first.
--
-- A request says when it wants its first token (due_first, seconds from now)
-- and how fast the rest (slo_token, seconds a token): in mc.submit, or by the
-- router for all of its kind. Prompts are read in pieces that leave room for
-- the tokens that were promised. Who says nothing comes last, in order of
-- arrival. To use it: scheduler = "sched_due" in init.lua.

local P = {
  api = 1,
  kind = "scheduler",
  why = {
    "others are due sooner",
    "no pages",
    "the step must stay short",
    "another reads its prefix",
  },
}
local SOONER, NO_PAGES, SHORT, PREFIX = 1, 2, 3, 4
-- Prompt tokens a step, whatever was promised: prompts must not starve.
local LEAST = 32

-- Prompt tokens that still let everyone who was promised a rate have it, by
-- what recent steps took.
local function room(view, decoding, promised)
  local left = view.tokens_left
  if promised == 0 or view.prefill.us_tok == 0 then return left end
  local us = promised * 1e6 - view.decode.us_base
    - view.decode.us_row * decoding - view.prefill.us_base
  return math.min(left, math.max(LEAST, us / view.prefill.us_tok))
end

-- Half-read prompts hold the pages that all wait for: the last of them gives
-- its own back.
local function give_way(view)
  local n = 0
  for _ in view:running() do n = n + 1 end
  for _, row in view:running("youngest") do
    if n > 1 and row.p_own > 0 then
      view:preempt(row, "drop")
      return
    end
  end
end

function P.plan(view, plan)
  local decoding, started, promised = 0, 0, 0
  for _, row in view:running("due") do
    started = started + 1
    if plan:decode(row) then
      decoding = decoding + 1
      if row.slo_token > 0 and (promised == 0 or row.slo_token < promised) then
        promised = row.slo_token
      end
    end
  end
  local running, stuck = decoding, false
  for _, row in view:paused("due") do -- not into the pages that others wait for
    local fits = started == 0 or row.p_step <= view.kv_free - view.p_reserve
    stuck = stuck or not fits or not plan:resume(row)
    if not stuck then running, started = running + 1, started + 1 end
  end
  local left, held = room(view, decoding, promised), nil
  for _, row in view:waiting(nil, "due") do
    local pages =
      math.ceil((row.n_hit + row.n_left) / view.p_tokens) - row.p_shared
    local fits = row.t_start > 0 or running == 0
      or (not stuck and pages <= view.kv_free - view.p_reserve)
    -- soon: another reads its prefix, or a part of it
    local soon = running > 0 and row.n_hit_soon > row.n_hit
    local n = not held and not soon and fits and left >= 1
      and plan:prefill(row, left) or 0
    left = left - n
    if n > 0 then
      running = running + 1
    else
      held = held
        or not soon and (not fits and NO_PAGES or left < 1 and SHORT or SOONER)
      if running > 0 then plan:hold(row, held or PREFIX) end
    end
  end
  if running == 0 then give_way(view) end
end

function P.tests(t)
  local function view(more)
    more.rows = more.rows or {
      { n_prompt = 200 },
      { n_prompt = 200, due_first = 101 },
      { n_prompt = 200, due_first = 100.5 },
    }
    return t.view(more)
  end

  t.it("reads the prompt that is due soonest", function()
    local p = t.plan(view { tok_cap = 250 })
    t.expect({ p[3].n, p[2].n, p[1].what }):is { 200, 50, "hold" }
  end)
  t.it("keeps steps short for who was promised a rate", function()
    local cost = {
      rows = { { state = "decode", slo_token = 0.05 }, { n_prompt = 400 } },
    }
    local v = view(cost)
    v.decode = { us_base = 9000, us_row = 1000 }
    v.prefill = { us_tok = 400 }
    t.expect(t.plan(v)[2].n):is(100)
    v.rows[1].slo_token = 0
    t.expect(t.plan(v)[2].n):is(255)
  end)
  t.it("gets through any view", function()
    t.random(20, function(rnd) t.plan(t.random_view(rnd)) end)
  end)
end

return P
