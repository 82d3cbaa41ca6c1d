--- tutorial.lua: tutorial() in the REPL: screens to read, with lines to type.
--
-- Trusted. A line that begins with "> " is to be typed as it stands; a test
-- types them all, in their order, in one session.

local M = {}

local screens = {
  [[
1. This is a Lua prompt inside the live server. What you type runs in a session
of its own: it can wait for as long as it likes and delays no stream. Ctrl-C
stops it, Ctrl-D leaves.

> 1 + 1
> mc.engine.status()

help() lists what there is, help "mc.submit" explains one name, and Tab
completes.]],
  [[
2. mc.submit starts a sequence. It goes on by itself; s:wait() waits for its
end, s:tokens() gives its tokens as they come.

> s = mc.submit { prompt = "The Moon is", limit = 16, temperature = 0 }
> s:wait().text
> s:usage()

A fork shares what was computed so far, and goes its own way:

> f = s:fork { limit = 8, temperature = 1, seed = 7 }
> for t in f:tokens() do io.write(t.text) end]],
  [[
3. What goes on: live sequences, pages, and why a request waited.

> mc.seqs()
> mc.kv.stats()
> why = mc.why(s.id)
> why[1].events[1].what

`mascon top` shows the same, again and again; `mascon why ID` tells one
request's life.]],
  [[
4. Policies are Lua files: who runs next, how a token is picked, which routes
exist. Each change is a new generation, tried before it serves; the one before
is kept.

> mc.policy.list().generations[1].files
> mc.policy.check("sched_fair") or "this server has no directory of policies"

Copy the shipped ones with `mascon policy init DIR`, serve them with --policies
DIR, edit; mc.policy.reload() and mc.policy.rollback() go forth and back.]],
  [[
5. What was shown are functions of routes, too. In DIR/routes/hello.lua:

    local R = { api = 1, kind = "routes" }
    R["GET /hello/{name}"] = function(req, res)
      res:json { hello = req.params.name }
    end
    return R

and "hello" among the routes of DIR/init.lua. That is all: save, and it answers.
The end.]],
}

local at = 0

--- A screen: the first, "next", "prev" or a number.
function M.tutorial(which)
  if which == nil then
    at = 1
  elseif which == "next" then
    at = math.min(at + 1, #screens)
  elseif which == "prev" then
    at = math.max(at - 1, 1)
  elseif screens[which] then
    at = which
  else
    return ('tutorial(), tutorial "next", tutorial "prev" or a number from 1 to'
      .. ' %d'):format(#screens)
  end
  return screens[at] .. (at < #screens and '\n\ntutorial "next" goes on.' or "")
end

return M
