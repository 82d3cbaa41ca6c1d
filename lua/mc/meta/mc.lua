---@meta mc
-- The API of edge and REPL VMs: what editors show, what help() prints, what
-- this program's scripts may call. (w): it waits, so it works where a coroutine
-- can yield. Every function returns a value, or nil and an mc.Error; misuse
-- raises.

---@class mc.Error
---@field code string "invalid_value", "overloaded", ...
---@field status integer HTTP status
---@field message string
---@field param string? the field at fault
---@field retry_after number? seconds

---@class mc.Request what a handler is given
---@field method string
---@field path string
--- of a path like "GET /v1/x/{id}" or "{rest*}"
---@field params table<string, string>
---@field query table<string, string>
---@field headers table<string, string> names in lower case
---@field tenant string of the API key, or ""
---@field model string? the router's choice
---@field data table? the body, when its route has a schema
---@field id string x-request-id
---@field ip string the client's address, past the --trusted-proxies

--- a route's table: ["POST /v1/x/{id}"] = { handler = fn, rate = { 5, 20 } }
---@class mc.Route
---@field handler function? function(req, res)
--- instead of a handler: shows this folder of the policy directory
---@field files string?
---@field auth boolean? false: no API key is asked for
---@field tenants string[]? only these tenants' keys
---@field rate number[]? { requests a second of one caller, how many at once }
---@field concurrency integer? how many of it run at once; more get 429
---@field body_max integer? bytes
---@field timeout number? seconds
--- what the body must look like; the handler finds it in req.data
---@field schema table?

---@class mc.Submit
---@field model string? of several; else the router's choice, else the first
---@field prompt string? text, or a list of token ids
--- a conversation, rendered by the model's chat template
---@field messages table[]?
---@field ids userdata? a prompt as mc.chat.render made it
--- tokens to generate at most; 0: only the prompt is run; -1: as room allows
---@field limit integer?
---@field temperature number?
---@field top_p number?
---@field top_k integer?
---@field min_p number?
---@field repetition_penalty number?
---@field presence_penalty number?
---@field frequency_penalty number?
---@field min_tokens integer?
---@field seed integer?
---@field index integer? of several with one seed: each draws its own
---@field stop string|string[]|nil
---@field stop_token_ids integer[]?
---@field ignore_eos boolean?
---@field logit_bias table<string, number>?
---@field logprobs integer? top logprobs a token
--- the prompt's too, shown by res:stream; no prefix is reused
---@field prompt_logprobs boolean?
---@field lane integer?
---@field priority integer?
---@field deadline number? seconds from now until it is given up
---@field due_first number? seconds from now until the first token is wanted
---@field slo_token number? seconds a token wanted
---@field salt string? prefixes are shared among equal salts only
---@field keep_special boolean? control tokens show in the text
--- a context (seq:snapshot, mc.kv.load): prompt, if any, goes on behind it
---@field from userdata?
--- what seq:wait() shows of the model's inside; no prefix is reused
---@field capture mc.Capture?
--- vectors added while it runs, at most 8; it shares no KV with others
---@field steer mc.Steer[]?

--- rows are of positions: of the prompt, then of the tokens but the last
---@class mc.Capture
--- layers: 0 is the embeddings, i what the i-th layer leaves
---@field hidden integer|integer[]|nil
---@field norm boolean? what the last norm leaves: r.norm
--- the raw logits that each token was drawn from: r.logits, f32
---@field logits boolean?

---@class mc.Steer
---@field layer integer as mc.Capture counts them
---@field add mc.Tensor a row: of the model's hidden size
---@field scale number? 1

---@class mc.Seq
---@field id string
---@field model string
---@field state string "running", "ended"
---@field ids integer[] prompt, then the tokens taken

--- Starts a sequence (w). The prompt is prompt, messages or ids; see mc.Submit
--- for the rest.
---
--- ```lua
--- local s = assert(mc.submit { prompt = "The Moon is", limit = 16 })
--- print(s:wait().text)
--- ```
---@param opts mc.Submit
---@return mc.Seq? seq
---@return mc.Error? err
function mc.submit(opts) end

--- The next token {id, text, logprob, hidden} (w), hidden the captured rows
--- that it came from; nil at the end; nil, err when it failed.
function seq:next() end

--- for t in seq:tokens() do ... end (w)
---
--- ```lua
--- local s = assert(mc.submit { prompt = "Once", limit = 8 })
--- for t in s:tokens() do io.write(t.text) end
--- ```
function seq:tokens() end

