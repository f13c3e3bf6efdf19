#include "model/session/setup.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/corpus/pairs.h"
#include "data/corpus/prompts.h"
#include "data/corpus/sums.h"
#include "data/corpus/tales.h"
#include "data/corpus/tales_pairs.h"
#include "data/corpus/tokenizer_record.h"
#include "data/util/files.h"
#include "data/util/host_memory.h"
#include "data/util/note.h"
#include "data/util/printed.h"
#include "data/util/random.h"
#include "kernels/open/backend_open.h"
#include "model/config/config_keys.h"
#include "model/io/checkpoint.h"
#include "model/plan/memory_text.h"
#include "model/task/loglikelihood.h"
#include "model/task/objective.h"
#include "model/task/sample.h"

uint64_t derive_seed(int64_t seed, enum seed_use use) {
    return random_bits((uint64_t)seed, use, 0);
}

/* Fails if the data hold other rows than the objective reads. */
static int check_rows(const struct tokens *tokens, const struct config *config, const char *what,
                      struct error *error) {
    static const char *const members[] = {
        [CONFIG_ROWS_PAIRS] = "\"prompt\", \"chosen\" and \"rejected\"",
        [CONFIG_ROWS_LABELLED] = "\"prompt\", \"completion\" and \"label\""};
    const enum config_rows wanted = config_rows(config);
    if (wanted == CONFIG_ROWS_PROMPTS) return 0;
    const enum config_rows found = !pairs_exist(tokens)     ? CONFIG_ROWS_TEXT
                                   : pairs_labelled(tokens) ? CONFIG_ROWS_LABELLED
                                                            : CONFIG_ROWS_PAIRS;
    if (found == wanted) return 0;
    if (wanted == CONFIG_ROWS_TEXT)
        return fail(error, "%.600s holds pairs of answers\nset train.objective, to dpo for example",
                    what);
    return fail(error,
                "train.objective is %s, but %.600s does not hold rows with %s\nprepare such rows, "
                "or choose another objective",
                config_name_of("train.objective", config->train.objective), what, members[wanted]);
}

/* Opens the text or the rows that `what` names. */
static int open_tokens(struct tokens *tokens, const struct config *config, const char *what,
                       bool validation, struct error *error) {
    const bool sums = strcmp(what, "sums") == 0, prompts = config_reads_prompts(config);
    if (prompts)
        return sums ? sums_prompts(tokens, validation, error) : prompts_open(tokens, what, error);
    if (sums) return sums_texts(tokens, validation, error);
    if (strcmp(what, "tales") != 0) return tokens_open(tokens, what, error);
    return config_reads_text(config) ? tales_tokens(tokens, validation, error)
                                     : tales_pairs(tokens, validation, error);
}

int source_open(struct source *source, const struct config *config, const char *what,
                enum source_use use, struct error *error) {
    const bool validation = use != SOURCE_TRAINING;
    struct loader_options options = {
        .seq_len = (int)config->data.seq_len,
        .seed = validation ? 0 : derive_seed(config->seed, SEED_DATA),
        .shuffle = !validation,
        .shorter = use == SOURCE_EVALUATION,
        .vocab_size = (int)config->model.vocab_size,
        .whole = config->data.pack != CONFIG_PACK_CUT,
        .kind = config_reads_text(config)      ? NULL
                : config_reads_prompts(config) ? &prompts_loader
                                               : &pairs_loader,
        .longest = (int)config->model.n_positions,
        .prompts = objective_of(config)->trains_prompts,
    };
    *source = (struct source){0};
    if (open_tokens(&source->tokens, config, what, validation, error)) return -1;
    if (check_rows(&source->tokens, config, what, error) ||
        loader_open(&source->loader, &source->tokens, &options, error)) {
        tokens_close(&source->tokens);
        return -1;
    }
    /* The first sequences that are packed have the longest documents. */
    if (validation) source->loader.options.shuffle = loader_is_packed(&source->loader);
    source->open = true;
    return 0;
}

void source_close(struct source *source) {
    if (!source->open) return;
    teacher_close(&source->teacher);
    loader_close(&source->loader);
    tokens_close(&source->tokens);
    source->open = false;
}

/* Returns the share of rows that have no target that counts; 0 if it is less than LEAST. Pairs have
 * prompts and padding. */
static double masked_share(const struct config *config, const struct loader *loader) {
    static const double LEAST = 1.0 / 16;
    const double rows = (double)loader->sequence_count * loader->options.seq_len;
    if (config_reads_prompts(config)) return LEAST;
    const double share = 1 - (double)loader->tokens->counted / rows;
    if (share >= LEAST) return share;
    return config_reads_text(config) ? 0 : LEAST;
}

