# Follows the inline links and images of Markdown files, for test_links.sh. Reads the names of all
# files of the project; prints FILE:LINE: and the fault of each broken link. The last line is the
# number of links and of *.md files. Links in code are ignored, and reference links are faults.
#
# Two passes over the *.md: the first turns headings into anchors, the second follows links.

function say(words) { print file ":" number ": " words }

# Returns the anchor of a heading: lower case, no punctuation but - and _, hyphens for spaces; the
# second heading of the same name gets -1.
function slug(text,    anchor) {
    while (match(text, /\]\([^()]*\)/)) # keeps the text of a link
        text = substr(text, 1, RSTART) substr(text, RSTART + RLENGTH)
    anchor = tolower(text)
    gsub(/[^a-z0-9 _\200-\377-]/, "", anchor)
    gsub(/ /, "-", anchor)
    return headings[file, anchor]++ ? anchor "-" (headings[file, anchor] - 1) : anchor
}

# Makes a path from the folder of this file relative to the project: "." is the project's folder, ""
# a path outside of it.
function resolve(path) {
    if (match(file, /.*\//)) path = substr(file, 1, RLENGTH) path
    path = "/" path "/"
    gsub(/\/(\.?\/)+/, "/", path)
    while (match(path, /\/[^\/]+\/\.\.\//) && substr(path, RSTART, 4) != "/../")
        path = substr(path, 1, RSTART) substr(path, RSTART + RLENGTH)
    if (path ~ /^\/\.\.\//) return ""
    return path == "/" ? "." : substr(path, 2, length(path) - 2)
}

function follow(target,    path, anchor, full) {
    links++
    if (target ~ /^https?:\/\/[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+([\/?#][!-~]*)?$/) return
    if (target == "" || target ~ /^\// || target ~ /^[A-Za-z][A-Za-z0-9+.-]*:/) {
        say("(" target ") is neither a relative path nor an address of the web")
        return
    }
    path = target
    sub(/#.*/, "", path)
    full = path == "" ? file : resolve(path)
    if (full == "") say(target " leads out of the project")
    else if (!(full in files && path !~ /\/$/) && !(full in folders)) say(target " is not there")
    else if (target ~ /#/) {
        anchor = target
        sub(/^[^#]*#/, "", anchor)
        if (!((full, anchor) in anchors)) say(target ": no heading of " full " has that anchor")
    }
}

function read_markdown(    line, fence, target) {
    number = 0
    while ((getline line < file) > 0) {
        number++
        if (line ~ /^ *```/) fence = !fence
        if (fence || line ~ /^ *```|^    /) continue
        if (round == 1 && sub(/^#+ +/, "", line)) anchors[file, slug(line)] = 1
        if (round == 1) continue
        gsub(/`[^`]*`/, "x", line)
        if (line ~ /\]\([^)]*$|\]\[|^\[[^]]*\]:/) say("write [text](target), on one line from ] on")
        while (match(line, /\]\([^)]*\)/)) {
            target = substr(line, RSTART + 2, RLENGTH - 3)
            line = substr(line, RSTART + RLENGTH)
            follow(target)
        }
    }
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
