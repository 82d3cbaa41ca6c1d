--- http.lua: requests, responses and the table of routes.
--
-- Trusted. A handler gets req (a table: method, path, params, query, headers,
-- tenant, id) and res. What a handler does not answer itself (an error, a wrong
-- body) is answered here or by the host.

local host = require "mc.host"
local routes = require "mc.routes"
local schema = require "mc.schema"
local wait = require("mc.wait").wait

local http, json = host.http, host.json
local M = {}

-- ---- req --------------------------------------------------------------------

local Req = {}
-- req[RES] is the response's handle, req[BODY] what json() read.
local RES, BODY = {}, {}

-- Ends this request's task, through any pcall of the script: a task that has
-- finished is dropped at its next wait.
local function stop(res)
  http.finish(res)
  while true do wait("req:json") end
end

local function refuse(res, err)
  http.fail(res, err)
  stop(res)
end

--- The body as bytes.
function Req.body(req)
  return http.body(req[RES])
end

--- The body as JSON, checked by a schema (see schema.lua). When it is wrong the
-- client has its 400 and this call does not return. It is read once: what a
-- router changes in it, the handler sees.
function Req.json(req, want)
  local res = req[RES]
  local body, err = req[BODY], nil
  if body == nil then body, err = http.json(res) end
  if body == nil then return refuse(res, err) end
  req[BODY] = body
  if not want then return body end
  local checked, message, field = schema.check(body, want)
  if message then
    return refuse(res,
      { code = "invalid_value", message = message, param = field })
  end
  return checked
end

local req_meta = { __index = Req }

-- ---- res --------------------------------------------------------------------

local Res = {}

--- An answer: a value as JSON.
function Res.json(res, value, status)
  local text, err = json.encode(value)
  if not text then error(tostring(err), 2) end
  return http.send(res, status or 200, "application/json", text)
end

--- An answer: text of a type.
function Res.text(res, text, kind, status)
  return http.send(res, status or 200,
    kind or "text/plain; charset=utf-8", text)
end

--- An answer: an error {code, message, param} with its status and shape.
function Res.fail(res, err)
  http.fail(res, err)
end

local TYPES = {
  html = "text/html; charset=utf-8",
  css = "text/css; charset=utf-8",
  js = "text/javascript; charset=utf-8",
  json = "application/json",
  svg = "image/svg+xml",
  txt = "text/plain; charset=utf-8",
  md = "text/markdown; charset=utf-8",
  png = "image/png",
  jpg = "image/jpeg",
  ico = "image/x-icon",
  woff2 = "font/woff2",
  wasm = "application/wasm",
}

--- An answer: a file as it is now, of a folder of the policy directory. "a/" is
-- a/index.html. A client that has it already gets 304.
function Res.file(res, folder, name)
  if name == "" or name:sub(-1) == "/" then name = name .. "index.html" end
  local text, tag = host.file(folder, name)
  if not text then return http.fail(res, tag) end
  http.header(res, "etag", tag)
  http.header(res, "cache-control", "no-cache")
  http.header(res, "x-content-type-options", "nosniff")
  if http.asked(res, "if-none-match") == tag then
    return http.send(res, 304, nil, "")
  end
  return http.send(res, 200,
    TYPES[name:match("%.(%w+)$")] or "application/octet-stream", text)
end

--- A header, before the answer.
function Res.header(res, key, value)
  return http.header(res, key, value)
end

local function put(res, text)
  while true do
    local ok, err = http.write(res, text)
    if ok ~= false then return ok, err end
    host.task.sleep(0.02) -- the client reads slowly
    wait("res:write")
  end
end

--- Bytes of an answer that grows; ends with the handler. Waits while the client
-- is slow.
function Res.write(res, text)
  if not http.started(res) then
    http.begin(res, 200, "text/plain; charset=utf-8")
  end
  return put(res, text)
end

--- A server-sent event, maybe with a name. Waits while the client is slow.
function Res.event(res, value, name)
  local text, err = json.encode(value)
  if not text then error(tostring(err), 2) end
  if name ~= nil and (type(name) ~= "string" or name:find("[\r\n]")) then
    error("an event's name is one line of text", 2)
  end
  if not http.started(res) then
    http.begin(res, 200, "text/event-stream; charset=utf-8")
  end
  return put(res,
    (name and "event: " .. name .. "\n" or "") .. "data: " .. text .. "\n\n")
