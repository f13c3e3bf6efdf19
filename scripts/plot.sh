#!/usr/bin/env bash
# Draws the loss of a run in the terminal, from its metrics.jsonl.
#   scripts/plot.sh runs/NAME
set -euo pipefail
metrics=${1:?usage: scripts/plot.sh runs/NAME}/metrics.jsonl
[ -r "$metrics" ] || { echo "$metrics: not readable; is it a run directory?" >&2; exit 1; }
command -v gnuplot >/dev/null || { echo "Install it first: apt-get install gnuplot-nox" >&2; exit 1; }

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
number='\(-\{0,1\}[0-9.e+-]*\)'
sed -n "s/^{\"step\": \([0-9]*\), \"tokens\".*\"loss\": $number,.*/\1 \2/p" "$metrics" \
    >"$folder/loss"
sed -n "s/^{\"step\": \([0-9]*\), \"val_loss\": $number}.*/\1 \2/p" "$metrics" >"$folder/val"
[ -s "$folder/loss" ] || { echo "$metrics: no steps in it yet" >&2; exit 1; }

columns=$(tput cols 2>/dev/null || echo 80)
[ "$columns" -gt 110 ] && columns=110
curves="'$folder/loss' with lines title 'training'"
[ -s "$folder/val" ] && curves="$curves, '$folder/val' with points pt 'V' title 'validation'"
gnuplot -e "set terminal dumb $((columns - 2)) 22 noenhanced; set xlabel 'step'; plot $curves"
