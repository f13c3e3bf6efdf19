/* Weights in fewer bits, against the programs that wrote them (test/golden/quantized_bases.py), and
 * folders that are damaged or cannot be read. */
#include "model/io/quantized_tensors.h"

#include <stdio.h>
#include <string.h>

#include "data/util/min_max.h"
#include "data/util/utf8.h"
#include "kernels/dtype.h"
#include "kernels/weight_format.h"
#include "model/io/checkpoint_tensors.h"
#include "model/io/huggingface.h"
#include "test/model/io/checkpoint_fixture.h"
#include "test/model/io/foreign_weights.h"
#include "test/safetensors_find.h"

TestSuite(quantized_tensors, .init = make_folder, .fini = remove_folder);

#define GROUP(weights)                                                   \
    "{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":" \
    "{\"weights\":{" weights "}}}}"
#define FLOAT8 "\"num_bits\":8,\"type\":\"float\",\"symmetric\":true,\"strategy\":"
#define FLOAT4 "\"num_bits\":4,\"type\":\"float\",\"symmetric\":true,\"group_size\":"
#define FP8    "{\"quant_method\":\"fp8\",\"weight_block_size\":[8,32]}"
#define BNB    "{\"quant_method\":\"bitsandbytes\",\"load_in_4bit\":true}"

/* The values of quantization_config for the cases of the fixture. */
static const struct {
    const char *name, *config;
} cases[] = {
    {"fp8", FP8},
    {"fp8_whole", FP8},
    {"fp8_tensor", "{\"quant_method\":\"fp8\",\"weight_block_size\":null}"},
    {"mxfp8", "{\"quant_method\":\"mxfp8\",\"weight_block_size\":[1,32]}"},
    {"fbgemm", "{\"quant_method\":\"fbgemm_fp8\",\"activation_scale_ub\":1200}"},
    {"rows_bf16", GROUP(FLOAT8 "\"channel\"")},
    {"rows_fp16", GROUP(FLOAT8 "\"channel\"")},
    {"tensor", GROUP(FLOAT8 "\"tensor\"")},
    {"blocks", GROUP(FLOAT8 "\"block\",\"block_structure\":[8,32]")},
    {"int8", GROUP("\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\"")},
    {"nvfp4", GROUP(FLOAT4 "16")},
    {"mxfp4", GROUP(FLOAT4 "32")},
    {"nf4", BNB},
    {"nf4_large", BNB},
    {"fp4", BNB},
    {"llm_int8", "{\"load_in_8bit\":true,\"load_in_4bit\":false}"},
};

static const char layer[] = "model.layers.3.mlp.up_proj";

/* A change of a case's tensors: the tensor that is left out or gets
 * another shape or dtype, or whose first bytes become 0xff. */
struct change {
    const char *tensor;
    enum { LEFT_OUT, RESHAPED, OVERWRITTEN, RETYPED } kind;
    uint64_t shape[2];
    enum safetensors_dtype dtype;
};

static const struct change unchanged = {.tensor = ""};

/* Applies a change to an entry. Returns false if the tensor is left out. */
static bool apply(struct safetensors_entry *entry, uint8_t *data, const struct change *change) {
    if (strcmp(entry->name, change->tensor) != 0) return true;
    if (change->kind == RETYPED) entry->dtype = change->dtype;
    if (change->kind == RESHAPED)
        entry->rank = 2, memcpy(entry->shape, change->shape, sizeof change->shape);
    if (change->kind == OVERWRITTEN) memset(data, 0xff, MIN(entry->bytes, 4));
    return change->kind != LEFT_OUT;
}

/* Writes a folder with the tensors of a case, as those of a layer. */
static void put_case(const char *name, const char *config, const struct change *change) {
    struct safetensors fixture;
    struct safetensors_entry entries[12];
    char names[12][240], prefix[40], text[700];
    uint8_t *data[12];
    struct safetensors_writer writer;
    int count = 0;
    snprintf(text, sizeof text, "{\"quantization_config\":%s}", config);
    put_text("config.json", text);
    snprintf(prefix, sizeof prefix, "%s:", name);
    SUCCEEDS(safetensors_open(&fixture, "test/golden/quantized_bases.safetensors", &error));
    for (int i = 0; i < fixture.count; i++) {
        struct safetensors_entry entry = fixture.entries[i];
        if (strncmp(entry.name, prefix, strlen(prefix)) != 0 || text_ends(entry.name, ":values"))
            continue;
        entry.name += strlen(prefix);
        data[count] = safetensors_data(&fixture, &fixture.entries[i]);
        cr_assert_not_null(data[count]);
        if (!apply(&entry, data[count], change)) {
            free(data[count]);
            continue;
        }
        snprintf(names[count], sizeof *names, "%s.%s", layer, entry.name);
        cr_assert(safetensors_entry_bytes(&entry.bytes, &entry));
        cr_assert_leq(entry.bytes, fixture.entries[i].bytes);
        entry.name = names[count];
        entries[count++] = entry;
    }
    cr_assert_gt(count, 0, "no case %s", name);
    SUCCEEDS(
        safetensors_write_begin(&writer, in_folder("model.safetensors"), entries, count, &error));
    for (int i = 0; i < count; i++) {
        SUCCEEDS(safetensors_write_data(&writer, data[i], entries[i].bytes, &error));
        free(data[i]);
    }
    SUCCEEDS(safetensors_write_end(&writer, &error));
    safetensors_close(&fixture);
}

/* Returns the values of a case in the fixture, widened, to be freed. */
static float *expected_values(const char *name, struct safetensors_entry *entry) {
    struct safetensors fixture;
    char full[40];
    snprintf(full, sizeof full, "%s:values", name);
    SUCCEEDS(safetensors_open(&fixture, "test/golden/quantized_bases.safetensors", &error));
    const struct safetensors_entry *found = safetensors_find(&fixture, full);
    cr_assert_not_null(found);
    *entry = *found;
    const struct stored_tensor stored = {.entry = found, .file = &fixture};
    const int64_t count = (int64_t)(entry->shape[0] * entry->shape[1]);
    float *values = malloc((size_t)count * sizeof *values);
    SUCCEEDS(checkpoint_widen(values, &stored, 0, count, &error));
    safetensors_close(&fixture);
    return values;
}

Test(quantized_tensors, values_are_those_of_their_programs) {
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct tensor_files files;
        struct safetensors_entry wanted;
        put_case(cases[i].name, cases[i].config, &unchanged);
        float *values = expected_values(cases[i].name, &wanted);
        const int64_t count = (int64_t)(wanted.shape[0] * wanted.shape[1]);
        float *found = malloc((size_t)count * sizeof *found);
        SUCCEEDS(tensor_files_open_directory(&files, folder, "model", &error));
        SUCCEEDS(quantized_tensors_open(&files, folder, &error));
        cr_assert_eq(files.count, 1, "%s: %d tensors", cases[i].name, files.count);
        const struct stored_tensor *tensor =
            checkpoint_find_weight(&files, "model.layers.3.mlp.up_proj.weight");
        cr_assert_not_null(tensor, "%s", cases[i].name);
        cr_expect_eq(tensor->entry->rank, 2);
        cr_expect_arr_eq(tensor->entry->shape, wanted.shape, 2 * sizeof *wanted.shape);
        for (int64_t piece = count; piece > 0; piece = piece == count ? 37 : 0) {
            memset(found, 0xff, (size_t)count * sizeof *found);
            for (int64_t at = 0; at < count; at += piece)
                SUCCEEDS(checkpoint_widen(found + at, tensor, at, MIN(piece, count - at), &error));
            for (int64_t k = 0; k < count; k++)
                cr_assert_eq(f32_bits(found[k]), f32_bits(values[k]),
                             "%s, pieces of %d: element %d is %g, not %g", cases[i].name,
                             (int)piece, (int)k, (double)found[k], (double)values[k]);
        }
        tensor_files_close(&files);
        free(found);
        free(values);
    }
}

