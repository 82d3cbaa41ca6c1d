--- test_messages.lua: histories in every spelling become one.

package.path = "lua/?.lua;tests/lua/?.lua;" .. package.path

local data = require "mc.data"
local json = require "json"
local messages = require "mc.messages"
local tap = require "tap"
local template = require "mc.template"

local function decode(text)
  local ok, value = pcall(json.decode, text)
  return ok and value or nil
end

local function prepare(text, opts)
  opts = opts or {}
  opts.decode = decode
  return messages.prepare(json.decode(text), opts)
end

local function read(path)
  return assert(io.open(path, "rb")):read("*a")
end

local TEMPLATES = {}
for _, name in ipairs {
  "models/tiny-glm/chat_template",
  "models/tiny-kimi/chat_template",
  "models/tiny-llama/chat_template",
  "models/tiny-qwen3-moe/chat_template",
  "golden/chat/styles/qwen_think",
  "golden/chat/styles/llama3_tools",
  "golden/chat/styles/harmony",
  "golden/chat/styles/deepseek",
} do
  TEMPLATES[name] = assert(template.compile(read("tests/" .. name .. ".jinja"),
    { clock = function() return 0 end }))
end

local function render(name, list)
  local pieces, err = TEMPLATES[name]:render(
    { messages = list, add_generation_prompt = true },
    { bos_token = "<s>", eos_token = "</s>" })
  return pieces and template.text(pieces), err and err.message
end

local HISTORY = [[ [
  {"role": "user", "content": "Weather?"},
  {"role": "assistant", "content": %s, "tool_calls": [{
    "id": "call12345", "type": "function",
    "function": {"name": "get_weather", "arguments": %s}}]},
  {"role": "tool", "tool_call_id": "call12345", "content": %s},
  {"role": "user", "content": %s, "tool_calls": %s}
] ]]

local function history(content, arguments, answer, last, calls)
  local text = HISTORY:format(content, arguments, answer, last, calls)
  return assert(prepare(text))
end

tap.test("messages_arguments_as_text_or_object_render_alike", function()
  for name in pairs(TEMPLATES) do
    local object = history('""', '{"city": "Oslo"}', '"21"', '"ok"', "null")
    local want, err = render(name, object)
    assert(want, name .. ": " .. tostring(err))
    local text =
      history('""', [["{\"city\":\"Oslo\"}"]], '"21"', '"ok"', "null")
    tap.equal(render(name, text), want, name)
  end
end)

tap.test("messages_null_parts_and_empty_lists_render_like_text", function()
  for name in pairs(TEMPLATES) do
    local want = render(name, history('""', "{}", '"21"', '"a"', "null"))
    for _, made in ipairs {
      history("null", "{}", '"21"', '[{"type": "text", "text": "a"}]', "[]"),
      history("[]", '""', '[{"type": "text", "text": "21"}]', '["a"]', "[]"),
      history('""', "null", '"21"', '"a"', "[]"),
    } do
      tap.equal(render(name, made), want, name)
    end
  end
end)

tap.test("messages_arguments_that_are_no_object_stay_text", function()
  for _, text in ipairs { [["{oops"]], [["[1]"]], [["5"]], [["\"x\""]] } do
    local made = history('""', text, '"21"', '"ok"', "null")
    tap.equal(made[2].tool_calls[1]["function"].arguments, json.decode(text))
    for name in pairs(TEMPLATES) do
      local out, err = render(name, made)
      assert(out or (err and not err:find("internal")),
        name .. ": " .. tostring(err))
    end
  end
end)

tap.test("messages_parts_are_lines", function()
  local made = assert(prepare [[ [{"role": "user", "content": [
    {"type": "text", "text": "a"},
    {"type": "text", "text": ""},
    {"type": "text", "text": "b"}]}] ]])
  tap.equal(made[1].content, "a\n\nb")
end)

tap.test("messages_reasoning_has_all_its_names", function()
  local made = assert(prepare [[ [
    {"role": "assistant", "content": "x", "reasoning": "r"},
    {"role": "assistant", "content": "x", "thinking": "t"},
    {"role": "assistant", "content": "x", "reasoning_content": "c",
     "thinking": "t"},
    {"role": "assistant", "content": "x", "reasoning_content": null}] ]])
  local out = {}
  for i, m in ipairs(made) do
    out[i] = tostring(m.reasoning_content) .. "/" .. tostring(m.thinking)
  end
  tap.equal(table.concat(out, " "), "r/r t/t c/t null/nil")
end)

