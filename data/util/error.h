/* Error reporting for all modules.
 *
 * A function that can fail takes the caller's struct error. It returns 0 on success, and -1 with a
 * message on failure. The message says what is wrong, where, and what to do. It may contain line
 * breaks but does not end with one. Conditions that only a programming error can cause are
 * asserts. */
#pragma once

enum { ERROR_MAX = 1024 };

struct error {
    char text[ERROR_MAX];
};

/* Return codes of functions with more than two outcomes. */
enum result_code {
    RESULT_FAILED = -1, /* with a message */
    RESULT_DONE = 0,
    RESULT_NONE,    /* nothing found, or no more items */
    RESULT_DAMAGED, /* only damaged items were found */
    RESULT_STOPPED, /* stopped early on request */
};

/* Writes the message into error, truncated to ERROR_MAX, and returns -1. Names in it may come from
 * untrusted files, so utf8_mask replaces control characters. The format has the names of
 * program_format. */
int fail(struct error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Fails with "out of memory for WHAT", formatted like printf, and what to do. */
int fail_memory(struct error *error, const char *what, ...) __attribute__((format(printf, 2, 3)));
