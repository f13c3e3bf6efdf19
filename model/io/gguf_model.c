#include "model/io/gguf_model.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/note.h"
#include "model/architecture/families.h"
#include "model/core/rope.h"
#include "model/io/gguf.h"
#include "model/io/gguf_tokenizer.h"

enum { KEY_MAX = 80, QUANTIZATION_VERSION = 2 };

/* ---- architectures */

enum { ROPE = IN_ALL & ~IN_GPT2 }; /* families with rope */
/* Families whose rope rotates neighbours, and has frequencies by divisors. */
enum {
    NEIGHBOURS = IN_LLAMA | IN_SMOLLM3 | IN_GRANITE | IN_ARCEE,
    DIVISORS = IN_LLAMA | IN_EXAONE4
};

/* Layers of the models whose scale of scores llama.cpp derives from n_embd. */
enum { GEMMA2_27B_LAYERS = 46, GEMMA3_27B_LAYERS = 62 };

/* Layers of the only EXAONE 4 to which llama.cpp gives windows, and every which layer of it, of an
 * OLMo 3 and of a SmolLM3 differs from others. */
enum { EXAONE4_32B_LAYERS = 64, OTHER_LAYERS = 4 };

/* True if llama.cpp computes a Gemma as it is here. It takes the scale of scores from other sizes,
 * needs a layer with a window, caps scores and logits of Gemma 2 only, and scales positions of
 * Gemma 3 only in layers without a window. */
static bool fits_gemma(const struct model_shape *s) {
    const bool gemma3 = s->qk_norm;
    const bool largest = s->n_layer == (gemma3 ? GEMMA3_27B_LAYERS : GEMMA2_27B_LAYERS);
    const int64_t scale = largest ? s->n_embd / s->n_head : s->head_dim;
    const bool scaled = s->rope_scaling != ROPE_UNSCALED;
    const double own =
        s->query_pre_attn_scalar > 0 ? s->query_pre_attn_scalar : (double)s->head_dim;
    if (own != (double)scale || s->window_from > 0 || shape_window_layers(s) == 0) return false;
    if (scaled && s->rope_scaling != ROPE_LINEAR) return false;
    return gemma3 ? s->logit_softcap == 0 && (!scaled || s->rope_theta_window > 0)
                  : s->attention_softcap > 0 && s->logit_softcap > 0 && s->tied_head;
}

/* True if every layer has a window but each `period`-th. */
static bool has_period(const struct model_shape *s, int64_t period) {
    bool same = true;
    for (int64_t layer = 0; layer < s->n_layer; layer++)
        same &= (shape_window(s, layer) > 0) == ((layer + 1) % period > 0);
    return same;
}

/* True if llama.cpp computes a model of these families as it is here. */
static bool fits_other_layers(const struct model_shape *s, enum model_family family) {
    if (family == FAMILY_SMOLLM3)
        return s->no_rope_interval == OTHER_LAYERS && s->bias == BIAS_NONE;
    if (family == FAMILY_ARCEE && s->bias != BIAS_NONE) return false;
    if (family == FAMILY_PHI3) return shape_window_layers(s) == 0; /* llama.cpp ignores windows */
    if ((family == FAMILY_OLMO2 || family == FAMILY_OLMO3) &&
        (s->tied_head || shape_q(s) != s->n_embd))
        return false;
    if (family == FAMILY_OLMO3)
        return has_period(s, OTHER_LAYERS) && s->rope_theta_window == s->rope_theta;
    if (family == FAMILY_EXAONE4)
        return s->n_layer == EXAONE4_32B_LAYERS ? has_period(s, OTHER_LAYERS) : s->window == 0;
    return true;
}

/* Returns the family whose architecture llama.cpp has for a model, or FAMILY_COUNT. "llama" stands
 * for Mistral, too, and for models of Qwen2's parts that Qwen2's architecture cannot express. */