end

--- Hands a sequence (or a list of them) to the pump, which writes the answer in
-- a dialect ("chat", "completion", or {dialect =, stream =, ...}). Waits until
-- it is complete.
function Res.stream(res, seqs, opts)
  if type(seqs) ~= "table" then seqs = { seqs } end
  if type(opts) ~= "table" then opts = { dialect = opts, stream = true } end
  opts.model = opts.model or seqs[1] and seqs[1].model or ""
  opts.id = opts.id
    or (opts.dialect == "chat" and "chatcmpl-" or "cmpl-") .. host.unique()
  http.stream(res, seqs, opts)
  while not http.streamed(res) do wait("res:stream") end
  return true
end

http.meta.__index = Res
http.meta.__tostring = function() return "response" end

-- ---- routing ----------------------------------------------------------------

local router

--- Who decides lane, priority and deadline of requests.
function M.set_router(fn)
  router = fn
end

local ROUTED = { model = "string", lane = "number", priority = "number",
  deadline = "number", due_first = "number", slo_token = "number" }

local function is_served(name)
  for _, id in ipairs(host.server.models) do
    if id == name then return true end
  end
  return false
end

-- What the router says goes to the sequences of this request; an error of its
-- own costs the request nothing, a refusal does. False when it was refused.
local function ask_router(req, res, context)
  local ok, plan, err = pcall(router, req)
  if not ok then
    host.log.write(2, "the router failed: " .. tostring(plan))
    return true
  end
  if plan == nil then
    if err ~= nil then http.fail(res, err) end
    return err == nil
  end
  for k, v in pairs(type(plan) == "table" and plan or {}) do
    if ROUTED[k] == type(v) and (k ~= "model" or is_served(v)) then
      context[k] = v
    else
      host.log.write(2, ("the router's %s is not used: %s")
        :format(tostring(k), tostring(v)))
    end
  end
  req.model = context.model
  return true
end

-- Takes one request out of a bucket of rate and burst; nil, or the error that
-- says when.
local function over(bucket, rate, burst, whose)
  local ok, err = host.shared.take(bucket, 1, rate, burst)
  if ok then return nil end
  err.message =
    ("over the %g requests a second (%g at once) %s: try again in %.1f s")
      :format(rate, burst, whose, err.retry_after or 1)
  return err
end

-- To one route; a caller is a tenant, else an address.
local function over_rate(route, req)
  local rate = route.rate
  local who = req.tenant ~= "" and req.tenant or req.ip
  return over(("rate %s %s"):format(route.key, who),
    rate[1], rate[2] or math.max(1, rate[1]),
    "that " .. route.key .. " takes of one caller")
end

-- Of one tenant to all routes together.
local function over_tenant(req)
  local rate = req.tenant_rate
  return over("tenant " .. req.tenant, rate, math.max(1, rate),
    "of tenant " .. req.tenant)
end

local function refused(route, req, denied)
  if denied and route.auth then return denied end
  if route.tenants and not route.tenants[req.tenant] then
    return {
      code = "forbidden",
      message = "this key may not use " .. route.key,
    }
  end
  return req.tenant_rate and route.auth and over_tenant(req)
    or route.rate and over_rate(route, req)
end

--- Runs the handler of a request. denied: why its key was refused, or nil.
function M.handle(req, res, denied)
  local methods, params = routes.find(req.path)
  if not methods then
    return http.fail(res,
      { code = "not_found", message = "there is no " .. req.path })
  end
  local route = methods[req.method] or req.method == "HEAD" and methods.GET
  if not route then
    http.header(res, "allow", routes.allow(methods))
    return http.fail(res, { code = "method_not_allowed",
      message = ("%s takes %s"):format(req.path, routes.allow(methods)) })
  end
  local no = refused(route, req, denied)
  if no then return http.fail(res, no) end
  if not http.enter(res, route.key, route.body_max, route.concurrency,
      route.timeout) then
    return
  end
  req.params = params
  req[RES] = res
  setmetatable(req, req_meta)
  local context = host.task.context()
  context.name, context.tenant = req.id, req.tenant_id
  context.deadline = route.timeout
  if router and not ask_router(req, res, context) then return end
  if route.schema then req.data = req:json(route.schema) end
  route.handler(req, res)
end

return M
