#include "model/io/quantized_tensors.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "data/util/json.h"
#include "data/util/min_max.h"
#include "data/util/utf8.h"
#include "kernels/block_scale.h"
#include "kernels/dtype.h"

enum {
    NAME_MAX_BYTES = 160, /* longer names are of no model that can be read */
    BLOCK_SHAPES_MAX = 8,
    STATE_MAX_BYTES = 4096, /* of bitsandbytes' quant_state */
    PIECE = 16384,          /* elements computed at a time */
};

struct quantized_tensor {
    struct safetensors_entry entry; /* of the weight */
    char name[NAME_MAX_BYTES];
    const struct stored_tensor *codes, *scales;
    const struct stored_tensor *second; /* F32 scales of `second_block` scales each, or NULL */
    int bits;                           /* of a code */
    bool high_first;                    /* of two codes in a byte, the first has the high bits */
    bool coded_scales;                  /* scales are bytes, with values in scale_values */
    enum dtype rounded;                 /* dtype that elements are rounded to */
    /* The grid of blocks: rows of `columns` elements, and of `scale_columns` scales. */
    int64_t columns, block_rows, block_columns, scale_columns, second_block;
    float factor, offset; /* of elements; of scales of two levels */
    float values[256], scale_values[256];
};

/* The format, from config.json. */
struct quantization {
    const char *method; /* NULL: not quantized */
    int64_t blocks[BLOCK_SHAPES_MAX][2];
    int block_count;
};

/* ---- config.json */

static const char fp8[] = "fp8", mxfp8[] = "mxfp8", fbgemm[] = "fbgemm_fp8",
                  compressed[] = "compressed-tensors", bitsandbytes[] = "bitsandbytes";
static const char dequantize_advice[] =
    "load the model in transformers, call its dequantize() and save it again, or use a folder "
    "with weights in bf16";

static int refuse(const char *where, const char *key, const cJSON *value, struct error *error) {
    char *found = value ? cJSON_PrintUnformatted(value) : NULL;
    fail(error,
         "%s: quantization_config: %s is %s, but only fp8, mxfp8, fbgemm_fp8, bitsandbytes, and "
         "compressed-tensors of symmetric 8-bit weights, NVFP4 or MXFP4 can be read\n%s",
         where, key, json_text_shown(found ? found : "missing").text, dequantize_advice);
    cJSON_free(found);
    return -1;
}

static double number_of(const cJSON *value) {
    return cJSON_IsNumber(value) ? value->valuedouble : NAN;
}

/* Adds a shape of blocks. Returns false if there are too many, or it is none. */
static bool add_blocks(struct quantization *to, double rows, double columns) {
    const double max = 1 << 30;
    if (!(rows >= 1 && rows <= max && columns >= 1 && columns <= max)) return false;
    if (to->block_count == BLOCK_SHAPES_MAX) return false;
    int64_t *blocks = to->blocks[to->block_count++];
    blocks[0] = (int64_t)rows, blocks[1] = (int64_t)columns;
    return true;
}

/* The same for a list [rows, columns]. */
static bool add_listed_blocks(struct quantization *to, const cJSON *sizes) {
    return cJSON_GetArraySize(sizes) == 2 &&
           add_blocks(to, number_of(sizes->child), number_of(sizes->child->next));
}

/* Reads a group of layers of compressed-tensors. */
static int read_group(struct quantization *to, const cJSON *group, const char *where,
                      struct error *error) {
    const cJSON *weights = json_member(group, "weights");
    const cJSON *blocks = json_member(weights, "block_structure");
    const cJSON *size = json_member(weights, "group_size");
    const char *type = json_text(weights, "type"), *strategy = json_text(weights, "strategy");
    const double bits = number_of(json_member(weights, "num_bits"));
    if (!weights || cJSON_IsNull(weights)) return 0;
    if (bits != 8 && !(bits == 4 && type && strcmp(type, "float") == 0))
        return refuse(where, "weights", weights, error);
    if (cJSON_IsFalse(json_member(weights, "symmetric")))
        return refuse(where, "symmetric", json_member(weights, "symmetric"), error);
    if (strategy && strcmp(strategy, "block") == 0 && !add_listed_blocks(to, blocks))
        return refuse(where, "block_structure", blocks, error);
    if (number_of(size) > 0 && !add_blocks(to, 1, number_of(size)))
        return refuse(where, "group_size", size, error);
    return 0;
}

