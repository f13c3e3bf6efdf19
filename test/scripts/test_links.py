#!/usr/bin/env python3
"""Checks the links in our Markdown. Prints file:line of each broken link: a relative link must name a
committed file or folder, and an #anchor one of its headings, by GitHub's rule; a web link must be
well formed, and nothing is fetched. Each module in the plan of scripts/check_layers.sh must have a
README.md. Before that, faults planted in a small sample must be found.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILT = (".git/", "build/", "runs/", "datasets/")


def project_files(root):
    """Files of git and new ones; without git or where it refuses, all that were not built."""
    names = [path.relative_to(root).as_posix() for path in root.rglob("*")]
    if (root / ".git").exists() and shutil.which("git"):
        listed = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others",
                                 "--exclude-standard"], capture_output=True, text=True, check=False)
        names = listed.stdout.split("\0")[:-1] if listed.returncode == 0 else names
    return sorted(name for name in names if (root / name).is_file() and not name.startswith(BUILT))


def prose_of(path):
    """Numbers and texts of the lines that are no code."""
    fenced = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if re.match(r" *```", line):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            yield number, line


def anchors_of(path):
    """Lower case, no punctuation but - and _, hyphens for spaces; a second one of a name gets -1."""
    seen = {}
    for _, line in prose_of(path):
        heading = re.match(r"#+ +(.*)", line)
        if heading:
            text = re.sub(r"\]\([^()]*\)", "", heading[1]).lower()
            anchor = "".join(c for c in text if c.isalnum() or c in " _-").replace(" ", "-")
            seen[anchor] = seen.get(anchor, -1) + 1
            yield anchor + (f"-{seen[anchor]}" if seen[anchor] else "")


def fault_of(target, file, entries, anchors):
    """What is wrong with a link in a file; "" if nothing is."""
    if re.fullmatch(r"https?://[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+([/?#][!-~]*)?", target):
        return ""
    if re.match(r"$|/|[A-Za-z][A-Za-z0-9+.-]*:", target):
        return f"({target}) is neither a relative path nor an address of the web"
    path, _, anchor = target.partition("#")
    full = os.path.normpath(os.path.join(os.path.dirname(file), path)) if path else file
    if full.startswith(".."):
        return f"{target} leads out of the project"
    if full not in entries or path.endswith("/") and not entries[full]:
        return f"{target} is not there"
    if "#" in target and anchor not in anchors.get(full, ()):
        return f"{target}: no heading of {full} has that anchor"
    return ""


def check(root):
    """The faults of a project, and the number of its links."""
    files = project_files(root)
    entries = {name: False for name in files}  # True: a folder
    for name in files:
        entries.update({parent.as_posix(): True for parent in pathlib.PurePath(name).parents})
    markdown = [name for name in files if name.endswith(".md")]
    anchors = {name: set(anchors_of(root / name)) for name in markdown}
    faults, count = [], 0
    for name in markdown:
        for number, line in prose_of(root / name):
            line = re.sub(r"`[^`]*`", "x", line)
            found = [fault_of(target, name, entries, anchors)
                     for target in re.findall(r"\]\(([^)]*)\)", line)]
            count += len(found)
            if re.search(r"\]\([^)]*$|\]\[|^\[[^]]*\]:", line):
                found.append("write [text](target), on one line from ] on")
            faults += [f"{name}:{number}: {fault}" for fault in found if fault]
    plan = re.search(r"^plan='\n(.*?)^'", (root / "scripts/check_layers.sh").read_text(), re.M | re.S)
    modules = [line.split()[0] for line in plan[1].splitlines() if line] if plan else []
    faults += [f"{module}/README.md: is missing, though {module}/ is a module of check_layers.sh"
               for module in modules if module != "." and f"{module}/README.md" not in files]
    return faults, count


SAMPLE = """# The `sample`, of 1_2 things!

[A module](a/README.md), [its part](a/b/README.md#two-words-and-code), [a folder](a), [a/](a/b/../)
and [of the web](https://example.org/x?z#w), [here](#the-sample-of-1_2-things), [`code`](#two-1). No
link: `[x](nowhere)`, [x] (nowhere).

    [in code](nowhere)

```sh
[x](nowhere)
```

## Two
## Two
"""
PLANTED = {
    "[x](nowhere.md)": "nowhere.md is not there",
    "![x](../readme.md)": "../readme.md is not there",
    "[x](../README.md/)": "../README.md/ is not there",
    "[x](../../build/made.md)": "../../build/made.md is not there",
    "[x](../../../sample)": "../../../sample leads out of the project",
    "[x](/a/README.md)": "(/a/README.md) is neither",
    "[x](https://example..org)": "(https://example..org) is neither",
    "[x]()": "() is neither",
    "[x](../README.md": "write [text](target), on one line",
    "[x][nobody]": "write [text](target), on one line",
    "[x](#three)": "#three: no heading of a/b/README.md has that anchor",
    "[x](../../README.md#two-2)": "../../README.md#two-2: no heading",
    "| a | [row](nowhere.md) |": "nowhere.md is not there",
    "- a [list](../README.md) or [that](nowhere.md)": "nowhere.md is not there",
}


def check_sample(root):
    """Faults are found where they were planted, and nothing else is."""
    texts = {"README.md": SAMPLE, "a/README.md": "# Module\n\n## Two words\n", "build/made.md": "",
             "a/b/README.md": "## [Two](../README.md) words, and `code`\n",
             "scripts/check_layers.sh": "plan='\na\na/b          a\n.            a a/b\n'\n"}
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    assert check(root) == ([], 8), check(root)
    part = root / "a/b/README.md"
    for line, fault in PLANTED.items():
        part.write_text(texts["a/b/README.md"] + "\n" + line + "\n")
        faults, _ = check(root)
        assert len(faults) == 1 and faults[0].startswith("a/b/README.md:3: " + fault), (line, faults)
    part.unlink()
    faults, _ = check(root)
    assert "a/b/README.md: is missing, though a/b/ is a module of check_layers.sh" in faults, faults


def main():
    with tempfile.TemporaryDirectory() as folder:
        check_sample(pathlib.Path(folder))
    faults, count = check(ROOT)
    print(*faults or [f"links: {count} in Markdown, {len(PLANTED)} planted faults found"], sep="\n")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
