---@meta mc.step
-- What the hooks of schedulers and samplers see. They never wait; handles are
-- good until the hook returns.

--- What a scheduler's file returns:
---
--- ```lua
--- local P = { api = 1, kind = "scheduler", why = { "not its turn" } }
---
--- function P.plan(view, plan)
---   for _, row in view:running() do plan:decode(row) end
---   for _, row in view:paused() do plan:resume(row) end
---   for _, row in view:waiting(nil, "shortest") do
---     if plan:prefill(row, 512) == 0 then plan:hold(row, 1) end
---   end
--- end
---
--- return P
--- ```
---@class mc.Scheduler
---@field api integer 1
---@field kind string "scheduler"
--- before every step: what runs in it
---@field plan fun(view: mc.View, plan: mc.Plan)
--- before plan, when running rows need pages that are not there: view:preempt
--- some
---@field evict fun(view: mc.View, need: integer)?
--- true to take a request in; nil, code ("overloaded") to refuse it
---@field admit fun(row: mc.Row): boolean?, string?
---@field init fun(opts: table)? with opts of init.lua for this file
---@field tests fun(t: mc.Test)?
--- numbers that outlive reloads, by name: view.state.turn
---@field state table<string, number>?
---@field why string[]? texts for plan:hold and `mascon why`

--- What a sampler's file returns:
---
--- ```lua
--- local S = { api = 1, kind = "sampler", state = { ended = 0 } }
--- local stops
---
--- function S.init() stops = mc.vocab.set("%.$") end
---
--- function S.chain(seq, want)
---   return { temperature = want.temperature, min_p = 0.05, keep = 8 }
--- end
---
--- function S.pick(cands, seq) -- past 60 tokens, take a full stop if offered
---   for i = 1, seq.done > 60 and cands.n or 0 do
---     if stops:has(cands:id(i)) then
---       seq.state.ended = 1
---       return cands:id(i)
---     end
---   end
---   return cands:draw()
--- end
---
--- return S
--- ```
---@class mc.Sampler
---@field api integer 1
---@field kind string "sampler"
--- once a sequence: what to sample with
---@field chain fun(seq: mc.PickSeq, want: mc.Want): mc.Want|table
--- once a token: an id, or nil for the device's own
---@field pick fun(cands: mc.Cands, seq: mc.PickSeq): integer?
---@field init fun(opts: table)?
---@field tests fun(t: mc.Test)?
---@field state table<string, number>? numbers of each sequence: seq.state.turn

--- What a cache policy's file returns:
---
--- ```lua
--- local C = { api = 1, kind = "cache" }
---
--- function C.keep(blocks) -- a minute longer for each time that it was of use
---   for _, block in blocks:all() do
---     block.score = block.t_used + 60 * block.hits
---   end
--- end
---
--- return C
--- ```
---@class mc.CachePolicy
---@field api integer 1
---@field kind string "cache"
--- when pages are short: scores the blocks cached since; the lowest go first
---@field keep fun(blocks: mc.Blocks)
---@field init fun(opts: table)?
---@field tests fun(t: mc.Test)?

--- at most 256 pages of prefixes that nobody holds; each is shown once for
--- every time that it became cached
---@class mc.Blocks
---@field n integer
local Blocks = {}

--- All blocks, the least recently used of them first.
---@return fun(), any, integer
function Blocks:all() end

---@class mc.Block
---@field tenant integer
---@field depth integer pages of its prefix before it
---@field hits integer times that it was reused
---@field t_used number when it was last given back, in seconds
--- to be set, and not to NaN; at first t_used, which makes the least recently
--- used go
---@field score number

---@class mc.View a step that is about to be planned
---@field now number seconds, on the clock of the rows' times
---@field step number how many steps were run
--- that this step may still run; falls as the plan grants
---@field tokens_left integer
---@field rows_left integer
---@field kv_free integer pages free or evictable; falls as the plan grants
---@field kv_total integer
---@field p_tokens integer tokens a page
---@field p_pending integer pages that come back when work in flight ends
---@field p_host_free integer pages that host memory has room for
--- bytes that move there or back in a microsecond, as measured
---@field swap_bytes_us number
--- pages that running rows will take for their next page of tokens: what a
--- start should leave
---@field p_reserve integer
---@field tok_cap integer tokens a step
---@field row_cap integer rows a step
---@field n_row integer rows shown
---@field n_wait_all integer of which wait for their first step
---@field fly_rows integer rows of the step that runs now
---@field fly_tokens integer
---@field fly_us number microseconds that it will go on for
---@field dev_us number what the last step took on the device
---@field host_us number what planning and publishing took
---@field decode mc.Cost of a step of decode rows
---@field prefill mc.Cost what prompt rows add to it
---@field state table the policy's declared numbers
local View = {}

--- Rows that generate or read their prompt. order: "arrival" (default), "due",
--- "priority", "shortest", "youngest", "vtime", "group".
---@param order string?
---@return fun(), any, integer
function View:running(order) end

--- Rows of a lane (nil: all) that want prompt tokens, begun or not.
---@param lane integer|mc.Lane|nil
---@param order string?
function View:waiting(lane, order) end

--- Rows that were preempted.
---@param order string?
function View:paused(order) end

--- Lanes.
---@return fun(), any, integer
function View:lanes() end