static enum model_family family_of(const struct model_shape *s) {
    const enum model_family family = shape_family(s);
    bool scaled = s->rope_scaling == ROPE_LLAMA3; /* by divisors, which only "llama" has */
    if (family == FAMILY_COUNT || !families[family].gguf) return FAMILY_COUNT;
    if (family == FAMILY_GPT2 && s->window) return FAMILY_COUNT;
    if (1 << family & IN_GEMMA && !fits_gemma(s)) return FAMILY_COUNT;
    if (!fits_other_layers(s, family)) return FAMILY_COUNT;
    if (family == FAMILY_QWEN2 && !scaled && shape_q(s) == s->n_embd) return family;
    if (1 << family & (IN_LLAMA | IN_MISTRAL | IN_QWEN2)) return FAMILY_LLAMA;
    return scaled && family != FAMILY_GPT2 && !(1 << family & DIVISORS) ? FAMILY_COUNT : family;
}

/* llama.cpp computes yarn with these values, for Llama and Qwen whatever the file has. */
static bool has_other_yarn(const struct model_shape *s) {
    return s->rope_scaling == ROPE_YARN &&
           (s->rope_beta_fast != 32 || s->rope_beta_slow != 1 || !s->rope_truncate);
}

int gguf_check_shape(const struct model_shape *shape, struct error *error) {
    const int family = 1 << family_of(shape) & IN_ALL;
    if (family & ROPE && shape->rope_scaling == ROPE_DYNAMIC)
        return fail(error, "llama.cpp has no rope scaling \"dynamic\"\n"
                           "export to a folder instead, without .gguf");
    if (family & ROPE && has_other_yarn(shape))
        return fail(error, "llama.cpp has yarn only with model.rope_beta_fast 32, "
                           "model.rope_beta_slow 1\nand model.rope_truncate true\n"
                           "export to a folder instead, without .gguf");
    return family ? 0
                  : fail(error,
                         "llama.cpp has no model with these parts: it has GPT-2 without a "
                         "window, Llama, Mistral, Qwen2, Gemma 2 and 3, SmolLM3, OLMo 2 and "
                         "3 and EXAONE 4 with their usual parts, GLM-4, Phi-3 without a window, "
                         "and Granite, Arcee and Qwen3 without llama3 rope scaling\n"
                         "export to a folder instead, without .gguf");
}

/* ---- metadata */

#define SIZE(key, field, families) \
    { key, offsetof(struct model_shape, field), GGUF_UINT32, families, 0 }
#define NUMBER(key, field, families) \
    { key, offsetof(struct model_shape, field), GGUF_FLOAT32, families, 0 }
#define FACTOR(key, field) \
    { key, offsetof(struct model_shape, field), GGUF_FLOAT32, IN_GRANITE, 1 }
static const struct {
    const char *key;
    size_t field; /* offset in struct model_shape of an int64_t or, for GGUF_FLOAT32, a double */
    enum gguf_value type;
    int families;  /* set of those that have it */
    double absent; /* what 0 stands for; 0: the pair is left out */
} fields[] = {
    SIZE("vocab_size", vocab_size, IN_ALL),
    SIZE("context_length", n_positions, IN_ALL),
    SIZE("embedding_length", n_embd, IN_ALL),
    SIZE("block_count", n_layer, IN_ALL),
    SIZE("feed_forward_length", n_inner, IN_ALL),
    SIZE("attention.head_count", n_head, IN_ALL),
    SIZE("attention.head_count_kv", n_kv_head, ROPE),
    SIZE("attention.key_length", head_dim, ROPE),
    SIZE("attention.value_length", head_dim, ROPE),
    SIZE("attention.sliding_window", window, ROPE),
    NUMBER("rope.freq_base", rope_theta, ROPE),
    NUMBER("attention.layer_norm_epsilon", norm_eps, IN_GPT2),
    NUMBER("attention.layer_norm_rms_epsilon", norm_eps, ROPE),
    NUMBER("attn_logit_softcapping", attention_softcap, IN_GEMMA2),
    NUMBER("final_logit_softcapping", logit_softcap, IN_GEMMA2),
    FACTOR("embedding_scale", embedding_multiplier),
    FACTOR("attention.scale", attention_multiplier),
    FACTOR("residual_scale", residual_multiplier),
    FACTOR("logit_scale", logits_scaling),
};