/* Stores a weight of a case with the scales of its file, in blocks of so many elements, and checks
 * that it has the values of the file, once they are rounded as that is. */
static void check_scales(const char *name, const struct stored_tensor *tensor, int64_t block,
                         const float *wanted, int64_t count) {
    struct quantized_weight w = {.count = count, .block = block};
    uint8_t codes[16 * 64];
    float scales[64], values[16 * 64], found[16 * 64];
    uint16_t halves[16 * 64];
    enum dtype rounded = DTYPE_F32;
    w.codes = (struct tensor){codes, DTYPE_E4M3, 1, {count}};
    w.scales = (struct tensor){scales, DTYPE_F32, 1, {count / block}};
    cr_assert_leq(count, 16 * 64);
    cr_assert_leq(count / block, 64);
    SUCCEEDS(quantized_tensor_scales(scales, tensor->quantized, block, count / block, &error));
    SUCCEEDS(checkpoint_widen(values, tensor, 0, count, &error));
    quantized_weight_store(&w, values, scales);
    quantized_weight_load(&w, found, 0, count);
    if (strcmp(name, "rows_fp16") == 0) rounded = DTYPE_F16;
    if (strcmp(name, "rows_bf16") == 0 || strcmp(name, "blocks") == 0) rounded = DTYPE_BF16;
    if (rounded != DTYPE_F32) {
        dtype_store(halves, rounded, 0, found, (size_t)count);
        dtype_widen(found, halves, rounded, 0, (size_t)count);
    }
    for (int64_t i = 0; i < count; i++)
        cr_assert_eq(f32_bits(found[i]), f32_bits(wanted[i]), "%s: element %d is %g, not %g", name,
                     (int)i, (double)found[i], (double)wanted[i]);
}

