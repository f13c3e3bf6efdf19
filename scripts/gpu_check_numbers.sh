#!/usr/bin/env bash
# The part of gpu_check.sh that compares numbers at real shapes: the losses and gradient norms of
# the first three steps of GPT-2 124M, 1 x 1024 tokens. Read by gpu_check_parts.sh, whose variables
# it uses.
# shellcheck disable=SC2154

numbers=$out/numbers
export CUBLASLT_LOG_MASK=5 CUBLASLT_LOG_FILE=$out/cublaslt-%i.txt # errors and hints

# train NAME DEVICE MORE ...: three steps, with the products that the library ranks first, since
# trials that time ends may choose others the second time. Keeps metrics.jsonl as NAME.jsonl, and trainer.json,
# which has the SHA-256 of weights and moments, as NAME.json; and the run if KEEP is set.
train() {
    local name=$1 device=$2
    shift 2
    rm -rf "${runs:?}/$name"
    "$folder/train" --config fp32.json --device "$device" --set run_dir="$runs" \
        --set name="$name" --set train.steps=3 --set optimizer.warmup_steps=2 \
        --set eval.every=0 --set sample.every=0 --set log.every=10 \
        --set checkpoint.background=false --set autotune=off \
        "${gpt2[@]}" "$@" >"$numbers/$name.txt" 2>&1 || {
        echo "$name: failed"
        tail -n 5 "$numbers/$name.txt"
        return 1
    }
    finish "$name"
}
finish() { # NAME
    local last
    last=$(find "$runs/$1/checkpoints" -name trainer.json | sort | tail -n 1)
    if [ -n "$last" ]; then cp "$last" "$numbers/$1.json"; fi
    cp "$runs/$1/metrics.jsonl" "$numbers/$1.jsonl"
    if [ -z "${KEEP:-}" ]; then rm -rf "${runs:?}/$1"; fi
}

compared="fp32 bf16 fp16 fp8 mxfp8 nvfp4"

# The CPU's runs, which need no GPU: made before, or beside the tests on half of the cores.
part_references() {
    local precision status=0 threads=$((($(nproc) + 1) / 2))
    if [ "$arch" -eq 0 ]; then threads=$(nproc); fi
    mkdir -p "$numbers"
    for precision in $compared; do
        train "cpu-$precision" cpu --set precision="$precision" \
            --set threads="$threads" || status=1
    done
    return "$status"
}

# close A B LOSS NORM WHAT: the losses of each step agree to LOSS, the norms to NORM, relatively.
close() {
    local a=$numbers/$1.jsonl b=$numbers/$2.jsonl
    if [ ! -s "$b" ]; then
        echo "-    $5: there was no time for $2"
        return 0
    elif [ ! -s "$a" ]; then
        echo "NO   $5: there is no run"
        return 1
    fi
    paste "$a" "$b" | awk -v loss="$3" -v norm="$4" -v what="$5" '
        function field(line, name) {
            if (!match(line, "\"" name "\": [-+.0-9e]+")) return "nan"
            return substr(line, RSTART + length(name) + 4, RLENGTH - length(name) - 4) + 0
        }
        function apart(x, y) { return x == "nan" || y == "nan" || y == 0 ? 9 : abs(x / y - 1) }
        function abs(x) { return x < 0 ? -x : x }
        BEGIN { FS = "\t" }
        $1 ~ /"loss"/ {
            n++
            x = apart(field($1, "loss"), field($2, "loss"))
            y = apart(field($1, "grad_norm"), field($2, "grad_norm"))
            if (x > loss || y > norm) bad = 1
            text = text sprintf("  %.1e %.1e", x, y)
        }
        END {
            printf "%s %-34s%s\n", n == 3 && !bad ? "ok  " : "NO  ", what, text
            exit !(n == 3 && !bad)
        }'
}

# same A B WHAT: equal weights and moments, by their SHA-256.
same() {
    local a b
    a=$(grep -s safetensors "$numbers/$1.json")
    b=$(grep -s safetensors "$numbers/$2.json")
    if [ -n "$a" ] && [ "$a" = "$b" ]; then
        echo "ok   $3: the same bits"
    else
        echo "NO   $3: other bits"
        return 1
    fi
}

