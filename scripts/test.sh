#!/usr/bin/env bash
# Installs the packages of the tests (apt, with sudo unless root), builds, and runs all tests. With
# the CUDA headers installed, that includes the CUDA kernels on an emulated GPU.
#   scripts/test.sh            the tests, and those of the kernels on lower levels of instructions
#   scripts/test.sh --all      also all of them under AddressSanitizer and UBSan, and the CPU's on
#                              each CPU level of this machine, a minute of torture.sh, the fuzzers
#                              for seconds (clang), two ranks with the MPICH and the Open MPI that
#                              pip installs, and layouts beside those of CUTLASS's headers from pip
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/packages.sh
. scripts/packages.sh
export XDG_CACHE_HOME=$PWD/build/cache # for the stores of autotune

install_build_needs /usr/include/criterion/criterion.h libcriterion-dev g++ g++ \
    gnuplot gnuplot-nox mpicc libopenmpi-dev mpirun openmpi-bin \
    pgrep procps
make -j"$(nproc)" all
make -j"$(nproc)" test
if [ "${1:-}" = --all ]; then
    make -j"$(nproc)" test-sanitize
    make test-split
    scripts/torture.sh 1
    if command -v clang >/dev/null; then make -j"$(nproc)" fuzz FUZZ_SECONDS=3
    else echo "test.sh: make fuzz is left out, because there is no clang" >&2; fi
    make test-isa
    TRAIN=./train test/scripts/test_mpi_flavors.sh
    test/scripts/test_layouts.sh
else
    scripts/test_isa.sh --short
fi