--- Tenants.
---@return fun(), any, integer
function View:tenants() end

--- The row of a lane that has waited longest for prompt tokens, or nil.
---@param lane integer|mc.Lane
---@return mc.Row?
function View:head(lane) end

--- Takes a running row's pages: pages free now, and soon. "drop" has them
--- computed again, "swap" keeps them in host memory.
---@param row mc.Row
---@param how "swap"|"drop"
---@return integer now
---@return integer soon
function View:preempt(row, how) end

--- microseconds, least squares over the last 256 steps; all 0 until there were
--- enough
---@class mc.Cost
---@field us_base number a step with such rows
---@field us_row number each row (of a decode row, with its token)
---@field us_tok number each prompt token; 0 in decode
---@field us_ktok_kv number each 1,000 tokens of context that tokens attend to
---@field rel_err number mean error over mean, of both together

---@class mc.Row a sequence, as of this hook call
---@field seq integer
---@field gen integer
--- 1 waiting, 2 reads its prompt, 3 generates, 4 was preempted
---@field state integer
---@field lane integer
---@field tenant integer
---@field priority integer
--- rows of equal group share at least their first page; 0: with none
---@field group integer
---@field n_preempt integer
---@field t_arrive number
---@field t_start number 0: not yet
---@field t_first number first token
---@field t_last number last token
---@field due_first number when the first token is wanted; 0: whenever
---@field due_end number its deadline; 0: none
---@field slo_token number seconds a token wanted; 0: any
---@field n_guess number tokens to come at most
---@field n_prompt integer
---@field n_gen integer
---@field n_max integer
---@field n_ctx integer tokens with KV
---@field n_ahead integer tokens in flight
---@field n_left integer prompt tokens still to run
---@field n_hit integer of them reusable now, not counted in n_left
--- reusable once the rows that read the same prefix now have read it
---@field n_hit_soon integer
---@field p_shared integer pages of n_hit that others hold: they cost nothing
---@field p_held integer pages
---@field p_own integer pages that a preemption frees
---@field p_host integer pages in host memory
---@field p_step integer pages that its next step takes
--- microseconds to move to host memory and back, as measured
---@field us_swap number
--- microseconds to compute again; both 0 until there were enough steps
---@field us_redo number
--- four numbers of the policy's own, kept as long as the row
---@field user number[]

---@class mc.Lane
---@field id integer
---@field weight number
---@field ready integer rows that want prompt tokens; falls as the plan grants
---@field running integer
---@field served number tokens, decayed over 60 s; rises as the plan grants
---@field vtime number tokens ever, over weight
---@field tok_in number
---@field tok_out number
---@field p_held integer
---@field user number[] two numbers of the policy's own

---@class mc.Tenant of the rows whose tenant is its id
---@field id integer
---@field weight number
---@field ready integer rows that want prompt tokens; falls as the plan grants
---@field running integer
---@field served number tokens, decayed over 60 s; rises as the plan grants
---@field vtime number tokens ever, over weight
---@field tok_in number
---@field tok_out number
---@field p_held integer
---@field user number[] two numbers of the policy's own

---@class mc.Plan what runs in this step; grants from free pages only
local Plan = {}

--- The row makes its next token, and checks up to draft guessed ones.
---@param row mc.Row
---@param draft integer?
---@param why integer?
---@return boolean granted
function Plan:decode(row, draft, why) end

--- The row reads up to n more tokens of its prompt; how many it got.
---@param row mc.Row
---@param n number
---@param why integer?
---@return integer granted
function Plan:prefill(row, n, why) end

--- A paused row comes back.
---@param row mc.Row
---@return boolean granted
function Plan:resume(row) end

--- Notes that the row does not run, and why: an index into the policy's why
--- texts.
---@param row mc.Row
---@param why integer?
---@return boolean
function Plan:hold(row, why) end

--- Ends the request with an error.
---@param row mc.Row
---@param code string
---@return boolean
function Plan:reject(row, code) end

---@class mc.PickSeq
---@field id integer
---@field done integer tokens generated
---@field n_prompt integer
---@field want mc.Want
---@field state table declared numbers
local PickSeq = {}

--- Whether the text generated so far ends with s.
---@param s string
---@return boolean
function PickSeq:ends_with(s) end

--- The next number in [0, 1) of the sequence's own seed.
---@return number
function PickSeq:random() end

---@class mc.Want
---@field temperature number
---@field top_p number
---@field top_k integer
---@field min_p number
---@field repetition_penalty number
---@field presence_penalty number
---@field frequency_penalty number
---@field min_tokens integer
---@field keep integer candidates for pick
---@field ban any a set of mc.vocab.set, or two

---@class mc.Cands the likeliest tokens, first the most likely
---@field n integer
---@field rest number the mass that is not shown
---@field lse number
local Cands = {}

---@param i integer from 1
---@return integer
function Cands:id(i) end

---@param i integer
---@return number
function Cands:p(i) end

---@param i integer
---@return number
function Cands:logit(i) end

---@param i integer
---@return string
function Cands:text(i) end

--- The token that the device drew.
---@return integer
function Cands:draw() end

--- string the id of the model whose steps these are; "" when files are only
--- tried
---@class mc.model

--- The tokens whose text matches a Lua pattern, as a set: set:has(id). While a
--- file loads.
---@param pattern string
function mc.vocab.set(pattern) end
