/* Suggestions for mistyped keys and names, and for words of other trainers. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Returns the answer to name[0..length), which is no key but a mistyped one or a word of another
 * trainer: a key ("optimizer.lr"), a flag ("--resume") or a sentence; NULL if there is none. A
 * close key is a few edits away in its path or its last part, or contains the name. On a tie rows
 * of `block` win (-1: no preference). *exact: the name is spelled as a key or such a word. */
const char *config_suggest(const char *name, size_t length, int block, bool *exact);

/* Prints rows of a Markdown table: an answer, and the words of others for it. */
void config_print_synonyms(FILE *out);

/* Returns the index of the closest block, or -1. */
int config_nearest_block(const char *name, size_t length);
