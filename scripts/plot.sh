#!/usr/bin/env bash
# Draws runs from their metrics.jsonl with gnuplot; see scripts/plot.sh --help.
set -euo pipefail

usage() {
    cat <<'END'
usage: scripts/plot.sh RUN... [options]

Draws training runs, in the terminal or into a file. A RUN is its directory,
such as runs/bf16, or a metrics.jsonl file. Several runs are overlaid.

  --metric NAME,...   loss (default in the terminal; with the validation loss),
                      val_loss, grad_norm, loss_scale (with the skipped steps),
                      fp8_not_finite and fp8_zero (quantized tensors with
                      infinity or NaN, or only zeros), lr, tokens_per_s,
                      choices_acc (eval.choices), or all that have data
                      (default of --svg and --png)
  --svg FILE          draw into FILE instead
  --png FILE          likewise
  --smooth N          loss, grad_norm, tokens_per_s: mean of the last N steps
  --follow [SECONDS]  redraw as the runs grow (every 2 seconds), until all
                      have finished or Ctrl-C (exit status 130); waits for
                      runs that have not begun
  --help              this text

  scripts/plot.sh runs/fp32 runs/bf16 runs/fp16
  scripts/plot.sh runs/fp16 --metric loss,loss_scale --follow
  scripts/plot.sh runs/* --smooth 50 --svg curves.svg

It needs gnuplot: apt-get install gnuplot-nox
END
}

die() { # STATUS MESSAGE
    printf 'plot.sh: %s\n' "$2" >&2
    exit "$1"
}
wrong_usage() { die 2 "$1"$'\n'"see scripts/plot.sh --help"; }

METRICS=" loss val_loss grad_norm loss_scale fp8_not_finite fp8_zero lr tokens_per_s choices_acc "

# ---- arguments

program_folder=$(cd "$(dirname "$0")" && pwd)
runs=() files=() names=() metrics="" kind="" file="" smooth=1 follow="" hidden="" terminal=""

take_metrics() { # NAME,...
    local name
    [[ $1 =~ [^,] ]] || wrong_usage "--metric needs a name"
    for name in ${1//,/ }; do
        if [ "$name" = all ] || [ "$metrics" = all ]; then metrics=all
        elif [[ $METRICS == *" $name "* ]]; then metrics+="${metrics:+ }$name"
        else wrong_usage "--metric $name: there are${METRICS}and all"; fi
    done
}

read_arguments() {
    while [ $# -gt 0 ]; do
        case $1 in
        --metric | --svg | --png | --smooth)
            [ $# -gt 1 ] || wrong_usage "$1 needs a value"
            case $1 in
            --metric) take_metrics "$2" ;;
            --smooth)
                [[ $2 =~ ^[1-9][0-9]{0,8}$ ]] || wrong_usage "--smooth $2: a number of steps"
                smooth=$2
                ;;
            *)
                [ -z "$kind" ] || wrong_usage "one of --svg and --png, once"
                kind=${1#--} file=$2
                ;;
            esac
            shift
            ;;
        --follow)
            follow=2
            if [[ ${2:-} =~ ^[0-9]+([.][0-9]+)?$ ]] && [ ! -e "$2" ]; then
                follow=$2
                shift
            fi
            [[ $follow =~ [1-9] ]] || wrong_usage "--follow $follow: more than no time, in seconds"
            ;;
        --help | -h) usage && exit 0 ;;
        --)
            shift && runs+=("$@")
            break
            ;;
        -*) wrong_usage "$1: no such option" ;;
        *) runs+=("$1") ;;
        esac
        shift
    done
    [ ${#runs[@]} -gt 0 ] || wrong_usage "which run? for instance runs/bf16"
    if [ -z "$metrics" ]; then
        if [ -n "$kind" ]; then metrics=all; else metrics=loss; fi
    fi
}

find_files() {
    local run found skipped=()
    for run in "${runs[@]}"; do
        found=$run
        if [ ! -f "$run" ]; then
            found=${run%/}/metrics.jsonl
        elif [[ $run != *.jsonl ]]; then # such as a run's -profile.log beside it
            skipped+=("$run")
            continue
        fi
        if { [ -f "$found" ] && [ -r "$found" ]; } || [ -n "$follow" ]; then
            files+=("$found")
        elif [ -d "$run" ]; then
            skipped+=("$run")
        else
            die 1 "$run: no such run; give its directory, such as runs/NAME, or a metrics.jsonl"
        fi
    done
    if [ ${#skipped[@]} -eq 0 ]; then return; fi
    if [ ${#files[@]} -eq 0 ]; then
        die 1 "${skipped[0]}: no readable metrics.jsonl; is it a run, and does it log.metrics?"
    fi
    echo "plot.sh: skipped, as no run with a metrics.jsonl: ${skipped[*]//[[:cntrl:]]/?}" >&2
}

# Prints the last `parts` parts of the path of run number i, without metrics.jsonl.
name_of() { # I PARTS
    local path=${files[$1]} name="" parts=$2
    case $path in
    metrics.jsonl | ./metrics.jsonl) path=$PWD ;;
    */metrics.jsonl) path=${path%/metrics.jsonl} ;;
    *) path=${path%.jsonl} ;;
    esac
    while [ "$parts" -gt 0 ] && [ -n "$path" ]; do
        name=${path##*/}${name:+/$name} parts=$((parts - 1))
        case $path in
        */*) path=${path%/*} ;;
        *) path="" ;;
        esac
    done
    printf '%s' "${name//[[:cntrl:]]/?}"
}

# Uses as few parts of the paths as make them distinct; a run given twice gets a number.
name_runs() {
    local i j parts twice
    for ((i = 0; i < ${#files[@]}; i++)); do
        parts=1 twice=yes
        while [ $twice ] && [ $parts -lt 20 ]; do
            names[i]=$(name_of "$i" $parts) twice=""
            for ((j = 0; j < ${#files[@]}; j++)); do
                if [ "$j" != "$i" ] && [ "$(name_of "$j" $parts)" = "${names[i]}" ]; then
                    twice=yes
                fi
            done
            parts=$((parts + 1))
        done
        if [ $twice ]; then names[i]="$(name_of "$i" 1) ($((i + 1)))"; fi
    done
}

# ---- the pictures

# Prints the steps of the config beside a metrics.jsonl; 0 if unknown.
steps_to_make() { # FILE
    local config steps=""
    config=$(dirname "$1")/config.json
    if [ -r "$config" ]; then
        steps=$(tr -d '\n' <"$config" | sed -n 's/.*"train": *{[^}]*"steps": *\([0-9]*\).*/\1/p')
    fi
    echo "${steps:-0}"
}

