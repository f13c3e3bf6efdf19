#!/usr/bin/env bash
# Runs what an expert would run on a machine with an NVIDIA GPU, in at most ten minutes, and
# installs nothing. See scripts/gpu_check.sh --help.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

first="build conformance attention operations models numbers bench torch save brim"
more="build against autotune graphs sanitizer lab large"

usage() {
    cat <<TEXT
scripts/gpu_check.sh [--more | --parts LIST] [--against CHECKOUT] [--no-torch] [--batch N]
                     [--out FOLDER] [--emulated]
scripts/gpu_check.sh --bundle

On a machine with an NVIDIA GPU, nvcc, gcc and make, in less than ten minutes:
  build        for this GPU
  conformance  instructions, compared with the emulator
  attention    tests of the attention kernels
  operations   tests of all other operations
  models       whole trainings, compared with PyTorch's stored steps
  numbers      losses and norms of GPT-2 124M, compared with this machine's CPU in each precision;
               the same bits twice, without graphs, and after a resume
  bench        speed of steps, operations, attention and the hardware's limits
  torch        PyTorch on the same model, if python3 has it
  save         cost of a checkpoint
  brim         a run that fills the memory, as planned by --fit
A test part that fails is run again alone. Only if Hopper's attention fails twice, the rest is
measured without it. --more runs, in a second call:
  against      the bench of another CHECKOUT, such as the commit before: old beside new
  autotune     a step with measured instead of ranked product algorithms
  graphs       a small step with and without CUDA graphs
  sanitizer    compute-sanitizer on small shapes
  lab          five precisions on the built-in text, and the audit
  large        bf16 and fp8 at GPT-2 XL's 1.5B, with 35 GB
Ends with tables and a verdict; FOLDER (build/gpu_check) has them as table.txt, and all logs and
figures, also as FOLDER.tar.gz. Results are written as they come.

  --parts LIST  only these parts, separated by commas, after build
  --against CHECKOUT  for the part against: git worktree add CHECKOUT COMMIT makes one
  --no-torch    no PyTorch
  --batch N     sequences of 1024 tokens (default: 32 on 70 GB, less on less)
  --emulated    a rehearsal without a GPU: tiny shapes on the emulator, figures mean nothing
  --bundle      collects packages for machines without them, see below

Exit status 1 if a part failed. Missed targets are marked, but are no failure.

Nothing needs to be installed. Without Criterion the tests run on test/plain_criterion; without
oneDNN matmuls on the CPU are slow. Only cJSON and stb_ds.h are required, from the system
(libcjson-dev, libstb-dev) or from a folder copied to the machine:
  scripts/gpu_check.sh --bundle                       on a machine with packages: 0.2 MB
  tar c build/packages | ssh GPU tar x -C FOLDER      to the same path in the checkout there
make uses build/packages if it exists (elsewhere: make PACKAGES=FOLDER).
TEXT
}

parts=$first against="" torch=1 batch=0 out=build/gpu_check rehearsal=0
while [ $# -gt 0 ]; do
    case $1 in
    --more) parts=$more ;;
    --parts) parts="build ${2//,/ }" && shift ;;
    --against) against=${2:?} && shift ;;
    --no-torch) torch=0 ;;
    --batch) batch=${2:-0} && shift ;;
    --out) out=${2:?} && shift ;;
    --emulated) rehearsal=1 ;;
    --bundle) exec scripts/gpu_check_bundle.sh ;;
    --help | -h) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
    esac
    shift
done
for part in $parts; do
    case " $first $more " in
    *" $part "*) ;;
    *) echo "gpu_check: there is no part $part; --help lists them" >&2 && exit 2 ;;
    esac
done

# ---- parts: each with a time limit; a failure stops none of the others