/* Adds the pairs of linear and yarn scaling. llama.cpp multiplies the attention factor of the file
 * by yarn's default. */
static void put_rope_scaling(struct gguf_writer *writer, const char *name,
                             const struct model_shape *s) {
    char key[KEY_MAX];
    const bool yarn = s->rope_scaling == ROPE_YARN;
    if (!yarn && s->rope_scaling != ROPE_LINEAR) return;
    snprintf(key, sizeof key, "%s.rope.scaling.type", name);
    gguf_put_string(writer, key, yarn ? "yarn" : "linear");
    snprintf(key, sizeof key, "%s.rope.scaling.factor", name);
    gguf_put_number(writer, key, GGUF_FLOAT32, s->rope_factor);
    if (!yarn) return;
    snprintf(key, sizeof key, "%s.rope.scaling.original_context_length", name);
    gguf_put_number(writer, key, GGUF_UINT32, (double)s->rope_original_positions);
    snprintf(key, sizeof key, "%s.rope.scaling.attn_factor", name);
    gguf_put_number(writer, key, GGUF_FLOAT32,
                    rope_attention_factor(s) / (0.1 * log(s->rope_factor) + 1));
}

/* Adds the windows and the base of a Gemma whose layers are not like those of the released models,
 * for which llama.cpp's converter writes neither. */
static void put_layers(struct gguf_writer *writer, const char *name, const struct model_shape *s) {
    char key[KEY_MAX];
    const double theta = s->rope_theta_window > 0 ? s->rope_theta_window : s->rope_theta;
    if (!has_period(s, s->qk_norm ? 6 : 2)) {
        snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", name);
        gguf_put_number(writer, key, GGUF_UINT32, (double)s->window_pattern);
    }
    if (!s->qk_norm || theta == 10000) return;
    snprintf(key, sizeof key, "%s.rope.freq_base_swa", name);
    gguf_put_number(writer, key, GGUF_FLOAT32, theta);
}

/* Adds the pairs that do not depend on the tokenizer. A window of 0 is left out. */
static void put_metadata(struct gguf_writer *writer, const struct gguf_model *model,
                         enum model_family family, enum gguf_type type) {
    const char *name = families[family].gguf, *shape = (const char *)&model->shape;
    char key[KEY_MAX];
    gguf_put_string(writer, "general.architecture", name);
    gguf_put_string(writer, "general.type", "model");
    gguf_put_string(writer, "general.name", model->name);
    gguf_put_number(writer, "general.file_type", GGUF_UINT32, gguf_types[type].file_type);
    if (gguf_types[type].block > 1)
        gguf_put_number(writer, "general.quantization_version", GGUF_UINT32, QUANTIZATION_VERSION);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const void *field = shape + fields[i].field;
        double value = fields[i].type == GGUF_FLOAT32 ? *(const double *)field
                                                      : (double)*(const int64_t *)field;
        if (value == 0) value = fields[i].absent;
        if (!(fields[i].families & 1 << family) || value == 0) continue;
        snprintf(key, sizeof key, "%s.%s", name, fields[i].key);
        gguf_put_number(writer, key, fields[i].type, value);
    }
    snprintf(key, sizeof key, "%s.rope.dimension_count", name);
    if (1 << family & ROPE)
        gguf_put_number(writer, key, GGUF_UINT32, (double)shape_rotary(&model->shape));
    if (1 << family & ROPE) put_rope_scaling(writer, name, &model->shape);
    if (1 << family & IN_GEMMA) put_layers(writer, name, &model->shape);
}

/* ---- tensors */

/* A tensor of the file. */
struct output {
    const struct parameter *parameter;
    char name[KEY_MAX];
    enum gguf_type type;
    int64_t rows, columns; /* a vector has one row */
    bool transposed;
    int64_t heads; /* number of heads whose rows are reordered; 0: none */
};

/* A file while it is written, with the model in it. */
struct model_file {
    const struct gguf_model *model;
    enum gguf_type type;
    enum model_family family;
    struct gguf_writer writer;
    struct output *outputs; /* stb_ds */
    FILE *notes;            /* note.h */
};

