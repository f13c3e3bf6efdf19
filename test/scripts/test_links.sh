#!/usr/bin/env bash
# Checks the links in our Markdown. Reads every *.md of the project and prints file:line of each
# broken link. A relative link must name a committed file or folder, and an #anchor one of its
# headings, by GitHub's rule; a web link must be well formed, and nothing is fetched. Each module in
# the plan of scripts/check_layers.sh must have a README.md.
# Before that it plants faults in a small sample project, and tests that they are found.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=test/scripts/cases.sh
. test/scripts/cases.sh
sample=$work/sample

# Lists the files of the project in the current folder: those of git and new ones, or without git
# all that were not built.
project_files() {
    if [ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$(pwd -P)" ]; then
        git -c core.quotepath=off ls-files --cached --others --exclude-standard
    else
        find . -type f ! -path './.git/*' ! -path './build/*' ! -path './runs/*' \
            ! -path './datasets/*' | sed 's/^\.\///'
    fi | sort -u | while IFS= read -r file; do
        if [ -e "$file" ]; then printf '%s\n' "$file"; fi
    done
}

# Each module of scripts/check_layers.sh has a README.md.
check_modules() {
    local plan module
    plan=$(sed -n "/^plan='/,/^'/p" scripts/check_layers.sh | sed '1d;$d')
    [ -n "$plan" ] || echo "scripts/check_layers.sh: there is no plan in it"
    while read -r module _; do
        if [ -n "$module" ] && [ "$module" != . ] && [ ! -e "$module/README.md" ]; then
            echo "$module/README.md: is missing, though $module/ is a module of check_layers.sh"
        fi
    done <<<"$plan"
}

# check FOLDER: prints its faults, or the number of links. Exit status 1 if there are faults.
check() (
    cd "$1"
    found=$(project_files | LC_ALL=C awk -f "$root/test/scripts/links.awk")
    seen=${found##*$'\n'}
    wrong=${found%"$seen"}$(check_modules)
    printf '%s\n' "${wrong:-$seen}"
    [ -z "$wrong" ]
)

# ---- planted faults

build() { # creates a small project without faults, with links of every kind
    rm -rf "$sample"
    mkdir -p "$sample"/{a/b,build,scripts}
    printf '%s\n' "plan='" 'a' 'a/b          a' '.            a a/b' "'" \
        >"$sample/scripts/check_layers.sh"
    echo built >"$sample/build/made.md"
    touch "$sample/a/picture.png"
    cat >"$sample/README.md" <<'TEXT'
# The `sample`, of 1_2 things!

[A module](a/README.md), [its part](a/b/README.md#two-words-and-code), [a folder](a), [a/](a/b/../)
and ![a
picture](a/picture.png), [of the web](https://example.org/x?z#w), [here](#the-sample-of-1_2-things),
[`code`](#two-1), [![picture](a/picture.png)](a/README.md). No link: `[x](nowhere)`, [x] (nowhere).

    [in code](nowhere)

- a list
  of [more](a/README.md)

```sh
# No heading
[x](nowhere)
```

| a table | [`in a row`](a) |
|---|---|

## Two
## Two
TEXT
    printf '# Module\n\n## Two words\n' >"$sample/a/README.md"
    echo "## [Two](../README.md) words, and \`code\`" >"$sample/a/b/README.md"
}

expect() { # STATUS WORDS: expected result of the check on the sample
    tests=$((tests + 1)) name=$2
    runs "$1" check "$sample" && says "$2"
}

plant() { # TEXT WORDS: appends TEXT to a/b/README.md, the only faulty line
    build
    printf '\n%s\n' "$1" >>"$sample/a/b/README.md"
    expect 1 "a/b/README.md:$(wc -l <"$sample/a/b/README.md"): $2"
}

build
expect 0 "13 links in 3 files"
plant '[x](nowhere.md)' "nowhere.md is not there"
plant '![x](../picture.jpg)' "../picture.jpg is not there"
plant '[x](../readme.md)' "../readme.md is not there"
plant '[x](../README.md/)' "../README.md/ is not there"
plant '[x](../../build/made.md)' "../../build/made.md is not there"
plant '[x](../../../sample)' "../../../sample leads out of the project"
plant '[x](/a/README.md)' "(/a/README.md) is neither"
plant '[x](ftp://example.org)' "(ftp://example.org) is neither"
plant '[x](https:/example.org)' "(https:/example.org) is neither"
plant '[x](https://example..org)' "(https://example..org) is neither"
plant '[x]()' "() is neither"
plant '[x](../README.md' "write [text](target), on one line"
plant '[x][nobody]' "write [text](target), on one line"
plant '[somebody]: nowhere.md' "write [text](target), on one line"
plant '[x](#three)' "#three: no heading of a/b/README.md has that anchor"
plant '[x](../README.md#Two-words)' "../README.md#Two-words: no heading"
plant '[x](../../README.md#two-2)' "../../README.md#two-2: no heading"
plant '[x](../../README.md#no-heading)' "../../README.md#no-heading: no heading"
plant '[x](../picture.png#x)' "../picture.png#x: no heading"
plant '| a | [row](nowhere.md) |' "nowhere.md is not there"
plant '### [x](nowhere.md)' "nowhere.md is not there"
plant '- a [list](../README.md) or [that](nowhere.md)' "nowhere.md is not there"
build
rm "$sample/a/b/README.md"
expect 1 "a/b/README.md: is missing, though a/b/ is a module"
build
echo >"$sample/scripts/check_layers.sh"
expect 1 "scripts/check_layers.sh: there is no plan"

# ---- the project

name="the project" tests=$((tests + 1))
runs 0 check .
cat "$work/said"
finish test_links.sh
