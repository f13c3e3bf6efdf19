#!/usr/bin/env bash
# Fetches multiple-choice questions for ./train --choices; see scripts/get_eval.sh --help.
set -euo pipefail
here=$(dirname "$0")
# shellcheck source=scripts/fetch.sh
. "$here/fetch.sh"

usage() {
    cat <<'TEXT'
scripts/get_eval.sh NAME ... [--out FOLDER]

Fetches multiple-choice questions for ./train --choices into FOLDER
(datasets/eval):

  hellaswag   hellaswag_val.jsonl, 12 MB: the 10,042 questions of the validation
              split, which lm-evaluation-harness uses, too
  arc         ARC-Easy-Test.jsonl and ARC-Challenge-Test.jsonl, 2,376 and 1,172
              questions, out of an archive of 681 MB, which is removed again;
              needs unzip

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

get_hellaswag() {
    fetch $HELLASWAG/hellaswag_val.jsonl "$out/hellaswag_val.jsonl" $HELLASWAG_SHA256 || return
    echo "next: ./train --choices $out/hellaswag_val.jsonl --from datasets/gpt2"
}

get_arc() {
    local part file archive=$out/ARC-V1-Feb2018.zip
    if [ -f "$out/ARC-Easy-Test.jsonl" ] && [ -f "$out/ARC-Challenge-Test.jsonl" ]; then
        echo "$out/ARC-Easy-Test.jsonl, $out/ARC-Challenge-Test.jsonl: already there"
        return 0
    fi
    if ! command -v unzip >/dev/null; then
        fetch_complain "there is no unzip here: install it (apt-get install unzip)"
        return 1
    fi
    fetch $ARC/ARC-V1-Feb2018.zip "$archive" $ARC_SHA256 || return
    for part in Easy Challenge; do
        file=$out/ARC-$part-Test.jsonl
        if ! unzip -p "$archive" "*/ARC-$part/ARC-$part-Test.jsonl" >"$file.part"; then
            fetch_complain "$file: cannot be unpacked from $archive; is the disk full?"
            return 1
        fi
        mv -f "$file.part" "$file" || return
        echo "$file: $(fetch_bytes "$file") bytes"
    done
    rm -f "$archive"
    echo "next: ./train --choices $out/ARC-Easy-Test.jsonl --from datasets/gpt2"
}

fetch_begin
for name in "${names[@]}"; do
    "get_$name" || exit 1
done
