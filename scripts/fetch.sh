# shellcheck shell=bash
# Sourced by get_data.sh, get_eval.sh and get_model.sh: fetches files, which appear complete and
# checked or not at all. FILE.part holds the part received so far, from which the next call resumes.
# The caller has `set -euo pipefail`, calls fetch_begin once, and fetch for each file.
#
# MANTISSA_MIRROR=http://host:port replaces the scheme and host of every URL.
# MANTISSA_PAUSE=1 is the first pause between tries, in seconds; later ones are longer.

FETCH_TRIES=5   # consecutive tries without progress
FETCH_MISSING=3 # status of fetch for a file that the server does not have
fetch_headers=() # options of curl that every request has
fetch_refused="" # what to do about HTTP 401 and 403
fetch_most=""    # bytes that an answer may have; "" is without limit
fetch_locked=""  # folder that no other process fetches into

# Help text of every script that fetches.
fetch_usage() {
    cat <<'TEXT'
After an interruption the same command continues the download. Every file is
checked by a known SHA-256, else by the hash that the server announces, else by
its size; its line says which. Existing files are checked and not fetched again.
A wrong file is kept as FILE.wrong.

MANTISSA_MIRROR=https://host in the environment replaces the scheme and host of
every URL, for a mirror with the same paths.

Exit status: 0 all files are complete, 1 some are not, 2 wrong usage, 130 and
143 stopped by SIGINT and SIGTERM.
TEXT
}

fetch_complain() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# Prints a word as the shell reads it, for a command to copy.
fetch_quote() {
    if [[ $1 =~ ^[A-Za-z0-9_./=,:+-]+$ ]]; then echo "$1"; else echo "${1@Q}"; fi
}

# Sets the traps for EXIT and for the signals that end a program.
fetch_begin() {
    if ! command -v curl >/dev/null; then
        fetch_complain "there is no curl here: install it (apt-get install curl)"
        return 1
    fi
    fetch_scratch=$(mktemp -d) fetch_process=""
    trap 'rm -rf "$fetch_scratch"' EXIT
    trap 'fetch_stop 130' INT
    trap 'fetch_stop 143' TERM HUP
}

fetch_stop() { # STATUS
    trap '' INT TERM HUP
    if [ -n "$fetch_process" ]; then kill "$fetch_process" 2>/dev/null || true; fi
    wait
    printf '\nstopped; the same command goes on from here\n' >&2
    exit "$1"
}

# ---- expected properties of a file: fetch_size, and fetch_hash of fetch_kind; "" if unknown

fetch_bytes() { # FILE: its size, 0 if there is none
    if [ -f "$1" ]; then wc -c <"$1" | tr -d ' '; else echo 0; fi
}

# KIND FILE: prints its SHA-256, or its SHA-1 as a git blob.
fetch_hash_of() {
    local sha1=(sha1sum) sha256=(sha256sum)
    if ! command -v sha256sum >/dev/null; then sha1=(shasum -a 1) sha256=(shasum -a 256); fi
    case $1 in
    sha256) "${sha256[@]}" <"$2" ;;
    git) { printf 'blob %d\0' "$(fetch_bytes "$2")" && cat "$2"; } | "${sha1[@]}" ;;
    esac | cut -d ' ' -f 1
}

# True if a file is as expected; otherwise fetch_fault is the reason.
fetch_agrees() { # FILE
    local found
    found=$(fetch_bytes "$1") fetch_fault=""
    if [ -n "$fetch_size" ] && [ "$found" -ne "$fetch_size" ]; then
        fetch_fault="it has $found bytes instead of $fetch_size"
    elif [ "$found" -eq 0 ] && [ -z "$fetch_kind" ]; then
        fetch_fault="it is empty"
    elif [ -n "$fetch_kind" ]; then
        found=$(fetch_hash_of "$fetch_kind" "$1")
        if [ "$found" != "$fetch_hash" ]; then
            fetch_fault="its $(fetch_kind_name) is $found instead of $fetch_hash"
        fi
    fi
    [ -z "$fetch_fault" ]
}

