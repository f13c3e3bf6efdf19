#include "model/io/checkpoint_tensors.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/json.h"
#include "data/util/printed.h"
#include "data/util/utf8.h"
#include "kernels/moment_blocks.h"
#include "model/io/quantized_tensors.h"

enum {
    RANK_MAX = 3,
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

/* Model's tensors of a GPT-2 may lack it. */
static const char gpt2_prefix[] = "transformer.";

static bool is_gpt2(const struct parameter *list) {
    return strcmp(parameter_wte(list)->name, "wte.weight") == 0;
}

static const char *prefix_of(const struct parameter *list, bool adapters) {
    if (!adapters) return is_gpt2(list) ? gpt2_prefix : "";
    return is_gpt2(list) ? "base_model.model.transformer." : "base_model.model.";
}

/* Ends the names of scales. */
static const char scales_suffix[] = ".absmax";

static void add_tensor(struct saved_tensor **tensors, const struct parameter *parameter, int moment,
                       enum moment_array array, const char *moment_name, const char *prefix) {
    struct saved_tensor tensor = {.parameter = parameter, .moment = moment, .array = array};
    snprintf(tensor.name, sizeof tensor.name, "%s%s%s%s", moment_name, prefix, parameter->name,
             array == MOMENT_SCALES ? scales_suffix : "");
    arrput(*tensors, tensor);
}

struct saved_tensor *saved_weights(const struct parameter *list, bool adapters) {
    struct saved_tensor *tensors = NULL;
    const ptrdiff_t count = parameter_adapter_count(list);
    for (ptrdiff_t i = adapters ? 0 : count; i < (adapters ? count : arrlen(list)); i++)
        add_tensor(&tensors, &list[i], SAVED_WEIGHT, MOMENT_VALUES, "", prefix_of(list, adapters));
    return tensors;
}

struct saved_tensor *saved_moments(const struct optimizer *optimizer) {
    const struct parameter *list = optimizer->model->list;
    const char *prefix = prefix_of(list, parameter_adapter_count(list) > 0);
    struct saved_tensor *tensors = NULL;
    for (int moment = 0; moment < MOMENTS_MAX; moment++)
        for (ptrdiff_t i = 0; i < parameter_trained_count(list); i++) {
            const struct update_rule *rule = update_rule_of(optimizer->config, &list[i]);
            const bool coded = update_rule_in_8bit(optimizer->config, &list[i]);
            if (moment >= rule->moments) continue;
            add_tensor(&tensors, &list[i], moment, coded ? MOMENT_CODES : MOMENT_VALUES,
                       rule->moment_names[moment], prefix);
            if (coded)
                add_tensor(&tensors, &list[i], moment, MOMENT_SCALES, rule->moment_names[moment],
                           prefix);
        }
    return tensors;
}

/* Stores the shape of a parameter in files, and returns its rank. */
static int shape_in_files(uint64_t shape[RANK_MAX], const struct extent *extent) {
    int rank = 0;
    shape[rank++] = (uint64_t)extent->rows;
    if (extent->convolution) shape[rank++] = 1;
    if (extent->columns) shape[rank++] = (uint64_t)extent->columns;
    return rank;
}

struct safetensors_entry *saved_entries(const struct saved_tensor *tensors, enum dtype dtype) {
    struct safetensors_entry *entries = NULL;
    for (ptrdiff_t i = 0; i < arrlen(tensors); i++) {
        const struct extent *extent = &tensors[i].parameter->extent;
        const enum moment_array array = tensors[i].array;
        struct safetensors_entry entry = {
            .name = tensors[i].name,
            .dtype = array == MOMENT_CODES ? SAFETENSORS_U8 : stored[dtype],
        };
        entry.rank = shape_in_files(entry.shape, extent);
        if (array == MOMENT_SCALES) {
            entry.dtype = SAFETENSORS_F32, entry.rank = 1;
            entry.shape[0] = (uint64_t)(parameter_count(tensors[i].parameter) / MOMENT_BLOCK);
        }
        arrput(entries, entry);
    }
    return entries;
}

/* Returns a tensor by its name after a prefix. In a larger model the text's, "model.", has a longer
 * path, as transformers names its modules and some files their tensors. */
static const struct stored_tensor *find_text(const struct tensor_files *files, const char *prefix,
                                             const char *name) {
    static const char model[] = "model.";
    static const char *const paths[] = {model, "model.language_model.", "model.text_model."};
    const bool in_model = strncmp(name, model, strlen(model)) == 0;
    const struct stored_tensor *tensor = NULL;
    for (int i = 0; !tensor && i < (in_model ? 3 : 1); i++) {
        char full[2 * SAVED_NAME_MAX];
        snprintf(full, sizeof full, "%s%s%s", prefix, in_model ? paths[i] : "",
                 in_model ? name + strlen(model) : name);
        tensor = tensor_files_find(files, full);
    }
    return tensor;
}

const struct stored_tensor *checkpoint_find_weight(const struct tensor_files *files,
                                                   const char *name) {
    static const char *const prefixes[] = {gpt2_prefix, "", "language_model."};
    const struct stored_tensor *tensor = NULL;
    for (int i = 0; !tensor && i < 3; i++) tensor = find_text(files, prefixes[i], name);
    return tensor;
}

const struct stored_tensor *checkpoint_find_adapter(const struct parameter *list,
                                                    const struct tensor_files *files,
                                                    const char *name) {
    return find_text(files, prefix_of(list, true), name);
}

void saved_rename(struct saved_tensor *tensors, const char *module) {
    static const char text[] = "base_model.model.model.";
    const size_t kept = strlen(text) - strlen("model.");
    for (ptrdiff_t i = 0; module && i < arrlen(tensors); i++) {
        char name[SAVED_NAME_MAX];
        if (strncmp(tensors[i].name, text, strlen(text)) != 0) continue;
        snprintf(name, sizeof name, "%.*s%s%s", (int)kept, text, module,
                 tensors[i].name + strlen(text));
        strcpy(tensors[i].name, name);
    }
}

static bool is_moment(const struct saved_tensor *tensor) {
    return tensor->moment != SAVED_WEIGHT;
}

static const struct stored_tensor *find(const struct tensor_files *files,
                                        const struct saved_tensor *tensor) {
    char prefix[SAVED_NAME_MAX];
    const size_t length = strlen(tensor->name) - strlen(tensor->parameter->name);
    if (is_moment(tensor)) return tensor_files_find(files, tensor->name);
    if (!tensor->parameter->adapter) return checkpoint_find_weight(files, tensor->parameter->name);
    snprintf(prefix, sizeof prefix, "%.*s", (int)length, tensor->name);
    return find_text(files, prefix, tensor->parameter->name);
}

/* ---- checks */

/* Returns a tensor whose name ends with `name`, or NULL. */
static const struct stored_tensor *find_longer(const struct tensor_files *files, const char *name) {
    for (int i = 0; i < files->count; i++)
        if (text_ends(files->tensors[i].entry->name, name)) return &files->tensors[i];
    return NULL;
}

/* Fails because a weight has another prefix, as wrapped models have: `found` ends with `name`,
 * which is a part of tensor->name. */
static int fail_longer(const struct tensor_files *files, const struct saved_tensor *tensor,
                       const char *found, const char *name, struct error *error) {
    char before[SAVED_NAME_MAX];
    size_t length = strlen(found) - strlen(name), own = (size_t)(name - tensor->name);
    if (length >= own && memcmp(found + length - own, tensor->name, own) == 0) length -= own;
    snprintf(before, sizeof before, "%.*s", (int)length, found);
    const char *wrapper = strstr(before, "_orig_mod.")
                              ? ": torch.compile's model._orig_mod has none"
                          : strstr(before, "module.") ? ": DistributedDataParallel's model.module "
                                                        "has none"
                                                      : "";
    return fail(error,
                "%.400s: tensor %s is missing, but there is %s\nremove the prefix \"%s\" from the "
                "names%s",
                files->where, tensor->name, json_text_shown(found).text,
                json_text_shown(before).text, wrapper);
}

int saved_missing(const struct tensor_files *files, const struct saved_tensor *tensor,
                  struct error *error) {
    const bool adapter = tensor->parameter->adapter && !is_moment(tensor);
    const size_t prefix = strlen(tensor->name) - strlen(tensor->parameter->name);
    const char *name = tensor->name + (is_moment(tensor) ? 0 : prefix);
    const struct stored_tensor *longer = find_longer(files, name);
    const char *found = longer ? longer->entry->name : "";
    if (longer && !adapter) return fail_longer(files, tensor, found, name, error);
    if (longer)
        return fail(error,
                    "%.400s: tensor %s is missing, but there is %s\nsave the adapter with PEFT's "
                    "save_pretrained, which gives it the first name",
                    files->where, tensor->name, json_text_shown(found).text);
    return fail(error, "%.400s: tensor %s is missing\n%s", files->where, tensor->name,
                adapter ? "name the layers of this adapter in adapter.targets, or use another one"
                        : "it is not a model like the config's: use another file");
}

const char *tensor_key_of_shape(const struct parameter *parameter,
                                const struct safetensors_entry *entry) {
    const struct extent *extent = &parameter->extent;
    const bool rows_differ = entry->rank < 1 || entry->shape[0] != (uint64_t)extent->rows;
    return extent->columns == 0 || rows_differ ? extent->rows_of : extent->columns_of;
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

/* True for tensors of the towers of a larger model, for images, and of layers that predict several
 * tokens at once. */
static bool is_of_tower(const char *name) {
    static const char *const towers[] = {"vision_tower.", "multi_modal_projector.",
                                         "visual.",       "vision_model.",
                                         "connector.",    "mtp."};
    const char *part = strncmp(name, "model.", 6) == 0 ? name + 6 : name;
    for (size_t i = 0; i < sizeof towers / sizeof *towers; i++)
        if (strncmp(part, towers[i], strlen(towers[i])) == 0) return true;
    return false;
}

/* Reports a different number of layers as such, with the first tensor that shows it. */
static int check_layers(const struct parameter *list, const struct tensor_files *files,
                        struct error *error) {
    int64_t wanted = 0, found = 0;
    const struct stored_tensor *surplus = NULL;
    for (ptrdiff_t i = 0; i < arrlen(list); i++)
        if (list[i].layer >= wanted) wanted = list[i].layer + 1;
    for (int i = 0; i < files->count; i++) {
        const char *name = files->tensors[i].entry->name;
        const int64_t layer = is_of_tower(name) ? -1 : layer_of(name);
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
                "%.400s: it has %" PRId64 " layer%s, but model.n_layer is %" PRId64
                ": tensor %s is %s\nset model.n_layer to %" PRId64 ", or use another file",
                surplus ? surplus->file->reader.path : files->where, found, PLURAL(found), wanted,
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

/* Returns the scales of a moment whose codes are `tensor`, or NULL. */
static const struct stored_tensor *find_scales(const struct tensor_files *files,
                                               const struct stored_tensor *tensor) {
    char name[SAVED_NAME_MAX + sizeof scales_suffix];
    if (tensor->entry->dtype != SAFETENSORS_U8) return NULL;
    snprintf(name, sizeof name, "%.*s%s", SAVED_NAME_MAX, tensor->entry->name, scales_suffix);
    return tensor_files_find(files, name);
}

static int check_scales(const struct parameter *parameter, const struct stored_tensor *codes,
                        const struct stored_tensor *scales, struct error *error) {
    const struct safetensors_entry *entry = scales->entry;
    const int64_t count = parameter_count(parameter);
    if (entry->dtype == SAFETENSORS_F32 && entry->rank == 1 && count % MOMENT_BLOCK == 0 &&
        entry->shape[0] == (uint64_t)(count / MOMENT_BLOCK))
        return 0;
    return fail(error,
                "%.400s: tensor %s does not have an F32 scale for each %d elements of %s\n"
                "use another file",
                scales->file->reader.path, json_text_shown(entry->name).text, MOMENT_BLOCK,
                json_text_shown(codes->entry->name).text);
}

/* scales: those of codes of a moment, or NULL. */
static int check_tensor(const struct parameter *parameter, const struct stored_tensor *tensor,
                        const struct stored_tensor *scales, struct error *error) {
    const struct safetensors_entry *entry = tensor->entry;
    const struct extent *extent = &parameter->extent;
    uint64_t wanted[RANK_MAX];
    const int rank = shape_in_files(wanted, extent);
    char found_text[SHAPE_TEXT_MAX], wanted_text[SHAPE_TEXT_MAX];
    if (entry->rank != rank || memcmp(entry->shape, wanted, (size_t)rank * sizeof *wanted) != 0) {
        const char *key = tensor_key_of_shape(parameter, entry);
        const bool of_base = parameter->adapter && strcmp(key, "adapter.rank") != 0;
        return fail(error, "%.400s: tensor %s is %s, but the config wants %s\n%s %s%s",
                    tensor->file->reader.path, json_text_shown(tensor->entry->name).text,
                    shape_text(found_text, entry->shape, entry->rank),
                    shape_text(wanted_text, wanted, rank), of_base ? "another" : "set", key,
                    of_base ? ": name the model of these adapters in model.init_from"
                            : " as the file has it, or use another file");
    }
    if (dtype_of_entry(entry) >= 0) return 0;
    if (scales) return check_scales(parameter, tensor, scales, error);
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
    if (tensor->quantized)
        return quantized_tensor_widen(values, tensor->quantized, first, count, error);
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
    const struct stored_tensor *head = checkpoint_find_weight(files, "lm_head.weight");
    const struct parameter *wte = parameter_wte(list);
    if (!head || parameter_head(list) != wte) return 0;
    if (check_tensor(wte, head, NULL, error)) return -1;
    bool same;
    if (compare_values(&same, head, checkpoint_find_weight(files, wte->name), error)) return -1;
    if (same) return 0;
    return fail(error,
                "%.400s: lm_head.weight differs from the token embedding, but the config's model "
                "shares the two\nuse a file with tied embeddings",
                head->file->reader.path);
}

/* Buffers, the head of tied embeddings, and towers. */
static bool is_extra(const char *name) {
    return is_of_tower(name) || text_ends(name, ".attn.bias") ||
           text_ends(name, ".attn.masked_bias") || text_ends(name, ".rotary_emb.inv_freq") ||
           strcmp(name, "lm_head.weight") == 0 ||
           strcmp(name, "language_model.lm_head.weight") == 0;
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

/* Fails on tensors that are no adapters of the config, and names two of them. */
static int check_adapter_surplus(const struct tensor_files *files, const bool *matched,
                                 struct error *error) {
    const char *names[2] = {NULL};
    int count = 0;
    for (int i = 0; i < files->count; i++)
        if (!matched[i] && count++ < 2) names[count - 1] = files->tensors[i].entry->name;
    if (count == 0) return 0;
    const bool is_layer = strstr(names[0], ".lora_");
    return fail(
        error, "%.400s: the config has no adapters for %d tensor%s: %s%s%s%s\n%s", files->where,
        count, PLURAL(count), json_text_shown(names[0]).text, names[1] ? ", " : "",
        names[1] ? json_text_shown(names[1]).text : "", count > 2 ? " ..." : "",
        is_layer ? "name the layers of this adapter in adapter.targets, or use another one"
                 : "these are whole weights: merge them in PEFT (merge_and_unload), save the "
                   "model and the tokenizer, and give that folder to model.init_from");
}

/* Checks that the files have these tensors; matched: optional, set for each tensor of the files. */
static int match(const struct saved_tensor *tensors, const struct tensor_files *files,
                 bool *matched, struct error *error) {
    for (ptrdiff_t i = 0; i < arrlen(tensors); i++) {
        if (tensors[i].array == MOMENT_SCALES)
            continue; /* checked with the codes, if these exist */
        const struct stored_tensor *tensor = find(files, &tensors[i]);
        if (!tensor) return saved_missing(files, &tensors[i], error);
        const struct stored_tensor *scales =
            is_moment(&tensors[i]) ? find_scales(files, tensor) : NULL;
        if (check_tensor(tensors[i].parameter, tensor, scales, error)) return -1;
        if (matched) matched[tensor - files->tensors] = true;
    }
    return 0;
}

int checkpoint_check_weights(const struct parameter *list, const struct tensor_files *files,
                             struct error *error) {
    if (check_layers(list, files, error)) return -1;
    bool *matched = calloc((size_t)files->count + 1, sizeof *matched);
    if (!matched) return fail_memory(error, "%.400s", files->where);
    struct saved_tensor *tensors = saved_weights(list, false);
    int status = match(tensors, files, matched, error);
    if (status == 0) status = check_surplus(files, matched, error);
    arrfree(tensors);
    free(matched);
    return status ? -1 : check_head(list, files, error);
}

int checkpoint_check_adapters(const struct parameter *list, const struct tensor_files *files,
                              struct error *error) {
    bool *matched = calloc((size_t)files->count + 1, sizeof *matched);
    if (!matched) return fail_memory(error, "%.400s", files->where);
    struct saved_tensor *tensors = saved_weights(list, true);
    int status = match(tensors, files, matched, error);
    if (status == 0) status = check_adapter_surplus(files, matched, error);
    arrfree(tensors);
    free(matched);
    return status;
}

int checkpoint_check_moments(const struct optimizer *optimizer, const struct tensor_files *files,
                             struct error *error) {
    struct saved_tensor *tensors = saved_moments(optimizer);
    const int status = match(tensors, files, NULL, error);
    arrfree(tensors);
    return status;
}

/* ---- values */

/* Source of master weights: a copy on the host, or, with a backend, the model. */
struct master_source {
    const struct saved_tensor *tensors;
    const struct masters *masters;
    struct backend *be;
};

static int read_masters(void *context, void *buffer, int entry, uint64_t first, size_t bytes,
                        struct error *error) {
    const struct master_source *source = context;
    struct backend *be = source->be;
    masters_download(source->masters, be, buffer,
                     source->tensors[entry].parameter->offset + (int64_t)(first / sizeof(float)),
                     (int64_t)(bytes / sizeof(float)));
    return be && be->failure.text[0] ? fail(error, "%s", be->failure.text) : 0;
}

int checkpoint_write_weights(const struct model *model, const struct masters *copy,
                             const char *module, const char *directory, uint64_t limit,
                             struct stored_file **files, struct error *error) {
    const bool adapters = parameter_adapter_count(model->list) > 0;
    struct saved_tensor *tensors = saved_weights(model->list, adapters);
    saved_rename(tensors, module);
    struct safetensors_entry *entries = saved_entries(tensors, DTYPE_F32);
    struct master_source masters = {tensors, copy ? copy : &model->masters,
                                    copy ? NULL : model->be};
    const struct tensor_source source = {read_masters, &masters};
    int status =
        tensor_shards_write(directory, adapters ? checkpoint_adapter_stem : checkpoint_model_stem,
                            entries, (int)arrlen(entries), limit, &source, files, error);
    arrfree(entries);
    arrfree(tensors);
    return status;
}

/* The stored tensors that a tensor is read from. */
struct stored_source {
    const struct stored_tensor *tensor, *scales; /* scales: of codes of a moment, or NULL */
};

/* Reads elements of a moment in 8 bits. Uploads them as they are if the optimizer has codes, else
 * computes their values. */
static int read_codes(float *values, const struct optimizer *optimizer,
                      const struct saved_tensor *tensor, const struct stored_source *from,
                      int64_t first, int64_t count, struct error *error) {
    uint8_t codes[CHUNK];
    float scales[CHUNK / MOMENT_BLOCK];
    const struct moment_blocks blocks = {codes, scales, tensor->moment, false};
    const struct stored_tensor *c = from->tensor, *s = from->scales;
    const uint64_t block = (uint64_t)(first / MOMENT_BLOCK) * sizeof *scales;
    if (safetensors_read(codes, c->file, c->entry, (uint64_t)first, (size_t)count, error) ||
        safetensors_read(scales, s->file, s->entry, block,
                         (size_t)(count / MOMENT_BLOCK) * sizeof *scales, error))
        return -1;
    if (tensor->array == MOMENT_CODES)
        optimizer_upload_codes(optimizer, tensor->moment, codes, scales,
                               tensor->parameter->offset + first, count);
    else moment_blocks_load(values, &blocks, 0, count);
    return 0;
}

static int read_piece(const struct model *model, const struct optimizer *optimizer,
                      const struct saved_tensor *tensor, const struct stored_source *from,
                      int64_t first, int64_t count, struct error *error) {
    float values[CHUNK];
    const int64_t at = tensor->parameter->offset + first;
    if (from->scales ? read_codes(values, optimizer, tensor, from, first, count, error)
                     : checkpoint_widen(values, from->tensor, first, count, error))
        return -1;
    if (!is_moment(tensor)) masters_upload(&model->masters, model->be, values, at, count);
    else if (!from->scales || tensor->array != MOMENT_CODES)
        optimizer_upload(optimizer, tensor->moment, values, at, count);
    return 0;
}

/* Reads the values of a tensor piece by piece and uploads each piece. All threads do so for a CPU,
 * one thread for a device. */
static int read_tensor(const struct model *model, const struct optimizer *optimizer,
                       const struct saved_tensor *tensor, const struct stored_source *from,
                       struct error *error) {
    int64_t total = parameter_count(tensor->parameter);
    bool parallel = model->be->device.kind == BACKEND_CPU;
    int status = 0;
#pragma omp parallel for schedule(static) if (parallel)
    for (int64_t first = 0; first < total; first += CHUNK) {
        struct error failure;
        int64_t count = total - first < CHUNK ? total - first : CHUNK;
        if (read_piece(model, optimizer, tensor, from, first, count, &failure)) {
#pragma omp critical(failure_of_a_piece)
            {
                status = -1;
                *error = failure;
            }
        }
    }
    return status;
}

/* Ends the upload of a weight, which is stored with the scales of its file if these fit. */
static int end_upload(struct model *model, const struct parameter *parameter,
                      const struct stored_tensor *from, struct error *error) {
    int64_t block;
    const int64_t count = from->quantized ? masters_scales(&model->masters, parameter, &block) : 0;
    float *scales = count ? malloc((size_t)count * sizeof *scales) : NULL;
    if (count && !scales) return fail_memory(error, "the scales of %s", parameter->name);
    int status = count ? quantized_tensor_scales(scales, from->quantized, block, count, error) : 0;
    if (status != -1)
        masters_upload_end(&model->masters, model->be, parameter, status ? NULL : scales);
    model->masters.requantized += status == RESULT_NONE;
    free(scales);
    return status == -1 ? -1 : 0;
}

int checkpoint_read(struct model *model, const struct optimizer *optimizer,
                    struct saved_tensor *tensors, const struct tensor_files *files,
                    struct error *error) {
    int status = 0;
    for (ptrdiff_t i = 0; status == 0 && i < arrlen(tensors); i++) {
        const struct saved_tensor *tensor = &tensors[i];
        const bool weight = !is_moment(tensor);
        if (tensor->array == MOMENT_SCALES) continue; /* read with the codes */
        struct stored_source from = {.tensor = find(files, tensor)};
        if (!weight) from.scales = find_scales(files, from.tensor);
        if (weight) status = masters_upload_begin(&model->masters, tensor->parameter, error);
        if (status == 0) status = read_tensor(model, optimizer, tensor, &from, error);
        if (weight && status == 0)
            status = end_upload(model, tensor->parameter, from.tensor, error);
    }
    arrfree(tensors);
    return status;
}
