/* How functions of every room report what a user can cause: they return -1 and leave a message.
 *
 * A function that can fail takes `char *error`, a buffer of ERROR_MAX bytes owned by the caller,
 * returns 0 on success and -1 on failure. A message says what is wrong, where, and what to do;
 * it may hold line breaks, and ends without one. What only a programmer can cause is an assert. */
#ifndef DATA_BASE_ERROR_H
#define DATA_BASE_ERROR_H

enum { ERROR_MAX = 1024 };

/* What functions return that can end in more ways than these two. */
enum result_code {
    RESULT_FAILED = -1, /* with a message */
    RESULT_DONE = 0,
    RESULT_NONE,    /* there is none, or none any more */
    RESULT_DAMAGED, /* there are only damaged ones */
    RESULT_STOPPED, /* someone asked for an early end */
    RESULT_WARNED,  /* done, but for something that the message names */
};

/* Writes the message (cut to ERROR_MAX - 1 bytes) into error and returns -1. */
int fail(char *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
