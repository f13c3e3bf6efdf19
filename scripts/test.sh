#!/usr/bin/env bash
# Installs the packages of the tests (apt, with sudo unless root), builds, and runs the tests.
#   scripts/test.sh            every test of the CPU once, and with the CUDA headers installed the
#                              CUDA kernels on an emulated GPU; about eight minutes on two cores
#   scripts/test.sh --all      what continuous integration runs, 75 minutes: also the build by
#                              nvcc, all scripts, other orders of GPU threads and other GPUs,
#                              AddressSanitizer and UBSan, each CPU level, a minute of torture.sh, the
#                              fuzzers (clang), MPICH and Open MPI from pip
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/packages.sh
. scripts/packages.sh
export XDG_CACHE_HOME=$PWD/build/cache # for the stores of autotune

if [ $# -gt 1 ] || [ "${1:---all}" != --all ]; then
    sed -n '2,8s/^# \?//p' "$0" >&2
    exit 2
fi
install_build_needs /usr/include/criterion/criterion.h libcriterion-dev g++ g++ \
    gnuplot gnuplot-nox python3 python3 mpicc libopenmpi-dev mpirun openmpi-bin \
    pgrep procps
if [ "${1:-}" != --all ]; then exec make -j"$(nproc)" test-short; fi
# No test runs what nvcc makes: it compiles a sixth of the time without most of its optimizations.
for nvcc in nvcc /usr/local/cuda/bin/nvcc; do
    # Not -q: it would end nvcc by SIGPIPE, which counts as a failure here.
    if "$nvcc" --help 2>/dev/null | grep -- --Ofast-compile >/dev/null; then
        export NVCC_APPEND_FLAGS=--Ofast-compile=max
    fi
done
make -j"$(nproc)" all
make -j"$(nproc)" test
make -j"$(nproc)" test-sanitize
make test-split
scripts/torture.sh 1
if command -v clang >/dev/null; then make -j"$(nproc)" fuzz FUZZ_SECONDS=3
else echo "test.sh: make fuzz is left out, because there is no clang" >&2; fi
make test-isa
TRAIN=./train test/scripts/test_mpi_flavors.sh
