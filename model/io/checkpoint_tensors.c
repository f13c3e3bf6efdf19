#include "model/io/checkpoint_tensors.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/json.h"
#include "model/io/tensor_advice.h"

enum {
    NAME_MAX_BYTES = 128,
    SHAPE_TEXT_MAX = 64,
    CHUNK = 16384, /* number of elements read at a time */
};

static const enum safetensors_dtype stored[DTYPE_COUNT] = {
#define X(NAME, ...) SAFETENSORS_##NAME,
    DTYPES(X)
#undef X
};

/* Returns an enum dtype, or -1 for an unsupported one. */
static int dtype_of_entry(const struct safetensors_entry *entry) {
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
        if (stored[dtype] == entry->dtype) return dtype;
    return -1;
}

static const char gpt2_prefix[] = "transformer.";

static bool is_gpt2(const struct parameter *list) {
    return strcmp(parameter_wte(list)->name, "wte.weight") == 0;
}

const char *checkpoint_prefix(const struct parameter *list) {
    if (parameter_adapter_count(list) == 0) return is_gpt2(list) ? gpt2_prefix : "";
    return is_gpt2(list) ? "base_model.model.transformer." : "base_model.model.";
}

struct parameter_moment *checkpoint_moments(const struct optimizer *optimizer) {
    const struct parameter *list = optimizer->gpt->list;
    struct parameter_moment *moments = NULL;
    for (int moment = 0; moment < MOMENTS_MAX; moment++)
        for (ptrdiff_t i = 0; i < parameter_trained_count(list); i++)
            if (moment < update_rule_of(optimizer->config, &list[i])->moments)
                arrput(moments, ((struct parameter_moment){&list[i], moment}));
    return moments;
}

/* Writes the name of a moment, such as "exp_avg.transformer.wte.weight", to text. */
static void name_moment(char text[NAME_MAX_BYTES], const struct optimizer *optimizer,
                        const struct parameter_moment *of) {
    const struct update_rule *rule = update_rule_of(optimizer->config, of->parameter);
    snprintf(text, NAME_MAX_BYTES, "%s%s%s", rule->moment_names[of->moment],
             checkpoint_prefix(optimizer->gpt->list), of->parameter->name);
}

const struct stored_tensor *checkpoint_find_weight(const struct tensor_files *files,
                                                   const char *name) {
    char full[NAME_MAX_BYTES];
    snprintf(full, sizeof full, "%s%s", gpt2_prefix, name);
    const struct stored_tensor *tensor = tensor_files_find(files, full);
    return tensor ? tensor : tensor_files_find(files, name);
}

static const struct stored_tensor *find_moment(const struct optimizer *optimizer,
                                               const struct tensor_files *files,
                                               const struct parameter_moment *of) {
    char name[NAME_MAX_BYTES];
    name_moment(name, optimizer, of);
    return tensor_files_find(files, name);
}

/* Returns the layer in a name such as "transformer.h.3.ln_1.weight" or
 * "model.layers.3.mlp.up_proj.weight": the first number between dots, or -1. */
static int64_t layer_of(const char *name) {
    while ((name = strchr(name, '.'))) {
        char *end;
        long long layer = strtoll(++name, &end, 10);
        if (*name >= '0' && *name <= '9' && *end == '.' && layer < INT32_MAX) return layer;
    }
    return -1;
}

