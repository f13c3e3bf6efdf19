#!/usr/bin/env bash
# Trains a config once in each precision, or variant of one, from the same weights on the same
# batches. Reports how the runs differ and which of them can replace fp32.
set -euo pipefail

usage() {
    cat <<'TEXT'
scripts/compare_precisions.sh CONFIG [OPTIONS] [-- ARGUMENTS OF ./train]

Trains CONFIG once in each precision, from the same weights on the same
batches, and reports how the runs differ: losses, gradients, loss scale, speed
(also at equal loss), memory, and a verdict. The report goes to the terminal, to
report.json and, with Python's matplotlib, to report.html, which has the curves.

  --precisions LIST   default fp32,bf16,fp16; also fp8, mxfp8, mxfp4, nvfp4.
                      The reference is fp32 if it is in LIST, else the first.
                      Settings behind a precision, each after a colon, make a
                      variant:
                      bf16:gradients.dtype=lower:train.recompute=layer
  --steps N           default as in CONFIG; a longer warm-up is cut to N / 2
  --seeds N           N runs of each, from consecutive seeds, to separate
                      differences from noise; use 3 or more
  --out DIR           default runs/compare-CONFIG
  --no-profile        leave out ./train --profile, where the time of a step goes
  --limit-...         limits of the verdict: see ./compare --help

ARGUMENTS OF ./train are --set KEY=VALUE and --device NAME; they apply to all
runs. The settings of a variant apply to its own runs and override them. Values
may contain commas, as lists do, but no colons.

  scripts/compare_precisions.sh bf16.json --steps 300
  scripts/compare_precisions.sh my.json --seeds 3 -- --set optimizer.lr=1e-4
  scripts/compare_precisions.sh my.json \
      --precisions fp32,bf16,bf16:autocast.float32=qkv,gelu

After an interruption the same command continues. Seeds, precisions and
variants can be added the same way.

Exit status: 0 all pass, 1 some do not, or an error, 2 wrong usage, 130 and 143
stopped by SIGINT and SIGTERM.
TEXT
}

complain() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
wrong() {
    complain "$*"
    echo "see scripts/compare_precisions.sh --help" >&2
    exit 2
}

# ---- arguments

root=$(cd "$(dirname "$0")/.." && pwd)
train=${TRAIN:-$root/train} compare=${COMPARE:-$root/compare} python=${PYTHON:-python3}
config="" precisions=fp32,bf16,fp16 steps="" seeds=1 out="" profile=yes
limits=() extra=() variants=()
declare -A names # files of the runs of each variant, without their seeds
command="scripts/compare_precisions.sh$([ $# -eq 0 ] || printf ' %q' "$@")"

take_arguments() {
    while [ $# -gt 0 ]; do
        case $1 in
        --limit-*=*) limits+=("$1") ;;
        --precisions | --steps | --seeds | --out | --limit-*)
            [ $# -gt 1 ] || wrong "$1 needs a value"
            case $1 in
            --precisions) precisions=$2 ;;
            --steps) steps=$2 ;;
            --seeds) seeds=$2 ;;
            --out) out=$2 ;;
            *) limits+=("$1" "$2") ;;
            esac
            shift
            ;;
        --partial) limits+=("$1") ;;
        --no-profile) profile=no ;;
        --help | -h)
            usage
            exit 0
            ;;
        --)
            extra=("${@:2}")
            break
            ;;
        -*) wrong "$1: there is no such option (those of ./train go behind --)" ;;
        *)
            [ -z "$config" ] || wrong "$1: one config at a time, and $config was given already"
            config=$1
            ;;
        esac
        shift
    done
}

