#!/usr/bin/env bash
# Runs one part of gpu_check.sh: scripts/gpu_check_parts.sh NAME. Reads the variables that
# gpu_check.sh exports. Each part prints what it found, and fails if something is wrong.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
: "${out:?run scripts/gpu_check.sh}" "${folder:?}" "${arch:?}" "${rehearsal:?}"
export TEST_DEVICE=cuda OMP_WAIT_POLICY=passive
: "${nvcc:?}" "${jobs:?}" "${wgmma:?}" "${batch:?}" "${seconds:?}" "${large:?}" "${sanitizer:?}"
: "${against?}"
tiny=() tiny_model=() # options of gpu_bench and ./train in a rehearsal
hopper=() # without Hopper's attention, if it failed
if [ "$wgmma" = "--wgmma 0" ]; then hopper=(--set cuda_wgmma=false); fi
gpt2=(--set model.preset=gpt2 --set data.seq_len=1024 --set train.micro_batch_size=1)
if [ "$rehearsal" -eq 1 ]; then
    tiny=(--tiny 1)
    for key in model.n_layer=1 model.n_head=2 model.n_embd=32 data.seq_len=16 \
        train.micro_batch_size=1 eval.batches=1; do
        tiny_model+=(--set "$key")
    done
    gpt2=("${tiny_model[@]}")
fi

# build_in CHECKOUT TARGET ...
build_in() {
    local at=$1
    shift
    # Without Criterion, so that tests can run without a process for each.
    make -C "$at" -k -j"$(nproc)" OUT="$folder" CRITERION=0 CUDA=1 NVCC="$nvcc" \
        CUDA_ARCH="$arch" "$@"
}

part_build() {
    local targets=()
    for target in train prepare compare device_tests gpu_bench; do
        targets+=("$folder/$target")
    done
    if [ "$rehearsal" -eq 1 ]; then
        make -k -j"$(nproc)" BUILD=emulated "${targets[@]}"
        return
    fi
    rm -f "${targets[@]}"
    build_in . "${targets[@]}" && return
    echo "a build that needed more time resumes where it stopped: run this again"
    return 1
}

# Compares the emulator with this GPU, instruction by instruction.
part_conformance() {
    local source objects=() compiling=() feature=
    if [ "$arch" -eq 90 ]; then feature=a; fi # instructions of Hopper
    # test_numbers.cu compares tensor cores with the emulator's sums.
    for source in test/cuda_emulator/test_*.cu test/cuda_emulator/tensor_core.cpp; do
        objects+=("$out/$(basename "$source").o")
        "$nvcc" -std=c++17 -O2 -I. -arch="sm_$arch$feature" -c -o "${objects[-1]}" "$source" &
        compiling+=($!)
    done
    for source in "${compiling[@]}"; do wait "$source" || return 1; done
    "$nvcc" -arch="sm_$arch$feature" -o "$out/conformance" "${objects[@]}" && rm "${objects[@]}" &&
        "$out/conformance"
}

tests() { # SECONDS FILTER
    "$folder/device_tests" --jobs "$jobs" --timeout "$1" --filter "$2"
}
# In a rehearsal a few tests stand for all, which run in make test-device.
part_attention() { tests 30 "$([ "$rehearsal" -eq 1 ] && echo 'attention_mma/causal' ||
    echo 'attention_mma*/*')"; }
part_operations() { tests 60 "$([ "$rehearsal" -eq 1 ] && echo '@(cast|clear|loss_sum|tensor)/*' ||
    echo '!(trainer|gpt*|*training)/*')"; }
part_models() { tests 55 "$([ "$rehearsal" -eq 1 ] && echo 'gpt_golden/bf16*' ||
    echo '@(trainer|gpt*|*training)/*')"; }

bench() { # NAME OPTION ...: figures go to NAME.json; runs that of the checkout $at
    local name=$1
    shift
    # shellcheck disable=SC2086
    "${at:-.}/$folder/gpu_bench" --json "$out/$name.json" $wgmma "$@" "${tiny[@]}"
}
part_bench() {
    bench gpu_bench --batch "$batch" --seconds "$seconds"
}
part_against() { # the same figures of the other checkout
    if [ "$rehearsal" -eq 0 ]; then build_in "$against" "$folder/gpu_bench" || return 1; fi
    at=$against bench against --batch "$batch" --seconds "$seconds" --precision bf16
}
part_autotune() { # products as the library ranks them, and as they are measured
    bench autotune --batch "$batch" --seconds 0.1 --precision bf16 --steps-only 1 --autotune 1
}
part_graphs() { # a small step, as a graph and operation by operation: host time and gaps
    local graphs status=0
    for graphs in 1 0; do
        bench "graphs_$graphs" --graphs "$graphs" --batch 4 --seq 256 --steps-only 1 \
            --seconds 0.1 --precision bf16 || status=1
    done
    return "$status"
}
part_large() { # GPT-2 XL's shape: master weights, moments and gradients take 25 GB
    local precision status=0
    for precision in bf16 fp8; do
        bench "large_$precision" --batch "$large" --layers 48 --width 1600 --heads 25 \
            --steps-only 1 --seconds 0.1 --precision "$precision" || status=1
    done
    return "$status"
}

