--- test_edge.lua - requests for the tests of routers and routes: nothing is
-- sent.
--
-- Trusted. A handler under test gets a request that the test made and an answer
-- that is kept; it can't wait, so what talks to the model is for tests over
-- HTTP.

local host = require "mc.host"
local schema = require "mc.schema"
local test = require "mc.test"

local M = {}
local DONE = {} -- raised to leave a handler whose client has its 400

local Req, Res = {}, {}

function Req.body(req) return req.text end

function Req.json(req, want)
  local body, err = host.json.decode(req.text)
  if err == nil and want then
    local checked, message, field = schema.check(body, want)
    if not message then return checked end
    err = { code = "invalid_value", message = message, param = field }
  end
  if err == nil then return body end
  req.answer.status, req.answer.err = 400, err
  error(DONE, 0)
end

function Res.json(res, value, status)
  res.status, res.value = status or 200, value
end

function Res.text(res, text, kind, status)
  res.status, res.body, res.kind = status or 200, text, kind
end

function Res.fail(res, err) res.status, res.err = err.status or 500, err end

function Res.header(res, key, value) res.headers[key:lower()] = value end

function Res.write(res, text)
  res.status, res.body = 200, (res.body or "") .. text
end

function Res.event(res, value)
  res.status = 200
  res.events[#res.events + 1] = value
end

function Res.file(res, folder, name)
  res.status, res.file_of = 200, { folder, name }
end

function Res.stream(res, seqs, dialect)
  res.status, res.stream_of = 200, { seqs, dialect }
end

local function make_request(r)
  r = r or {}
  return setmetatable({
    method = r.method or "GET",
    path = r.path or "/",
    id = r.id or "test",
    ip = r.ip or "127.0.0.1",
    tenant = r.tenant or "",
    tenant_id = 0,
    query = r.query or {},
    params = r.params or {},
    headers = r.headers or {},
    text = r.body or (r.json and host.json.encode(r.json)) or "",
  }, { __index = Req })
end

--- The helpers for the tests of a router or of routes.
function M.new(file, policy)
  local t = test.new(file, function() end)

  --- What the router says of a request {path, headers, query, tenant}.
  function t.route(r)
    if not policy.route then error("this is no router", 2) end
    return policy.route(make_request(r))
  end

  --- Runs a handler, t.call("POST /v1/x", {json = {...}}): its answer {status,
  -- value, body, headers, events, err}.
  function t.call(key, r)
    local route = policy[key]
      or error("there is no route '" .. tostring(key) .. "'", 2)
    local req = make_request(r)
    local answer =
      setmetatable({ headers = {}, events = {} }, { __index = Res })
    req.answer = answer
    local handler = type(route) == "table" and route.handler or route
    local ok, err = pcall(handler, req, answer)
    if not ok and err ~= DONE then error(err, 0) end
    return answer
  end

  return t
end

return M
