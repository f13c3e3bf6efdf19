#!/usr/bin/env bash
# Checks that one binary runs on every x86-64 processor from level v2 on: outside the objects of the
# levels v3 and v4 no instruction needs more. The exception is a function that is called only if the
# processor has SHA extensions.
#   scripts/check_instructions.sh [BUILD_FOLDER]      build/fast by default
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-build/fast}
if [ -e "$folder/cpu_base.o" ]; then
    echo "skipped: levels of instructions, which only x86-64 has"
    exit 0
fi

# Prints "file function instruction" for each function with an instruction beyond v2: all with a VEX
# or EVEX prefix (their names begin with v), the rest of v3 and v4, and common extensions beside the
# levels. gcc's "rep bsf" is exempt: it is disassembled as tzcnt, and gives the same on old
# processors.
beyond() {
    local file
    for file in "$@"; do
        objdump -d --no-show-raw-insn "$file" | awk -v file="$file" '
            /^[0-9a-f]+ <.*>:$/ { name = substr($2, 2, length($2) - 3); next }
            $2 ~ /^v/ && $2 !~ /^ver[rw]$/ ||
            $2 ~ /^(andn|bextr|bls(i|msk|r)|bzhi|lzcnt|mulx|pdep|pext|rorx|sarx|shlx|shrx)[lq]?$/ ||
            $2 ~ /^movbe/ ||
            $2 ~ /^(k(mov|or|and|not|test|xor|unpck|shift)|sha(1|256)|aes|pclmul|gf2p8|rdrand|rdseed)/ ||
            $2 ~ /^(adcx|adox|xsave|tile|tdp)/ {
                if (!((name, file) in seen)) print file, name, $2
                seen[name, file] = 1
            }'
    done
}

mapfile -t common < <(find "$folder" -name '*.o' ! -path '*/level_*' ! -name 'cpu_v*.o' \
    ! -path '*/test/*' ! -path '*/cuda/*')
mapfile -t higher < <(find "$folder" -path '*/level_v[34]/*.o')
mapfile -t lowest < <(find "$folder" -path '*/level_v2/*.o')
if [ ${#common[@]} -lt 50 ] || [ ${#higher[@]} -eq 0 ] || [ ${#lowest[@]} -eq 0 ]; then
    echo "check_instructions.sh: no objects in $folder: build first" >&2
    exit 2
fi
if [ "$(beyond "${higher[@]}" | cut -d' ' -f1 | sort -u | wc -l)" -lt 20 ]; then
    echo "check_instructions.sh: finds next to nothing in levels v3 and v4, so it is blind" >&2
    exit 1
fi
found=$(beyond "${common[@]}" "${lowest[@]}" |
    grep -v "^$folder/data/util/sha256[a-z_]*.o [a-z0-9_]*instructions[a-z0-9_.]* sha256" || true)
if [ -n "$found" ]; then
    printf 'beyond x86-64-v2, outside of levels v3 and v4:\n%s\n' "$found" >&2
    exit 1
fi
echo "instructions: ${#common[@]} objects for every processor and ${#lowest[@]} of level v2" \
    "need no more than x86-64-v2"
