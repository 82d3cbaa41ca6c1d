--- clock.lua: dates as strftime writes them, without os.
--
-- A time is seconds since 1970 as the wall clock shows them; whoever wants
-- local time has added the zone's offset already. English names, as Python's C
-- locale.

local rt_ = require "mc.jinja.rt"

local M = {}

local floor = math.floor

local DAYS = {
  "Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday",
}
local MONTHS = {
  "January", "February", "March", "April", "May", "June", "July", "August",
  "September", "October", "November", "December",
}

-- The calendar's reading of a time. Years are counted from March, so that the
-- odd day comes last; an era is 400 years, 146,097 days.
local function civil(seconds)
  local days, sec = floor(seconds / 86400), seconds % 86400
  local z = days + 719468 -- days since 0000-03-01
  local era = floor(z / 146097)
  local doe = z - era * 146097
  local leaps = floor(doe / 1460) - floor(doe / 36524) + floor(doe / 146096)
  local yoe = floor((doe - leaps) / 365)
  local doy = doe - (365 * yoe + floor(yoe / 4) - floor(yoe / 100))
  local mp = floor((5 * doy + 2) / 153)
  local month = mp < 10 and mp + 3 or mp - 9
  local year = yoe + era * 400 + (month <= 2 and 1 or 0)
  local leap = (year % 4 == 0 and year % 100 ~= 0) or year % 400 == 0
  return {
    year = year, month = month, day = doy - floor((153 * mp + 2) / 5) + 1,
    hour = floor(sec / 3600), min = floor(sec / 60) % 60, sec = floor(sec) % 60,
    wday = (days + 4) % 7, -- 1970 began on a Thursday
    yday = month > 2 and doy + 60 + (leap and 1 or 0) or doy - 305,
    micro = floor(sec % 1 * 1e6), stamp = floor(seconds),
  }
end

local function two(n) return ("%02d"):format(n) end
local function hour12(t) return (t.hour + 11) % 12 + 1 end

local WRITE = {
  a = function(t) return DAYS[t.wday + 1]:sub(1, 3) end,
  A = function(t) return DAYS[t.wday + 1] end,
  b = function(t) return MONTHS[t.month]:sub(1, 3) end,
  B = function(t) return MONTHS[t.month] end,
  d = function(t) return two(t.day) end,
  e = function(t) return ("%2d"):format(t.day) end,
  f = function(t) return ("%06d"):format(t.micro) end,
  H = function(t) return two(t.hour) end,
  I = function(t) return two(hour12(t)) end,
  j = function(t) return ("%03d"):format(t.yday) end,
  m = function(t) return two(t.month) end,
  M = function(t) return two(t.min) end,
  p = function(t) return t.hour < 12 and "AM" or "PM" end,
  s = function(t) return ("%d"):format(t.stamp) end,
  S = function(t) return two(t.sec) end,
  u = function(t) return tostring(t.wday == 0 and 7 or t.wday) end,
  w = function(t) return tostring(t.wday) end,
  y = function(t) return two(t.year % 100) end,
  Y = function(t) return tostring(t.year) end,
  z = function() return "" end,
  Z = function() return "" end,
  n = function() return "\n" end,
  t = function() return "\t" end,
  ["%"] = function() return "%" end,
}
WRITE.h = WRITE.b

local COMPOSED = {
  c = "%a %b %e %H:%M:%S %Y", D = "%m/%d/%y", F = "%Y-%m-%d", r = "%I:%M:%S %p",
  R = "%H:%M", T = "%H:%M:%S", x = "%m/%d/%y", X = "%H:%M:%S",
}

--- strftime(format) of a time; `%-d` is `%d` without its zero. A conversion
-- that is not known raises.
function M.strftime(format, seconds)
  local t = civil(seconds)
  format = format:gsub("%%([cDFrRTxX])", COMPOSED)
  return (format:gsub("%%(%-?)(.?)", function(bare, c)
    local write = WRITE[c] or rt_.fail("strftime does not know %%%s", c)
    local s = write(t)
    return bare == "-" and s:gsub("^[0 ]+(.)", "%1") or s
  end))
end

return M
