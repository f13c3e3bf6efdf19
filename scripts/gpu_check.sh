#!/usr/bin/env bash
# Runs what an expert would run on a machine with an NVIDIA GPU, the most important first, and ends
# in time. Installs nothing. See scripts/gpu_check.sh --help.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

# The parts by worth: name, seconds at most (measured on an H200 with 16 cores and rounded up by half),
# the program that it needs, and what to try if it fails.
plan="build 150 - its end names the file; CUDA 12.1 or newer and gcc 9 or newer are needed
conformance 40 - an instruction does other than the emulator: trust no figure
tests 130 device_tests the log names operation, shape and error; the CPU is right; attention: train \
with --set cuda_wgmma=false
numbers 90 train the first NO; try --set cuda_graphs=false and cuda_wgmma=false
bench 75 gpu_bench bench.log names what could not be measured
torch 75 - see torch.log
autotune 40 gpu_bench autotune.log names what could not be measured
large 50 gpu_bench large.log names what could not be measured
lora 210 train lora.log names what could not be measured
full 120 train full.log names what could not be measured
against 150 - against.log names what could not be measured
brim 40 train memory was planned too tight; cublaslt-*.txt and brim.log have the sizes
kill 75 train kill.log and numbers/killed.txt have what differs
sanitizer 75 device_tests TOOL.txt names the kernel and the line
counters 90 gpu_bench see counters.log
attention_torch 75 - see attention_torch.log
save 40 train see save.log
graphs 40 gpu_bench graphs.log names what could not be measured
lab 150 train see lab.log
references 1200 - see references.log"
all_parts=$(cut -d ' ' -f 1 <<<"$plan" | tr '\n' ' ')
read_plan() { read -r _ limit program advice < <(grep "^$1 " <<<"$plan"); } # NAME

usage() {
    cat <<TEXT
scripts/gpu_check.sh [--minutes N] [--parts LIST] [--references FOLDER] [--against CHECKOUT]
                     [--no-torch] [--batch N] [--out FOLDER] [--emulated]
scripts/gpu_check.sh --bundle

On a machine with an NVIDIA GPU, nvcc, gcc and make, the most important parts first:
  build        for this GPU
  conformance  instructions, compared with the emulator
  tests        of all operations, and whole trainings compared with PyTorch's stored steps; those
               that fail run again alone
  numbers      GPT-2 124M: the same bits twice, without graphs and after a resume; losses and norms
               in each precision, compared with the CPU
  bench        speed of steps, operations, attention and the hardware's limits
  torch        PyTorch on the same model, bf16 first, compiled and eager
  autotune     a step with measured instead of ranked product algorithms
  large        bf16 and fp8 at GPT-2 XL's 1.5B, with 35 GB
  lora         LoRA on Llama-3.1-8B's shape, on bf16 and nf4, with layers in GPU memory and streamed
               from the host, and in PEFT, with 70 GB
  full         all weights of Gemma 3 1B, with int8 moments, with layers in host memory, and in
               transformers, compiled
  against      the bench of another CHECKOUT (--against), such as the commit before
  brim         a run that fills the memory, as planned by --fit
  kill         a run that is killed, and resumed to the same bits
  sanitizer    compute-sanitizer, suite by suite, on small shapes
  counters     ncu's counters of the ten longest kernels of a step
  attention_torch  attention by PyTorch: cuDNN and flash
  save, graphs, lab  cost of a checkpoint; a small step without graphs; five precisions compared

  --minutes N   stop after N minutes (default 10); a part that needs more than is left is skipped
  --parts LIST  only these parts, separated by commas, after build
  --references FOLDER  losses of the CPU, made before, without a GPU, by
                scripts/gpu_check.sh --parts references --out FOLDER
  --against CHECKOUT  for the part against: git worktree add CHECKOUT COMMIT makes one
  --no-torch    no PyTorch
  --batch N     sequences of 1024 tokens (default: 32 on 70 GB, less on less)
  --emulated    a rehearsal without a GPU: tiny shapes on the emulator, figures mean nothing
  --bundle      collects packages for machines without them, see below

Ends with tables and a verdict; FOLDER (build/gpu_check) has them as table.txt, and all logs and
figures; FOLDER.tar.gz has all of it, written anew every ten seconds, so that a machine that is
taken away leaves it. Exit status 1 if a part failed. Missed aims are marked, but are no failure.

Without Criterion the tests run on test/plain_criterion; without oneDNN matmuls on the CPU are slow.
Only cJSON and stb_ds.h are required, from the system (libcjson-dev, libstb-dev) or from a folder
copied to the machine:
  scripts/gpu_check.sh --bundle                       on a machine with packages: 0.2 MB
  tar c build/packages | ssh GPU tar x -C FOLDER      to the same path in the checkout there
make uses build/packages if it exists (elsewhere: make PACKAGES=FOLDER).
TEXT
}

