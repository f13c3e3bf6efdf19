#!/usr/bin/env bash
# Reports the compiler's result for each CUDA kernel: registers, spills, shared memory, occupancy,
# tensor-core products and 128-bit memory accesses, checked against scripts/cuda_report.expected.
# Registers of products of warp groups must not be used before the wait for them. Needs nvcc and
# python3, but no GPU.
#   scripts/cuda_report.sh [--arch "80 90"] [FILE.cu ...]               default: all of kernels/cuda,
#                               for sm_80 and sm_90, and for sm_100 and sm_120 from the PTX of sm_90
# Occupancy is that of 164 and 228 KB of shared memory, and for sm_80 (whose code runs on sm_86 and
# sm_89) and sm_120 that of 100 KB.
set -euo pipefail
cd "$(dirname "$0")/.."

archs="80 90" later=""
if [ "${1:-}" = --arch ]; then
    archs=$2
    shift 2
fi
files=("$@")
if [ ${#files[@]} -eq 0 ]; then
    files=(kernels/cuda/*.cu kernels/cuda/*/*.cu)
    if [ "$archs" = "80 90" ]; then later="100 120"; fi
fi
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
if ! command -v "$nvcc" >/dev/null; then
    echo "cuda_report: there is no nvcc here: install the CUDA toolkit, or set NVCC=PATH" >&2
    exit 1
fi
for arch in $later; do # where this nvcc knows them
    if "$nvcc" --list-gpu-code | grep -x "sm_$arch" >/dev/null; then archs+=" $arch"; fi
done
work=build/cuda_report
mkdir -p "$work"

no_fmad=$(sed -nE 's/^NO_FMAD *:= *//p' kernels/cuda/cuda.mk)

# compile ARCH FILE: writes the cubin and ptxas' report of each kernel to $work.
compile() {
    local name from=$1 feature="" fmad=true
    name=$work/$(basename "$2" .cu).sm_$1
    case $2 in *wgmma*) feature=a ;; esac
    case " $no_fmad " in *" $(sed 's|^kernels/cuda/||; s|\.cu$||' <<<"$2") "*) fmad=false ;; esac
    if [ "$1" -gt 90 ]; then from=90; fi
    if ! "$nvcc" -std=c++17 -O3 -fmad="$fmad" -I. -gencode="arch=compute_$from$feature,code=sm_$1$feature" \
        -Xptxas -v -cubin -o "$name.cubin" "$2" >"$name.ptxas" 2>&1; then
        cat "$name.ptxas" >&2
        return 1
    fi
    if grep -hE "wgmma.*are serialized|warpgroup.wait is injected" "$name.ptxas" >&2; then
        return 1
    fi
    case $2 in *wgmma*)
        if ! python3 scripts/cubin_in_flight.py "$name.cubin" >"$name.in_flight"; then
            echo "$2: these use registers of products in flight:" >&2
            c++filt <"$name.in_flight" >&2
            return 1
        fi
        ;;
    esac
    python3 scripts/cubin.py "$name.cubin" >"$name.opcodes"
    paste <(cut -f 1 "$name.opcodes") \
        <(cut -f 1 "$name.opcodes" | sed 's/$/\t/' | short_names | cut -f 1) >"$name.names"
}

# Per kernel: name, registers, stack, spill stores + loads, static shared memory, and the opcodes.
joined() {
    awk -F '\t' '
        FNR == NR { opcodes[$1] = $2; for (i = 3; i <= NF; i++) opcodes[$1] = opcodes[$1] "\t" $i
                    next }
        /Compiling entry function/ { split($0, part, "\047"); name = part[2]; stack = spills = 0 }
        /bytes stack frame/ && name { split($0, w, " ")
            for (i = 1; i in w; i++) if (w[i] == "bytes") {
                if (w[i + 1] == "stack") stack = w[i - 1]
                if (w[i + 1] == "spill") spills += w[i - 1] } }
        /Used [0-9]+ registers/ && name { match($0, /Used [0-9]+/)
            registers = substr($0, RSTART + 5, RLENGTH - 5); shared = 0
            if (match($0, /[0-9]+ bytes smem/)) shared = substr($0, RSTART, RLENGTH) + 0
            print name "\t" registers "\t" stack "\t" spills "\t" shared "\t" opcodes[name]
            name = "" }' "$1.opcodes" "$1.ptxas"
}

# Shortens void cast_kernel<__nv_bfloat16, float>(...) to cast<bf16, fp32>.
short_names() {
    c++filt | sed -E -e 's/^void //' -e 's/__nv_bfloat16/bf16/g' -e 's/__half/fp16/g' \
        -e 's/\bfloat\b/fp32/g' -e 's/\(anonymous namespace\):://g' \
        -e 's/\((bool|int|unsigned int|dtype|update_kind)\)//g' -e 's/^([^\t(]*)\([^\t]*\)\t/\1\t/' \
        -e 's/^([a-z0-9_]*)_kernel([<\t])/\1\2/' -e 's/^attention_(simt_)?//'
}

