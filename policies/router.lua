-- router.lua: which lane a request waits in, and how urgent it is.
--
-- Not used until init.lua says router = "router". A lane is a number from 0 to
-- 7; a higher priority goes first within it; deadline: seconds until a request
-- is given up (504). nil, err refuses a request. An error in here costs a
-- request nothing: it goes on unrouted.
local R = { api = 1, kind = "router" }

-- Work that can wait says so with a header and has a lane of its own.
function R.route(req)
  if req.headers["x-batch"] then
    return { lane = 1, priority = -1 }
  end
  return { lane = 0 }
end

function R.tests(t)
  t.it("puts work that can wait into lane 1", function()
    local batch = t.route { headers = { ["x-batch"] = "1" } }
    t.expect(batch):is { lane = 1, priority = -1 }
    t.expect(t.route {}):is { lane = 0 }
  end)
end

return R
