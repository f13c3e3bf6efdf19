#!/usr/bin/env bash
# Injects faults into small trainings, one trial after another, each in a random precision, of all
# weights or of adapters: kills, failing system calls, full and read-only disks, damaged files, a
# second trainer. After each trial the run is resumed, and has to end with the same bits as an
# undisturbed run; or there is one clear error, after which it can still be resumed.
#   scripts/torture.sh MINUTES [SEED]
# Prints a table; its status is 1 if a trial went wrong, whose folder is kept. Trials that
# this machine cannot run (no strace, no permission to mount, no compiler) are left out and listed.
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=${1:?usage: scripts/torture.sh MINUTES [SEED]} seed=${2:-$$}
train=$(realpath "${TRAIN:-./train}") prepare=$(realpath "${PREPARE:-./prepare}")
export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive
RANDOM=$seed
folder=$(mktemp -d)
keep=false
clean_up() {
    grep -o " $folder/[^ ]*" /proc/mounts | xargs -r umount -l || true
    if $keep; then echo "kept: $folder" >&2; else rm -rf "$folder"; fi
}
trap clean_up EXIT
trap 'exit 130' INT TERM

precisions=(fp32 bf16 bf16-muon bf16-dpo fp16 fp16-dpo fp8 nvfp4-switch lora-fp32 lora-bf16
    lora-bf16-dpo lora-fp16 lora-fp8)
kinds=(kill kill_saving nth full_disk file_limit read_only bit cut shard_bit shard_cut two)
failed_calls=0 # of nth_trial: others end before the n-th call
declare -A trials ended reported killed wrong_count

random_below() { echo $(((RANDOM << 15 | RANDOM) % $1)); }
random_choice() { eval "echo \${$((1 + $(random_below $#)))}"; }

# ---- configs and data

prepare_data() {
    "$prepare" --tokenizer bytes --out "$folder/text" --shard-tokens 20000 README.md \
        model/core/README.md configs/README.md >/dev/null 2>&1
    awk 'NF { printf "{\"prompt\": \"%d lines\", \"chosen\": \"%d words\", \"rejected\": \"none\"}\n",
        NR, NF }' README.md >"$folder/pairs.jsonl"
    "$prepare" --tokenizer bytes --out "$folder/text_pairs" "$folder/pairs.jsonl" >/dev/null 2>&1
    cp -r "$folder"/text_* "$(mkdir -p "$folder/shards" && echo "$folder/shards")"
}

# configure DIRECTORY PRECISION: lora-NAME trains adapters with dropout on $folder/base; NAME-switch
# changes to bf16 in the middle; NAME-muon has Muon; NAME-dpo learns from pairs.
configure() {
    local lora="" precision=${2#lora-} at=0 optimizer=adamw data=text objective=language
    case $precision in
    *-switch) at=0.5 ;;
    *-muon) optimizer=muon ;;
    *-dpo) data=text_pairs objective=dpo ;;
    esac
    mkdir -p "$1"
    [ "$2" = "${2#lora-}" ] ||
        lora="\"init_from\": \"$folder/base\", \"dropout\": 0.1},
 \"adapter\": {\"type\": \"lora\", \"rank\": 4, \"dropout\": 0.1"
    cat >"$1/run.json" <<END
{"run_dir": "$1", "name": "run", "device": "cpu", "precision": "${precision%%-*}",
 "model": {"n_layer": 2, "n_head": 2, "n_embd": 48, "n_positions": 64, "vocab_size": 256${lora:+, }$lora},
 "data": {"train": "$folder/shards/${data}_train_*.bin", "val": "$folder/shards/${data}_val_*.bin",
          "tokenizer": "bytes", "seq_len": 64},
 "fp8": {"recipe": "delayed"}, "precision_switch": {"at": $at},
 "optimizer": {"name": "$optimizer", "warmup_steps": 5}, "train": {"steps": 30, "micro_batch_size": 4, "objective": "$objective"},
 "eval": {"every": 10, "batches": 2}, "sample": {"every": 0},
 "checkpoint": {"every": 4, "keep": 3, "resume": "auto",
                "on_error": "$(random_choice stop continue)",
                "background": $(random_choice true true false)}}
