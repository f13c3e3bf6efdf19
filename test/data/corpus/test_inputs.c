#include "data/corpus/inputs.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <stb/stb_ds.h>

#include "test/scratch.h"

static void enter_folder(void) {
    make_folder();
    cr_assert_eq(chdir(folder), 0);
}

TestSuite(inputs, .init = enter_folder, .fini = remove_folder);

static void put(const char *name, size_t size) {
    FILE *file = fopen(name, "w");
    cr_assert_not_null(file, "%s", name);
    while (size-- > 0) fputc('x', file);
    fclose(file);
}

/* The inputs as "name name*": * marks JSON Lines. */
static const char *listed(const struct inputs *inputs) {
    static char text[4000];
    text[0] = '\0';
    for (size_t i = 0; i < arrlenu(inputs->list); i++)
        sprintf(text + strlen(text), "%s%s%s", i ? " " : "", inputs->list[i].name,
                inputs->list[i].is_jsonl ? "*" : "");
    return text;
}

#define OPEN(inputs, ...)                        \
    inputs_open(inputs, (char *[]){__VA_ARGS__}, \
                (int)(sizeof((char *[]){__VA_ARGS__}) / sizeof(char *)), false, &error)

static void expect_refusal(char *name, const char *what, const char *remedy) {
    struct inputs inputs;
    error.text[0] = '\0';
    cr_expect_eq(OPEN(&inputs, name), -1, "%s", name);
    cr_expect_not_null(strstr(error.text, what), "%s", error.text);
    cr_expect_not_null(strstr(error.text, remedy), "%s", error.text);
    inputs_close(&inputs);
}

Test(inputs, files_keep_their_order_and_any_name) {
    struct inputs inputs;
    put("b.log", 10);
    put("a.JSONL", 5);
    put("x[1]*.txt", 1);
    put(".hidden", 2);
    cr_assert_eq(OPEN(&inputs, "b.log", "a.JSONL", "x[1]*.txt", ".hidden", "b.log"), 0, "%s",
                 error.text);
    cr_assert_str_eq(listed(&inputs), "b.log a.JSONL* x[1]*.txt .hidden b.log");
    cr_assert(inputs.bytes_known);
    cr_assert_eq(inputs.bytes, 28);
    cr_assert_eq(inputs.skipped, 0);
    inputs_close(&inputs);
    inputs_close(&inputs);
}

Test(inputs, all_can_be_json_lines) {
    struct inputs inputs;
    put("rows", 3);
    char *names[] = {"rows", "-"};
    cr_assert_eq(inputs_open(&inputs, names, 2, true, &error), 0);
    cr_assert_str_eq(listed(&inputs), "rows* -*");
    inputs_close(&inputs);
}

Test(inputs, folders_give_text_files_sorted_by_name) {
    struct inputs inputs;
    mkdir("d", 0755);
    mkdir("d/sub", 0755);
    mkdir("d/sub/empty", 0755);
    mkdir("d/.git", 0755);
    const char *taken[] = {"d/B.TXT", "d/a.txt", "d/c.ndjson", "d/sub/x.md", "d/z.rst"};
    for (int i = 0; i < 5; i++) put(taken[i], 2);
    const char *passed[] = {"d/.a.txt",   "d/.git/a.txt", "d/k.txt.gz", "d/txt",
                            "d/sub/.txt", "d/m.c",        "d/atxt"};
    for (int i = 0; i < 7; i++) put(passed[i], 2);
    cr_assert_eq(symlink("nowhere", "d/dangling.txt"), 0);
    mkfifo("d/pipe.txt", 0644);
    cr_assert_eq(OPEN(&inputs, "d"), 0, "%s", error.text);
    cr_assert_str_eq(listed(&inputs), "d/B.TXT d/a.txt d/c.ndjson* d/sub/x.md d/z.rst");
    cr_assert_eq(inputs.bytes, 10);
    cr_assert(inputs.bytes_known);
    cr_assert_eq(inputs.skipped, 6, "atxt dangling.txt k.txt.gz m.c pipe.txt txt");
    cr_assert_str_eq(inputs.skipped_example, "d/atxt");
    inputs_close(&inputs);
    cr_assert_eq(OPEN(&inputs, "d/"), 0, "%s", error.text);
    cr_assert_str_eq(listed(&inputs), "d/B.TXT d/a.txt d/c.ndjson* d/sub/x.md d/z.rst");
    inputs_close(&inputs);
}

