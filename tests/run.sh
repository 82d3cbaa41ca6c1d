#!/bin/sh
# run.sh PROGRAM... - runs test programs that print TAP and adds them up.
# Last line: "N passed, N failed, N skipped". Exit 1 when anything failed or a program
# died without finishing its plan. Skips are shown with their reasons. What they leave in
# TMPDIR goes with the run.
set -u
TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/mascon-tests.XXXX") || exit 1
export TMPDIR
log=$TMPDIR/log
trap 'chmod -R u+w "$TMPDIR" && rm -rf "$TMPDIR"' EXIT
trap 'exit 1' INT TERM
pass=0 fail=0 skip=0
for t in "$@"; do
    case $t in
    *.py) CMOCKA_MESSAGE_OUTPUT=TAP python3 "$t" >"$log" 2>"$log.err" ;;
    *.lua) luajit "$t" >"$log" 2>"$log.err" ;;
    *) CMOCKA_MESSAGE_OUTPUT=TAP "$t" >"$log" 2>"$log.err" ;;
    esac
    rc=$?
    p=$(grep -E '^ok ' "$log" | grep -vciE '# *skip')
    s=$(grep -ciE '^(not )?ok .*# *skip' "$log") # cmocka says "not ok" of a skipped test
    f=$(grep -E '^not ok ' "$log" | grep -vciE '# *skip')
    plan=$(sed -n 's/^1\.\.\([0-9]*\).*/\1/p' "$log" | head -1)
    n=$((p + s + f))
    if [ "$f" -eq 0 ] && { [ "$rc" -ne 0 ] || [ -z "$plan" ] || [ "$n" -ne "$plan" ]; }; then
        f=1
        echo "DIED  $t: exit $rc after $n of ${plan:-?} tests"
    fi
    pass=$((pass + p)) fail=$((fail + f)) skip=$((skip + s))
    printf '%-44s %4d passed %3d failed %3d skipped\n' "$t" "$p" "$f" "$s"
    if [ "$f" -ne 0 ]; then
        grep -A12 '^not ok' "$log"
        tail -40 "$log.err"
    fi
    # cmocka's reason is the line before; ours stands behind the word
    [ "$s" -eq 0 ] || grep -iE -B1 '# *skip' "$log" | grep -vE '^(ok [^#]*$|--$|1\.\.)' | sed 's/^/    /'
done
echo "$pass passed, $fail failed, $skip skipped"
[ "$fail" -eq 0 ]
