-- router.lua: which lane a request waits in, and how urgent it is.
--
-- Not used until init.lua says router = "router". A lane is a number from 0 to 7; a higher
-- priority goes first within it; deadline: seconds until a request is given up (504).
-- nil, err refuses a request; an error in here costs it nothing.
local R = { api = 1, kind = "router" }

-- Work that can wait says so with a header and has a lane of its own.
function R.route(req)
  if req.headers["x-batch"] then
    return { lane = 1, priority = -1 }
  end
  return { lane = 0 }
end

return R