/* Scales of whole rows fit blocks of any size that divides them; those of the others' blocks, 32
 * wide, fit 16, but no row of 48. Codes in E4M3 alone are kept. */
Test(quantized_tensors, scales_of_a_file_are_kept) {
    static const struct {
        const char *name;
        int64_t block;
        int status;
    } kept[] = {
        {"fp8", 16, 0},
        {"fp8", 48, RESULT_NONE},
        {"fp8_whole", 32, 0},
        {"fp8_whole", 16, 0},
        {"fp8_whole", 64, RESULT_NONE},
        {"fp8_tensor", 48, 0},
        {"fbgemm", 48, 0},
        {"fbgemm", 16, 0},
        {"rows_bf16", 48, 0},
        {"rows_fp16", 16, 0},
        {"tensor", 48, 0},
        {"blocks", 16, 0},
        {"mxfp8", 32, 0},
        {"int8", 48, RESULT_NONE},
        {"nvfp4", 16, RESULT_NONE},
        {"tensor", 7, RESULT_NONE},
    };
    for (size_t i = 0; i < COUNT(kept); i++) {
        struct tensor_files files;
        struct safetensors_entry entry;
        float scales[64];
        size_t of = 0;
        while (strcmp(cases[of].name, kept[i].name) != 0) of++;
        put_case(kept[i].name, cases[of].config, &unchanged);
        float *wanted = expected_values(kept[i].name, &entry);
        const int64_t count = (int64_t)(entry.shape[0] * entry.shape[1]);
        SUCCEEDS(tensor_files_open_directory(&files, folder, "model", &error));
        SUCCEEDS(quantized_tensors_open(&files, folder, &error));
        const struct stored_tensor *tensor = &files.tensors[0];
        if (kept[i].status)
            cr_expect_eq(quantized_tensor_scales(scales, tensor->quantized, kept[i].block,
                                                 count / kept[i].block, &error),
                         kept[i].status, "%s by %d", kept[i].name, (int)kept[i].block);
        else check_scales(kept[i].name, tensor, kept[i].block, wanted, count);
        tensor_files_close(&files);
        free(wanted);
    }
}

/* Opens and reads the folder, and expects a failure that names these. */
static void expect_failure(const char *file, const char *tensor, const char *reason) {
    struct tensor_files files;
    float values[64];
    SUCCEEDS(tensor_files_open_directory(&files, folder, "model", &error));
    const int count = files.count;
    int status = quantized_tensors_open(&files, folder, &error);
    if (status) cr_expect_eq(files.count, count);
    else status = checkpoint_widen(values, &files.tensors[0], 0, 64, &error);
    cr_expect_eq(status, -1, "read: %s", reason);
    cr_expect_not_null(strstr(error.text, in_folder("%s", file)), "no %s in: %s", file, error.text);
    cr_expect_not_null(strstr(error.text, tensor), "no %s in: %s", tensor, error.text);
    cr_expect_not_null(strstr(error.text, reason), "no \"%s\" in: %s", reason, error.text);
    cr_expect_not_null(strchr(error.text, '\n'), "no remedy in: %s", error.text);
    tensor_files_close(&files);
}

