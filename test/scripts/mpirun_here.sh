# shellcheck shell=bash
# Sourced by the tests of several ranks: whether mpirun serves here, and a folder that goes away.
# Needs TRAIN, a program; ends the test where it cannot be run.
if [ ! -e "$(dirname "$TRAIN")/train_mpi.so" ] || ! command -v mpirun >/dev/null; then
    echo "skipped: no mpicc or no mpirun here"
    exit 0
fi
export OMP_NUM_THREADS=1
# mpirun of two processes, whoever we are; the arguments are what it runs.
mpirun_here() {
    timeout 60 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        mpirun --oversubscribe "$@"
}
if ! mpirun_here -n 2 true; then
    echo "skipped: the mpirun that is here does not start two processes"
    exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
