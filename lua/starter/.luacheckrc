-- What a policy may name: see help() in `mascon attach`.
std = {
  read_globals = {
    "assert", "error", "pcall", "xpcall", "ipairs", "pairs", "next", "select", "tonumber",
    "tostring", "type", "unpack", "setmetatable", "collectgarbage", "string", "table",
    "math", "bit", "coroutine", "require", "mc",
  },
}
max_line_length = 100
unused_args = false -- hooks have the arguments that they have
exclude_files = { "types" }
