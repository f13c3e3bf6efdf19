#include "model/io/gguf_model.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "model/core/rope.h"
#include "model/io/gguf.h"
#include "model/io/gguf_tokenizer.h"

enum { KEY_MAX = 80, QUANTIZATION_VERSION = 2 };

/* ---- architectures */

enum {
    LLAMA = 1,
    QWEN2 = 2,
    QWEN3 = 4,
    GPT2 = 8,
    GEMMA2 = 16,
    GEMMA3 = 32,
    GEMMA = GEMMA2 | GEMMA3,
    ROPE = LLAMA | QWEN2 | QWEN3 | GEMMA
};

/* Layers of the models whose scale of scores llama.cpp derives from n_embd. */
enum { GEMMA2_27B_LAYERS = 46, GEMMA3_27B_LAYERS = 62 };

/* True if llama.cpp computes a Gemma as it is here. It takes the scale of scores from other sizes,
 * needs a layer with a window, caps scores and logits of Gemma 2 only, and scales positions of
 * Gemma 3 only in layers without a window. */
static bool fits_gemma(const struct gpt_shape *s) {
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

/* Returns the architecture, or 0. */
static int architecture_of(const struct gpt_shape *s) {
    bool scaled = s->rope_scaling == ROPE_LLAMA3; /* by divisors, which only "llama" has */
    if (shape_is_gpt2(s)) return s->window ? 0 : GPT2;
    if (shape_is_gemma(s)) return !fits_gemma(s) ? 0 : s->qk_norm ? GEMMA3 : GEMMA2;
    if (!shape_is_llama(s)) return 0;
    if (s->qk_norm) return scaled ? 0 : QWEN3;
    return s->bias == BIAS_QKV && !scaled && shape_q(s) == s->n_embd ? QWEN2 : LLAMA;
}

static const char *architecture_name(int architecture) {
    return architecture == GPT2     ? "gpt2"
           : architecture == QWEN2  ? "qwen2"
           : architecture == QWEN3  ? "qwen3"
           : architecture == GEMMA2 ? "gemma2"
           : architecture == GEMMA3 ? "gemma3"
                                    : "llama";
}

/* llama.cpp computes yarn with these values, for Llama and Qwen whatever the file has. */
static bool has_other_yarn(const struct gpt_shape *s) {
    return s->rope_scaling == ROPE_YARN &&
           (s->rope_beta_fast != 32 || s->rope_beta_slow != 1 || !s->rope_truncate);
}

int gguf_check_shape(const struct gpt_shape *shape, struct error *error) {
    const int architecture = architecture_of(shape);
    if (architecture & ROPE && shape->rope_scaling == ROPE_DYNAMIC)
        return fail(error, "llama.cpp has no rope scaling \"dynamic\"\n"
                           "export to a folder instead, without .gguf");
    if (architecture & ROPE && has_other_yarn(shape))
        return fail(error, "llama.cpp has yarn only with model.rope_beta_fast 32, "
                           "model.rope_beta_slow 1\nand model.rope_truncate true\n"
                           "export to a folder instead, without .gguf");
    return architecture
               ? 0
               : fail(error, "llama.cpp has no model with these parts: it has GPT-2 without a "
                             "window, Llama, Mistral,\nQwen2, Gemma 2 and 3 with their usual "
                             "parts, and Qwen3 "
                             "without llama3 rope scaling\n"
                             "export to a folder instead, without .gguf");
}

/* ---- metadata */

#define SIZE(key, field, architectures) \
    { key, offsetof(struct gpt_shape, field), GGUF_UINT32, architectures }
#define NUMBER(key, field, architectures) \
    { key, offsetof(struct gpt_shape, field), GGUF_FLOAT32, architectures }
static const struct {
    const char *key;
    size_t field; /* offset in struct gpt_shape of an int64_t or, for GGUF_FLOAT32, a double */
    enum gguf_value type;
    int architectures;
} fields[] = {
    SIZE("vocab_size", vocab_size, ROPE | GPT2),
    SIZE("context_length", n_positions, ROPE | GPT2),
    SIZE("embedding_length", n_embd, ROPE | GPT2),
    SIZE("block_count", n_layer, ROPE | GPT2),
    SIZE("feed_forward_length", n_inner, ROPE | GPT2),
    SIZE("attention.head_count", n_head, ROPE | GPT2),
    SIZE("attention.head_count_kv", n_kv_head, ROPE),
    SIZE("attention.key_length", head_dim, ROPE),
    SIZE("attention.value_length", head_dim, ROPE),
    SIZE("attention.sliding_window", window, ROPE),
    SIZE("rope.dimension_count", head_dim, ROPE),
    NUMBER("rope.freq_base", rope_theta, ROPE),
    NUMBER("attention.layer_norm_epsilon", norm_eps, GPT2),
    NUMBER("attention.layer_norm_rms_epsilon", norm_eps, ROPE),
    NUMBER("attn_logit_softcapping", attention_softcap, GEMMA2),
    NUMBER("final_logit_softcapping", logit_softcap, GEMMA2),
};

/* Adds the pairs of linear and yarn scaling. llama.cpp multiplies the attention factor of the file
 * by yarn's default. */
static void put_rope_scaling(struct gguf_writer *writer, const char *name,
                             const struct gpt_shape *s) {
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

/* True if every layer has a window but each `period`-th. */
static bool has_period(const struct gpt_shape *s, int64_t period) {
    bool same = true;
    for (int64_t layer = 0; layer < s->n_layer; layer++)
        same &= (shape_window(s, layer) > 0) == ((layer + 1) % period > 0);
    return same;
}

/* Adds the windows and the base of a Gemma whose layers are not like those of the released models,
 * for which llama.cpp's converter writes neither. */
static void put_layers(struct gguf_writer *writer, const char *name, const struct gpt_shape *s) {
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
                         int architecture, enum gguf_type type) {
    const char *name = architecture_name(architecture), *shape = (const char *)&model->shape;
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
        if (!(fields[i].architectures & architecture) || value == 0) continue;
        snprintf(key, sizeof key, "%s.%s", name, fields[i].key);
        gguf_put_number(writer, key, fields[i].type, value);
    }
    if (architecture & ROPE) put_rope_scaling(writer, name, &model->shape);
    if (architecture & GEMMA) put_layers(writer, name, &model->shape);
}

/* ---- tensors */

enum order { SAME, TRANSPOSED, QUERIES, KEYS };

/* Names of kinds of parameters without ".weight" and ".bias", and the order of their rows. Only
 * matrices are transposed, and q and k only reordered in the architecture "llama". */
static const struct kind {
    const char *from, *to;
    enum order order;
} kinds[] = {
    {"wte", "token_embd", SAME},
    {"wpe", "position_embd", SAME},
    {"ln_f", "output_norm", SAME},
    {"ln_1", "attn_norm", SAME},
    {"attn.c_attn", "attn_qkv", TRANSPOSED},
    {"attn.c_proj", "attn_output", TRANSPOSED},
    {"ln_2", "ffn_norm", SAME},
    {"mlp.c_fc", "ffn_up", TRANSPOSED},
    {"mlp.c_proj", "ffn_down", TRANSPOSED},
    {"model.embed_tokens", "token_embd", SAME},
    {"lm_head", "output", SAME},
    {"model.norm", "output_norm", SAME},
    {"input_layernorm", "attn_norm", SAME},
    {"self_attn.q_proj", "attn_q", QUERIES},
    {"self_attn.k_proj", "attn_k", KEYS},
    {"self_attn.v_proj", "attn_v", SAME},
    {"self_attn.o_proj", "attn_output", SAME},
    {"self_attn.q_norm", "attn_q_norm", SAME},
    {"self_attn.k_norm", "attn_k_norm", SAME},
    {"post_attention_layernorm", "ffn_norm", SAME},
    {"pre_feedforward_layernorm", "ffn_norm", SAME},
    {"post_feedforward_layernorm", "post_ffw_norm", SAME},
    {"mlp.gate_proj", "ffn_gate", SAME},
    {"mlp.up_proj", "ffn_up", SAME},
    {"mlp.down_proj", "ffn_down", SAME},
};

/* Gemma's norm after attention, which has the name of Llama's norm before the MLP. */
static const struct kind gemma_post_attention = {"post_attention_layernorm", "post_attention_norm",
                                                 SAME};

/* A tensor of the file. */
struct output {
    const struct parameter *parameter;
    char name[KEY_MAX];
    enum gguf_type type;
    int64_t rows, columns; /* a vector has one row */
    bool transposed;
    int64_t heads; /* number of heads whose rows are reordered; 0: none */
};

/* A file while it is written. */
struct job {
    const struct gguf_model *model;
    enum gguf_type type;
    int architecture;
    struct gguf_writer writer;
    struct output *outputs; /* stb_ds */
    FILE *notes;            /* or NULL */
};

static const struct kind *kind_of(const struct parameter *parameter, int architecture) {
    const char *end = strrchr(parameter->kind, '.');
    size_t length = (size_t)(end - parameter->kind);
    const struct kind *kind = kinds;
    while (strlen(kind->from) != length || strncmp(kind->from, parameter->kind, length) != 0)
        kind++; /* all kinds of GPT-2, Llama and Gemma are in the table */
    if (architecture & GEMMA && strcmp(kind->from, gemma_post_attention.from) == 0)
        return &gemma_post_attention;
    return kind;
}

/* Returns the type of a tensor. A note names one whose rows have no whole blocks, once for all
 * layers. */
static enum gguf_type type_of(const struct job *job, const struct output *output) {
    const struct parameter *parameter = output->parameter;
    bool is_head = parameter == parameter_head(job->model->list);
    enum gguf_type type = job->type;
    if (!parameter->extent.columns || strcmp(parameter->kind, "wpe.weight") == 0) return GGUF_F32;
    if (is_head && type == GGUF_Q4_0) type = GGUF_Q8_0;
    if (output->columns % gguf_types[type].block == 0) return type;
    if (job->notes && parameter->layer <= 0)
        fprintf(job->notes,
                "note: %s%s: rows of %" PRId64 " values are not a multiple of %" PRId64
                "; stored as f16\n",
                output->name, parameter->layer < 0 ? "" : " and other layers", output->columns,
                gguf_types[type].block);
    return GGUF_F16;
}

static void list_output(struct job *job, const struct parameter *parameter) {
    const struct kind *kind = kind_of(parameter, job->architecture);
    const struct gpt_shape *s = &job->model->shape;
    const struct extent *extent = &parameter->extent;
    struct output output = {.parameter = parameter, .rows = 1, .columns = extent->rows};
    char layer[32] = "";
    if (parameter->layer >= 0) snprintf(layer, sizeof layer, "blk.%d.", parameter->layer);
    snprintf(output.name, sizeof output.name, "%s%s%s", layer, kind->to,
             strrchr(parameter->kind, '.'));
    output.transposed = extent->columns && kind->order == TRANSPOSED;
    if (extent->columns) {
        output.rows = output.transposed ? extent->columns : extent->rows;
        output.columns = output.transposed ? extent->rows : extent->columns;
    }
    if (job->architecture == LLAMA && kind->order == QUERIES) output.heads = s->n_head;
    if (job->architecture == LLAMA && kind->order == KEYS) output.heads = s->n_kv_head;
    output.type = type_of(job, &output);
    gguf_add_tensor(&job->writer, output.name, output.type,
                    extent->columns ? (uint64_t)output.rows : 0, (uint64_t)output.columns);
    arrput(job->outputs, output);
}

/* Returns the index in a parameter of row `index` of a tensor, of `count` rows. Rope pairs rows i
 * and i + size / 2 of a head here, and rows 2i and 2i + 1 in llama.cpp. */
static int64_t source_row(const struct output *output, int64_t index, int64_t count) {
    if (output->heads == 0) return index;
    int64_t size = count / output->heads, head = index / size, at = index % size;
    return head * size + at % 2 * (size / 2) + at / 2;
}

/* Fills values with a row. `whole` has all values of a vector or of a transposed matrix. */
static int read_row(const struct job *job, float *values, const struct output *output, int64_t row,
                    const float *whole) {
    const struct gguf_model *model = job->model;
    const int64_t columns = output->columns;
    if (!whole)
        return model->read(model->context, values, output->parameter,
                           source_row(output, row, output->rows) * columns, columns);
    for (int64_t i = 0; i < columns; i++)
        values[i] =
            whole[output->transposed ? i * output->rows + row : source_row(output, i, columns)];
    return 0;
}

static int refuse_value(const struct job *job, const struct output *output, int64_t row,
                        int64_t column, float value) {
    return fail(job->model->error,
                "tensor %s: element [%" PRId64 ", %" PRId64
                "] is %g, which %s cannot represent\nexport with --type %s",
                output->name, row, column, (double)value, gguf_types[output->type].name,
                isfinite(value) && output->type == GGUF_F16 ? "bf16 or f32" : "f32");
}

static int write_rows(struct job *job, const struct output *output, float *values, uint8_t *row,
                      const float *whole) {
    const struct gguf_type_info *info = &gguf_types[output->type];
    size_t bytes = (size_t)(output->columns / info->block) * info->block_bytes;
    struct error *error = job->model->error;
    for (int64_t i = 0; i < output->rows; i++) {
        if (read_row(job, values, output, i, whole)) return -1;
        int64_t wrong = gguf_store(row, output->type, values, output->columns);
        if (wrong >= 0) return refuse_value(job, output, i, wrong, values[wrong]);
        if (gguf_write_data(&job->writer, row, bytes, error)) return -1;
    }
    return gguf_write_end_tensor(&job->writer, error);
}

/* Reads a whole parameter. llama.cpp multiplies by the weights of norms as they are. */
static int read_whole(const struct job *job, float *values, const struct output *output) {
    const struct gguf_model *model = job->model;
    const int64_t count = output->rows * output->columns;
    if (model->read(model->context, values, output->parameter, 0, count)) return -1;
    for (int64_t i = 0; i < count && !output->parameter->extent.columns; i++)
        values[i] += shape_weight_offset(&model->shape);
    return 0;
}

static int write_output(struct job *job, const struct output *output) {
    const struct gguf_model *model = job->model;
    const int64_t count = output->rows * output->columns;
    const bool needs_whole = output->transposed || output->rows == 1;
    float *values = malloc((size_t)output->columns * sizeof *values);
    uint8_t *row = malloc((size_t)output->columns * sizeof(float));
    float *whole = needs_whole ? malloc((size_t)count * sizeof *whole) : NULL;
    int status = -1;
    if (!values || !row || (needs_whole && !whole))
        fail(model->error, "out of memory for a tensor");
    else if (!whole || read_whole(job, whole, output) == 0)
        status = write_rows(job, output, values, row, whole);
    free(values);
    free(row);
    free(whole);
    return status;
}

/* Divisors of the frequencies of rope, which only Llama 3's rope has. */
static const char rope_name[] = "rope_freqs.weight";

static int write_rope(struct job *job) {
    const struct gpt_shape *shape = &job->model->shape;
    struct gpt_shape plain = *shape;
    plain.rope_scaling = ROPE_UNSCALED;
    for (int64_t i = 0; i < shape->head_dim / 2; i++) {
        float divisor = rope_frequency(&plain, i, shape->n_positions) /
                        rope_frequency(shape, i, shape->n_positions);
        if (gguf_write_data(&job->writer, &divisor, sizeof divisor, job->model->error)) return -1;
    }
    return gguf_write_end_tensor(&job->writer, job->model->error);
}

static int write_all(struct job *job, const char *path) {
    const struct gguf_model *model = job->model;
    const struct gpt_shape *shape = &model->shape;
    bool scaled = job->architecture == LLAMA && shape->rope_scaling == ROPE_LLAMA3;
    put_metadata(&job->writer, model, job->architecture, job->type);
    if (gguf_put_tokenizer(&job->writer, model->tokenizer, model->tokens, model->chat_template,
                           shape->vocab_size, model->error))
        return -1;
    for (ptrdiff_t i = 0; i < arrlen(model->list); i++) list_output(job, &model->list[i]);
    if (scaled)
        gguf_add_tensor(&job->writer, rope_name, GGUF_F32, 0, (uint64_t)shape->head_dim / 2);
    if (gguf_write_begin(&job->writer, path, model->error)) return -1;
    for (ptrdiff_t i = 0; i < arrlen(job->outputs); i++)
        if (write_output(job, &job->outputs[i])) return -1;
    if (scaled && write_rope(job)) return -1;
    return gguf_write_end(&job->writer, model->error);
}

int gguf_write_model(const char *path, enum gguf_type type, const struct gguf_model *model,
                     FILE *notes) {
    struct job job = {.model = model,
                      .type = type,
                      .architecture = architecture_of(&model->shape),
                      .notes = notes};
    if (gguf_check_shape(&model->shape, model->error)) return -1;
    if (notes && model->shape.window && !(job.architecture & GEMMA))
        fprintf(notes,
                "note: llama.cpp ignores the sliding window; its results differ in texts of more "
                "than %" PRId64 " tokens\n",
                model->shape.window);
    if (notes && !model->tokenizer)
        fprintf(notes, "note: no tokenizer found; the file works with token numbers only\n");
    int status = write_all(&job, path);
    gguf_writer_close(&job.writer);
    arrfree(job.outputs);
    return status;
}
