#!/usr/bin/env bash
# Runs the CPU's tests under each CPU level of this processor below the highest: levels of our own
# code (MANTISSA_CPU, which limits oneDNN too), then those of oneDNN under our highest level. With
# qemu-user, also runs the program on other processors.
#   test/scripts/test_isa.sh      tests of kernels and training, since nothing else depends on the
#                                 level; kernels and golden runs under levels of oneDNN and under
#                                 our own but for the one below the highest
# TESTS is the program of tests; `make test-isa` builds and runs it.
set -euo pipefail
cd "$(dirname "$0")/../.."
export TRAIN=${TRAIN:-./train} PREPARE=${PREPARE:-./prepare} COMPARE=${COMPARE:-./compare}
export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive
unset MANTISSA_CPU ONEDNN_MAX_CPU_ISA DNNL_MAX_CPU_ISA
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# The levels of this program that the processor has, from the lowest; the last is the default.
levels=()
for level in $("$TRAIN" --version | sed -n 's/.*(this program has \(.*\))$/\1/p' | tr -d ,); do
    MANTISSA_CPU=$level "$TRAIN" --version >"$log" 2>&1 || break
    levels+=("$level")
done

settings=()
for level in "${levels[@]}"; do settings+=("MANTISSA_CPU=$level"); done
# `make test` runs under the highest levels.
if [ "${#settings[@]}" -gt 0 ]; then unset "settings[-1]"; fi
thorough=
if [ "${#settings[@]}" -gt 0 ]; then thorough=${settings[-1]}; fi
if "$TRAIN" --version | grep oneDNN >/dev/null && [ "$(uname -m)" = x86_64 ]; then
    for isa in SSE41:sse4_1 AVX2:avx2 AVX512_CORE:avx512bw AVX512_CORE_BF16:avx512_bf16 \
        AVX512_CORE_AMX:amx_bf16; do
        if grep -qw "${isa#*:}" /proc/cpuinfo; then settings+=("ONEDNN_MAX_CPU_ISA=${isa%:*}"); fi
    done
    unset "settings[-1]"
fi

filter_of() { # FILE ...: the suites of these tests
    echo "@($(sed -n 's/^Test(\([a-z0-9_]*\),.*/\1/p' "$@" | sort -u | paste -sd'|'))/*"
}
all=$(filter_of test/kernels/*.c test/model/core/*.c test/model/pass/*.c test/model/task/*.c test/model/optimize/*.c)
few=$(filter_of test/kernels/*.c test/model/core/test_gpt_golden.c)

failed=0
"$TRAIN" --version
for setting in "${settings[@]+"${settings[@]}"}"; do
    begin=$SECONDS status=0 filter=$few
    if [ "$setting" = "$thorough" ]; then filter=$all; fi
    env "$setting" "${TESTS:-build/fast/tests}" --jobs 2 --filter "$filter" >"$log" 2>&1 || status=$?
    printf '%-36s %4d s  %s\n' "$setting" $((SECONDS - begin)) \
        "$(sed -n 's/.*Synthesis: //p' "$log")"
    if [ "$status" -ne 0 ]; then
        failed=1
        tail -n 40 "$log" >&2
    fi
done
test/scripts/test_processors.sh || failed=1
exit "$failed"
