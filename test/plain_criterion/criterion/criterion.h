/* A stand-in for the part of Criterion that our tests use, where Criterion is not installed or, as
 * under ThreadSanitizer, cannot start. `make CRITERION=0` puts this folder first among the
 * includes, and runner.c takes the place of -lcriterion.
 *
 * Known: Test and TestSuite with .init, .fini, .timeout (seconds) and .disabled; cr_assert_X and
 * cr_expect_X of the list below, each with an optional printf message; cr_skip, cr_skip_test,
 * cr_fail, cr_assert_fail. Anything else does not compile. */
#ifndef PLAIN_CRITERION_H
#define PLAIN_CRITERION_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct plain_options {
    void (*init)(void), (*fini)(void);
    double timeout; /* seconds; 0: the runner's */
    bool disabled;
    const char *description;
};

struct plain_test {
    const char *suite, *name, *file;
    int line;
    struct plain_options options;
    void (*body)(void);
    struct plain_test *next;
};

struct plain_suite {
    const char *name;
    struct plain_options options;
    struct plain_suite *next;
};

/* runner.c */
void plain_register_test(struct plain_test *test);
void plain_register_suite(struct plain_suite *suite);
/* message is " " or " " and what the caller gave; a fatal failure does not return. */
void plain_failed(bool fatal, const char *file, int line, const char *condition,
                  const char *message, ...) __attribute__((format(printf, 5, 6)));
void plain_skip(const char *message, ...) __attribute__((format(printf, 1, 2), noreturn));

#define Test(suite_, name_, ...)                                                            \
    static void suite_##_##name_##_body(void);                                              \
    static struct plain_test suite_##_##name_##_test = {                                    \
        #suite_, #name_, __FILE__, __LINE__, {__VA_ARGS__}, suite_##_##name_##_body, NULL}; \
    __attribute__((constructor)) static void suite_##_##name_##_register(void) {            \
        plain_register_test(&suite_##_##name_##_test);                                      \
    }                                                                                       \
    static void suite_##_##name_##_body(void)

#define TestSuite(name_, ...)                                                \
    static struct plain_suite name_##_suite = {#name_, {__VA_ARGS__}, NULL}; \
    __attribute__((constructor)) static void name_##_suite_register(void) {  \
        plain_register_suite(&name_##_suite);                                \
    }                                                                        \
    struct plain_suite /* takes the semicolon */

#define PLAIN_CHECK(fatal, condition, text, ...) \
    ((condition) ? (void)0 : plain_failed(fatal, __FILE__, __LINE__, text, " " __VA_ARGS__))

#define PLAIN_FLOAT_EQ(a, b, epsilon) (fabs((double)(a) - (double)(b)) <= (double)(epsilon))

#define cr_assert(c, ...)     PLAIN_CHECK(true, c, #c, __VA_ARGS__)
#define cr_expect(c, ...)     PLAIN_CHECK(false, c, #c, __VA_ARGS__)
#define cr_assert_not(c, ...) PLAIN_CHECK(true, !(c), "!(" #c ")", __VA_ARGS__)
#define cr_expect_not(c, ...) PLAIN_CHECK(false, !(c), "!(" #c ")", __VA_ARGS__)

