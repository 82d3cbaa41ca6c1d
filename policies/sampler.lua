--- sampler.lua - sample as the client asked.
--
-- chain(seq, want) is called once a sequence; what it returns is applied on the
-- device in a fixed order: penalties, temperature, top_k, top_p, min_p. Return
-- a table to change some:
--
--   return { temperature = math.min(want.temperature, 1), ban = some_set }
--
-- A file that also has pick(cands, seq) is asked for each token, out of the
-- `keep` likeliest (at most 64): see examples/sampler_no_e.lua.

local S = { api = 1, kind = "sampler" }

function S.chain(seq, want)
  return want
end

function S.tests(t)
  t.it("changes nothing that was asked for", function()
    local want = { temperature = 0.25, top_k = 40, min_tokens = 3 }
    local got = t.chain { want = want }
    t.expect({ got.temperature, got.top_k, got.min_tokens, got.top_p })
      :is { 0.25, 40, 3, 1 }
  end)
end

return S
