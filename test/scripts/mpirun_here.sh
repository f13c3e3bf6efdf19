# shellcheck shell=bash
# Sourced by the tests of several ranks: checks that mpirun works here, and makes a temporary
# folder. Needs TRAIN, a program; ends the test if it cannot be run.
if [ ! -e "$(dirname "$TRAIN")/train_mpi.so" ] || ! command -v mpirun >/dev/null; then
    echo "skipped: no mpicc or no mpirun here"
    exit 0
fi
export OMP_NUM_THREADS=1
# Runs two processes with mpirun, as root too; the arguments are the command.
mpirun_here() {
    timeout 60 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        mpirun --oversubscribe "$@"
}
if ! mpirun_here -n 2 true; then
    echo "skipped: mpirun cannot start two processes here"
    exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
