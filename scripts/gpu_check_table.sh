#!/usr/bin/env bash
# The last part of gpu_check.sh, which reads this file: figures of the JSON files in $out, tables,
# aims, and the report. Uses its variables.
# shellcheck disable=SC2154,SC2034

# figure FILES FIELD TEXT ...: prints FIELD of the line that contains every TEXT; "" if there is
# none. FILES may be a pattern.
figure() {
    local lines field=$2 text
    # shellcheck disable=SC2086
    lines=$(cd "$out" && cat $1 2>/dev/null)
    shift 2
    for text in "\"$field\": " "$@"; do lines=$(grep -F -- "$text" <<<"$lines"); done
    sed -nE "1s/.*\"$field\": (-?[0-9.]+).*/\1/p" <<<"$lines"
}
# ratio A B: prints A / B, or "" unless both are numbers above zero.
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { if (a > 0 && b > 0) printf "%.4f", a / b }'; }
graphs_speed() { figure "graphs_$1.json" tokens_per_s '"batch"'; }
large_speed() { figure "large_$1.json" tokens_per_s "\"precision\": \"$1\", \"batch\""; }
precision_line() { figure gpu_bench.json "$2" "\"precision\": \"$1\", \"batch\""; }
torch_line() { figure 'torch_[bm]*.json' "$2" "\"precision\": \"$1\", \"tokens"; }

aims=()
aim() { # TEXT WANTED MEASURED: WANTED is ">= N" or "<= N"
    local met=-
    if [ -n "$3" ]; then
        met=$(awk -v x="$3" -v w="$2" 'BEGIN { split(w, part, " ")
            print (part[1] == ">=" ? x >= part[2] : x <= part[2]) ? "yes" : "NO" }')
    fi
    printf '  %-52s %9s %10.10s  %s\n' "$1" "$2" "${3:--}" "$met"
    aims+=("{\"aim\": \"$1\", \"wanted\": \"$2\", \"measured\": ${3:-null}, \"met\": \"$met\"}")
}

show_training() {
    local p ours theirs
    printf '\n%-6s %12s %12s %7s %9s %7s %10s %10s\n' "" "tokens/s" "PyTorch" ratio \
        "ms/step" "MFU %" "GiB" "PyTorch"
    for p in fp32 tf32 fp16 bf16 fp8; do
        ours=$(precision_line "$p" tokens_per_s) theirs=$(torch_line "$p" tokens_per_s)
        printf '%-6s %12s %12s %7.4s %9s %7s %10s %10s\n' "$p" "${ours:--}" "${theirs:--}" \
            "$(ratio "$ours" "$theirs")" "$(precision_line "$p" ms_per_step)" \
            "$(percent "$(precision_line "$p" mfu)")" \
            "$(gigabytes "$(precision_line "$p" measured_bytes)")" \
            "$(gigabytes "$(torch_line "$p" peak_bytes)")"
    done
}
percent() { awk -v x="$1" 'BEGIN { if (x != "") printf "%.1f", 100 * x }'; }
gigabytes() { awk -v x="$1" 'BEGIN { if (x > 0) printf "%.2f", x / 2^30 }'; }

show_attention() {
    local p d t b h kernel pass row key theirs flash
    printf '\n%-28s %9s %7s %7s %9s %9s %7s %7s %9s\n' "attention, TFLOP/s" forward cuDNN flash \
        mma.sync backward cuDNN flash mma.sync
    while read -r p d t b h; do
        row=$(printf '%-28s' "$p D $d T $t B $b H $h")
        key=("\"dtype\": \"$p\"" "\"D\": $d," "\"T\": $t," "\"B\": $b," "\"H\": $h,")
        theirs=("\"dtype\": \"${p/tf32/fp32}\"" "${key[@]:1}") flash=flash
        if [[ $p == *32 ]]; then flash=efficient; fi # SDPA's kernel for fp32
        for pass in forward backward; do
            row+=$(printf ' %9s' "$(figure gpu_bench.json "${pass}_tflop_per_s" "${key[@]}" \
                '"wgmma": true')")
            for kernel in cudnn "$flash"; do
                row+=$(printf ' %7s' "$(figure torch_attention.json "${pass}_tflop_per_s" \
                    "${theirs[@]}" "\"kernel\": \"$kernel\"")")
            done
            row+=$(printf ' %9s' "$(figure gpu_bench.json "${pass}_tflop_per_s" "${key[@]}" \
                '"wgmma": false')")
        done
        echo "$row"
    done < <(sed -nE 's/.*"wgmma": true, "dtype": "([a-z0-9]+)", "D": ([0-9]+), "T": ([0-9]+), '\
'"B": ([0-9]+), "H": ([0-9]+),.*/\1 \2 \3 \4 \5/p' "$out/gpu_bench.json" 2>/dev/null)
}

