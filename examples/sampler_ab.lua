--- sampler_ab.lua - an experiment: some sequences are sampled another way.
--
-- Copy it into your policy directory; in init.lua:
--   sampler = "sampler_ab",
--   opts = { sampler_ab = {
--     share = 0.1,
--     b = { temperature = 0.5, min_p = 0.1 },
--   } },
-- Which arm a sequence is in (a, or b for that share of them) comes from its
-- seed: a repeated request is in the same one. Both are counted: /metrics has
-- mascon_ab_sequences_total{arm} and, of the tokens that each arm took out of
-- the 16 likeliest, how likely they were: mascon_ab_token_p_sum over _count.

local S = { api = 1, kind = "sampler", state = { arm = 0 } }

local sequences = mc.metrics.counter("ab_sequences", "sequences in an arm",
  { "arm" })
local likely = mc.metrics.histogram("ab_token_p",
  "probability of the tokens taken", { "arm" },
  { 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99 })
local NAME = { [0] = "a", "b" }
local share, changes

function S.init(opts)
  share, changes = opts.share or 0.5, opts.b or { temperature = 0.5 }
end

-- Its own table, since want is the client's: b changes what it names.
local mixed = {}

function S.chain(seq, want)
  local arm = seq:random() < share and 1 or 0
  seq.state.arm = arm
  sequences:inc(1, NAME[arm])
  local from = arm == 1 and changes or want
  mixed.temperature = from.temperature or want.temperature
  mixed.top_p, mixed.top_k = from.top_p or want.top_p, from.top_k or want.top_k
  mixed.min_p = from.min_p or want.min_p
  mixed.keep = 16
  return mixed
end

function S.pick(cands, seq)
  local id = cands:draw()
  for i = 1, cands.n do
    if cands:id(i) == id then
      likely:observe(cands:p(i), NAME[seq.state.arm])
      break
    end
  end
  return id
end

function S.tests(t)
  t.it("puts each seed into one arm, and about its share into b", function()
    local n = 0
    for seed = 1, 200 do
      local asked = { seed = seed, want = { temperature = 7 } }
      local one = t.chain(asked).temperature
      local two = t.chain(asked).temperature
      t.expect(one):is(two)
      n = n + (one == 7 and 0 or 1)
    end
    t.expect(n > 200 * share - 50 and n < 200 * share + 50):is(true)
  end)
end

return S