--- Runs to the end (w): {text, finish, n, mean_logprob, usage, hidden, norm,
--- logits}, or nil, err; hidden[layer], norm and logits are tensors, where
--- capture asked for them.
function seq:wait() end

--- A sequence that goes on from this one's prompt and tokens; they share KV
--- pages.
---
--- ```lua
--- local root = assert(mc.submit { prompt = "Once upon a time", limit = 0 })
--- root:wait()
--- for seed = 1, 2 do
---   local s = root:fork { seed = seed, limit = 8, temperature = 1 }
---   print(s:wait().text)
--- end
--- ```
---@param opts mc.Submit
---@return mc.Seq? seq
---@return mc.Error? err
function seq:fork(opts) end

--- A sequence that goes on from this one's prompt and tokens with a text behind
--- them (w); what is there already is not run again.
---@param text string
---@param opts mc.Submit?
---@return mc.Seq? seq
---@return mc.Error? err
function seq:append(text, opts) end

--- {prompt, gen, cached, first_ms, per_token_ms}
function seq:usage() end

--- Ends it; whoever waits for it gets the error "cancelled".
function seq:cancel(why) end

--- It goes on when the request or session that made it has ended.
function seq:detach() end

--- Live sequences: {id, request, model, state, lane, tenant, n_prompt, n_gen,
--- age}. filter: {model, state, tenant, older}.
---
--- ```lua
--- for _, row in ipairs(mc.seqs { older = 60 }) do
---   mc.cancel(row.id, "older than a minute")
--- end
--- ```
---@param filter table?
---@return table[]? rows
---@return mc.Error? err
function mc.seqs(filter) end

--- The row of mc.seqs with this id.
---@param id string
function mc.seq(id) end

--- Ends a sequence by its id, or all of a request by the request's.
---@param id string
---@param why string?
function mc.cancel(id, why) end

--- What a sequence or a request went through: a list of lives {id, request,
--- end, events}, each event {t, what, generation, skipped, why}: skipped counts
--- the steps until the next event in which it could have run and did not, why
--- the reasons. The last that ended are known too.
---@param id string
---@return table[]? lives
---@return mc.Error? err
function mc.why(id) end

--- What `mascon top` shows: counters, pages, lanes of a model (the first),
--- sequences. REPL only.
---@param model string?
function mc.top(model) end

--- State, model, load: what `mascon status` shows. Of several models: of all,
--- with a row for each in models; or of the one that is named.
---@param model string?
function mc.engine.status(model) end

--- Counters since the start, of one model or of all together.
---@param model string?
function mc.engine.stats(model) end

--- What is served: {id, created, max_context, family, n_layer, hidden,
--- max_tokens_default}.
function mc.engine.models() end

--- The row of mc.engine.models that a name means: nil is the router's choice,
--- else the first, as "default" is.
---@param name string?
---@return table? row
---@return mc.Error? err
function mc.engine.model(name) end

--- Finishes open requests, then ends the server. REPL only.
---@param seconds number?
function mc.engine.drain(seconds) end

--- Changes live settings: {drain = 5}. REPL only.
---@param settings table
function mc.engine.set(settings) end

--- KV pages of a model, else of the first: {model, total, free, held, cached,
--- pending, page_tokens, host_total, host_free}; the last two of host memory,
--- where preempted sequences wait.
---@param model string?
function mc.kv.stats(model) end

---@class mc.Kv pages that stay: a table with id, n_tokens, n_bytes, model
local kv = {}

--- Tokens of the prompt that are kept: whole pages.
---@return integer
function kv:tokens() end

--- Bytes of their pages, of all ranks.
---@return number
function kv:bytes() end

--- Lets them go: they may be evicted again.
function kv:drop() end

--- Reads a prompt unless that was done, and keeps its whole pages: {prompt =,
--- ttl = seconds (nil: until they are dropped), tenant =, model =}. At most
--- half of the pool is kept; a sequence that can't go on otherwise takes the
--- oldest. Waits.
---@param o table
---@return mc.Kv? kept
---@return mc.Error? err
function mc.kv.pin(o) end

--- Lets go what has this id.
---@param id integer
---@param model string?
function mc.kv.unpin(id, model) end

--- What is kept: rows {id, model, tenant, tokens, pages, bytes, seconds}.
function mc.kv.pins() end

--- Tokens of a prompt, in whole pages, that a request would find now.
---@param prompt string
---@param tenant integer?
---@param model string?
---@return integer? n
---@return mc.Error? err
function mc.kv.cached(prompt, tenant, model) end