#define PLAIN_BINARY(fatal, a, op, b, ...) \
    PLAIN_CHECK(fatal, (a)op(b), #a " " #op " " #b, __VA_ARGS__)
#define cr_assert_eq(a, b, ...)  PLAIN_BINARY(true, a, ==, b, __VA_ARGS__)
#define cr_expect_eq(a, b, ...)  PLAIN_BINARY(false, a, ==, b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...) PLAIN_BINARY(true, a, !=, b, __VA_ARGS__)
#define cr_expect_neq(a, b, ...) PLAIN_BINARY(false, a, !=, b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...)  PLAIN_BINARY(true, a, <, b, __VA_ARGS__)
#define cr_expect_lt(a, b, ...)  PLAIN_BINARY(false, a, <, b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...) PLAIN_BINARY(true, a, <=, b, __VA_ARGS__)
#define cr_expect_leq(a, b, ...) PLAIN_BINARY(false, a, <=, b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...)  PLAIN_BINARY(true, a, >, b, __VA_ARGS__)
#define cr_expect_gt(a, b, ...)  PLAIN_BINARY(false, a, >, b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...) PLAIN_BINARY(true, a, >=, b, __VA_ARGS__)
#define cr_expect_geq(a, b, ...) PLAIN_BINARY(false, a, >=, b, __VA_ARGS__)

#define cr_assert_null(a, ...)     PLAIN_CHECK(true, (a) == NULL, #a " is NULL", __VA_ARGS__)
#define cr_expect_null(a, ...)     PLAIN_CHECK(false, (a) == NULL, #a " is NULL", __VA_ARGS__)
#define cr_assert_not_null(a, ...) PLAIN_CHECK(true, (a) != NULL, #a " is not NULL", __VA_ARGS__)
#define cr_expect_not_null(a, ...) PLAIN_CHECK(false, (a) != NULL, #a " is not NULL", __VA_ARGS__)

#define PLAIN_TEXT(fatal, a, op, b, ...) \
    PLAIN_CHECK(fatal, strcmp(a, b) op 0, #a " " #op " " #b, __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...)  PLAIN_TEXT(true, a, ==, b, __VA_ARGS__)
#define cr_expect_str_eq(a, b, ...)  PLAIN_TEXT(false, a, ==, b, __VA_ARGS__)
#define cr_assert_str_neq(a, b, ...) PLAIN_TEXT(true, a, !=, b, __VA_ARGS__)
#define cr_expect_str_neq(a, b, ...) PLAIN_TEXT(false, a, !=, b, __VA_ARGS__)
#define cr_assert_str_empty(a, ...)  PLAIN_CHECK(true, !*(a), #a " is empty", __VA_ARGS__)
#define cr_expect_str_empty(a, ...)  PLAIN_CHECK(false, !*(a), #a " is empty", __VA_ARGS__)

#define PLAIN_BYTES(fatal, a, op, b, size, ...) \
    PLAIN_CHECK(fatal, memcmp(a, b, size) op 0, #a " " #op " " #b " (bytes)", __VA_ARGS__)
#define cr_assert_arr_eq(a, b, size, ...)  PLAIN_BYTES(true, a, ==, b, size, __VA_ARGS__)
#define cr_expect_arr_eq(a, b, size, ...)  PLAIN_BYTES(false, a, ==, b, size, __VA_ARGS__)
#define cr_assert_arr_neq(a, b, size, ...) PLAIN_BYTES(true, a, !=, b, size, __VA_ARGS__)
#define cr_expect_arr_neq(a, b, size, ...) PLAIN_BYTES(false, a, !=, b, size, __VA_ARGS__)

#define PLAIN_CLOSE(fatal, a, b, epsilon, ...) \
    PLAIN_CHECK(fatal, PLAIN_FLOAT_EQ(a, b, epsilon), #a " within " #epsilon " of " #b, __VA_ARGS__)
#define cr_assert_float_eq(a, b, epsilon, ...) PLAIN_CLOSE(true, a, b, epsilon, __VA_ARGS__)
#define cr_expect_float_eq(a, b, epsilon, ...) PLAIN_CLOSE(false, a, b, epsilon, __VA_ARGS__)

#define cr_assert_fail(...) plain_failed(true, __FILE__, __LINE__, "never here", " " __VA_ARGS__)
#define cr_expect_fail(...) plain_failed(false, __FILE__, __LINE__, "never here", " " __VA_ARGS__)
#define cr_fail             cr_expect_fail
#define cr_skip_test(...)   plain_skip(" " __VA_ARGS__)
#define cr_skip             cr_skip_test

#endif
