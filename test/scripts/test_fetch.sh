#!/usr/bin/env bash
# Tests scripts/get_data.sh, get_model.sh and get_eval.sh against file_server.py on this machine, which
# serves faults on request; needs no other network. Skipped without python3 or curl.
set -euo pipefail
cd "$(dirname "$0")/../.."
if ! command -v python3 >/dev/null || ! command -v curl >/dev/null; then
    echo "skipped: the tests of scripts/get_*.sh, because there is no python3 or no curl here"
    exit 0
fi

# shellcheck source=test/scripts/cases.sh
. test/scripts/cases.sh
trap 'if [ -n "$server" ]; then kill "$server"; fi; rm -rf "$work"' EXIT
server="" logs+=("$work/served/log")
mkdir "$work/served" && cd "$work"
python3 "$root/test/scripts/file_server.py" served >port &
server=$!
wait_until test -s port
host=http://127.0.0.1:$(cat port)
unset MANTISSA_MIRROR http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
export MANTISSA_PAUSE=0 no_proxy='*'

# one.sh URL FILE [SHA256] fetches a single file.
printf '#!/usr/bin/env bash\nset -euo pipefail\n. %q\nfetch_begin\nfetch "$@"\n' \
    "$root/scripts/fetch.sh" >one.sh
head -c 200000 /dev/urandom >served/file
sha256=$(sha256sum <served/file | cut -d ' ' -f 1)

# ---- assertions

set_up() { : >"$work/served/log"; }
one() { # STATUS FAULTS [SHA256]: fetches served/file as ./file
    runs "$1" bash "$work/one.sh" "$host/$2/file" file "${@:3}"
}
asked() { # TIMES PATTERN: this many requests match
    local got
    got=$(grep -cE -- "$2" "$work/served/log") || true
    if [ "$got" != "$1" ]; then wrong "$got requests instead of $1 match: $2"; fi
}
holds() { # FILE ...: exactly these files exist
    local got
    got=$(find . -type f -printf '%P\n' | sort | tr '\n' ' ')
    if [ "$got" != "${*:+$* }" ]; then wrong "the folder holds $got instead of $*"; fi
}
is_whole() { # [FILE [SERVED]]
    if ! cmp -s "${1:-file}" "$work/served/${2:-file}"; then wrong "${1:-file} has other bytes"; fi
}

# ---- successful downloads

while IFS='|' read -r name faults text; do
    test_case "$name"
    one 0 "$faults" && is_whole && holds file && says "$text"
done <<'CASES'
whole|ranges|200000 bytes, checked by its size only
a SHA-256 announced on the way to another place|ranges,etag|SHA-256 as the server announces it
a git hash announced|ranges,gittag|git hash as the server announces it
a tag that is no hash of the content|ranges,othertag|checked by its size only
a server that does not answer HEAD|ranges,nohead|not checked
a hash announced, and HEAD refused where the bytes are|ranges,nohead,etag|as the server announces it
CASES

test_case "a known SHA-256, and one request"
one 0 ranges "$sha256" && is_whole && says "SHA-256 as known beforehand" && asked 1 '^GET'

test_case "a server that is busy at first"
one 0 busy:3,ranges && is_whole && asked 4 '^HEAD'

# ---- the connection breaks

test_case "goes on after each cut"
one 0 ranges,cut:70000,etag && is_whole && holds file
asked 1 'GET .*/file bytes=70000-' && asked 1 'GET .*/file bytes=140000-'

while IFS='|' read -r name bytes faults times pattern; do
    test_case "$name"
    { head -c "$bytes" "$work/served/file" && head -c $((bytes > 200000 ? 5 : 0)) /dev/zero; } >file.part
    one 0 "$faults" && is_whole && holds file && asked "$times" "$pattern"
done <<'CASES'
goes on from a part of an earlier call|150000|ranges,etag|1|GET .* bytes=150000-
a part that lacks nothing|200000|ranges|0|^GET
a part that is too long|200001|ranges|1|^GET
a server without ranges starts over|150000|etag|1|GET .* -$
CASES

test_case "a part of another file"
head -c 150000 /dev/zero >file.part
one 0 ranges,etag && is_whole && holds file && says "fetched from the start"

test_case "a server without ranges that always breaks"
one 1 cut:70000 && holds file.part && says "in the middle of a file"

test_case "a connection that brings nothing"
one 1 ranges,cut:0 && says "the connection breaks" && asked 5 '^GET'

# ---- failed downloads

test_case "a wrong checksum"
one 1 ranges,wrong "$sha256" && holds file.wrong && says "instead of $sha256" && says "file.wrong"