--- A KV page's bytes in hexadecimal, of one layer (0), or of an index's keys
--- ("index0"): {page, state, tag, layout, rank, layers, indexes, bytes}. REPL
--- only.
---@param page integer
---@param layer integer|string|nil
---@param rank integer?
---@param model string?
function mc.kv.dump(page, layer, rank, model) end

--- What runs: directory, generations, files. REPL only.
function mc.policy.list() end

--- Tries files as a reload would, without running them: {hooks, files, views,
--- plan_us, plan_us_worst, starved}, or nil, err with file, line and reason.
--- path: a directory, a file, or a name in the policy directory; nil: the
--- directory. REPL only.
---@param path string?
---@return table? tried
---@return mc.Error? err
function mc.policy.check(path) end

--- What differs between two generations, as `diff -u` shows it: "live", "kept",
--- "disk" or a number. Without arguments: what a reload would change. REPL
--- only.
---@param from string|integer|nil
---@param to string|integer|nil
---@return string? text
---@return mc.Error? err
function mc.policy.diff(from, to) end

--- Lets a candidate plan beside the live scheduler, on real views, never
--- applied: begins with a path as check takes it, ends with "off", tells what
--- it did without: {views, differ, rows_only_live, rows_only_shadow,
--- rows_other, plan_us, plan_us_worst, error}. REPL only.
---@param path string?
---@return table? report
---@return mc.Error? err
function mc.policy.shadow(path) end

--- Reads the policy directory again: live at the next step. REPL only.
function mc.policy.reload() end

--- Goes back to the generation before. REPL only.
function mc.policy.rollback() end

--- Token ids of text (w). opts: {bos = true, special = true, model}.
---@param text string
---@param opts table?
---@return integer[]? ids
---@return mc.Error? err
function mc.vocab.encode(text, opts) end

--- Text of token ids; special: control tokens too.
---@param ids integer[]
---@param special boolean?
---@param model string?
---@return string? text
---@return mc.Error? err
function mc.vocab.decode(ids, special, model) end

--- The list of a prompt that mc.chat.render made.
---@param ids userdata
---@return integer[]
function mc.vocab.table(ids) end

--- Messages as a prompt for mc.submit{ids =} (w). opts: {add_generation_prompt,
--- kwargs, tools, model}.
---@param messages table[]
---@param opts table?
---@return userdata? ids
---@return mc.Error? err
function mc.chat.render(messages, opts) end

--- Messages as the template's text: a list of {text, from_user}.
---@param messages table[]
---@param opts table?
function mc.chat.pieces(messages, opts) end

--- A value out of JSON: objects keep their order, null is mc.json.null.
---@param text string
---@return any value
---@return mc.Error? err
function mc.json.decode(text) end

---@param value any
---@return string? text
---@return mc.Error? err
function mc.json.encode(value) end

--- Marks a table as a list, so that an empty one is [].
---@param t table?
function mc.json.array(t) end

--- An empty object that keeps the order in which its fields are set.
function mc.json.map() end

--- The keys of an object, in order.
---@param t table
function mc.json.keys(t) end