END
}

# Prints everything that must be the same at the end: weights, moments, history, and each line of
# the metrics.
fingerprint() {
    (cd "$1/run/checkpoints/step-00000030" && sha256sum ./*.safetensors)
    sed 's/"step_ms".*//' "$1/run/metrics.jsonl"
}

now() { date +%s%N; }

make_base() {
    configure "$folder/of_base" fp32
    if ! "$train" --config "$folder/of_base/run.json" --set train.steps=5 >"$folder/said" 2>&1 ||
        ! "$train" --export "$folder/base" --from "$folder/of_base/run" >>"$folder/said" 2>&1; then
        cat "$folder/said" >&2
        exit 1
    fi
    rm -rf "$folder/of_base"
}

declare -A expected duration
references() {
    local precision began
    for precision in "${precisions[@]}"; do
        configure "$folder/reference" "$precision"
        began=$(now)
        "$train" --config "$folder/reference/run.json" >"$folder/said" 2>&1 ||
            { cat "$folder/said" >&2; exit 1; }
        duration[$precision]=$((($(now) - began) / 1000000))
        expected[$precision]=$(fingerprint "$folder/reference")
        rm -rf "$folder/reference"
    done
}

# ---- one trial: $run is its folder, $precision its precision, $status how the first run ended

begin() { "$@" "$train" --config "$run/run.json" >"$run/out" 2>"$run/err"; }
# Default: no command before the program.
plain() { "$@"; }
seconds() { printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)); } # MILLISECONDS
pause() { sleep "$(seconds "$1")"; }

wrong() {
    keep=true
    wrong_count[$kind]=$((${wrong_count[$kind]:-0} + 1))
    echo "WRONG: $kind, $precision, $run: $1" >&2
    mv "$run" "$folder/wrong-$count-$kind"
}

# Waits for a killed process, which holds the run's lock until it has ended. timeout does not.
await_lock() { if [ -d "$run/run" ]; then flock "$run/run" true; fi; }

# Resumes until the end. If that fails with a message, `restore` reverts the damage.
restore() { :; }
check_trial() {
    local attempt leftovers
    await_lock
    for attempt in 1 2 3; do
        if begin plain; then break; fi
        [ -s "$run/err" ] || { wrong "no message"; return; }
        [ "$attempt" -lt 3 ] || { wrong "cannot be resumed: $(tail -n 2 "$run/err")"; return; }
        restore
    done
    leftovers=$(find "$run" -name '*.tmp' -o -name '*.old')
    [ -z "$leftovers" ] || { wrong "left behind: $leftovers"; return; }
    [ "$(fingerprint "$run")" = "${expected[$precision]}" ] || { wrong "other bits"; return; }
    rm -rf "$run"
}

# Classifies the end of the disturbed run: by itself, with a message, or killed by us.
classify() {
    if [ "$status" -eq 0 ]; then ended[$kind]=$((${ended[$kind]:-0} + 1))
    elif [ "$status" -eq 137 ]; then killed[$kind]=$((${killed[$kind]:-0} + 1))
    elif [ "$status" -gt 128 ]; then wrong "died of signal $((status - 128))"; return 1
    elif [ -s "$run/err" ]; then reported[$kind]=$((${reported[$kind]:-0} + 1))
    else wrong "status $status without a message"; return 1
    fi
}

# Lets a run complete half of its steps and kills it, so that there are checkpoints to damage.
interrupt_run() {
    begin timeout -s KILL "$(seconds $((${duration[$precision]} * 6 / 10)))" || true
    await_lock
    find "$run/run/checkpoints" -name 'step-*' -maxdepth 1 -print -quit 2>/dev/null | grep -q .
}
newest() { find "$run/run/checkpoints" -maxdepth 1 -name 'step-*' | sort | tail -n 1; }
random_file() { # DIRECTORY
    local files
    mapfile -t files < <(find "$1" -type f | sort)
    echo "${files[$(random_below ${#files[@]})]}"
}