# Prints how much the loss and the norm of a step may differ, relatively. GPU and CPU round in the
# same places but add in another order, as two levels of CPU instructions do. Those
# (MANTISSA_CPU=v3 and v4, the same three steps) differ by at most 1.1e-7 and 2.3e-7 in fp32,
# 5.9e-5 and 2.5e-4 in 16 bit, 2.2e-4 and 9.2e-4 in fp8, 3.2e-4 and 2.3e-3 in mxfp8, 6.0e-4 and
# 3.4e-3 in nvfp4; about 15 times that is allowed, and more in fp32, since a GPU's exponentials and
# roots are approximations.
limits() { # PRECISION
    case $1 in
    fp32) echo "1e-5 1e-4" ;;
    bf16 | fp16) echo "1e-3 4e-3" ;;
    fp8) echo "3e-3 1.4e-2" ;;
    mxfp8) echo "5e-3 3.5e-2" ;;
    nvfp4) echo "9e-3 5e-2" ;;
    esac
}

part_numbers() {
    local precision status=0 loss norm
    mkdir -p "$numbers"
    train gpu-bf16 cuda --set precision=bf16 || status=1
    train again cuda --set precision=bf16 && same again gpu-bf16 "bf16 twice" || status=1
    train one-by-one cuda --set precision=bf16 --set cuda_graphs=false &&
        same one-by-one gpu-bf16 "bf16 without graphs" || status=1
    KEEP=1 train resumed cuda --set precision=bf16 --set checkpoint.every=2 &&
        rm -rf "$runs"/resumed/checkpoints/*3 "$numbers/resumed.json" &&
        "$folder/train" --resume "$runs/resumed" >"$numbers/resumed.txt" 2>&1
    finish resumed
    same resumed gpu-bf16 "bf16 resumed after step 2" || status=1
    echo "     differences of loss and gradient norm, steps 1 to 3"
    for precision in $compared; do
        [ "$precision" = bf16 ] || train "gpu-$precision" cuda --set precision="$precision" ||
            status=1
        read -r loss norm < <(limits "$precision")
        close "gpu-$precision" "cpu-$precision" "$loss" "$norm" "$precision, GPU and CPU" ||
            status=1
    done
    for precision in fp8 nvfp4; do
        train "$precision-again" cuda --set precision="$precision" &&
            same "$precision-again" "gpu-$precision" "$precision twice" || status=1
    done
    if [ "$arch" -eq 90 ]; then
        read -r loss norm < <(limits bf16)
        train mma cuda --set precision=bf16 --set cuda_wgmma=false &&
            close mma gpu-bf16 "$loss" "$norm" "bf16 without wgmma, and with" || status=1
    fi
    return "$status"
}

# A run that is killed while it trains or saves, twice, and resumed: the bits of one that was not.
part_kill() {
    local run step pid status=0 steps=60 every=10
    if [ "$rehearsal" -eq 1 ]; then steps=12 every=2; fi
    mkdir -p "$numbers"
    run=("$folder/train" --config bf16.json --device cuda --set run_dir="$runs"
        --set train.steps="$steps" --set checkpoint.every="$every" --set eval.every=0
        --set sample.every=0 --set autotune=off "${gpt2[@]}")
    rm -rf "$runs/straight"
    "${run[@]}" --set name=straight >"$numbers/straight.txt" 2>&1 || return 1
    finish straight
    for step in $((2 * every)) $((4 * every)); do
        rm -rf "$runs/killed"
        "${run[@]}" --set name=killed >"$numbers/killed.txt" 2>&1 &
        pid=$!
        while kill -0 "$pid" 2>/dev/null &&
            ! compgen -G "$runs/killed/checkpoints/*$step/trainer.json" >/dev/null; do
            sleep 0.002
        done
        kill -9 "$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
        "$folder/train" --resume "$runs/killed" >"$numbers/killed.txt" 2>&1 || status=1
        finish killed
        same killed straight "bf16 killed after step $step and resumed" || status=1
    done
    return "$status"
}
