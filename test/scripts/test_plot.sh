#!/usr/bin/env bash
# Tests the charts and the error messages of scripts/plot.sh, with files made by hand. Skipped
# without gnuplot.
set -euo pipefail
cd "$(dirname "$0")/../.."
if ! command -v gnuplot >/dev/null; then
    echo "skipped: the tests of scripts/plot.sh, because there is no gnuplot here"
    exit 0
fi
unset COLUMNS NO_COLOR

# shellcheck source=test/scripts/cases.sh
. test/scripts/cases.sh
plot=$root/scripts/plot.sh

count() { # NUMBER PATTERN FILE: this many of its lines match
    local got
    got=$(grep -c -- "$2" "$3") || true
    if [ "$got" != "$1" ]; then wrong "$got lines of $3 instead of $1 match: $2"; fi
}

# run FOLDER STEPS [LOSS [SCALE [NOT_FINITE]]]: makes a run whose loss falls from LOSS to about a
# quarter. The loss scale is halved in every fifth step, which is skipped; a SCALE of 1 stays. With
# NOT_FINITE it is an fp8 run with non-finite values in every fifth step.
run() {
    mkdir -p "$1"
    awk -v steps="$2" -v loss="${3:-8}" -v scale="${4:-1}" -v not_finite="${5:-}" 'BEGIN {
        for (i = 1; i <= steps; i++) {
            skipped = scale > 1 && i % 5 == 0
            if (skipped) scale /= 2
            printf "{\"step\": %d, \"tokens\": %d, \"loss\": %.9g, \"lr\": %.9g, ", i, i * 512,
                   loss * (0.25 + 0.75 * exp(-5 * (i - 1) / steps)), 1e-3 * i / steps
            printf "\"grad_norm\": %s, \"loss_scale\": %.9g, \"skipped\": %s, ",
                   skipped ? "null" : "1.5", scale, skipped ? "true" : "false"
            if (not_finite != "")
                printf "\"fp8_not_finite\": %d, \"fp8_zero\": 0, ", i % 5 ? 0 : not_finite
            printf "\"step_ms\": 12.5, \"tokens_per_s\": %d, \"memory_bytes\": 1000000}\n", 40960
            if (i % 10 == 0) printf "{\"step\": %d, \"val_loss\": %.9g}\n", i, loss / 3
        }
    }' >"$1/metrics.jsonl"
}

# ---- in the terminal

test_case "the loss of one run"
run "runs/one" 40
runs 0 "$plot" runs/one && says "loss" && says "*****one" && says "V  validation" && says step
fits 80 && never_says 'E[' && says " 8 +--"
if ! grep -q ' 10 .* 20 .* 30 .* 40$' "$work/said"; then wrong "the steps are not below it"; fi

test_case "a metrics file, and paths with spaces, a quote and an equals sign"
run x=1/a=b 20 && runs 0 "$plot" x=1/a=b && says "*a=b"
run "a run's folder/it's one" 20
runs 0 "$plot" "a run's folder/it's one" && says "it's one"
runs 0 "$plot" "a run's folder/it's one/metrics.jsonl" && says "it's one"
runs 0 env TMPDIR="$PWD/a run's folder" "$plot" "a run's folder/it's one" && says "it's one"
cd "a run's folder/it's one"
runs 0 "$plot" metrics.jsonl && says "*it's one" && runs 0 "$plot" . && says "*it's one"
cp metrics.jsonl saved.jsonl && runs 0 "$plot" saved.jsonl && says "*saved"

test_case "several runs, whose names are made distinct"
run a/run 20 && run b/run 20 4 && run c/last 20 2
runs 0 "$plot" a/run b/run c/last && says "*a/run" && says "#b/run" && says "\$last" && fits 80
says "A  a/run, validation" && says "C  last, validation"
runs 0 "$plot" a/run a/run && says "run (1)" && says "run (2)"

test_case "many runs"
for ((i = 1; i <= 9; i++)); do run "run-$i" 20 $i; done
runs 0 "$plot" run-* && fits 80 && says "run-9" && says "A  validation" && never_says "B  "
runs 0 "$plot" run-* --svg many.svg && count 1 ">validation<" many.svg