test_case "wrong bytes where a hash is announced"
one 1 ranges,wrong,etag && holds file.wrong && says "its SHA-256 is"

test_case "wrong bytes from another host, which announces their hash"
one 1 ranges,etag,forged && holds file.wrong && says "instead of $sha256"

test_case "more bytes than announced"
one 1 endless && holds file.wrong && says "instead of 200000"
if [ "$(wc -c <file.wrong)" -gt 210000 ]; then wrong "all of them are received"; fi
one 1 endless,etag && says "instead of 200000"

test_case "an empty file"
one 1 ranges,empty && says "it is empty" && holds file.wrong

test_case "a size that no shell can compare"
one 1 ranges,linkedsize:99999999999999999999999 && holds
says "announces 99999999999999999999999 bytes" && asked 0 '^GET'
one 1 ranges,linkedsize:199999 && holds file.wrong && says "200000 bytes instead of 199999"

test_case "redirects from https stay with https"
mkdir bin && printf '#!/bin/sh\necho "$*" >>arguments\nexit 60\n' >bin/curl && chmod +x bin/curl
runs 1 env PATH="$PWD/bin:$PATH" bash "$work/one.sh" https://127.0.0.1/file file
if ! grep -q -- "--proto-redir =https " arguments; then wrong "$(cat arguments)"; fi

for faults in ranges nohead; do
    test_case "a missing file, of a server with $faults"
    runs 3 bash "$work/one.sh" "$host/$faults/nothing" file && says "HTTP 404" && holds
    if [ $faults = ranges ]; then asked 1 .; fi
done

test_case "a server that stays busy"
one 1 busy:99,ranges && says "HTTP 503" && holds && asked 5 .

for where in 127.0.0.1:9 host.invalid; do
    test_case "no server at $where"
    runs 1 bash "$work/one.sh" "http://$where/file" file && says "is there a network" && holds
done

# ---- files that exist

test_case "already there, by a known SHA-256: no request"
cp "$work/served/file" file
one 0 ranges "$sha256" && says "already there" && asked 0 .

test_case "already there, by the server's word"
cp "$work/served/file" file
one 0 ranges,etag && says "already there" && asked 0 '^GET'

# ---- no space

test_case "a folder that cannot be"
runs 1 bash "$work/one.sh" "$host/ranges/file" /proc/nothing/file && says "cannot be written to"

test_case "a folder that cannot be written to"
if [ "$(id -u)" -ne 0 ]; then
    mkdir closed && chmod 555 closed
    runs 1 bash "$work/one.sh" "$host/ranges/file" closed/file && says "cannot be written to"
    chmod 755 closed
fi

test_case "a limit on the size of files"
runs 1 bash -c "ulimit -f 100; exec bash '$work/one.sh' '$host/ranges/file' file"
says "cannot be written" && holds file.part
one 0 ranges && is_whole && holds file

# small KIB COMMAND ...: runs in a namespace where ./small is a file system of that size.
small() {
    mkdir small
    # shellcheck disable=SC2016 # the shell in the namespace expands it
    unshare --user --map-root-user --mount bash -c \
        'mount -t tmpfs -o size="$0"k none small && "$@"' "$@"
}
if (small 64 true) 2>/dev/null; then
    test_case "less space than the file needs"
    runs 1 small 64 bash "$work/one.sh" "$host/ranges/file" small/file
    says "195 KiB are needed, and 64 KiB are free" && asked 0 '^GET'

    test_case "a disk that fills up"
    runs 1 small 64 bash "$work/one.sh" "$host/ranges,nohead/file" small/file
    says "is the disk full"
else
    echo "skipped: a full disk, because there are no namespaces for users here"
fi

# ---- stopped and resumed

stop_test() { # SIGNAL STATUS PREFIX
    stops "$1" "$2" "$3" file.part bash "$work/one.sh" "$host/ranges,stall:90000/file" file
    says "goes on from here" && holds file.part
    one 0 ranges,stall:90000 && is_whole && holds file && asked 1 'GET .* bytes=[1-9]'
}
test_case "Ctrl-C, which every process of the group gets"
stop_test INT 130 -
test_case "SIGTERM to the script alone"
stop_test TERM 143 ""

if command -v flock >/dev/null; then
    test_case "two downloads into one folder"
    bash "$work/one.sh" "$host/ranges,stall:90000/file" file >/dev/null 2>&1 &
    first=$!
    wait_until test -s file.part
    { wait_until grep -q waiting "$work/said" && kill "$first"; } &
    one 0 ranges && says "waiting for another download into ." && is_whole && holds file
    wait "$first" $! || true
fi

# ---- the programs

