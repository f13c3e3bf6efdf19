#!/usr/bin/env bash
# Tests the charts and the error messages of scripts/plot.py, with files made by hand. Skipped
# without gnuplot or python3.
set -euo pipefail
cd "$(dirname "$0")/../.."
if ! command -v gnuplot >/dev/null || ! command -v python3 >/dev/null; then
    echo "skipped: the tests of scripts/plot.py, because there is no gnuplot or no python3 here"
    exit 0
fi
unset COLUMNS NO_COLOR

# shellcheck source=test/scripts/cases.sh
. test/scripts/cases.sh
plot=$root/scripts/plot.py

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
                   skipped ? "null" : 1.5 + i % 2, scale, skipped ? "true" : "false"
            if (not_finite != "")
                printf "\"fp8_not_finite\": %d, \"fp8_zero\": 0, ", i % 5 ? 0 : not_finite
            printf "\"step_ms\": 12.5, \"tokens_per_s\": %d, \"memory_bytes\": 1000000}\n", 40960 + i
            if (i % 10 == 0) printf "{\"step\": %d, \"val_loss\": %.9g}\n", i, loss / 3 + 1 / i
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
cd "a run's folder/it's one"
runs 0 "$plot" metrics.jsonl && says "*it's one" && runs 0 "$plot" . && says "*it's one"
cp metrics.jsonl saved.jsonl && runs 0 "$plot" saved.jsonl && says "*saved"

test_case "several runs, named below the folder that they share"
run a/run 20 && run b/run 20 4 && run c/last 20 2
runs 0 "$plot" a/run b/run c/last && says "*a/run" && says "#b/run" && says "\$c/last" && fits 80
says "A  a/run, validation" && says "C  c/last, validation"

test_case "many runs"
for ((i = 1; i <= 9; i++)); do run "run-$i" 20 $i; done
runs 0 "$plot" run-* && fits 80 && says "run-9" && says "A  validation" && never_says "B  "
runs 0 "$plot" run-* --svg many.svg && count 1 ">validation<" many.svg

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

test_case "figures of an objective, with those of validations"
mkdir -p pairs
for ((i = 1; i <= 20; i++)); do
    kl=null && if ((i % 2)); then kl=0.5; fi
    echo "{\"step\": $i, \"loss\": 0.6, \"rewards_margins\": 0.0$i, \"kl\": $kl, \"a'b\": $i}"
    if ((i % 5 == 0)); then echo "{\"step\": $i, \"val_loss\": 0.7, \"val_rewards_margins\": 0.1}"; fi
done >pairs/metrics.jsonl
runs 0 "$plot" pairs --metric rewards_margins && says "rewards margins" && fits 80
says "V  validation"
runs 0 "$plot" pairs --metric val_rewards_margins && says "rewards margins, validation"
runs 0 "$plot" pairs --metric kl --svg pairs.svg && count 1 ">kl<" pairs.svg
runs 0 "$plot" pairs --svg pairs.svg && count 1 ">rewards margins<" pairs.svg && count 0 "a'b" pairs.svg

test_case "no chart of a loss scale that is always 1"
run one 30
runs 0 "$plot" one --metric all && never_says "loss scale" && says "tokens per second"
runs 0 "$plot" one --metric loss_scale && says "2^0"

test_case "quantizations, where something happened"
run eight 30 8 1 3 && run quiet 30 8 1 0
runs 0 "$plot" eight --metric all && says "quantizations of infinity or NaN" && fits 80
never_says "only zeros"
runs 0 "$plot" quiet --metric all && never_says "fp8"
runs 0 "$plot" quiet --metric fp8_zero && says "quantizations of only zeros"

test_case "no chart of other values that never change"
for ((i = 1; i <= 20; i++)); do
    echo "{\"step\": $i, \"loss\": 0.$i, \"lr\": 1e-4, \"rewards_accuracies\": 1}"
done >constant.jsonl
echo '{"step": 20, "val_loss": 0.5, "val_rewards_accuracies": 0.75}' >>constant.jsonl
runs 0 "$plot" constant.jsonl --svg constant.svg
count 1 ">loss<" constant.svg && count 0 ">learning" constant.svg
says "left out, since constant: val_loss (0.5) lr (0.0001) rewards_accuracies (1)"
says "val_rewards_accuracies (0.75)"
sed 's/1e-4/1e-5/' constant.jsonl >other.jsonl
runs 0 "$plot" constant.jsonl other.jsonl --metric all && says "learning rate" && never_says "(1e-05)"
runs 0 "$plot" constant.jsonl --metric lr && says "learning rate" && never_says "left out"
head -1 constant.jsonl >first.jsonl
runs 0 "$plot" first.jsonl --metric all && says "learning rate" && never_says "left out"

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