flip_bit() { # FILE
    local size at byte
    size=$(stat -c %s "$1")
    [ "$size" -gt 0 ] || return 0
    at=$(random_below "$size")
    byte=$(od -An -tu1 -j "$at" -N1 "$1" | tr -d ' ')
    printf '%b' "\\x$(printf %02x $((byte ^ 1 << $(random_below 8))))" |
        dd of="$1" bs=1 seek="$at" conv=notrunc status=none
}

# ---- the kinds

kill_trial() {
    begin timeout -s KILL "$(seconds "$(random_below "${duration[$precision]}")")" || status=$?
}

# Syncs are slow, so that a save is in progress most of the time; the kill happens during one.
kill_saving_trial() {
    local tracer
    begin strace -f -qq -o /dev/null -e trace=fsync \
        -e inject=fsync:delay_enter=$((2000 + $(random_below 30000))) &
    tracer=$!
    while kill -0 "$tracer" 2>/dev/null && ! compgen -G "$run/run/checkpoints/.step-*.tmp" >/dev/null
    do sleep 0.005; done
    pause "$(random_below 150)"
    while pkill -KILL -f -- "--config $run/run.json"; do sleep 0.01; done
    wait "$tracer" || status=$?
}

# Makes calls fail by a preloaded library; numbers of EIO, ENOMEM and ENOSPC. Not mmap: no file is
# mapped, and oneDNN crashes if its own mmap fails. Nor mprotect: without generated code oneDNN adds
# in another order, so bits differ; test_autotune.c checks its results. Every other time the run has
# to read a checkpoint first.
nth_trial() {
    local names=(write pwrite read pread fsync rename unlinkat readdir close flock ftruncate mkdir
        lseek) numbers=(5 12 28)
    if [ "$(random_below 2)" = 0 ]; then interrupt_run || true; fi
    rm -f "$folder/failed"
    FAIL_MARK="$folder/failed" FAIL_CALL=${names[$(random_below 13)]} FAIL_ERRNO=${numbers[$(random_below 3)]} \
        FAIL_NTH=$((1 + $(random_below $((1 << $(random_below 8)))))) \
        begin env LD_PRELOAD="$folder/fail_nth.so" || status=$?
    if [ -e "$folder/failed" ]; then failed_calls=$((failed_calls + 1)); fi
}

full_disk_trial() {
    mount -t tmpfs -o size=$((200 + $(random_below 6000)))k none "$folder/disk"
    mkdir -p "$run/run"
    mount --bind "$folder/disk" "$run/run"
    begin plain || status=$?
    mount -o remount,size=100m "$folder/disk"
    cp -r "$run/run" "$run/kept"
    umount "$run/run" "$folder/disk"
    rmdir "$run/run"
    mv "$run/kept" "$run/run"
}

file_limit_trial() {
    (ulimit -f $((1 + $(random_below 1200))); begin plain) || status=$?
}

# Makes the folder of checkpoints, or the whole run, read-only at some moment.
read_only_trial() {
    local child target=$run/run
    [ "$(random_below 2)" -eq 0 ] || target=$run/run/checkpoints
    begin plain &
    child=$!
    pause "$(random_below "${duration[$precision]}")"
    mkdir -p "$target"
    mount --bind "$target" "$folder/disk"
    mount -o remount,ro,bind "$folder/disk"
    mount --bind "$folder/disk" "$target"
    wait "$child" || status=$?
    umount -l "$target" "$folder/disk"
}

# FILE COMMAND: damages a file, and defines how to revert that.
damage() {
    damaged=$1
    cp "$damaged" "$folder/whole"
    restore() { cp "$folder/whole" "$damaged"; }
    "$2" "$damaged"
    begin plain || status=$?
}
cut_file() { truncate -s "$(random_below $(($(stat -c %s "$1") + 1)))" "$1"; }

