/* Prompts for learning from rewards: rows of JSON Lines that are read as they are, so that a reward
 * gets all of their members. The tokens of the set are the bytes of the file, and each row is a
 * sequence of its own; the model's tokenizer is applied when a prompt is used. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "data/corpus/loader.h"
#include "data/corpus/tokens.h"
#include "data/util/error.h"

/* Opens a file of JSON Lines, or the rows in text [size], from malloc, whose ownership is taken
 * also on failure. */
int prompts_open(struct tokens *tokens, const char *path, struct error *error);
int prompts_from_memory(struct tokens *tokens, char *text, size_t size, const char *name,
                        struct error *error);

/* Sequences of one row each; every sample counts as 1. loader_batch does not apply. */
extern const struct loader_kind prompts_loader;

/* Copies the row of a sample to *row, an stb_ds array that ends with a NUL, without white space at
 * its ends. */
void prompts_row(char **row, const struct loader *loader, uint64_t sample);

/* Fails with a message that names the sample's line in its file. */
int prompts_fail(const struct loader *loader, uint64_t sample, const char *reason,
                 struct error *error);
