#!/usr/bin/env bash
# Builds, tests and measures on a machine with an NVIDIA GPU, in at most 9 minutes, and installs
# nothing. See scripts/gpu_check.sh --help.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

usage() {
    cat <<'TEXT'
scripts/gpu_check.sh [--quick] [--no-torch] [--batch N] [--out FOLDER] [--emulated]
scripts/gpu_check.sh --bundle

On a machine with an NVIDIA GPU, nvcc, gcc and make: builds for this GPU, compares it with the
emulator, and runs the tests of all operations and of whole trainings on it. If Hopper's attention
fails them, the rest is measured without it. Then compares the precisions on the built-in text,
audits them, runs compute-sanitizer on small shapes, and measures GPT-2 124M, every operation and
the hardware's limits, beside PyTorch if python3 has it, and bf16 and fp8 at GPT-2 XL's 1.5B if
memory suffices. Ends with one table, and FOLDER/gpu_check.json (build/gpu_check by default).

  --quick      no compute-sanitizer, no PyTorch, shorter measurements
  --no-torch   no PyTorch
  --batch N    sequences of 1024 tokens (default: 32 on 70 GB, less on less)
  --emulated   a rehearsal without a GPU: tiny shapes on the emulator, figures mean nothing
  --bundle     collects packages for machines without them, see below

Exit status 1 if a step failed. Missed targets are marked, but are no failure.

Nothing needs to be installed. Without Criterion the tests run on test/plain_criterion; without
oneDNN matmuls on the CPU are slow. Only cJSON and stb_ds.h are required, from the system
(libcjson-dev, libstb-dev) or from a folder copied to the machine:
  scripts/gpu_check.sh --bundle                       on a machine with packages: 0.2 MB
  tar c build/packages | ssh GPU tar x -C FOLDER      to the same path in the checkout there
make uses build/packages if it exists (elsewhere: make PACKAGES=FOLDER).
TEXT
}

quick=0 torch=1 batch=0 out=build/gpu_check rehearsal=0 bundle=0
while [ $# -gt 0 ]; do
    case $1 in
    --quick) quick=1 torch=0 ;;
    --no-torch) torch=0 ;;
    --batch) batch=${2:-0} && shift ;;
    --out) out=${2:?} && shift ;;
    --emulated) rehearsal=1 ;;
    --bundle) bundle=1 ;;
    --help | -h) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
    esac
    shift
done

# ---- packages that a GPU machine may lack: header and library of cJSON, and stb_ds.h

# Copies the library NAME.so.N from FOLDER ... under this name and as NAME.so. It makes two files
# instead of a link, because not every way of copying keeps links.
bundle_library() { # NAME.so.N TO FOLDER ...
    local name=$1 to=$2 library
    shift 2
    library=$(find "$@" -name "$name*" -type f 2>/dev/null | head -n 1)
    if [ -z "$library" ]; then
        echo "gpu_check: found its header, but no $name" >&2
        return 1
    fi
    rm -f "$to/$name" "$to/${name%.*}"
    cp "$library" "$to/$name" && cp "$library" "$to/${name%.*}"
}

