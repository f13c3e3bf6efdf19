/* Text that is printed into memory first, so that a file holds all of it or is not written. */
#pragma once

#include <stddef.h>
#include <stdio.h>

#include "data/util/error.h"
#include "data/util/sha256.h"

struct printed {
    FILE *out;  /* stream to print to */
    char *text; /* [size] and a NUL, valid after closing */
    size_t size;
};

/* Ends the program with a message and status 1, where a text does not fit in memory and the caller
 * cannot report it. */
void end_out_of_memory(void) __attribute__((noreturn));

/* Formats a count >= 0 for display: "3.3 M", "1.6 B" (10^9). Returns text. */
enum { COUNT_TEXT_MAX = 32 };
const char *count_text(char text[COUNT_TEXT_MAX], double count);

/* "s", or "" for a count of one: printf("%d step%s", steps, PLURAL(steps)). */
#define PLURAL(count) ((count) == 1 ? "" : "s")

/* Opens the stream. Returns -1 if out of memory. */
int printed_open(struct printed *printed);

/* Closes the stream. The caller frees the text. If out of memory, the text is NULL and the result
 * -1. */
int printed_close(struct printed *printed);

/* Closes the stream and writes the text durably to the file `path`. size and hex (optional)
 * describe the file afterwards. The text is freed. */
int printed_write(struct printed *printed, const char *path, char hex[SHA256_HEX_MAX],
                  struct error *error);