get_data=$root/scripts/get_data.sh get_model=$root/scripts/get_model.sh
get_eval=$root/scripts/get_eval.sh
stories=served/datasets/roneneldan/TinyStories/resolve/main
fineweb=served/datasets/karpathy/fineweb-edu-100B-gpt2-token-shards/resolve/main
shakespeare=served/karpathy/char-rnn/master/data/tinyshakespeare
cd "$work" && mkdir -p "$stories" "$fineweb" "$shakespeare"
echo valid >$stories/TinyStoriesV2-GPT4-valid.txt
echo train >$stories/TinyStoriesV2-GPT4-train.txt
for shard in val_000000 train_000001 train_000002 train_000003; do
    echo $shard >$fineweb/edu_fineweb_$shard.bin
done
echo "To be, or not" >$shakespeare/input.txt
export MANTISSA_MIRROR=$host/ranges,etag

test_case "get_data.sh tinystories and shards of fineweb-edu"
runs 0 "$get_data" tinystories fineweb-edu --shards 2 --out "a b"
holds "a b/fineweb-edu/edu_fineweb_train_000001.bin" \
    "a b/fineweb-edu/edu_fineweb_train_000002.bin" "a b/fineweb-edu/edu_fineweb_val_000000.bin" \
    "a b/tinystories/TinyStoriesV2-GPT4-train.txt" "a b/tinystories/TinyStoriesV2-GPT4-valid.txt"
shard=edu_fineweb_train_000002.bin
is_whole "a b/fineweb-edu/$shard" "${fineweb#*/}/$shard"

test_case "get_data.sh prints commands that are safe to copy"
runs 0 "$get_data" fineweb-edu tinystories --out "it's \$(false)"
says "--set 'data.train=it'\\''s \$(false)/fineweb-edu/edu_fineweb_train_*.bin'"
says "./prepare --tokenizer 'it'\\''s \$(false)/gpt2' --val-fraction 0"

test_case "get_data.sh knows tinyshakespeare"
runs 1 "$get_data" tinyshakespeare && holds datasets/tinyshakespeare/input.txt.wrong
says "instead of 86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"

test_case "get_data.sh stops at what is not there"
runs 1 "$get_data" fineweb-edu --shards 4 tinystories && says "train_000004.bin: the server does"
holds datasets/fineweb-edu/edu_fineweb_train_00000{1,2,3}.bin \
    datasets/fineweb-edu/edu_fineweb_val_000000.bin

test_case "wrong usage"
for wrong_usage in "" nothing "tinystories --shards 0" "tinystories --shards 1001" \
    "tinystories --shards x" "tinystories --out" "tinystories --shards"; do
    # shellcheck disable=SC2086
    runs 2 "$get_data" $wrong_usage
done
for wrong_usage in "" gpt2 a/b/c "a/b c d" "../b --x" "a/b --revision" "a/b --revision ?"; do
    # shellcheck disable=SC2086
    runs 2 "$get_model" $wrong_usage
done
for wrong_usage in "" piqa "arc --out"; do
    # shellcheck disable=SC2086
    runs 2 "$get_eval" $wrong_usage
done
asked 0 . && holds

test_case "help fits a terminal"
for program in "$get_data" "$get_model" "$get_eval"; do
    runs 0 "$program" --help && says MANTISSA_MIRROR
    fits 80
done

# A model as the Hub has it: a list of files and a commit, under which the files are.
hub_has() { # ORG/NAME FILE ...: replaces the model
    local commit=0123456789abcdef0123456789abcdef01234567 names="" file
    rm -rf "$work/served/$1" && mkdir -p "$work/served/$1/resolve/$commit" \
        "$work/served/api/models/$1/revision"
    for file in "${@:2}"; do
        names+=${names:+, }'{"rfilename": "'$file'"}'
        echo "this is $file" >"$work/served/$1/resolve/$commit/$file"
    done
    echo '{"id": "'"$1"'", "sha": "'$commit'", "siblings": ['"$names"']}' \
        >"$work/served/api/models/$1/revision/main"
    hub=$1/resolve/$commit
}
unset MANTISSA_MIRROR
export HF_ENDPOINT=$host/ranges,etag
whole=(datasets/gpt/{config.json,generation_config.json,merges.txt,model.safetensors,tokenizer.json}
    datasets/gpt/{tokenizer_config.json,vocab.json})
small=(config.json generation_config.json merges.txt tokenizer.json tokenizer_config.json vocab.json)
cd "$work" && hub_has some/gpt "${small[@]}" model.safetensors pytorch_model.bin README.md tf_model.h5

