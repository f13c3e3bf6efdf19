# shellcheck shell=bash
# Sourced by tests of scripts in the project's folder: cases, each in an empty folder, and checks of
# the output of commands. A test ends with `finish NAME`.
# shellcheck disable=SC2034 # for the tests
root=$PWD
work=$(mktemp -d "${TMPDIR:-/tmp}/test of scripts.XXXXXX")
trap 'rm -rf "$work"' EXIT
tests=0 failed=0 name=""
runner=()           # words before the command of each `runs`
logs=("$work/said")  # files to show after a failure

set_up() { :; } # a test may define what each of its cases begins with
test_case() {   # NAME
    tests=$((tests + 1)) name=$1
    rm -rf "$work/case"
    mkdir "$work/case"
    cd "$work/case" || exit
    set_up
}
wrong() { # REASON
    failed=$((failed + 1))
    echo "FAILED: $name: $*"
    sed 's/^/        | /' "${logs[@]}"
}
runs() { # STATUS COMMAND ...
    local want=$1 got=0
    shift
    "${runner[@]}" "$@" >"$work/said" 2>&1 </dev/null || got=$?
    if [ "$got" -ne "$want" ]; then wrong "status $got instead of $want: $*"; fi
}
said() { # TEXT: it was printed, where lines are broken or not
    sed -z 's/\n    / /g' "$work/said" | grep -F -- "$1" >/dev/null
}
says() { # TEXT
    if ! said "$1"; then wrong "does not say: $1"; fi
}
never_says() { # TEXT
    if said "$1"; then wrong "says: $1"; fi
}
fits() { # COLUMNS
    if [ "$(wc -L <"$work/said")" -gt "$1" ]; then wrong "a line is longer than $1"; fi
}
# Waits up to 30 seconds until COMMAND succeeds.
wait_until() { # COMMAND ...
    local i
    for ((i = 0; i < 3000; i++)); do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.01
    done
    wrong "it takes too long: $*"
}
# Starts COMMAND in a process group of its own and with default signal handlers, like a terminal:
# tests may run in the background, where scripts ignore Ctrl-C. Sends the signal once FILE is there,
# to the whole group if PREFIX is "-", and checks the exit status.
stops() { # SIGNAL STATUS PREFIX FILE COMMAND ...
    local process status=0
    set -m
    env --default-signal=INT "${@:5}" >"$work/said" 2>&1 </dev/null &
    process=$!
    set +m
    wait_until test -s "$4"
    kill -s "$1" -- "$3$process"
    wait "$process" || status=$?
    if [ "$status" -ne "$2" ]; then wrong "status $status instead of $2"; fi
}
finish() { # NAME
    echo "$1: $tests cases, $failed failures"
    [ "$failed" -eq 0 ]
}
