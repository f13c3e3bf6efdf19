#!/usr/bin/env bash
# Compares this build's trainings with the committed baseline; see scripts/regress.sh --help.
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."

usage() {
    cat <<'TEXT'
scripts/regress.sh [--update] [--quick] [--again] [--jobs LIST]
                   [--train PROGRAM]

Trains small models in each precision, and in the variants of memory and
dtypes, and compares with the figures committed in scripts/regress/:

  losses, norms,  every step, and the SHA-256 of the final weights: the same
  weights         bits on the same type of machine (processor or GPU, threads,
                  compiler, matmul library); on another one the losses of fp32
                  within 0.1 %, those of 16 and 8 bit within 2 %
  memory          the plan, to 0.1 MiB, on the same type of machine
  speed           the ratio of a step to its matmuls alone, on the same type
                  of machine: within 25 %

and recomputing against no recomputing, bit for bit. Figures that moved are
named, and the exit status is 1. Takes about a minute on two cores; nothing else
should be running.

  --update         take this build's figures as the new baseline of this type
                   of machine
  --quick          leave the speed out
  --again          run nothing: compare the results of the last run, in
                   build/regress, once more
  --jobs LIST      only some of: fp32 bf16 fp16 bf16-gelu bf16-layer fp16-lower
                   fp32-odd bf16-odd fp8 fp8-row fp8-delayed fp8-block
                   mxfp8 nvfp4
  --train PROGRAM  another ./train
TEXT
}

all="fp32 bf16 fp16 bf16-gelu bf16-layer fp16-lower fp32-odd bf16-odd fp8 fp8-row fp8-delayed"
all+=" fp8-block mxfp8 nvfp4"
update=false quick=false again=false train=./train jobs=$all
while [ $# -gt 0 ]; do
    case $1 in
    --update) update=true ;;
    --quick) quick=true ;;
    --again) again=true ;;
    --train | --jobs)
        [ $# -gt 1 ] || { echo "regress.sh: $1 needs a value" >&2; exit 2; }
        if [ "$1" = --train ]; then train=$2; else jobs=$2; fi
        shift
        ;;
    --help) usage; exit 0 ;;
    *) echo "regress.sh: unknown argument $1; see --help" >&2; exit 2 ;;
    esac
    shift
done
for job in $jobs; do
    case " $all " in
    *" $job "*) ;;
    *) echo "regress.sh: no job $job; see --help" >&2; exit 2 ;;
    esac
done
if $update && [ "$jobs" != "$all" ]; then
    echo "regress.sh: a baseline holds all jobs: leave --jobs out" >&2
    exit 2
fi
[ -x "$train" ] || train=$here/$train # path as seen by the caller
[ -x "$train" ] || { echo "regress.sh: no program $train; build it with make" >&2; exit 2; }

baselines=${REGRESS_BASELINES:-scripts/regress} # tests use their own
# Waiting threads must not keep others from the cores, or the machine is never idle.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
folder=build/regress figures=build/regress/figures
if $again && [ ! -r $figures ]; then
    echo "regress.sh: no figures of an earlier run in $folder" >&2
    exit 2
fi

# One small job: 20 steps with a validation. The sizes of `odd` are no multiple of a vector or tile.
steps=20
job_settings() {
    case $1 in
    fp32 | bf16 | fp16) echo "--set precision=$1" ;;
    # at the rate of the others the loss jumps at step 6, in bf16 too, by a random amount
    fp8 | mxfp8 | nvfp4) echo "--set precision=$1 --set optimizer.lr=5e-4" ;;
    fp8-row | fp8-delayed | fp8-block)
        echo "--set precision=fp8 --set optimizer.lr=5e-4 --set fp8.recipe=${1#fp8-}"
        ;;
    bf16-gelu) echo "--set precision=bf16 --set train.recompute=gelu" ;;
    bf16-layer) echo "--set precision=bf16 --set train.recompute=layer" ;;
    fp16-lower)
        echo "--set precision=fp16 --set gradients.dtype=lower --set autocast.residual=lower"
        ;;
    fp32-odd | bf16-odd)
        echo "--set precision=${1%-odd} --set model.n_embd=72 --set model.n_head=3" \
            "--set data.seq_len=77 --set train.micro_batch_size=3"
        ;;
    esac
}
# Runs ./train with the job's settings, and the given arguments.
run() {
    local job=$1
    shift
    # shellcheck disable=SC2046 # words without spaces
    if ! "$train" --config "$folder/job.json" --set run_dir="$folder" --set name="$job" \
        $(job_settings "$job") "$@" >"$folder/log" 2>&1; then
        echo "regress.sh: $job failed:" >&2
        tail -5 "$folder/log" >&2
        exit 1
    fi
}

