-- best.lua: one prefill, n continuations that share its KV, the likeliest wins.
--
--   routes = { "openai", "best" } in init.lua, then
--   curl localhost:8000/v1/best -d '{"prompt": "The Moon is", "n": 4}'
return { api = 1, kind = "routes", ["POST /v1/best"] = function(req, res)
  local b = req:json { prompt = "string", n = "integer? 1..16" }
  local root, err = mc.submit { prompt = b.prompt, limit = 0 }
  if not root then return res:fail(err) end
  local try, best = {}, nil
  for i = 1, b.n or 4 do -- they wait until it has read the prompt, once for all
    try[i] = root:fork { seed = i, limit = 128, temperature = 0.8 }
  end
  for _, s in ipairs(try) do
    local r = s:wait() -- all n decode in one batch meanwhile
    if r and (not best or r.mean_logprob > best.mean_logprob) then best = r end
  end
  if not best then return res:fail { code = "overloaded" } end
  res:json { text = best.text, of = #try, usage = root:usage() }
end }
