# Follows the links of Markdown files, for test_links.sh. Reads the names of all files of the
# project; prints FILE:LINE: and the fault of each broken link. The last line is the number of links
# and of *.md files.
#
# Two passes over the *.md: the first turns headings into anchors, the second follows links.
# Supported are inline links and images, reference links ([text][name] and [name]: target),
# autolinks, and href="" and src="" of HTML; links in code are ignored.

function say(line, words) {
    print file ":" line ": " words
}

# Returns the length of the code span at the beginning of text, with its backticks: up to the same
# number of backticks, or only the opening ones if there are none.
function code_length(text,    ticks, at) {
    match(text, /^`+/)
    ticks = at = RLENGTH
    while (match(substr(text, at + 1), /`+/)) {
        at += RSTART + RLENGTH - 1
        if (RLENGTH == ticks) return at
    }
    return ticks
}

# Returns text with an x for each character that is code or escaped; line breaks stay.
function plain(text,    out, part, at) {
    while (match(text, /[`\\]/)) {
        at = RSTART
        out = out substr(text, 1, at - 1)
        text = substr(text, at)
        part = substr(text, 1, text ~ /^`/ ? code_length(text) : 2)
        text = substr(text, length(part) + 1)
        gsub(/[^\n]/, "x", part)
        out = out part
    }
    return out text
}

# Returns the anchor of a heading: lower case, no punctuation but - and _, hyphens for spaces; the
# second heading of the same name gets -1.
function slug(text,    name) {
    while (match(text, /\]\([^()]*\)/)) # keeps the text of a link
        text = substr(text, 1, RSTART) substr(text, RSTART + RLENGTH)
    name = tolower(text)
    gsub(/[^a-z0-9 _\200-\377-]/, "", name)
    gsub(/ /, "-", name)
    return headings[file, name]++ ? name "-" (headings[file, name] - 1) : name
}

