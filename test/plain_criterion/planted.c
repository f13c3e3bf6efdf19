/* Tests that must fail, each in its own way, for check.sh: a runner that cannot fail proves
 * nothing. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <unistd.h>

static void note_end(void) {
    fprintf(stderr, "fini\n");
}
TestSuite(planted, .fini = note_end);

static void failing_init(void) {
    cr_assert(false, "init");
}

static void never(void) {
    fprintf(stderr, "NEVER\n");
}

Test(planted, pass) {
    cr_assert_lt(1, 2, "one");
    cr_expect_null(NULL);
    cr_assert_str_empty("");
    cr_assert_float_eq(1.0, 1.1, 0.2);
}
Test(planted, skip) {
    cr_skip_test("for %d reasons", 2);
    never();
}
Test(planted, disabled, .disabled = true) {
    never();
}

Test(planted, sets_a_variable) {
    setenv("PLANTED", "1", 1);
}
Test(planted, sees_no_variable) {
    cr_assert_null(getenv("PLANTED"));
}

Test(planted, assert_ends_the_test) {
    cr_assert_eq(1, 2, "%d", 3);
    never();
}
Test(planted, expect_goes_on) {
    cr_expect_str_eq("x", "y");
    fprintf(stderr, "went on\n");
}
Test(planted, failing_init, .init = failing_init) {
    never();
}
Test(planted, arrays) {
    cr_assert_arr_eq("ab", "ac", 2);
}
Test(planted, nan_is_not_close) {
    cr_assert_float_eq(NAN, 1.0, 10.0);
}
Test(planted, fail) {
    cr_assert_fail("always");
}

Test(planted, crash) {
    abort();
}
Test(planted, hang, .timeout = 0.5) {
    for (;;) pause();
}
Test(planted, exit_before_the_end) {
    exit(0);
}
