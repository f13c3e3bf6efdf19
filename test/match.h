/* Matches part of a text with a POSIX extended regular expression. */
#pragma once

#include <criterion/criterion.h>
#include <regex.h>
#include <stdbool.h>

static inline bool matches(const char *text, const char *pattern) {
    regex_t regex;
    cr_assert_eq(regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB), 0, "%s", pattern);
    bool found = regexec(&regex, text, 0, NULL, 0) == 0;
    regfree(&regex);
    return found;
}

static inline void expect_match(const char *text, const char *pattern) {
    cr_expect(matches(text, pattern), "no \"%s\" in: %s", pattern, text);
}
