--- tenant_quota.lua - what each tenant may take: requests, tokens, a lane.
--
-- Copy it into your policy directory; in init.lua:
--   router = "tenant_quota",
--   opts = { tenant_quota = {
--     tenants = { acme = "paid" },
--     plans = { paid = { rate = 20, burst = 40, tokens = 100000, lane = 0 } },
--   } },
-- rate is requests a second, burst how many at once, tokens how many a minute.
-- Tenants are those of the API keys (mascon key new acme); who is not named has
-- plan "free". A request is charged when it comes, for its prompt and all that
-- it may make; who is over has a 429 that says when to come back.

local R = { api = 1, kind = "router" }

local FREE = { rate = 1, burst = 5, tokens = 10000, lane = 1 }
local plans, plan_of
local refused = mc.metrics.counter("quota_refused",
  "requests over a tenant's quota", { "tenant", "what" })

function R.init(opts)
  plans, plan_of = opts.plans or {}, opts.tenants or {}
end

-- About four bytes are a token; what the client does not limit may be 256
-- tokens long.
local function cost_of(body)
  local bytes = 0
  if type(body.prompt) == "string" then bytes = #body.prompt end
  local messages = type(body.messages) == "table" and body.messages or {}
  for _, m in ipairs(messages) do
    if type(m) == "table" and type(m.content) == "string" then
      bytes = bytes + #m.content
    end
  end
  local made = tonumber(body.max_completion_tokens)
    or tonumber(body.max_tokens) or 256
  return math.ceil(bytes / 4) + math.max(0, made)
end

local function take(req, what, n, rate, burst)
  if n > burst then
    return nil, {
      code = "request_too_large",
      message = ("this request may take %d %s; your plan has %d")
        :format(n, what, burst),
    }
  end
  local bucket = "quota " .. what .. " " .. req.tenant
  local ok, err = mc.shared.take(bucket, n, rate, burst)
  if ok then return true end
  refused:inc(1, req.tenant, what)
  err.message = ("over your %s: try again in %.1f s")
    :format(what, err.retry_after or 1)
  return nil, err
end

function R.route(req)
  local plan = plans[plan_of[req.tenant] or "free"] or FREE
  local ok, err = take(req, "requests", 1, plan.rate, plan.burst)
  if ok and req.method == "POST" then
    local body = req:json()
    local cost = type(body) == "table" and cost_of(body) or 0
    if cost > 0 then
      ok, err = take(req, "tokens", cost, plan.tokens / 60, plan.tokens)
    end
  end
  if not ok then return nil, err end
  return { lane = plan.lane }
end

function R.tests(t)
  local function ask(tenant, max_tokens)
    return t.route { method = "POST", tenant = tenant,
      json = { prompt = "Hi", max_tokens = max_tokens } }
  end
  t.it("gives each tenant its plan's lane", function()
    t.expect(ask("test one", 10)):is { lane = FREE.lane }
  end)
  t.it("takes five at once, then says when to come back", function()
    local last, err
    for _ = 1, 6 do last, err = ask("test two", 1) end
    t.expect(last):is(nil)
    t.expect(err.retry_after > 0):is(true)
    t.expect(ask("test three", 1)):is { lane = FREE.lane }
  end)
  t.it("refuses what no minute has", function()
    local _, err = ask("test four", 1e6)
    t.expect(err.code):is("request_too_large")
  end)
end

return R
