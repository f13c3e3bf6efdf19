#!/usr/bin/env bash
# Tests scripts/compare_precisions.sh on a model so small that a run takes a moment, with ./train
# and ./compare, or $TRAIN and $COMPARE.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=test/scripts/cases.sh
. test/scripts/cases.sh
real_train=$(realpath "${TRAIN:-./train}")
COMPARE=$(realpath "${COMPARE:-./compare}")
export COMPARE OMP_WAIT_POLICY=passive
script=$root/scripts/compare_precisions.sh
runner=(timeout 120 "$script")

# ---- assertions

set_up() {
    export TRAIN=$real_train
    cat >"my tiny.json" <<'TEXT'
{
  "name": "tiny", "threads": 1, "seed": 5,
  "model": {"n_layer": 1, "n_head": 2, "n_embd": 32, "n_positions": 32},
  "data": {"train": "tales", "seq_len": 32},
  "train": {"steps": 40, "micro_batch_size": 2},
  "optimizer": {"lr": 1e-3, "warmup_steps": 5},
  "eval": {"every": 20, "batches": 2}, "checkpoint": {"every": 20}
}
TEXT
}
holds() { # FILE ...
    local file
    for file; do if [ ! -s "$file" ]; then wrong "there is no $file"; fi; done
}
losses() { # RUN: prints its files without timings
    sed 's/, "step_ms".*//' "$1/metrics.jsonl"
}
same_run() { # RUN RUN
    if ! cmp -s <(losses "$1") <(losses "$2"); then wrong "$1 and $2 differ"; fi
}

lower=bf16:gradients.dtype=lower lower_run=bf16+gradients.dtype=lower

# fake_train TEXT: makes a fake ./train that runs TEXT first.
fake_train() {
    printf '#!/usr/bin/env bash\n%s\nexec %q "$@"\n' "$1" "$real_train" >"$work/fake_train"
    chmod +x "$work/fake_train"
    export TRAIN=$work/fake_train
}

# ---- complete comparisons

test_case "all pass"
runs 0 "my tiny.json" --no-profile
says "run 1 of 3: fp32, seed 5" && says "run 3 of 3: fp16, seed 5" && says "may take"
says "fp32, bf16, fp16: 40 steps, 1 seed, against fp32"
here="runs/compare-my tiny"
holds "$here/report.json" "$here/runs/bf16/metrics.jsonl"
if "${PYTHON:-python3}" -c "import matplotlib" 2>/dev/null; then holds "$here/report.html"; fi
# An equal first loss shows that the runs have equal weights and batches.
for run in bf16 fp16; do
    first=$(sed -n '1s/.*"loss": \([0-9.]*\),.*/\1/p' "$here/runs/$run/metrics.jsonl")
    case $first in 5.5[0-9]*) ;; *) wrong "$run begins with a loss of $first" ;; esac
done
if ! grep -q '"sample"' "$here/runs/fp32/config.json" ||
    grep -q 'sample at' "$here/runs/fp32.log"; then wrong "samples were drawn"; fi

test_case "limits are looked at before anything is trained"
runs 2 "my tiny.json" --limit-loss 1x && says '--limit-loss: "1x"' && never_says "run 1"

test_case "seeds, and arguments of ./train"
runs 0 "my tiny.json" --out out --seeds 2 --precisions fp32,bf16 --steps 20 --no-profile \
    -- --set seed=9 --set train.micro_batch_size=1
says "run 4 of 4: bf16, seed 10" && says "20 steps, 2 seeds"
holds out/runs/fp32/metrics.jsonl out/runs/bf16-seed10/metrics.jsonl
if ! grep -q '"micro_batch_size": 1' out/runs/bf16/config.json; then wrong "not passed on"; fi

# ---- resuming

test_case "finished runs are not run again, and more can be added"
runs 0 "my tiny.json" --out out --precisions fp32,bf16 --no-profile
cp -r out/runs/fp32 before
fake_train 'case "$*" in *--dry-run*) ;; *) echo "$@" >>asked ;; esac'
runs 0 "my tiny.json" --out out --seeds 2 --no-profile
says "run 1 of 6: fp32, seed 5: done before" && says "run 3 of 6: fp16, seed 5"
says "run 6 of 6: fp16, seed 6"
if [ "$(wc -l <asked)" -ne 4 ]; then wrong "$(wc -l <asked) runs instead of 4"; fi
same_run out/runs/fp32 before

# Batches of some hundred bytes are so noisy that correct arithmetic drifts apart: wide limits.
long=("my tiny.json" --steps 400 --precisions "fp32,$lower" --no-profile --limit-loss 9
    --limit-curve 9 --limit-norm 99 --limit-correlation=-1
    -- --set checkpoint.every=0 --set train.micro_batch_size=16)