fetch_kind_name() { if [ "$fetch_kind" = git ]; then echo "git hash"; else echo "SHA-256"; fi; }

fetch_proof() { # describes the check that fetch_agrees has made
    if [ -n "$fetch_pinned" ]; then echo "SHA-256 as known beforehand"
    elif [ -n "$fetch_kind" ]; then echo "$(fetch_kind_name) as the server announces it"
    elif [ -n "$fetch_size" ]; then echo "checked by its size only"
    else echo "not checked: the server says nothing of it"; fi
}

# Parses headers into lines: size, kind, hash. The host of the URL may redirect to another one, but
# sends its headers before; a hash from another host would vouch for that host's own bytes. A tag is a
# hash of the content if it is X-Linked-ETag or comes with X-Repo-Commit: 64 digits are a SHA-256, 40
# are git's.
fetch_announced() { # HEADERS URL
    tr -d '\r' <"$1" | awk -v url="$2" '
        function host(place) {
            if (place ~ /^\/([^\/]|$)/) return home # a path on the same host
            sub(/^[A-Za-z]+:\/\//, "", place); sub(/[\/?#].*/, "", place)
            return tolower(place)
        }
        BEGIN { home = host(url) }
        /^HTTP\// { away = leaves; last_size = etag = ""; of_content = 0; refused = $2 >= 400 }
        { name = tolower($1) }
        name == "location:" && host($2) != home { leaves = 1 } # for good
        name == "content-length:" { last_size = $2 }
        away { next }
        name == "x-linked-size:" { size = $2 }
        name == "x-linked-etag:" { linked = $2 }
        name == "etag:" { etag = $2 }
        name == "x-repo-commit:" { of_content = 1 }
        of_content && etag != "" { tag = etag }
        END {
            if (size == "" && !refused) size = last_size
            if (size !~ /^(0|[1-9][0-9]*)$/) size = ""
            if (linked != "") tag = linked
            gsub(/^W\/|"/, "", tag)
            if (tag ~ /^[0-9a-f]+$/ && length(tag) == 64) kind = "sha256"
            if (tag ~ /^[0-9a-f]+$/ && length(tag) == 40) kind = "git"
            print size; print kind; print kind == "" ? "" : tag
        }'
}

# ---- requests

# Sends one request; returns curl's exit status. fetch_code is set to the HTTP status, 000 without
# one. curl runs in the background so that a signal is handled at once. Its files must not become
# larger than fetch_most bytes, rounded up to KiB: a server may send without end.
fetch_curl() { # ARGUMENT ...
    local status=0
    {
        trap '' XFSZ # a write that fails, in place of a signal
        if [ -n "$fetch_most" ]; then ulimit -S -f $((fetch_most / 1024 + 1)) 2>/dev/null || true; fi
        exec curl --fail --location --proto '=http,https' --proto-redir "$fetch_redirects" \
            --suppress-connect-headers \
            --connect-timeout 15 --speed-limit 100 --speed-time 30 --write-out '%{http_code}' \
            "${fetch_headers[@]}" "$@" >"$fetch_scratch/code" </dev/null
    } &
    fetch_process=$!
    wait "$fetch_process" || status=$?
    fetch_process="" fetch_code=$(cat "$fetch_scratch/code")
    return "$status"
}

# True if another try may help after a failed request.
fetch_may_pass() { # CURL_STATUS
    case $1/$fetch_code in
    22/408 | 22/429 | 22/5*) return 0 ;;
    22/*) return 1 ;;
    [567]/* | 16/* | 18/* | 28/* | 35/* | 52/* | 55/* | 56/* | 92/*) return 0 ;;
    *) return 1 ;;
    esac
}

fetch_reason() { # CURL_STATUS: prints its meaning
    case $1/$fetch_code in
    5/* | 6/*) echo "the name of the server is not found; is there a network?" ;;
    7/*) echo "the server cannot be reached; is there a network?" ;;
    22/404 | 22/410) echo "the server does not have it (HTTP $fetch_code)" ;;
    22/408 | 22/429 | 22/5*) echo "the server has trouble (HTTP $fetch_code); try later" ;;
    22/401 | 22/403) echo "the server refuses it (HTTP $fetch_code)${fetch_refused:+: $fetch_refused}" ;;
    22/*) echo "the server refuses it (HTTP $fetch_code)" ;;
    23/*) echo "cannot be written; is the disk full, the size of files limited, or the answer endless?" ;;
    18/* | 28/* | 52/* | 55/* | 56/*) echo "the connection breaks; the same command goes on" ;;
    33/*) echo "the connection breaks, and this server cannot resume in the middle of a file" ;;
    *) echo "curl gives up with exit status $1, which man curl explains" ;;
    esac
}

fetch_pause() { sleep $((${MANTISSA_PAUSE:-1} << ($1 - 1))); } # TRY, from 1

# Requests the server's size and hash of a file. A server that fails here may still serve the file,
# and the host of a redirect may reject a request that the first one answered.
fetch_ask() { # URL
    local try=1 status=0 known
    until fetch_curl --silent --head --output /dev/null \
        --dump-header "$fetch_scratch/headers" "$1"; do
        status=$?
        case $status/$fetch_code in
        22/400 | 22/403 | 22/405 | 22/501) break ;;
        esac
        if ! fetch_may_pass $status || [ $try -ge $FETCH_TRIES ]; then
            fetch_complain "$1: $(fetch_reason $status)"
            case $fetch_code in 404 | 410) return $FETCH_MISSING ;; *) return 1 ;; esac
        fi
        fetch_pause $try
        try=$((try + 1))
    done
    mapfile -t known < <(fetch_announced "$fetch_scratch/headers" "$1")
    fetch_size=${known[0]}
    if [ ${#fetch_size} -gt 15 ]; then # too large for the shell's arithmetic
        fetch_complain "$1: the server announces $fetch_size bytes, which cannot be; try a mirror"
        return 1
    fi
    if [ -z "$fetch_pinned" ]; then fetch_kind=${known[1]} fetch_hash=${known[2]}; fi
}

fetch_room() { # FOLDER BYTES: true if there is enough space
    local free
    free=$(df -Pk "$1" | awk 'NR == 2 { print $4 }')
    if [ $(($2 / 1024)) -le "$free" ]; then return 0; fi
    fetch_complain "$1: $(($2 / 1024)) KiB are needed, and $free KiB are free"
    return 1
}

# Waits until no other process fetches into a folder, until this one ends or locks another folder.
# Without flock, and on file systems without locks, there is no wait.
fetch_lock() { # FOLDER
    if [ "$1" = "$fetch_locked" ] || ! command -v flock >/dev/null; then return 0; fi
    fetch_locked=$1
    exec 9<"$1"
    if flock --nonblock 9 2>/dev/null; then return 0; fi
    echo "waiting for another download into $1" >&2
    flock 9 &
    fetch_process=$!
    wait "$fetch_process" || true
    fetch_process=""
}

# Downloads a file from its current end until it has the announced size. Starts over if the server
# does not support ranges.
fetch_transfer() { # URL PART [MOST]
    local show=(--silent) from before after try=1 overs=0 status fetch_most=${3:-$fetch_size}
    if [ -t 2 ]; then show=(--progress-bar); fi
    while :; do
        before=$(fetch_bytes "$2") status=0 from=()
        if [ "$before" -gt 0 ] && [ "$before" = "$fetch_size" ]; then return 0; fi
        if [ "$before" -gt 0 ]; then from=(--continue-at -); fi
        fetch_curl "${show[@]}" "${from[@]}" --output "$2" "$1" || status=$?
        after=$(fetch_bytes "$2")
        if [ "$before" -gt 0 ] && [ $overs -lt $FETCH_TRIES ] &&
            { [ $status -eq 33 ] || [ "$fetch_code" = 416 ]; }; then
            rm -f "$2"
            overs=$((overs + 1))
            continue
        fi
        if [ "$after" -gt "${fetch_size:-$after}" ]; then return 0; fi # which is not as expected
        if [ $status -eq 0 ] && [ "$after" -lt "${fetch_size:-0}" ]; then status=18; fi
        if [ $status -eq 0 ]; then return 0; fi
        if [ "$after" -gt "$before" ]; then try=1; fi
        if ! fetch_may_pass $status || [ $try -ge $FETCH_TRIES ]; then
            fetch_complain "$1: $(fetch_reason $status)"
            case $fetch_code in 404 | 410) return $FETCH_MISSING ;; *) return 1 ;; esac
        fi
        fetch_pause $try
        try=$((try + 1))
    done
}

# Sets fetch_url to URL or its place in the mirror. A redirect must not lead from https to http,
# where anybody in between can answer.
fetch_locate() { # URL
    fetch_url=$1
    if [ -n "${MANTISSA_MIRROR:-}" ]; then fetch_url=${MANTISSA_MIRROR%/}/${1#*://*/}; fi
    case $fetch_url in
    https://*) fetch_redirects='=https' ;;
    *) fetch_redirects='=http,https' ;;
    esac
}

