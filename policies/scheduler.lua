--- scheduler.lua - first come, first served.
--
-- plan(view, plan) is called before every step of the model and says what runs
-- in it. Nothing is decided for good: the next step asks again, some 10 ms
-- later. A plan can't do harm: what is granted is checked against free pages
-- and the step's size, and when this file fails the server does the same in C.
--
-- opts: chunk, the most prompt tokens that one sequence reads in a step.
-- Smaller chunks keep the others' tokens coming more evenly, bigger ones read
-- prompts faster.

local P = {
  api = 1,
  kind = "scheduler",
  why = { "no pages", "the step is full", "another reads its prefix" },
}
local NO_PAGES, FULL, PREFIX = 1, 2, 3

local chunk

function P.init(opts)
  chunk = opts.chunk or 1e9
  assert(type(chunk) == "number" and chunk >= 1,
    "opts.chunk must be a number from 1")
end

function P.plan(view, plan)
  local started, stuck = 0, false

  -- One token for everyone who is generating.
  for _, row in view:running() do
    plan:decode(row)
    started = started + 1
  end

  -- Who was preempted comes back before anyone new starts, in order of arrival;
  -- not into the pages that others wait for, or it would soon be preempted
  -- again.
  for _, row in view:paused() do
    local fits = started == 0 or row.p_step <= view.kv_free - view.p_reserve
    stuck = stuck or not fits or not plan:resume(row)
    if not stuck then started = started + 1 end
  end

  -- Then prompts, in order of arrival. Who has its prefix read by another waits
  -- for that: its pages are shared then. A sequence starts only when its whole
  -- prompt fits, or two half-read prompts could wait for each other's pages for
  -- ever; should that come to be all the same, evict is called. One that has
  -- begun waits for nobody that has not.
  local held
  local reading = {} -- groups of those that start here
  for _, row in view:waiting() do
    local starts, why = row.t_start == 0, nil
    if starts then
      local pages =
        math.ceil((row.n_hit + row.n_left) / view.p_tokens) - row.p_shared
      if held or started == 0 then
        why = held
      elseif row.n_hit_soon > row.n_hit
        or row.n_hit == 0 and reading[row.group] then
        why = PREFIX
      elseif stuck or pages > view.kv_free - view.p_reserve then
        why = NO_PAGES
      end
    end
    if not why and plan:prefill(row, chunk) == 0 then
      why = view.tokens_left > 0 and view.rows_left > 0 and NO_PAGES or FULL
    end
    if why then
      plan:hold(row, why)
      if starts and why ~= PREFIX then held = why end
    else
      started = started + (starts and 1 or 0)
      if starts and row.group > 0 then reading[row.group] = true end
    end
  end
end

--- Pages are short: the youngest give theirs back, by whichever way back is
-- cheaper. The oldest stays, so that something always ends.
function P.evict(view, need)
  local oldest
  for _, row in view:running("arrival") do oldest = oldest or row end
  for _, row in view:running("youngest") do
    if need <= 0 then return end
    if row ~= oldest and row.p_own > 0 then
      local way = row.us_swap < row.us_redo and "swap" or "drop"
      local now, soon = view:preempt(row, way)
      need = need - now - soon
    end
  end
end

--- `mascon policy test scheduler.lua` runs these; so does every reload. t.view
-- fills in what it is not told; t.plan answers with what was planned for each
-- row: {what, n, why}.
function P.tests(t)
  local function rows(n, row, list)
    list = list or {}
    for _ = 1, n do list[#list + 1] = row end
    return list
  end
  local decode = { state = "decode" }
  local waits = { state = "waiting", n_prompt = 100 }

  t.it("gives all who generate a token before a prompt is read", function()
    local list = rows(3, waits, rows(5, decode))
    local p = t.plan(t.view { rows = list, tok_cap = 6 })
    for i = 1, 5 do t.expect(p[i].what):is("run") end
    t.expect(p[6].n):is(math.min(1, chunk))
    t.expect(p[7]):is { what = "hold", why = FULL }
  end)
  t.it("starts nobody before one who came earlier and does not fit", function()
    local big = { state = "waiting", n_prompt = 1000 }
    local list = rows(2, waits, rows(1, big, rows(1, decode)))
    local p = t.plan(t.view { rows = list, pages = 5 })
    t.expect(p[2]):is { what = "hold", why = NO_PAGES }
    t.expect(p[3].what):is("hold")
  end)
  t.it("has one row read a prefix that others wait for", function()
    local same = { state = "waiting", n_prompt = 100, group = 7 }
    local soon = { n_prompt = 200, n_hit_soon = 128 }
    local p = t.plan(t.view { rows = { same, same, waits, soon } })
    t.expect(p[1].what):is("run")
    t.expect(p[2]):is { what = "hold", why = PREFIX }
    t.expect(p[3].what):is("run")
    t.expect(p[4]):is { what = "hold", why = PREFIX }
  end)
  t.it("starts nobody while one who was preempted can't come back", function()
    local list = { decode, { state = "paused", n_prompt = 400 }, waits }
    local p = t.plan(t.view { rows = list, pages = 3 })
    t.expect(p[2]):is(nil)
    t.expect(p[3]):is { what = "hold", why = NO_PAGES }
  end)
  t.it("takes pages from the youngest and never from the oldest", function()
    local v = t.view { rows = rows(3, decode), pages = 0 }
    t.expect(t.evict(v, 1).order):is { 3 }
    t.expect(t.evict(v, 99).order):is { 3, 2 }
    t.expect(t.evict(v, 1)[3].what):is("drop")
  end)
  t.it("runs something whenever something can run", function()
    t.random(30, function(rnd)
      local v = t.random_view(rnd)
      local p, can = t.plan(v), false
      for _, r in ipairs(v.rows) do
        can = can or (r.state == "decode" and r.p_step <= v.pages)
      end
      if can then t.expect(p.n):between(1, #v.rows) end
    end)
  end)
end

return P
