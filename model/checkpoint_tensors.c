#include "model/checkpoint_tensors.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/error.h"

enum {
    NAME_MAX_BYTES = 128,
    SHAPE_TEXT_MAX = 64,
    PIECE = 1 << 18, /* elements that pass through the host at a time */
};

static const char weight_prefix[] = "transformer.";
static const char *const moment_prefixes[] = {"exp_avg.transformer.", "exp_avg_sq.transformer."};

/* Appends an entry for each parameter. The names belong to the entries. */
static void list_entries(struct safetensors_entry **entries, const struct gpt *gpt,
                         const char *prefix) {
    for (ptrdiff_t i = 0; i < arrlen(gpt->list); i++) {
        const struct parameter *parameter = &gpt->list[i];
        char name[NAME_MAX_BYTES];
        snprintf(name, sizeof name, "%s%s", prefix, parameter->name);
        struct safetensors_entry entry = {
            .name = strdup(name),
            .dtype = SAFETENSORS_F32,
            .rank = parameter->columns ? 2 : 1,
            .shape = {(uint64_t)parameter->rows, (uint64_t)parameter->columns},
        };
        arrput(*entries, entry);
    }
}

static void free_entries(struct safetensors_entry *entries) {
    for (ptrdiff_t i = 0; i < arrlen(entries); i++) free((char *)entries[i].name);
    arrfree(entries);
}

/* Appends one flat array, parameter by parameter. The writer is abandoned after a failure. */
static int write_flat(struct safetensors_writer *writer, const struct gpt *gpt,
                      const struct tensor *flat, float *buffer, char *error) {
    struct backend *be = gpt->be;
    for (ptrdiff_t i = 0; i < arrlen(gpt->list); i++) {
        struct tensor view = gpt_parameter_view(flat, &gpt->list[i]);
        int64_t total = tensor_count(&view);
        for (int64_t first = 0; first < total; first += PIECE) {
            int64_t count = total - first < PIECE ? total - first : PIECE;
            size_t bytes = (size_t)count * sizeof *buffer;
            be->download(be, buffer, (const float *)view.data + first, bytes);
            if (be->failure[0]) {
                safetensors_write_abandon(writer);
                return fail(error, "%s", be->failure);
            }
            if (safetensors_write_data(writer, buffer, bytes, error)) return -1;
        }
    }
    return 0;
}

static int write_arrays(const struct gpt *gpt, const struct tensor *const *arrays,
                        const char *const *prefixes, int count, const char *path,
                        struct checkpoint_file *file, char *error) {
    struct safetensors_entry *entries = NULL;
    struct safetensors_writer writer;
    float *buffer = malloc(PIECE * sizeof *buffer);
    if (!buffer) return fail(error, "out of memory while writing %.400s", path);
    for (int i = 0; i < count; i++) list_entries(&entries, gpt, prefixes[i]);
    int status =
        safetensors_write_begin(&writer, path, entries, (int)arrlen(entries), NULL, 0, error);
    for (int i = 0; status == 0 && i < count; i++)
        status = write_flat(&writer, gpt, arrays[i], buffer, error);
    if (status == 0) status = safetensors_write_end(&writer, error);
    if (status == 0) {
        file->bytes = writer.file.size;
        memcpy(file->sha256, writer.file.hex, sizeof file->sha256);
    }
    free_entries(entries);
    free(buffer);
    return status;
}

int checkpoint_write_weights(const struct gpt *gpt, const char *path, struct checkpoint_file *file,
                             char *error) {
    const char *prefix = weight_prefix;
    const struct tensor *array = &gpt->master;
    return write_arrays(gpt, &array, &prefix, 1, path, file, error);
}

int checkpoint_write_moments(const struct gpt *gpt, const char *path, struct checkpoint_file *file,
                             char *error) {
    const struct tensor *const arrays[] = {&gpt->moment1, &gpt->moment2};
    return write_arrays(gpt, arrays, moment_prefixes, 2, path, file, error);
}

/* Names in files come with or without "transformer."; a bare one ends the search. */
static const struct safetensors_entry *find_weight(const struct safetensors *file,
                                                   const char *name) {
    char full[NAME_MAX_BYTES];
    snprintf(full, sizeof full, "%s%s", weight_prefix, name);
    const struct safetensors_entry *entry = safetensors_find(file, full);
    return entry ? entry : safetensors_find(file, name);
}

static const struct safetensors_entry *find_moment(const struct safetensors *file, int moment,
                                                   const char *name) {
    char full[NAME_MAX_BYTES];
    snprintf(full, sizeof full, "%s%s", moment_prefixes[moment], name);
    return safetensors_find(file, full);
}