int setup_documents(struct config *config, const struct source *text, struct error *error) {
    bool marked = text->open && loader_has_starts(&text->loader);
    const bool packed = text->open && loader_is_packed(&text->loader);
    if (!config_given(config, "data.isolate")) config->data.isolate = marked;
    config->masked_share = text->open ? masked_share(config, &text->loader) : 0;
    config->packed_sequences = packed ? (int64_t)text->loader.sequence_count : 0;
    const bool whole = config->data.pack == CONFIG_PACK_WHOLE;
    if (marked || !(config->data.isolate || whole) || !text->open) return 0;
    return fail(error,
                "data.%s, but nothing marks where documents begin in %.600s\nprepare "
                "the text again from rows or chats, or set data.%s",
                config->data.isolate ? "isolate is true" : "pack is whole",
                text->tokens.shards[0].name,
                config->data.isolate ? "isolate to false" : "pack to auto");
}

uint32_t setup_context(const struct config *config) {
    return (config->data.isolate ? TEACHER_ISOLATED : 0) |
           (config->packed_sequences > 0 ? TEACHER_WHOLE : 0);
}

int setup_distillation(struct config *config, struct source *text, struct error *error) {
    _Static_assert((int)TEACHER_TOP_MAX == (int)DISTILLATION_TOP_MAX, "the same limit");
    if (!config->distill.logits[0] || !text->open) return 0;
    if (teacher_open(&text->teacher, config->distill.logits, &text->tokens,
                     config->model.vocab_size, config->data.seq_len, setup_context(config), error))
        return -1;
    text->loader.teacher = &text->teacher;
    config->distill_top = text->teacher.header.top;
    return 0;
}

int setup_backend(struct backend *be, const struct config *config, const char *algorithms,
                  const struct ranks *ranks, struct error *error) {
    char store[FILE_PATH_MAX];
    struct backend_options options = {
        .device = config->device,
        .threads = (int)config->threads,
        .tf32 = config->tf32,
        .graphs = config->cuda_graphs,
        .without_wgmma = !config->cuda_wgmma,
        .autotune = config->autotune,
        .autotune_seconds = config->autotune_seconds,
        .algorithms = algorithms,
        .store = directory_of_cache(store) ? store : NULL,
        .ranks = ranks,
    };
    if (!algorithms) { /* a plan of its memory, but no trials */
        options.store = NULL;
        options.autotune_seconds = 0;
        if (options.autotune == AUTOTUNE_ON) options.autotune = AUTOTUNE_AUTO;
    }
    return backend_open(be, &options, error);
}

/* Reads the records beside the shards of a text, and compares each with the tokenizer, unless that
 * is NULL. Stores the last record. Returns RESULT_NONE if there is none. */
static int check_records(struct tokenizer_record *record, const struct source *text,
                         const struct tokenizer *tokenizer, struct error *error) {
    int result = RESULT_NONE;
    for (size_t i = 0; text->open && i < arrlenu(text->tokens.shards); i++) {
        struct tokenizer_record found;
        int status = tokenizer_record_of_shard(&found, text->tokens.shards[i].name, error);
        if (status == RESULT_FAILED) return -1;
        if (status == RESULT_NONE) continue;
        if (tokenizer && tokenizer_record_check(&found, tokenizer, error)) return -1;
        *record = found;
        result = RESULT_DONE;
    }
    return result;
}

static int check_kind(const struct tokenizer_record *record, const struct config *config,
                      struct error *error) {
    bool bytes = config->data.tokenizer == TOKENIZER_BYTES;
    if (bytes == (record->kind == TOKENIZER_BYTES)) return 0;
    const char *kind = tokenizer_kind_name(record->kind);
    return fail(error,
                "%.500s says that these shards were made with the tokenizer \"%s\", but "
                "data.tokenizer is \"%s\": set data.tokenizer to \"%s\", or prepare the text again",
                record->path, kind, tokenizer_kind_name(config->data.tokenizer), kind);
}

static const char *find_directory(const struct config *config, const char *from,
                                  const struct tokenizer_record *record) {
    bool by_flag = config_given_by_flag(config, "data.tokenizer_dir");
    if (from && tokenizer_in_directory(from) && !by_flag) return from;
    if (config->data.tokenizer_dir[0]) return config->data.tokenizer_dir;
    const char *others[] = {config->model.init_from, record ? record->directory : ""};
    for (int i = 0; i < 2; i++)
        if (others[i][0] && tokenizer_in_directory(others[i])) return others[i];
    return NULL;
}

