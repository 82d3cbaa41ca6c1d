--- test_jinja_limits.lua: no template and no conversation makes the engine
-- loop, eat memory or raise: caps, wrong uses, and random damage to good
-- templates.

package.path = "lua/?.lua;tests/lua/?.lua;" .. package.path

local data = require "mc.data"
local json = require "json"
local tap = require "tap"
local template = require "mc.template"

jit.off() -- as in the VMs where templates run

local function render(source, vars, limits)
  local t, err = template.compile(source)
  if not t then return nil, err end
  return t:render(vars or {}, nil, limits)
end

-- caps ------------------------------------------------------------------------

-- Each must be refused, and soon.
local GREEDY = {
  "{% for a in range(100000) %}{% for b in range(100000) %}"
    .. "{% endfor %}{% endfor %}",
  "{% for a in range(100000) %}{% for b in range(100) %}{{ a }}"
    .. "{% endfor %}{% endfor %}",
  "{% set ns = namespace(s='x') %}{% for i in range(100) %}"
    .. "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
  "{% set ns = namespace(s='x') %}{% for i in range(100000) %}"
    .. "{% set ns.s = ns.s + 'x' %}{% endfor %}",
  "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}"
    .. "{% set ns.l = ns.l + ns.l %}{% endfor %}",
  "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}"
    .. "{% set ns.l = ns.l + [i] %}{% endfor %}",
  "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}"
    .. "{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
  "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}"
    .. "{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l | tojson }}",
  "{% set ns = namespace(l=[], m=[]) %}{% for i in range(90000) %}"
    .. "{% set ns.l = [ns.l] %}{% set ns.m = [ns.m] %}{% endfor %}"
    .. "{{ ns.l == ns.m }}",
  "{% set ns = namespace(l=1) %}{% for i in range(90000) %}"
    .. "{% set ns.l = (ns.l,) %}{% endfor %}{{ {ns.l: 1} }}",
  "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
  "{% macro f(n) %}{{ f(n + 1) ~ f(n + 1) }}{% endmacro %}{{ f(0) }}",
  "{% macro f() %}{{ caller() }}{% call f() %}{{ caller() }}{% endcall %}"
    .. "{% endmacro %}{% call f() %}x{% endcall %}",
  "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
  "{{ 'x' * 1000000000 }}",
  "{{ [1] * 1000000000 }}",
  "{{ 'x'.center(1000000000) }}",
  "{{ '%1000000000d' % 1 }}",
  "{{ '{:1000000000}'.format(1) }}",
  "{{ [[[[[[1]]]]]] | tojson(indent='x' * 4000000) }}",
  "{% for i in range(100000) %}{{ ('a' * 100000).rfind('ab') }}{% endfor %}",
  "{% for i in range(100000) %}{{ ('a' * 100000) | upper | length }}"
    .. "{% endfor %}",
  "{% for i in range(100000) %}{{ ('é' * 10000)[5] }}{% endfor %}",
  "{% for i in range(100000) %}{{ ('a ' * 10000).split() | length }}"
    .. "{% endfor %}",
  "{% for i in range(100000) %}{{ range(10000) | sort | length }}{% endfor %}",
  "{% for i in range(100000) %}"
    .. "{{ range(10000) | map('string') | join | length }}{% endfor %}",
  "{% for i in range(100000) %}{{ ('a' * 20000) in ('a' * 100000) }}"
    .. "{% endfor %}",
  "{{ ('a' * 8000000).replace('a', 'bbbb') }}",
  "{{ ('a' * 8000000).replace('', 'b') }}",
  "{{ ('a,' * 4000000).split(',') | length }}",
  "{{ 10 ** 400 }}",
}

for _, source in ipairs(GREEDY) do
  local name = source:gsub("#", ""):sub(1, 70)
  tap.test("jinja_refuses_what_takes_too_much " .. name, function()
    local start = os.clock()
    local pieces, err = render(source)
    local seconds = os.clock() - start
    assert(not pieces, "rendered")
    tap.equal(err.internal, nil, err.message)
    assert(seconds < 5, ("took %.2f s: %s"):format(seconds, err.message))
  end)