Test(inputs, links_are_followed_without_cycles) {
    struct inputs inputs;
    mkdir("d", 0755);
    mkdir("e", 0755);
    put("e/e.txt", 1);
    put("d/d.txt", 1);
    cr_assert_eq(symlink("..", "d/up"), 0);
    cr_assert_eq(symlink("../e", "d/k"), 0);
    cr_assert_eq(symlink("../e", "d/l"), 0);
    cr_assert_eq(symlink("../d", "e/back"), 0);
    cr_assert_eq(symlink("../e/e.txt", "d/file.txt"), 0);
    cr_assert_eq(OPEN(&inputs, "d"), 0, "%s", error.text);
    cr_assert_str_eq(listed(&inputs), "d/d.txt d/file.txt d/k/e.txt");
    inputs_close(&inputs);
    cr_assert_eq(OPEN(&inputs, "d/k", "d/k"), 0, "%s", error.text);
    cr_assert_str_eq(listed(&inputs),
                     "d/k/back/d.txt d/k/back/file.txt d/k/e.txt "
                     "d/k/back/d.txt d/k/back/file.txt d/k/e.txt",
                     "what is named twice is read twice");
    inputs_close(&inputs);
}

Test(inputs, patterns_are_expanded) {
    struct inputs inputs;
    mkdir("d1", 0755);
    mkdir("d2", 0755);
    put("d1/b.c", 1);
    put("d1/a.c", 1);
    put("d2/c.txt", 1);
    put("d2/x.c", 1);
    cr_assert_eq(OPEN(&inputs, "d?/*.c"), 0, "%s", error.text);
    cr_assert_str_eq(listed(&inputs), "d1/a.c d1/b.c d2/x.c");
    inputs_close(&inputs);
    cr_assert_eq(OPEN(&inputs, "d[2]"), 0, "%s", error.text);
    cr_assert_str_eq(listed(&inputs), "d2/c.txt", "a folder that matches");
    inputs_close(&inputs);
    cr_assert_eq(setenv("HOME", folder, 1), 0);
    cr_assert_eq(OPEN(&inputs, "~/d1/a.c"), 0, "%s", error.text);
    cr_assert_eq(arrlen(inputs.list), 1);
    inputs_close(&inputs);
}

Test(inputs, refusals_name_a_remedy) {
    put("a.jsonl.gz", 1);
    put("a.txt.zst", 1);
    put("a.parquet", 1);
    put("a.CSV", 1);
    put("a.csv.gz", 1);
    put("a.parquet.zip", 1);
    put("a.tar.xz", 1);
    put("a.tgz", 1);
    mkdir("tables", 0755);
    put("tables/a.c", 1);
    put("tables/x.parquet", 1);
    mkdir("d", 0755);
    put("d/a.c", 1);
    expect_refusal("missing.txt", "missing.txt: No such file", "check the path");
    expect_refusal("missing/*.txt", "nothing matches missing/*.txt", "check the pattern");
    expect_refusal("a.jsonl.gz", "compressed", "gzip -dc a.jsonl.gz | ./prepare ... --jsonl -");
    expect_refusal("a.txt.zst", "compressed", "zstd -dc a.txt.zst | ./prepare ... -");
    expect_refusal("a.parquet", "is a table", "scripts/rows.py a.parquet | ./prepare");
    expect_refusal("a.CSV", "is a table", "scripts/rows.py a.CSV | ./prepare");
    expect_refusal("a.csv.gz", "is a compressed table",
                   "gzip -dc a.csv.gz >a.csv; scripts/rows.py a.csv | ./prepare ... --jsonl -");
    expect_refusal("a.parquet.zip", "is a compressed table", "unzip -p a.parquet.zip >a.parquet;");
    expect_refusal("a.tar.xz", "is an archive", "tar -xf");
    expect_refusal("a.tgz", "is an archive", "tar -xf");
    expect_refusal("tables", "tables holds tables", "scripts/rows.py tables | ./prepare");
    expect_refusal("d", "no text in the folder d", "'d/*.log'");
    expect_refusal("a.parquet/x", "Not a directory", "check the path");
}

Test(inputs, permissions_are_checked_before_anything_is_read) {
    /* Root may read everything. */
    if (geteuid() == 0 && (chown(folder, 65534, 65534) || setgid(65534) || setuid(65534)))
        cr_skip("cannot give up the rights of root");
    put("closed.txt", 1);
    chmod("closed.txt", 0);
    expect_refusal("closed.txt", "Permission denied", "permissions");
}

Test(inputs, the_size_of_pipes_is_unknown) {
    struct inputs inputs;
    mkfifo("pipe", 0644);
    cr_assert_eq(OPEN(&inputs, "pipe"), 0, "%s", error.text);
    cr_assert_not(inputs.bytes_known);
    inputs_close(&inputs);
    put("a.txt", 100);
    cr_assert_not_null(freopen("a.txt", "r", stdin));
    lseek(STDIN_FILENO, 30, SEEK_SET);
    cr_assert_eq(OPEN(&inputs, "-"), 0, "%s", error.text);
    cr_assert(inputs.bytes_known);
    cr_assert_eq(inputs.bytes, 70, "what is left of it");
    inputs_close(&inputs);
}