# Finds a config like ./train: a path, or a name in configs/; ".json" may be left out.
find_config() {
    [ -n "$config" ] || wrong "give a config, such as bf16"
    local folder candidate tried=""
    for folder in "" "$root/configs/" configs/; do
        [[ -n $folder && $config = */* ]] && break
        for candidate in "$folder$config" "$folder${config%.json}.json"; do
            [ -f "$candidate" ] && config=$candidate && return
            [[ " $tried" = *" $candidate" ]] || tried+="${tried:+, }$candidate"
        done
    done
    wrong "$config: there is no such config; tried $tried"
}

precision_pattern='(fp32|bf16|fp16|fp8|mxfp8|mxfp4|nvfp4)'
# A comma that no precision follows belongs to a value: bf16:autocast.float32=qkv,gelu.
split_precisions() {
    local items item last=""
    mapfile -t -d , items < <(printf '%s' "$precisions")
    for item in "${items[@]}"; do
        [ -n "$item" ] || continue
        if [[ $last != *:* || $item =~ ^$precision_pattern(:|$) ]]; then
            variants+=("$item") last=$item
        else variants[-1]+=,$item; fi
    done
}

check_setting() { # KEY=VALUE WHERE: WHERE names the variant in messages, "" for all runs
    case $1 in
    name=* | run_dir=* | precision=*)
        wrong "$2$1: names, places and precisions of the runs are chosen here" ;;
    sample.every=* | log.metrics=* | checkpoint.resume=*)
        wrong "$2$1: this is chosen here, alike for all runs" ;;
    train.steps=*) [ -z "$steps" ] || wrong "$2$1 contradicts --steps $steps" ;;
    autocast.enabled=false) wrong "$2$1: then 16-bit precisions compute in fp32, and are alike" ;;
    seed=*)
        [ -z "$2" ] || wrong "$2$1: runs are paired by their seeds; give them behind --, or --seeds"
        first_seed=${1#seed=}
        ;;
    esac
}

check_variant() { # PRECISION[:KEY=VALUE]...
    local settings setting keys=" " where="--precisions: $1: "
    [[ $1 =~ ^$precision_pattern(:[^:=]+=[^:]*)*$ ]] ||
        wrong "${where}write a precision, such as bf16 or fp8, then :KEY=VALUE for each setting," \
            "without a colon in VALUE"
    mapfile -t -d : settings < <(printf '%s:' "$1")
    for setting in "${settings[@]:1}"; do
        case $keys in *" ${setting%%=*} "*) wrong "$where${setting%%=*} is there twice" ;; esac
        keys+="${setting%%=*} "
        check_setting "$setting" "$where"
    done
}

# Name of a variant's runs, in any order of its settings. A checksum replaces characters that a file
# name should not have.
name_of() { # VARIANT
    local settings safe LC_ALL=C
    settings=$(echo "${1%%:*}" && tr : '\n' <<<"$1" | tail -n +2 | LC_ALL=C sort)
    settings=${settings//$'\n'/:}
    safe=${settings//[!A-Za-z0-9.,_=:-]/-}
    if [ "$safe" != "$settings" ] || [ ${#settings} -gt 100 ]; then
        safe=${safe:0:100}-$(cksum <<<"$settings" | cut -d ' ' -f 1)
    fi
    echo "${safe//:/+}"
}

check_precisions() {
    local variant name other others=()
    split_precisions
    for variant in "${variants[@]}"; do
        check_variant "$variant"
        name=$(name_of "$variant")
        for other in "${!names[@]}"; do
            [ "${names[$other]}" != "$name" ] || wrong "--precisions: $variant is there twice"
        done
        names[$variant]=$name
        [ "$variant" = fp32 ] || others+=("$variant")
    done
    if [ -n "${names[fp32]-}" ]; then variants=(fp32 "${others[@]}"); fi
    [ ${#variants[@]} -ge 2 ] || wrong "--precisions: at least two, such as fp32,bf16"
    [ ${#variants[@]} -le 8 ] || wrong "--precisions: ${#variants[@]}, but a report holds 8 at most"
}

# The other flags of ./train would do something else than train.
check_extra() {
    local word
    set -- "${extra[@]+"${extra[@]}"}"
    while [ $# -gt 0 ]; do
        word=$1
        case $word in
        --set | --device)
            [ $# -gt 1 ] || wrong "$word needs a value"
            shift && word+="=$1"
            ;;
        esac
        case $word in
        --set=*) check_setting "${word#--set=}" "" ;;
        --device=*) ;;
        *) wrong "$word: behind -- only --set KEY=VALUE and --device NAME make sense" ;;
        esac
        shift
    done
}

# Seed of the first runs: from the arguments of ./train, else from the config.
find_seed() {
    first_seed=$(sed -n 's/.*"seed"[[:space:]]*:[[:space:]]*\([0-9]\{1,\}\).*/\1/p' "$config" |
        head -n 1)
    check_extra
    first_seed=${first_seed:-1}
    [[ $first_seed =~ ^[0-9]{1,15}$ ]] || wrong "seed=$first_seed: this is no whole number"
    first_seed=$((10#$first_seed)) # 010 means ten
}

take_arguments "$@"
find_config
check_precisions
count='^[1-9][0-9]{0,8}$'
[ -z "$steps" ] || [[ $steps =~ $count ]] || wrong "--steps: $steps is no whole number from 1"
[[ $seeds =~ $count ]] || wrong "--seeds: $seeds is no whole number from 1"
find_seed
for program in "$train" "$compare"; do
    [ -x "$program" ] || { complain "$program is not there: run make first" && exit 1; }
done
"$compare" "${limits[@]+"${limits[@]}"}" --help >/dev/null || exit 2
name=${config##*/}
out=${out:-runs/compare-${name%.json}}

# Sets the arguments that produce run $run_name.
arguments_of() { # CONFIG VARIANT SEED
    local settings setting
    run_name=${names[$2]}
    if [ "$3" -ne "$first_seed" ]; then run_name+=-seed$3; fi
    arguments=(--config "$1" "${extra[@]+"${extra[@]}"}")
    mapfile -t -d : settings < <(printf '%s' "$2")
    for setting in "${settings[@]:1}"; do arguments+=(--set "$setting"); done
    arguments+=(--set "run_dir=$out/runs" --set "name=$run_name" --set "precision=${settings[0]}"
        --set "seed=$3" --set sample.every=0 --set log.metrics=true --set checkpoint.resume=auto)
    if [ -n "$steps" ]; then arguments+=(--set "train.steps=$steps"); fi
}

# Settings that ./train rejects are reported before training starts. Other failures are left to the
# runs.
check_runs() {
    local variant output status
    for variant in "${variants[@]}"; do
        arguments_of "$config" "$variant" "$first_seed"
        status=0
        output=$("$train" "${arguments[@]}" --dry-run 2>&1 >/dev/null) || status=$?
        [ $status -eq 2 ] || continue
        complain "$variant cannot be trained:"$'\n'"$output"
        exit 2
    done
}
check_runs

# ---- the output folder, which holds one comparison

settings() {
    printf 'steps: %s\nseed: %s\n' "${steps:-those of the config}" "$first_seed"
    printf 'arguments of ./train:'
    [ "${#extra[@]}" -eq 0 ] || printf ' %q' "${extra[@]}"
    echo
}

open_folder() {
    mkdir -p "$out/runs"
    if [ ! -e "$out/settings.txt" ] ||
        [ -z "$(find "$out/runs" -name metrics.jsonl -print -quit)" ]; then
        rm -f "$out/train.cksum"
        [ "$config" -ef "$out/config.json" ] || cp "$config" "$out/config.json"
        settings >"$out/settings.txt.new" && mv "$out/settings.txt.new" "$out/settings.txt"
    elif ! settings | cmp -s - "$out/settings.txt" || ! cmp -s "$config" "$out/config.json"; then
        complain "$out holds a comparison with other settings, which do not mix:"
        { diff -U 0 "$out/settings.txt" <(settings); diff -U 0 "$out/config.json" "$config"; } |
            grep '^[-+][^-+]' >&2 || true
        echo "choose another --out, or remove $out" >&2
        exit 1
    fi
    if [ -e "$out/train.cksum" ] && grep -qvxF "$(cksum <"$train")" "$out/train.cksum"; then
        complain "note: ./train is not the one any more that made all the runs in $out"
    fi
}

# Records each build that has made a run, so that later calls can report a mix.
note_program() {
    local sum
    sum=$(cksum <"$train")
    if ! grep -qxF "$sum" "$out/train.cksum" 2>/dev/null; then echo "$sum" >>"$out/train.cksum"; fi
}

# ---- runs

child="" stopped=""

# Each signal reaches ./train once: the first makes it save and end, a second ends it at once. It
# has its own process group, so that Ctrl-C does not reach it twice.
# shellcheck disable=SC2317 # traps call it
stop() { # SIGNAL STATUS
    stopped=$2
    if [ -n "$child" ]; then kill -s "$1" "$child" 2>/dev/null || true; fi
}
trap 'stop INT 130' INT
trap 'stop TERM 143' TERM HUP

watch() { # COMMAND ...: returns its status, also if signals arrive while it runs
    local status=0
    set -m
    "$@" </dev/null &
    child=$!
    set +m
    # Pass on a signal that arrived before the child was started.
    if [ -n "$stopped" ]; then kill "$child" 2>/dev/null || true; fi
    while true; do
        status=0
        wait "$child" || status=$?
        kill -0 "$child" 2>/dev/null || break
    done
    child=""
    return $status
}

end_if_stopped() {
    [ -n "$stopped" ] || return 0
    echo "stopped; the same command goes on from here" >&2
    exit "$stopped"
}

duration() { # SECONDS
    if [ "$1" -lt 90 ]; then echo "$1 s"; else echo "$((($1 + 30) / 60)) min"; fi
}

# On a terminal ./train shows its progress; otherwise its output goes to a file beside the run.
train_now() {
    if [ -t 1 ]; then watch "$train" "${arguments[@]}"
    else watch "$train" "${arguments[@]}" >"$out/runs/$run_name.log"; fi
}

run_one() { # VARIANT SEED NUMBER
    local status=0 began=$SECONDS fresh=yes folder
    arguments_of "$out/config.json" "$1" "$2"
    folder=$out/runs/$run_name
    if [ -e "$folder/finished" ]; then
        echo "run $3 of $total: $1, seed $2: done before"
        return
    fi
    echo "run $3 of $total: $1, seed $2"
    if [ -e "$folder" ]; then fresh=no; fi
    note_program
    train_now || status=$?
    end_if_stopped
    if [ $status -eq 0 ] && [ ! -s "$folder/metrics.jsonl" ]; then
        complain "run $run_name left no $folder/metrics.jsonl"
        exit 1
    fi
    if [ $status -eq 0 ]; then
        : >"$folder/finished"
        if [ "$3" -eq 1 ] && [ $fresh = yes ]; then
            echo "that took $(duration $((SECONDS - began))); the other $((total - 1)) may take" \
                "about $(duration $(((SECONDS - began) * (total - 1)))) in all"
        fi
        return
    fi
    if [ $status -eq 2 ]; then exit 2; fi
    if [ ! -s "$folder/metrics.jsonl" ] || [ "$3" -eq 1 ]; then exit 1; fi
    complain "run $run_name ended early (status $status); it is compared as far as it came"
}

profile_one() { # VARIANT
    local folder status=0 scratch
    arguments_of "$out/config.json" "$1" "$first_seed"
    folder=$out/runs/$run_name
    if [ $profile = no ] || [ -e "$folder/profile.json" ] || [ ! -e "$folder/finished" ]; then
        return
    fi
    scratch=$out/runs/$run_name-profile.log
    watch "$train" --profile "${arguments[@]}" --repetitions 5 --out "$folder" >"$scratch" 2>&1 ||
        status=$?
    end_if_stopped
    if [ $status -ne 0 ]; then
        complain "note: ./train --profile failed, see $scratch; going on without it"
    fi
}

open_folder
total=$((seeds * ${#variants[@]})) number=0 runs=()
for ((seed = first_seed; seed < first_seed + seeds; seed++)); do
    for variant in "${variants[@]}"; do
        number=$((number + 1))
        run_one "$variant" "$seed" $number
        runs+=("$variant=$out/runs/$run_name")
        if [ "$seed" -eq "$first_seed" ]; then profile_one "$variant"; fi
    done
done

echo
trap - INT TERM HUP
status=0
rm -f "$out/report.json" "$out/report.html"
"$compare" "${runs[@]}" --out "$out" --made-by "$command" "${limits[@]+"${limits[@]}"}" || status=$?
[ -s "$out/report.json" ] || exit $status
if ! "$python" -c 'import matplotlib' 2>/dev/null; then
    echo "for report.html: apt-get install python3-matplotlib, then scripts/report.py" \
        "$(printf '%q' "$out")/report.json --out $(printf '%q' "$out")/report.html"
else "$python" "$root/scripts/report.py" "$out/report.json" || true; fi
exit $status
