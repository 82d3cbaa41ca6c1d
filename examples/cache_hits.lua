--- cache_hits.lua - of the prefix cache keep what is of use.
--
-- A score is a time: a block goes when those that were used later, and more,
-- have come. What many prompts begin with has been used often, and stays.
-- To use it: copy it into your policy directory and say cache = "cache_hits" in
-- init.lua. opts = { cache_hits = { keep = { [3] = 3600 } } } there lets tenant
-- 3's blocks stay an hour longer.

local C = { api = 1, kind = "cache" }
local extra = {}

function C.init(opts) extra = opts.keep or {} end

function C.keep(blocks)
  for _, block in blocks:all() do
    block.score = block.t_used + 60 * math.min(block.hits, 10)
      - 0.01 * block.depth + (extra[block.tenant] or 0)
  end
end

function C.tests(t)
  t.it("keeps what was of use over what is newer, starts over ends", function()
    local used, new = { t_used = 5, hits = 2 }, { t_used = 9 }
    local s = t.keep { used, new, { t_used = 9, depth = 8 } }
    t.expect(s[1] > s[2] and s[2] > s[3]):is(true)
  end)
  t.it("lets use fade", function()
    local s = t.keep { { t_used = 5, hits = 900 }, { t_used = 700 } }
    t.expect(s[1] < s[2]):is(true)
  end)
  t.it("protects a tenant's", function()
    extra = { [3] = 3600 }
    local s = t.keep { { t_used = 5, tenant = 3 }, { t_used = 900 } }
    t.expect(s[1] > s[2]):is(true)
  end)
end

return C