# ---- the public functions

# Fetches a small file that is not kept, without a line about it.
fetch_quietly() { # URL FILE
    fetch_locate "$1"
    fetch_size="" fetch_kind=""
    fetch_transfer "$fetch_url" "$2" $((1 << 26)) 2>"$fetch_scratch/complaint" || {
        local status=$?
        cat "$fetch_scratch/complaint" >&2
        return $status
    }
}

# Brings FILE up to date with URL; its folder is created. SHA256 is the expected hash, if known.
# Otherwise the server's announcement is used. A correct FILE is left alone. A wrong one is kept as
# FILE.wrong for inspection.
fetch() { # URL FILE [SHA256]
    local url file=$2 part=$2.part folder began
    fetch_locate "$1"
    url=$fetch_url folder=$(dirname "$file")
    fetch_pinned=${3:-} fetch_size="" fetch_hash=${3:-} fetch_kind=${3:+sha256}
    if [ -f "$file" ] && [ -n "$fetch_pinned" ] && fetch_agrees "$file"; then
        echo "$file: already there, $(fetch_proof)"
        return 0
    fi
    if ! mkdir -p "$folder" 2>/dev/null || [ ! -w "$folder" ]; then
        fetch_complain "$folder: cannot be written to; choose another folder"
        return 1
    fi
    fetch_lock "$folder"
    fetch_ask "$url" || return
    if [ -f "$file" ] && [ -n "$fetch_size" ] && fetch_agrees "$file"; then
        echo "$file: already there, $(fetch_proof)"
        return 0
    fi
    began=$(fetch_bytes "$part")
    if [ -n "$fetch_size" ] && [ "$began" -gt "$fetch_size" ]; then rm -f "$part" && began=0; fi
    if [ -n "$fetch_size" ]; then fetch_room "$folder" $((fetch_size - began)) || return; fi
    if [ -t 2 ]; then echo "$file: ${fetch_size:-unknown} bytes" >&2; fi
    fetch_transfer "$url" "$part" || return
    if ! fetch_agrees "$part" && [ "$began" -gt 0 ]; then
        echo "$file: not the file that it began as, so it is fetched from the start"
        rm -f "$part"
        fetch_transfer "$url" "$part" || return
    fi
    if ! fetch_agrees "$part"; then
        mv -f "$part" "$file.wrong" || return
        fetch_complain "$url: $fetch_fault; kept as $file.wrong to look at"
        return 1
    fi
    mv -f "$part" "$file" || return
    echo "$file: $(fetch_bytes "$file") bytes, $(fetch_proof)"
}
