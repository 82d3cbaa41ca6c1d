--- sched_prefix.lua - prompts that share a prefix run together: one reads it for all.
--
-- Rows come in groups of one prefix; a row whose prefix another is reading now waits for it.
-- Then those that find most go first: they cost least, and use pages while they are there.

local P = { api = 1, kind = "scheduler", why = { "another reads its prefix" } }

function P.plan(view, plan)
  local n, reading, stuck = 0, {}, false
  for _, row in view:running() do
    plan:decode(row)
    n = n + 1
  end
  for _, row in view:paused() do
    if n > 0 and row.p_step > view.kv_free - view.p_reserve then break end
    if plan:resume(row) then n = n + 1 end
  end
  for least = 1, 0, -1 do -- those that find something, then those that find nothing
    for _, row in view:waiting(nil, "group") do
      local pages = math.ceil((row.n_hit + row.n_left) / view.p_tokens) - row.p_shared
      local fits = n == 0 or not stuck and pages <= view.kv_free - view.p_reserve
      if row.n_hit_soon > row.n_hit or row.n_hit == 0 and reading[row.group] then
        plan:hold(row, 1)
      elseif row.t_start > 0 or row.n_hit >= least and fits then
        local got = plan:prefill(row, row.n_left)
        n = n + (got > 0 and 1 or 0)
        if got > 0 and row.group > 0 and row.t_start == 0 then reading[row.group] = true end
      elseif row.n_hit >= least then
        stuck = true -- nobody overtakes who does not fit
      end
    end
  end
end

function P.tests(t)
  t.it("has one of a group read, and first who finds its prefix", function()
    local rows = { { n_prompt = 300, group = 5 }, { n_prompt = 300, group = 5 },
      { n_prompt = 300, group = 6, n_hit = 256 }, { n_prompt = 300, n_hit_soon = 128 } }
    local p = t.plan(t.view { rows = rows, tok_cap = 512 })
    t.expect({ p.order[2], p[3].n, p[1].n }):is { 3, 44, 300 }
    t.expect({ p[2].what, p[4].what }):is { "hold", "hold" }
  end)
  t.it("gets through any view", function()
    t.random(20, function(rnd) t.plan(t.random_view(rnd)) end)
  end)
end

return P
