/* How functions of every room report what a user can cause.
 *
 * A function that can fail takes a struct error of its caller's, returns 0 on success, and on
 * failure -1 with a message there. It says what is wrong, where, and what to do; it may hold line
 * breaks, and ends without one. What only a programmer can cause is an assert. */
#pragma once

enum { ERROR_MAX = 1024 };

struct error {
    char text[ERROR_MAX];
};

/* Results of functions that can end in more ways than these two. */
enum result_code {
    RESULT_FAILED = -1, /* with a message */
    RESULT_DONE = 0,
    RESULT_NONE,    /* there is none, or none any more */
    RESULT_DAMAGED, /* there are only damaged ones */
    RESULT_STOPPED, /* someone asked for an early end */
    RESULT_WARNED,  /* done, but for something that the message names */
};

/* Writes the message (cut where the room ends) into error and returns -1. Names in it may come from
 * files of others: utf8_mask replaces what a terminal would obey. */
int fail(struct error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));
