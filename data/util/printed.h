/* Text that is printed into memory first, so that a file holds all of it or is not written. */
#pragma once

#include <stddef.h>
#include <stdio.h>

#include "data/util/error.h"
#include "data/util/sha256.h"

struct printed {
    FILE *out;  /* to print to */
    char *text; /* [size] and a NUL, once it is closed */
    size_t size;
};

/* Writes a count of at least 0 for people: "3.3 M", "1.6 B" (10^9). Returns text. */
enum { COUNT_TEXT_MAX = 32 };
const char *count_text(char text[COUNT_TEXT_MAX], double count);

/* Returns -1 if there is no memory. */
int printed_open(struct printed *printed);

/* Ends the printing. The text is the caller's to free; NULL, and -1 returned, if memory was short.
 */
int printed_close(struct printed *printed);

/* Ends the printing and writes the text as a file, durably, into path. size and hex (optional)
 * describe it afterwards. The text is freed. */
int printed_write(struct printed *printed, const char *path, char hex[SHA256_HEX_MAX],
                  struct error *error);