test_case "the width of the output"
run one 30
runs 0 env COLUMNS=120 "$plot" one && fits 120
if [ "$(wc -L <"$work/said")" -lt 100 ]; then wrong "does not use the width"; fi
runs 0 env COLUMNS=60 "$plot" one && fits 60
runs 0 env COLUMNS=zero "$plot" one && fits 80

test_case "other metrics"
run one 30 8 1024
for metric in "val_loss:validation loss" "grad_norm:gradient norm" "loss_scale:loss scale" \
    "lr:learning rate" "tokens_per_s:tokens per second"; do
    runs 0 "$plot" one --metric "${metric%:*}" && says "${metric#*:}" && fits 80
done
says "40000"
runs 0 "$plot" one --metric loss_scale && says "2^10" && says "x  skipped steps"
runs 0 "$plot" one --metric lr,loss && says "learning rate" && says "validation"
runs 0 "$plot" --metric all one && says "learning rate" && says "loss scale"
runs 0 "$plot" --metric lr --metric grad_norm one && says "learning rate" && says "gradient norm"

test_case "no chart of a loss scale that is always 1"
run one 30
runs 0 "$plot" one --metric all && never_says "loss scale" && says "tokens per second"
runs 0 "$plot" one --metric loss_scale && says "2^0"

test_case "roundings of fp8, where something happened"
run eight 30 8 1 3 && run quiet 30 8 1 0
runs 0 "$plot" eight --metric all && says "fp8 roundings of infinity or NaN" && fits 80
never_says "only zeros"
runs 0 "$plot" quiet --metric all && never_says "fp8"
runs 0 "$plot" quiet --metric fp8_zero && says "fp8 roundings of only zeros"

test_case "a single step, and equal values"
run one 1
runs 0 "$plot" one --metric all && never_says warning
says "  V  one"

# ---- contents of image files

test_case "--svg"
run one 30 8 1024 && run two 30 7
runs 0 "$plot" one two --svg "a picture.svg" && count 1 '^<svg ' "a picture.svg"
if [ -s "$work/said" ]; then wrong "says something"; fi
for title in loss "validation loss" "gradient norm" "loss scale" "learning rate" \
    "tokens per second"; do count 1 ">$title<" "a picture.svg"; done
count 0 "<script" "a picture.svg" && count 0 "<image" "a picture.svg"
count 5 ">two<" "a picture.svg" && count 1 ">skipped steps<" "a picture.svg"
count 1 ">validation<" "a picture.svg"
if command -v xmllint >/dev/null; then runs 0 xmllint --noout "a picture.svg"; fi

test_case "--svg of one metric"
run one 30
runs 0 "$plot" one --svg one.svg --metric lr && count 1 ">learning rate<" one.svg
count 0 ">loss<" one.svg

test_case "--png"
run one 30
runs 0 "$plot" one --png one.png
if [ "$(head -c 8 one.png | od -An -tx1 | tr -d ' \n')" != 89504e470d0a1a0a ]; then
    wrong "no PNG"
fi

# points FILE SMOOTH TOGETHER METRICS: writes plot.awk's points of a file to
# FOLDER/NUMBER_OF_METRIC.
# shellcheck disable=SC2016 # blocks of data begin with a dollar sign
points() {
    NAMES=one STEPS=0 METRICS=$4 SMOOTH=$2 KIND=svg WIDTH=80 HEIGHT=0 COLOUR=mono REPORT=report \
        awk -f "$root/scripts/plot.awk" run=1 together="$3" "$1" >"$work/said"
    sed -n '/^\$r1m1 <</,/^END/p' "$work/said" | sed '1d;$d' >loss
    sed -n '/^\$r1m7 <</,/^END/p' "$work/said" | sed '1d;$d' >lr
}

test_case "thinned out, a spike and a dip stay"
run one 10000
sed -i -e '5043s/"loss": [^,]*/"loss": 123/' -e '7077s/"loss": [^,]*/"loss": 0.01/' \
    one/metrics.jsonl
