#!/usr/bin/env bash
# Takes a bare Debian or Ubuntu machine to a trained model: installs missing packages (apt, with
# sudo unless root), builds, and trains configs/quickstart.json on the embedded corpus. It uses bf16
# if the processor is fast in it, else fp32. It measures the speed first, and takes as many steps as
# fit two minutes. After an interruption the same command resumes.
#   scripts/quickstart.sh [--set KEY=VALUE ...]
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/packages.sh
. scripts/packages.sh

# Rejects settings under which a resume or the measurement would not work.
steps=
for word in "$@"; do
    case $word in
    --set | --set=*=* | [!-]*=*) ;;
    *)
        sed -n '2,7s/^# \?//p' "$0" >&2
        exit 2
        ;;
    esac
    case ${word#--set=} in
    name=* | run_dir=* | log.metrics=* | train.epochs=*)
        echo "quickstart.sh: not with $word: use ./train --config quickstart.json" >&2
        exit 2
        ;;
    train.steps=[1-9]*) steps=${word#*train.steps=} ;;
    esac
done

seconds=120
steps_max=6000 # three epochs of the corpus; more would overfit

# Prints how many steps fit, measured by a few seconds of training.
choose_steps() {
    local folder=$1
    ./train --config quickstart.json "${@:2}" --set run_dir="$folder" --set name=measured \
        --set train.steps=1000000 --set train.minutes=0.1 --set eval.every=0 \
        --set sample.every=0 --set checkpoint.every=0 >"$folder/log" 2>&1 ||
        { tail -n 5 "$folder/log" >&2; return 1; }
    # The first step allocates memory; validations, samples and checkpoints take about a twentieth.
    sed -n 's/.*"step_ms": \([0-9.]*\),.*/\1/p' "$folder/measured/metrics.jsonl" |
        awk -v seconds="$seconds" -v most="$steps_max" '
            NR == 1 { first = $1 }
            { sum += $1 }
            END {
                ms = NR > 1 ? (sum - first) / (NR - 1) : first
                steps = int(0.95 * 1000 * seconds / ms / 60) * 60
                if (steps < 60) steps = 60
                print (steps > most ? most : steps)
            }'
}

install_build_needs gnuplot gnuplot-nox python3 python3
# Compiling for GPUs takes as long as everything else together.
gpu=false
for sign in /dev/nvidiactl /dev/dxg /proc/driver/nvidia/version /dev/nvhost-ctrl /dev/nvgpu; do
    if [ -e "$sign" ]; then gpu=true; fi
done
if $gpu; then make -j"$(nproc)"; else make -j"$(nproc)" CUDA=0; fi

if [ -e runs/quickstart/config.json ]; then
    ./train --config runs/quickstart/config.json --set checkpoint.resume=auto "$@"
else
    if [ -z "$steps" ]; then
        folder=$(mktemp -d)
        trap 'rm -rf "$folder"' EXIT
        printf 'Measuring how fast this machine trains ...\n'
        steps=$(choose_steps "$folder" "$@")
        printf 'Training for %d steps, about two minutes.\n\n' "$steps"
    fi
    ./train --config quickstart.json --set checkpoint.resume=auto --set train.steps="$steps" \
        --set optimizer.warmup_steps=$((steps / 30)) --set eval.every=$((steps / 6)) \
        --set checkpoint.every=$((steps / 3)) --set sample.every=$((steps / 3)) "$@"
fi

printf '\nThe loss by step (runs/quickstart/metrics.jsonl):\n'
scripts/plot.py runs/quickstart
printf '\nA story, by ./train --sample "Once upon a time" --from runs/quickstart --tokens 500:\n\n'
./train --sample "Once upon a time" --from runs/quickstart --tokens 500
printf '\nWhich words follow a piece of a story? ./train --choices tales --from runs/quickstart:\n\n'
./train --choices tales --from runs/quickstart
printf '\nNext: ./train --config bf16.json, or your own text: ./prepare --help\n'