# Prints the table of one architecture; exit status 1 if a value is not as expected.
judge() {
    awk -F '\t' -v arch="$1" '
        function pattern(text) {              # a shell pattern as a regular expression
            gsub(/[][\\.^$+(){}|]/, "\\\\&", text)
            gsub(/\*/, ".*", text)
            return "^" text "$"
        }
        # limit and bytes: the most warps and the shared memory of a multiprocessor
        function warps(registers, threads, shared, limit, bytes,    of_block, blocks, most) {
            of_block = int((threads + 31) / 32)
            # registers are allocated to four warps at a time
            most = int(int(65536 / (32 * int((registers + 7) / 8) * 8) / 4) * 4 / of_block)
            blocks = int(limit / of_block)
            if (most < blocks) blocks = most
            most = int(bytes / (shared + 1024)) # each block takes 1 KiB more than it declares
            if (most < blocks) blocks = most
            return blocks * of_block
        }
        FNR == NR {
            k = split($0, f, / +/)
            if (/^#/ || k < 8) next
            # names may contain blanks after commas, so fields count from the end
            name = f[1]; for (i = 2; i <= k - 7; i++) name = name " " f[i]
            expect[++n] = pattern(name)
            tensor[n] = f[k - 6]; wide[n] = f[k - 5]; threads[n] = f[k - 4]
            dynamic[n] = f[k - 3]; least[n] = f[k - 2]; least_100[n] = f[k - 1]; spills[n] = f[k]
            next
        }
        $1 != file { file = $1; print file ".cu" }
        {
            name = $2; wrong = ""; occupancy = occupancy_100 = "-"
            for (e = 1; e <= n && (file "/" name) !~ expect[e]; e++);
            # 8 bytes, stored, reloaded and reserved: the PTX of sm_90 on later GPUs
            spilled = $4 + $5 - (arch > 90 ? 24 : 0)
            if (spilled > (e <= n && spills[e] != "-" ? spills[e] : 0)) wrong = wrong " SPILLS"
            if ($15) wrong = wrong " HALF-TO-INTEGER" # see cubin.py
            if (e > n && wrong == "") wrong = "?"
            if (e <= n) {
                if (tensor[e] == "yes" && !$8) wrong = wrong " NO-TENSOR-CORES"
                if (tensor[e] == "no" && $8) wrong = wrong " TENSOR-CORES"
                if (wide[e] == "yes" && !($9 + $10 + $12)) wrong = wrong " NO-128-BIT-ACCESS"
            }
            block = e <= n && threads[e] != "-" ? threads[e] : $14
            if (block > 0) {
                bytes = $6 + (e <= n ? dynamic[e] : 0)
                if (arch != 120)
                    occupancy = warps($3, block, bytes, 64, arch == 80 ? 167936 : 233472)
                if (arch == 80 || arch == 120)
                    occupancy_100 = warps($3, block, bytes, 48, 102400)
                few = e <= n && least[e] != "-" && occupancy != "-" && occupancy < least[e]
                few_100 = e <= n && least_100[e] != "-" && occupancy_100 != "-" &&
                    occupancy_100 < least_100[e]
                if (few || few_100) wrong = wrong " FEW-WARPS"
            }
            mark = wrong ~ /[A-Z]/ ? "!" : wrong
            if (mark == "!") complaint[++bad] = file "/" name ":" wrong
            printf "%-2s%-32s %4d %5d %6d %5s %6s %4d %3d %3d %4d %3d\n", mark, name, $3, $4 + $5,
                $6, occupancy, occupancy_100, $8, $9, $10, $11, $12
        }
        END {
            for (i = 1; i <= bad; i++) print "! sm_" arch " " complaint[i]
            exit bad > 0
        }' scripts/cuda_report.expected "$2"
}

status=0
all=("${files[@]}")
for arch in $archs; do
    files=()
    for file in "${all[@]}"; do # Hopper kernels are compiled for sm_90 only
        case $file in *wgmma*) [ "$arch" = 90 ] || continue ;; esac
        files+=("$file")
    done
    jobs=()
    for file in "${files[@]}"; do
        if [ ${#jobs[@]} -ge "$(nproc)" ]; then
            wait "${jobs[0]}" || exit 1
            jobs=("${jobs[@]:1}")
        fi
        compile "$arch" "$file" &
        jobs+=($!)
    done
    for job in "${jobs[@]}"; do wait "$job" || exit 1; done
    for file in "${files[@]}"; do
        name=$(basename "$file" .cu)
        joined "$work/$name.sm_$arch" | short_names | sort | sed "s/^/$name\t/"
    done >"$work/sm_$arch.tsv"
    printf '%-34s %4s %5s %6s %5s %6s %4s %3s %3s %4s %3s\n' "sm_$arch" regs spill shared warps \
        100_KB HMMA LDG STG LDSM CPA
    judge "$arch" "$work/sm_$arch.tsv" || status=1
done
echo "spill: bytes, local arrays too; shared: static bytes; warps: of a multiprocessor; 100_KB:"
echo "the same on sm_86, sm_89 and sm_120"
echo "LDG, STG: of 128 bits; LDSM: ldmatrix; CPA: cp.async of 16 bytes"
echo "!: not as expected; ?: not in scripts/cuda_report.expected"
if [ "$status" -eq 0 ]; then
    echo "all as expected (scripts/cuda_report.expected)"
else
    echo "not as expected: see the lines with !" >&2
fi
exit "$status"
