#!/bin/sh
# lint.sh - the rules that a compiler does not check. Prints what is wrong; exit 1.
set -u
bad=0
rule() { # text, offending lines
    if [ -n "$2" ]; then
        printf '%s\n%s\n\n' "lint: $1" "$2"
        bad=1
    fi
}
code() { git ls-files '*.c' '*.h' '*.def' '*.cu' '*.cuh'; }

rule "kernels/ includes nothing of core/ or lua/" \
    "$(git ls-files kernels | xargs grep -nE '#include "(core|lua)/' 2>/dev/null)"
rule "core/ includes no Lua, except core/cli/main.c" \
    "$(git ls-files core | grep -v '^core/cli/main.c$' |
       xargs grep -nE '#include ["<](lua/|lua\.h|lauxlib|lualib|luajit)' 2>/dev/null)"
rule "core/ sees kernels only through kernels/kernels.h" \
    "$(git ls-files core | xargs grep -nE '#include "kernels/' 2>/dev/null | grep -v 'kernels/kernels.h')"
rule "lines of at most 100 columns, no tabs, no trailing blanks in C" \
    "$(code | xargs grep -nE '^.{101,}|	|[ ]+$' 2>/dev/null | head -20)"
rule "lines of at most 80 columns, no tabs, no trailing blanks in Lua" \
    "$(git ls-files '*.lua' | LC_ALL=C.UTF-8 xargs grep -nE '^.{81,}|	|[ ]+$' 2>/dev/null | head -20)"
rule "ASCII in code" "$(code | xargs grep -nP '[^\x00-\x7F]' 2>/dev/null | head -5)"
rule "assembly of the device in one file; of the host in two" \
    "$(git ls-files kernels | grep -vE '^kernels/(cuda/asm.cuh|emu/fiber.c|host/par.c)$' |
       xargs grep -nE '\b(asm|__asm__)\b *(volatile)? *\(' 2>/dev/null)"
rule "files of at most 600 lines" \
    "$(git ls-files core kernels lua policies examples tests | grep -E '\.(c|h|cu|cuh|lua)$' |
       xargs wc -l | awk '$2 != "total" && $1 > 600 {print $2 " has " $1}')"
rule "tracked files of at most 60 MiB in all" \
    "$(git ls-files -z | xargs -0 cat | wc -c | awk '$1 > 60 * 1024 * 1024 {print $1 " bytes"}')"
rule "a head comment in each C file" \
    "$(code | while read -r f; do head -c 2 "$f" | grep -q '^/\*' || echo "$f"; done)"
rule "no notes to oneself in what lands" \
    "$(git ls-files core kernels lua policies examples tests | grep -v tests/lint.sh |
       xargs grep -nE '\b(TODO|FIXME|XXX)\b' 2>/dev/null)"
rule "Lua that does not compile" \
    "$(git ls-files '*.lua' | grep -v tests/ | while read -r f; do luajit -bl "$f" >/dev/null 2>&1 || echo "$f"; done)"
rule "tests write nowhere in the tree" "$(git status --porcelain --ignored 2>/dev/null | grep -vE ' (build[^/]*/|config\.mk)' | grep '^!!')"
[ $bad -eq 0 ] && echo "lint: clean"
exit $bad