# Prints gnuplot's commands; plot.awk writes its messages to $folder/report.
commands() {
    local i lines inputs=() steps=()
    : >"$folder/report"
    for i in "${!files[@]}"; do
        steps+=("$(steps_to_make "${files[i]}")")
        [ -r "${files[i]}" ] || continue
        lines=$(wc -l <"${files[i]}")
        # awk would read a relative path with an equals sign as a variable.
        inputs+=("run=$((i + 1))" "together=$((lines > 2 * POINTS ? (lines - 1) / POINTS + 1 : 1))"
            "$(realpath -s -- "${files[i]}")")
    done
    NAMES=$(printf '%s\n' "${names[@]}") STEPS="${steps[*]}" METRICS=$metrics SMOOTH=$smooth \
        KIND=$kind WIDTH=$WIDTH HEIGHT=$HEIGHT COLOUR=$COLOUR REPORT=$folder/report LC_ALL=C \
        awk -f "$program_folder/plot.awk" "${inputs[@]}" </dev/null
}

# Draws to stdout or to the file. Status 1: there is nothing to draw (yet).
draw() {
    local status=0
    measure_terminal
    commands >"$folder/commands" || status=$?
    if [ -z "$follow" ]; then sed -e '/^done$/d' -e 's/^/plot.sh: /' "$folder/report" >&2; fi
    if [ $status -ne 0 ]; then return 1; fi
    if ! gnuplot "$folder/commands" >"$folder/drawn" 2>"$folder/said"; then
        die 1 "gnuplot failed: $(cat "$folder/said")"
    fi
    if [ -z "$kind" ]; then
        sed -e 's/\f//g' -e 's/[[:space:]]*$//' -e '1{/^$/d}' "$folder/drawn"
    elif ! { cat "$folder/drawn" >"$file"; } 2>/dev/null; then
        die 1 "$file: cannot be written; does its folder exist?"
    fi
}

screen() { tput "$1" 2>/dev/null </dev/tty || echo "$2"; } # cols|lines WHERE_UNKNOWN

measure_terminal() {
    WIDTH=80 HEIGHT=0 COLOUR=mono
    if [ -n "$terminal" ]; then
        WIDTH=$(screen cols 80)
        if [ -n "$follow" ]; then HEIGHT=$(screen lines 24); fi
        if [ -z "${NO_COLOR:-}" ]; then COLOUR=ansi; fi
    elif [[ ${COLUMNS:-} =~ ^[1-9][0-9]{0,5}$ ]]; then WIDTH=$COLUMNS; fi
    WIDTH=$((WIDTH > 140 ? 138 : WIDTH < 42 ? 40 : WIDTH - 2)) POINTS=$WIDTH
    if [ -n "$kind" ]; then POINTS=500; fi
}

# ---- --follow

states() { stat -c '%n %s %Y' -- "${files[@]}" 2>/dev/null || true; }

# On a terminal, redraws from the top without flicker; elsewhere prints one chart after the other.
follow_runs() {
    local before="" now waits="" last_round=""
    while true; do
        now=$(states) now+=" $([ -z "$hidden" ] || echo "$(screen cols 80) $(screen lines 24)")"
        if [ "$now" != "$before" ]; then
            if draw >"$folder/frame"; then
                if [ -n "$hidden" ]; then
                    printf '\e[H%s\e[J' \
                        "$(head -n $((HEIGHT - 1)) "$folder/frame" | sed 's/$/\x1b[K/')"
                else cat "$folder/frame"; fi
            elif [ -z "$waits" ]; then
                waits=yes
                echo "plot.sh: waiting for the first steps of ${names[*]}" >&2
            fi
        fi
        before=$now
        if [ -n "$last_round" ]; then return; fi
        # The validation of the last step has not been written yet.
        if grep -qx "done" "$folder/report"; then last_round=yes; fi
        sleep "$follow"
    done
}

# ----

read_arguments "$@"
find_files
name_runs
command -v gnuplot >/dev/null || die 1 "it needs gnuplot: apt-get install gnuplot-nox"
folder=$(mktemp -d)
worker=""
clean_up() {
    rm -rf "$folder"
    if [ -n "$hidden" ]; then printf '\e[?25h'; fi
}
stop() { # STATUS
    if [ -n "$worker" ]; then
        kill "$worker" || true
        wait "$worker" || true
    fi 2>/dev/null
    exit "$1"
}
trap clean_up EXIT
trap 'stop 130' INT
trap 'stop 143' TERM
if [ -t 1 ]; then terminal=yes; fi
if [ -n "$terminal" ] && [ -n "$follow" ] && [ -z "$kind" ]; then
    hidden=yes
    printf '\e[?25l\e[H\e[J'
fi
# The shell only waits during the work, because bash is not safe against signals in between.
if [ -n "$follow" ]; then follow_runs & else draw & fi
worker=$!
wait "$worker"