/* Returns the type of a tensor. A note names one whose rows have no whole blocks, once for all
 * layers. */
static enum gguf_type type_of(const struct model_file *file, const struct output *output) {
    const struct parameter *parameter = output->parameter;
    bool is_head = parameter == parameter_head(file->model->list);
    enum gguf_type type = file->type;
    if (!parameter->extent.columns || strcmp(parameter->kind, "wpe.weight") == 0) return GGUF_F32;
    if (is_head && type == GGUF_Q4_0) type = GGUF_Q8_0;
    if (output->columns % gguf_types[type].block == 0) return type;
    if (parameter->layer <= 0)
        note(file->notes, "note",
             "%s%s: rows of %" PRId64 " values are not a multiple of %" PRId64 "; stored as f16",
             output->name, parameter->layer < 0 ? "" : " and other layers", output->columns,
             gguf_types[type].block);
    return GGUF_F16;
}

static void list_output(struct model_file *file, const struct parameter *parameter) {
    const struct model_shape *s = &file->model->shape;
    const struct extent *extent = &parameter->extent;
    struct output output = {.parameter = parameter, .rows = 1, .columns = extent->rows};
    char layer[32] = "";
    if (parameter->layer >= 0) snprintf(layer, sizeof layer, "blk.%d.", parameter->layer);
    snprintf(output.name, sizeof output.name, "%s%s%s", layer, parameter->gguf,
             strrchr(parameter->kind, '.'));
    output.transposed = parameter_in_layer(parameter) && !s->weights_out_in;
    if (extent->columns) {
        output.rows = output.transposed ? extent->columns : extent->rows;
        output.columns = output.transposed ? extent->rows : extent->columns;
    }
    const bool pairs = 1 << file->family & NEIGHBOURS;
    if (pairs && strcmp(parameter->gguf, "attn_q") == 0) output.heads = s->n_head;
    if (pairs && strcmp(parameter->gguf, "attn_k") == 0) output.heads = s->n_kv_head;
    output.type = type_of(file, &output);
    gguf_add_tensor(&file->writer, output.name, output.type,
                    extent->columns ? (uint64_t)output.rows : 0, (uint64_t)output.columns);
    arrput(file->outputs, output);
}

/* Returns the index in a parameter of row `index` of a tensor, of `count` rows. Rope pairs rows i
 * and i + size / 2 of a head here, and rows 2i and 2i + 1 in llama.cpp. */
static int64_t source_row(const struct output *output, int64_t index, int64_t count) {
    if (output->heads == 0) return index;
    int64_t size = count / output->heads, head = index / size, at = index % size;
    return head * size + at % 2 * (size / 2) + at / 2;
}

/* Fills values with a row. `whole` has all values of a vector or of a transposed matrix. */
static int read_row(const struct model_file *file, float *values, const struct output *output,
                    int64_t row, const float *whole) {
    const struct gguf_model *model = file->model;
    const int64_t columns = output->columns;
    if (!whole)
        return model->read(model->context, values, output->parameter,
                           source_row(output, row, output->rows) * columns, columns);
    for (int64_t i = 0; i < columns; i++)
        values[i] =
            whole[output->transposed ? i * output->rows + row : source_row(output, i, columns)];
    return 0;
}

static int refuse_value(const struct model_file *file, const struct output *output, int64_t row,
                        int64_t column, float value) {
    return fail(file->model->error,
                "tensor %s: element [%" PRId64 ", %" PRId64
                "] is %g, which %s cannot represent\nexport with --type %s",
                output->name, row, column, (double)value, gguf_types[output->type].name,
                isfinite(value) && output->type == GGUF_F16 ? "bf16 or f32" : "f32");
}

static int write_rows(struct model_file *file, const struct output *output, float *values,
                      uint8_t *row, const float *whole) {
    const struct gguf_type_info *info = &gguf_types[output->type];
    size_t bytes = (size_t)(output->columns / info->block) * info->block_bytes;
    struct error *error = file->model->error;
    for (int64_t i = 0; i < output->rows; i++) {
        if (read_row(file, values, output, i, whole)) return -1;
        int64_t wrong = gguf_store(row, output->type, values, output->columns);
        if (wrong >= 0) return refuse_value(file, output, i, wrong, values[wrong]);
        if (gguf_write_data(&file->writer, row, bytes, error)) return -1;
    }
    return gguf_write_end_tensor(&file->writer, error);
}