# Makes a path from the folder of this file relative to the project: "." is the project's folder, ""
# a path outside of it.
function resolve(path,    parts, count, i, kept, depth, full) {
    if (match(file, /.*\//)) path = substr(file, 1, RLENGTH) path
    count = split(path, parts, "/")
    for (i = 1; i <= count; i++) {
        if (parts[i] == "" || parts[i] == ".") continue
        if (parts[i] != "..") kept[++depth] = parts[i]
        else if (--depth < 0) return ""
    }
    for (i = 1; i <= depth; i++) full = full (i > 1 ? "/" : "") kept[i]
    return depth ? full : "."
}

function follow(target, line,    path, anchor, full) {
    links++
    if (target ~ /^https?:/) {
        if (target !~ /^https?:\/\/[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*(:[0-9]+)?([\/?#][!-~]*)?$/)
            say(line, target " is no well-formed address")
        return
    }
    if (target == "" || target ~ /^\// || target ~ /^[A-Za-z][A-Za-z0-9+.-]*:/) {
        say(line, "(" target ") is neither a relative path nor an address of the web")
        return
    }
    path = target
    sub(/#.*/, "", path)
    full = path == "" ? file : resolve(path)
    if (full == "") say(line, target " leads out of the project")
    else if (!(full in files && path !~ /\/$/) && !(full in folders))
        say(line, target " is not there")
    else if (target ~ /#/) {
        anchor = target
        sub(/^[^#]*#/, "", anchor)
        if (full !~ /\.md$/) say(line, target ": only *.md have anchors")
        else if (!((full, anchor) in anchors))
            say(line, target ": no heading of " full " has that anchor")
    }
}

# Returns the length of the target in brackets: s begins after "(". Follows the link.
function inline_link(s, line,    rest, target) {
    match(s, /^[ \n]*/)
    rest = substr(s, RLENGTH + 1)
    if (match(rest, /^<[^<>\n]*>/)) target = substr(rest, 2, RLENGTH - 2)
    else {
        match(rest, /^([^() \n]|\([^() \n]*\))*/)
        target = substr(rest, 1, RLENGTH)
    }
    rest = substr(rest, RLENGTH + 1)
    if (match(rest, /^[ \n]*("[^"]*"[ \n]*)?\)/)) {
        follow(target, line + gsub(/\n/, "\n", s) - gsub(/\n/, "\n", rest))
        return length(s) - length(rest) + RLENGTH
    }
    say(line, "the link (" target " does not end")
    return 0
}

# All links of a paragraph, which begins in line `line`.
function paragraph(text, line,    s, found, open, skip) {
    s = plain(text)
    while (match(s, /\n|[][]|(href|src)="[^"]*"|https?:[^] \n<>()"]*|<[a-z]+:[^ <>\n]*>/)) {
        found = substr(s, RSTART, RLENGTH)
        s = substr(s, RSTART + RLENGTH)
        skip = 0
        if (found == "\n") line++
        else if (found == "[") open++
        else if (found == "]") {
            if (open > 0 && s ~ /^\(/) skip = 1 + inline_link(substr(s, 2), line)
            else if (open > 0 && match(s, /^\[[^]]*\]/)) {
                skip = RLENGTH
                links++
                if (!((file, tolower(substr(s, 2, skip - 2))) in names))
                    say(line, substr(s, 1, skip) " is defined nowhere")
            }
            if (open > 0) open--
        } else if (found ~ /^</) follow(substr(found, 2, length(found) - 2), line)
        else if (sub(/^(href|src)="/, "", found)) follow(substr(found, 1, length(found) - 1), line)
        else {
            sub(/[.,;:!?]+$/, "", found)
            follow(found, line)
        }
        line += gsub(/\n/, "\n", found) * (found != "\n")
        found = substr(s, 1, skip)
        line += gsub(/\n/, "\n", found)
        s = substr(s, skip + 1)
    }
}

function flush() {
    if (round == 2 && text != "") paragraph(text, first)
    text = ""
}

function heading(line) {
    flush()
    if (round == 2) {
        paragraph(line, number)
        return
    }
    sub(/^ *#+ +/, "", line)
    sub(/( +#+)? *$/, "", line)
    anchors[file, slug(line)] = 1
}

# [name]: target
function definition(line,    name) {
    flush()
    name = tolower(line)
    gsub(/^ *\[|\].*/, "", name)
    names[file, name] = 1
    sub(/^ *\[[^]]*\]: */, "", line)
    gsub(/^<|>.*| .*/, "", line)
    if (round == 2) follow(line, number)
}

function read_markdown(    line, indent, fence, blank, code, list, comment) {
    number = 0
    blank = 1
    while ((getline line < file) > 0) {
        number++
        sub(/\r$/, "", line)
        if (comment) { # <!-- from an earlier line
            if (!sub(/^.*-->/, "", line)) continue
            comment = 0
        }
        match(line, /^ */)
        indent = RLENGTH
        if (fence != "") {
            if (substr(line, indent + 1) ~ "^" fence "+ *$") fence = ""
            continue
        }
        if (line ~ /^ *$/) {
            flush()
            blank = 1
            continue
        }
        # Lines indented like the text of a list belong to it, four more are code.
        if (blank && indent < list) list = 0
        if ((blank || code) && indent - list >= 4) {
            code = 1
            blank = 0
            continue
        }
        code = blank = 0
        if (match(substr(line, indent + 1), /^(```+|~~~+)/)) {
            flush()
            fence = substr(line, indent + 1, RLENGTH)
            continue
        }
        gsub(/<!--([^-]|-[^-])*-->/, "", line)
        if (sub(/<!--.*/, "", line)) comment = 1
        if (match(line, /^ *([-*+]|[0-9]+[.)]) +/)) {
            flush()
            list = RLENGTH
        }
        if (line ~ /^ ? ? ?##?#?#?#?#? /) heading(line)
        else if (line ~ /^ ? ? ?\[[^]]+\]: *[^ ]/) definition(line)
        else if (line ~ /^ *\|/) { # a row of a table
            flush()
            if (round == 2) paragraph(line, number)
        } else {
            if (text == "") first = number
            text = text (text == "" ? "" : "\n") line
        }
    }
    flush()
    close(file)
}

{
    files[$0] = 1
    if (/\.md$/) markdown[++count] = $0
    for (folder = $0; sub(/\/[^\/]*$/, "", folder);) folders[folder] = 1
    folders["."] = 1
}
END {
    for (round = 1; round <= 2; round++)
        for (i = 1; i <= count; i++) {
            file = markdown[i]
            read_markdown()
        }
    print links + 0 " links in " count + 0 " files"
}
