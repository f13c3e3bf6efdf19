/* What every command that uses a model opens: device, text, tokenizer, trainer. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "data/util/error.h"
#include "data/corpus/loader.h"
#include "data/tokenize/tokenizer.h"
#include "kernels/backend.h"
#include "model/config/config.h"
#include "model/core/trainer.h"

/* A text and its sequences. */
struct source {
    struct tokens tokens;
    struct loader loader;
    bool open;
};

/* Streams of random numbers that share config->seed with the initial weights must not share their
 * numbers, so each use has a seed of its own. */
enum seed_use { SEED_DATA = 1 << 20, SEED_SAMPLE };
uint64_t derive_seed(int64_t seed, enum seed_use use);

/* Opens "tales" or a glob of shards, in sequences of config->data.seq_len; validation is not
 * shuffled. */
int source_open(struct source *source, const struct config *config, const char *what,
                bool validation, struct error *error);
void source_close(struct source *source);

/* The device, threads and options of the config. choices, ranks (optional): see backend_options. */
int setup_backend(struct backend *be, const struct config *config, const char *choices,
                  const struct ranks *ranks, struct error *error);

/* Opens the tokenizer of config->data.tokenizer and checks that the texts were made with it, as
 * far as ./prepare has left a record beside them. GPT-2's files are looked for in
 * this order: a data.tokenizer_dir of --set; `from` (optional, a model's directory); the config's
 * data.tokenizer_dir; model.init_from; where the record says they were. Returns 0; RESULT_NONE with
 * a message in error if there are none, and nothing is open; -1 with a message if they are damaged
 * or others than the texts were made with.
 */
int setup_tokenizer(struct tokenizer *tokenizer, const struct config *config, const char *from,
                    const struct source *const *texts, int count, struct error *error);

/* Prints each line of text as "PREFIX: LINE" to standard error. */
void print_notes(const char *prefix, const char *text);