/* Reads a whole parameter. llama.cpp multiplies by the weights of norms as they are. */
static int read_whole(const struct model_file *file, float *values, const struct output *output) {
    const struct gguf_model *model = file->model;
    const int64_t count = output->rows * output->columns;
    if (model->read(model->context, values, output->parameter, 0, count)) return -1;
    for (int64_t i = 0; i < count && !output->parameter->extent.columns; i++)
        values[i] += shape_weight_offset(&model->shape);
    return 0;
}

static int write_output(struct model_file *file, const struct output *output) {
    const struct gguf_model *model = file->model;
    const int64_t count = output->rows * output->columns;
    const bool needs_whole = output->transposed || output->rows == 1;
    float *values = malloc((size_t)output->columns * sizeof *values);
    uint8_t *row = malloc((size_t)output->columns * sizeof(float));
    float *whole = needs_whole ? malloc((size_t)count * sizeof *whole) : NULL;
    int status = -1;
    if (!values || !row || (needs_whole && !whole)) fail_memory(model->error, "a tensor");
    else if (!whole || read_whole(file, whole, output) == 0)
        status = write_rows(file, output, values, row, whole);
    free(values);
    free(row);
    free(whole);
    return status;
}

/* Divisors of the frequencies of rope, which only Llama 3's rope has. */
static const char rope_name[] = "rope_freqs.weight";

static int write_rope(struct model_file *file) {
    const struct model_shape *shape = &file->model->shape;
    struct model_shape plain = *shape;
    plain.rope_scaling = ROPE_UNSCALED;
    for (int64_t i = 0; i < shape->head_dim / 2; i++) {
        float divisor = rope_frequency(&plain, i, shape->n_positions) /
                        rope_frequency(shape, i, shape->n_positions);
        if (gguf_write_data(&file->writer, &divisor, sizeof divisor, file->model->error)) return -1;
    }
    return gguf_write_end_tensor(&file->writer, file->model->error);
}

static int write_all(struct model_file *file, const char *path) {
    const struct gguf_model *model = file->model;
    const struct model_shape *shape = &model->shape;
    bool scaled = 1 << file->family & DIVISORS && shape->rope_scaling == ROPE_LLAMA3;
    put_metadata(&file->writer, model, file->family, file->type);
    if (gguf_put_tokenizer(&file->writer, model->tokenizer, model->tokens, model->chat_template,
                           shape->vocab_size, model->error))
        return -1;
    for (ptrdiff_t i = 0; i < arrlen(model->list); i++) list_output(file, &model->list[i]);
    if (scaled)
        gguf_add_tensor(&file->writer, rope_name, GGUF_F32, 0, (uint64_t)shape->head_dim / 2);
    if (gguf_write_begin(&file->writer, path, model->error)) return -1;
    for (ptrdiff_t i = 0; i < arrlen(file->outputs); i++)
        if (write_output(file, &file->outputs[i])) return -1;
    if (scaled && write_rope(file)) return -1;
    return gguf_write_end(&file->writer, model->error);
}

int gguf_write_model(const char *path, enum gguf_type type, const struct gguf_model *model,
                     FILE *notes) {
    struct model_file file = {
        .model = model, .type = type, .family = family_of(&model->shape), .notes = notes};
    if (gguf_check_shape(&model->shape, model->error)) return -1;
    if (model->shape.window && !(1 << file.family & IN_KINDS))
        note(notes, "note",
             "llama.cpp ignores the sliding window; its results differ in texts of more than "
             "%" PRId64 " tokens",
             model->shape.window);
    if (!model->tokenizer)
        note(notes, "note", "no tokenizer found; the file works with token numbers only");
    int status = write_all(&file, path);
    gguf_writer_close(&file.writer);
    arrfree(file.outputs);
    return status;
}
