#!/usr/bin/env bash
# Prints a man page generated from a program's --help.
#   scripts/man_page.sh PROGRAM NAME VERSION     NAME is train, prepare or compare
set -euo pipefail
[ $# -eq 3 ] || { echo "usage: scripts/man_page.sh PROGRAM NAME VERSION" >&2; exit 2; }
program=$1 name=$2 version=$3
case $name in
train) summary='train GPTs in 32, 16, 8 and 4 bit' ;;
prepare) summary='turn text into token shards for mantissa-train' ;;
compare) summary='how runs of mantissa-train differ' ;;
*) echo "man_page.sh: no program $name" >&2; exit 2 ;;
esac

printf '.TH MANTISSA-%s 1 "" "mantissa %s"\n' "${name^^}" "$version"
printf '.SH NAME\nmantissa-%s \\- %s\n.SH DESCRIPTION\n.nf\n.in 1n\n' "$name" "$summary"
# Keeps the text; a paragraph that begins with "Exit status:" or the like opens a section.
help() { (exec -a "mantissa-$name" "$program" "$@") && echo; }
{
    help --help
    if [ "$name" = train ]; then
        printf 'Flags of each command:\n\n'
        for command in $(help --help | awk '/^Other commands/ { lists = 1 } !NF { lists = 0 }
            lists && $1 ~ /^--/ { print substr($1, 3) }'); do help --help "$command"; done
        help --help-config
    fi
} | sed -e 's/\\/\\e/g' -e "s/^[.']/\\\\\&&/" \
    -e 's/-/\\-/g' -e "s/'/\\\\(aq/g" |
    awk '
        /^(Exit status|Environment|Flags of each command|Keys of a config file)[:.]/ {
            title = $0; rest = $0
            sub(/[:.].*/, "", title)
            sub(/^[^:.]*[:.] */, "", rest)
            print ".SH " toupper(title) "\n.nf\n.in 1n"
            if (rest != "") print toupper(substr(rest, 1, 1)) substr(rest, 2)
            next
        }
        { print }'
printf '.fi\n.SH SEE ALSO\n'
for other in train prepare compare; do
    if [ "$other" != "$name" ]; then printf '.BR mantissa\\-%s (1)\n' "$other"; fi
done
