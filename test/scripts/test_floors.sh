#!/usr/bin/env bash
# Does scripts/check_floors.sh notice a wrong include? Plants some in a small copy of the house.
set -euo pipefail
cd "$(dirname "$0")/../.."
house=$(mktemp -d)
trap 'rm -rf "$house"' EXIT
failed=0

build() { # the rooms, with one right include each way down
    rm -rf "${house:?}"/*
    mkdir -p "$house"/{data/{base,text},kernels/{cpu,cuda},model/{config,files,run,lab/audit}}
    touch "$house/train.c"
    echo '#include "data/base/error.h"' >"$house/kernels/tensor.h"
    echo '#include "kernels/tensor.h"' >"$house/kernels/cpu/adamw.c"
    echo '#include "kernels/tensor.h"' >"$house/model/gpt.h"
    echo '#include "model/gpt.h"' >"$house/model/files/checkpoint.c"
}

expect() { # STATUS WORDS: what the check says of the house as it stands
    local said status=0
    said=$(scripts/check_floors.sh "$house" 2>&1) || status=$?
    if [ "$status" != "$1" ] || [[ $said != *"$2"* ]]; then
        printf 'expected status %s and "%s", got %s:\n%s\n' "$1" "$2" "$status" "$said" >&2
        failed=1
    fi
}

plant() { # FILE HEADER WORDS
    build
    echo "#include \"$2\"" >>"$house/$1"
    expect 1 "$3"
}

build
expect 0 ""
plant model/gpt.c kernels/cuda/cuda.h "model/gpt.c includes kernels/cuda/cuda.h"
plant model/gpt.c kernels/cpu/cpu.h "model/ may not know kernels/cpu/"
plant kernels/cuda/adamw.cu kernels/cpu/cpu.h "kernels/cuda/ may not know kernels/cpu/"
plant data/base/error.c kernels/tensor.h "data/base/ may not know kernels/"
plant model/gpt.c model/files/checkpoint.h "model/ may not know model/files/"
plant model/run/run.c model/lab/audit/audit.h "model/run/ may not know model/lab/audit/"
plant kernels/tensor.h kernels/cuda/cuda.h "kernels/ may not know kernels/cuda/"
build
mkdir -p "$house/model/new"
echo '#include "model/gpt.h"' >"$house/model/new/new.c"
expect 1 "a room that the plan does not know: model/new"
build
echo '#include "model/trainer.h"' >"$house/model/gpt.c"
echo '#include "model/gpt.h"' >"$house/model/trainer.h"
expect 1 "circle"
[ "$failed" = 0 ] && echo "check_floors.sh: 10 cases: ok"
exit "$failed"