end

local function nested(open, inside, close, n)
  return open:rep(n) .. inside .. close:rep(n)
end

tap.test("jinja_limits_nesting_to_100", function()
  for _, parts in ipairs {
    { "{{ ", "(", "1", ")", " }}" },
    { "{{ ", "[", "1", "]", " }}" },
    { "{{ ", "not ", "1", "", " }}" },
    { "{{ ", "-", "1", "", " }}" },
    { "{{ 1 if 1 else ", "1 if 1 else ", "1", "", " }}" },
    { "", "{% if 1 %}", "1", "{% endif %}", "" },
    { "", "{% for x in [1] %}", "1", "{% endfor %}", "" },
    { "{{ ", "{1: ", "1", "}", " }}" },
    { "{{ f", "[f", "", "]", " }}" },
    { "{{ ", "range(", "1", ")", " }}" },
    { "", "{% set x %}", "1", "{% endset %}", "" },
    { "", "{% macro f() %}", "1", "{% endmacro %}", "" },
  } do
    local function source(n)
      return parts[1] .. nested(parts[2], parts[3], parts[4], n) .. parts[5]
    end
    local t, err = template.compile(source(30))
    assert(t, source(3) .. tostring(err and err.message))
    for _, n in ipairs { 101, 5000 } do
      t, err = template.compile(source(n))
      assert(not t and err.syntax, source(3) .. " nested " .. n)
    end
  end
end)

