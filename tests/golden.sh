#!/bin/sh
# golden.sh - every checkpoint of tests/models against its golden files, as TAP: on ref with
# f32 keys and values (absolute tolerances), on cpu with bf16 and fp8, on 2 and 4 ranks.
# LONG=1: SmolLM2 on ref too, and Kimi and GLM there under a sanitizer, which takes minutes.
set -u
M=${MASCON:-build/mascon}
n=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
one() { # model golden flags...
    model=$1 golden=$2
    shift 2
    n=$((n + 1))
    if "$M" eval "$model" --golden "$golden" "$@" >"$log" 2>&1; then
        echo "ok $n - $model $*"
    else
        echo "not ok $n - $model $*"
        sed 's/^/# /' "$log"
    fi
}
for flags in "--backend ref --kv f32" "--backend cpu --kv bf16" "--backend cpu --kv fp8"; do
    # shellcheck disable=SC2086
    {
        for v in "" -fp8 -w4a16 -nvfp4; do
            one tests/models/tiny-llama$v tests/models/tiny-llama$v/golden $flags
        done
        one tests/models/tiny-llama-gguf/tiny-llama-q8_0.gguf \
            tests/models/tiny-llama-gguf/golden/q8_0 $flags
        for v in qwen3-moe kimi glm; do
            case "$M $flags $v ${LONG:-short}" in # prompts of 1500 tokens: too slow there
            *san*ref*kimi*short | *san*ref*glm*short)
                n=$((n + 1))
                echo "ok $n - tests/models/tiny-$v $flags # SKIP minutes under a sanitizer (LONG=1)"
                ;;
            *) one tests/models/tiny-$v tests/models/tiny-$v/golden $flags ;;
            esac
        done
    }
done
# Without a scale tiny-glm's latents lose more than the mark allows (top-1 agreement 0.954
# over 14,535 positions, KL 0.0035: eval --text tests/corpus/heldout.txt --kv fp8-plain
# --against tests/models/tiny-glm --against-kv f32): fp8 there is fp8-656.
one tests/models/tiny-kimi tests/models/tiny-kimi/golden --backend cpu --kv fp8-plain
# Every chunk, and only long ones, by keys and values expanded from the latents.
for rows in 1 128; do
    one tests/models/tiny-kimi tests/models/tiny-kimi/golden --backend cpu --kv bf16 --mla-expand $rows
done
# Ranks that share a model: the oracle's exact tolerances, and every format cut.
for r in 2 4; do
    one tests/models/tiny-llama tests/models/tiny-llama/golden --backend ref --kv f32 --ranks $r
    for v in -fp8 -w4a16 -nvfp4; do
        one tests/models/tiny-llama$v tests/models/tiny-llama$v/golden --backend cpu \
            --kv bf16 --ranks $r
    done
    one tests/models/tiny-llama-gguf/tiny-llama-q8_0.gguf \
        tests/models/tiny-llama-gguf/golden/q8_0 --backend cpu --kv bf16 --ranks $r
    one tests/models/tiny-glm tests/models/tiny-glm/golden --backend cpu --kv f32 --ranks $r
    one tests/models/tiny-kimi tests/models/tiny-kimi/golden --backend cpu --kv bf16 --ranks $r
done
one tests/models/tiny-qwen3-moe tests/models/tiny-qwen3-moe/golden --backend ref --kv f32 --ranks 2
# The demo's model, when it is here: transformers in fp32 from the same GGUF.
smol=${XDG_CACHE_HOME:-$HOME/.cache}/mascon/SmolLM2-135M-Instruct.Q4_1.gguf
for flags in "--backend cpu --kv f32" "--backend cpu --kv bf16" ${LONG:+"--backend ref --kv f32"}; do
    if [ -f "$smol" ]; then
        # shellcheck disable=SC2086
        one "$smol" tests/golden/smollm2 $flags
    else
        n=$((n + 1))
        echo "ok $n - SmolLM2-135M-Instruct $flags # SKIP no $smol (make demo gets it)"
    fi
done
echo "1..$n"