# Prints the job's line: JOB FIGURE=VALUE ... Numbers stay text, as in metrics.jsonl: equal text is
# equal bits. Norms are kept as a digest.
collect() {
    local job=$1 weights norms memory
    weights=$(sha256sum "$folder/$job"/checkpoints/*/model.safetensors)
    norms=$(metric grad_norm <"$folder/$job/metrics.jsonl" | sha256sum)
    run "$job" --dry-run
    memory=$(sed -n 's/^  memory  *\([0-9.]*\) MiB.*/\1/p' "$folder/log")
    echo "$job memory=$memory weights=${weights%% *} norms=${norms:0:16}" \
        "validation=$(metric val_loss <"$folder/$job/metrics.jsonl")" \
        "loss=$(metric loss <"$folder/$job/metrics.jsonl" | paste -sd,)"
}
metric() { sed -n "s/.*\"$1\": \([^,}]*\).*/\1/p"; } # NAME

# Prints a number or a text of a JSON file that has one per line.
field() { # FILE KEY
    sed -n -e "s/^[[:space:]]*\"$2\":[[:space:]]*\"\([^\"]*\)\".*/\1/p" \
        -e "s/^[[:space:]]*\"$2\":[[:space:]]*\([-0-9.e+]\{1,\}\).*/\1/p" "$1" | head -1
}

# Prints the properties of the machine that must match for equal bits.
machine() {
    local profile=$1 model
    # Several kinds of processors identify as "Intel(R) Xeon(R) Processor".
    model=$(sed -n 's/^\(cpu family\|model\)[[:space:]]*: \([0-9]*\)$/\2/p' /proc/cpuinfo |
        head -2 | tr '\n' ' ')
    printf '%s, cpu %s, %s threads, %s, gcc %s' "$(field "$profile" device)" "${model% }" \
        "$(field "$profile" threads)" "$(field "$profile" library)" "$(field "$profile" compiler)"
}

# Runs all jobs; prints their figures after a line that names the machine.
run_all() {
    local job line repetitions profile=
    rm -rf "$folder"
    mkdir -p "$folder"
    cat >"$folder/job.json" <<'JSON'
{"model": {"n_layer": 4, "n_head": 4, "n_embd": 256, "n_positions": 128},
 "data": {"train": "tales", "seq_len": 128},
 "train": {"steps": 20, "micro_batch_size": 4, "grad_accum_steps": 2},
 "optimizer": {"lr": 2e-3, "warmup_steps": 4},
 "eval": {"every": 20, "batches": 2},
 "threads": 2, "seed": 7}
JSON
    for job in $jobs; do
        [ ! -t 2 ] || printf '\rregress.sh: %-12s' "$job" >&2
        run "$job"
        line=$(collect "$job")
        repetitions=1
        case $job in fp32 | bf16 | fp16 | fp8) $quick || repetitions=40 ;; esac
        if [ $repetitions -gt 1 ] || [ -z "$profile" ]; then
            profile=$folder/$job/profile.json
            run "$job" --profile --repetitions $repetitions --out "$folder/$job"
        fi
        [ $repetitions = 1 ] || line+=" ratio=$(field "$profile" ratio | cut -c1-6)"
        echo "$line" >>"$folder/lines"
    done
    [ ! -t 2 ] || printf '\r%24s\r' '' >&2
    { printf '# machine: %s\n' "$(machine "$profile")"; cat "$folder/lines"; } >"$figures"
}
if $again; then # keeps the requested jobs that were run
    asked=$jobs jobs=""
    for job in $asked; do
        if grep -q "^$job " $figures; then jobs="$jobs $job"; fi
    done
    if $update && [ "${jobs# }" != "$all" ]; then
        echo "regress.sh: a baseline holds all jobs, and the last run had others" >&2
        exit 2
    fi
else
    run_all
fi
machine=$(sed -n 's/^# machine: //p' "$figures")

# ---- recompute must not change any bit

