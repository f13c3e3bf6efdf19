/* help_print names programs as they are installed. */
#include <criterion/criterion.h>

#include <stdlib.h>

#include "data/util/program.h"

static void expect_help(const char *program, const char *text, const char *expected) {
    char *printed = NULL;
    size_t size;
    FILE *out = open_memstream(&printed, &size);
    help_print(out, text, program);
    fclose(out);
    cr_expect_str_eq(printed, expected, "%s: %s", program ? program : "(null)", printed);
    free(printed);
}

Test(help, names_as_they_are_built) {
    const char *text = "./train --from ./x, ./prepare and ./compare\n";
    static const char *const programs[] = {"./train", "train", "/usr/bin/train",
                                           "",        NULL,    "mantissa-/train"};
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        expect_help(programs[i], text, text);
}

Test(help, names_as_they_are_installed) {
    const char *text = "./train --from ./x, ./prepare and ./compare\n";
    const char *installed = "mantissa-train --from ./x, mantissa-prepare and mantissa-compare\n";
    expect_help("mantissa-train", text, installed);
    expect_help("/usr/local/bin/mantissa-compare", text, installed);
    expect_help("mantissa-train", "", "");
    expect_help("mantissa-train", "for ./train: see (./compare).",
                "for mantissa-train: see (mantissa-compare).");
}

Test(help, other_paths_are_unchanged) {
    static const char *const texts[] = {"../train_x.bin", "./training.json", "./train.json: none",
                                        "a/./train",      "x./train ",       "./train/x"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        expect_help("mantissa-train", texts[i], texts[i]);
}