# The lines of a part's log that say what it found.
summary_of() {
    case $1 in
    autotune | large | graphs) grep 'tokens/s' ;;
    brim | save) tail -n 4 ;;
    sanitizer) grep -E '^(ok|NO) ' ;;
    *) tail -n 16 ;;
    esac <"$out/$1.log"
}

# Kernels that memory bounds, slowest first.
show_kernels() {
    printf '\nkernels that move memory, share of a copy:'
    sed -nE 's/.*"kernel": "([a-z_]+)".*"of_copy": ([0-9.]+).*/\2 \1/p' "$out/gpu_bench.json" \
        2>/dev/null | sort -n | awk '{ printf "%s%s %.2f", NR % 5 == 1 ? "\n  " : ", ", $2, $1 }
        END { print "" }'
}

attention_aim() { # PASS D T B H: ours beside the faster of cuDNN and flash
    local key=('"dtype": "bf16"' "\"D\": $2," "\"T\": $3," "\"B\": $4," "\"H\": $5,") best
    best=$(for kernel in cudnn flash; do
        figure torch_attention.json "${1}_tflop_per_s" "${key[@]}" "\"kernel\": \"$kernel\""
    done | sort -n | tail -n 1)
    aim "attention $1, D $2, T $3, in PyTorch's best" ">= 0.95" \
        "$(ratio "$(figure gpu_bench.json "${1}_tflop_per_s" "${key[@]}" '"wgmma": true')" "$best")"
}

show_aims() {
    aims=()
    local bf16 fp16 fp32 slowest
    bf16=$(precision_line bf16 tokens_per_s) fp16=$(precision_line fp16 tokens_per_s)
    fp32=$(precision_line fp32 tokens_per_s)
    printf '\n  %-52s %9s %10s  %s\n' aim wanted measured met
    aim "bf16 tokens/s, in those of PyTorch compile" ">= 1.1" \
        "$(ratio "$bf16" "$(torch_line bf16 tokens_per_s)")"
    aim "bf16 model FLOPs, in those of the product alone" ">= 0.6" "$(precision_line bf16 mfu)"
    aim "fp16 speed, in that of bf16" ">= 0.97" "$(ratio "$fp16" "$bf16")"
    aim "bf16 speed, in that of fp32" ">= 4" "$(ratio "$bf16" "$fp32")"
    aim "fp8 speed at 1.5B, in that of bf16" ">= 1.25" \
        "$(ratio "$(large_speed fp8)" "$(large_speed bf16)")"
    aim "small steps as CUDA graphs, in those without" ">= 1" \
        "$(ratio "$(graphs_speed 1)" "$(graphs_speed 0)")"
    local pass
    for pass in forward backward; do
        attention_aim "$pass" 64 1024 16 12
        attention_aim "$pass" 64 4096 4 12
        attention_aim "$pass" 128 4096 4 6
        attention_aim "$pass" 128 16384 1 6
    done
    slowest=$(sed -nE 's/.*"kernel": "([a-z_]+)".*"of_copy": ([0-9.]+).*/\2 \1/p' \
        "$out/gpu_bench.json" 2>/dev/null | sort -n | head -n 1)
    slowest=${slowest:- none}
    aim "slowest memory-bound kernel (${slowest#* }), of copy" ">= 0.85" "${slowest%% *}"
    aim "memory of bf16, in that of fp32" "<= 0.6" \
        "$(ratio "$(precision_line bf16 measured_bytes)" "$(precision_line fp32 measured_bytes)")"
    aim "measured memory off the plan, bf16" "<= 0.02" \
        "$(awk -v m="$(precision_line bf16 measured_bytes)" \
            -v p="$(precision_line bf16 plan_bytes)" 'BEGIN { if (m > 0 && p > 0) {
                off = m / p - 1
                printf "%.4f", off < 0 ? -off : off } }')"
}