--- What a table out of JSON is: "object", "array", "null", or "number" (one
--- that Lua can't keep as it was written: {value, text}).
---@param t table
---@return string
function mc.json.kind(t) end

---@param text string
function mc.msgpack.decode(text) end

---@param value any
function mc.msgpack.encode(value) end

--- A value that all requests share, or nil.
---@param key string
function mc.shared.get(key) end

--- Text up to 64 KiB or a number; nil removes. ttl: seconds.
---@param key string
---@param value string|number|nil
---@param ttl number?
function mc.shared.set(key, value, ttl) end

--- Adds to a number; the sum. ttl counts from its first use.
---@param key string
---@param by number?
---@param ttl number?
function mc.shared.incr(key, by, ttl) end

--- Takes n out of a bucket that holds burst and fills at rate a second: true,
--- or nil, err with retry_after.
---
--- ```lua
--- return { api = 1, kind = "routes", ["GET /hello"] = function(req, res)
---   local bucket = "hello/" .. req.tenant
---   local ok, err = mc.shared.take(bucket, 1, 5, 10) -- 5 a second, 10 at once
---   if not ok then return res:fail(err) end -- 429 with retry-after
---   res:json { hello = req.query.name or "world" }
--- end }
--- ```
---@param key string
---@param n number
---@param rate number
---@param burst number
function mc.shared.take(key, n, rate, burst) end

--- Waits (w).
---@param seconds number
function mc.sleep(seconds) end

--- Runs fn(...) beside this; task:join() gives what it returns.
---
--- ```lua
--- local tasks = {}
--- for i = 1, 3 do
---   tasks[i] = mc.spawn(function()
---     mc.sleep(0.01)
---     return i * i
---   end)
--- end
--- for _, t in ipairs(tasks) do print(t:join()) end
--- ```
---@param fn function
function mc.spawn(fn, ...) end

--- What the task's function returned (w), or nil and its error.
function task:join() end

function task:cancel() end

--- Runs fn every so many seconds, of one process once, in a VM of its own; said
--- while a file loads (its top level or init). A run that fails is logged, and
--- the next comes.
---
--- ```lua
--- mc.every(60, function()
---   mc.log.info("still here", { waiting = mc.engine.status().waiting })
--- end)
--- return { api = 1, kind = "routes", ["GET /x"] = function(_, res)
---   res:json { ok = true }
--- end }
--- ```
---@param seconds number
---@param fn function
function mc.every(seconds, fn) end

--- Monotonic seconds.
function mc.now() end

--- Unix seconds.
function mc.time() end

--- every setting by its key, to read: mc.config.max_waiting; in hooks too
---@class mc.config

-- Metrics are declared at a file's top or in init, and counted anywhere, hooks
-- included.

--- A counter for /metrics: c:inc(1, "label's value").
---
--- ```lua
--- local asked =
---   mc.metrics.counter("asked_total", "requests to /count", { "who" })
--- return { api = 1, kind = "routes", ["GET /count"] = function(req, res)
---   asked:inc(1, req.tenant)
---   res:json { ok = true }
--- end }
--- ```
---@param name string
---@param help string
---@param labels string[]?
function mc.metrics.counter(name, help, labels) end

--- g:set(v, ...), g:inc(v, ...)
---@param name string
---@param help string
---@param labels string[]?
function mc.metrics.gauge(name, help, labels) end

--- h:observe(v, ...)
---@param name string
---@param help string
---@param labels string[]?
---@param bounds number[]?
function mc.metrics.histogram(name, help, labels, bounds) end

---@param message string
---@param fields table?
function mc.log.debug(message, fields) end

---@param message string
---@param fields table?
function mc.log.info(message, fields) end

---@param message string
---@param fields table?
function mc.log.warn(message, fields) end

---@param message string
---@param fields table?
function mc.log.error(message, fields) end

--- Sets a unit's level: "debug", "info", "warn", "error", "off". One argument
--- sets that of all units that have none of their own; without any it tells
--- them.
---@param unit string?
---@param level string?
function mc.log.level(unit, level) end

--- The body as JSON, checked: { prompt = "string", n = "integer? 1..16" }. When
--- it is wrong the client has its 400 and the handler ends here. It is read
--- once: a router may read and change it.
---
--- ```lua
--- return { api = 1, kind = "routes", ["POST /shout"] = function(req, res)
---   local b = req:json { prompt = "string", limit = "integer? 1..64" }
---   local s, err = mc.submit { prompt = b.prompt, limit = b.limit or 16 }
---   if not s then return res:fail(err) end
---   local r, why = s:wait()
---   if not r then return res:fail(why) end
---   res:json { text = r.text:upper(), usage = r.usage }
--- end }
--- ```
---@param schema table?
function req:json(schema) end

--- The body as bytes.
function req:body() end

--- Answers with a value as JSON.
---@param value any
---@param status integer?
function res:json(value, status) end

--- Answers with text.
---@param text string
---@param kind string?
---@param status integer?
function res:text(text, kind, status) end

--- Answers with an error: {code =, message =, param =, retry_after =}.
---@param err table
function res:fail(err) end

--- A header, before the answer.
---@param key string
---@param value string
function res:header(key, value) end

--- A file of a folder in the policy directory, as it is now; a client that has
--- it gets 304.
---@param folder string
---@param name string
function res:file(folder, name) end

--- A server-sent event (w), maybe with a name.
---
--- ```lua
--- return { api = 1, kind = "routes", ["GET /tick"] = function(req, res)
---   for i = 1, 3 do
---     res:event { tick = i }
---     mc.sleep(0.1)
---   end
--- end }
--- ```
---@param value any
---@param name string?
function res:event(value, name) end

--- Part of an answer that grows (w).
---@param text string
function res:write(text) end

--- Lets C stream sequences in a dialect: "chat", "completion", or {dialect =,
--- stream =, ...} (w).
---@param seqs mc.Seq|mc.Seq[]
---@param dialect string|table
function res:stream(seqs, dialect) end
