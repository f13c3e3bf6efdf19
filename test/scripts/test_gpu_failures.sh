#!/usr/bin/env bash
# Makes calls of CUDA or cuBLASLt fail in gpu_bench, each in turn, early and late: it must report
# the measurement that failed, and continue to its last table. Also makes graphs fail in ./train.
# Uses $GPU_BENCH, of an emulated build, and the train beside it.
set -euo pipefail
cd "$(dirname "$0")/../.."
bench=${GPU_BENCH:-build/emulated/gpu_bench}
folder=$(mktemp -d "${TMPDIR:-/tmp}/gpu failures.XXXXXX")
trap 'rm -rf "$folder"' EXIT
export XDG_CACHE_HOME=$folder/cache # a run that counts on trials of its own takes another
failures=0 ran=0
options=(--tiny 1 --precision bf16 --seconds 0.001)

wrong() {
    echo "FAIL: CUDA_EMULATOR_FAIL=$1: $2"
    tail -n 5 "$folder/said"
    failures=$((failures + 1))
}

for call in cudaMalloc cudaHostAlloc cudaMemGetInfo cudaMemcpyAsync cudaMemsetAsync \
    cudaStreamCreateWithFlags cudaStreamSynchronize cudaEventCreateWithFlags cudaEventRecord \
    cudaEventSynchronize cudaEventElapsedTime cudaFuncSetAttribute launch cublasLtCreate \
    cublasLtMatmul cublasLtMatmulAlgoGetHeuristic; do
    for number in 1 25; do
        status=0
        ran=$((ran + 1))
        CUDA_EMULATOR_FAIL=$call:$number timeout 60 "$bench" "${options[@]}" \
            --json "$folder/bench.json" >"$folder/said" 2>&1 || status=$?
        said=$(grep -c "failed: " "$folder/said" || true)
        # If no call has that number, or there is a fallback, nothing is lost.
        if [ "$status" = 0 ] && [ "$said" = 0 ]; then continue; fi
        if [ "$status" != 1 ] || [ "$said" = 0 ]; then
            wrong "$call:$number" "status $status, $said times \"failed\""
        elif grep -q "opening the GPU: failed" "$folder/said"; then
            continue # there is nothing to measure
        elif ! grep -q "^  clear  *[0-9]" "$folder/said"; then
            wrong "$call:$number" "it does not come to its end"
        elif [ "$(tail -c 2 "$folder/bench.json")" != "}" ]; then
            wrong "$call:$number" "its JSON does not end"
        fi
    done
done
# A matmul that the library rejects is no failure: there is another algorithm.
CUDA_EMULATOR_FAIL=cublasLtMatmul:1 timeout 60 "$bench" "${options[@]}" >"$folder/said" 2>&1 ||
    wrong cublasLtMatmul:1 "no other algorithm was taken"
grep -q "it was told to fail" "$folder/said" || wrong cublasLtMatmul:1 "nothing was to fail"

# Other GPUs and libraries: unsupported measurements are reported, the rest is measured.
measures() { # WHAT SAID ENVIRONMENT ...: SAID is in the output; every operation is measured
    local what=$1 said=$2 status=0
    shift 2
    ran=$((ran + 1))
    env "$@" timeout 60 "$bench" --tiny 1 --seconds 0.001 >"$folder/said" 2>&1 || status=$?
    if [ "$status" -gt 1 ] || ! grep -qE -- "$said" "$folder/said" ||
        ! grep -q "^  clear  *[0-9]" "$folder/said"; then
        wrong "$*" "$what: status $status, or it does not say: $said"
    fi
}
measures "a card without bf16" "bf16.*failed: .*bf16" CUDA_EMULATOR_SM=75
measures "one without 8 bits" "Without 8-bit tensor cores" CUDA_EMULATOR_SM=80
measures "one with one attention" "Attention, causal" CUDA_EMULATOR_SM=80
measures "one with two" "Attention, mma.sync" CUDA_EMULATOR_SM=90
measures "a library without GELU" \
    "fallback: matmul .*epilogue bias, instead of bf16 x bf16, gelu_bias: .*status 15" \
    CUBLASLT_REFUSE=164
measures "one that lies about GELU" "what its heuristics have offered" CUBLASLT_LIE=164
measures "and about its gradient" "what its heuristics have offered" CUBLASLT_LIE=192

# A graph that cannot be recorded, instantiated or launched: operations are launched one by one,
# with the same bits.
cat >"$folder/small.json" <<'END'
{"model": {"n_layer": 1, "n_head": 1, "n_embd": 64, "n_positions": 32}, "data": {"seq_len": 32},
 "precision": "bf16", "train": {"steps": 6, "micro_batch_size": 2}, "eval": {"every": 0},
 "sample": {"every": 0}}
END
trains() { # NAME ENVIRONMENT ...: prints the digest of a short training
    local name=$1
    shift
    env "$@" OMP_NUM_THREADS=1 timeout 120 "${bench%gpu_bench}train" --device cuda \
        --config "$folder/small.json" --set run_dir="$folder" --set name="$name" \
        >"$folder/said" 2>&1 || echo "status $?"
    find "$folder/$name" -name model.safetensors -exec sha256sum {} + | cut -d ' ' -f 1
}
whole=$(trains whole)
[ ${#whole} = 64 ] || wrong "(training)" "no weights: $whole"
for call in cudaStreamBeginCapture cudaStreamEndCapture cudaGraphInstantiate cudaGraphLaunch; do
    for number in 1 4; do
        ran=$((ran + 1))
        left=$(trains "$call$number" CUDA_EMULATOR_FAIL=$call:$number)
        [ "$left" = "$whole" ] || wrong "$call:$number" "other weights: $left, not $whole"
        grep -q "graphs do not work here" "$folder/said" ||
            wrong "$call:$number" "nothing is said of it"
    done
done
trains refused XDG_CACHE_HOME="$folder/untried" CUBLASLT_REFUSE=164 >/dev/null
grep -q "^  fallback   matmul .*gelu_bias: " "$folder/said" || wrong "(banner)" "no fallback in it"
# Memory that runs out after planning.
ran=$((ran + 1))
left=$(trains lazy CUDA_EMULATOR_LAZY=$((4 << 30)))
[ "$left" = "status 1" ] || wrong "(late memory)" "not an end with status 1: $left"
grep -q "out of memory" "$folder/said" || wrong "(late memory)" "no reason"
grep -q "train.micro_batch_size" "$folder/said" || wrong "(late memory)" "no remedy"
[ $failures = 0 ] || exit 1
echo "gpu_bench and train: $ran runs amid failures, all as expected"
