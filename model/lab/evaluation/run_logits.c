#include "model/lab/evaluation/run_logits.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/min_max.h"
#include "data/util/note.h"
#include "data/util/progress.h"
#include "data/util/signals.h"
#include "model/config/config_keys.h"
#include "model/pass/forward.h"
#include "model/session/model_hash.h"
#include "model/session/setup.h"
#include "model/task/evaluate.h"

enum { TOP_DEFAULT = 64, BLOCK = 512, MEASURED_EVERY = 64 };

struct teaching {
    struct config config;
    const char *from, *folder;
    int64_t top;
    struct source text;
    struct backend be;
    bool backend_open;
    struct model model;
    struct batches batches;
    char teacher[SHA256_HEX_MAX]; /* model_hash */
    void *logits;                 /* host, [logit_rows, V padded] as computed */
    char *records;                /* [B, T] records of the file */
    struct progress progress;
    double held; /* sum of the probabilities that the k tokens of `measured` rows hold */
    int64_t measured, written, kept;
    const volatile sig_atomic_t *stop;
};

struct candidate {
    float logit;
    int32_t token;
};

/* True if a belongs before b among the largest; of equal logits the lower token does. */
static bool is_above(struct candidate a, struct candidate b) {
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

/* Puts an element into a heap of `count` whose root, the lowest, it replaces. */
static void replace_root(struct candidate *heap, int64_t count, struct candidate element) {
    int64_t at = 0;
    for (int64_t child = 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && is_above(heap[child], heap[child + 1])) child++;
        if (!is_above(element, heap[child])) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = element;
}

static int by_token(const void *a, const void *b) {
    const struct candidate *left = a, *right = b;
    return (left->token > right->token) - (left->token < right->token);
}

/* Finds the k largest logits of a row, in the order of their tokens. Returns the largest one, or
 * NaN if a logit is NaN. */
static float select_top(const struct teaching *t, int64_t row, struct candidate *heap) {
    const struct tensor *logits = &t->model.activations.logits;
    const int64_t first = row * tensor_columns(logits), vocabulary = t->model.shape.vocab_size;
    float buffer[BLOCK], largest = -INFINITY;
    bool is_nan = false;
    for (int64_t k = 0; k < t->top; k++) heap[k] = (struct candidate){-INFINITY, INT32_MAX};
    for (int64_t v = 0; v < vocabulary; v += BLOCK) {
        const int64_t left = vocabulary - v, count = MIN(left, BLOCK);
        const float *x =
            dtype_widen(buffer, t->logits, logits->dtype, (size_t)(first + v), (size_t)count);
        for (int64_t i = 0; i < count; i++) {
            const struct candidate candidate = {x[i], (int32_t)(v + i)};
            is_nan |= isnan(x[i]);
            largest = x[i] > largest ? x[i] : largest;
            if (is_above(candidate, heap[0])) replace_root(heap, t->top, candidate);
        }
    }
    qsort(heap, (size_t)t->top, sizeof *heap, by_token);
    return is_nan ? NAN : largest;
}

/* Packs the record of row `row` of the logits, which begin with row `first` of the batch. Returns
 * false if its largest logit is not finite. */
static bool pack_row(const struct teaching *t, const struct teacher_header *header, int64_t first,
                     int64_t row) {
    struct candidate top[DISTILLATION_TOP_MAX];
    int32_t tokens[DISTILLATION_TOP_MAX];
    float differences[DISTILLATION_TOP_MAX];
    uint16_t narrow[DISTILLATION_TOP_MAX];
    const float largest = select_top(t, row, top);
    for (int64_t k = 0; k < t->top; k++) {
        tokens[k] = top[k].token;
        differences[k] = top[k].logit - largest;
    }
    dtype_store(narrow, DTYPE_F16, 0, differences, (size_t)t->top);
    teacher_pack(header, t->records + (size_t)(first + row) * teacher_record_bytes(header), tokens,
                 narrow);
    return isfinite(largest);
}

/* Adds the part of a row's probability that its k largest logits hold. */
static void measure(struct teaching *t, int64_t row) {
    const struct tensor *logits = &t->model.activations.logits;
    struct candidate top[DISTILLATION_TOP_MAX];
    const float largest = select_top(t, row, top);
    double all = 0, held = 0;
    for (int64_t v = 0; v < t->model.shape.vocab_size; v++) {
        float value;
        const size_t at = (size_t)(row * tensor_columns(logits) + v);
        all += exp(*dtype_widen(&value, t->logits, logits->dtype, at, 1) - largest);
    }
    for (int64_t k = 0; k < t->top; k++) held += exp(top[k].logit - largest);
    t->held += held / all;
    t->measured++;
}

/* Computes the records of rows first .. first + rows - 1 of the batch. */
static int compute_rows(struct teaching *t, const struct teacher_header *header, int64_t first,
                        int64_t rows, struct error *error) {
    struct model *model = &t->model;
    const int64_t left = model->shape.rows - first, computed = MIN(left, model->shape.logit_rows);
    bool good = true;
    model_logits(model, first, computed); /* whole chunks, whose matmuls are planned */
    struct tensor logits = tensor_slice(&model->activations.logits, 0, rows);
    backend_download(&t->be, t->logits, logits.data, tensor_bytes(&logits));
    if (t->be.failure.text[0]) return fail(error, "%s", t->be.failure.text);
#pragma omp parallel for schedule(static) reduction(&& : good)
    for (int64_t row = 0; row < rows; row++) good = pack_row(t, header, first, row) && good;
    if (!good)
        return fail(error,
                    "%.400s: the teacher's logits are not finite\nuse another checkpoint, or "
                    "--set precision=bf16 or fp32",
                    t->from);
    for (int64_t row = 0; row < rows; row += MEASURED_EVERY) measure(t, row);
    return 0;
}

/* Writes the records of `count` samples, each to the place of its token. */
static int write_batch(struct teaching *t, const struct teacher_header *header,
                       struct file_writer *file, uint64_t sample, int64_t count,
                       struct error *error) {
    struct model *model = &t->model;
    const int64_t length = model->shape.sequence_length;
    const size_t bytes = teacher_record_bytes(header);
    if (batches_put(&t->batches, &t->text.loader, (int64_t)sample, count, NULL, error)) return -1;
    const struct pass pass = batches_pass(&t->batches, model, PASS_EVALUATE);
    model_forward(&pass);
    for (int64_t row = 0; row < count * length; row += model->shape.logit_rows) {
        const int64_t rest = count * length - row, chunk = MIN(rest, model->shape.logit_rows);
        if (compute_rows(t, header, row, chunk, error)) return -1;
    }
    for (int64_t i = 0; i < count; i++) {
        const char *records = t->records + (size_t)(i * length) * bytes;
        for (struct span span = loader_first_span(&t->text.loader, sample + (uint64_t)i);
             span.length > 0; span = loader_next_span(&t->text.loader, span)) {
            if (file_writer_patch(file, TEACHER_HEADER_BYTES + span.start * bytes, records,
                                  span.length * bytes, error))
                return -1;
            records += span.length * bytes;
            t->progress.finished = t->progress.read += span.length * bytes;
        }
    }
    progress_show(&t->progress, 0);
    return 0;
}

/* Returns RESULT_DONE if the file of a shard is complete, RESULT_NONE if there is none. */
static int find_complete(const char *path, const struct teacher_header *wanted,
                         struct error *error) {
    struct file_reader file;
    struct teacher_header found;
    if (!file_exists(path)) return RESULT_NONE;
    if (file_reader_open(&file, path, error)) return -1;
    int status = teacher_read_header(&found, &file, error);
    file_reader_close(&file);
    if (status || memcmp(&found, wanted, sizeof found) == 0) return status;
    return fail(
        error,
        "%.400s is there already, of another teacher or precision, for another text or with "
        "another --top\nremove it, or name another folder",
        path);
}

static int write_shard(struct teaching *t, size_t number, struct error *error) {
    const struct loader *loader = &t->text.loader;
    const struct token_shard *shard = &t->text.tokens.shards[number];
    const int64_t batch = t->model.shape.batch;
    char path[FILE_PATH_MAX];
    struct teacher_header header;
    struct file_writer file;
    if (teacher_path(path, t->folder, shard, error) ||
        teacher_describe(&header, shard, t->top, t->config.model.vocab_size, t->config.data.seq_len,
                         setup_context(&t->config), error))
        return -1;
    memcpy(header.teacher, t->teacher, sizeof t->teacher);
    int status = find_complete(path, &header, error);
    if (status == RESULT_DONE) {
        t->progress.finished = t->progress.read += header.records * teacher_record_bytes(&header);
        t->kept++;
    }
    if (status != RESULT_NONE) return status;
    if (file_writer_open(&file, path, error)) return -1;
    status = file_writer_put(&file, &header, sizeof header, error);
    if (status == 0)
        status = file_writer_extend(
            &file, sizeof header + header.records * teacher_record_bytes(&header), error);
    const uint64_t end = number + 1 < arrlenu(loader->first_sequence)
                             ? loader->first_sequence[number + 1]
                             : loader->sequence_count;
    for (uint64_t at = loader->first_sequence[number]; status == 0 && at < end;
         at += (uint64_t)batch) {
        const int64_t left = (int64_t)(end - at), count = MIN(left, batch);
        status = *t->stop ? RESULT_STOPPED : write_batch(t, &header, &file, at, count, error);
    }
    if (status == 0) status = file_writer_commit(&file, error);
    if (status) file_writer_abandon(&file);
    else t->written++;
    return status;
}

static int open_model(struct teaching *t, struct error *error) {
    if (setup_backend(&t->be, &t->config, NULL, NULL, error)) return -1;
    t->backend_open = true;
    if (setup_model(&t->model, &t->config, &t->be, MODEL_EVALUATED, t->from, error)) return -1;
    t->config.precision = precision_setting(&t->model.precision, &t->config);
    if (model_hash(t->teacher, &t->model, &t->config, t->from, error) ||
        batches_open(&t->batches, &t->model, &t->config, error))
        return -1;
    const size_t tops = (size_t)(t->model.shape.rows * t->top);
    t->logits = malloc(tensor_bytes(&t->model.activations.logits));
    t->records = malloc(tops * (sizeof(int32_t) + sizeof(uint16_t)));
    return t->logits && t->records ? 0 : fail_memory(error, "a chunk of logits");
}

static int open_text(struct teaching *t, const char *data, struct error *error) {
    const struct source *texts[] = {&t->text};
    struct tokenizer tokenizer;
    /* A model that was tuned on pairs reads text here. Its sequences of pairs may have been longer
     * than its positions, which begin anew in each document. */
    const bool tuned = !config_reads_text(&t->config);
    t->config.train.objective = CONFIG_OBJECTIVE_LANGUAGE;
    t->config.data.seq_len = MIN(t->config.data.seq_len, t->config.model.n_positions);
    if (source_open(&t->text, &t->config, data, SOURCE_TRAINING, error)) return -1;
    if (tuned) t->config.data.isolate = loader_has_starts(&t->text.loader);
    if (setup_documents(&t->config, &t->text, error)) return -1;
    t->text.loader.options.shuffle = false;
    int status = setup_tokenizer(&tokenizer, &t->config, t->from, texts, 1, error);
    tokenizer_close(&tokenizer);
    if (status == RESULT_NONE) note_error(stderr, "note", error);
    return status < 0 ? -1 : 0;
}

static int write_all(struct teaching *t, const char *data, struct error *error) {
    const struct tokens *tokens = &t->text.tokens;
    uint64_t records = 0;
    int status = 0;
    if (teacher_check_names(tokens, error) || directory_create(t->folder, error))
        return EXIT_FAILED;
    for (size_t i = 0; i < arrlenu(tokens->shards); i++)
        records += tokens->shards[i].count > 0 ? tokens->shards[i].count - 1 : 0;
    const struct teacher_header like = {.top = (uint32_t)t->top,
                                        .vocab_size = (uint32_t)t->config.model.vocab_size};
    const uint64_t bytes = records * teacher_record_bytes(&like);
    char size[16];
    printf("text       %s: %" PRIu64 " tokens, sequences of %" PRId64 "%s\n", data, tokens->count,
           t->config.data.seq_len, t->config.data.isolate ? "; documents isolated" : "");
    printf("logits     %s: the %" PRId64 " largest of each token, %s\n", t->folder, t->top,
           progress_bytes(size, (double)bytes));
    fflush(stdout);
    progress_open(&t->progress, stderr, bytes);
    for (size_t i = 0; status == 0 && i < arrlenu(tokens->shards); i++)
        status = write_shard(t, i, error);
    progress_erase(&t->progress);
    printf("files      %" PRId64 " written, %" PRId64 " complete before\n", t->written, t->kept);
    if (t->measured > 0)
        printf("held       %.2f %% of the probability, in the mean of every %dth token\n",
               100 * t->held / (double)t->measured, MEASURED_EVERY);
    if (status != RESULT_STOPPED) return status ? EXIT_FAILED : EXIT_DONE;
    note(stderr, "note", "stopped by %s; %s", signal_text((int)*t->stop),
         t->written + t->kept > 0 ? "complete files are kept; the same command writes the others"
                                  : "no file is complete yet, so the same command starts over");
    return EXIT_SIGNAL + (int)*t->stop;
}

static void close_all(struct teaching *t) {
    free(t->logits);
    free(t->records);
    if (t->batches.be) batches_close(&t->batches);
    if (t->model.be) model_close(&t->model);
    if (t->backend_open) backend_close(&t->be);
    source_close(&t->text);
}

int run_logits(const struct config *config, const char *from, const struct command_line *line,
               struct error *error) {
    struct teaching t = {.config = *config, .from = from, .folder = line->logits};
    /* A flag sets one key whatever the command is: --data sets data.val, as --eval needs it. A
     * data.val that the model's config gives is not meant here. */
    const bool given = config_given_by_flag(config, "data.val");
    const char *data = given ? config->data.val : config->data.train;
    t.top = line->top > 0 ? line->top : TOP_DEFAULT;
    t.stop = signals_catch();
    if (!data[0]) {
        fail(error, "--logits needs --data GLOB, token shards made with ./prepare: the model "
                    "names no data.train");
        return EXIT_USAGE;
    }
    if (t.top > config->model.vocab_size) {
        fail(error, "--top %" PRId64 ": the teacher has a vocabulary of %" PRId64 " tokens", t.top,
             config->model.vocab_size);
        return EXIT_USAGE;
    }
    const bool failed = open_text(&t, data, error) || open_model(&t, error);
    const int status = failed ? EXIT_FAILED : write_all(&t, data, error);
    close_all(&t);
    return status;
}