tap.test("messages_calls_are_numbered_for_kimi", function()
  local made = assert(prepare([[ [
    {"role": "assistant", "tool_calls": [
      {"id": "a", "function": {"name": "f"}}, {"function": {"name": "g"}}]},
    {"role": "tool", "tool_call_id": "a", "content": "1"},
    {"role": "assistant", "tool_calls": [
      {"id": "a", "function": {"name": "f"}}]},
    {"role": "tool", "tool_call_id": "a", "content": "2"},
    {"role": "tool", "tool_call_id": "unknown", "content": "3"}] ]],
    { call_ids = "functions" }))
  tap.equal(made[1].tool_calls[1].id, "functions.f:0")
  tap.equal(made[1].tool_calls[2].id, "functions.g:1")
  tap.equal(made[2].tool_call_id, "functions.f:0")
  tap.equal(made[3].tool_calls[1].id, "functions.f:2")
  tap.equal(made[4].tool_call_id, "functions.f:2")
  tap.equal(made[5].tool_call_id, "unknown")
end)

tap.test("messages_call_ids_are_told_by_the_template", function()
  for name in pairs(TEMPLATES) do
    tap.equal(messages.call_ids(read("tests/" .. name .. ".jinja")),
              name:find("kimi") and "functions" or nil, name)
  end
end)

tap.test("messages_numbered_once_stay_as_they_are", function()
  local text = HISTORY:format('""', "{}", '"21"', '"ok"', "null")
  local once = assert(prepare(text, { call_ids = "functions" }))
  local again =
    assert(messages.prepare(once, { decode = decode, call_ids = "functions" }))
  tap.equal(once[2].tool_calls[1].id, "functions.get_weather:0")
  tap.equal(again[2].tool_calls[1].id, once[2].tool_calls[1].id)
  tap.equal(again[3].tool_call_id, once[2].tool_calls[1].id)
end)

tap.test("messages_given_are_left_as_they_are", function()
  local given =
    json.decode(HISTORY:format("null", [["{}"]], "null", "null", "[]"))
  local made =
    assert(messages.prepare(given, { decode = decode, call_ids = "functions" }))
  assert(made ~= given and made[2] ~= given[2])
  tap.equal(given[2].tool_calls[1].id, "call12345")
  tap.equal(given[2].tool_calls[1]["function"].arguments, "{}")
  tap.equal(given[2].content, data.null)
  tap.equal(table.concat(data.keys(made[2]), " "), "role content tool_calls")
end)

tap.test("messages_say_what_is_wrong_and_where", function()
  for _, case in ipairs {
    { [[{}]], "messages" },
    { [[ [] ]], "messages" },
    { [["x"]], "messages" },
    { [[ ["x"] ]], "messages[0]" },
    { [[ [{"role": "user"}, {"content": "x"}] ]], "messages[1]" },
    { [[ [{"role": "user", "content": 5}] ]], "messages[0].content" },
    { [[ [{"role": "user", "content": true}] ]], "messages[0].content" },
    { [[ [{"role": "user", "content": {"type": "text"}}] ]],
      "messages[0].content" },
    { [[ [{"role": "user", "content": [
        {"type": "text", "text": "a"}, {"type": "image_url"}]}] ]],
      "messages[0].content[1]" },
    { [[ [{"role": "user", "content": [5]}] ]], "messages[0].content[0]" },
    { [[ [{"role": "user", "content": [{"type": "image", "text": "a"}]}] ]],
      "messages[0].content[0]" },
    { [[ [{"role": "assistant", "tool_calls": {"a": 1}}] ]],
      "messages[0].tool_calls" },
    { [[ [{"role": "assistant", "tool_calls": "x"}] ]],
      "messages[0].tool_calls" },
    { [[ [{"role": "assistant", "tool_calls": [{"id": "x"}]}] ]],
      "messages[0].tool_calls[0]" },
    { [[ [{"role": "assistant", "tool_calls": [5]}] ]],
      "messages[0].tool_calls[0]" },
  } do
    local made, err = prepare(case[1])
    assert(not made, case[1])
    tap.equal(err.param, case[2], case[1])
    assert(err.message ~= "", case[1])
  end
end)

tap.done()
