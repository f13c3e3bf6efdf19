/* Notes, warnings and errors for users, which all programs print in the same way:
 *
 *     note: no token shard matches texts/stories_train_*.bin, relative to the
 *         current folder
 *       make shards with ./prepare, or check the pattern
 *
 * Functions that note something take a stream, usually stderr. NULL discards the notes, and a
 * memory stream collects them. */
#pragma once

#include <stdio.h>

#include "data/util/error.h"

enum { TEXT_WIDTH = 80 };

/* Prints "PREFIX: TEXT"; nothing if out is NULL. prefix: "note", "warning", or for errors and
 * progress the name of the program or of its part. Line breaks in the text are kept, and the next
 * line is indented by 2; rests of long lines by 4. Text may come from files (utf8_mask). A
 * message is one write to a stream without a buffer. The format has the names of program_format. */
void note(FILE *out, const char *prefix, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Prints an error that does not end the program, and clears it. */
void note_error(FILE *out, const char *prefix, struct error *error);

/* Prints text that begins at this column, and breaks lines between words at TEXT_WIDTH columns.
 * A command (a program or scripts/NAME, to the end of its line or to a word that ends with , ; or
 * a parenthesis) stays whole, so that it can be pasted.
 * indent: columns before a line that follows a line break; rest: before the rest of a long line. */
void text_wrap(FILE *out, int column, int indent, int rest, const char *text);
