#!/usr/bin/env bash
# Tests scripts/regress.sh against modified baselines: it must name every changed figure and no
# other. Uses $TRAIN, or ./train.
set -euo pipefail
cd "$(dirname "$0")/../.."
train=${TRAIN:-./train}
# shellcheck source=test/scripts/cases.sh
. test/scripts/cases.sh
export REGRESS_BASELINES=$work/baselines

expect() { # STATUS ARGUMENTS ...: of regress.sh
    tests=$((tests + 1)) name=${*:2}
    runs "$1" scripts/regress.sh --train "$train" "${@:2}"
}
# Restores the baseline and changes it with sed.
tamper() {
    rm -f "$REGRESS_BASELINES"/*
    sed "$@" <"$work/true" >"$REGRESS_BASELINES/$baseline"
}
few=(--quick --again --jobs "fp32 bf16 bf16-layer")

expect 1 --quick
says "no baseline in"
expect 0 --update --quick --again
says "baseline of this type of machine"
baseline=$(basename "$REGRESS_BASELINES"/*.txt)
cp "$REGRESS_BASELINES/$baseline" "$work/true"

expect 0 "${few[@]}"
says "nothing moved: 3 jobs of 20 steps"
says "against the bits of"

# A changed bit in a loss is named once, by its first step, and nothing else is named.
tamper -e '/^bf16 /s/loss=\(\([0-9.]*,\)\{6\}\)[0-9.]*,[0-9.]*/loss=\19,9/'
expect 1 "${few[@]}"
says "moved: bf16: loss.7 is"
never_says "loss.8"
never_says "moved: fp32"

tamper -e 's/^\(fp32 .*weights=\)./\1x/' -e 's/^\(bf16 memory=\)/\11/' -e 's/^\(fp32 .*norms=\)./\1x/'
expect 1 "${few[@]}"
says "moved: fp32: weights is"
says "moved: bf16: memory"
says "moved: fp32: norms is"

# A job that the baseline does not have yet is reported, and is no failure.
tamper -e '/^bf16-layer /d'
expect 0 "${few[@]}"
says "not compared: this baseline is older than bf16-layer"

# Another type of machine: bits, memory and speed may differ, but losses are close.
tamper -e 's/^# machine: .*/# machine: another/' -e 's/^\(fp32 .*weights=\)./\1x/' \
    -e 's/^\(fp32 .*loss=[0-9]*\.[0-9][0-9][0-9]\)[0-9]*/\1/'
mv "$REGRESS_BASELINES/$baseline" "$REGRESS_BASELINES/another.txt"
expect 0 "${few[@]}"
says "no baseline for"
says "within tolerances of another"
sed -i 's/^\(bf16 .*loss=\([0-9.]*,\)\{3\}\)[0-9.]*/\19/' "$REGRESS_BASELINES/another.txt"
expect 1 "${few[@]}"
says "moved: bf16: loss.4 is"

# A program whose training differs.
tamper ''
printf '#!/usr/bin/env bash\nexec "%s" "$@" --set optimizer.lr=1.9e-3\n' "$(realpath "$train")" \
    >"$work/other train"
chmod +x "$work/other train"
train="$work/other train"
expect 1 --quick --jobs fp32
says "moved: fp32: loss."
says "moved: fp32: weights is"

# A program whose recompute changes bits.
printf '#!/usr/bin/env bash
case "$*" in *recompute=layer*) set -- "$@" --set optimizer.lr=1.9e-3 ;; esac
exec "%s" "$@"\n' "$(realpath "${TRAIN:-./train}")" >"$work/other train"
expect 1 --quick --jobs "bf16 bf16-layer"
says "recompute changes bits"

train=$work/none
expect 2 --quick
says "build it with make"
train=${TRAIN:-./train}
expect 2 --jobs fp64
says "no job fp64"
expect 2 --update --jobs fp32
expect 2 --nonsense
finish regress.sh