failures=0
bits_of() { sed -n "s/^$1 .*\(weights=.* loss=[^ ]*\).*/\1/p" $figures; } # JOB
for job in bf16-gelu bf16-layer; do
    if [ -n "$(bits_of bf16)" ] && [ -n "$(bits_of $job)" ] &&
        [ "$(bits_of bf16)" != "$(bits_of $job)" ]; then
        echo "moved: $job differs from bf16: recompute changes bits"
        failures=1
    fi
done

# ---- the baseline of this type of machine, or of any other

slug=$(printf '%s' "$machine" | tr -c 'A-Za-z0-9\n' '-' | tr -s '-' | cut -c1-100)
if $update; then
    [ $failures = 0 ] || { echo "regress.sh: not taken as a baseline" >&2; exit 1; }
    mkdir -p "$baselines"
    { echo "# date: $(date +%F)"; cat "$figures"; } >"$baselines/$slug.new"
    mv "$baselines/$slug.new" "$baselines/$slug.txt"
    echo "baseline of this type of machine: $baselines/$slug.txt"
    exit 0
fi

baseline=$baselines/$slug.txt same=1
if [ ! -r "$baseline" ]; then
    same=0
    baseline=
    for file in "$baselines"/*.txt; do
        [ ! -r "$file" ] || { baseline=$file; break; }
    done
    if [ -z "$baseline" ]; then
        echo "regress.sh: no baseline in $baselines; see --update" >&2
        exit 1
    fi
    echo "no baseline for $machine"
    echo "so within tolerances of $(sed -n 's/^# machine: //p' "$baseline")"
else
    echo "against the bits of $machine, $(sed -n 's/^# date: //p' "$baseline")"
fi

awk -v same=$same -v quick=$quick -v jobs=" $jobs " '
# Difference of a from b, as a part of b.
function difference(a, b) { d = a - b; if (d < 0) d = -d; return b == 0 ? (d > 0) : d / b }
function moved(what, a, b) {
    print "moved: " job ": " what " is " a ", was " b \
        (a + 0 && b + 0 && length(a) < 15 ? sprintf(" (%+.2f %%)", 100 * (a / b - 1)) : "")
    failed = 1
}
# Names the first step whose loss moved.
function compare_losses(a, b, limit,   now, then, i, count) {
    count = split(b, then, ",")
    if (split(a, now, ",") != count) moved("number of steps", split(a, now, ","), count)
    for (i = 1; i <= count; i++)
        if (same ? now[i] != then[i] : difference(now[i], then[i]) > limit) {
            moved("loss." i, now[i], then[i])
            return
        }
}
function compare(figure, a, b) {
    # Differences between instruction sets are at most: bf16 1.4 %, fp16 0.3 %, fp8, mxfp8 and
    # nvfp4 at their rate 0.3 %.
    limit = job ~ /^fp32/ ? 0.001 : 0.02
    if (figure == "loss") compare_losses(a, b, limit)
    else if (figure == "validation") {
        if (same ? a != b : difference(a, b) > limit) moved(figure, a, b)
    } else if (figure == "ratio") {
        if (same && difference(a, b) > 0.25) moved("step / matmuls alone", a, b)
        if (same) printf "  %-11s step / matmuls alone %.3f, was %.3f\n", job, a, b
    } else if (same && a != b) moved(figure, a, b)
}
/^#/ { next }
FNR == NR { old[$1] = $0; next }
{ job = $1 }
index(jobs, " " job " ") == 0 { next }
!(job in old) { print "not compared: this baseline is older than " job; next }
{
    split("", new)
    for (i = 2; i <= NF; i++) { at = index($i, "="); new[substr($i, 1, at - 1)] = substr($i, at + 1) }
    count = split(old[job], part, " ")
    for (i = 2; i <= count; i++) {
        at = index(part[i], "="); figure = substr(part[i], 1, at - 1)
        if (figure == "ratio" && (quick == "true" || !(figure in new))) continue
        compare(figure, new[figure], substr(part[i], at + 1))
    }
}
END { exit failed }' "$baseline" "$figures" || failures=1

if [ $failures = 0 ]; then
    compared=0
    for job in $jobs; do
        if grep -q "^$job " "$baseline"; then compared=$((compared + 1)); fi
    done
    echo "nothing moved: $compared jobs of $steps steps"
    exit 0
fi
echo "If it was meant to move, take the new figures: scripts/regress.sh --update"
exit 1