static int read_compressed(struct quantization *to, const cJSON *config, const char *where,
                           struct error *error) {
    const cJSON *transforms = json_member(config, "transform_config"), *group;
    const cJSON *sparsity = json_member(config, "sparsity_config");
    const char *format = json_text(sparsity, "format");
    if (transforms && transforms->child)
        return refuse(where, "transform_config", transforms, error);
    if (sparsity && sparsity->child && !(format && strcmp(format, "dense") == 0))
        return refuse(where, "sparsity_config", sparsity, error);
    cJSON_ArrayForEach(group, json_member(config, "config_groups")) {
        if (!cJSON_IsObject(group)) return refuse(where, "config_groups", group, error);
        if (read_group(to, group, where, error)) return -1;
    }
    return 0;
}

static int read_quantization(struct quantization *to, const cJSON *root, const char *where,
                             struct error *error) {
    static const char *const methods[] = {fp8, mxfp8, fbgemm, compressed, bitsandbytes};
    const cJSON *config = json_member(root, "quantization_config");
    *to = (struct quantization){0};
    if (!config || cJSON_IsNull(config))
        config = json_member(json_member(root, "text_config"), "quantization_config");
    if (!config || cJSON_IsNull(config)) return 0;
    const char *method = json_text(config, "quant_method");
    /* Older files of bitsandbytes have no method. */
    if (!method && json_member(config, "load_in_8bit")) method = bitsandbytes;
    for (size_t i = 0; method && i < sizeof methods / sizeof *methods; i++)
        if (strcmp(method, methods[i]) == 0) to->method = methods[i];
    if (!to->method)
        return refuse(where, "quant_method", json_member(config, "quant_method"), error);
    if (to->method == compressed) return read_compressed(to, config, where, error);
    const cJSON *blocks = json_member(config, "weight_block_size");
    const bool has_blocks = blocks && !cJSON_IsNull(blocks);
    if (has_blocks && !add_listed_blocks(to, blocks))
        return refuse(where, "weight_block_size", blocks, error);
    if (!blocks && to->method == fp8) add_blocks(to, 128, 128); /* the default of transformers */
    return 0;
}

int quantization_check(const cJSON *root, const char *where, struct error *error) {
    struct quantization quantization;
    return read_quantization(&quantization, root, where, error);
}

/* ---- tensors */

/* The tensors of files while those of quantized layers are found. */
struct finder {
    const struct tensor_files *files;
    const struct quantization *quantization;
    bool *used; /* [files->count] scales of a weight */
    struct error *error;
};

static const char copy_advice[] =
    "copy or download the folder again, or use one with weights in bf16";

