#include "model/session/setup.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/files.h"
#include "data/util/host_memory.h"
#include "data/util/printed.h"
#include "data/util/random.h"
#include "data/util/utf8.h"
#include "data/corpus/tales.h"
#include "data/corpus/tales_pairs.h"
#include "data/corpus/tokenizer_record.h"
#include "kernels/open/backend_open.h"
#include "model/config/config_keys.h"
#include "model/plan/memory_text.h"

uint64_t derive_seed(int64_t seed, enum seed_use use) {
    return random_bits((uint64_t)seed, use, 0);
}

/* Fails if the rows of the data are of another kind than the objective's. */
static int check_rows(const struct tokens *tokens, const struct config *config, const char *what,
                      struct error *error) {
    const enum config_objective objective = config->train.objective;
    const bool pairs = objective != CONFIG_OBJECTIVE_LANGUAGE;
    const bool single = objective == CONFIG_OBJECTIVE_KTO;
    const char *name = config_name_of("train.objective", objective);
    if (pairs == pairs_exist(tokens) && (!pairs || single == pairs_labelled(tokens))) return 0;
    if (!pairs)
        return fail(error, "%.600s holds pairs of answers\nset train.objective, to dpo for example",
                    what);
    return fail(error,
                "train.objective is %s, but %.600s does not hold rows with %s\nprepare such rows, "
                "or choose another objective",
                name, what,
                single ? "\"prompt\", \"completion\" and \"label\""
                       : "\"prompt\", \"chosen\" and \"rejected\"");
}

int source_open(struct source *source, const struct config *config, const char *what,
                bool validation, struct error *error) {
    struct loader_options options = {
        .seq_len = (int)config->data.seq_len,
        .seed = derive_seed(config->seed, SEED_DATA),
        .shuffle = !validation,
        .vocab_size = (int)config->model.vocab_size,
        .pairs = config->train.objective != CONFIG_OBJECTIVE_LANGUAGE,
        .longest = (int)config->model.n_positions,
        .prompts = config->train.objective == CONFIG_OBJECTIVE_ORPO,
    };
    *source = (struct source){0};
    int failed = strcmp(what, "tales") != 0 ? tokens_open(&source->tokens, what, error)
                 : options.pairs            ? tales_pairs(&source->tokens, validation, error)
                                            : tales_tokens(&source->tokens, validation, error);
    if (failed) return -1;
    if (check_rows(&source->tokens, config, what, error) ||
        loader_open(&source->loader, &source->tokens, &options, error)) {
        tokens_close(&source->tokens);
        return -1;
    }
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

int setup_isolation(struct config *config, const struct source *text, struct error *error) {
    bool marked = text->open && loader_has_starts(&text->loader);
    if (!config_given(config, "data.isolate")) config->data.isolate = marked;
    if (marked || !config->data.isolate || !text->open) return 0;
    return fail(error,
                "data.isolate is true, but nothing marks where documents begin in %.600s\nprepare "
                "the text again from rows or chats, or set data.isolate to false",
                config->data.train);
}

int setup_distillation(struct config *config, struct source *text, struct error *error) {
    _Static_assert((int)TEACHER_TOP_MAX == (int)DISTILLATION_TOP_MAX, "the same limit");
    if (!config->distill.logits[0] || !text->open) return 0;
    if (teacher_open(&text->teacher, config->distill.logits, &text->tokens,
                     config->model.vocab_size, config->data.seq_len, config->data.isolate, error))
        return -1;
    text->loader.teacher = &text->teacher;
    config->distill_top = text->teacher.header.top;
    return 0;
}

int setup_backend(struct backend *be, const struct config *config, const char *choices,
                  const struct ranks *ranks, struct error *error) {
    static const enum device devices[] = {[CONFIG_DEVICE_AUTO] = DEVICE_AUTO,
                                          [CONFIG_DEVICE_CPU] = DEVICE_CPU,
                                          [CONFIG_DEVICE_CUDA] = DEVICE_CUDA};
    _Static_assert((int)AUTOTUNE_OFF == (int)CONFIG_AUTOTUNE_OFF &&
                       (int)AUTOTUNE_AUTO == (int)CONFIG_AUTOTUNE_AUTO &&
                       (int)AUTOTUNE_ON == (int)CONFIG_AUTOTUNE_ON,
                   "the same values");
    char store[FILE_PATH_MAX];
    struct backend_options options = {
        .device = devices[config->device],
        .threads = (int)config->threads,
        .tf32 = config->tf32,
        .graphs = config->cuda_graphs,
        .without_wgmma = !config->cuda_wgmma,
        .autotune = (enum autotune)config->autotune,
        .autotune_seconds = config->autotune_seconds,
        .algorithms = choices,
        .store = directory_of_cache(store) ? store : NULL,
        .ranks = ranks,
    };
    if (!choices) { /* a plan of its memory, but no trials */
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
    bool bytes = config->data.tokenizer == CONFIG_TOKENIZER_BYTES;
    if (bytes == (record->kind == TOKENIZER_BYTES)) return 0;
    const char *kind = tokenizer_kind_name(record->kind);
    return fail(error,
                "%.500s says that these shards were made with the tokenizer \"%s\",\nbut "
                "data.tokenizer is \"%s\": set data.tokenizer to \"%s\", or prepare the text again",
                record->path, kind, config_tokenizer_name(config->data.tokenizer), kind);
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
        fprintf(stderr,
                "note: %.500s: the model lacks the added tokens from number %" PRId64
                " on, which are ordinary text\n",
                directory, config->model.vocab_size);
    if (tokenizer->vocab_size <= config->model.vocab_size) return 0;
    return fail(error,
                "the tokenizer in %.500s has %d tokens, but model.vocab_size is %" PRId64
                "\nset model.vocab_size to %d, or use another tokenizer",
                directory, tokenizer->vocab_size, config->model.vocab_size, tokenizer->vocab_size);
}

int setup_tokenizer(struct tokenizer *tokenizer, const struct config *config, const char *from,
                    const struct source *const *texts, int count, struct error *error) {
    bool bytes = config->data.tokenizer == CONFIG_TOKENIZER_BYTES;
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

int setup_precision(struct precision *precision, const struct config *config,
                    const struct backend *be, struct error *error) {
    char note[PRECISION_NOTE_MAX];
    if (precision_resolve(precision, note, config, be, error)) return -1;
    print_notes("note", note);
    return 0;
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
    size_t needed = memory_total(&trainer->gpt.memory);
    trainer_close(trainer);
    if (needed > backend_available(be)) add_advice(config, error);
    return -1;
}

void print_notes(const char *prefix, const char *text) {
    while (*text) {
        int length = (int)strcspn(text, "\n");
        fprintf(stderr, "%s: ", prefix);
        utf8_print(stderr, text, (size_t)length);
        fputc('\n', stderr);
        text += length + (text[length] == '\n');
    }
}