test_case "get_model.sh"
runs 0 "$get_model" some/gpt && holds "${whole[@]}"
says "--from datasets/gpt" && says "./prepare --tokenizer datasets/gpt"
is_whole datasets/gpt/model.safetensors "$hub/model.safetensors"
: >"$work/served/log"
runs 0 "$get_model" some/gpt && says "already there" && asked 1 '^GET'

test_case "get_model.sh --tokenizer, into a folder"
runs 0 "$get_model" --tokenizer some/gpt "a b" && holds "${small[@]/#/a b/}"

test_case "get_model.sh goes on after an interruption"
head -c 200000 /dev/urandom >"$work/served/$hub/model.safetensors"
HF_ENDPOINT=$host/ranges,etag,stall:90000 stops INT 130 - datasets/gpt/model.safetensors.part \
    "$get_model" some/gpt
runs 0 "$get_model" some/gpt && is_whole datasets/gpt/model.safetensors "$hub/model.safetensors"

hub_has some/big config.json tokenizer.json model.safetensors.index.json \
    model-00001-of-00002.safetensors model-00002-of-00002.safetensors
index=$work/served/$hub/model.safetensors.index.json
cat >"$index" <<'INDEX'
{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors",
                "c": "model-00001-of-00002.safetensors"}}
INDEX
test_case "get_model.sh and shards"
runs 0 "$get_model" some/big x && holds x/config.json x/model-0000{1,2}-of-00002.safetensors \
    x/model.safetensors.index.json x/tokenizer.json
rm "$work/served/$hub/model-00002-of-00002.safetensors"
test_case "get_model.sh and a shard that is not there"
runs 1 "$get_model" some/big x && says "model-00002-of-00002.safetensors: the server does not"
test_case "get_model.sh and shards outside of the folder"
for shard in ../../d /etc/d sub/d 'a b' 'a[2J'; do
    printf '{"weight_map": {"a": "model-00001-of-00002.safetensors", "d": "%b.safetensors"}}\n' \
        "$shard" >"$index"
    runs 1 "$get_model" some/big x-outside && says "its index names" && says "no plain file name"
    if LC_ALL=C grep -q '[^ -~]' "$work/said"; then wrong "control characters"; fi
done
says "a?[2J.safetensors" && holds x-outside/config.json \
    x-outside/model.safetensors.index.json x-outside/tokenizer.json

test_case "get_model.sh and other models"
hub_has some/old config.json pytorch_model.bin
runs 1 "$get_model" some/old && says "has no weights in safetensors" && holds
hub_has some/spm config.json model.safetensors tokenizer.model
runs 0 "$get_model" some/spm x && says "in a format that is not read"
hub_has some/lora adapter_config.json adapter_model.safetensors README.md
echo '{"base_model_name_or_path": "some/gpt", "r": 8}' >"$work/served/$hub/adapter_config.json"
runs 0 "$get_model" some/lora y && says "adapter.init_from=y"
says "scripts/get_model.sh some/gpt" && says "--set model.init_from=datasets/gpt"
holds x/config.json x/model.safetensors y/adapter_config.json y/adapter_model.safetensors
runs 1 "$get_model" some/nothing && says "HTTP 404"

test_case "get_model.sh prints commands that are safe to copy"
while IFS= read -r base; do
    printf '{"base_model_name_or_path": "%s"}\n' "$base" >"$work/served/$hub/adapter_config.json"
    runs 0 "$get_model" some/lora "a b\$(false)"
    says "scripts/get_model.sh ORG/BASE " && says "--set model.init_from=datasets/BASE"
    says "--set adapter.init_from='a b\$(false)'"
    if LC_ALL=C grep -q '[^ -~]' "$work/said"; then wrong "control characters"; fi
done <<'BASES'
some/gpt; touch pwned
some/`touch pwned`
$(touch pwned)/gpt
--revision/x
some/..
some/gpt pwned
../gpt
/home/me/gpt
BASES
printf '{"base_model_name_or_path": "some/\033[2J\nx"}\n' >"$work/served/$hub/adapter_config.json"
runs 0 "$get_model" some/lora z && says "ORG/BASE"
if LC_ALL=C grep -q '[^ -~]' "$work/said"; then wrong "control characters"; fi

test_case "get_model.sh when nothing is to be had"
for list in '<html>please log in</html>' '{"error": "no"}' '{"sha": "0", "siblings": []}'; do
    echo "$list" >"$work/served/api/models/some/lora/revision/main"
    runs 1 "$get_model" some/lora x --tokenizer && says "lists no files"
    runs 1 "$get_model" some/lora x && says "lists no files" && holds
