/* Parts that commands open: device, precision, text, tokenizer, model, trainer. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "data/corpus/loader.h"
#include "data/tokenize/tokenizer.h"
#include "data/util/error.h"
#include "kernels/backend.h"
#include "model/config/config.h"
#include "model/optimize/trainer.h"

/* A text and its sequences. */
struct source {
    struct tokens tokens;
    struct loader loader;
    struct teacher_logits teacher; /* open if loader.teacher is set */
    char hash[SHA256_HEX_MAX];     /* of a sample, once run_ranks_compare_data has set it */
    bool open;
};

/* Returns a seed derived from config->seed for each use, so that random streams differ from each
 * other and from that of the initial weights. */
enum seed_use { SEED_DATA = 1 << 20, SEED_SAMPLE };
uint64_t derive_seed(int64_t seed, enum seed_use use);

/* Use of a text. Only that of training is shuffled by the seed, and only one to evaluate may be
 * shorter than a sequence. */
enum source_use { SOURCE_TRAINING, SOURCE_VALIDATION, SOURCE_EVALUATION };

/* Opens "tales" or a glob of shards, in sequences of config->data.seq_len. */
int source_open(struct source *source, const struct config *config, const char *what,
                enum source_use use, struct error *error);
void source_close(struct source *source);

/* Sets data.isolate, unless it is given, to true if the training text marks the starts of
 * documents, config->packed_sequences, and config->masked_share. Fails if data.isolate is given as
 * true, or data.pack as whole, and no shard marks them. A text that is not open has none. */
int setup_documents(struct config *config, const struct source *text, struct error *error);

/* Returns the TEACHER_... flags of the training text; call it after setup_documents. */
uint32_t setup_context(const struct config *config);

/* Opens the teacher's logits in distill.logits for a training text, and sets config->distill_top.
 * Does nothing without distill.logits or a text. Call it after setup_documents. */
int setup_distillation(struct config *config, struct source *text, struct error *error);

/* Opens the backend with the config's device, threads and options. algorithms, ranks (optional):
 * see backend_options. Without algorithms nothing is timed; plans of memory still cover what
 * autotune may choose. */
int setup_backend(struct backend *be, const struct config *config, const char *algorithms,
                  const struct ranks *ranks, struct error *error);

/* Opens the tokenizer of config->data.tokenizer, and checks it against the record that ./prepare
 * writes beside texts, if there is one. Its files are searched for in this order:
 * data.tokenizer_dir of --set; `from` (optional, a model's directory); data.tokenizer_dir of the
 * config; model.init_from; the directory in the record. Returns 0; RESULT_NONE with a message in
 * error if there are none, and nothing is open; -1 with a message if they are damaged or differ
 * from the record. */
int setup_tokenizer(struct tokenizer *tokenizer, const struct config *config, const char *from,
                    const struct source *const *texts, int count, struct error *error);

/* Passes of a model that a command opens, which its memory is planned for. */
enum model_use {
    MODEL_EVALUATED,       /* model/task/evaluate.h */
    MODEL_SCORED,          /* model/task/loglikelihood.h */
    MODEL_SAMPLED,         /* model/task/sample.h */
    MODEL_SAMPLED_EXACTLY, /* the same with options.exact */
};

/* Opens the model of a checkpoint or a Hugging Face directory, with its weights. Prints the
 * notes of precision_resolve. On failure there is nothing to close. */
int setup_model(struct model *model, const struct config *config, struct backend *be,
                enum model_use use, const char *from, struct error *error);

/* Opens a trainer and allocates its memory. If memory is short, nothing stays open and the message
 * names the options with which the run fits. */
int setup_trainer(struct trainer *trainer, const struct config *config,
                  const struct precision *precision, struct backend *be, struct error *error);
