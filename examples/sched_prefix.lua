--- sched_prefix.lua - of prompts that share a prefix, one reads it for all.
--
-- Rows come in groups of one prefix; a row whose prefix another is reading now
-- waits for it. Then those that find most of theirs in the cache go first: they
-- cost least, and use pages while they are there.

local P = { api = 1, kind = "scheduler", why = { "another reads its prefix" } }

function P.plan(view, plan)
  local n, reading, stuck = 0, {}, false
  for _, r in view:running() do
    plan:decode(r)
    n = n + 1
  end
  for _, r in view:paused() do
    if n > 0 and r.p_step > view.kv_free - view.p_reserve then break end
    if plan:resume(r) then n = n + 1 end
  end
  for least = 1, 0, -1 do -- those that find something, then the others
    for _, r in view:waiting(nil, "group") do
      local pages = math.ceil((r.n_hit + r.n_left) / view.p_tokens) - r.p_shared
      local fits = n == 0
        or not stuck and pages <= view.kv_free - view.p_reserve
      if r.n_hit_soon > r.n_hit
        or r.n_hit == 0 and reading[r.group] then
        plan:hold(r, 1)
      elseif r.t_start > 0 or r.n_hit >= least and fits then
        local got = plan:prefill(r, r.n_left)
        n = n + (got > 0 and 1 or 0)
        local first = got > 0 and r.group > 0 and r.t_start == 0
        if first then reading[r.group] = true end
      elseif r.n_hit >= least then
        stuck = true -- nobody overtakes who does not fit
      end
    end
  end
end

function P.tests(t)
  t.it("has one of a group read, and first who finds its prefix", function()
    local rows = {
      { n_prompt = 300, group = 5 },
      { n_prompt = 300, group = 5 },
      { n_prompt = 300, group = 6, n_hit = 256 },
      { n_prompt = 300, n_hit_soon = 128 },
    }
    local p = t.plan(t.view { rows = rows, tok_cap = 512 })
    t.expect({ p.order[2], p[3].n, p[1].n }):is { 3, 44, 300 }
    t.expect({ p[2].what, p[4].what }):is { "hold", "hold" }
  end)
  t.it("gets through any view", function()
    t.random(20, function(rnd) t.plan(t.random_view(rnd)) end)
  end)
end

return P
