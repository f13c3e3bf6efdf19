/* The program ./train --dry-run --ranks. */
#include "test/model/cli/program_fixture.h"

TestSuite(rank_program, .init = set_up, .fini = remove_folder);

#define TINY "--config|tiny.json|--dry-run"

/* Returns the number after a text in the output. */
static double after(const char *text) {
    const char *found = strstr(out_text, text);
    cr_assert_not_null(found, "\"%s\" is not in: %s", text, out_text);
    return strtod(found + strlen(text), NULL);
}

Test(rank_program, estimates) {
    expect_exit(TINY "|--ranks|4|--link-gbs|10|--tflops|0.5", 0);
    cr_expect_not_null(strstr(out_text, "On 4 ranks: an estimate, nothing of it is measured"));
    cr_expect_not_null(strstr(out_text, "0.5 TFLOPS a rank (--tflops), 10 GB/s"));
    cr_expect_not_null(strstr(out_text, "\n4 ranks x "));
    double efficiency = after("efficiency ");
    cr_expect_gt(efficiency, 0);
    cr_expect_leq(efficiency, 100);
    for (const char *line = out_text; *line;) {
        size_t length = strcspn(line, "\n");
        cr_expect_leq(length, 80, "%.*s", (int)length, line);
        line += length + (line[length] == '\n');
    }
    expect_exit(TINY "|--ranks|4|--link-gbs|0.001|--tflops|0.5", 0);
    cr_expect_lt(after("efficiency "), efficiency);
    expect_exit(TINY, 0);
    cr_expect_null(strstr(out_text, "ranks"));
}

Test(rank_program, refuses) {
    expect_error(TINY "|--ranks|1", 2, "at least 2");
    expect_error(TINY "|--ranks|5000", 2, "to 4096");
    expect_error(TINY "|--ranks|2|--set|train.batch_tokens=3", 2, "train.batch_tokens");
}