tap.test("jinja_takes_long_chains", function()
  local sum = assert(render("{{ 1" .. ("+ 1"):rep(500) .. " }}"))
  tap.equal(template.text(sum), "501")
  local joined = assert(render("{{ 'a'" .. ("~ 'a'"):rep(5000) .. " }}"))
  tap.equal(#template.text(joined), 5001)
  assert(render("{{ 1" .. ("| string"):rep(500) .. " }}"))
  assert(render("{% if 0 %}" .. ("{% elif 0 %}x"):rep(2000) .. "{% endif %}"))
  assert(template.compile(("{{ x }}y\n"):rep(20000)))
end)

tap.test("jinja_survives_chains_too_long_for_its_stack", function()
  for _, source in ipairs {
    "{{ 1" .. ("+ 1"):rep(100000) .. " }}",
    "{{ x" .. (".x"):rep(100000) .. " }}",
    "{{ x" .. ("|d"):rep(100000) .. " }}",
    "{{ x" .. ("()"):rep(100000) .. " }}",
  } do
    local pieces, err = render(source)
    if not pieces then tap.equal(err.internal, nil, err.message) end
  end
end)

tap.test("jinja_limits_depth_of_data", function()
  local deep = {}
  for _ = 1, 200 do deep = { deep } end
  local pieces, err = render("{{ messages | tojson }}", { messages = deep })
  assert(not pieces and err.message:find("nests deeper than 100"),
    err and err.message)
  local ring = {}
  ring[1] = ring
  assert(not render("{{ messages | tojson }}", { messages = ring }))
end)

tap.test("jinja_limits_size_of_output", function()
  local pieces, err =
    render("{{ m }}{{ m }}", { m = ("x"):rep(600) }, { max_bytes = 1000 })
  assert(not pieces and err.message:find("larger than 1000 bytes"),
    err and err.message)
  assert(render("{{ m }}", { m = ("x"):rep(600) }, { max_bytes = 1000 }))
end)

tap.test("jinja_limits_steps_as_told", function()
  local source = "{% for i in range(100) %}{{ i }}{% endfor %}"
  assert(render(source, {}, { max_steps = 1000 }))
  local pieces, err = render(source, {}, { max_steps = 100 })
  assert(not pieces and err.message:find("too much work"), err and err.message)
end)

tap.test("jinja_renders_a_conversation_of_a_thousand_long_messages", function()
  local t = assert(template.compile(
    assert(io.open("tests/golden/chat/styles/qwen_think.jinja")):read("*a")))
  local messages = {}
  for i = 1, 1000, 2 do
    local question = ("question é %d "):format(i):rep(200)
    local answer = "<think>\nhm\n</think>\n\n" .. ("word\n"):rep(500)
    messages[i] = { role = "user", content = question }
    messages[i + 1] = { role = "assistant", content = answer }
  end
  local start = os.clock()
  local pieces, err =
    t:render { messages = messages, add_generation_prompt = true }
  assert(pieces, err and err.message)
  print(("# %d bytes in %.1f ms")
    :format(#template.text(pieces), (os.clock() - start) * 1e3))
end)

-- errors ----------------------------------------------------------------------

tap.test("jinja_tells_the_line_of_an_error", function()
  for _, case in ipairs {
    { "a\nb\n{{ missing.x }}\nc", 3 },
    { "{% if true %}\n{% for x in [1] %}\n\n{{ x.y.z }}"
        .. "{% endfor %}{% endif %}", 4 },
    { "{% macro f(x) %}\n{{ x.y.z }}{% endmacro %}\n\n{{ f(1) }}", 2 },
    { "{% macro f() %}\n\nx{% endmacro %}\n{% set a = f() %}"
        .. "{% set b = none.x.y %}", 4 },
    { "a\n{{ 'x' | nope }}", 2 },
    { "a\n\n{% if %}", 3 },
    { "{# \n\n #}{% raw %}\n{% endraw %}\n{{ raise_exception('x') }}", 5 },
    { "a\r\nb\r{% foo %}", 3 },
  } do
    local pieces, err = render(case[1])
    assert(not pieces)
    tap.equal(err.line, case[2], case[1] .. ": " .. err.message)
  end
end)

tap.test("jinja_reports_raise_exception_as_such", function()
  local _, err =
    render("{{ raise_exception('no ' ~ what) }}", { what = "tools" })
  tap.equal(err.message, "no tools")
  tap.equal(err.raised, true)
end)

tap.test("jinja_needs_a_clock_for_strftime_now", function()
  local _, err = render("{{ strftime_now('%Y') }}")
  assert(err.message:find("no clock"), err.message)
  local t = assert(template.compile("{{ strftime_now('%Q') }}",
    { clock = function() return 0 end }))
  _, err = t:render {}
  assert(err.message:find("strftime does not know"), err.message)
end)

tap.test("jinja_dates_agree_with_the_c_library", function()
  local format = "%Y-%m-%d %H:%M:%S %a %A %b %B %j %p %I %y %w %e"
  math.randomseed(7)
  for _ = 1, 2000 do
    local now = math.random(0, 4102444800) -- to the year 2100
    local t = assert(template.compile("{{ strftime_now(f) }}",
      { clock = function() return now end }))
    tap.equal(template.text(assert(t:render { f = format })),
      os.date("!" .. format, now))
  end
end)

tap.test("jinja_refuses_values_that_are_no_json", function()
  for _, v in ipairs { print, coroutine.create(print) } do
    local pieces, err = render("{{ x }}", { x = v })
    assert(not pieces and err.message:find("cannot be given to a template"),
      err and err.message)
  end
end)

tap.test("jinja_reads_plain_lua_tables", function()
  local vars = {
    a = { 1, 2 },
    b = { z = 1, y = { x = true } },
    c = data.array(),
    d = data.map(),
    e = data.null,
  }
  vars.d.q, vars.d.b = 1, 2
  vars.d.q = nil
  local pieces = assert(render("{{ [a, b, c, d, e] | tojson }}", vars))
  tap.equal(template.text(pieces),
    '[[1, 2], {"y": {"x": true}, "z": 1}, [], {"b": 2}, null]')
end)

-- damage ----------------------------------------------------------------------

local SEED = tonumber(os.getenv("MC_SEED") or "") or 20240726
local ROUNDS = tonumber(os.getenv("MC_ROUNDS") or "") or 4000

local function corpus()
  local out = {}
  for i, row in ipairs(json.lines("tests/golden/jinja_cases.jsonl")) do
    if i > 1 then out[#out + 1] = row.template end
  end
  for _, name in ipairs {
    "golden/chat/styles/llama3_tools",
    "golden/chat/styles/mistral",
    "golden/chat/styles/qwen_think",
    "golden/chat/styles/harmony",
    "golden/chat/styles/gemma",
    "models/tiny-kimi/chat_template",
    "models/tiny-glm/chat_template",
  } do
    out[#out + 1] = assert(io.open("tests/" .. name .. ".jinja")):read("*a")
  end
  return out
end

local TOKENS = {
  "{{", "}}", "{%", "%}", "{#", "#}", "-", "+", "*", "**", "/", "//", "%", "~",
  "(", ")", "[", "]", "{", "}", ",", ".", ":", "|", "=", "==", "<", "'", '"',
  "\\", "\n", " ", "if", "else", "endif", "for", "in", "endfor", "is", "not",
  "and", "set", "endset", "macro", "endmacro", "call", "loop", "none", "true",
  "1", "-1", "1e308", "0", "m", "d", "l", "s", "u", "users", "loop.index",
  "[1:]", "[::-1]", "|list", "|tojson", "|first", ".items()", ".split()",
  "is defined", "é", "\255", "range(9)", "namespace()", "*l", "**d",
  "recursive", "break", "continue", "|join", "|sort", "%s", ".format(", "\0",
}

local function mutate(text, all)
  local random = math.random
  for _ = 1, random(1, 4) do
    local i = random(0, #text)
    local j = math.min(#text, i + random(0, 12))
    local kind = random(1, 5)
    if kind == 1 then -- cut
      text = text:sub(1, i) .. text:sub(j + 1)
    elseif kind == 2 then -- put a token in
      text = text:sub(1, i) .. TOKENS[random(#TOKENS)] .. text:sub(i + 1)
    elseif kind == 3 then -- repeat a part
      text = text:sub(1, j) .. text:sub(i + 1)
    elseif kind == 4 then -- replace by a token
      text = text:sub(1, i) .. TOKENS[random(#TOKENS)] .. text:sub(j + 1)
    else -- splice two templates
      local other = all[random(#all)]
      text = text:sub(1, i) .. other:sub(random(1, #other + 1))
    end
  end
  return text:sub(1, 20000)
end

local function soup()
  local out = {}
  for i = 1, math.random(1, 40) do out[i] = TOKENS[math.random(#TOKENS)] end
  return table.concat(out, math.random(2) == 1 and " " or "")
end

local damaged =
  ("jinja_survives_damaged_templates seed %d rounds %d"):format(SEED, ROUNDS)
tap.test(damaged, function()
  math.randomseed(SEED)
  local all = corpus()
  local context = json.lines("tests/golden/jinja_cases.jsonl")[1].C
  local vars = { messages = context.m, tools = data.array { context.tool } }
  for _, k in ipairs(context) do vars[k] = context[k] end
  local limits = { max_steps = 20000, max_bytes = 100000 }
  local rendered, slowest = 0, 0
  for _ = 1, ROUNDS do
    local source = math.random(4) == 1 and "{{ " .. soup() .. " }}"
      or mutate(all[math.random(#all)], all)
    local start = os.clock()
    local ok, pieces, err = pcall(function()
      local t, e = template.compile(source, { clock = os.time })
      if not t then return nil, e end
      return t:render(vars, { bos_token = "<s>" }, limits)
    end)
    slowest = math.max(slowest, os.clock() - start)
    if not ok then error(("%q raised %s"):format(source, tostring(pieces))) end
    if pieces then
      rendered = rendered + 1
    else
      assert(type(err.message) == "string")
      if err.internal then error(("%q: %s"):format(source, err.message)) end
    end
  end
  print(("# %d of %d rendered, slowest %.1f ms")
    :format(rendered, ROUNDS, slowest * 1e3))
  assert(slowest < 2, "a template took too long")
end)

tap.done()
