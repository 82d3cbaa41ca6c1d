"""Edge VMs and sessions under a script that does at random whatever a script can do: all of mc, with
sequences, tasks, requests and responses. Lua errors only; the server goes on, and nothing is left.

LONG=1 in the environment runs fifty times as many; FUZZ_SEED=n begins there."""
import glob
import os
import re
import tempfile

from mascon import SANITIZED, Server, main

LONG = bool(os.environ.get("LONG"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
FUZZ = open("tests/policy/fuzz.lua").read()
NAMES = sorted({n for f in glob.glob("lua/mc/meta/*.lua") for n in re.findall(
    r"^---@field (\w+)|^function [\w.]+[.:](\w+)", open(f).read(), re.M) for n in n if n})
ONE = {"prompt": "Once upon", "max_tokens": 12, "temperature": 0}
COUNT = 50 if LONG else 1

# What ends the server, waits for ever or writes files by being asked rightly is not called.
SETUP = """
local skip = { [mc.sleep] = true, [string.rep] = true }
for _, name in ipairs { "engine.drain", "engine.set", "log.level", "policy.reload", "policy.rollback",
    "policy.check", "policy.shadow", "log.debug", "log.info", "log.warn", "log.error", "every" } do
  local space, key = name:match("^(%w+)%.(%w+)$")
  local f = space and mc[space][key] or mc[name]
  if f then skip[f] = true end
end
local function tables(...)
  local pool = { mc, ... }
  for _, v in pairs(mc) do
    local t = type(v)
    if (t == "table" or t == "function") and not skip[v] then
      pool[#pool + 1] = v
    end
  end
  return pool
end
local function some_seqs()
  local s = assert(mc.submit { prompt = "Once", limit = 3 })
  local dead = assert(mc.submit { prompt = "Once", limit = 1 })
  dead:wait()
  return s, dead, mc.spawn(function() return 1 end)
end
"""


def script(body):
    names = ", ".join(f'"{n}"' for n in NAMES)
    return f"{FUZZ}\nlocal NAMES = {{ {names} }}\n{SETUP}\n{body}"


def still_right(server, before):
    assert server.post("/v1/completions", ONE)[1]["choices"] == before
    assert server.get("/health")[0] == 200
    server.idle(30)


def a_session_gets_lua_errors_only():
    with Server() as server:
        before = server.post("/v1/completions", ONE)[1]["choices"]
        for seed in range(SEED, SEED + 8 * COUNT):
            status, out = server.attach(script(
                f"return FUZZ.run({seed}, {300 if SANITIZED else 4000}, NAMES,"
                " tables(some_seqs()), skip)"), timeout=300)
            raised, passed = map(int, out.split()) if status == 0 else (0, 0)
            assert status == 0 and raised > 20 and passed > 20, (seed, out[-2000:])
            still_right(server, before)


def a_session_that_runs_out_of_memory_gets_lua_errors_only():
    """The heap is filled up first, but for a little: then bindings and library run out of it."""
    with Server() as server:
        before = server.post("/v1/completions", ONE)[1]["choices"]
        ended = 0
        for seed in range(SEED, SEED + 8 * COUNT):
            status, out = server.attach(script(f"""
                local pool, hog, n = tables(some_seqs()), {{}}, 0
                local function fill(size, upto)
                  while collectgarbage "count" < upto do
                    hog[n + 1], n = ("x"):rep(size) .. n, n + 1
                  end
                end
                fill(60000, 52000)
                fill(3000, 56500 + {seed} * 37 % 800) -- of 57344 KB that a VM may use
                for round = 1, 400 do FUZZ.run({seed} + round, 100, NAMES, pool, skip) end"""),
                timeout=300)
            # no pcall holds the end of a chunk that has used up its memory
            assert status == 0 or "not enough memory" in out or "used up" in out, (seed, out[-2000:])
            ended += "not enough memory" in out
            still_right(server, before)
        assert ended > 2 * COUNT, ended


def a_route_gets_lua_errors_only():
    with tempfile.TemporaryDirectory() as d:
        os.mkdir(d + "/routes")
        open(d + "/init.lua", "w").write(
            'return { router = "r", routes = { "openai", "fuzz" } }')
        open(d + "/r.lua", "w").write(script("""
            local n = 0
            return { api = 1, kind = "router", route = function(req)
              if req.path ~= "/routed" then return {} end
              n = n + 1
              FUZZ.run(n, 200, NAMES, tables(req), skip)
              return {}
            end }"""))
        open(d + "/routes/fuzz.lua", "w").write(script("""
            local kept
            return { api = 1, kind = "routes", ["POST /fuzz/{seed}"] = function(req, res)
              local pool = tables(some_seqs())
              for _ = 1, 6 do pool[#pool + 1] = req pool[#pool + 1] = res end
              pool[#pool + 1] = kept -- a response of an earlier request
              kept = res
              FUZZ.run(tonumber(req.params.seed), 400, NAMES, pool, skip)
            end, ["GET /routed"] = function(req, res) res:json { ok = true } end }"""))
        with Server(policies=d) as server:
            before = server.post("/v1/completions", ONE)[1]["choices"]
            for seed in range(SEED, SEED + 60 * COUNT):
                try:
                    status, _, _ = server.request("POST", f"/fuzz/{seed}", '{"a": [1, {"b": 2}]}',
                                                  timeout=120)
                    assert status in range(100, 600), (seed, status)
                except (OSError, ValueError, ConnectionError) as e:
                    assert "refused" not in str(e), (seed, server.log()[-3000:])
                except Exception as e:  # an answer that was cut off: http.client's own
                    assert type(e).__module__ == "http.client", (seed, repr(e))
                if seed % 5 == 0:
                    # the router finds the response in its request, and may answer with it
                    assert server.get("/routed")[0] in range(200, 600)
            still_right(server, before)


main([a_session_gets_lua_errors_only, a_session_that_runs_out_of_memory_gets_lua_errors_only,
      a_route_gets_lua_errors_only])
