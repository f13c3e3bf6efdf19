#!/usr/bin/env bash
# From a bare Debian or Ubuntu machine to a trained model in about two minutes of training:
# installs what is missing (apt, with sudo unless root), builds, trains configs/quickstart.json on
# the embedded corpus in bf16 where the processor has it, else fp32, and shows what came out.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/packages.sh
. scripts/packages.sh

install_build_needs gnuplot gnuplot-nox
make -j"$(nproc)"

./train --config quickstart.json --set checkpoint.resume=auto "$@"

printf '\nThe loss by step (runs/quickstart/metrics.jsonl):\n'
scripts/plot.sh runs/quickstart
printf '\nA story, by ./train --sample "Once upon a time" --from runs/quickstart --tokens 500:\n\n'
./train --sample "Once upon a time" --from runs/quickstart --tokens 500
printf '\nNext: ./train --config bf16.json, or your own text: ./prepare --help\n'