done
hub_has some/spm config.json model.safetensors tokenizer.model
runs 1 "$get_model" some/spm x --tokenizer && says "has no tokenizer" && holds
hub_has some/big config.json tokenizer.json model.safetensors.index.json
runs 1 "$get_model" some/big x && says "names no weights"

test_case "get_model.sh and terms that must be accepted"
hub_has some/gated config.json tokenizer.json model.safetensors
runs 1 env HF_ENDPOINT="$host/ranges,etag,token" "$get_model" some/gated
says "terms must be accepted at" && says "HF_TOKEN" && holds
runs 0 env HF_TOKEN=secret HF_ENDPOINT="$host/ranges,etag,token" "$get_model" some/gated x
holds x/config.json x/model.safetensors x/tokenizer.json
asked 1 'GET .*/model.safetensors - with a token'

test_case "HF_TOKEN goes to the Hub alone"
export HF_TOKEN=secret
runs 0 env -u HF_ENDPOINT MANTISSA_MIRROR="$host/ranges" "$get_model" some/gated x
says "HF_TOKEN is not sent to $host" && asked 0 'with a token' && asked 3 '^GET .*/resolve/'
# shellcheck disable=SC2016 # the stand-in for curl expands it
mkdir bin && printf '#!/bin/sh\necho "$*" >>arguments\nexit 60\n' >bin/curl && chmod +x bin/curl
for hub in http://hub.invalid http://127.0.0.1.hub.invalid http://localhost.invalid:80/x \
    http://127.0.0.1@hub.invalid; do
    runs 1 env HF_ENDPOINT=$hub PATH="$PWD/bin:$PATH" "$get_model" some/gated y
    says "HF_TOKEN is not sent to $hub"
done
if grep -q -e "--header" arguments; then wrong "$(cat arguments)"; fi
for hub in https://hub.invalid "" http://localhost:80 'http://[::1]'; do
    : >arguments
    runs 1 env HF_ENDPOINT="$hub" PATH="$PWD/bin:$PATH" "$get_model" some/gated y
    if ! grep -q -e "--header @" arguments; then wrong "no token for $hub"; fi
done
unset HF_ENDPOINT HF_TOKEN
export MANTISSA_MIRROR=$host/ranges,etag

# A copy of get_eval.sh accepts a HellaSwag and an archive of ARC made here.
hellaswag=served/rowanz/hellaswag/master/data arc=served/arc
cd "$work" && mkdir -p $hellaswag $arc copy
cp "$root/scripts/fetch.sh" copy/
echo '{"ctx_a": "a", "activity_label": "b", "endings": ["c", "d"], "label": 1}' \
    >$hellaswag/hellaswag_val.jsonl
python3 - $arc/ARC-V1-Feb2018.zip <<'PYTHON'
import sys, zipfile
choices = '"choices": [{"text": "x", "label": "A"}, {"text": "y", "label": "B"}]'
with zipfile.ZipFile(sys.argv[1], "w") as archive:
    for part in ("Easy", "Challenge"):
        for split in ("Dev", "Test"):
            row = f'{{"question": {{"stem": "{part} {split}", {choices}}}, "answerKey": "B"}}\n'
            archive.writestr(f"ARC-V1-Feb2018-2/ARC-{part}/ARC-{part}-{split}.jsonl", row)
PYTHON
sed -e "s/^HELLASWAG_SHA256=.*/HELLASWAG_SHA256=$(sha256sum <$hellaswag/hellaswag_val.jsonl | cut -d ' ' -f 1)/" \
    -e "s/^ARC_SHA256=.*/ARC_SHA256=$(sha256sum <$arc/ARC-V1-Feb2018.zip | cut -d ' ' -f 1)/" \
    "$get_eval" >copy/get_eval.sh
cp "$root/scripts/questions.py" copy/

test_case "get_eval.sh"
if command -v unzip >/dev/null; then
    runs 0 bash "$work/copy/get_eval.sh" hellaswag arc --out "a b"
    holds "a b/arc_challenge.jsonl" "a b/arc_easy.jsonl" "a b/hellaswag.jsonl"
    if ! grep -q '"Question: Challenge Test\\nAnswer:"' "a b/arc_challenge.jsonl"; then
        wrong "another file of ARC"
    fi
    : >"$work/served/log"
    runs 0 bash "$work/copy/get_eval.sh" hellaswag arc --out "a b" && asked 0 .
fi

test_case "get_eval.sh knows HellaSwag"
runs 1 "$get_eval" hellaswag && holds datasets/eval/hellaswag_val.jsonl.wrong
says "instead of 0aa3b88843990f3f10a97b9575c94d7b71fb2205240ba04ae4884d9e9c992588"

finish "scripts/get_*.sh"