/* The layer in a name such as "transformer.h.3.ln_1.weight", or -1. */
static int64_t layer_of(const char *name) {
    const char *at = strncmp(name, "h.", 2) == 0 ? name : strstr(name, ".h.");
    if (!at) return -1;
    char *end;
    long long layer = strtoll(strchr(at, 'h') + 2, &end, 10);
    return *end == '.' && layer >= 0 && layer < INT32_MAX ? (int64_t)layer : -1;
}

/* A file of fewer or more layers is told as that, by the first tensor it shows in. */
static int check_layers(const struct gpt *gpt, const struct safetensors *file, const char *path,
                        char *error) {
    int64_t wanted = gpt->shape.n_layer, found = 0;
    const char *surplus = NULL;
    for (int i = 0; i < file->count; i++) {
        const char *name = file->by_name[i]->name;
        int64_t layer = layer_of(name);
        if (layer >= found) found = layer + 1;
        if (layer >= wanted && !surplus) surplus = name;
    }
    if (found == wanted) return 0;
    char missing[64];
    snprintf(missing, sizeof missing, "transformer.h.%" PRId64 ".ln_1.weight", found);
    return fail(error,
                "%.400s: it has %" PRId64 " layers, but model.n_layer is %" PRId64
                ": tensor %.100s is %s\nset model.n_layer to %" PRId64 ", or use another file",
                path, found, wanted, surplus ? surplus : missing,
                surplus ? "one too many" : "missing", found);
}

static const char *shape_text(char text[SHAPE_TEXT_MAX], const uint64_t *shape, int rank) {
    size_t used = (size_t)snprintf(text, SHAPE_TEXT_MAX, "[");
    for (int i = 0; i < rank && used < SHAPE_TEXT_MAX - 24; i++)
        used += (size_t)snprintf(text + used, SHAPE_TEXT_MAX - used, "%s%" PRIu64, i ? ", " : "",
                                 shape[i]);
    snprintf(text + used, SHAPE_TEXT_MAX - used, "]");
    return text;
}

/* The key of the config that the first differing dimension comes from. */
static const char *key_of_shape(const struct parameter *parameter,
                                const struct safetensors_entry *entry) {
    bool rows_differ = entry->rank < 1 || entry->shape[0] != (uint64_t)parameter->rows;
    if (rows_differ && strcmp(parameter->name, "wte.weight") == 0) return "model.vocab_size";
    if (rows_differ && strcmp(parameter->name, "wpe.weight") == 0) return "model.n_positions";
    return "model.n_embd";
}

static int check_tensor(const struct parameter *parameter, const struct safetensors_entry *entry,
                        const char *path, char *error) {
    const uint64_t wanted[] = {(uint64_t)parameter->rows, (uint64_t)parameter->columns};
    int rank = parameter->columns ? 2 : 1;
    char found_text[SHAPE_TEXT_MAX], wanted_text[SHAPE_TEXT_MAX];
    if (entry->rank != rank || memcmp(entry->shape, wanted, (size_t)rank * sizeof *wanted) != 0) {
        return fail(error,
                    "%.400s: tensor %.100s is %s, but the config wants %s\nset %s as the file has "
                    "it, or use another file",
                    path, entry->name, shape_text(found_text, entry->shape, entry->rank),
                    shape_text(wanted_text, wanted, rank), key_of_shape(parameter, entry));
    }
    if (entry->dtype == SAFETENSORS_F32 || entry->dtype == SAFETENSORS_F16 ||
        entry->dtype == SAFETENSORS_BF16)
        return 0;
    return fail(error,
                "%.400s: tensor %.100s is %s, but only F32, F16 and BF16 can be read\nconvert the "
                "file to F32",
                path, entry->name, safetensors_dtype_name(entry->dtype));
}

static int missing_tensor(const char *path, const char *prefix, const char *name, char *error) {
    return fail(error,
                "%.400s: tensor %s%s is missing\nit is not a GPT-2 like the config's: use "
                "another file",
                path, prefix, name);
}

static enum dtype dtype_of(const struct safetensors_entry *entry) {
    if (entry->dtype == SAFETENSORS_F16) return DTYPE_F16;
    return entry->dtype == SAFETENSORS_BF16 ? DTYPE_BF16 : DTYPE_F32;
}

/* Elements first .. first+count of a tensor as fp32. Files may align their data to single bytes,
 * so 16-bit values pass through `halves`. */
static void widen_piece(float *values, uint16_t *halves, const struct safetensors_entry *entry,
                        int64_t first, int64_t count) {
    enum dtype dtype = dtype_of(entry);
    const char *data = (const char *)entry->data + (size_t)first * dtype_bytes(dtype);
    size_t bytes = (size_t)count * dtype_bytes(dtype);
    if (dtype == DTYPE_F32) {
        memcpy(values, data, bytes);
        return;
    }
    memcpy(halves, data, bytes);
    dtype_widen(values, halves, dtype, 0, (size_t)count);
}