collect_bundle() {
    local to=build/packages from="" part newest missing=0
    for part in cjson/cJSON.h stb/stb_ds.h; do
        if [ ! -e "/usr/include/$part" ]; then missing=1; fi
    done
    if [ $missing -eq 1 ]; then
        from=$(mktemp -d) # unpacked, not installed: needs no root
        part="libcjson-dev libcjson1 libstb-dev"
        # shellcheck disable=SC2086
        (cd "$from" && apt-get download -q $part >/dev/null &&
            for part in *.deb; do dpkg -x "$part" . || exit 1; done) || {
            echo "gpu_check: install libcjson-dev and libstb-dev here first" >&2
            return 1
        }
    fi
    mkdir -p "$to/include/cjson" "$to/include/stb" "$to/lib"
    cp "$from/usr/include/cjson/cJSON.h" "$to/include/cjson/" &&
        cp "$from/usr/include/stb/stb_ds.h" "$to/include/stb/" &&
        bundle_library libcjson.so.1 "$to/lib" ${from:+"$from"} /usr/lib /lib || return 1
    newest=$(objdump -T "$to"/lib/*.so | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1)
    if [ -n "$from" ]; then rm -rf "$from"; fi
    echo "$to: cJSON (for $(uname -m), needs ${newest/_/ } or newer) and stb_ds.h"
    echo "Carry it to the same place on the other machine; make finds it there."
}
if [ "$bundle" -eq 1 ]; then
    collect_bundle
    exit
fi

# ---- steps: each with a time limit, and a failure stops none of the others

LIMIT=530 # seconds for all steps; a rehearsal may take longer, depending on the compiler
if [ "$rehearsal" -eq 1 ]; then LIMIT=1500; fi
names=() verdicts=() times=() failed=0
mkdir -p "$out" || exit 1
out=$(cd "$out" && pwd)
rm -f "$out"/*.log "$out"/*.json

progress() { printf '[%3d s] %s\n' "$SECONDS" "$*"; }

record() { # NAME VERDICT SECONDS
    names+=("$1") verdicts+=("$2") times+=("$3")
    case $2 in ok* | skipped*) ;; *) failed=1 ;; esac
    progress "$1: $2"
}

# step NAME SECONDS COMMAND ...: output goes to NAME.log; its end is shown on failure.
step() {
    local name=$1 limit=$2 log=$out/$1.log begin=$SECONDS status verdict
    shift 2
    if [ $((LIMIT - SECONDS)) -lt "$limit" ]; then limit=$((LIMIT - SECONDS)); fi
    if [ "$limit" -lt 5 ]; then
        record "$name" "failed: no time left" 0
        return 1
    fi
    progress "$name ..."
    timeout -k 5 "$limit" "$@" >"$log" 2>&1
    status=$?
    case $status in
    0) verdict=ok ;;
    124 | 137) verdict="failed: not done after $limit s" ;;
    *) verdict="failed: status $status" ;;
    esac
    local tests
    tests=$(grep -oE 'Tested: .*' "$log" | tail -n 1)
    if [ -n "$tests" ]; then verdict="$verdict ($tests)"; fi
    record "$name" "$verdict" $((SECONDS - begin))
    if [ "$status" -ne 0 ]; then
        { grep -E '^\[(----|FAIL|CRASH)' "$log" || cat "$log"; } | tail -n 12 |
            cut -c 1-160 | sed 's/^/        /'
        echo "        (all of it: $log)"
    fi
    return "$status"
}

skip() { record "$1" "skipped: $2" 0; }

# ---- 1. the machine

# The first GPU, with CUDA set to the same order.
export CUDA_DEVICE_ORDER=PCI_BUS_ID
gpu_query() {
    nvidia-smi ${CUDA_VISIBLE_DEVICES:+-i "${CUDA_VISIBLE_DEVICES%%,*}"} --query-gpu="$1" \
        --format=csv,noheader,nounits 2>/dev/null | head -n 1
}

nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
gpu=$(gpu_query name)
arch=$(gpu_query compute_cap | tr -d '. ')
memory=$(gpu_query memory.total | tr -d ' ')
if [ "$rehearsal" -eq 1 ]; then
    gpu="none: a rehearsal on the emulator" arch=90 memory=0
elif [ -z "$gpu" ] || [ -z "$arch" ]; then
    cat >&2 <<'TEXT'
gpu_check: no GPU here: nvidia-smi finds none (nvidia-smi -L says why, if it is installed).
With one it would: build for it with nvcc; compare the emulator with it; run the tests of all
operations and of whole trainings on it; run compute-sanitizer; measure GPT-2 124M in fp32, tf32,
fp16, bf16 and fp8, each operation, attention, and PyTorch on the same model; and write one table
and one JSON file. Without one: `make test` runs the same kernels on the emulator, and
`scripts/gpu_check.sh --emulated` rehearses this script.
TEXT
    exit 1
fi
if [ ! -x "$nvcc" ]; then
    echo "gpu_check: no nvcc here: install the CUDA toolkit, or set NVCC=PATH" >&2
    exit 1
fi
headers=()
if [ -d build/packages ]; then headers=(-isystem build/packages/include); fi
if ! printf '#include <%s>\n' stddef.h cjson/cJSON.h stb/stb_ds.h |
    ${CC:-cc} -E "${headers[@]}" -x c - >/dev/null 2>&1; then
    cat >&2 <<'TEXT'
gpu_check: cJSON.h or stb_ds.h is missing here, and build/packages does not hold it.
Either install libcjson-dev and libstb-dev, or run `scripts/gpu_check.sh --bundle` on
a machine that has packages, and carry the folder build/packages that it makes to the same place in
this checkout.
TEXT
    exit 1
fi
if [ "$batch" -eq 0 ]; then
    batch=4
    if [ "$memory" -ge 20000 ]; then batch=8; fi
    if [ "$memory" -ge 35000 ]; then batch=16; fi
    if [ "$memory" -ge 70000 ]; then batch=32; fi
fi
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
toolkit=$("$nvcc" --version | grep -oE 'V[0-9.]+' | tail -n 1)
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
facts=driver_version,memory.total,ecc.mode.current,clocks.max.sm,clocks.max.memory,power.limit
facts=$(gpu_query "$facts")
busy=$(nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>/dev/null | wc -l)
echo "GPU      $gpu (sm_$arch)"
echo "         driver, memory MiB, ECC, clocks MHz, power W: ${facts:-unknown}"
echo "host     $cpu, $(nproc) threads; nvcc $toolkit; commit $commit; $(date -u '+%F %T') UTC"
if [ "$busy" -gt 0 ]; then echo "warning: $busy other programs use the GPU: figures will be off"; fi

# ---- 2. PyTorch compiles in the background, on cores that the build leaves idle

folder=build/gpu
options=(CUDA=1 NVCC="$nvcc" CUDA_ARCH="$arch")
tiny=() torch_tiny=() warming=()
if [ "$rehearsal" -eq 1 ]; then
    folder=build/gpu-rehearsal
    options=(BUILD=emulated)
    tiny=(--tiny 1) torch_tiny=(--tiny)
fi
if [ "$torch" -eq 1 ] && ! python3 -c 'import torch' 2>/dev/null; then torch=-1; fi
if [ "$torch" -eq 1 ] && [ "$rehearsal" -eq 0 ]; then
    # two at a time: the first with bf16 and fp32, the second with fp16 and tf32
    for pair in 'bf16 fp32' 'fp16 tf32'; do
        read -r first second <<<"$pair"
        timeout -k 5 240 python3 scripts/torch_bench.py --warm-up --batch "$batch" \
            --precision "$first" --precision "$second" >"$out/torch-warm-up-$first.log" 2>&1 &
        warming+=($!)
    done
fi

# ---- 3. build; without Criterion, so that tests can run without a separate process

targets=("$folder/train" "$folder/prepare" "$folder/compare" "$folder/device_tests"
    "$folder/gpu_bench")
rm -f "${targets[@]}"
step build $((rehearsal ? 1200 : 180)) make -k -j"$(nproc)" OUT="$folder" CRITERION=0 \
    "${options[@]}" "${targets[@]}" ||
    echo "        (a build that needed more time goes on where it stopped: run this again)"

# ---- 4. compare the emulator with this GPU

# shellcheck disable=SC2317  # called by name, in a bash of its own under a time limit
conformance() {
    local source objects=() compiling=() feature=
    if [ "$arch" -eq 90 ]; then feature=a; fi # instructions of Hopper
    for source in test/cuda_emulator/test_*.cu; do
        objects+=("$out/$(basename "$source").o")
        "$nvcc" -std=c++17 -O2 -I. -arch="sm_$arch$feature" -c -o "${objects[-1]}" "$source" &
        compiling+=($!)
    done
    for source in "${compiling[@]}"; do wait "$source" || return 1; done
    "$nvcc" -arch="sm_$arch$feature" -o "$out/conformance" "${objects[@]}" && rm "${objects[@]}" &&
        "$out/conformance"
}
if [ "$rehearsal" -eq 1 ]; then
    skip conformance "on the emulator it is a part of make test"
elif [ "$arch" -lt 80 ]; then
    skip conformance "it uses instructions of sm_80"
else
    export -f conformance
    export nvcc arch out
    step conformance 45 bash -c conformance
fi

# ---- 5. tests on the device

export TEST_DEVICE=cuda OMP_WAIT_POLICY=passive
models='@(trainer|gpt*|*training)/*' operations='!(trainer|gpt*|*training)/*'
jobs=$(nproc)
if [ "$jobs" -gt 12 ]; then jobs=12; fi # each process takes its own GPU memory
if [ "${memory:-0}" -gt 0 ] && [ "$jobs" -gt $((memory / 1500 + 1)) ]; then
    jobs=$((memory / 1500 + 1))
fi
if [ "$rehearsal" -eq 1 ]; then
    models='gpt_golden/*' operations='@(cast|clear|loss_sum|tensor)/*' jobs=2
fi
# Hopper's attention kernels first: if they fail, everything else is measured without them.
wgmma=(--wgmma 1) hopper=(--set cuda_wgmma=true) attention='attention_mma*/*'
if [ "$rehearsal" -eq 1 ]; then attention='attention_mma/causal'; fi
if [ "$arch" -ne 90 ]; then
    skip attention "not a Hopper GPU"
elif ! step attention 60 "$folder/device_tests" --jobs "$jobs" --timeout 30 \
    --filter "$attention"; then
    wgmma=(--wgmma 0) hopper=(--set cuda_wgmma=false)
fi
step operations 70 "$folder/device_tests" --jobs "$jobs" --timeout 60 --filter "$operations"
step models 60 "$folder/device_tests" --jobs "$jobs" --timeout 55 --filter "$models"

# ---- 6. compute-sanitizer: four tools in parallel, on small shapes

sanitizer=$(command -v compute-sanitizer || echo "$(dirname "$nvcc")/compute-sanitizer")
# shellcheck disable=SC2317  # called by name, in a bash of its own under a time limit
sanitize() { # TOOL: passes if it ends without errors, or found none before the time limit
    local log=$out/$1.log status
    timeout -k 5 60 "$sanitizer" --tool "$1" --error-exitcode 9 --target-processes all \
        "$folder/device_tests" --no-fork --verbose --filter "$small" >"$log" 2>&1
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
# shellcheck disable=SC2317  # called by name, in a bash of its own under a time limit
sanitize_all() {
    local tool status=0 pids=()
    for tool in memcheck racecheck synccheck initcheck; do
        sanitize "$tool" &
        pids+=($!)
    done
    for tool in "${pids[@]}"; do wait "$tool" || status=1; done
    return "$status"
}
if [ "$quick" -eq 1 ] || [ "$rehearsal" -eq 1 ]; then
    skip sanitizer "not in a quick check or a rehearsal"
elif [ ! -x "$sanitizer" ]; then
    skip sanitizer "this toolkit has no compute-sanitizer"
else
    small='@(cast|clear|loss*|layernorm|attention*|gelu|adamw|gradient_norm|embedding)/*'
    export small
    export sanitizer folder
    export -f sanitize sanitize_all
    step sanitizer 75 bash -c sanitize_all
fi

# ---- 7. measurements: nothing else runs on the GPU from here on

for job in "${warming[@]}"; do wait "$job"; done
seconds=0.1
if [ "$quick" -eq 1 ] || [ "$rehearsal" -eq 1 ]; then seconds=0.05; fi
step bench 120 "$folder/gpu_bench" --json "$out/gpu_bench.json" --batch "$batch" \
    --seconds "$seconds" "${wgmma[@]}" "${tiny[@]}"
if [ "$torch" -eq 1 ]; then
    step torch 130 python3 scripts/torch_bench.py --json "$out/torch_bench.json" \
        --batch "$batch" "${torch_tiny[@]}"
elif [ "$torch" -eq -1 ]; then
    skip torch "python3 has no PyTorch here"
else
    skip torch "not asked for"
fi

# ---- 8. the precision lab: four precisions on the built-in text, and the audit. Random differences
# between runs are no failure of this machine, so the verdict is only shown.

# shellcheck disable=SC2317  # called by name, in a bash of its own under a time limit
lab() { # MORE ARGUMENTS OF ./train ...
    local status=0
    rm -rf build/gpu_lab
    TRAIN=$folder/train COMPARE=$folder/compare scripts/compare_precisions.sh fp16.json \
        --precisions fp32,bf16,fp16,fp8 --out build/gpu_lab -- --device cuda "$@" ||
        [ -s build/gpu_lab/report.json ] || status=1
    "$folder/train" --audit --config fp16.json --device cuda "$@" --out build/gpu_lab ||
        status=1
    cp build/gpu_lab/report.json "$out/compare.json" &&
        cp build/gpu_lab/audit.json "$out/audit.json" || status=1
    return "$status"
}
tiny_model=()
if [ "$rehearsal" -eq 1 ]; then
    for part in model.n_layer=1 model.n_head=2 model.n_embd=32 data.seq_len=16 \
        train.micro_batch_size=1 train.steps=40 eval.batches=1 optimizer.warmup_steps=4; do
        tiny_model+=(--set "$part")
    done
fi
export -f lab
export folder out
step lab 90 bash -c 'lab "$@"' lab "${hopper[@]}" "${tiny_model[@]}"

# ---- 9. bf16 and fp8 at GPT-2 XL's shape: master weights, moments and gradients take 25 GB

large=$rehearsal
if [ "$memory" -ge 35000 ]; then large=4; fi
if [ "$memory" -ge 70000 ]; then large=8; fi
# shellcheck disable=SC2317  # called by name, in a bash of its own under a time limit
bench_large() {
    local precision status=0
    for precision in bf16 fp8; do
        "$folder/gpu_bench" --json "$out/large_$precision.json" --batch "$large" --layers 48 \
            --width 1600 --heads 25 --steps-only 1 --seconds 0.1 --precision "$precision" "$@" ||
            status=1
    done
    return "$status"
}
if [ "$quick" -eq 1 ]; then
    skip large "not in a quick check"
elif [ "$large" -eq 0 ]; then
    skip large "1.5B needs a GPU with 35 GB"
else
    export -f bench_large
    export folder out large
    step large 130 bash -c 'bench_large "$@"' large "${wgmma[@]}" "${tiny[@]}"
fi

# ---- 10. a small step, as a graph and operation by operation: the share of host time and gaps

# shellcheck disable=SC2317  # called by name, in a bash of its own under a time limit
bench_graphs() {
    local graphs status=0
    for graphs in 1 0; do
        "$folder/gpu_bench" --json "$out/graphs_$graphs.json" --graphs "$graphs" --batch 4 \
            --seq 256 --steps-only 1 --seconds 0.1 --precision bf16 "$@" || status=1
    done
    return "$status"
}
export -f bench_graphs
export folder out
step graphs 60 bash -c 'bench_graphs "$@"' graphs "${wgmma[@]}" "${tiny[@]}"

# ---- 11. the cost of a checkpoint

saved=()
if [ "$rehearsal" -eq 1 ]; then
    saved=(MODEL='{"n_layer": 1, "n_head": 2, "n_embd": 32, "n_positions": 64}')
fi
step checkpoint 60 env TRAIN="$folder/train" DEVICE=cuda "${saved[@]}" \
    scripts/bench_checkpoint.sh $((rehearsal ? 1 : 3))

# ---- 12. the table

# shellcheck source=scripts/gpu_check_table.sh
. scripts/gpu_check_table.sh
if [ -s "$out/bench.log" ]; then
    echo
    cat "$out/bench.log"
fi
show_training
show_attention
show_aims
show_lab
if [ -s "$out/checkpoint.log" ]; then
    echo
    cat "$out/checkpoint.log"
fi
echo
for i in "${!names[@]}"; do
    printf '  %-12s %4d s  %s\n' "${names[$i]}" "${times[$i]}" "${verdicts[$i]}"
done
write_json >"$out/gpu_check.json" || failed=1
if [ "$rehearsal" -eq 1 ]; then echo "A rehearsal: none of these figures means anything."; fi
echo "$out/gpu_check.json, after $SECONDS s"
exit "$failed"
