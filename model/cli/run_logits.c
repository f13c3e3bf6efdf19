#include "model/cli/run_logits.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/min_max.h"
#include "data/util/progress.h"
#include "data/util/signals.h"
#include "model/config/config_keys.h"
#include "model/core/evaluate.h"
#include "model/core/forward.h"
#include "model/io/checkpoint.h"
#include "model/io/checkpoint_tensors.h"
#include "model/io/tensor_files.h"
#include "model/session/setup.h"

enum { TOP_DEFAULT = 64, BLOCK = 512, MEASURED_EVERY = 64 };

struct teaching {
    struct config config;
    const char *from, *folder;
    int64_t top;
    struct source text;
    struct backend be;
    bool backend_open;
    struct gpt gpt;
    struct batches batches;
    char teacher[SHA256_HEX_MAX]; /* of its weights and precision */
    void *logits;                 /* host, [logit_rows, V padded] as computed */
    char *records;                /* [logit_rows] records of the file */
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
    const struct tensor *logits = &t->gpt.activations.logits;
    const int64_t first = row * tensor_columns(logits), vocabulary = t->gpt.shape.vocab_size;
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

/* Writes the record of a row. Returns false if its largest logit is not finite. */
static bool pack_row(const struct teaching *t, const struct teacher_header *header, int64_t row) {
    struct candidate top[TEACHER_TOP_MAX];
    int32_t tokens[TEACHER_TOP_MAX];
    float differences[TEACHER_TOP_MAX];
    uint16_t narrow[TEACHER_TOP_MAX];
    const float largest = select_top(t, row, top);
    for (int64_t k = 0; k < t->top; k++) {
        tokens[k] = top[k].token;
        differences[k] = top[k].logit - largest;
    }
    dtype_store(narrow, DTYPE_F16, 0, differences, (size_t)t->top);
    teacher_pack(header, t->records + (size_t)row * teacher_record_bytes(header), tokens, narrow);
    return isfinite(largest);
}

/* Adds the part of a row's probability that its k largest logits hold. */
static void measure(struct teaching *t, int64_t row) {
    const struct tensor *logits = &t->gpt.activations.logits;
    struct candidate top[TEACHER_TOP_MAX];
    const float largest = select_top(t, row, top);
    double all = 0, held = 0;
    for (int64_t v = 0; v < t->gpt.shape.vocab_size; v++) {
        float value;
        const size_t at = (size_t)(row * tensor_columns(logits) + v);
        all += exp(*dtype_widen(&value, t->logits, logits->dtype, at, 1) - largest);
    }
    for (int64_t k = 0; k < t->top; k++) held += exp(top[k].logit - largest);
    t->held += held / all;
    t->measured++;
}

/* Writes the records of rows first .. first + rows - 1 of the batch. */
static int write_rows(struct teaching *t, const struct teacher_header *header,
                      struct file_writer *file, int64_t first, int64_t rows, struct error *error) {
    struct gpt *gpt = &t->gpt;
    const int64_t left = gpt->shape.rows - first, computed = MIN(left, gpt->shape.logit_rows);
    bool good = true;
    gpt_logits(gpt, first, computed); /* whole chunks, whose matmuls are planned */
    struct tensor logits = tensor_slice(&gpt->activations.logits, 0, rows);
    backend_download(&t->be, t->logits, logits.data, tensor_bytes(&logits));
    if (t->be.failure.text[0]) return fail(error, "%s", t->be.failure.text);
#pragma omp parallel for schedule(static) reduction(&& : good)
    for (int64_t row = 0; row < rows; row++) good = pack_row(t, header, row) && good;
    if (!good)
        return fail(error,
                    "%.400s: the teacher's logits are not finite\nuse another checkpoint, or "
                    "--set precision=bf16 or fp32",
                    t->from);
    for (int64_t row = 0; row < rows; row += MEASURED_EVERY) measure(t, row);
    return file_writer_put(file, t->records, (size_t)rows * teacher_record_bytes(header), error);
}

/* Writes the records of `count` sequences, of which the file takes at most `left`. */
static int write_batch(struct teaching *t, const struct teacher_header *header,
                       struct file_writer *file, uint64_t first, int64_t count, uint64_t left,
                       struct error *error) {
    struct gpt *gpt = &t->gpt;
    const int64_t full = count * gpt->shape.sequence_length;
    const int64_t rows = left < (uint64_t)full ? (int64_t)left : full;
    if (batches_put(&t->batches, gpt, &t->text.loader, (int64_t)first, count, NULL, error))
        return -1;
    gpt_forward(gpt);
    for (int64_t row = 0; row < rows; row += gpt->shape.logit_rows) {
        const int64_t rest = rows - row, chunk = MIN(rest, gpt->shape.logit_rows);
        if (write_rows(t, header, file, row, chunk, error)) return -1;
    }
    t->progress.finished = t->progress.read += (uint64_t)rows * teacher_record_bytes(header);
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
    const uint64_t length = (uint64_t)t->config.data.seq_len;
    const int64_t batch = t->gpt.shape.batch;
    char path[FILE_PATH_MAX];
    struct teacher_header header;
    struct file_writer file;
    if (teacher_path(path, t->folder, shard, error) ||
        teacher_describe(&header, shard, t->top, t->config.model.vocab_size, (int64_t)length,
                         t->config.data.isolate, error))
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
    for (uint64_t at = 0; status == 0 && at < header.records; at += (uint64_t)batch * length) {
        const uint64_t left = header.records - at, sequences = (left + length - 1) / length;
        const int64_t count = sequences < (uint64_t)batch ? (int64_t)sequences : batch;
        status = *t->stop
                     ? RESULT_STOPPED
                     : write_batch(t, &header, &file, loader->first_sequence[number] + at / length,
                                   count, left, error);
    }
    if (status == 0) status = file_writer_commit(&file, error);
    if (status) file_writer_abandon(&file);
    else t->written++;
    return status;
}

/* Hashes what the logits depend on besides the text: the weights, those of the adapters' model, and
 * the precision. */
static int hash_teacher(struct teaching *t, struct error *error) {
    struct tensor_files files;
    char weights[SHA256_HEX_MAX];
    const char *stem =
        shape_has_adapters(&t->gpt.shape) ? checkpoint_adapter_stem : checkpoint_model_stem;
    const char *precision = config_precision_name(precision_setting(&t->gpt.precision, &t->config));
    struct sha256 hash;
    if (tensor_files_open_directory(&files, t->from, stem, error)) return -1;
    int status = tensor_files_fingerprint(weights, &files, error);
    tensor_files_close(&files);
    sha256_begin(&hash);
    if (status == 0) sha256_add(&hash, weights, strlen(weights));
    sha256_add(&hash, t->gpt.base_fingerprint, strlen(t->gpt.base_fingerprint));
    sha256_add(&hash, precision, strlen(precision));
    sha256_end(t->teacher, &hash);
    return status;
}

static int open_model(struct teaching *t, struct error *error) {
    struct precision precision;
    if (setup_backend(&t->be, &t->config, NULL, NULL, error)) return -1;
    t->backend_open = true;
    if (setup_precision(&precision, &t->config, &t->be, error)) return -1;
    if (gpt_open(&t->gpt, &t->config, &precision, &t->be, GPT_EVALUATION, error)) return -1;
    backend_plan_begin(&t->be);
    evaluate_plan(&t->gpt);
    if (backend_plan_end(&t->be, error) || gpt_allocate(&t->gpt, error) ||
        checkpoint_load_weights(&t->gpt, &t->config, t->from, error) || hash_teacher(t, error) ||
        batches_open(&t->batches, &t->gpt, error))
        return -1;
    const size_t tops = (size_t)(t->gpt.shape.logit_rows * t->top);
    t->logits = malloc(tensor_bytes(&t->gpt.activations.logits));
    t->records = malloc(tops * (sizeof(int32_t) + sizeof(uint16_t)));
    return t->logits && t->records ? 0 : fail(error, "out of memory for a chunk of logits");
}

static int open_text(struct teaching *t, const char *data, struct error *error) {
    const struct source *texts[] = {&t->text};
    struct tokenizer tokenizer;
    /* A model that was tuned on pairs reads text here. Its sequences of pairs may have been longer
     * than its positions, which begin anew in each document. */
    const bool tuned = t->config.train.objective != CONFIG_OBJECTIVE_LANGUAGE;
    t->config.train.objective = CONFIG_OBJECTIVE_LANGUAGE;
    t->config.data.seq_len = MIN(t->config.data.seq_len, t->config.model.n_positions);
    if (source_open(&t->text, &t->config, data, false, error)) return -1;
    if (tuned) t->config.data.isolate = loader_has_starts(&t->text.loader);
    if (setup_isolation(&t->config, &t->text, error)) return -1;
    t->text.loader.options.shuffle = false;
    int status = setup_tokenizer(&tokenizer, &t->config, t->from, texts, 1, error);
    tokenizer_close(&tokenizer);
    if (status == RESULT_NONE) print_notes("note", error->text);
    error->text[0] = status < 0 ? error->text[0] : '\0';
    return status < 0 ? -1 : 0;
}

static int write_all(struct teaching *t, const char *data, struct error *error) {
    const struct tokens *tokens = &t->text.tokens;
    uint64_t records = 0;
    int status = directory_create(t->folder, error);
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
    fprintf(stderr, "stopped by %s; the same command continues\n", signal_text((int)*t->stop));
    return EXIT_SIGNAL + (int)*t->stop;
}

static void close_all(struct teaching *t) {
    free(t->logits);
    free(t->records);
    if (t->batches.be) batches_close(&t->batches);
    if (t->gpt.be) gpt_close(&t->gpt);
    if (t->backend_open) backend_close(&t->be);
    source_close(&t->text);
}

int run_logits(const struct config *config, const char *from, const struct command_line *line,
               struct error *error) {
    struct teaching t = {.config = *config, .from = from, .folder = line->logits};
    /* --data sets data.val, as for --eval. */
    const bool given = config_given_by_flag(config, "data.val");
    const char *data = given ? config->data.val : config->data.train;
    t.top = line->top > 0 ? line->top : TOP_DEFAULT;
    t.stop = signals_catch();
    if (!data[0])
        return fail(error,
                    "--logits needs --data GLOB, token shards made with ./prepare: the model "
                    "names no data.train"),
               EXIT_USAGE;
    if (t.top > config->model.vocab_size)
        return fail(error, "--top %" PRId64 ": the teacher has a vocabulary of %" PRId64 " tokens",
                    t.top, config->model.vocab_size),
               EXIT_USAGE;
    const bool failed = open_text(&t, data, error) || open_model(&t, error);
    const int status = failed ? EXIT_FAILED : write_all(&t, data, error);
    close_all(&t);
    return status;
}