__attribute__((format(printf, 3, 4))) static int
unfit(const struct finder *finder, const struct stored_tensor *tensor, const char *format, ...) {
    char reason[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    return fail(finder->error, "%.400s: tensor %s (%s) %s\n%s", tensor->file->reader.path,
                json_text_shown(tensor->entry->name).text,
                safetensors_dtype_name(tensor->entry->dtype), reason, copy_advice);
}

/* Returns the tensor `stem` (of `length` bytes) with this suffix, which then counts as used, or
 * NULL. */
static const struct stored_tensor *companion(const struct finder *finder, const char *stem,
                                             size_t length, const char *suffix) {
    char name[2 * NAME_MAX_BYTES];
    if (length >= NAME_MAX_BYTES) return NULL;
    snprintf(name, sizeof name, "%.*s%s", (int)length, stem, suffix);
    const struct stored_tensor *found = tensor_files_find(finder->files, name);
    if (found) finder->used[found - finder->files->tensors] = true;
    return found;
}

static uint64_t element_count(const struct safetensors_entry *entry) {
    uint64_t count = 1; /* the size of the file limits it */
    for (int i = 0; i < entry->rank; i++) count *= entry->shape[i];
    return count;
}

static int need(const struct finder *finder, const struct stored_tensor *tensor,
                enum safetensors_dtype dtype, int64_t count) {
    if (tensor->entry->dtype == dtype && element_count(tensor->entry) == (uint64_t)count) return 0;
    return unfit(finder, tensor, "is not %" PRId64 " values in %s", count,
                 safetensors_dtype_name(dtype));
}

/* Reads `count` finite F32 values. */
static int read_floats(float *to, const struct finder *finder, const struct stored_tensor *tensor,
                       int64_t count) {
    if (need(finder, tensor, SAFETENSORS_F32, count) ||
        safetensors_read(to, tensor->file, tensor->entry, 0, (size_t)count * sizeof *to,
                         finder->error))
        return -1;
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(to[i])) return unfit(finder, tensor, "has a value that is not finite");
    return 0;
}

/* Sets the grid of blocks that the shape of the scales means. */
static int fit_scales(struct quantized_tensor *to, const struct finder *finder) {
    const int64_t rows = (int64_t)to->entry.shape[0], columns = (int64_t)to->entry.shape[1];
    const struct safetensors_entry *scales = to->scales->entry;
    const int64_t count = (int64_t)element_count(scales);
    to->columns = columns, to->block_rows = rows, to->block_columns = columns;
    to->scale_columns = 1;
    if (count == 1) return 0;
    to->block_rows = 1;
    if (count == rows && (scales->rank == 1 || (scales->rank == 2 && scales->shape[1] == 1)))
        return 0;
    for (int i = 0; scales->rank == 2 && i < finder->quantization->block_count; i++) {
        const int64_t *block = finder->quantization->blocks[i];
        to->block_rows = block[0], to->block_columns = block[1];
        to->scale_columns = (columns - 1) / block[1] + 1;
        if ((int64_t)scales->shape[0] == (rows - 1) / block[0] + 1 &&
            (int64_t)scales->shape[1] == to->scale_columns)
            return 0;
    }
    return unfit(finder, to->scales,
                 "has %" PRId64 " scales, which fit neither the %" PRId64
                 " rows nor the blocks of a %" PRId64 " x %" PRId64 " weight",
                 count, rows, rows, columns);
}

/* Sets how scales are stored: as they are, or in bytes. global: optional scale of their scales. */
static int read_scale_codes(struct quantized_tensor *to, const struct finder *finder,
                            const struct stored_tensor *global) {
    const enum safetensors_dtype dtype = to->scales->entry->dtype;
    const bool is_f8 = dtype == SAFETENSORS_F8_E4M3;
    float scale = 1;
    if (dtype == SAFETENSORS_F32 || dtype == SAFETENSORS_F16 || dtype == SAFETENSORS_BF16) return 0;
    if (!is_f8 && dtype != SAFETENSORS_U8 && dtype != SAFETENSORS_F8_E8M0)
        return unfit(finder, to->scales, "has scales in a dtype that is not read");
    if (is_f8 && !global) return unfit(finder, to->scales, "has no weight_global_scale beside it");
    if (is_f8 && read_floats(&scale, finder, global, 1)) return -1;
    for (int i = 0; i < 256; i++)
        to->scale_values[i] =
            block_scale_value((uint8_t)i, is_f8 ? DTYPE_E4M3 : DTYPE_E8M0) / scale;
    to->coded_scales = true;
    return 0;
}

/* Returns the dtype of scales that are stored as they are. */
static enum dtype dtype_of_scales(const struct quantized_tensor *tensor) {
    const enum safetensors_dtype dtype = tensor->scales->entry->dtype;
    return dtype == SAFETENSORS_F16    ? DTYPE_F16
           : dtype == SAFETENSORS_BF16 ? DTYPE_BF16
                                       : DTYPE_F32;
}