static int check_vocabulary(struct tokenizer *tokenizer, const struct config *config,
                            const char *directory, struct error *error) {
    if (tokenizer_leave_out(tokenizer, config->model.vocab_size) > 0)
        note(stderr, "note",
             "%.500s: the model lacks the added tokens from number %" PRId64
             " on, which are ordinary text",
             directory, config->model.vocab_size);
    if (tokenizer->vocab_size <= config->model.vocab_size) return 0;
    char remedy[100];
    snprintf(remedy, sizeof remedy,
             config->model.init_from[0] ? "let transformers resize it: resize_token_embeddings(%d)"
                                        : "set model.vocab_size to %d",
             tokenizer->vocab_size);
    return fail(error,
                "the tokenizer in %.500s has %d tokens, but model.vocab_size is %" PRId64
                "\n%s, or use the model's own tokenizer",
                directory, tokenizer->vocab_size, config->model.vocab_size, remedy);
}

int setup_tokenizer(struct tokenizer *tokenizer, const struct config *config, const char *from,
                    const struct source *const *texts, int count, struct error *error) {
    bool bytes = config->data.tokenizer == TOKENIZER_BYTES;
    struct tokenizer_record record;
    bool recorded = false;
    *tokenizer = (struct tokenizer){0};
    for (int i = 0; i < count; i++) {
        int status = check_records(&record, texts[i], NULL, error);
        if (status < 0 || (status == 0 && check_kind(&record, config, error))) return -1;
        recorded = recorded || status == 0;
    }
    const char *directory = bytes ? "" : find_directory(config, from, recorded ? &record : NULL);
    if (!directory) {
        fail(error, "no tokenizer: name the folder of vocab.json and merges.txt, or of "
                    "tokenizer.json, in data.tokenizer_dir");
        return RESULT_NONE;
    }
    if (tokenizer_open(tokenizer, bytes ? TOKENIZER_BYTES : TOKENIZER_FILES, directory, error))
        return -1;
    int status = bytes ? 0 : check_vocabulary(tokenizer, config, directory, error);
    for (int i = 0; status == 0 && i < count; i++)
        if (check_records(&record, texts[i], tokenizer, error) < 0) status = -1;
    if (status) tokenizer_close(tokenizer);
    return status;
}

static void plan_model(struct model *model, const struct config *config, enum model_use use) {
    switch (use) {
    case MODEL_EVALUATED: evaluate_plan(model, config); break;
    case MODEL_SCORED: scorer_plan(model); break;
    case MODEL_SAMPLED: sample_plan(model); break;
    case MODEL_SAMPLED_EXACTLY: sample_plan_exact(model); break;
    }
}

int setup_model(struct model *model, const struct config *config, struct backend *be,
                enum model_use use, const char *from, struct error *error) {
    const enum model_purpose memory = use == MODEL_SAMPLED ? PURPOSE_SAMPLING : PURPOSE_EVALUATION;
    struct precision precision;
    if (precision_resolve(&precision, stderr, config, be, error)) return -1;
    int status = model_open(model, config, &precision, be, memory, error);
    if (status == 0) {
        backend_plan_begin(be);
        plan_model(model, config, use);
        status = backend_plan_end(be, error) || model_allocate(model, error) ||
                         checkpoint_load_weights(model, config, from, error)
                     ? -1
                     : 0;
    }
    if (status) model_close(model);
    return status;
}

/* Replaces error by its first line, which names the missing amount, and advice. The search uses a
 * second backend without trials, because planning on the trainer's may time matmuls. */
static void add_advice(const struct config *config, struct error *error) {
    struct backend be;
    struct memory_advice advice;
    struct printed message;
    struct error ignored;
    if (setup_backend(&be, config, NULL, NULL, &ignored)) return;
    int status = memory_advise(&advice, config, &be, backend_available(&be), host_memory_pinnable(),
                               &ignored);
    backend_close(&be);
    if (status < 0 || printed_open(&message)) return;
    fprintf(message.out, "%.*s\n", (int)strcspn(error->text, "\n"), error->text);
    memory_print_advice(message.out, &advice, status);
    if (printed_close(&message)) return;
    fail(error, "%.*s", (int)message.size - 1, message.text); /* without the last line break */
    free(message.text);
}

int setup_trainer(struct trainer *trainer, const struct config *config,
                  const struct precision *precision, struct backend *be, struct error *error) {
    if (trainer_open(trainer, config, precision, be, TRAINER_EMPTY, error) == 0) return 0;
    size_t needed = memory_total(&trainer->model.memory);
    trainer_close(trainer);
    if (needed > backend_available(be)) add_advice(config, error);
    return -1;
}