test_case "a whole comparison, to hold others against"
runs 0 --out "$work/whole" "${long[@]}"
whole=$work/whole/runs

stop_test() { # SIGNAL STATUS PREFIX
    stops "$1" "$2" "$3" "out/runs/$lower_run/metrics.jsonl" "$script" --out out "${long[@]}"
    says "the same command goes on from here" && never_says "verdict"
    if [ "$(grep -c tokens_per_s "out/runs/$lower_run/metrics.jsonl")" -eq 400 ]; then
        wrong "it went on to its end"
    fi
    runs 0 --out out "${long[@]}"
    says "run 1 of 2: fp32, seed 5: done before"
    same_run out/runs/fp32 "$whole/fp32"
    same_run "out/runs/$lower_run" "$whole/$lower_run"
}
test_case "Ctrl-C, which every process of the group gets"
stop_test INT 130 -
test_case "SIGTERM to the script alone"
stop_test TERM 143 ""

test_case "other settings do not mix"
runs 0 "my tiny.json" --out out --precisions fp32,bf16 --no-profile
runs 1 "my tiny.json" --out out --precisions fp32,bf16 --no-profile --steps 20
says "+steps: 20" && says "choose another --out"
runs 1 "my tiny.json" --out out --precisions fp32,bf16 --no-profile -- --set eval.batches=1
says "+arguments of ./train: --set eval.batches=1"
sed -i 's/1e-3/2e-3/' "my tiny.json"
runs 1 "my tiny.json" --out out --precisions fp32,bf16 --no-profile && says '"lr": 2e-3'

test_case "another program goes on, and what it has made stays known"
runs 0 "my tiny.json" --out out --precisions fp32,bf16 --no-profile
fake_train ""
runs 0 "my tiny.json" --out out --no-profile && says "not the one any more"
export TRAIN=$real_train
runs 0 "my tiny.json" --out out --no-profile && says "not the one any more"

test_case "the config that a comparison keeps"
runs 0 "my tiny.json" --out out --precisions fp32,bf16 --no-profile
runs 0 out/config.json --out out --precisions fp32,bf16 --no-profile
says "run 2 of 2: bf16, seed 5: done before"
rm -r out/runs
runs 0 out/config.json --out out --precisions fp32,bf16 --no-profile && never_says "done before"

# ---- variants

two=bf16:train.recompute=layer:autocast.float32=qkv,gelu
two_run=bf16+autocast.float32=qkv,gelu+train.recompute=layer
set_to() { # KEY VALUE RUN: checks a value in the run's config
    if ! grep -qF "\"$1\": $2" "out/runs/$3/config.json"; then wrong "$3 has no $1 $2"; fi
}

test_case "variants are runs with settings of their own"
fake_train 'case " $* " in *" --profile "*) echo "$*" >>profiled ;; esac'
runs 0 "my tiny.json" --out out --precisions "$two,bf16,$lower,fp32" --seeds 2 \
    -- --set gradients.dtype=float32
says "run 1 of 8: fp32, seed 5" && says "run 2 of 8: $two, seed 5"
says "run 8 of 8: $lower, seed 6"
says "gradients.dtype=lower" && says "recompute=layer:"
for run in $lower_run $lower_run-seed6; do
    set_to dtype '"lower"' "$run" && set_to recompute '"none"' "$run"
    set_to precision '"bf16"' "$run"
done
set_to dtype '"float32"' bf16 && set_to recompute '"layer"' $two_run
set_to float32 '["qkv", "gelu"]' $two_run && set_to float32 '[]' bf16
holds out/runs/$lower_run/profile.json out/runs/$two_run/profile.json
if [ "$(grep -c gradients.dtype=lower profiled)" -ne 1 ]; then wrong "it profiled another run"; fi
if ! grep -qF "\"label\":	\"$two\"" out/report.json; then wrong "report.json lacks $two"; fi

test_case "without matplotlib it says what to install"
PYTHON=/nowhere/python3 runs 0 "my tiny.json" --precisions fp32,bf16 --no-profile
says "for report.html: apt-get install python3-matplotlib"
says 'report.py runs/compare-my\ tiny/report.json --out runs/compare-my\ tiny/report.html'
if [ -e "runs/compare-my tiny/report.html" ]; then wrong "there is a page"; fi

test_case "a variant that differs fails alone"
runs 1 "my tiny.json" --no-profile \
    --precisions fp32,bf16:model.dropout=0.5,bf16:optimizer.beta2=0.5,bf16:threads=2
says "bf16:model.dropout=0.5: FAIL" && never_says "bf16:threads=2: FAIL"
says "bf16:optimizer.beta2=0.5: rank 2 of 2" && says "warning: optimizer.beta2 differs"

