#include "model/page/wrap.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

static void expect(const char *text, int column, int indent, const char *expected) {
    char *found = NULL;
    size_t size;
    FILE *out = open_memstream(&found, &size);
    cr_assert_not_null(out);
    print_wrapped(out, text, column, indent);
    cr_assert_eq(fclose(out), 0);
    cr_expect_str_eq(found, expected);
    free(found);
}

#define X30 "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
#define X80 X30 X30 "xxxxxxxxxxxxxxxxxxxx"

Test(wrap, breaks_between_words_at_80_columns) {
    expect("", 0, 0, "\n");
    expect("a b", 0, 2, "a b\n");
    expect(X30 " " X30 " xxxxxxxxxxxxxxxxxx", 0, 2, X30 " " X30 " xxxxxxxxxxxxxxxxxx\n");
    expect(X30 " " X30 " xxxxxxxxxxxxxxxxxxx", 0, 2, X30 " " X30 "\n  xxxxxxxxxxxxxxxxxxx\n");
}

Test(wrap, starts_at_a_column) {
    expect(X30 " xxxxxxxxx", 40, 4, X30 " xxxxxxxxx\n");
    expect(X30 " xxxxxxxxx", 41, 4, X30 "\n    xxxxxxxxx\n");
}

Test(wrap, a_word_that_is_too_long_has_its_own_line) {
    expect("a " X80 "y b", 0, 2, "a\n  " X80 "y\n  b\n");
    expect(X80 "y", 11, 11, X80 "y\n");
}