part_torch() {
    local options=(--json "$out/torch_bench.json" --batch "$batch" --seconds 1)
    if [ "$rehearsal" -eq 1 ]; then options+=(--tiny); fi
    python3 scripts/torch_bench.py "${options[@]}"
}

part_save() {
    local model='{"preset": "gpt2", "vocab_size": 50257}'
    if [ "$rehearsal" -eq 1 ]; then
        model='{"n_layer": 1, "n_head": 2, "n_embd": 32, "n_positions": 64}'
    fi
    TRAIN=$folder/train DEVICE=cuda MODEL=$model scripts/bench_checkpoint.sh 1
}

# The largest batch that --fit allows must train: memory as planned, up to the brim.
part_brim() {
    local run=("$folder/train" --config bf16.json --device cuda --set run_dir="$out/brim"
        --set train.steps=3 --set eval.every=0 --set sample.every=0 "${gpt2[@]}" "${hopper[@]}")
    local fit=(--fit) found line
    if [ "$rehearsal" -eq 1 ]; then # 0.15 MiB less than it takes
        run+=(--set train.micro_batch_size=16)
        fit+=("$("${run[@]}" --dry-run --fit 0.0001 |
            awk '/it takes [0-9.]+ MiB/ { sub(/.*it takes /, ""); print ($1 - 0.15) / 1024 }')")
    else
        run+=(--set train.micro_batch_size=1024)
    fi
    found=$("${run[@]}" --dry-run "${fit[@]}") || return 1
    echo "$found"
    while read -r line; do run+=(--set "$line"); done < <(
        sed -nE 's/^  --set ([^ ]+).*/\1/p' <<<"$found")
    "${run[@]}"
    local status=$?
    rm -rf "$out/brim"
    return "$status"
}

# compute-sanitizer: four tools in parallel, on small shapes. A tool passes if it ends without
# errors, or found none before the time limit.
sanitize() { # TOOL
    local log=$out/$1.txt status
    timeout -k 5 60 "$sanitizer" --tool "$1" --error-exitcode 9 --target-processes all \
        "$folder/device_tests" --no-fork --verbose --filter \
        '@(cast|clear|loss*|layernorm|attention*|gelu|adamw|gradient_norm|embedding)/*' \
        >"$log" 2>&1
    status=$?
    if [ "$status" -eq 124 ] && grep -q '\[PASS\]' "$log" &&
        ! grep -qE '=========.*([Ii]nvalid|[Rr]ace|[Bb]arrier error|[Uu]ninit|leak)|\[FAIL\]' \
            "$log"; then
        echo "$1: nothing found in 60 s, $(grep -c '\[PASS\]' "$log") tests"
        return 0
    fi
    echo "$1: status $status; $(grep -E 'SUMMARY|Synthesis' "$log" | tr '\n' ' ')"
    if [ "$status" -ne 0 ]; then grep -E '^=========' "$log" | head -n 20; fi
    return "$status"
}
part_sanitizer() {
    local tool status=0 pids=()
    for tool in memcheck racecheck synccheck initcheck; do
        sanitize "$tool" &
        pids+=($!)
    done
    for tool in "${pids[@]}"; do wait "$tool" || status=1; done
    return "$status"
}

# The precision lab. Random differences between runs are no failure of this machine, so the
# comparison's verdict is only shown.
part_lab() {
    local status=0 run=(--device cuda "${hopper[@]}" "${tiny_model[@]}")
    if [ "$rehearsal" -eq 1 ]; then run+=(--set train.steps=40 --set optimizer.warmup_steps=4); fi
    rm -rf "$out/lab"
    TRAIN=$folder/train COMPARE=$folder/compare scripts/compare_precisions.sh fp16.json \
        --precisions fp32,bf16,fp16,fp8,nvfp4 --out "$out/lab" -- "${run[@]}" ||
        [ -s "$out/lab/report.json" ] || status=1
    "$folder/train" --audit --config fp16.json "${run[@]}" --out "$out/lab" || status=1
    cp "$out/lab/report.json" "$out/compare.json" && cp "$out/lab/audit.json" "$out/audit.json" ||
        status=1
    rm -rf "$out/lab"
    return "$status"
}

# shellcheck source=scripts/gpu_check_numbers.sh
. scripts/gpu_check_numbers.sh
"part_$1"
