-- steer.lua: a mood as a vector, read from two prompts, added while decoding.
--
--   mascon serve MODEL, then in another terminal
--   mascon attach examples/steer.lua
--
-- The layer is one in the middle of the model; scales are in units of the
-- mood's own length, so that they mean the same for any model.
local LAYER = math.floor(mc.engine.model().n_layer / 2)

-- What the layer leaves at the last token: a tensor of the model's hidden size.
local function hidden(text)
  local s = assert(mc.submit {
    prompt = text,
    limit = 0,
    capture = { hidden = LAYER },
  })
  return assert(s:wait()).hidden[LAYER]:row(-1)
end

local mood = hidden("I feel wonderful today") - hidden("I feel awful today")
for _, scale in ipairs { 0, 2, -2 } do
  local s = assert(mc.submit {
    prompt = "My week was",
    limit = 24,
    temperature = 0,
    steer = { { layer = LAYER, add = mood, scale = scale } },
  })
  print(scale, assert(s:wait()).text)
end
mood:close()
