#include "model/io/checkpoint_manifest.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/files.h"
#include "data/util/json_escape.h"
#include "model/config/config_read.h"
#include "data/util/json.h"
#include "data/util/printed.h"
#include "data/util/program.h"

#define WHOLE_MAX (INT64_C(1) << 53)

const char checkpoint_manifest_name[] = "trainer.json";
const char checkpoint_model_stem[] = "model", checkpoint_adapter_stem[] = "adapter_model",
           checkpoint_optimizer_stem[] = "optimizer";
const char checkpoint_config_name[] = "config.json";
const char checkpoint_generation_name[] = "generation_config.json";

static const char hash_line_format[] = ",\n  \"sha256\": \"%s\"\n}\n";
enum { HASH_LINE_BYTES = sizeof hash_line_format - 3 + SHA256_HEX_MAX - 1 };

/* Writes the text that ends a file with this body. */
static void make_hash_line(char hash_line[HASH_LINE_BYTES + 1], const char *body, size_t size) {
    char hex[SHA256_HEX_MAX];
    sha256_of(hex, body, size);
    snprintf(hash_line, HASH_LINE_BYTES + 1, hash_line_format, hex);
}

/* Counts of the scaler that persist between steps. */
#define SCALER_COUNTS(X) X(growth_tracker) X(updates) X(skipped) X(skipped_in_row) X(at_floor)

static void print_scaler(FILE *out, const struct step_state *scaler) {
    char scale[CONFIG_NUMBER_MAX];
    fprintf(out, "  \"scaler\": {\"loss_scale\": %s",
            config_format_number(scale, (double)scaler->loss_scale));
#define X(count) fprintf(out, ", \"" #count "\": %" PRId32, scaler->count);
    SCALER_COUNTS(X)
#undef X
    fputs("},\n", out);
}

static void print_best(FILE *out, const struct best_validation *best) {
    char loss[CONFIG_NUMBER_MAX];
    if (best->step == 0) return;
    fprintf(out,
            "  \"best\": {\"val_loss\": %s, \"step\": %" PRId64 ", \"since\": %" PRId64
            ", \"last\": %" PRId64 "},\n",
            config_format_number(loss, best->loss), best->step, best->since, best->last);
}

/* Prints the text of the config, indented by two more columns. */
static int print_config(FILE *out, const struct config *config, struct error *error) {
    size_t size = 0;
    char *text = config_json_text(config, &size);
    if (!text) return fail_memory(error, "%s", checkpoint_manifest_name);
    while (size > 0 && text[size - 1] == '\n') size--;
    fputs("  \"config\": ", out);
    for (size_t i = 0; i < size; i++) {
        fputc(text[i], out);
        if (text[i] == '\n') fputs("  ", out);
    }
    fputs(",\n", out);
    free(text);
    return 0;
}

/* Returns the oldest format that can represent the checkpoint. */
static int format_of(const struct trainer *trainer, const struct stored_file *files) {
    const struct bucket *buckets = trainer->optimizer.exchange.shards.buckets;
    for (ptrdiff_t i = 0; i < arrlen(buckets); i++)
        if (buckets[i].coded) return CHECKPOINT_FORMAT_CODES;
    if (shape_has_adapters(&trainer->model.shape)) return CHECKPOINT_FORMAT_ADAPTERS;
    for (ptrdiff_t i = 0; i < arrlen(files); i++)
        if (strstr(files[i].name, ".index.json")) return CHECKPOINT_FORMAT_SHARDS;
    return trainer->model.precision.moments == DTYPE_F32 ? CHECKPOINT_FORMAT
                                                         : CHECKPOINT_FORMAT_MOMENTS;
}

static const char *const hashed_names[HASHED_DATA] = {"train", "val", "teacher"};

static void print_hashes(FILE *out, const struct trainer *trainer) {
    const char *separator = "  \"data\": {";
    for (int i = 0; i < HASHED_DATA; i++) {
        if (!trainer->data_hashes[i]) continue;
        fprintf(out, "%s\"%s\": ", separator, hashed_names[i]);
        json_print_string(out, trainer->data_hashes[i]);
        separator = ", ";
    }
    if (*separator == ',') fputs("},\n", out);
}

