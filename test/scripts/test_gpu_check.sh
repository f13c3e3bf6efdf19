#!/usr/bin/env bash
# Rehearses scripts/gpu_check.sh on the emulated GPU: once as a whole, then with calls of CUDA and
# cuBLASLt that fail. It must name the part that failed, advise, and write its table and archive.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(mktemp -d "${TMPDIR:-/tmp}/gpu check.XXXXXX")
trap 'rm -rf "$folder"' EXIT
export XDG_CACHE_HOME=$folder/cache
failures=0

wrong() {
    echo "FAIL: ${CUDA_EMULATOR_FAIL:-} $1"
    tail -n 30 "$folder/said"
    failures=$((failures + 1))
}

# rehearse STATUS WORKS FAILS ARGUMENT ...: the lists of parts in the verdict.
rehearse() {
    local wanted=$1 works=$2 fails=$3 status=0
    shift 3
    scripts/gpu_check.sh --emulated --no-torch --out "$folder/out" "$@" >"$folder/said" 2>&1 ||
        status=$?
    if [ "$status" != "$wanted" ]; then wrong "$*: status $status instead of $wanted"; fi
    if ! grep -qx "Works: $works" "$folder/out/table.txt"; then wrong "$*: not what works: $works"; fi
    if [ -n "$fails" ]; then
        if ! grep -qx "Fails: $fails" "$folder/out/table.txt" ||
            ! grep -q "^  $fails: " "$folder/out/table.txt"; then
            wrong "$*: not what fails and what to try: $fails"
        fi
    fi
    tar -tzf "$folder/out.tar.gz" >"$folder/list"
    for file in gpu_check.json table.txt build.log; do
        if ! grep -q "/$file$" "$folder/list"; then wrong "$*: no $file"; fi
    done
    if ! python3 -m json.tool "$folder/out/gpu_check.json" >"$folder/json" 2>&1; then
        wrong "$*: gpu_check.json is not JSON"
    fi
}

rehearse 0 "build tests numbers bench autotune against brim kill save graphs" "" \
    --parts tests,numbers,bench,autotune,against,brim,kill,save,graphs --against .
if ! grep -qE '^step in bf16, tokens/s +[0-9.]+ +[0-9.]+ +[0-9.]+' "$folder/out/table.txt"; then
    wrong "no step beside the other checkout"
fi
if ! grep -qE '^32 x 96 x 32 bf16 x bf16 nn to bf16 bias +1 +[0-9.]+ +-?[0-9.]+( +[0-9.]+){4}$' "$folder/out/table.txt" ||
    ! grep -qE '^all +15 +[0-9.]+ +-?[0-9.]+ +[0-9.]+$' "$folder/out/table.txt"; then
    wrong "no table of products"
fi
for call in cudaMalloc:5 launch:9 cublasLtCreate:1; do
    CUDA_EMULATOR_FAIL=$call rehearse 1 build brim --parts brim
done
CUDA_EMULATOR_FAIL=launch:40 rehearse 1 build numbers --parts numbers
# A card without wgmma and 8-bit tensor cores is no failure.
CUDA_EMULATOR_SM=80 rehearse 0 "build numbers" "" --parts numbers
# processes_left SESSION: the live processes of a session. timeout gives each part a group of its own.
processes_left() { ps -o pid=,stat= -s "$1" | awk '$2 !~ /^Z/ { print $1 }'; }
# A machine that is taken away leaves the archive, whenever that happens; a signal stops every part.
for case in KILL:build KILL:tests KILL:bench TERM:tests INT:tests; do
    signal=${case%:*} part=${case#*:}
    rm -rf "$folder/out" "$folder/out.tar.gz" "$folder/said" # of the case before
    # Background jobs of a script ignore SIGINT; Python restores what a terminal would give.
    python3 -c 'import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.setsid()
os.execvp(sys.argv[1], sys.argv[1:])' scripts/gpu_check.sh --emulated --no-torch \
        --out "$folder/out" --parts tests,bench >"$folder/said" 2>&1 &
    pid=$!
    until grep -q "\] $part \.\.\." "$folder/said" 2>/dev/null; do sleep 0.02; done
    if [ "$signal" = KILL ]; then
        processes_left "$pid" | xargs -r kill -9 2>/dev/null || true
    else
        kill -s "$signal" "$pid"
    fi
    status=0
    wait "$pid" 2>/dev/null || status=$?
    for ((i = 0; i < 600; i++)); do
        [ -n "$(processes_left "$pid")" ] || break
        if [ "$signal" = KILL ]; then processes_left "$pid" | xargs -r kill -9 2>/dev/null || true; fi
        sleep 0.05
    done
    if [ "$i" -eq 600 ]; then wrong "SIG$signal during $part: processes are left after 30 s"; fi
    case $signal:$status in KILL:137 | TERM:143 | INT:130) ;; *)
        wrong "SIG$signal during $part: status $status" ;;
    esac
    tar -tzf "$folder/out.tar.gz" >/dev/null 2>&1 || wrong "SIG$signal during $part: no whole archive"
done
# A part that needs more than the time left is skipped, and the rest of the report is written.
scripts/gpu_check.sh --emulated --no-torch --out "$folder/out" --parts tests,bench --minutes 1 \
    >"$folder/said" 2>&1 || wrong "skipped parts are failures"
if [ "$(grep -c 'skipped: no time left' "$folder/out/table.txt")" != 3 ]; then
    wrong "a minute was enough for a part that may take longer"
fi
scripts/gpu_check.sh --emulated --no-torch --out "$folder/out" --minutes 0 >"$folder/said" 2>&1 &&
    wrong "0 minutes were accepted"
status=0
scripts/gpu_check.sh --parts nonsense >"$folder/said" 2>&1 || status=$?
if [ "$status" != 2 ] || ! grep -q "no part nonsense" "$folder/said"; then
    wrong "an unknown part: status $status"
fi
echo "test_gpu_check: $failures failures"
exit $((failures > 0))