Test(quantized_tensors, damaged_folders_are_refused_by_tensor) {
    static const struct {
        int in; /* index of the case */
        struct change change;
        const char *tensor, *reason;
    } damages[] = {
        {0,
         {.tensor = "weight_scale_inv", .kind = LEFT_OUT},
         "up_proj.weight (F8_E4M3)",
         "has no scales"},
        {0,
         {.tensor = "weight", .kind = LEFT_OUT},
         "up_proj.weight_scale_inv",
         "no quantized weight"},
        {0,
         {.tensor = "weight", .kind = RETYPED, .dtype = SAFETENSORS_BOOL},
         "up_proj.weight_scale_inv",
         "no quantized weight"},
        {0,
         {.tensor = "weight_scale_inv", .kind = RESHAPED, .shape = {1, 2}},
         "weight_scale_inv",
         "2 scales, which fit neither the 13 rows"},
        {0,
         {.tensor = "weight_scale_inv", .kind = RESHAPED, .shape = {0, 2}},
         "weight_scale_inv",
         "0 scales"},
        {0,
         {.tensor = "weight_scale_inv", .kind = OVERWRITTEN},
         "weight_scale_inv",
         "scale 0 is not finite"},
        {0,
         {.tensor = "weight", .kind = RESHAPED, .shape = {0, 48}},
         "up_proj.weight",
         "no matrix"},
        {3,
         {.tensor = "weight_scale_inv", .kind = OVERWRITTEN},
         "weight_scale_inv",
         "scale 0 is not finite"},
        {4,
         {.tensor = "weight_scale", .kind = RESHAPED, .shape = {12, 1}},
         "weight_scale",
         "12 scales"},
        {5,
         {.tensor = "weight_scale", .kind = RETYPED, .dtype = SAFETENSORS_I16},
         "weight_scale (I16)",
         "dtype"},
        {10,
         {.tensor = "weight_global_scale", .kind = LEFT_OUT},
         "weight_scale",
         "weight_global_scale beside it"},
        {10,
         {.tensor = "weight_global_scale", .kind = OVERWRITTEN},
         "weight_global_scale",
         "not finite"},
        {10,
         {.tensor = "weight_scale", .kind = OVERWRITTEN},
         "weight_scale",
         "scale 0 is not finite"},
        {10, {.tensor = "weight_packed", .kind = LEFT_OUT}, "weight_", "no quantized weight"},
        {10,
         {.tensor = "weight_packed", .kind = RETYPED, .dtype = SAFETENSORS_I8},
         "weight_packed (I8)",
         "packed"},
        {12, {.tensor = "weight.absmax", .kind = LEFT_OUT}, "up_proj.weight (U8)", "has no scales"},
        {12,
         {.tensor = "weight.absmax", .kind = RESHAPED, .shape = {1, 3}},
         "absmax",
         "6 values in U8"},
        {12, {.tensor = "weight.quant_map", .kind = LEFT_OUT}, "up_proj.weight (U8)", "quant_map"},
        {12,
         {.tensor = "weight.quant_map", .kind = RESHAPED, .shape = {3, 5}},
         "quant_map",
         "16 values"},
        {12, {.tensor = "weight.quant_map", .kind = OVERWRITTEN}, "quant_map", "not finite"},
        {12,
         {.tensor = "weight.nested_quant_map", .kind = LEFT_OUT},
         "up_proj.weight (U8)",
         "nested_"},
        {12,
         {.tensor = "weight.nested_absmax", .kind = LEFT_OUT},
         "up_proj.weight (U8)",
         "nested_"},
        {12,
         {.tensor = "weight.nested_absmax", .kind = OVERWRITTEN},
         "weight.absmax",
         "scale 0 is"},
        {13,
         {.tensor = "weight.nested_absmax", .kind = RESHAPED, .shape = {1, 1}},
         "nested_absmax",
         "2 values in F32"},
        {12,
         {.tensor = "weight.quant_state.bitsandbytes__nf4", .kind = LEFT_OUT},
         "up_proj.weight (U8)",
         "quant_state"},
        {12,
         {.tensor = "weight.quant_state.bitsandbytes__nf4", .kind = OVERWRITTEN},
         "quant_state",
         "JSON"},
        {12,
         {.tensor = "weight", .kind = RESHAPED, .shape = {3, 7}},
         "up_proj.weight (U8)",
         "size"},
        {15, {.tensor = "SCB", .kind = LEFT_OUT}, "up_proj.weight (I8)", "has no scales"},
        {15, {.tensor = "SCB", .kind = RESHAPED, .shape = {1, 5}}, "SCB", "5 scales"},
    };
    for (size_t i = 0; i < COUNT(damages); i++) {
        put_case(cases[damages[i].in].name, cases[damages[i].in].config, &damages[i].change);
        expect_failure("model.safetensors", damages[i].tensor, damages[i].reason);
    }
}