/* Whether two tensors of one shape hold the same numbers, bit for bit after widening. */
static bool same_values(const struct safetensors_entry *a, const struct safetensors_entry *b) {
    enum { COMPARED = 4096 };
    float left[COMPARED], right[COMPARED];
    uint16_t halves[COMPARED];
    int64_t total = (int64_t)(a->bytes / dtype_bytes(dtype_of(a)));
    for (int64_t first = 0; first < total; first += COMPARED) {
        int64_t count = total - first < COMPARED ? total - first : COMPARED;
        widen_piece(left, halves, a, first, count);
        widen_piece(right, halves, b, first, count);
        if (memcmp(left, right, (size_t)count * sizeof *left) != 0) return false;
    }
    return true;
}

static int check_head(const struct gpt *gpt, const struct safetensors *file, const char *path,
                      char *error) {
    const struct safetensors_entry *head = safetensors_find(file, "lm_head.weight");
    const struct parameter *wte = &gpt->list[0];
    assert(strcmp(wte->name, "wte.weight") == 0);
    if (!head) return 0;
    if (check_tensor(wte, head, path, error)) return -1;
    if (same_values(head, find_weight(file, wte->name))) return 0;
    return fail(error,
                "%.400s: lm_head.weight differs from the token embedding, but our models share the "
                "two\nuse a file with tied embeddings",
                path);
}

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static bool is_extra(const char *name) {
    return ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias") ||
           strcmp(name, "lm_head.weight") == 0;
}

/* Every tensor of the file has been matched if the numbers agree; if not, finds the one too many.
 */
static int check_surplus(const struct gpt *gpt, const struct safetensors *file, const char *path,
                         char *error) {
    for (int i = 0; i < file->count; i++) {
        const char *name = file->by_name[i]->name;
        size_t prefix =
            strncmp(name, weight_prefix, strlen(weight_prefix)) == 0 ? strlen(weight_prefix) : 0;
        bool known = is_extra(name);
        for (ptrdiff_t k = 0; k < arrlen(gpt->list) && !known; k++)
            known = strcmp(gpt->list[k].name, name + prefix) == 0 &&
                    find_weight(file, gpt->list[k].name) == file->by_name[i];
        if (!known)
            return fail(error, "%.400s: tensor %.200s is no part of a GPT-2\nuse another file",
                        path, name);
    }
    return 0;
}

int checkpoint_check_weights(const struct gpt *gpt, const struct safetensors *file,
                             const char *path, char *error) {
    if (check_layers(gpt, file, path, error)) return -1;
    for (ptrdiff_t i = 0; i < arrlen(gpt->list); i++) {
        const struct safetensors_entry *entry = find_weight(file, gpt->list[i].name);
        if (!entry) return missing_tensor(path, weight_prefix, gpt->list[i].name, error);
        if (check_tensor(&gpt->list[i], entry, path, error)) return -1;
    }
    if (check_surplus(gpt, file, path, error)) return -1;
    return check_head(gpt, file, path, error);
}

int checkpoint_check_moments(const struct gpt *gpt, const struct safetensors *file,
                             const char *path, char *error) {
    for (int moment = 0; moment < 2; moment++) {
        for (ptrdiff_t i = 0; i < arrlen(gpt->list); i++) {
            const char *name = gpt->list[i].name;
            const struct safetensors_entry *entry = find_moment(file, moment, name);
            if (!entry) return missing_tensor(path, moment_prefixes[moment], name, error);
            if (check_tensor(&gpt->list[i], entry, path, error)) return -1;
        }
    }
    return 0;
}

static void read_tensor(struct gpt *gpt, const struct tensor *flat,
                        const struct parameter *parameter, const struct safetensors_entry *entry) {
    enum { READ = 16384 };
    float values[READ];
    uint16_t halves[READ];
    struct tensor view = gpt_parameter_view(flat, parameter);
    int64_t total = tensor_count(&view);
    for (int64_t first = 0; first < total; first += READ) {
        int64_t count = total - first < READ ? total - first : READ;
        widen_piece(values, halves, entry, first, count);
        gpt->be->upload(gpt->be, (float *)view.data + first, values,
                        (size_t)count * sizeof *values);
    }
}

void checkpoint_read_weights(struct gpt *gpt, const struct safetensors *file) {
    for (ptrdiff_t i = 0; i < arrlen(gpt->list); i++)
        read_tensor(gpt, &gpt->master, &gpt->list[i], find_weight(file, gpt->list[i].name));
}

void checkpoint_read_moments(struct gpt *gpt, const struct safetensors *file) {
    const struct tensor *const arrays[] = {&gpt->moment1, &gpt->moment2};
    for (int moment = 0; moment < 2; moment++)
        for (ptrdiff_t i = 0; i < arrlen(gpt->list); i++)
            read_tensor(gpt, arrays[moment], &gpt->list[i],
                        find_moment(file, moment, gpt->list[i].name));
}
