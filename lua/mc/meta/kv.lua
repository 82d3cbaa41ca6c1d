---@meta mc.context
-- Contexts that are kept: whole pages of 64 tokens of what a sequence has run,
-- held until they are dropped or their request, task or session ends; at most a
-- quarter of the pool.

---@class mc.Context of seq:snapshot and mc.kv.load

--- A context out of a file of --kv-dir (w), checked before it is believed: the
--- same model, --kv and --ranks wrote it. opts: {model, salt}.
---@param name string
---@param opts table?
---@return mc.Context? context
---@return mc.Error? err
function mc.kv.load(name, opts) end

--- The context of a sequence's tokens so far, as far as it is in whole pages
--- that are done. opts: {salt, tenant} where mc.submit had them.
---@param opts table?
---@return mc.Context? context
---@return mc.Error? err
function seq:snapshot(opts) end

--- How many tokens it holds.
---@return integer
function context:tokens() end

--- Bytes of KV that it holds, of all ranks.
---@return number
function context:bytes() end

--- Writes it to a file of --kv-dir (w).
---@param name string
---@return boolean? saved
---@return mc.Error? err
function context:save(name) end

--- Lets go of its pages; what others share stays.
function context:drop() end
