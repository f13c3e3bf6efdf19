#!/usr/bin/env bash
# Runs the first commands of README.md, in their order and in an empty folder, with fewer steps of a
# smaller model. Tests ./train or $TRAIN.
set -euo pipefail
cd "$(dirname "$0")/../.."
train=$(realpath "${TRAIN:-./train}")
# shellcheck source=test/scripts/cases.sh
. test/scripts/cases.sh

test_case "the first four commands"
[ -e "$(dirname "$train")/configs" ] || ln -s "$root/configs" . # for a program in build/
mapfile -t commands < <(awk '/^    / { print; begun = 1 } begun && !/^    / { exit }' "$root/README.md")
if [ "${#commands[@]}" -ne 4 ]; then wrong "${#commands[@]} commands instead of 4"; fi
small=(--set train.steps=2 --set model.n_layer=1 --set model.n_embd=32 --set eval.batches=1
    --set sample.tokens=5)
for command in "${commands[@]}"; do
    read -ra words <<<"${command%%#*}"
    if [ "${words[0]}" != ./train ]; then wrong "not a command of ./train: $command"; fi
    if [ "${words[1]}" = --config ]; then words+=("${small[@]}"); fi
    runs 0 "$train" "${words[@]:1}"
done
finish "the first commands of README.md"
