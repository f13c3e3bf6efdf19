#!/usr/bin/env bash
# Fetches benchmarks and turns them into questions for ./train --choices; see scripts/get_eval.sh --help.
set -euo pipefail
here=$(dirname "$0")
# shellcheck source=scripts/fetch.sh
. "$here/fetch.sh"

usage() {
    cat <<'TEXT'
scripts/get_eval.sh NAME ... [--out FOLDER]

Fetches benchmarks and turns them into questions for ./train --choices, in
FOLDER (datasets/eval), with scripts/questions.py:

  hellaswag   hellaswag.jsonl: the 10,042 questions of the validation split,
              which lm-evaluation-harness uses, too; fetches 12 MB
  arc         arc_easy.jsonl and arc_challenge.jsonl, 2,376 and 1,172 questions
              of the test split; fetches an archive of 681 MB; needs unzip

What was fetched is removed again.
TEXT
    fetch_usage
}

HELLASWAG=https://raw.githubusercontent.com/rowanz/hellaswag/master/data
HELLASWAG_SHA256=0aa3b88843990f3f10a97b9575c94d7b71fb2205240ba04ae4884d9e9c992588
ARC=https://ai2-public-datasets.s3.amazonaws.com/arc
ARC_SHA256=6d2d5ab50b2ceec6ba5f79c921be77cf2de712ea25a2b3f4fff3acc101cecfa0

out=datasets/eval names=()
while [ $# -gt 0 ]; do
    case $1 in
    --out) out=${2:-} && shift ;;
    --help | -h) usage && exit 0 ;;
    hellaswag | arc) names+=("$1") ;;
    *) fetch_complain "$1: unknown; --help says what there is" && exit 2 ;;
    esac
    shift || { fetch_complain "the last option needs a value" && exit 2; }
done
if [ ${#names[@]} -eq 0 ]; then usage >&2 && exit 2; fi
if [ -z "$out" ]; then fetch_complain "--out needs a folder" && exit 2; fi

# True if all files are there; says so.
are_there() { # FILE ...
    local file
    for file; do [ -f "$file" ] || return 1; done
    echo "$*: already there"
}

get_hellaswag() {
    local rows=$out/hellaswag_val.jsonl
    if are_there "$out/hellaswag.jsonl"; then return 0; fi
    fetch $HELLASWAG/hellaswag_val.jsonl "$rows" $HELLASWAG_SHA256 || return
    "$here/questions.py" "$rows" "$out/hellaswag.jsonl" && rm -f "$rows"
}

get_arc() {
    local part rows archive=$out/ARC-V1-Feb2018.zip
    if are_there "$out/arc_easy.jsonl" "$out/arc_challenge.jsonl"; then return 0; fi
    if ! command -v unzip >/dev/null; then
        fetch_complain "there is no unzip here: install it (apt-get install unzip)"
        return 1
    fi
    fetch $ARC/ARC-V1-Feb2018.zip "$archive" $ARC_SHA256 || return
    for part in Easy Challenge; do
        rows=$out/ARC-$part-Test.jsonl
        if ! unzip -p "$archive" "*/ARC-$part/ARC-$part-Test.jsonl" >"$rows"; then
            fetch_complain "$rows: cannot be unpacked from $archive; is the disk full?"
            return 1
        fi
        "$here/questions.py" "$rows" "$out/arc_${part,,}.jsonl" || return
        rm -f "$rows"
    done
    rm -f "$archive"
}

if ! command -v python3 >/dev/null; then
    fetch_complain "there is no python3 here, which converts the rows: install it"
    exit 1
fi
fetch_begin
for name in "${names[@]}"; do
    "get_$name" || exit 1
done
