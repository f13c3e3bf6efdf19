/* Parts that commands open: device, precision, text, tokenizer, trainer. */
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
    struct teacher_logits teacher; /* open if loader.teacher is set */
    bool open;
};

/* Returns a seed derived from config->seed for each use, so that random streams differ from each
 * other and from that of the initial weights. */
enum seed_use { SEED_DATA = 1 << 20, SEED_SAMPLE };
uint64_t derive_seed(int64_t seed, enum seed_use use);

/* Opens "tales" or a glob of shards, in sequences of config->data.seq_len; validation is not
 * shuffled. */
int source_open(struct source *source, const struct config *config, const char *what,
                bool validation, struct error *error);
void source_close(struct source *source);

/* Sets data.isolate, unless it is given, to true if the training text marks the starts of
 * documents. Fails if it is given as true and no shard marks them. A text that is not open has
 * none. */
int setup_isolation(struct config *config, const struct source *text, struct error *error);

/* Opens the teacher's logits in distill.logits for a training text, and sets config->distill_top.
 * Does nothing without distill.logits or a text. Call it after setup_isolation. */
int setup_distillation(struct config *config, struct source *text, struct error *error);

/* Opens the backend with the config's device, threads and options. choices, ranks (optional): see
 * backend_options. Without choices nothing is timed; plans of memory still cover what autotune may
 * choose. */
int setup_backend(struct backend *be, const struct config *config, const char *choices,
                  const struct ranks *ranks, struct error *error);

/* Resolves the precision, and prints the note that explains an automatic choice. */
int setup_precision(struct precision *precision, const struct config *config,
                    const struct backend *be, struct error *error);

/* Opens the tokenizer of config->data.tokenizer, and checks it against the record that ./prepare
 * writes beside texts, if there is one. Its files are searched for in this order:
 * data.tokenizer_dir of --set; `from` (optional, a model's directory); data.tokenizer_dir of the
 * config; model.init_from; the directory in the record. Returns 0; RESULT_NONE with a message in
 * error if there are none, and nothing is open; -1 with a message if they are damaged or differ
 * from the record. */
int setup_tokenizer(struct tokenizer *tokenizer, const struct config *config, const char *from,
                    const struct source *const *texts, int count, struct error *error);

/* Opens a trainer and allocates its memory. If memory is short, nothing stays open and the message
 * names the options with which the run fits. */
int setup_trainer(struct trainer *trainer, const struct config *config,
                  const struct precision *precision, struct backend *be, struct error *error);

/* Prints each line of text as "PREFIX: LINE" to standard error. */
void print_notes(const char *prefix, const char *text);