test_case "variants can be added, and their settings come in any order"
runs 0 "my tiny.json" --out out --precisions fp32,$two --no-profile
fake_train 'case "$*" in *--dry-run*) ;; *) echo "$@" >>asked ;; esac'
runs 0 "my tiny.json" --out out --no-profile --seeds 2 \
    --precisions fp32,$lower,bf16:autocast.float32=qkv,gelu:train.recompute=layer
says "run 2 of 6: $lower, seed 5" && never_says "run 2 of 6: $lower, seed 5: done"
says "run 3 of 6: bf16:autocast.float32=qkv,gelu:train.recompute=layer, seed 5: done before"
if [ "$(wc -l <asked)" -ne 4 ]; then wrong "$(wc -l <asked) runs instead of 4"; fi

test_case "settings that no file can be called by"
words=$(printf 'word %.0s' {1..90})
runs 0 "my tiny.json" --out out --no-profile --steps 20 \
    --precisions "bf16:sample.prompt=a/b c,bf16:sample.prompt=a-b-c,bf16:sample.prompt=$words"
for prompt in "a/b c" a-b-c "$words"; do
    if ! cat out/runs/*/config.json | grep -F "\"$prompt\"" >/dev/null; then
        wrong "no run of its own for $prompt"
    fi
done
if [ -n "$(find out/runs -name '*[!A-Za-z0-9.,_=+-]*')" ]; then wrong "$(ls out/runs)"; fi

test_case "variants that cannot be"
cannot() { # VARIANT PART
    runs 2 "my tiny.json" --precisions "fp32,$1" && says "$2" && never_says "run 1"
}
for variant in fp4:threads=2 :threads=2 bf16: bf16::threads=2 bf16:threads bf16:data.train=a:b; do
    cannot $variant "--precisions: $variant: write a precision, such as bf16 or fp8, then :KEY=VALUE"
done
cannot bf16:threads=2:threads=3 "threads is there twice"
cannot bf16:run_dir=x "--precisions: bf16:run_dir=x: run_dir=x: names, places"
cannot bf16:seed=3 "--precisions: bf16:seed=3: seed=3: runs are paired by their seeds"
cannot bf16:gradients.dtyp=lower "bf16:gradients.dtyp=lower cannot be trained:"
says 'there is no key "gradients.dtyp". Did you mean gradients.dtype?'
cannot "bf16,$(printf 'bf16:threads=%d,' {1..7})" "--precisions: 9, but a report holds 8 at most"
runs 2 "my tiny.json" --steps 20 --precisions fp32,bf16:train.steps=10 && says "contradicts"
if [ -e runs ]; then wrong "it began nevertheless"; fi

# ---- failures

test_case "a run without metrics is not finished"
fake_train 'case "$*" in *precision=bf16*) mkdir -p runs/compare-my\ tiny/runs/bf16; exit;; esac'
runs 1 "my tiny.json" --no-profile && says "left no" && never_says "run 3"
if [ -e "runs/compare-my tiny/runs/bf16/finished" ]; then wrong "it is marked as finished"; fi

test_case "fewer steps than the warm-up has"
runs 0 "my tiny.json" --no-profile --steps 4
says "note: optimizer.warmup_steps is 4, for"
runs 2 "my tiny.json" --no-profile --steps 10 -- --set nonsense=1

test_case "a precision that diverges is reported"
runs 1 "my tiny.json" --no-profile -- --set loss_scale.init_scale=4294967296 \
    --set loss_scale.min_scale=4294967296
says "run fp16 ended early" && says "bf16  pass" && says "fp16: FAIL, finished: 8 of 40 steps"
says "written: "

test_case "settings that cannot be"
runs 2 "my tiny.json" --no-profile -- --set nonsense=1 && says "nonsense" && never_says "run 1"
if [ -e runs ]; then wrong "it left a folder"; fi
runs 0 "my tiny.json" --no-profile --precisions fp32,bf16

test_case "a profile that fails"
fake_train 'case " $* " in *" --profile "*) echo broken; exit 1;; esac'
runs 0 "my tiny" --precisions fp32,bf16 && says "--profile failed" && says "bf16  pass"

test_case "wrong usage"
runs 2 && says "give a config"
runs 2 nothing && says "no such config; tried nothing, nothing.json, "
runs 2 "my tiny.json" --steps 0
runs 2 "my tiny.json" --seeds 1.5
runs 2 "my tiny.json" --precisions "" && says "at least two"
runs 2 "my tiny.json" -- --set name=x && says "chosen here"
runs 2 "my tiny.json" --steps 20 -- --set=train.steps=10 && says "contradicts"
runs 2 "my tiny.json" -- --device cpu --set=autocast.enabled=false && says "compute in fp32"
runs 2 "my tiny.json" -- --dry-run && says "--dry-run: behind -- only --set"
runs 2 "my tiny.json" -- --device cpu --set && says "--set needs a value"
if [ -e runs ]; then wrong "it began nevertheless"; fi

finish scripts/compare_precisions.sh
