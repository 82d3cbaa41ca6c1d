"""Writes lua/mc/jinja/case.lua: Unicode's upper and lower case beyond ASCII, from Python's tables.

    python3 tests/golden/case_table.py > lua/mc/jinja/case.lua
"""
import textwrap

HEAD = '''\
--- case.lua: upper and lower case beyond ASCII. Made by
-- tests/golden/case_table.py; do not edit.
--
-- Each range is first,count,step,delta: `count` code points, `step` apart, map
-- to themselves plus delta; `first` counts from the end of the range before.
-- SPECIAL lists the characters whose upper case is longer than one character.

local M = {}

'''

TAIL = '''\
-- The table character -> character that a list of ranges stands for.
local function expand(ranges, encode)
  local map, at = {}, 0
  local RANGE = "(%d+),(%d+),(%d+),(%-?%d+)"
  for first, count, step, delta in ranges:gmatch(RANGE) do
    at = at + first
    for _ = 1, count do
      map[encode(at)] = encode(at + delta)
      at = at + step
    end
    at = at - step + 1
  end
  return map
end

--- The maps of one character to its upper and its lower case; encode makes
-- UTF-8.
function M.maps(encode)
  local upper, lower = expand(UPPER, encode), expand(LOWER, encode)
  for char, long in SPECIAL:gmatch("(%S+)=(%S+)") do
    upper[char] = long
  end
  return upper, lower
end

return M
'''


def runs(change):
    """[first, count, step, delta] of the characters that `change` maps to one other character."""
    out = []
    for c in range(128, 0x110000):
        to = change(chr(c))
        if len(to) != 1 or ord(to) == c:
            continue
        delta, last = ord(to) - c, out[-1] if out else None
        if last and last[3] == delta:
            step = c - (last[0] + (last[1] - 1) * last[2])
            if (last[1] == 1 and step <= 2) or step == last[2]:
                last[1], last[2] = last[1] + 1, step
                continue
        out.append([c, 1, 1, delta])
    return out


def text(change):
    at, out = 0, []
    for first, count, step, delta in runs(change):
        out.append(f"{first - at},{count},{step},{delta}")
        at = first + (count - 1) * step + 1
    return " ".join(out)


def lua(name, words):
    lines = textwrap.wrap(words, 78, break_long_words=False, break_on_hyphens=False)
    return f"local {name} = [[\n" + "\n".join(lines) + "\n]]\n\n"


special = " ".join(f"{chr(c)}={chr(c).upper()}" for c in range(128, 0x110000) if len(chr(c).upper()) > 1)
print(HEAD + lua("UPPER", text(str.upper)) + lua("LOWER", text(str.lower)) + lua("SPECIAL", special) + TAIL, end="")