/* Describes a weight of one of the formats with scales of rows or blocks. */
static int open_scaled(struct quantized_tensor *to, const struct finder *finder,
                       const struct stored_tensor *global) {
    const struct safetensors_entry *codes = to->codes->entry;
    const bool packed = codes->dtype == SAFETENSORS_U8, f8 = codes->dtype == SAFETENSORS_F8_E4M3;
    if (codes->rank != 2 || element_count(codes) == 0)
        return unfit(finder, to->codes, "is no matrix");
    to->bits = packed ? 4 : 8;
    to->entry.shape[0] = codes->shape[0];
    to->entry.shape[1] = codes->shape[1] * (packed ? 2 : 1);
    for (int i = 0; i < 256; i++)
        to->values[i] = packed ? element_value((uint32_t)i, DTYPE_E2M1)
                        : f8   ? f8_widen((uint32_t)i, DTYPE_E4M3)
                               : (float)(int8_t)i;
    if (read_scale_codes(to, finder, global)) return -1;
    if (packed) to->rounded = DTYPE_BF16;
    else if (finder->quantization->method == compressed) to->rounded = dtype_of_scales(to);
    return fit_scales(to, finder);
}

/* Reads the JSON of bitsandbytes' quant_state: shape, dtype and blocks. */
static int read_state(struct quantized_tensor *to, const struct finder *finder,
                      const struct stored_tensor *state) {
    static const char *const names[] = {"float32", "float16", "bfloat16"};
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    char text[STATE_MAX_BYTES + 1] = "";
    const size_t size = MIN(state->entry->bytes, STATE_MAX_BYTES);
    struct quantization shape = {0};
    struct error ignored;
    cJSON *root = NULL;
    int known = 0;
    if (safetensors_read(text, state->file, state->entry, 0, size, finder->error)) return -1;
    bool good = json_parse(&root, text, size, "", &ignored) == 0;
    const char *dtype = json_text(root, "dtype");
    while (dtype && known < 3 && strcmp(dtype, names[known]) != 0) known++;
    good = good && dtype && known < 3 && add_listed_blocks(&shape, json_member(root, "shape")) &&
           json_whole(&to->block_columns, root, "blocksize", 1, 1 << 20);
    if (to->second) {
        to->offset = (float)number_of(json_member(root, "nested_offset"));
        good = good && isfinite(to->offset) &&
               json_whole(&to->second_block, root, "nested_blocksize", 1, 1 << 20);
    }
    cJSON_Delete(root);
    if (!good) return unfit(finder, state, "is no JSON with a shape, dtype and sizes of blocks");
    to->rounded = dtypes[known];
    to->entry.shape[0] = (uint64_t)shape.blocks[0][0];
    to->entry.shape[1] = (uint64_t)shape.blocks[0][1];
    return 0;
}

/* Describes a weight of bitsandbytes in 4 bits, whose blocks follow each other across rows. Its
 * codes may be stored in any dtype. */
static int open_4bit(struct quantized_tensor *to, const struct finder *finder, const char *name) {
    const size_t length = strlen(name);
    const struct stored_tensor *map = companion(finder, name, length, ".quant_map");
    const struct stored_tensor *nested = companion(finder, name, length, ".nested_quant_map");
    const struct stored_tensor *state =
        companion(finder, name, length, ".quant_state.bitsandbytes__nf4");
    if (!state) state = companion(finder, name, length, ".quant_state.bitsandbytes__fp4");
    to->second = companion(finder, name, length, ".nested_absmax");
    if (!map || !state || !to->second != !nested)
        return unfit(finder, to->codes, "has no %s beside it",
                     !map     ? "quant_map"
                     : !state ? "quant_state"
                              : "nested_absmax or nested_quant_map");
    if (read_state(to, finder, state) || read_floats(to->values, finder, map, 16) ||
        (nested && read_floats(to->scale_values, finder, nested, 256)))
        return -1;
    const int64_t count = (int64_t)(to->entry.shape[0] * to->entry.shape[1]);
    const int64_t scales = (count - 1) / to->block_columns + 1;
    to->bits = 4, to->high_first = true, to->coded_scales = nested;
    to->columns = count, to->block_rows = 1, to->scale_columns = scales;
    if (to->codes->entry->bytes != (uint64_t)(count + 1) / 2)
        return unfit(finder, to->codes, "does not have the size of the shape in quant_state");
    if (need(finder, to->scales, nested ? SAFETENSORS_U8 : SAFETENSORS_F32, scales)) return -1;
    return nested ? need(finder, to->second, SAFETENSORS_F32, (scales - 1) / to->second_block + 1)
                  : 0;
}

