#!/usr/bin/env bash
# Tests that scripts/check_layers.sh notices a wrong include: plants some in a small copy of the tree.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=test/scripts/cases.sh
. test/scripts/cases.sh
tree=$work/tree

build() { # modules with one allowed include each
    rm -rf "$tree"
    mkdir -p "$tree"/{data/util,kernels/{cpu,cuda/update},model/{core,pass,io,cli,lab/audit}}
    touch "$tree/train.c"
    echo '#include "data/util/error.h"' >"$tree/kernels/tensor.h"
    echo '#include "kernels/tensor.h"' >"$tree/kernels/cpu/update.c"
    echo '#include "kernels/tensor.h"' >"$tree/model/core/model.h"
    echo '#include "model/core/model.h"' >"$tree/model/io/checkpoint.c"
}

expect() { # STATUS TEXT: expected result of the check on the current tree
    tests=$((tests + 1)) name=$2
    runs "$1" scripts/check_layers.sh "$tree"
    if [ -n "$2" ]; then says "$2"; fi
}

plant() { # FILE HEADER TEXT
    build
    echo "#include \"$2\"" >>"$tree/$1"
    expect 1 "$3"
}

build
expect 0 ""
plant model/core/model.c kernels/cuda/cuda.h "model/core/model.c includes kernels/cuda/cuda.h"
plant model/core/model.c kernels/cpu/cpu.h "model/core/ may not include kernels/cpu/"
plant kernels/cuda/update/update.cu kernels/cpu/cpu.h "kernels/cuda/update/ may not include kernels/cpu/"
plant data/util/error.c kernels/tensor.h "data/util/ may not include kernels/"
plant model/core/model.c model/io/checkpoint.h "model/core/ may not include model/io/"
plant model/pass/pass.h model/task/objective.h "model/pass/ may not include model/task/"
plant model/cli/run.c model/lab/audit/audit.h "model/cli/ may not include model/lab/audit/"
plant model/lab/audit/audit.c model/choices/choices.h "model/lab/audit/ may not include model/choices/"
plant kernels/tensor.h kernels/cuda/cuda.h "kernels/ may not include kernels/cuda/"
build
mkdir -p "$tree/model/new"
echo '#include "model/core/model.h"' >"$tree/model/new/new.c"
expect 1 "a module that is not in the plan: model/new"
build
echo '#include "model/core/masters.h"' >"$tree/model/core/model.c"
echo '#include "model/core/model.h"' >"$tree/model/core/masters.h"
expect 1 "circle"
finish check_layers.sh
