--- sampler_no_e.lua - never the letter e; a full stop past 60 tokens.
--
-- Past the 60th token, one that ends a sentence is taken as soon as it is among
-- the candidates. Copy this into your policy directory and say
-- sampler = "sampler_no_e" in init.lua.

local S = { api = 1, kind = "sampler", state = { ended = 0 } }
local with_e, stop

function S.init()
  with_e, stop = mc.vocab.set("[eE]"), mc.vocab.set("%.$")
end

function S.chain(seq, want) -- applied on the device, in a fixed order
  return {
    ban = with_e,
    temperature = want.temperature,
    min_p = 0.05,
    keep = 32,
  }
end

function S.pick(c, seq) -- c.n <= 32, sorted, 1-based
  for i = 1, seq.done > 60 and c.n or 0 do
    if stop:has(c:id(i)) then
      seq.state.ended = 1
      return c:id(i)
    end
  end
  return c:draw() -- the sequence's own seeded draw
end

function S.tests(t)
  t.it("ends a sentence past 60 tokens, when a stop is offered", function()
    local list = {}
    for id = 0, 63 do list[#list + 1] = { id = id } end
    list.drawn = 5
    t.expect(t.pick(list, { done = 10 })):is(5)
    local id = t.pick(list, { done = 61 })
    t.expect(id == 5 or stop:has(id)):is(true)
  end)
end

return S
