--- router_small.lua - short prompts go to the small model, others to the large.
--
--   mascon serve large=MODEL small=MODEL2 --policies mine
--
-- with this file in mine/ and in mine/init.lua
--   router = "router_small",
--   opts = { router_small = { small = "small", bytes = 400 } },
-- A client that names a model by its id gets that one.

local R = { api = 1, kind = "router" }
local small, bytes

function R.init(opts)
  small, bytes = opts.small or "small", opts.bytes or 400
end

-- Bytes of text that the model is to read; nil: no prompt of text.
local function size_of(body)
  if type(body.prompt) == "string" then return #body.prompt end
  if type(body.messages) ~= "table" then return nil end
  local n = 0
  for _, m in ipairs(body.messages) do
    if type(m) ~= "table" or type(m.content) ~= "string" then return nil end
    n = n + #m.content
  end
  return n
end

function R.route(req)
  if req.method ~= "POST" then return {} end
  local body = req:json()
  if type(body) ~= "table" then return {} end
  if body.model ~= nil and body.model ~= "default" then return {} end
  local n = size_of(body)
  return { model = n and n <= bytes and small or nil }
end

function R.tests(t)
  local function asked(body)
    return t.route { method = "POST", json = body }.model
  end
  t.it("sends short prompts to the small model", function()
    t.expect(asked { prompt = "2+2=" }):is(small)
    local hi = { { role = "user", content = "Hi" } }
    t.expect(asked { messages = hi }):is(small)
  end)
  t.it("leaves long prompts and named models where they are", function()
    t.expect(asked { prompt = ("x"):rep(bytes + 1) }):is(nil)
    t.expect(asked { prompt = "2+2=", model = "large" }):is(nil)
  end)
end

return R