bit_trial() {
    interrupt_run || return 0
    damage "$(random_file "$(newest)")" flip_bit
}
cut_trial() {
    interrupt_run || return 0
    damage "$(random_file "$(newest)")" cut_file
}

# Different tokens are valid data, so changes cannot be detected. The run must end, or name the
# shard. The trial's own end uses the whole shard.
shard_bit_trial() {
    damage "$(random_file "$folder/shards")" flip_bit
    restore
    rm -rf "$run/run"
}
# Damages the shard while it is in use.
shard_cut_trial() {
    local child
    damaged=$(random_file "$folder/shards")
    cp "$damaged" "$folder/whole"
    begin plain &
    child=$!
    pause "$(random_below "${duration[$precision]}")"
    cut_file "$damaged"
    wait "$child" || status=$?
    cp "$folder/whole" "$damaged"
    [ "$status" -eq 0 ] || grep -q -e "$damaged" "$run/err" || status=200
}

two_trial() {
    local child other=0
    begin plain &
    child=$!
    pause "$(random_below "${duration[$precision]}")"
    "$train" --config "$run/run.json" >"$run/out2" 2>"$run/err2" || other=$?
    wait "$child" || status=$?
    # The second trainer is rejected while the first one runs, or runs after (or before) it.
    [ "$other" -eq 0 ] || grep -qz "another\s*process\s*is\s*training\s*there" "$run/err2" || status=200
    if [ "$status" -eq 1 ]; then grep -qz "another\s*process" "$run/err" || status=200; fi
}

# ---- all of them

leave_out() {
    local kept=() kind
    for kind in "${kinds[@]}"; do [[ " $1 " == *" $kind "* ]] || kept+=("$kind"); done
    kinds=("${kept[@]}")
    echo "left out, because $2: $1"
}

print_table() {
    local kind
    printf '\n%-12s %7s %8s %8s %8s %8s\n' "" trials ended error killed wrong
    for kind in "${kinds[@]}"; do
        printf '%-12s %7d %8d %8d %8d %8d\n' "$kind" "${trials[$kind]:-0}" "${ended[$kind]:-0}" \
            "${reported[$kind]:-0}" "${killed[$kind]:-0}" "${wrong_count[$kind]:-0}"
    done
    cat <<END

ended, error, killed: how the disturbed run ended. Each was resumed and ended with the
bits of an undisturbed run (weights, moments, losses), except those that are wrong.
END
    if [ "${trials[nth]:-0}" -gt 0 ]; then
        echo "In $failed_calls of the ${trials[nth]} trials of nth the call was reached and failed."
    fi
}

mkdir "$folder/disk"
prepare_data
make_base
references
strace -o /dev/null true 2>/dev/null || leave_out "kill_saving" "strace cannot be used"
{ mount -t tmpfs none "$folder/disk" && umount "$folder/disk"; } 2>/dev/null ||
    leave_out "full_disk read_only" "nothing can be mounted"
${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o "$folder/fail_nth.so" test/fail_nth.c -ldl 2>/dev/null ||
    leave_out "nth" "there is no compiler"

end=$(($(date +%s) + $(awk -v m="$minutes" 'BEGIN { printf "%d", 60 * m }')))
for ((count = 0; $(date +%s) < end; count++)); do
    kind=${kinds[$((count % ${#kinds[@]}))]} precision=${precisions[$(random_below ${#precisions[@]})]}
    run=$folder/trial-$count status=0
    restore() { :; }
    configure "$run" "$precision"
    "${kind}_trial" 2>/dev/null # hides the shell's messages about killed processes
    trials[$kind]=$((${trials[$kind]:-0} + 1))
    if classify; then check_trial; fi
done
echo "$(uname -m), seed $seed, $count trials in $minutes minutes: $("$train" --version | head -n 1)"
print_table
for kind in "${kinds[@]}"; do [ "${wrong_count[$kind]:-0}" -eq 0 ] || exit 1; done