static int print_body(FILE *out, const struct trainer *trainer, const struct training_state *state,
                      const struct stored_file *files, struct error *error) {
    const struct config *config = trainer->config;
    fprintf(out,
            "{\n  \"format\": %d,\n  \"mantissa\": \"%s\",\n  \"step\": %" PRId64
            ",\n  \"tokens\": %" PRId64 ",\n  \"next_sample\": %" PRId64 ",\n",
            format_of(trainer, files), MANTISSA_VERSION, state->step, state->tokens,
            state->next_sample);
    fprintf(out,
            "  \"seed\": %" PRId64 ",\n  \"micro_batch_size\": %" PRId64
            ",\n  \"grad_accum_steps\": %" PRId64 ",\n  \"seq_len\": %" PRId64
            ",\n  \"precision\": \"%s\",\n",
            config->seed, config->train.micro_batch_size, config->train.grad_accum_steps,
            config->data.seq_len, precision_name(&trainer->model.precision));
    if (config->packed_sequences > 0)
        fprintf(out, "  \"packed_sequences\": %" PRId64 ",\n", config->packed_sequences);
    print_scaler(out, &state->scaler);
    print_best(out, &state->best);
    if (shape_has_adapters(&trainer->model.shape))
        fprintf(out, "  \"base_sha256\": \"%s\",\n", trainer->model.base_fingerprint);
    print_hashes(out, trainer);
    if (print_config(out, config, error)) return -1;
    fputs("  \"files\": {", out);
    for (ptrdiff_t i = 0; i < arrlen(files); i++) {
        const struct stored_file *file = &files[i];
        fputs(i ? ",\n    " : "\n    ", out);
        json_print_string(out, file->name);
        fprintf(out, ": {\"bytes\": %" PRIu64 ", \"sha256\": \"%s\"}", file->bytes, file->sha256);
    }
    fputs("\n  }", out);
    return 0;
}

int checkpoint_write_manifest(const struct trainer *trainer, const struct training_state *state,
                              const struct stored_file *files, const char *path,
                              struct error *error) {
    char hash_line[HASH_LINE_BYTES + 1];
    struct printed body;
    if (printed_open(&body)) return fail_memory(error, "%.400s", path);
    int status = print_body(body.out, trainer, state, files, error);
    if (status == 0 && fflush(body.out) == 0) {
        make_hash_line(hash_line, body.text, body.size);
        fputs(hash_line, body.out);
    }
    if (status == 0) return printed_write(&body, path, NULL, error);
    if (printed_close(&body) == 0) free(body.text);
    return status;
}

/* A file being read, for messages. */
struct manifest_reader {
    const cJSON *root;
    const char *where;
    struct error *error;
};

static int missing_key(const struct manifest_reader *reader, const char *key) {
    return fail(reader->error,
                "%s: \"%s\" is missing or has no possible value\nuse another "
                "checkpoint",
                reader->where, key);
}

static int check_hash(const struct manifest_reader *reader, const struct json_file *file) {
    char hash_line[HASH_LINE_BYTES + 1];
    int64_t format = 0;
    if (!json_whole(&format, reader->root, "format", 0, WHOLE_MAX))
        return missing_key(reader, "format");
    if (format < CHECKPOINT_FORMAT || format > CHECKPOINT_FORMAT_CODES)
        return fail(
            reader->error,
            "%s: its format is %" PRId64 ", this mantissa (%s) reads formats %d to %d\nuse the "
            "mantissa that wrote it",
            reader->where, format, MANTISSA_VERSION, CHECKPOINT_FORMAT, CHECKPOINT_FORMAT_CODES);
    size_t body = file->size > HASH_LINE_BYTES ? file->size - HASH_LINE_BYTES : 0;
    make_hash_line(hash_line, file->text, body);
    if (body > 0 && memcmp(file->text + body, hash_line, HASH_LINE_BYTES) == 0) return 0;
    return fail(reader->error,
                "%s: it was changed after it was written: its own sha256 differs\n"
                "restore it, or use another checkpoint",
                reader->where);
}