/* Describes a tensor if it holds the codes of a weight. Returns RESULT_NONE if it does not. */
static int open_tensor(struct quantized_tensor *to, const struct finder *finder,
                       const struct stored_tensor *tensor) {
    static const char weight[] = ".weight", packed[] = ".weight_packed";
    static const char *const suffixes[] = {".weight_scale_inv", ".weight_scale", ".SCB"};
    const char *name = tensor->entry->name;
    const enum safetensors_dtype dtype = tensor->entry->dtype;
    const bool is_packed = text_ends(name, packed);
    if (!is_packed && !text_ends(name, weight)) return RESULT_NONE;
    const size_t length = strlen(name) - strlen(is_packed ? packed : weight);
    const struct stored_tensor *absmax = companion(finder, name, length, ".weight.absmax");
    if (!is_packed && !absmax && dtype != SAFETENSORS_F8_E4M3 && dtype != SAFETENSORS_U8 &&
        dtype != SAFETENSORS_I8)
        return RESULT_NONE;
    if (is_packed && dtype != SAFETENSORS_U8)
        return unfit(finder, tensor, "is packed in a way that is not read");
    *to = (struct quantized_tensor){.codes = tensor, .scales = absmax, .factor = 1};
    snprintf(to->name, sizeof to->name, "%.*s%s", (int)MIN(length, NAME_MAX_BYTES), name, weight);
    to->entry = (struct safetensors_entry){.name = to->name, .dtype = SAFETENSORS_F32, .rank = 2};
    for (int i = 0; !to->scales && i < 3; i++)
        to->scales = companion(finder, name, length, suffixes[i]);
    if (!to->scales) return unfit(finder, tensor, "is quantized, but has no scales");
    if (text_ends(to->scales->entry->name, ".SCB")) to->factor = 7.874015718698502e-3f;
    if (absmax ? open_4bit(to, finder, name)
               : open_scaled(to, finder, companion(finder, name, length, ".weight_global_scale")))
        return -1;
    to->entry.bytes = to->entry.shape[0] * to->entry.shape[1] * sizeof(float);
    return 0;
}

static bool ends_with_any(const char *name, const char *const *ends) {
    while (*ends && !text_ends(name, *ends)) ends++;
    return *ends;
}

/* Scales of activations, and of keys and values in a cache, which are left out; and of weights. */
static const char *const unused[] = {
    ".input_scale", ".activation_scale", ".output_scale", ".input_scale_ub", ".input_global_scale",
    ".q_scale",     ".k_scale",          ".v_scale",      ".weight_format",  NULL};
static const char *const scale_names[] = {
    ".weight_scale_inv", ".weight_scale", ".weight_global_scale", ".SCB", ".weight.absmax", NULL};

static int compare_names(const void *a, const void *b) {
    const struct stored_tensor *left = a, *right = b;
    return strcmp(left->entry->name, right->entry->name);
}