points one/metrics.jsonl 1 100 "loss"
count 1 ' 123$' loss && count 1 ' 0.01$' loss
if [ "$(wc -l <loss)" -gt 230 ]; then wrong "$(wc -l <loss) points are left"; fi
if ! sort -nc -k1,1 loss; then wrong "not in the order of steps"; fi

test_case "every value, if there are few, to nine digits"
printf '%s\n' '{"step": 1, "tokens": 5, "loss": 1.23456789, "lr": 1e-05}' \
    '{"step": 2, "tokens": 5, "loss": null, "lr": 0.5}' '{"step": 2, "val_loss": 3}' \
    '{"step": 3, "tokens": 5, "loss": 5, "lr": 1}' '{"step": 4, "tokens": 5, "loss": 7' >cut.jsonl
points cut.jsonl 1 1 "loss lr"
if [ "$(tr '\n' ';' <loss)" != "1 1.23456789;2 NaN;3 5;" ]; then wrong "$(cat loss)"; fi
if [ "$(tr '\n' ';' <lr)" != "1 1e-05;2 0.5;3 1;" ]; then wrong "$(cat lr)"; fi

test_case "--smooth"
step=0
for value in 1 2 3 null 4 5; do
    echo "{\"step\": $((++step)), \"loss\": $value, \"lr\": $value}"
done >values.jsonl
points values.jsonl 3 1 "loss lr"
if [ "$(cut -d ' ' -f 2 loss | tr '\n' ' ')" != "1 1.5 2 NaN 3 4 " ]; then wrong "$(cat loss)"; fi
if [ "$(cut -d ' ' -f 2 lr | tr '\n' ' ')" != "1 2 3 NaN 4 5 " ]; then wrong "lr too"; fi
run one 50 && runs 0 "$plot" one --smooth 10 && says "mean of the last 10 steps"

test_case "a line that is being written, null, and lines of something else"
run one 20
printf 'nonsense\n\n{"step": 21, "tokens": 9, "loss": null, "lr": 1}\n{"step": 22, "lo' \
    >>one/metrics.jsonl
runs 0 "$plot" one && says "*one"
points one/metrics.jsonl 1 1 "loss"
if [ "$(tail -n 1 loss)" != "21 NaN" ]; then wrong "it ends with $(tail -n 1 loss)"; fi

test_case "100,000 steps in a few seconds"
run one 100000
runs 0 timeout 60 "$plot" one && says 100000 && fits 80
runs 0 timeout 60 "$plot" one --svg one.svg
if [ "$(wc -c <one.svg)" -gt 500000 ]; then wrong "$(wc -c <one.svg) bytes are much"; fi

# ---- errors

test_case "no such run, no steps, no values"
run one 5
runs 1 "$plot" nothing && says "nothing: no such run"
mkdir empty && runs 1 "$plot" empty && says "empty: no readable metrics.jsonl"
: >empty/metrics.jsonl && runs 1 "$plot" empty && says "empty: no steps in it yet"
runs 0 "$plot" one empty && says "empty: no steps in it yet" && says "*one"
runs 1 "$plot" one --metric val_loss && says "no finite value of val_loss"
runs 0 "$plot" one --metric lr,val_loss && says "no finite value of val_loss" && says "*one"
echo '{"step": 1, "tokens": 8, "loss": null, "lr": null}' >empty/metrics.jsonl
runs 1 "$plot" empty && says "no finite value of loss"

test_case "wrong usage"
run one 5
for wrong_usage in "" "--nothing one" "one --metric" "one --metric los" "one --metric ," \
    "one --svg" "one --svg a --png b" "one --smooth 0" "one --smooth x" "one --follow 0"; do
    # shellcheck disable=SC2086
    runs 2 "$plot" $wrong_usage && says "see scripts/plot.sh --help"
done
runs 1 "$plot" one --svg nowhere/one.svg && says "nowhere/one.svg: cannot be written"

test_case "help fits a terminal"
runs 0 "$plot" --help && says "apt-get install gnuplot-nox" && fits 80