# Old beside new: the bf16 step, and each kernel that moves memory, in shares of a copy.
show_against() {
    [ -s "$out/against.json" ] || return 0
    local file
    printf '\n%-34s %12s %12s %7s  %s\n' "beside $against" other this ratio faster
    for file in against gpu_bench; do
        printf 'step in bf16, tokens/s\t%s\n' \
            "$(figure "$file.json" tokens_per_s '"precision": "bf16", "batch"')"
        sed -nE 's/.*"kernel": "([a-z_]+)".*"of_copy": ([0-9.]+).*/\1, of a copy\t\2/p' \
            "$out/$file.json"
    done | awk -F '\t' '!($1 in other) { other[$1] = $2; next }
        other[$1] > 0 && $2 > 0 { printf "%-34s %12s %12s %7.3f  %s\n", $1, other[$1], $2,
            $2 / other[$1], ($2 >= other[$1] ? "this" : "OTHER") }'
}

# Verdicts of the comparison: its first table.
show_lab() {
    [ -s "$out/lab.log" ] || return 0
    echo
    sed -n '/^run  *verdict/,/^The training/{/^The training/!p}' "$out/lab.log"
}

# Prints the parts that work, those that fail with advice, and figures slower than their aim.
show_verdict() {
    local i works="" fails="" try=() limit program advice
    for i in "${!names[@]}"; do
        case ${verdicts[$i]} in
        ok*) works="$works ${names[$i]}" ;;
        failed*)
            read_plan "${names[$i]}"
            fails="$fails ${names[$i]}" && try+=("${names[$i]}: $advice")
            ;;
        esac
    done
    printf '\nWorks:%s\n' "${works:- nothing}"
    if [ -n "$fails" ]; then printf 'Fails:%s\n' "$fails" && printf '  %s\n' "${try[@]}"; fi
    printf '%s\n' "${aims[@]}" | sed -nE 's/.*"aim": "([^"]*)", "wanted": "([^"]*)", '\
'"measured": ([^,]*), "met": "NO".*/Slower than its aim: \1: \3, wanted \2/p'
}
# Includes the JSON file of a part in ours; null if the part did not finish writing it.
embed() {
    if [ "$(tail -c 2 "$out/$1" 2>/dev/null)" = "}" ]; then
        cat "$out/$1"
    else
        echo null
    fi
}
quoted() {
    local text=${1//\\/\\\\}
    printf '"%s"' "${text//\"/\\\"}"
}

write_json() {
    local i comma=""
    printf '{"gpu": %s, "compute_capability": "%s", "facts": %s, "cpu": %s,\n' \
        "$(quoted "$gpu")" "$arch" "$(quoted "$facts")" "$(quoted "$cpu")"
    printf '"nvcc": "%s", "commit": "%s", "date": "%s", "rehearsal": %s, "seconds": %d,\n' \
        "$toolkit" "$commit" "$(date -u +%FT%TZ)" \
        "$([ "$rehearsal" -eq 1 ] && echo true || echo false)" "$SECONDS"
    echo '"parts": ['
    for i in "${!names[@]}"; do
        printf '%s{"part": "%s", "verdict": %s, "seconds": %d, "clocks": "%s"}\n' "$comma" \
            "${names[$i]}" "$(quoted "${verdicts[$i]}")" "${times[$i]}" "${clocks[$i]}"
        comma=,
    done
    printf '],\n"aims": [\n'
    if [ ${#aims[@]} -gt 0 ]; then printf '%s\n' "${aims[@]}" | sed '$!s/$/,/'; fi
    printf '],\n"bench": %s,\n"torch": %s,\n' "$(embed gpu_bench.json)" "$(embed torch_bench.json)"
    printf '"torch_attention": %s,\n' "$(embed torch_attention.json)"
    printf '"large_bf16": %s,\n"large_fp8": %s}\n' "$(embed large_bf16.json)" \
        "$(embed large_fp8.json)"
}
