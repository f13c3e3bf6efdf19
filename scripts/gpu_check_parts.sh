#!/usr/bin/env bash
# Runs one part of gpu_check.sh: scripts/gpu_check_parts.sh NAME. Reads the variables that
# gpu_check.sh exports. Each part prints what it found, and fails if something is wrong.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
: "${out:?run scripts/gpu_check.sh}" "${folder:?}" "${arch:?}" "${rehearsal:?}"
export TEST_DEVICE=cuda OMP_WAIT_POLICY=passive
: "${nvcc:?}" "${jobs:?}" "${batch:?}" "${seconds:?}" "${large:?}" "${sanitizer:?}" "${ncu:?}"
: "${against?}"
tiny=() tiny_model=() # options of gpu_bench and ./train in a rehearsal
gpt2=(--set model.preset=gpt2 --set data.seq_len=1024 --set train.micro_batch_size=1)
if [ "$rehearsal" -eq 1 ]; then
    tiny=(--tiny 1)
    for key in model.n_layer=1 model.n_head=2 model.n_embd=32 data.seq_len=16 \
        train.micro_batch_size=1 eval.batches=1; do
        tiny_model+=(--set "$key")
    done
    gpt2=("${tiny_model[@]}")
fi

# Runs, whose checkpoints have 1.5 GB, are written to memory if there is enough.
runs=$out/runs
free=$(df --output=avail -k /dev/shm 2>/dev/null | tail -n 1)
if [ "${free:-0}" -gt 8000000 ]; then runs=/dev/shm/gpu_check.$(id -u); fi

# build_in CHECKOUT TARGET ...
build_in() {
    local at=$1
    shift
    # Without Criterion, so that tests can share a process.
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
    build_in . "${targets[@]}" && return
    echo "a build that needed more time resumes where it stopped: run this again"
    return 1
}

# Compares the emulator with this GPU, instruction by instruction.
part_conformance() {
    build_in . "$folder/conformance" || {
        echo "NO   the conformance test does not compile: nothing was compared"
        return 1
    }
    "$folder/conformance"
}

# Tests that fail run again, alone and by name. In a rehearsal a few stand for all, which run in make
# test-device, and Criterion may be the runner.
part_tests() {
    local options=(--jobs "$jobs" --timeout 60 --share) filter='*' log=$out/tests-first.log names
    if [ "$rehearsal" -eq 1 ]; then
        options=(--jobs "$jobs" --timeout 240)
        filter='@(cast/*|clear/*|attention_mma/causal|gpt_golden/bf16*)'
    fi
    "$folder/device_tests" "${options[@]}" --filter "$filter" 2>&1 | tee "$log"
    [ "${PIPESTATUS[0]}" -eq 0 ] && return
    names=$(sed -nE 's/^\[(FAIL|CRASH)\] ([^:]+)::([^ :]+).*/\2\/\3/p' "$log" | sort -u | head -n 30 | paste -sd '|')
    [ -n "$names" ] || return 1
    echo "again, alone: $names"
    timeout 40 "$folder/device_tests" --jobs 1 --timeout 30 --filter "@($names)"
}

bench() { # NAME OPTION ...: figures go to NAME.json; runs that of the checkout $at
    local name=$1
    shift
    "${at:-.}/$folder/gpu_bench" --json "$out/$name.json" "$@" "${tiny[@]}"
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
            --steps-only 1 --seconds 0.1 --precision "$precision" --autotune 1 || status=1
    done
    return "$status"
}

part_torch() {
    local options=(--batch "$batch" --seconds 1 --steps-only)
    if [ "$rehearsal" -eq 1 ]; then options+=(--tiny); fi
    python3 scripts/torch_bench.py "${options[@]}" --precision bf16 --json "$out/torch_bench.json"
    python3 scripts/torch_bench.py "${options[@]}" --precision bf16 --eager
    python3 scripts/torch_bench.py "${options[@]}" --precision fp16 --precision tf32 \
        --precision fp32 --json "$out/torch_more.json"
}
part_attention_torch() {
    python3 scripts/torch_bench.py --attention-only --seconds 1 --json "$out/torch_attention.json"
}

# Prints the memory and the last of 12 steps of a run: NAME OPTION ...
twelve_steps() {
    local name=$1
    shift
    echo "$name"
    "$folder/train" --device cuda --set run_dir="$runs" --set name=twelve --set train.steps=12 \
        --set data.train=tales --set data.val= --set data.tokenizer=bytes --set eval.every=0 \
        --set sample.every=0 --set checkpoint.every=0 --set optimizer.warmup_steps=0 "$@" |
        grep -E 'memory|step +12/'
}

# LoRA on an 8B model of random weights, whose frozen layers are in GPU memory or streamed: if copies
# overlap with work, the step takes the longer of the two. PEFT on the same.
part_lora() {
    local base streams model=$runs/llama options status=0
    python3 scripts/torch_lora.py --write "$model" || return 1
    options=(--config finetune-lora.json --set precision=bf16 --set model.init_from="$model"
        --set data.seq_len=4096 --set train.micro_batch_size=1 --set train.grad_accum_steps=1
        --set adapter.dropout=0)
    for base in bfloat16 nf4; do
        for streams in false true; do
            twelve_steps "base $base, offload.weights $streams" "${options[@]}" \
                --set adapter.base="$base" --set offload.weights="$streams" || status=1
            rm -rf "$runs/twelve"
        done
    done
    python3 scripts/torch_lora.py --train "$model" 2>&1 | tail -n 1
    rm -rf "$runs"
    return "$status"
}