parts="" against="" torch=1 batch=0 out=build/gpu_check rehearsal=0 minutes="" references=""
while [ $# -gt 0 ]; do
    case $1 in
    --minutes) minutes=${2:?} && shift ;;
    --parts) parts="build ${2//,/ }" && shift ;;
    --references) references=${2:?} && shift ;;
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
for part in ${parts:=${all_parts% references *}}; do
    case " $all_parts" in
    *" $part "*) ;;
    *) echo "gpu_check: there is no part $part; --help lists them" >&2 && exit 2 ;;
    esac
done
if [ -z "$minutes" ]; then
    minutes=10
    if [ "$rehearsal" -eq 1 ] || [ "$parts" = "build references" ]; then minutes=25; fi
fi
if ! [ "$minutes" -ge 1 ] 2>/dev/null; then
    echo "gpu_check: --minutes $minutes is not a whole number above 0" >&2 && exit 2
fi

# ---- parts: each with a time limit; a failure stops none of the others

LIMIT=$((60 * minutes - 10)) # seconds for all parts; the rest is for the tables
names=() verdicts=() times=() clocks=() failed=0 running=""
mkdir -p "$out" || exit 1
out=$(cd "$out" && pwd)
rm -rf "$out"/*.log "$out"/*.json "$out"/*.txt "$out"/numbers "$out"/runs

progress() { printf '[%3d s] %s\n' "$SECONDS" "$*"; }

record() { # NAME VERDICT SECONDS CLOCKS
    names+=("$1") verdicts+=("$2") times+=("$3") clocks+=("${4:-}")
    case $2 in ok* | skipped*) ;; *) failed=1 ;; esac
    progress "$1: $2"
    write_json >"$out/gpu_check.json"
}

# part NAME: runs a part; its output goes to NAME.log.
part() {
    local name=$1 begin=$SECONDS limit program advice status verdict from log=$out/$1.log
    read_plan "$name"
    if [ "$rehearsal" -eq 1 ]; then limit=$((limit * 8)); fi
    if [ $((LIMIT - SECONDS)) -lt $((limit * 2 / 3)) ]; then
        record "$name" "skipped: no time left" 0
        return
    fi
    if [ $((LIMIT - SECONDS)) -lt "$limit" ]; then limit=$((LIMIT - SECONDS)); fi
    progress "$name ..."
    from=$(wc -l <"$out/clocks.csv")
    # In the background, so that a signal ends this script at once, and the part with it.
    timeout -k 5 "$limit" bash scripts/gpu_check_parts.sh "$name" >"$log" 2>&1 &
    running=$!
    wait "$running"
    status=$? running=""
    case $status in
    0) verdict=ok ;;
    124 | 137) verdict="failed: not done after $limit s" ;;
    *) verdict="failed: status $status" ;;
    esac
    verdict="$verdict$(grep -oE 'Tested: .*' "$log" | tail -n 1 | sed 's/.*/ (&)/')"
    record "$name" "$verdict" $((SECONDS - begin)) "$(clocks_since "$from")"
    if [ "$status" -ne 0 ]; then
        { grep -E '^\[(----|FAIL|CRASH)|^NO |error' "$log" || cat "$log"; } |
            tail -n 12 | cut -c 1-160 | sed 's/^/        /'
        echo "        (all of it: $log)"
    fi
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
missing() {
    echo "gpu_check: $1" >&2
    exit 1
}

nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
gpu=$(gpu_query name)
arch=$(gpu_query compute_cap | tr -d '. ')
memory=$(gpu_query memory.total | tr -d ' ')
if [ "$parts" = "build references" ]; then
    gpu="none: references of the CPU" arch=0 memory=0 parts=references
elif [ "$rehearsal" -eq 1 ]; then
    gpu="none: a rehearsal on the emulator" arch=90 memory=0
elif [ -z "$gpu" ] || [ -z "$arch" ]; then
    missing "no GPU here: nvidia-smi finds none (nvidia-smi -L says why, if it is installed).
--help lists what would run with one. Without: \`make test\` runs the same kernels on the emulator,
and \`scripts/gpu_check.sh --emulated\` rehearses this script."
fi
command -v make >/dev/null ||
    missing "no make here: install it, or copy the file /usr/bin/make of another machine to a folder
of the PATH; it needs only glibc"
if [ "$arch" -gt 0 ] && [ ! -x "$nvcc" ]; then
    missing "no nvcc here: install the CUDA toolkit, or set NVCC=PATH"
fi
headers=()
if [ -d build/packages ]; then headers=(-isystem build/packages/include); fi
printf '#include <%s>\n' stddef.h cjson/cJSON.h stb/stb_ds.h |
    ${CC:-cc} -E "${headers[@]}" -x c - >/dev/null 2>&1 ||
    missing "cJSON.h or stb_ds.h is missing here, and build/packages does not hold it.
Either install libcjson-dev and libstb-dev, or run \`scripts/gpu_check.sh --bundle\` on
a machine that has packages, and carry the folder build/packages that it makes to the same place in
this checkout."
if [ "$batch" -eq 0 ]; then
    batch=4
    if [ "$memory" -ge 20000 ]; then batch=8; fi
    if [ "$memory" -ge 35000 ]; then batch=16; fi
    if [ "$memory" -ge 70000 ]; then batch=32; fi
fi
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
toolkit=$("$nvcc" --version 2>/dev/null | grep -oE 'V[0-9.]+' | tail -n 1)
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
if [ "$rehearsal" -eq 1 ]; then folder=build/emulated seconds=0.02; fi
if [ "$arch" -eq 0 ]; then folder=$(dirname "${TRAIN:-./train}"); fi
jobs=$(nproc)
if [ "$jobs" -gt 12 ]; then jobs=12; fi # each process takes its own GPU memory
if [ "$memory" -gt 0 ] && [ "$jobs" -gt $((memory / 1500 + 1)) ]; then
    jobs=$((memory / 1500 + 1))
fi
large=$rehearsal
if [ "$memory" -ge 35000 ]; then large=4; fi
if [ "$memory" -ge 70000 ]; then large=8; fi
sanitizer=$(command -v compute-sanitizer || echo "$(dirname "$nvcc")/compute-sanitizer")
ncu=$(command -v ncu || echo "$(dirname "$nvcc")/ncu")
export jobs large sanitizer ncu
if [ "$torch" -eq 1 ] && ! python3 -c 'import torch' 2>/dev/null; then torch=-1; fi
export torch
# The libraries of a virtual environment serve also if it is not activated.
if [ -z "${VIRTUAL_ENV:-}" ] && [ "$torch" -eq 1 ]; then
    VIRTUAL_ENV=$(python3 -c 'import sys; print(sys.prefix)')
    export VIRTUAL_ENV
fi

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
archive() { # a new file in one step, so that there is always a whole one
    local new=$out.tar.gz.new.$BASHPID
    tar -czf "$new" -C "$(dirname "$out")" --exclude=checkpoints --exclude=runs --exclude='*.o' \
        "$(basename "$out")" 2>/dev/null
    mv "$new" "$out.tar.gz"
}
stop() { # all that runs beside this script, or for it
    kill ${running:+"$running"} "${background[@]}" 2>/dev/null
    wait 2>/dev/null
    # Runs that were stopped leave checkpoints in memory, and an archive may be cut short.
    rm -rf "/dev/shm/gpu_check.$(id -u)" "$out".tar.gz.new.*
}
trap 'stop; archive; exit 130' INT
trap 'stop; archive; exit 143' TERM HUP
trap stop EXIT
archive
(while sleep 10; do archive; done) >/dev/null 2>&1 & # a sleep that outlives it holds no pipe open
background+=($!)

# Why a part cannot run here; nothing if it can.
why_not() {
    local limit program advice
    read_plan "$1"
    if [ "$program" != - ] && [ ! -x "$folder/$program" ]; then
        echo "$folder/$program was not built"
        return
    fi
    case $1 in
    conformance)
        if [ "$rehearsal" -eq 1 ]; then echo "on the emulator it is a part of make test-device"
        elif [ "$arch" -lt 80 ]; then echo "it uses instructions of sm_80"; fi ;;
    torch | attention_torch)
        if [ "$torch" -eq -1 ]; then echo "python3 has no PyTorch here"
        elif [ "$torch" -eq 0 ]; then echo "not asked for"; fi ;;
    sanitizer | counters)
        if [ "$rehearsal" -eq 1 ]; then echo "there is no GPU"
        elif [ "$1" = sanitizer ] && [ ! -x "$sanitizer" ]; then
            echo "this toolkit has no compute-sanitizer"
        elif [ "$1" = counters ] && [ ! -x "$ncu" ]; then echo "this toolkit has no ncu"; fi ;;
    against)
        if [ ! -f "$against/test/gpu_bench.c" ]; then echo "no other checkout (--against)"; fi ;;
    large) if [ "$large" -eq 0 ]; then echo "1.5B needs a GPU with 35 GB"; fi ;;
    full) if [ "$large" -eq 0 ]; then echo "it needs a GPU with 35 GB"; fi ;;
    lora)
        if [ "$torch" -ne 1 ]; then echo "PyTorch writes its model"
        elif [ "$memory" -lt 70000 ]; then echo "8B needs a GPU with 70 GB"; fi ;;
    esac
}

# ---- the parts

# Work for the CPU, beside the tests: PyTorch compiles, and references are made if none came along.
# It is stopped before the first figures.
begin_beside() {
    mkdir -p "$out/numbers"
    if [ -n "$references" ]; then
        cp "$references"/numbers/cpu-*.jsonl "$out/numbers"
    else
        case " $parts " in *" numbers "*)
            timeout -k 5 240 bash scripts/gpu_check_parts.sh references >"$out/references.log" 2>&1 &
            beside+=($!) ;;
        esac
    fi
    case " $parts " in *" torch "*)
        if [ "$torch" -eq 1 ] && [ "$rehearsal" -eq 0 ]; then
            timeout -k 5 150 python3 scripts/torch_bench.py --warm-up --batch "$batch" \
                --precision bf16 >"$out/torch-warm-up.log" 2>&1 &
            beside+=($!)
        fi ;;
    esac
}
beside=()
for name in $parts; do
    reason=$(why_not "$name")
    if [ -n "$reason" ]; then
        record "$name" "skipped: $reason" 0
        continue
    fi
    case $name in build | conformance | tests | numbers) ;; *)
        if [ ${#beside[@]} -gt 0 ]; then kill "${beside[@]}" 2>/dev/null && wait "${beside[@]}"; fi
        beside=() ;;
    esac
    part "$name"
    if [ "$name" = references ]; then exit "$failed"; fi
    if [ "$name" = build ]; then
        begin_beside
        background+=("${beside[@]}")
    fi
done

# ---- the tables

{
    show_training
    show_attention
    show_kernels
    for name in numbers kill autotune large lora full brim sanitizer counters save graphs; do
        if [ -s "$out/$name.log" ]; then printf '\n%s\n' "$name" && summary_of "$name"; fi
    done | cut -c 1-120
    show_against
    show_lab
    show_aims
    echo
    for i in "${!names[@]}"; do
        printf '  %-15s %4d s  %s%s\n' "${names[$i]}" "${times[$i]}" "${verdicts[$i]}" \
            "${clocks[$i]:+; ${clocks[$i]}}"
    done
    show_verdict
    if [ "$rehearsal" -eq 1 ]; then echo "A rehearsal: none of these figures means anything."; fi
} >"$out/table.txt"
echo
cat "$out/table.txt"
write_json >"$out/gpu_check.json" || failed=1
stop
archive || failed=1
echo "$out.tar.gz, after $SECONDS s"
exit "$failed"