/* Fills `list`, sorted by name, from weights and tensors that are as they were. */
static int list_weights(const struct finder *finder, struct quantized_tensor *weights,
                        struct stored_tensor *list, int *count) {
    const struct tensor_files *files = finder->files;
    for (int i = 0, next = 0; i < files->count; i++) {
        const struct stored_tensor *tensor = &files->tensors[i];
        const int status = open_tensor(&weights[next], finder, tensor);
        if (status == -1) return -1;
        if (status == RESULT_NONE) continue;
        finder->used[i] = true;
        list[(*count)++] =
            (struct stored_tensor){&weights[next].entry, tensor->file, &weights[next]};
        next++;
    }
    for (int i = 0; i < files->count; i++) {
        const struct stored_tensor *tensor = &files->tensors[i];
        if (finder->used[i] || ends_with_any(tensor->entry->name, unused)) continue;
        if (ends_with_any(tensor->entry->name, scale_names))
            return unfit(finder, tensor, "has scales of no quantized weight");
        list[(*count)++] = *tensor;
    }
    qsort(list, (size_t)*count, sizeof *list, compare_names);
    for (int i = 1; i < *count; i++)
        if (strcmp(list[i - 1].entry->name, list[i].entry->name) == 0)
            return unfit(finder, &list[i], "is there quantized and plain");
    return 0;
}

static int open_tensors(struct tensor_files *files, const struct quantization *quantization,
                        struct error *error) {
    const size_t count = (size_t)files->count;
    struct quantized_tensor *weights = calloc(count + 1, sizeof *weights);
    struct stored_tensor *list = malloc((count + 1) * sizeof *list);
    struct finder finder = {files, quantization, calloc(count + 1, sizeof *finder.used), error};
    int listed = 0, status = -1;
    if (!weights || !list || !finder.used) fail_memory(error, "%.400s", files->where);
    else status = list_weights(&finder, weights, list, &listed);
    free(finder.used);
    if (status) {
        free(list);
        free(weights);
        return -1;
    }
    files->tensors = list, files->count = listed, files->quantized = weights;
    return 0;
}

int quantized_tensors_open(struct tensor_files *files, const char *directory, struct error *error) {
    struct quantization quantization;
    struct json_file config;
    if (json_file_open_optional(&config, directory, "config.json", error)) return -1;
    int status = read_quantization(&quantization, config.root, config.where, error);
    if (status == 0 && quantization.method) status = open_tensors(files, &quantization, error);
    json_file_close(&config);
    return status;
}

/* ---- values */

/* Multiplies scales by those of the second level, and adds their mean. */
static int add_second_level(float *scales, const struct quantized_tensor *tensor, int64_t first,
                            int64_t count, struct error *error) {
    const struct stored_tensor *second = tensor->second;
    const int64_t block = tensor->second_block;
    for (int64_t i = 0, run; i < count; i += run) {
        float absmax;
        const uint64_t at = (uint64_t)((first + i) / block) * sizeof absmax;
        run = MIN(block - (first + i) % block, count - i);
        if (safetensors_read(&absmax, second->file, second->entry, at, sizeof absmax, error))
            return -1;
        for (int64_t k = i; k < i + run; k++) scales[k] = scales[k] * absmax + tensor->offset;
    }
    return 0;
}

/* Reads scales first .. first + count - 1 as fp32. bytes: [count] in their own dtype. */
static int read_scales(float *scales, void *bytes, const struct quantized_tensor *tensor,
                       int64_t first, int64_t count, struct error *error) {
    const struct stored_tensor *from = tensor->scales;
    const size_t size = tensor->coded_scales ? 1 : dtype_bytes(dtype_of_scales(tensor));
    if (safetensors_read(bytes, from->file, from->entry, (uint64_t)first * size,
                         (size_t)count * size, error))
        return -1;
    if (tensor->coded_scales)
        for (int64_t i = 0; i < count; i++)
            scales[i] = tensor->scale_values[((const uint8_t *)bytes)[i]];
    else if (dtype_widen(scales, bytes, dtype_of_scales(tensor), 0, (size_t)count) != scales)
        memcpy(scales, bytes, (size_t)count * sizeof *scales);
    if (tensor->second && add_second_level(scales, tensor, first, count, error)) return -1;
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(scales[i]))
            return fail(error, "%.400s: tensor %s: scale %" PRId64 " is not finite\n%s",
                        from->file->reader.path, json_text_shown(from->entry->name).text, first + i,
                        copy_advice);
    return 0;
}

