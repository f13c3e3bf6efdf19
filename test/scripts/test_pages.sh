#!/usr/bin/env bash
# Tests scripts/report.py on reports of a tiny model, made by $TRAIN and $COMPARE, with hostile names,
# and opens the page in headless Chromium, at the width of a desktop and of a phone. Fails if the page
# loads anything, writes to the console, is wider than a window of 360 pixels, or is empty. Skipped
# without matplotlib (PYTHON names another python3); without Chromium the page is only read.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if ! "$python" -c 'import matplotlib' 2>/dev/null; then
    echo "skipped: the test of scripts/report.py, because there is no matplotlib here"
    exit 0
fi

work=$(mktemp -d) failed=0
trap 'rm -rf "$work"' EXIT
wrong() { # FILE WHAT
    failed=$((failed + 1))
    printf 'FAILED: %s: %s\n' "$1" "$2"
}

# A page must not contain anything that loads, nor any address, nor a name that is not escaped.
check_text() { # FILE
    local found
    found=$(grep -noiE 'https?:|[[:space:]]src[[:space:]]*=|@import|url\([^#]|<(script|link|iframe|b>)' "$1" |
        head -n 3 | tr '\n' ' ') || true
    if [ -n "$found" ]; then wrong "$1" "loads or names something outside: $found"; fi
    if LC_ALL=C grep -qE $'\033|\342\200\256' "$1"; then wrong "$1" "has control characters"; fi
    if [ "$(grep -c '<figure>' "$1")" -lt 9 ]; then wrong "$1" "lacks charts"; fi
    # shellcheck disable=SC2016 # a dollar sign is one of the names
    for found in '<h2>Losses' '<h2>Backward pass' 'layer 1 d(qkv)' '<h2>Quantized operands' \
        '<h2>Sampler and trainer' '&lt;b&gt;$x_1$'; do
        if ! grep -qF "$found" "$1"; then wrong "$1" "lacks $found"; fi
    done
}

# Opens the page in a frame of WIDTH pixels, measured by a script outside of it. Elements that are
# wider than the frame, and do not scroll in a box of their own, make the document wider.
measure() { # PAGE WIDTH SCHEME: 0 is dark, 1 light
    cat >"$work/frame.html" <<END
<!DOCTYPE html><meta charset="utf-8"><title>waiting</title>
<body style="margin:0"><iframe src="$1" style="border:0;width:$2px;height:800px"></iframe>
<script>
addEventListener("load", () => {
    const page = document.querySelector("iframe").contentDocument, root = page.documentElement;
    document.title = "width " + root.scrollWidth + " height " + root.scrollHeight +
        " background " + page.defaultView.getComputedStyle(page.body).backgroundColor;
});
</script></body>
END
    timeout 60 "$browser" --headless --no-sandbox --disable-gpu --allow-file-access-from-files \
        --user-data-dir="$work/profile" --enable-logging=stderr --log-file=/dev/null \
        --window-size="$(($2 + 100)),900" --blink-settings="preferredColorScheme=$3" \
        --host-resolver-rules="MAP * ~NOTFOUND" --dump-dom "file://$work/frame.html" \
        >"$work/dom" 2>"$work/log" || true
    sed -n 's/.*<title>\(width[^<]*\)<.*/\1/p' "$work/dom"
}

check_page() { # FILE
    local width scheme said name=$1 backgrounds=""
    for width in 1280 360; do
        for scheme in 0 1; do
            said=$(measure page.html $width $scheme)
            if ! [[ $said =~ ^width\ ([0-9]+)\ height\ ([0-9]+)\ background\ (.*)$ ]]; then
                wrong "$name" "cannot be opened: $(tail -n 3 "$work/log")"
                return
            fi
            if [ "${BASH_REMATCH[1]}" -gt $width ]; then
                wrong "$name" "is ${BASH_REMATCH[1]} pixels wide in a window of $width"
            fi
            if [ "${BASH_REMATCH[2]}" -lt 100 ]; then wrong "$name" "is empty"; fi
            backgrounds+="${BASH_REMATCH[3]};"
            if grep -F ':CONSOLE' "$work/log" >"$work/console"; then
                wrong "$name" "writes to the console: $(head -n 1 "$work/console")"
            fi
        done
    done
    IFS=';' read -r dark light _ <<<"$backgrounds"
    if [ "$dark" = "$light" ]; then wrong "$name" "is not dark for those who want it dark"; fi
}

make_reports() {
    local train=${TRAIN:-./train} compare=${COMPARE:-./compare}
    cat >"$work/tiny.json" <<'END'
{"model": {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 32}, "data": {"seq_len": 32},
 "train": {"steps": 60, "micro_batch_size": 4}, "eval": {"every": 20, "batches": 2}}
END
    for precision in fp32 fp16; do
        "$train" --config "$work/tiny.json" --set precision=$precision --set run_dir="$work" \
            --set name=$precision
    done
    # The verdict on so small a model is not checked.
    "$compare" $'_<b>$x_1$\033[31m\342\200\256='"$work/fp32" "<script>=$work/fp16" \
        --out "$work/compare" || [ $? -eq 1 ]
    "$train" --audit --precision fp16,fp8 --config "$work/tiny.json" --out "$work/audit"
    "$train" --agreement --from "$work/fp32" --samples 2 --tokens 8 --out "$work/agreement"
}
make_reports >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
page=$work/page.html
"$python" scripts/report.py "$work/compare/report.json" "$work/audit/audit.json" \
    "$work/audit/audit_fp8.json" "$work/agreement/agreement.json" --out "$page"
check_text "$page"
if [ -n "$browser" ]; then check_page "$page"; else echo "no chromium: the page is only read"; fi
echo '{"groups": 1}' >"$work/bad.json"
mkfifo "$work/pipe.json"
for file in "$work/bad.json" "$work/none.json" "$work/tiny.json" "$work/pipe.json" "$page"; do
    if timeout 60 "$python" scripts/report.py "$file" --out "$work/bad.html" 2>"$work/log" || [ -e "$work/bad.html" ] ||
        ! grep -q '^report.py: ' "$work/log"; then
        wrong "$file" "gives no message"
    fi
done

# A page is written beside the first report, also without any format, and says so.
"$python" - "$work/audit/audit.json" "$work/no formats.json" <<'PYTHON'
import json, sys
report = json.load(open(sys.argv[1]))
report["formats"] = {}
json.dump(report, open(sys.argv[2], "w"))
PYTHON
"$python" scripts/report.py "$work/no formats.json" >"$work/log" 2>&1 || wrong "no formats" "$(cat "$work/log")"
if [ "$(cat "$work/log")" != "written: $work/report.html" ] || ! [ -s "$work/report.html" ]; then
    wrong report.html "is not said to be written"
fi
PYTHONPATH=scripts PYTHONDONTWRITEBYTECODE=1 "$python" -c '
from report_page import CHANGE, number
found = [*map(CHANGE, (-0.0001, 0, 0.0004, -0.0006, 0.5)), number(1, " %")(-0.04)]
assert found == ["0.000 %", "+0.000 %", "+0.000 %", "-0.001 %", "+0.500 %", "0.0 %"], found' ||
    wrong "a change that rounds to -0" "has a sign"
echo "pages: $failed failures"
[ $failed -eq 0 ]
