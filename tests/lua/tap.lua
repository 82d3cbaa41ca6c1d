--- tap.lua: prints test results as TAP.
--
-- Each test is a function that raises when it fails, or returns "skip", reason.

local M = {}

local count, failed = 0, 0

--- Runs one test.
function M.test(name, fn)
  count = count + 1
  local ok, result, reason = xpcall(fn, function(e)
    return type(e) == "table" and tostring(e.message)
      or debug.traceback(tostring(e), 2)
  end)
  if ok and result == "skip" then
    print(("ok %d %s # skip %s"):format(count, name, reason))
  elseif ok then
    print(("ok %d %s"):format(count, name))
  else
    failed = failed + 1
    print(("not ok %d %s"):format(count, name))
    print("# " .. tostring(result):gsub("\n", "\n# "))
  end
end

--- Raises unless got is want.
function M.equal(got, want, what)
  if got ~= want then
    error(("%s\n  got  %s\n  want %s"):format(what or "values differ",
      ("%q"):format(tostring(got)), ("%q"):format(tostring(want))), 2)
  end
end

--- Prints the plan; the last call of a test file.
function M.done()
  print("1.." .. count)
  os.exit(failed == 0 and 0 or 1)
end

return M