test_case "runs/* skips what is no run"
run runs/one 20 && mkdir runs/empty && echo "a profile" >runs/one-profile.log
runs 0 "$plot" runs/* && says "*one" && never_says "*one-profile"
says "skipped, as no run with a metrics.jsonl: runs/empty runs/one-profile.log"
runs 1 "$plot" runs/one-profile.log && says "runs/one-profile.log: no readable metrics.jsonl"

test_case "the loss scale of fp16 alone, beside a run of bf16"
run half 30 8 1024 && run bf16 30
runs 0 "$plot" half bf16 --svg both.svg
count 1 ">loss scale<" both.svg && count 5 ">bf16<" both.svg && count 6 ">half<" both.svg

test_case "descending steps, and numbers beyond all bounds"
run one 20 && sort -rn -t : -k 2 one/metrics.jsonl >falling.jsonl
runs 0 timeout 10 "$plot" falling.jsonl --metric all && says "*falling" && says " 20"
for number in 1e99999999 -1e99999999 nan 1e-99999999 -5; do
    sed -E "s/: [0-9.e+-]+, \"(lr|grad_norm|skipped|memory)/: $number, \"\\1/g" one/metrics.jsonl \
        >odd.jsonl
    runs 0 timeout 10 "$plot" one odd.jsonl --metric all && says "*one"
done
echo '{"step": 99999999999999999999999, "loss": 1}' >>odd.jsonl
runs 0 timeout 10 "$plot" one odd.jsonl && says " 20"

test_case "no gnuplot"
run one 5
mkdir bin
for program in bash env dirname awk sed mktemp rm cat wc tr realpath; do
    ln -s "$(command -v $program)" bin/
done
runs 1 env PATH="$PWD/bin" "$plot" one && says "apt-get install gnuplot-nox"

test_case "a gnuplot that fails"
run one 5
mkdir bin && printf '#!/bin/sh\necho no such terminal >&2\nexit 3\n' >bin/gnuplot
chmod +x bin/gnuplot
runs 1 env PATH="$PWD/bin:$PATH" "$plot" one && says "gnuplot failed: no such terminal"

# ---- --follow

config() { # FOLDER STEPS
    mkdir -p "$1"
    printf '{\n  "model": {"steps": 1},\n  "train": {\n    "steps": %d\n  },\n  "x": {"steps": 1}\n}\n' "$2" \
        >"$1/config.json"
}

test_case "--follow ends with the run"
run full 30 && config one 30
{
    wait_until grep -q "waiting for" "$work/said" && head -n 10 full/metrics.jsonl >one/metrics.jsonl
    wait_until grep -q '*one' "$work/said" && cp full/metrics.jsonl one/
} &
runs 0 timeout 20 "$plot" one --follow 0.1 && says "waiting for the first steps of one"
says "*one" && never_says 'E['
wait

test_case "--follow of a run that is done"
run one 30 && config one 30
runs 0 timeout 20 "$plot" --follow 0.1 one && says "*one"
runs 0 timeout 20 "$plot" one --follow 0.1 --svg one.svg && count 1 ">loss<" one.svg

test_case "--follow until it is stopped"
run one 10 && config one 30
runs 130 timeout -s INT --preserve-status 3 "$plot" one --follow 0.1 && says "*one"
runs 143 timeout --preserve-status 3 "$plot" one --follow 0.1
mkdir t && TMPDIR=$PWD/t runs 143 timeout --preserve-status 3 "$plot" one --follow 0.1
if [ -n "$(ls t)" ]; then wrong "leaves files behind"; fi

test_case "--follow without a config"
run one 10
runs 130 timeout -s INT --preserve-status 3 "$plot" one --follow 0.1 && says "*one"

if command -v script >/dev/null; then
    test_case "--follow in a terminal, which is left in order"
    run one 30 && config one 30
    printf 'stty cols 90 rows 20\n%q one --follow 0.1\n' "$plot" >session.sh
    runs 0 timeout 20 env TERM=xterm script -qec "bash session.sh" session
    count 1 '.\[?25l' session && count 1 '.\[?25h' session
    if [ "$(grep -c . session)" -gt 24 ]; then wrong "higher than the terminal"; fi
fi

finish scripts/plot.sh