static int read_whole(int64_t *value, const struct manifest_reader *reader, const char *key) {
    return json_whole(value, reader->root, key, 0, WHOLE_MAX) ? 0 : missing_key(reader, key);
}

/* Reads next_sample and the length of its sequences, whose product is a number of tokens. */
static int read_position(const struct manifest_reader *reader,
                         struct checkpoint_manifest *manifest) {
    int64_t *next = &manifest->state.next_sample;
    if (!json_whole(&manifest->seq_len, reader->root, "seq_len", 1, WHOLE_MAX))
        return missing_key(reader, "seq_len");
    if (json_member(reader->root, "packed_sequences") &&
        !json_whole(&manifest->packed_sequences, reader->root, "packed_sequences", 1, WHOLE_MAX))
        return missing_key(reader, "packed_sequences");
    return json_whole(next, reader->root, "next_sample", 0, WHOLE_MAX / manifest->seq_len)
               ? 0
               : missing_key(reader, "next_sample");
}

/* Reads "best", which is absent before the first validation. Older versions wrote it without
 * "last", or not at all. */
static int read_best(const struct manifest_reader *reader, struct best_validation *best) {
    const cJSON *saved = json_member(reader->root, "best"), *loss = json_member(saved, "val_loss");
    if (!saved) return 0;
    if (!cJSON_IsNumber(loss) || !isfinite(loss->valuedouble) ||
        !json_whole(&best->step, saved, "step", 1, WHOLE_MAX) ||
        !json_whole(&best->since, saved, "since", 0, WHOLE_MAX) ||
        (json_member(saved, "last") && !json_whole(&best->last, saved, "last", 1, WHOLE_MAX)))
        return missing_key(reader, "best");
    best->loss = loss->valuedouble;
    return 0;
}