/* Reports a different number of layers as such, with the first tensor that shows it. */
static int check_layers(const struct parameter *list, const struct tensor_files *files,
                        struct error *error) {
    int64_t wanted = 0, found = 0;
    const struct stored_tensor *surplus = NULL;
    for (ptrdiff_t i = 0; i < arrlen(list); i++)
        if (list[i].layer >= wanted) wanted = list[i].layer + 1;
    for (int i = 0; i < files->count; i++) {
        int64_t layer = layer_of(files->tensors[i].entry->name);
        if (layer >= found) found = layer + 1;
        if (layer >= wanted && !surplus) surplus = &files->tensors[i];
    }
    if (found == wanted) return 0;
    char missing[64];
    snprintf(missing, sizeof missing,
             is_gpt2(list) ? "transformer.h.%" PRId64 ".ln_1.weight"
                           : "model.layers.%" PRId64 ".input_layernorm.weight",
             found);
    return fail(error,
                "%.400s: it has %" PRId64 " layers, but model.n_layer is %" PRId64
                ": tensor %s is %s\nset model.n_layer to %" PRId64 ", or use another file",
                surplus ? surplus->file->reader.path : files->where, found, wanted,
                surplus ? json_text_shown(surplus->entry->name).text : missing,
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

static int check_tensor(const struct parameter *parameter, const struct stored_tensor *tensor,
                        struct error *error) {
    const struct safetensors_entry *entry = tensor->entry;
    const struct extent *extent = &parameter->extent;
    const uint64_t wanted[] = {(uint64_t)extent->rows, (uint64_t)extent->columns};
    int rank = extent->columns ? 2 : 1;
    char found_text[SHAPE_TEXT_MAX], wanted_text[SHAPE_TEXT_MAX];
    if (entry->rank != rank || memcmp(entry->shape, wanted, (size_t)rank * sizeof *wanted) != 0) {
        return fail(error,
                    "%.400s: tensor %s is %s, but the config wants %s\nset %s as the file has "
                    "it, or use another file",
                    tensor->file->reader.path, json_text_shown(tensor->entry->name).text,
                    shape_text(found_text, entry->shape, entry->rank),
                    shape_text(wanted_text, wanted, rank), tensor_key_of_shape(parameter, entry));
    }
    if (dtype_of_entry(entry) >= 0) return 0;
    return fail(error,
                "%.400s: tensor %s is %s, but only F32, F16 and BF16 can be read\nconvert the "
                "file to F32",
                tensor->file->reader.path, json_text_shown(tensor->entry->name).text,
                safetensors_dtype_name(entry->dtype));
}

enum dtype checkpoint_dtype(const struct safetensors_entry *entry) {
    int dtype = dtype_of_entry(entry);
    assert(dtype >= 0);
    return (enum dtype)dtype;
}

int checkpoint_widen(float *values, const struct stored_tensor *tensor, int64_t first,
                     int64_t count, struct error *error) {
    uint16_t halves[CHUNK];
    enum dtype dtype = checkpoint_dtype(tensor->entry);
    size_t size = dtype_bytes(dtype);
    if (dtype == DTYPE_F32)
        return safetensors_read(values, tensor->file, tensor->entry, (uint64_t)first * size,
                                (size_t)count * size, error);
    for (int64_t done = 0; done < count; done += CHUNK) {
        size_t part = (size_t)(count - done < CHUNK ? count - done : CHUNK);
        if (safetensors_read(halves, tensor->file, tensor->entry, (uint64_t)(first + done) * size,
                             part * size, error))
            return -1;
        dtype_widen(values + done, halves, dtype, 0, part);
    }
    return 0;
}

/* Stores true in *same if two tensors of one shape have equal values, bit for bit after
 * widening. */
static int compare_values(bool *same, const struct stored_tensor *a, const struct stored_tensor *b,
                          struct error *error) {
    float left[CHUNK], right[CHUNK];
    int64_t total = (int64_t)(a->entry->bytes / dtype_bytes(checkpoint_dtype(a->entry)));
    *same = true;
    for (int64_t first = 0; first < total && *same; first += CHUNK) {
        int64_t count = total - first < CHUNK ? total - first : CHUNK;
        if (checkpoint_widen(left, a, first, count, error) ||
            checkpoint_widen(right, b, first, count, error))
            return -1;
        *same = memcmp(left, right, (size_t)count * sizeof *left) == 0;
    }
    return 0;
}

static int check_head(const struct parameter *list, const struct tensor_files *files,
                      struct error *error) {
    const struct stored_tensor *head = tensor_files_find(files, "lm_head.weight");
    const struct parameter *wte = parameter_wte(list);
    if (!head || parameter_head(list) != wte) return 0;
    if (check_tensor(wte, head, error)) return -1;
    bool same;
    if (compare_values(&same, head, checkpoint_find_weight(files, wte->name), error)) return -1;
    if (same) return 0;
    return fail(error,
                "%.400s: lm_head.weight differs from the token embedding, but the config's model "
                "shares the two\nuse a file with tied embeddings",
                head->file->reader.path);
}

static bool is_extra(const char *name) {
    return tensor_name_ends(name, ".attn.bias") || tensor_name_ends(name, ".attn.masked_bias") ||
           tensor_name_ends(name, ".rotary_emb.inv_freq") || strcmp(name, "lm_head.weight") == 0;
}

/* Fails on tensors that are neither weights of the model nor allowed extras. matched[i]: tensor i
 * is a weight. */
static int check_surplus(const struct tensor_files *files, const bool *matched,
                         struct error *error) {
    for (int i = 0; i < files->count; i++) {
        const struct stored_tensor *tensor = &files->tensors[i];
        if (!matched[i] && !is_extra(tensor->entry->name))
            return fail(error,
                        "%.400s: tensor %s is no part of the config's model\nuse another file",
                        tensor->file->reader.path, json_text_shown(tensor->entry->name).text);
    }
    return 0;
}

static int match_weights(const struct parameter *list, const struct tensor_files *files,
                         bool *matched, struct error *error) {
    const char *prefix = is_gpt2(list) ? gpt2_prefix : "";
    for (ptrdiff_t i = parameter_adapter_count(list); i < arrlen(list); i++) {
        const struct stored_tensor *tensor = checkpoint_find_weight(files, list[i].name);
        if (!tensor) return tensor_missing(files, prefix, list[i].name, error);
        if (check_tensor(&list[i], tensor, error)) return -1;
        matched[tensor - files->tensors] = true;
    }
    return check_surplus(files, matched, error);
}

int checkpoint_check_weights(const struct parameter *list, const struct tensor_files *files,
                             struct error *error) {
    if (check_layers(list, files, error)) return -1;
    bool *matched = calloc((size_t)files->count + 1, sizeof *matched);
    if (!matched) return fail(error, "out of memory while reading %.400s", files->where);
    int status = match_weights(list, files, matched, error);
    free(matched);
    return status ? -1 : check_head(list, files, error);
}

const struct stored_tensor *checkpoint_find_adapter(const struct parameter *list,
                                                    const struct tensor_files *files,
                                                    const char *name) {
    char full[NAME_MAX_BYTES];
    snprintf(full, sizeof full, "%s%s", checkpoint_prefix(list), name);
    return tensor_files_find(files, full);
}

int checkpoint_check_adapters(const struct parameter *list, const struct tensor_files *files,
                              struct error *error) {
    ptrdiff_t count = parameter_adapter_count(list);
    for (ptrdiff_t i = 0; i < count; i++) {
        const struct stored_tensor *tensor = checkpoint_find_adapter(list, files, list[i].name);
        if (!tensor)
            return tensor_missing_adapter(files, checkpoint_prefix(list), list[i].name, error);
        if (check_tensor(&list[i], tensor, error)) return -1;
    }
    if (files->count == count) return 0;
    return fail(error,
                "%.400s: it has %d tensors, but the adapters of the config have %td\nname the "
                "layers of this adapter in adapter.targets, or use another one",
                files->where, files->count, count);
}

int checkpoint_check_moments(const struct optimizer *optimizer, const struct tensor_files *files,
                             struct error *error) {
    struct parameter_moment *moments = checkpoint_moments(optimizer);
    int status = 0;
    for (ptrdiff_t i = 0; status == 0 && i < arrlen(moments); i++) {
        const struct stored_tensor *tensor = find_moment(optimizer, files, &moments[i]);
        char name[NAME_MAX_BYTES];
        name_moment(name, optimizer, &moments[i]);
        status = tensor ? check_tensor(moments[i].parameter, tensor, error)
                        : tensor_missing(files, "", name, error);
    }
    arrfree(moments);
    return status ? -1 : 0;
}

/* Appends an entry for a parameter, with a name that is copied. */
static void add_entry(struct safetensors_entry **entries, const struct parameter *parameter,
                      const char *name, enum dtype dtype) {
    struct safetensors_entry entry = {
        .name = strdup(name),
        .dtype = stored[dtype],
        .rank = parameter->extent.columns ? 2 : 1,
        .shape = {(uint64_t)parameter->extent.rows, (uint64_t)parameter->extent.columns},
    };
    arrput(*entries, entry);
}

void checkpoint_list_entries(struct safetensors_entry **entries, const struct parameter *list,
                             ptrdiff_t count, const char *prefix, enum dtype dtype) {
    for (ptrdiff_t i = 0; i < count; i++) {
        char name[NAME_MAX_BYTES];
        snprintf(name, sizeof name, "%s%s", prefix, list[i].name);
        add_entry(entries, &list[i], name, dtype);
    }
}

void checkpoint_list_moments(struct safetensors_entry **entries, const struct optimizer *optimizer,
                             const struct parameter_moment *moments) {
    for (ptrdiff_t i = 0; i < arrlen(moments); i++) {
        char name[NAME_MAX_BYTES];
        name_moment(name, optimizer, &moments[i]);
        add_entry(entries, moments[i].parameter, name, optimizer->gpt->precision.moments);
    }
}

void checkpoint_free_entries(struct safetensors_entry *entries) {
    for (ptrdiff_t i = 0; i < arrlen(entries); i++) free((char *)entries[i].name);
    arrfree(entries);
}

/* Source of master weights: a copy on the host, or, with a backend, the model. */
struct master_source {
    const struct parameter *list;
    const struct masters *masters;
    struct backend *be;
};

static int read_masters(void *context, void *buffer, int entry, uint64_t first, size_t bytes,
                        struct error *error) {
    const struct master_source *source = context;
    struct backend *be = source->be;
    masters_download(source->masters, be, buffer,
                     source->list[entry].offset + (int64_t)(first / sizeof(float)),
                     (int64_t)(bytes / sizeof(float)));
    return be && be->failure.text[0] ? fail(error, "%s", be->failure.text) : 0;
}

int checkpoint_write_weights(const struct gpt *gpt, const struct masters *copy,
                             const char *directory, uint64_t limit, struct stored_file **files,
                             struct error *error) {
    struct safetensors_entry *entries = NULL;
    struct master_source masters = {gpt->list, copy ? copy : &gpt->masters, copy ? NULL : gpt->be};
    const struct tensor_source source = {read_masters, &masters};
    ptrdiff_t adapters = parameter_adapter_count(gpt->list);
    checkpoint_list_entries(&entries, gpt->list, adapters ? adapters : arrlen(gpt->list),
                            checkpoint_prefix(gpt->list), DTYPE_F32);
    int status =
        tensor_shards_write(directory, adapters ? checkpoint_adapter_stem : checkpoint_model_stem,
                            entries, (int)arrlen(entries), limit, &source, files, error);
    checkpoint_free_entries(entries);
    return status;
}

/* One of the flat arrays in files: the master weights, or a moment. */
struct flat_array {
    const struct gpt *gpt;
    const struct optimizer *optimizer; /* NULL: the master weights */
    int moment;
};

/* Reads the values of parameter p piece by piece and uploads each piece. All threads do so for a
 * CPU, one thread for a device. */
static int read_tensor(const struct flat_array *array, const struct parameter *p,
                       const struct stored_tensor *tensor,
                       void (*upload)(const struct flat_array *array, const float *values,
                                      int64_t first, int64_t count),
                       struct error *error) {
    int64_t total = parameter_count(p);
    bool parallel = array->gpt->be->device.kind == BACKEND_CPU;
    int status = 0;
#pragma omp parallel for schedule(static) if (parallel)
    for (int64_t first = 0; first < total; first += CHUNK) {
        float values[CHUNK];
        struct error failure;
        int64_t count = total - first < CHUNK ? total - first : CHUNK;
        if (checkpoint_widen(values, tensor, first, count, &failure) == 0) {
            upload(array, values, p->offset + first, count);
            continue;
        }
#pragma omp critical(failure_of_a_piece)
        {
            status = -1;
            *error = failure;
        }
    }
    return status;
}

static void upload_masters(const struct flat_array *array, const float *values, int64_t first,
                           int64_t count) {
    masters_upload(&array->gpt->masters, array->gpt->be, values, first, count);
}
static void upload_moment(const struct flat_array *array, const float *values, int64_t first,
                          int64_t count) {
    optimizer_upload(array->optimizer, array->moment, values, first, count);
}

int checkpoint_read_weights(struct gpt *gpt, const struct tensor_files *files,
                            struct error *error) {
    const struct flat_array masters = {gpt, NULL, 0};
    for (ptrdiff_t i = parameter_adapter_count(gpt->list); i < arrlen(gpt->list); i++) {
        const struct parameter *p = &gpt->list[i];
        const struct stored_tensor *tensor = checkpoint_find_weight(files, p->name);
        if (masters_upload_begin(&gpt->masters, p, error) ||
            read_tensor(&masters, p, tensor, upload_masters, error))
            return -1;
        masters_upload_end(&gpt->masters, gpt->be, p);
    }
    return 0;
}

int checkpoint_read_adapters(struct gpt *gpt, const struct tensor_files *files,
                             struct error *error) {
    const struct flat_array masters = {gpt, NULL, 0};
    for (ptrdiff_t i = 0; i < parameter_adapter_count(gpt->list); i++) {
        const struct parameter *p = &gpt->list[i];
        const struct stored_tensor *tensor = checkpoint_find_adapter(gpt->list, files, p->name);
        if (read_tensor(&masters, p, tensor, upload_masters, error)) return -1;
    }
    return 0;
}

int checkpoint_read_moments(struct optimizer *optimizer, const struct tensor_files *files,
                            struct error *error) {
    struct parameter_moment *moments = checkpoint_moments(optimizer);
    int status = 0;
    for (ptrdiff_t i = 0; status == 0 && i < arrlen(moments); i++) {
        const struct flat_array array = {
            .gpt = optimizer->gpt, .optimizer = optimizer, .moment = moments[i].moment};
        const struct stored_tensor *tensor = find_moment(optimizer, files, &moments[i]);
        status = read_tensor(&array, moments[i].parameter, tensor, upload_moment, error);
    }
    arrfree(moments);
    return status;
}
