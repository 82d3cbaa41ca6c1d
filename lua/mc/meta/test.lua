---@meta mc.test
-- What tests(t) of a policy is given. `mascon policy test FILE` runs them all
-- and says how each went; a reload runs them too, and the first that fails
-- refuses the generation.

---@class mc.Test
--- a step as the engine would show it; what is not said is filled in.
--- Schedulers
---@field view fun(v: mc.TestView): mc.TestView
--- any mix of rows, lanes, pages and budgets; rnd(low, high) gives a number
---@field random_view fun(rnd: function): mc.TestView
--- `for i, view in t.recorded() do`: the shipped views, or those of --views
--- FILE
---@field recorded fun(): fun(), any, integer
---@field plan fun(view: mc.TestView): mc.TestPlan calls plan
---@field evict fun(view: mc.TestView, need: integer): mc.TestPlan calls evict
---@field admit fun(row: table): boolean, string? calls admit
--- calls chain; seq: {want = {temperature = 1}, done = 3, tail = {ids}}.
--- Samplers
---@field chain fun(seq: table?): table
--- calls pick; cands: {{id = 5, p = 0.5}, ..., drawn = 5}
---@field pick fun(cands: table, seq: table?): integer?
--- calls keep; blocks: {{hits = 2, depth = 0, tenant = 1, t_used = 10}, ...};
--- gives their scores. Cache
---@field keep fun(blocks: table[]): number[]
--- calls the router's route; req: {path =, headers =, query =, tenant =}
---@field route fun(req: table): table?, any
--- runs a handler; req: {json = {...}} or {body = "..."}; gives {status, value,
--- body, headers, events, err}
---@field call fun(key: string, req: table?): table

---@class mc.TestView
--- in order of arrival: {state = "waiting" | "prefill" | "decode" | "paused",
--- n_prompt =, lane =, ...}, any field of mc.Row
---@field rows table[]
---@field lanes table[]? {id =, weight =, served =}
---@field pages integer? free ones
---@field tok_cap integer? tokens that the step may run
---@field row_cap integer? rows that it may run
---@field decode table? {us_base =, us_row =, us_ktok_kv =}
---@field prefill table? {us_base =, us_tok =, us_ktok_kv =}

--- p[i] is what was planned for row i: {what = "run" | "hold" | "drop" | "swap"
--- | "resume" | "reject", n =, why =, code =}, or nil
---@class mc.TestPlan
---@field n integer rows named
---@field order integer[] their indices as they were planned
---@field tokens integer granted
---@field rows integer granted
---@field pages integer taken; less than 0: given back

---@class mc.Expect
---@field is fun(self: mc.Expect, want: any) equal, tables by their contents
---@field near fun(self: mc.Expect, want: number, eps: number?)
---@field between fun(self: mc.Expect, low: number, high: number)
---@field matches fun(self: mc.Expect, pattern: string)
--- a function that raises such an error
---@field fails fun(self: mc.Expect, pattern: string)

---@type mc.Test
local t = {}

--- A named test: t.it("runs the oldest first", function() ... end). Declared
--- state starts afresh in each.
---@param name string
---@param fn function
function t.it(name, fn) end

--- t.expect(x):is(y), :near(y, eps), :between(low, high), :matches(pattern),
--- :fails(pattern)
---@param got any
---@return mc.Expect
function t.expect(got) end

--- Calls fn(rnd, seed) n times, rnd(low, high) a generator of its own each
--- time; a failure says the seed.
---@param n integer
---@param fn fun(rnd: function, seed: integer)
function t.random(n, fn) end