static int read_scaler(const struct manifest_reader *reader, struct step_state *scaler) {
    const cJSON *saved = json_member(reader->root, "scaler");
    const cJSON *scale = json_member(saved, "loss_scale");
    double value = cJSON_IsNumber(scale) ? scale->valuedouble : 0;
    int64_t whole;
    scaler->loss_scale = value <= FLT_MAX ? (float)value : 0;
    if (!(scaler->loss_scale > 0)) return missing_key(reader, "loss_scale");
#define X(count)                                                                              \
    if (!json_whole(&whole, saved, #count, 0, INT32_MAX)) return missing_key(reader, #count); \
    scaler->count = (int32_t)whole;
    SCALER_COUNTS(X)
#undef X
    return 0;
}

static int read_precision(const struct manifest_reader *reader,
                          struct checkpoint_manifest *manifest) {
    const char *name = json_text(reader->root, "precision");
    enum config_precision *precision = &manifest->precision;
    for (*precision = 0; name && *precision < CONFIG_PRECISION_AUTO; ++*precision)
        if (strcmp(name, config_precision_name(*precision)) == 0) return 0;
    return missing_key(reader, "precision");
}

static void read_hash(char hash[SHA256_HEX_MAX], const cJSON *object, const char *name) {
    const char *hex = json_text(object, name);
    if (hex) snprintf(hash, SHA256_HEX_MAX, "%s", hex);
}

static int read_file(const struct manifest_reader *reader, const cJSON *member,
                     struct stored_file *file) {
    const char *hex = json_text(member, "sha256");
    const char *name = member->string;
    int64_t bytes = 0;
    /* Only files in the checkpoint's own directory may be verified, and removed with it. */
    if (!file_name_is_plain(name) || strlen(name) >= sizeof file->name)
        return fail(reader->error,
                    "%s: \"files\" names \"%.80s\", which is no plain file name\nuse another "
                    "checkpoint",
                    reader->where, name);
    if (!json_whole(&bytes, member, "bytes", 0, WHOLE_MAX) || !hex ||
        strlen(hex) != SHA256_HEX_MAX - 1)
        return missing_key(reader, name);
    snprintf(file->name, sizeof file->name, "%s", name);
    file->bytes = (uint64_t)bytes;
    memcpy(file->sha256, hex, SHA256_HEX_MAX);
    return 0;
}

bool checkpoint_manifest_lists(const struct checkpoint_manifest *manifest, const char *name) {
    for (ptrdiff_t i = 0; i < arrlen(manifest->files); i++)
        if (strcmp(manifest->files[i].name, name) == 0) return true;
    return false;
}

/* True if the manifest lists one file of tensors, or the index of several. */
static bool lists_tensors(const struct checkpoint_manifest *manifest, const char *stem) {
    char single[STORED_FILE_NAME_MAX], index[STORED_FILE_NAME_MAX];
    snprintf(single, sizeof single, "%s.safetensors", stem);
    snprintf(index, sizeof index, "%s.safetensors.index.json", stem);
    return checkpoint_manifest_lists(manifest, single) ||
           checkpoint_manifest_lists(manifest, index);
}

static int read_files(const struct manifest_reader *reader, struct checkpoint_manifest *manifest) {
    const cJSON *files = json_member(reader->root, "files"), *member;
    struct stored_file file;
    if (cJSON_GetArraySize(files) > CHECKPOINT_FILES_MAX)
        return fail(reader->error, "%s: \"files\" has more than %d entries\nuse another checkpoint",
                    reader->where, CHECKPOINT_FILES_MAX);
    cJSON_ArrayForEach(member, files) {
        if (read_file(reader, member, &file)) return -1;
        arrput(manifest->files, file);
    }
    if (!lists_tensors(manifest, checkpoint_model_stem) &&
        !lists_tensors(manifest, checkpoint_adapter_stem))
        return missing_key(reader, "model.safetensors");
    if (!checkpoint_manifest_lists(manifest, checkpoint_config_name))
        return missing_key(reader, checkpoint_config_name);
    if (lists_tensors(manifest, checkpoint_optimizer_stem)) return 0;
    return missing_key(reader, "optimizer.safetensors");
}

/* The config stays text, because cJSON would lose the last bit of some doubles when it prints. */
static int read_config(const struct manifest_reader *reader, struct checkpoint_manifest *manifest,
                       const char *text) {
    const cJSON *config = json_member(reader->root, "config");
    size_t length;
    if (!cJSON_IsObject(config)) return missing_key(reader, "config");
    const char *begin = json_source(config, text, &length);
    manifest->config = strndup(begin, length);
    if (manifest->config) return 0;
    return fail_memory(reader->error, "%s", reader->where);
}

int checkpoint_manifest_open(struct checkpoint_manifest *manifest, const char *path,
                             struct error *error) {
    struct json_file file;
    *manifest = (struct checkpoint_manifest){0};
    if (json_file_open(&file, path, error)) return -1;
    struct manifest_reader reader = {file.root, file.where, error};
    int status = check_hash(&reader, &file) || read_whole(&manifest->state.step, &reader, "step") ||
                 read_whole(&manifest->state.tokens, &reader, "tokens") ||
                 read_position(&reader, manifest) || read_best(&reader, &manifest->state.best) ||
                 read_scaler(&reader, &manifest->state.scaler) ||
                 read_precision(&reader, manifest) || read_files(&reader, manifest) ||
                 read_config(&reader, manifest, file.text);
    read_hash(manifest->base_fingerprint, reader.root, "base_sha256");
    for (int i = 0; i < HASHED_DATA; i++)
        read_hash(manifest->data_hashes[i], json_member(reader.root, "data"), hashed_names[i]);
    json_file_close(&file);
    if (status) checkpoint_manifest_close(manifest);
    return status ? -1 : 0;
}

void checkpoint_manifest_close(struct checkpoint_manifest *manifest) {
    arrfree(manifest->files);
    free(manifest->config);
    *manifest = (struct checkpoint_manifest){0};
}