# Seconds; those of the first call add up to 560.
limit_of() {
    case $1 in
    build) echo 150 ;;
    conformance) echo 40 ;;
    attention) echo 30 ;;
    operations) echo 55 ;;
    models) echo 45 ;;
    numbers) echo 70 ;;
    bench) echo 60 ;;
    against) echo 150 ;;
    torch) echo 55 ;;
    save) echo 30 ;;
    brim) echo 25 ;;
    autotune | graphs) echo 40 ;;
    sanitizer) echo 75 ;;
    lab) echo 100 ;;
    large) echo 130 ;;
    esac
}
LIMIT=560 # seconds for all parts
if [ "$rehearsal" -eq 1 ]; then LIMIT=1500; fi
names=() verdicts=() times=() clocks=() failed=0
mkdir -p "$out" || exit 1
out=$(cd "$out" && pwd)
rm -rf "$out"/*.log "$out"/*.json "$out"/*.txt "$out"/numbers "$out"/brim "$out"/lab

progress() { printf '[%3d s] %s\n' "$SECONDS" "$*"; }

record() { # NAME VERDICT SECONDS CLOCKS
    names+=("$1") verdicts+=("$2") times+=("$3") clocks+=("${4:-}")
    case $2 in ok* | skipped*) ;; *) failed=1 ;; esac
    progress "$1: $2"
    write_json >"$out/gpu_check.json"
}
skip() { record "$1" "skipped: $2" 0; }

# attempt NAME SECONDS: runs a part; its output goes to NAME.log. Sets verdict.
attempt() {
    local log=$out/$1.log status tests
    timeout -k 5 "$2" bash scripts/gpu_check_parts.sh "$1" >"$log" 2>&1
    status=$?
    case $status in
    0) verdict=ok ;;
    124 | 137) verdict="failed: not done after $2 s" ;;
    *) verdict="failed: status $status" ;;
    esac
    tests=$(grep -oE 'Tested: .*' "$log" | tail -n 1)
    if [ -n "$tests" ]; then verdict="$verdict ($tests)"; fi
    return "$status"
}

# part NAME: a part of tests that fails is run again alone, with one job.
part() {
    local name=$1 begin=$SECONDS limit status verdict from
    limit=$(limit_of "$name")
    if [ "$rehearsal" -eq 1 ]; then limit=$((limit * 8)); fi
    if [ $((LIMIT - SECONDS)) -lt "$limit" ]; then limit=$((LIMIT - SECONDS)); fi
    if [ "$limit" -lt 5 ]; then
        record "$name" "failed: no time left" 0
        return 1
    fi
    progress "$name ..."
    from=$(wc -l <"$out/clocks.csv")
    attempt "$name" "$limit"
    status=$?
    case $name in attention | operations | models)
        # A part that many jobs did not end in time would take one job longer.
        if [ "$status" -ne 0 ] && [ "$status" -ne 124 ] && [ "$status" -ne 137 ] &&
            [ $((LIMIT - SECONDS)) -gt "$limit" ]; then
            cp "$out/$name.log" "$out/$name-first.log"
            jobs=1 attempt "$name" "$limit"
            status=$?
            verdict="$verdict, the second time, alone"
        fi
        ;;
    esac
    record "$name" "$verdict" $((SECONDS - begin)) "$(clocks_since "$from")"
    if [ "$status" -ne 0 ]; then
        { grep -E '^\[(----|FAIL|CRASH)|^NO ' "$out/$name.log" || cat "$out/$name.log"; } |
            tail -n 12 | cut -c 1-160 | sed 's/^/        /'
        echo "        (all of it: $out/$name.log)"
    fi
    return "$status"
}

# Median clock of the GPU while it worked, and the reasons for which it was slowed down.
clocks_since() { # LINE of clocks.csv
    tail -n +$(($1 + 1)) "$out/clocks.csv" | awk -F ', *' '
        $2 > 0 && $3 > 50 { clock[++n] = $2 }
        $4 ~ /^0x/ && $4 !~ /^0x0+[01]?$/ { reasons[$4] }
        END {
            if (!n) exit
            for (i = 2; i <= n; i++)
                for (j = i; j > 1 && clock[j] < clock[j - 1]; j--) {
                    t = clock[j]; clock[j] = clock[j - 1]; clock[j - 1] = t
                }
            printf "%d MHz", clock[int((n + 1) / 2)]
            for (r in reasons) printf ", slowed: %s", r
        }'
}

# ---- the machine

# The first GPU, with CUDA set to the same order.
export CUDA_DEVICE_ORDER=PCI_BUS_ID
index=${CUDA_VISIBLE_DEVICES:-0} index=${index%%,*}
gpu_query() {
    nvidia-smi -i "$index" --query-gpu="$1" --format=csv,noheader,nounits 2>/dev/null | head -n 1
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
busy=$(nvidia-smi -i "$index" --query-compute-apps=pid --format=csv,noheader 2>/dev/null | wc -l)
echo "GPU      $gpu (sm_$arch)"
echo "         driver, memory MiB, ECC, clocks MHz, power W: ${facts:-unknown}"
echo "host     $cpu, $(nproc) threads; nvcc $toolkit; commit $commit; $(date -u '+%F %T') UTC"
if [ "$busy" -gt 0 ]; then echo "warning: $busy other programs use the GPU: figures will be off"; fi

# ---- what all parts read

export out arch nvcc rehearsal batch against
export folder=build/gpu seconds=0.1
export jobs large=$rehearsal wgmma="--wgmma 1"
if [ "$rehearsal" -eq 1 ]; then folder=build/emulated seconds=0.02; fi
jobs=$(nproc)
if [ "$jobs" -gt 12 ]; then jobs=12; fi # each process takes its own GPU memory
if [ "$memory" -gt 0 ] && [ "$jobs" -gt $((memory / 1500 + 1)) ]; then
    jobs=$((memory / 1500 + 1))
fi
if [ "$memory" -ge 35000 ]; then large=4; fi
if [ "$memory" -ge 70000 ]; then large=8; fi
sanitizer=$(command -v compute-sanitizer || echo "$(dirname "$nvcc")/compute-sanitizer")
export sanitizer
if [ "$torch" -eq 1 ] && ! python3 -c 'import torch' 2>/dev/null; then torch=-1; fi

# shellcheck source=scripts/gpu_check_table.sh
. scripts/gpu_check_table.sh

# Clock, use and reasons for a lower clock, twice a second. Older drivers call them otherwise.
background=()
: >"$out/clocks.csv"
for word in event throttle; do
    query=timestamp,clocks.sm,utilization.gpu,clocks_${word}_reasons.active
    if [ "$rehearsal" -eq 0 ] && [[ $(gpu_query "$query") == *0x* ]]; then
        nvidia-smi -i "$index" --query-gpu="$query" --format=csv,noheader,nounits -lms 500 \
            >>"$out/clocks.csv" 2>/dev/null &
        background+=($!)
        break
    fi
done
trap 'kill "${background[@]}" 2>/dev/null' EXIT

# Why a part cannot run here; nothing if it can.
why_not() {
    case $1 in
    conformance)
        if [ "$rehearsal" -eq 1 ]; then echo "on the emulator it is a part of make test-device"
        elif [ "$arch" -lt 80 ]; then echo "it uses instructions of sm_80"; fi ;;
    torch)
        if [ "$torch" -eq -1 ]; then echo "python3 has no PyTorch here"
        elif [ "$torch" -eq 0 ]; then echo "not asked for"; fi ;;
    sanitizer)
        if [ "$rehearsal" -eq 1 ]; then echo "there is no GPU"
        elif [ ! -x "$sanitizer" ]; then echo "this toolkit has no compute-sanitizer"; fi ;;
    against)
        if [ ! -f "$against/test/gpu_bench.c" ]; then echo "no other checkout (--against)"; fi ;;
    large) if [ "$large" -eq 0 ]; then echo "1.5B needs a GPU with 35 GB"; fi ;;
    esac
}

# ---- the parts

# PyTorch compiles beside our build, one precision after the other, and ends before the tests.
warming=
case " $parts " in *" torch "*)
    if [ "$torch" -eq 1 ] && [ "$rehearsal" -eq 0 ]; then
        timeout -k 5 150 python3 scripts/torch_bench.py --warm-up --batch "$batch" \
            >"$out/torch-warm-up.log" 2>&1 &
        warming=$!
    fi
    ;;
esac
reference=
for name in $parts; do
    reason=$(why_not "$name")
    if [ -n "$reason" ]; then
        skip "$name" "$reason"
        continue
    fi
    if [ "$name" = numbers ] && [ -n "$reference" ]; then wait "$reference"; fi
    part "$name"
    status=$?
    case $name in
    build)
        if [ -n "$warming" ]; then wait "$warming"; fi
        case " $parts " in *" numbers "*)
            # The CPU's numbers need no GPU: they run beside the tests.
            timeout -k 5 240 bash scripts/gpu_check_parts.sh reference >"$out/reference.log" 2>&1 &
            reference=$!
            background+=($!)
            ;;
        esac
        ;;
    attention)
        case $status in
        0 | 124 | 137) ;;
        *) if [ "$arch" -eq 90 ]; then wgmma="--wgmma 0"; fi ;;
        esac
        ;;
    esac
done

# ---- the tables

{
    if [ -s "$out/bench.log" ]; then cat "$out/bench.log"; fi
    for name in numbers save brim; do
        if [ -s "$out/$name.log" ]; then printf '\n%s\n' "$name" && cat "$out/$name.log"; fi
    done
    show_training
    show_attention
    show_against
    show_aims
    show_lab
    echo
    for i in "${!names[@]}"; do
        printf '  %-12s %4d s  %s%s\n' "${names[$i]}" "${times[$i]}" "${verdicts[$i]}" \
            "${clocks[$i]:+; ${clocks[$i]}}"
    done
    show_verdict
    if [ "$rehearsal" -eq 1 ]; then echo "A rehearsal: none of these figures means anything."; fi
} >"$out/table.txt"
echo
cat "$out/table.txt"
write_json >"$out/gpu_check.json" || failed=1
kill "${background[@]}" 2>/dev/null
wait 2>/dev/null
tar -czf "$out.tar.gz" -C "$(dirname "$out")" --exclude=checkpoints --exclude=brim --exclude=lab \
    "$(basename "$out")" || failed=1
echo "$out.tar.gz, after $SECONDS s"
exit "$failed"