Test(quantized_tensors, other_formats_are_refused_by_name) {
    static const struct {
        const char *config, *reason;
    } others[] = {
        {"{\"quant_method\":\"gptq\",\"bits\":4}", "quant_method is \"gptq\""},
        {"{\"quant_method\":\"awq\",\"bits\":4}", "quant_method is \"awq\""},
        {"{\"quant_method\":\"mxfp4\"}", "quant_method is \"mxfp4\""},
        {"{}", "quant_method is missing"},
        {"true", "quant_method is missing"},
        {"{\"quant_method\":[1]}", "quant_method is [1]"},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[0,128]}",
         "weight_block_size is [0,128]"},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[128]}", "weight_block_size is [128]"},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[1e300,1]}", "weight_block_size is"},
        {GROUP("\"num_bits\":4,\"type\":\"int\",\"group_size\":128"), "\"num_bits\":4"},
        {GROUP("\"num_bits\":8,\"type\":\"int\",\"symmetric\":false"), "symmetric is false"},
        {GROUP(FLOAT8 "\"block\",\"block_structure\":null"), "block_structure is null"},
        {"{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":1}}",
         "config_groups is 1"},
        {"{\"quant_method\":\"compressed-tensors\",\"sparsity_config\":{\"format\":\"sparse-24-"
         "bitmask\"}}",
         "sparsity_config is"},
        {"{\"quant_method\":\"compressed-tensors\",\"transform_config\":{\"config_groups\":{}}}",
         "transform_config is"},
    };
    for (size_t i = 0; i < COUNT(others); i++) {
        struct config config;
        put_case("fp8", others[i].config, &unchanged);
        expect_failure("config.json", "quantization_config", others[i].reason);
        expect_failure("config.json", "quantization_config", "dequantize()");
        config_defaults(&config);
        cr_expect_eq(huggingface_read_config(&config, folder, &error), -1);
        cr_expect_not_null(strstr(error.text, others[i].reason), "%s", error.text);
    }
}

/* Layers that are not quantized stay as they are, and scales of activations are left out. */
Test(quantized_tensors, plain_layers_and_scales_of_activations) {
    struct tensor_files files;
    char raw[SHA256_HEX_MAX], hex[SHA256_HEX_MAX];
    uint16_t one = 0x3f80;
    float value = 0;
    const struct safetensors_entry entries[] = {
        {.name = "a.input_scale", .dtype = SAFETENSORS_BF16, .rank = 1, .shape = {1}},
        {.name = "lm_head.weight", .dtype = SAFETENSORS_BF16, .rank = 2, .shape = {1, 1}},
    };
    put_text("config.json", "{\"text_config\":{\"quantization_config\":" FP8 "}}");
    const uint16_t data[] = {one, one};
    SUCCEEDS(
        safetensors_put(in_folder("model.safetensors"), entries, 2, data, sizeof data, &error));
    SUCCEEDS(tensor_files_open_directory(&files, folder, "model", &error));
    SUCCEEDS(tensor_files_fingerprint(raw, &files, &error));
    SUCCEEDS(quantized_tensors_open(&files, folder, &error));
    SUCCEEDS(tensor_files_fingerprint(hex, &files, &error));
    cr_expect_str_eq(hex, raw, "the fingerprint of a base must not depend on how it is read");
    cr_assert_eq(files.count, 1);
    cr_expect_eq(files.tensors[0].entry->dtype, SAFETENSORS_BF16);
    SUCCEEDS(checkpoint_widen(&value, &files.tensors[0], 0, 1, &error));
    cr_expect_eq(value, 1);
    tensor_files_close(&files);
}