/* Stores values of codes times their scale. first: index of the first code in `codes`. */
static void multiply(float *values, const struct quantized_tensor *tensor, const uint8_t *codes,
                     int64_t first, int64_t count, float scale) {
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = first + i;
        const bool high = (at & 1) != tensor->high_first;
        const int code = tensor->bits == 8 ? codes[at] : codes[at / 2] >> (high ? 4 : 0) & 15;
        values[i] = tensor->values[code] * scale * tensor->factor;
    }
}

/* Rounds values to a dtype of 16 bits. */
static void round_values(float *values, enum dtype dtype, int64_t count) {
    uint16_t halves[PIECE];
    if (dtype == DTYPE_F32) return;
    dtype_store(halves, dtype, 0, values, (size_t)count);
    dtype_widen(values, halves, dtype, 0, (size_t)count);
}

static int widen_piece(float *values, const struct quantized_tensor *tensor, int64_t first,
                       int64_t count, struct error *error) {
    uint8_t codes[PIECE + 1];
    const int64_t columns = tensor->columns, last = first + count - 1;
    const bool one_row = first / columns == last / columns;
    const int64_t width = tensor->block_columns, per_row = tensor->scale_columns;
    const int64_t from =
        first / columns / tensor->block_rows * per_row + (one_row ? first % columns / width : 0);
    const int64_t to = last / columns / tensor->block_rows * per_row +
                       (one_row ? last % columns / width : per_row - 1);
    const int64_t byte = first * tensor->bits / 8, end = (last + 1) * tensor->bits + 7;
    float *scales = malloc((size_t)(to - from + 1) * 2 * sizeof *scales);
    if (!scales) return fail_memory(error, "%s", tensor->name);
    int status = safetensors_read(codes, tensor->codes->file, tensor->codes->entry, (uint64_t)byte,
                                  (size_t)(end / 8 - byte), error);
    if (status == 0)
        status = read_scales(scales, scales + (to - from + 1), tensor, from, to - from + 1, error);
    for (int64_t i = 0, run; status == 0 && i < count; i += run) {
        const int64_t row = (first + i) / columns, column = (first + i) % columns;
        const int64_t scale = row / tensor->block_rows * per_row + column / width;
        run = MIN(MIN(width - column % width, columns - column), count - i);
        multiply(values + i, tensor, codes, first + i - byte * 8 / tensor->bits, run,
                 scales[scale - from]);
    }
    free(scales);
    round_values(values, tensor->rounded, count);
    return status;
}

int quantized_tensor_widen(float *values, const struct quantized_tensor *tensor, int64_t first,
                           int64_t count, struct error *error) {
    for (int64_t done = 0; done < count; done += PIECE)
        if (widen_piece(values + done, tensor, first + done, MIN(count - done, PIECE), error))
            return -1;
    return 0;
}

int quantized_tensor_scales(float *scales, const struct quantized_tensor *tensor, int64_t block,
                            int64_t count, struct error *error) {
    const int64_t columns = tensor->columns, width = tensor->block_columns;
    const int64_t per_row = tensor->scale_columns;
    float row[2 * PIECE];
    if (tensor->codes->entry->dtype != SAFETENSORS_F8_E4M3 || columns % block || per_row > PIECE ||
        (per_row > 1 && width % block))
        return RESULT_NONE;
    for (int64_t i = 0; i < count; i++) {
        const int64_t r = i * block / columns, column = i * block % columns;
        if (column == 0 && r % tensor->block_rows == 0 &&
            read_scales(row, row + per_row, tensor, r / tensor->block_rows * per_row, per_row,
                        error))
            return -1;
        scales[i] = row[column / width];
    }
    return 0;
}