# Fine-tuning of all weights, here and in transformers. What is in host memory costs no time while its
# copies take less than the work of a step.
part_full() {
    local setting settings options status=0
    options=(--config bf16.json --set model.preset=gemma-3-1b --set data.seq_len=1024
        --set train.micro_batch_size=4)
    if [ "$rehearsal" -eq 1 ]; then
        options+=("${tiny_model[@]}" --set model.vocab_size=256 --set model.n_inner=32
            --set model.head_dim=16)
    fi
    for settings in optimizer.moments=int8 offload.weights=true offload.gradients=true \
        offload.activations=true \
        "offload.weights=true offload.gradients=true offload.optimizer=true" \
        optimizer.moments=float32; do
        rm -rf "$runs/twelve"
        set -- "${options[@]}"
        for setting in $settings; do set -- "$@" --set "$setting"; done
        twelve_steps "$settings" "$@" || status=1
    done
    if [ "$rehearsal" -eq 0 ] && [ "${torch:-1}" -eq 1 ]; then
        python3 scripts/torch_lora.py --train --full --compile --batch 4 --seq 1024 \
            "$runs"/twelve/checkpoints/step-00000012 2>&1 | tail -n 1
    fi
    rm -rf "$runs/twelve"
    return "$status"
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
    local run=("$folder/train" --config bf16.json --device cuda --set run_dir="$runs"
        --set name=brim --set train.steps=3 --set eval.every=0 --set sample.every=0 "${gpt2[@]}")
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
    rm -rf "$runs/brim"
    return "$status"
}

# compute-sanitizer: its tools in parallel, each suite by suite on small shapes until its time is
# over. Prints what ran. racecheck does not know wgmma's asynchronous reads: those suites go apart.
sanitize() { # TOOL SUITE ...
    local tool=$1 log=$out/$1.txt suite status=0 end=$((SECONDS + 60)) done=() last
    shift
    : >"$log"
    for suite in "$@"; do
        timeout -k 5 $((end - SECONDS > 0 ? end - SECONDS : 1)) "$sanitizer" --tool "$tool" \
            --error-exitcode 9 --target-processes all "$folder/device_tests" --no-fork \
            --filter "$suite/*" >>"$log" 2>&1
        last=$?
        if [ "$last" -eq 124 ] || [ "$last" -eq 137 ]; then break; fi
        if [ "$last" -ne 0 ]; then status=1 && suite="$suite (status $last)"; fi
        done+=("$suite")
    done
    echo "$([ $status -eq 0 ] && echo ok || echo NO)   $tool: ${#done[@]} of $# suites: ${done[*]}"
    if [ $status -ne 0 ]; then grep -E '^=========|^\[FAIL' "$log" | head -n 20; fi
    return "$status"
}
part_sanitizer() {
    local tool status=0 pids=() suites=(cast clear loss_sum adamw gradient_norm gelu embedding
        column_sums quantize layernorm dropout matmul moments momentum qk_norm attention
        attention_mma attention_mma_backward)
    for tool in memcheck synccheck initcheck; do
        sanitize "$tool" "${suites[@]}" &
        pids+=($!)
    done
    sanitize racecheck "${suites[@]:0:16}" &
    pids+=($!)
    for tool in "${pids[@]}"; do wait "$tool" || status=1; done
    return "$status"
}

# Counters of one step of a model of two layers; the ten longest kernels.
part_counters() {
    "$ncu" --clock-control none -s 150 -c 90 --section SpeedOfLight --section Occupancy --csv \
        --page details "$folder/gpu_bench" --precision bf16 --steps-only 1 --graphs 0 \
        --batch "$batch" --layers 2 --seconds 0.001 >"$out/counters.csv" || return 1
    echo "launches x us, % of the memory's rate, of the multiprocessors', occupancy, longest first"
    awk -F '","' '
        /^"[0-9]/ {
            id = substr($1, 2); name[id] = substr($5, 1, 60); value = $15; gsub(/[",]/, "", value)
            if ($13 == "Duration") us[id] = value / ($14 ~ /^ns/ ? 1000 : 1)
            else if ($13 == "DRAM Throughput") dram[id] = value
            else if ($13 == "Compute (SM) Throughput") sm[id] = value
            else if ($13 == "Achieved Occupancy") held[id] = value
        }
        END {
            for (id in us) { n[name[id]]++; total[name[id]] += us[id]; last[name[id]] = id }
            for (k in n) { id = last[k]
                printf "%10.1f %3d x %8.1f %6.1f %6.1f %6.1f  %s\n", total[k], n[k],
                    total[k] / n[k], dram[id], sm[id], held[id], k }
        }' "$out/counters.csv" | sort -rn | head -n 10 | cut -c 12-
}

# The precision lab. Random differences between runs are no failure of this machine, so the
# comparison's verdict is only shown.
part_lab() {
    local status=0 run=(--device cuda "${tiny_model[@]}")
    if [ "$rehearsal" -eq 1 ]; then run+=(--set train.steps=40 --set optimizer.warmup_steps=4); fi
    TRAIN=$folder/train COMPARE=$folder/compare scripts/compare_precisions.sh fp16.json \
        --precisions fp32,bf16,fp16,fp8,nvfp4 --out "$runs/lab" -- "${run[@]}" ||
        [ -s "$runs/lab/report.json" ] || status=1
    "$folder/train" --audit --config fp16.json "${run[@]}" --out "$runs/lab" || status=1
    cp "$runs/lab/report.json" "$out/compare.json" && cp "$runs/lab/audit.json" "$out/audit.json" ||
        status=1
    rm -rf "$runs/lab"
    return "$status"
}

# shellcheck source=scripts/gpu_check_numbers.sh
. scripts/gpu_check_numbers.sh
"part_$1"