test_case "--png"
run one 30
runs 0 "$plot" one --png one.png
if [ "$(head -c 8 one.png | od -An -tx1 | tr -d ' \n')" != 89504e470d0a1a0a ]; then
    wrong "no PNG"
fi

test_case "values of curves: smoothed, thinned out, with gaps, without half a line"
cat >values.jsonl <<'END'
{"step": 1, "loss": 1, "lr": 1e-05}
{"step": 2, "loss": null, "lr": 1e999}
nonsense
{"step": 3, "loss": 3.23456789}
{"step": 3, "val_loss": 5}
{"step": 4, "loss": 5}
END
printf '{"step": 5, "loss": 7' >>values.jsonl
PYTHONPATH=$root/scripts PYTHONDONTWRITEBYTECODE=1 runs 0 python3 -c '
import plot
print(plot.Run("values.jsonl", "", 1).curves["loss"], plot.Run("values.jsonl", "", 1).curves["lr"])
print(plot.Run("values.jsonl", "", 2).curves["loss"])
spiky = [(i, {5042: 123.0, 7076: 0.5, 9000: float("nan")}.get(i, 2.0)) for i in range(10000)]
kept = plot.thin(spiky, 100)
print(len(kept) <= 201, kept == sorted(kept, key=lambda p: p[0]), spiky[5042] in kept,
      spiky[7076] in kept, spiky[9000] in kept)'
says "[(1, 1.0), (2, nan), (3, 3.23456789), (4, 5.0)] [(1, 1e-05), (2, nan)]"
says "[(1, 1.0), (2, nan), (3, 2.117283945), (4, 4.1172839450000005)]" && says "True True True True True"

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

runs 1 "$plot" one --metric los && says "no finite value of los"

test_case "wrong usage"
run one 5
for wrong_usage in "" "--nothing one" "one --metric" "one --metric ," \
    "one --svg" "one --svg a --png b" "one --smooth 0" "one --smooth x" "one --follow 0"; do
    # shellcheck disable=SC2086
    runs 2 "$plot" $wrong_usage && says "usage: scripts/plot.py"
done
runs 1 "$plot" one --svg nowhere/one.svg && says "nowhere/one.svg: cannot be written"

test_case "runs/* skips what is no run"
run runs/one 20 && mkdir runs/empty && echo "a profile" >runs/one-profile.log
runs 0 "$plot" runs/* && says "*one" && never_says "*one-profile"
says "skipped, as no run with a metrics.jsonl: runs/empty runs/one-profile.log"
runs 1 "$plot" runs/one-profile.log && says "runs/one-profile.log: no readable metrics.jsonl"

test_case "named pipes in the folders of runs do not block"
run one 5 && mkfifo one/config.json pipe.jsonl && mkdir two && mkfifo two/metrics.jsonl
runs 0 timeout 60 "$plot" one two && says "*one"
says "skipped, as no run with a metrics.jsonl: two"
runs 1 timeout 60 "$plot" two && says "two: no readable metrics.jsonl"
runs 1 timeout 60 "$plot" pipe.jsonl && says "pipe.jsonl: no such run"

test_case "no gnuplot"
run one 5
runs 1 env PATH=/nowhere "$(python3 -c 'import sys; print(sys.executable)')" "$plot" one && says "apt-get install gnuplot-nox"

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

test_case "--follow until it is stopped"
run one 10 && config one 30
runs 130 timeout -s INT --preserve-status 3 "$plot" one --follow 0.1 && says "*one"
runs 143 timeout --preserve-status 3 "$plot" one --follow 0.1

if command -v script >/dev/null; then
    test_case "--follow in a terminal, which is left in order"
    run one 30 && config one 30
    printf 'stty cols 90 rows 20\n%q one --follow 0.1\n' "$plot" >session.sh
    runs 0 timeout 20 env TERM=xterm script -qec "bash session.sh" session
    count 1 '.\[?25l' session && count 1 '.\[?25h' session
    if [ "$(grep -c . session)" -gt 24 ]; then wrong "higher than the terminal"; fi
fi

finish scripts/plot.py
