#!/usr/bin/env bash
# Draws runs from their metrics.jsonl with gnuplot: --help says how.
set -euo pipefail

usage() {
    cat <<'END'
usage: scripts/plot.sh RUN... [options]

Draws training runs, in the terminal or into a file. A RUN is its directory,
such as runs/bf16, or a metrics.jsonl file. Several runs are overlaid.

  --metric NAME,...   loss (default in the terminal; with the validation loss),
                      val_loss, grad_norm, loss_scale (with the skipped steps),
                      fp8_not_finite and fp8_zero (roundings to 8 bit of what
                      held infinity or NaN, or only zeros), lr, tokens_per_s,
                      or all that happened (default of --svg and --png)
  --svg FILE          draw into FILE instead
  --png FILE          likewise
  --smooth N          loss, grad_norm, tokens_per_s: mean of the last N steps
  --follow [SECONDS]  draw again as the runs grow (look every 2 seconds), until
                      all have made the steps of their config, or Ctrl-C
                      (exit status 130); waits for runs that have not begun
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

ALL_METRICS=(loss val_loss grad_norm loss_scale fp8_not_finite fp8_zero lr tokens_per_s)
declare -A MEANING=([loss]=loss [val_loss]="validation loss" [grad_norm]="gradient norm"
    [loss_scale]="loss scale" [fp8_not_finite]="fp8 roundings of infinity or NaN"
    [fp8_zero]="fp8 roundings of only zeros" [lr]="learning rate"
    [tokens_per_s]="tokens per second")
# Those of Okabe and Ito (2008), which readers with any colour vision tell apart; as in page.c.
LETTERS=ABCDEFGHIJKLMNOPQRSTUVWXYZ # marks of validations in the terminal
COLOURS=(0067a3 c95000 008a63 b0558d a87400 2f9bd6 5f666d 7c7a00)

# ---- what is asked for

program_folder=$(cd "$(dirname "$0")" && pwd)
runs=() files=() names=() metrics=() charts=() missing=() reached=()
declare -A finite=()
kind="" file="" smooth=1 follow="" folder="" hidden="" terminal=""

take_metrics() { # NAME,...
    local name
    IFS=, read -ra names <<<"$1"
    [ ${#names[@]} -gt 0 ] || wrong_usage "--metric needs a name"
    for name in "${names[@]}"; do
        if [ "$name" = all ]; then
            metrics=(all)
            return
        fi
        [ -n "${MEANING[${name:-none}]:-}" ] ||
            wrong_usage "--metric $name: there are ${ALL_METRICS[*]} and all"
        metrics+=("$name")
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
    if [ ${#metrics[@]} -eq 0 ]; then
        if [ -n "$kind" ]; then metrics=(all); else metrics=(loss); fi
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

# The last `parts` parts of the path of run number i, without metrics.jsonl.
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

# As few parts of the paths as make them distinct; a run given twice gets a number.
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

# ---- the numbers

# finite["RUN METRIC"]: how many values; reached[RUN]: its last step; FOLDER/summary: the ranges.
# Of a long run only the smallest and largest of each WIDTH-th part are drawn.
read_runs() {
    local i name count to lines wanted="loss val_loss" # of these depends more than their charts
    for name in "${ALL_METRICS[@]:2}"; do
        if [[ " ${metrics[*]} " =~ \ (all|$name)\  ]]; then wanted+=" $name"; fi
    done
    finite=() reached=()
    rm -f "$folder"/[0-9]*.*
    : >"$folder/summary"
    for i in "${!files[@]}"; do
        reached[i]=0
        [ -r "${files[i]}" ] || continue
        lines=$(wc -l <"${files[i]}")
        OUT=$folder/$i METRICS=$wanted SMOOTH=$smooth LC_ALL=C \
            TOGETHER=$((lines > 2 * WIDTH ? (lines + WIDTH - 1) / WIDTH : 1)) \
            awk -f "$program_folder/plot.awk" <"${files[i]}" >"$folder/one"
        sed "s/\$/ $i/" "$folder/one" >>"$folder/summary"
        while read -r name count _ to _; do
            finite[$i $name]=$count
            if [ "$name" = loss ]; then reached[i]=$to; fi
        done <"$folder/one"
    done
}

# ---- the pictures

quoted() { printf "'%s'" "${1//\'/\'\'}"; } # as gnuplot writes strings

# Prints gnuplot's commands for an axis that shows the values of all runs, with at most about TICKS
# ticks, at 1, 2 or 5 times a power of ten: "steps" for the x axis, or for the y axis the metrics
# that share it. Where all values are equal, gnuplot has to be told a range.
axis() { # TICKS METRIC ...
    LC_ALL=C awk -v ticks="$1" -v metrics="${*:2}" '
        function apart(span,    step) {
            step = 1
            while (step > span / ticks) step /= 10
            while (step * 10 < span / ticks) step *= 10
            if (step < span / ticks) step *= 2
            if (step < span / ticks) step *= 2.5
            if (step < span / ticks) step *= 2
            return step
        }
        function floor(x) { return int(x) - (x < int(x)) }
        BEGIN { split(metrics, names, " "); for (i in names) chosen[names[i]] = 1 }
        $1 == "skipped" || $2 == 0 { next }
        "steps" in chosen { $1 = "steps"; $5 = $3; $6 = $4 }
        $1 in chosen {
            if (!any || $5 + 0 < low) low = $5 + 0
            if (!any || $6 + 0 > high) high = $6 + 0
            any = 1
        }
        END {
            margin = low == 0 ? 1 : (low < 0 ? -low : low) / 10
            if (high - low > margin * 1e-6) margin = 0
            low -= margin; high += margin
            step = apart(high - low)
            if ("steps" in chosen) {
                if (margin) { low = low + margin - 1; high = low + 2 }
                printf "set xtics %.9g; set xrange [%d:%d]\n", step < 1 ? 1 : step, low, high
                exit
            }
            format = "%g"; from = "*"; to = "*"; scale = "unset"
            if (names[1] == "tokens_per_s" && high > 0) {
                format = "%.0f"; from = 0; step = apart(high)
            }
            if (margin && from != 0) { from = low; to = high }
            if (names[1] == "grad_norm" && low > 0 && high > 50 * low) { scale = "set"; step = 10 }
            if (names[1] == "loss_scale" && low > 0) {
                powers = 1
                do {
                    from = floor(log(low) / log(2) / powers + 1e-9) * powers
                    to = -floor(-log(high) / log(2) / powers + 1e-9) * powers
                } while (to - from > powers * ticks && powers *= 2)
                scale = "set"; format = "2^%L"; step = 2 ^ from "," 2 ^ powers
                from = low / 2; to = high * 2 # so that no curve is on the frame
            }
            printf "%s logscale y%s; set format y \"%s\"; set ytics %s; set yrange [%s:%s]\n",
                   scale, format == "2^%L" ? " 2" : "", format, step, from, to
        }' "$folder/summary"
}

# A curve of a chart: prints how gnuplot is to plot OUT.METRIC of run number RUN.
curve() { # RUN METRIC STYLE TITLE
    local look point="'V'" some=""
    look="lt $(($1 % 8 + 1))"
    if [ ${#files[@]} -gt 1 ]; then point="'${LETTERS:$1 % 26:1}'"; fi
    if [ "$2" = skipped ]; then point="'x'"; fi
    if [ -n "$kind" ]; then
        point="$(($1 % 4 * 2 + 5)) ps 0.6"
        if [ "$2" = skipped ]; then point="2 ps 0.8"; fi
        if [ "$3" != points ]; then look+=" lw 1.3 dt $(($1 / 8 % 5 + 1))"; fi
    fi
    case $3 in *points) look+=" pt $point" ;; esac
    # In the terminal many marks would cover the curve.
    if [ -z "$kind" ] && [ "$2 $3" = "val_loss points" ]; then
        some=${finite[$1 $2]}
        some="every $(((some + 19) / 20))"
    fi
    printf "'%s' %s with %s %s title %s" "$1.$2" "$some" "$3" "$look" "$(quoted "$4")"
}

# Prints gnuplot's commands for the chart of a metric.
chart() { # METRIC
    local run style title=${MEANING[$1]} name of="" extra told="" many="" curves=()
    # Points of many runs would fill the legend: one entry speaks for all.
    if [ ${#files[@]} -gt 4 ] || { [ -n "$kind" ] && [ ${#files[@]} -gt 1 ]; }; then many=yes; fi
    case $1 in loss | grad_norm | tokens_per_s)
        if [ "$smooth" -gt 1 ]; then title+=", mean of the last $smooth steps"; fi
        ;;
    esac
    printf 'set key title %s left\n' "$(quoted "$title")"
    for run in "${!files[@]}"; do
        if ! has "$run" "$1"; then continue; fi
        if [ "${metrics[0]}" = all ] && ! worth_a_chart "$1" "$run"; then continue; fi
        case $1 in
        loss_scale | fp8_*) style=steps ;;
        val_loss) style=linespoints ;;
        *) style=lines ;;
        esac
        if [ "${finite[$run $1]}" -eq 1 ]; then style=points; fi
        name=${names[run]}
        if [ ${#files[@]} -gt 1 ]; then of="$name, "; fi
        curves+=("$(curve "$run" "$1" $style "$name")")
        extra=""
        if [ "$1" = loss ] && has "$run" val_loss; then extra="val_loss validation"; fi
        if [ "$1" = loss_scale ] && has "$run" skipped; then extra="skipped skipped steps"; fi
        if [ -z "$extra" ]; then continue; fi
        title=$of${extra#* }
        if [ "$many" ]; then title=${told:-${extra#* }} told="-"; fi
        curves+=("$(curve "$run" "${extra%% *}" points "${title#-}")")
    done
    if [ "$1" = loss ]; then axis "$TICKS" loss val_loss; else axis "$TICKS" "$1"; fi
    printf 'plot %s' "${curves[0]}"
    if [ ${#curves[@]} -gt 1 ]; then printf ', %s' "${curves[@]:1}"; fi
    printf '\n'
}

has() { [ "${finite[$1 $2]:-0}" -gt 0 ]; } # RUN METRIC
any_has() {                                # METRIC
    local run
    for run in "${!files[@]}"; do
        if has "$run" "$1"; then return 0; fi
    done
    return 1
}

# True if the metric, of this run or of any, leaves its resting value: a loss scale of 1 (bf16 and
# fp32), no roundings.
worth_a_chart() { # METRIC [RUN]
    awk -v metric="$1" -v run="${2:-}" '
        BEGIN { rest["loss_scale"] = 1; rest["fp8_not_finite"] = rest["fp8_zero"] = 0 }
        $1 != metric || !$2 || (run != "" && $7 != run) { next }
        !(metric in rest) || $5 != rest[metric] || $6 != rest[metric] { found = 1 }
        END { exit !found }' "$folder/summary"
}

# charts: the metrics to draw; missing: those asked for that no run has.
choose_charts() {
    local metric
    charts=() missing=()
    if [ "${metrics[0]}" = all ]; then
        for metric in "${ALL_METRICS[@]}"; do
            if any_has "$metric" && worth_a_chart "$metric"; then charts+=("$metric"); fi
        done
        return
    fi
    for metric in "${metrics[@]}"; do
        if any_has "$metric"; then charts+=("$metric"); else missing+=("$metric"); fi
    done
}

# Prints gnuplot's commands for the whole picture.
picture() { # ROWS: of the terminal, for each chart
    local metric i columns=1 rows
    if [ ${#charts[@]} -gt 1 ]; then columns=2; fi
    rows=$(((${#charts[@]} + columns - 1) / columns))
    echo "set encoding utf8; set xlabel 'step'; set format x '%.0f'"
    if [ -z "$kind" ]; then
        echo "set terminal dumb size $WIDTH, $1 noenhanced $COLOUR; set colorsequence classic"
        echo "set key above left Left reverse samplen 2 noenhanced"
    else
        case $kind in
        svg) echo "set terminal svg size 1000, $((rows * 330)) dynamic font 'sans-serif,13'" \
            "noenhanced background 'white'" ;;
        png) echo "set terminal pngcairo size 1500, $((rows * 495)) fontscale 1.3 noenhanced" ;;
        esac
        for i in "${!COLOURS[@]}"; do echo "set linetype $((i + 1)) lc rgb '#38${COLOURS[i]}'"; done
        echo "set key above left horizontal Left reverse; set grid lc rgb '#e8ebee' lt 1"
        echo "set border 3 lc rgb '#5b636b'"
        echo "set tics nomirror; set multiplot layout $rows,$columns"
    fi
    axis $((WIDTH / 12)) steps
    for metric in "${charts[@]}"; do chart "$metric"; done
}

# Says what is not drawn; following, one waits for it.
tell_missing() {
    local run
    if [ -n "$follow" ]; then return; fi
    for run in "${!files[@]}"; do
        if [ "${reached[run]}" -eq 0 ]; then
            echo "plot.sh: ${files[run]}: no steps in it yet; --follow waits for them" >&2
        fi
    done
    if [ ${#missing[@]} -gt 0 ]; then
        echo "plot.sh: no finite value of ${missing[*]} in ${files[*]}" >&2
    fi
}

# Draws to stdout or into the file. Status 1: there is nothing to draw (yet).
draw() {
    local rows=18
    measure_terminal
    read_runs
    choose_charts
    tell_missing
    if [ ${#charts[@]} -eq 0 ]; then return 1; fi
    if [ ${#charts[@]} -eq 1 ]; then rows=22; fi
    if [ -n "$follow" ] && [ -n "$terminal" ]; then rows=$(((HEIGHT - 1) / ${#charts[@]})); fi
    if [ $rows -lt 10 ]; then rows=10; fi
    TICKS=$((rows / 4))
    if [ -n "$kind" ]; then WIDTH=72 TICKS=6; fi
    picture "$rows" >"$folder/commands"
    if ! (cd "$folder" && gnuplot commands >drawn 2>said); then
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
    WIDTH=80 HEIGHT=24 COLOUR=mono
    if [ -n "$terminal" ]; then
        WIDTH=$(screen cols 80) HEIGHT=$(screen lines 24)
        if [ -z "${NO_COLOR:-}" ]; then COLOUR=ansi; fi
    elif [[ ${COLUMNS:-} =~ ^[1-9][0-9]{0,5}$ ]]; then WIDTH=$COLUMNS; fi
    WIDTH=$((WIDTH > 140 ? 138 : WIDTH < 42 ? 40 : WIDTH - 2))
    if [ -n "$kind" ]; then WIDTH=500; fi
}

# ---- --follow

# The steps of the config beside a metrics.jsonl; nothing if it is not known.
steps_to_make() { # FILE
    local config
    config=$(dirname "$1")/config.json
    if [ -r "$config" ]; then
        tr -d '\n' <"$config" | sed -n 's/.*"train": *{[^}]*"steps": *\([0-9]*\).*/\1/p'
    fi
}

all_done() {
    local run steps
    for run in "${!files[@]}"; do
        steps=$(steps_to_make "${files[run]}")
        if [ -z "$steps" ] || [ "${reached[run]:-0}" -lt "$steps" ]; then return 1; fi
    done
}

states() { stat -c '%n %s %Y' -- "${files[@]}" 2>/dev/null || true; }

# A terminal is drawn over from its top, without flicker; anything else gets chart after chart.
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
        if all_done; then last_round=yes; fi # the validation of the last step is still to come
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
# While it works this shell only waits: bash can stumble over a signal amid its own work.
if [ -n "$follow" ]; then follow_runs & else draw & fi
worker=$!
wait "$worker"
