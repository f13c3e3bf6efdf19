# shellcheck shell=bash
# Sourced by the tests of several ranks: checks that mpirun works here, makes a temporary folder, and
# trains in it. Needs TRAIN, a program; ends the test if it cannot be run.
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
export XDG_CACHE_HOME=$folder/cache
cases=0

fail() {
    echo "${0##*/}: $*" >&2
    exit 1
}

# train RANKS NAME [FLAG ...]: trains $folder/tiny.json with output to $folder/NAME.out; returns
# ./train's status.
train() {
    local flags=(--config "$folder/tiny.json" --set name="$2" "${@:3}")
    if [ "$1" -gt 1 ]; then flags=(--ranks "$1" "${flags[@]}"); fi
    timeout 120 "$TRAIN" "${flags[@]}" >"$folder/$2.out" 2>&1
}

# Prints the values of a key in metrics.jsonl, one per line.
values() { # NAME KEY
    sed -n 's/.*"'"$2"'": \([^,}]*\).*/\1/p' "$folder/$1/metrics.jsonl"
}

# near A B KEY BOUND: each pair of values differs by at most BOUND.
near() {
    paste <(values "$1" "$3") <(values "$2" "$3") | awk -v bound="$4" -v what="$1 $2 $3" '
        NF != 2 { print what ": line " NR " has " NF " values"; bad = 1 }
        { d = $1 - $2; if (d < 0) d = -d; if (d > worst) worst = d }
        END {
            if (NR == 0 || bad || worst > bound) {
                print what ": " NR " values differ by up to " worst ", allowed " bound; exit 1
            }
        }' >&2 || fail "$1 and $2 are not near in $3"
    cases=$((cases + 1))
}
