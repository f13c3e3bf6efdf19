#!/usr/bin/env bash
# Opens HTML reports in headless Chromium, at the width of a desktop and of a phone:
#   test/scripts/test_pages.sh [FILE.html ...]
# Without a file: a comparison and an audit of a tiny model, made by $TRAIN and $COMPARE. Fails if a
# page loads anything, writes to the console, is wider than a window of 360 pixels, or is empty.
# Skipped without Chromium.
set -euo pipefail
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -z "$browser" ]; then
    echo "skipped: no chromium (apt-get install chromium)"
    exit 0
fi

work=$(mktemp -d) failed=0
trap 'rm -rf "$work"' EXIT
wrong() { # FILE WHAT
    failed=$((failed + 1))
    printf 'FAILED: %s: %s\n' "$1" "$2"
}

# A page must not contain anything that loads, nor any address but SVG's namespace.
check_text() { # FILE
    local found
    found=$(sed 's|http://www\.w3\.org/2000/svg||g' "$1" |
        grep -noiE 'https?:|[[:space:]]src[[:space:]]*=|@import|url\(|<(script|link|iframe)' |
        head -n 3 | tr '\n' ' ') || true
    if [ -n "$found" ]; then wrong "$1" "loads or names something outside: $found"; fi
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
    cp "$name" "$work/page.html"
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
    local train=${TRAIN:-./train}
    cat >"$work/tiny.json" <<'END'
{"model": {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 32}, "data": {"seq_len": 32},
 "train": {"steps": 60, "micro_batch_size": 4}, "eval": {"every": 20, "batches": 2}}
END
    # The verdict on so small a model is not checked.
    scripts/compare_precisions.sh "$work/tiny.json" --out "$work/compare" >"$work/log" 2>&1 ||
        [ -s "$work/compare/report.html" ] || { cat "$work/log"; exit 1; }
    "$train" --audit --precision fp16,fp8 --config "$work/tiny.json" --out "$work/audit" \
        >"$work/log" 2>&1 ||
        { cat "$work/log"; exit 1; }
}
if [ $# -eq 0 ]; then
    cd "$(dirname "$0")/../.."
    make_reports
    set -- "$work/compare/report.html" "$work/audit/audit.html" "$work/audit/audit_fp8.html"
fi
for file in "$@"; do
    if [ ! -r "$file" ]; then
        wrong "$file" "cannot be read"
        continue
    fi
    check_text "$file"
    check_page "$file"
done
echo "pages: $# opened, $failed failures"
[ $failed -eq 0 ]
