#include "model/core/quantization.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/collectives.h"
#include "model/config/config_keys.h"
#include "model/core/quantization_blocks.h"

_Static_assert((int)CONFIG_SUMS_HOPPER == (int)MATMUL_SUMS_HOPPER &&
                   (int)CONFIG_SUMS_ADA == (int)MATMUL_SUMS_ADA,
               "fp8.sums is cast to enum matmul_sums");

struct size {
    int64_t rows, columns;
};

/* Returns the features of a linear layer: its inputs and outputs. */
static struct size features_of(const struct gpt_shape *s, int linear) {
    const struct size features[LINEAR_COUNT] = {{s->n_embd, shape_qkv(s)},
                                                {shape_q(s), s->n_embd},
                                                {s->n_embd, shape_hidden(s)},
                                                {s->n_inner, s->n_embd}};
    return features[linear];
}

/* True if codes of so many features fill whole bytes. */
static bool fills_bytes(const struct quantization *q, int64_t features) {
    enum dtype element =
        q->precision.recipe.format[QUANTIZED_INPUT][MATMUL_WEIGHT_GRADIENT].element;
    return element != DTYPE_E2M1 || features % 2 == 0;
}

int quantization_open(struct quantization *quantization, const struct config *config,
                      const struct precision *precision, struct backend *be,
                      const bool keeps[LINEAR_COUNT], bool keeps_weights, struct error *error) {
    *quantization = (struct quantization){0};
    if (!precision->fp8) return 0;
    const struct recipe *recipe = &precision->recipe;
    *quantization = (struct quantization){
        .be = be,
        .precision = *precision,
        .seed = (uint64_t)config->seed,
        .fast_accumulation = config->fp8.fast_accumulation,
        .sums = (enum matmul_sums)config->fp8.sums,
        .margin = recipe->delayed ? ldexpf(1, (int)config->fp8.margin) : 1,
        .history_length = recipe->delayed ? config->fp8.amax_history_length : 0,
        .layers = config->model.n_layer,
        .gated = mlp_is_gated(config->model.mlp),
        .tensor_cores = be->device.native_8_bit && !recipe->in_blocks,
        .multiplies_blocks = recipe->in_blocks && recipe_is_native(recipe, be),
    };
    const struct gpt_shape shape = config_shape(config);
    for (int i = 0; i < LINEAR_COUNT; i++) {
        struct size features = features_of(&shape, i);
        quantization->keeps[i] = keeps[i] && fills_bytes(quantization, features.rows);
        quantization->multiplies_blocks &=
            fills_bytes(quantization, features.rows) && fills_bytes(quantization, features.columns);
    }
    size_t linears = (size_t)(quantization->layers * LINEAR_COUNT);
    quantization->kept = calloc(linears, sizeof *quantization->kept);
    if (keeps_weights) quantization->weights = calloc(2 * linears, sizeof *quantization->weights);
    bool complete = quantization->kept && (quantization->weights || !keeps_weights);
    return complete ? 0 : fail(error, "out of memory");
}

void quantization_close(struct quantization *quantization) {
    free(quantization->kept);
    free(quantization->weights);
    *quantization = (struct quantization){0};
}

static bool tracks_amax(const struct quantization *q) {
    for (int kind = 0; kind < QUANTIZED_KINDS; kind++)
        if (quantization_has_tensor_scale(q, (enum quantized)kind)) return true;
    return false;
}

/* Returns the size of an operand of a linear layer, as stored. */
static struct size size_of(const struct quantization *q, const struct gpt_shape *s, int linear,
                           enum quantized kind) {
    const struct size features = features_of(s, linear);
    int64_t inputs = features.rows, outputs = features.columns;
    if (kind == QUANTIZED_INPUT) return (struct size){s->rows, inputs};
    if (kind == QUANTIZED_GRADIENT) return (struct size){s->rows, outputs};
    return q->weights_out_in ? (struct size){outputs, inputs} : features;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Returns the bytes of the scales that are not those of blocks. */
static size_t scale_bytes_of(const struct quantize_format *format, struct size size) {
    if (quantize_format_in_blocks(format))
        return quantize_format_has_tensor_scale(format) ? sizeof(float) : 0;
    struct tensor scales = quantize_format_scales(format, size.rows, size.columns);
    return tensor_bytes(&scales);
}

struct operand_bytes {
    size_t values, scales, blocks;
};

/* Returns the memory of an operand of a linear layer for one of its two matmuls. */
static struct operand_bytes bytes_of(const struct quantization *q, const struct gpt_shape *s,
                                     int linear, enum quantized kind, int reader) {
    const bool codes = !q->precision.recipe.in_blocks || q->multiplies_blocks;
    const struct size size = size_of(q, s, linear, kind);
    const struct quantize_format format =
        quantization_format_of(q, kind, quantization_readers[kind][reader]);
    const struct tensor scales = quantize_format_scales(&format, size.rows, size.columns);
    return (struct operand_bytes){
        dtype_size(codes ? format.element : DTYPE_BF16, size.rows * size.columns),
        scale_bytes_of(&format, size), q->multiplies_blocks ? tensor_bytes(&scales) : 0};
}

/* Lays out the memory of each weight that is kept, once for both matmuls if they share it. */
static void layout_weights(struct quantization *q, struct arena *arena, const struct gpt_shape *s) {
    const int step = quantization_shares_weights(q) ? 2 : 1;
    for (int64_t i = 0; i < q->layers * LINEAR_COUNT * 2; i += step) {
        const struct operand_bytes bytes =
            bytes_of(q, s, (int)(i / 2 % LINEAR_COUNT), QUANTIZED_WEIGHT, (int)(i % 2));
        q->weights[i].values = arena_take(arena, bytes.values);
        q->weights[i].scales = arena_take(arena, bytes.scales);
        q->weights[i].block_scales = arena_take(arena, bytes.blocks);
    }
}

/* Lays out a buffer for the largest operand of each kind, and one for its scales. */
static void layout_operands(struct quantization *q, struct arena *arena,
                            const struct gpt_shape *s) {
    size_t gradient = 0, transform = 0;
    for (int kind = 0; kind < QUANTIZED_KINDS; kind++) {
        struct operand_bytes most = {0};
        if (kind == QUANTIZED_WEIGHT && q->weights) continue;
        for (int i = 0; i < LINEAR_COUNT * 2; i++) {
            struct size size = size_of(q, s, i / 2, (enum quantized)kind);
            struct operand_bytes bytes = bytes_of(q, s, i / 2, (enum quantized)kind, i % 2);
            most.values = larger(most.values, bytes.values);
            most.scales = larger(most.scales, bytes.scales);
            most.blocks = larger(most.blocks, bytes.blocks);
            if (kind != QUANTIZED_WEIGHT)
                transform = larger(transform, dtype_size(DTYPE_BF16, size.rows * size.columns));
        }
        q->block_scales[kind] = arena_take(arena, most.blocks);
        q->values[kind] = arena_take(arena, most.values);
        q->scales[kind] = arena_take(arena, most.scales);
        if (kind == QUANTIZED_GRADIENT) gradient = most.values;
    }
    if (q->multiplies_blocks && q->precision.recipe.hadamard)
        q->transform_values = arena_take(arena, transform);
    if (q->tensor_cores && quantization_serves_both(q, QUANTIZED_GRADIENT))
        q->transposed = arena_take(arena, gradient);
}

/* Returns the bytes of scales, up to where the next ones may begin. */
static size_t aligned_bytes(const struct tensor *scales) {
    size_t unit = MATMUL_SCALE_ALIGNMENT;
    return (tensor_bytes(scales) + unit - 1) / unit * unit;
}

/* Inputs are saved in the format of the weight gradient. Their scales come first, one after the
 * other. */
static void layout_saved_inputs(struct quantization *q, struct arena *arena,
                                const struct gpt_shape *s) {
    const struct quantize_format format =
        quantization_format_of(q, QUANTIZED_INPUT, MATMUL_WEIGHT_GRADIENT);
    int64_t count = q->layers * LINEAR_COUNT;
    size_t bytes = 0;
    for (int64_t i = 0; i < count; i++) {
        struct size size = size_of(q, s, (int)(i % LINEAR_COUNT), QUANTIZED_INPUT);
        q->kept[i].scales = quantize_format_scales(&format, size.rows, size.columns);
        bytes += aligned_bytes(&q->kept[i].scales);
    }
    if (quantize_format_has_tensor_scale(&format))
        q->kept_scales = arena_take(arena, (size_t)count * sizeof *q->kept_scales);
    char *scales = arena_take(arena, bytes);
    for (int64_t i = 0; i < count; i++) {
        struct scaled_tensor *kept = &q->kept[i];
        struct size size = size_of(q, s, (int)(i % LINEAR_COUNT), QUANTIZED_INPUT);
        if (!q->keeps[i % LINEAR_COUNT]) continue;
        kept->values = arena_tensor(arena, format.element, size.rows, size.columns);
        kept->scales.data = scales;
        if (scales) scales += aligned_bytes(&kept->scales);
    }
}

void quantization_layout(struct quantization *quantization, struct arena *arena,
                         const struct gpt_shape *shape) {
    struct quantization *q = quantization;
    if (!q->be) return;
    q->weights_out_in = shape->weights_out_in;
    int64_t count = quantization_count(q);
    /* These come first, so that their addresses do not depend on the batch; their values
     * persist. */
    q->records = arena_take(arena, (size_t)quantization_records(q) * sizeof *q->records);
    if (tracks_amax(q)) q->tracked = arena_take(arena, (size_t)count * sizeof *q->tracked);
    if (q->precision.recipe.hadamard) q->transformed = arena_take(arena, sizeof *q->transformed);
    if (q->history_length) {
        q->amax = arena_take(arena, (size_t)count * sizeof *q->amax);
        q->history = arena_take(arena, (size_t)(q->history_length * count) * sizeof *q->history);
    }
    if (q->weights) layout_weights(q, arena, shape);
    layout_operands(q, arena, shape);
    layout_saved_inputs(q, arena, shape);
}

void quantization_clear(const struct quantization *quantization) {
    const struct quantization *q = quantization;
    size_t count = q->be ? (size_t)quantization_count(q) : 0;
    if (!q->be) return;
    OP(q->be, clear, .data = q->records,
       .bytes = (size_t)quantization_records(q) * sizeof *q->records);
    if (!q->history_length) return;
    OP(q->be, clear, .data = q->amax, .bytes = count * sizeof *q->amax);
    OP(q->be, clear, .data = q->history,
       .bytes = (size_t)q->history_length * count * sizeof *q->history);
}

struct amax *quantization_amax(const struct quantization *quantization, enum quantized kind,
                               enum autocast_site site, int64_t layer) {
    const struct quantization *q = quantization;
    if (!q->be || !precision_quantizes(&q->precision, site, layer) || !q->tracked ||
        !quantization_has_tensor_scale(q, kind) || !quantization_writer_tracks_amax(q, kind, site))
        return NULL;
    return q->tracked + quantization_place(q, kind, site, layer);
}

/* True if the operand is stored transposed, beside its own layout or instead of it. */
static bool has_transposed(const struct quantization *q, const struct quantized_operand *operand) {
    return q->tensor_cores && quantization_is_over_rows(q, operand->kind, operand->matmul) &&
           tensor_rows(operand->in) % EIGHT_BIT_UNIT == 0 &&
           tensor_columns(operand->in) % EIGHT_BIT_UNIT == 0;
}

/* Returns the operand with its values, its transpose, or `both`, which has the transpose elsewhere.
 */
static struct operand operand_at(const struct quantization *q,
                                 const struct quantized_operand *operand, bool both,
                                 const struct operand_memory *memory, void *transposed) {
    const struct tensor *in = operand->in;
    const struct quantize_format format = quantization_format_of(q, operand->kind, operand->matmul);
    int64_t rows = tensor_rows(in), columns = tensor_columns(in);
    struct tensor scales = quantize_format_scales(&format, rows, columns);
    struct operand out = {.stored.scales = scales, .transposed.scales = scales};
    bool is_transposed = has_transposed(q, operand);
    if (!is_transposed || both) out.stored.values = *in, out.stored.values.data = memory->values;
    if (is_transposed) {
        /* The scales of a row and of a column are the same in memory. */
        assert(tensor_rows(&scales) == 1 || tensor_columns(&scales) == 1);
        out.transposed.scales = tensor_view(&scales, tensor_columns(&scales), tensor_rows(&scales));
        out.transposed.values = tensor_view(in, columns, rows);
        out.transposed.values.data = transposed;
    }
    out.stored.values.dtype = out.transposed.values.dtype = format.element;
    out.stored.scales.data = out.transposed.scales.data = memory->scales;
    return out;
}

static void round_into(const struct quantization *q, const struct operand *out,
                       const struct quantized_operand *operand) {
    int64_t place = quantization_place(q, operand->kind, operand->site, operand->layer);
    struct amax *amax = quantization_tracked_amax(q, operand);
    OP(q->be, quantize, .out = out->stored.values.rank ? &out->stored.values : NULL,
       .transposed = out->transposed.values.rank ? &out->transposed.values : NULL,
       .scales = &out->stored.scales, .in = operand->in,
       .amax = q->amax && amax ? q->amax + place : NULL, .track_amax = amax,
       .found = quantization_amax_is_found(q, operand),
       .record = quantization_record_of(q, operand),
       .scale_rounding = q->precision.recipe.format[operand->kind][operand->matmul].rounding);
}

struct operand quantization_round(const struct quantization *quantization,
                                  const struct quantized_operand *operand) {
    const struct quantization *q = quantization;
    if (q->precision.recipe.in_blocks) return quantization_block_operand(q, operand);
    bool both = operand->kind == QUANTIZED_GRADIENT && operand->matmul == MATMUL_WEIGHT_GRADIENT &&
                quantization_serves_both(q, QUANTIZED_GRADIENT);
    const struct operand_memory memory = quantization_memory_of(q, operand);
    struct operand out =
        operand_at(q, operand, both, &memory, both ? q->transposed : memory.values);
    if (!quantization_is_rounded(q, operand)) round_into(q, &out, operand);
    return out;
}

struct operand quantization_input(const struct quantization *quantization, enum autocast_site site,
                                  int64_t layer, const struct tensor *in, bool repeated) {
    const struct quantization *q = quantization;
    struct quantized_operand operand = {.kind = QUANTIZED_INPUT,
                                        .site = site,
                                        .layer = layer,
                                        .in = in,
                                        .matmul = MATMUL_FORWARD,
                                        .repeated = repeated};
    if (!quantization_keeps(q, site)) return quantization_round(q, &operand);
    const struct scaled_tensor *kept = quantization_kept_input(q, site, layer);
    bool both = quantization_serves_both(q, QUANTIZED_INPUT);
    operand.matmul = MATMUL_WEIGHT_GRADIENT;
    if (q->precision.recipe.in_blocks) {
        quantization_keep_blocks(q, &operand);
        operand.matmul = MATMUL_FORWARD, operand.repeated = true;
        return quantization_round(q, &operand);
    }
    void *own = kept->values.data, *shared = q->values[QUANTIZED_INPUT];
    const struct operand_memory memory = {has_transposed(q, &operand) ? shared : own,
                                          kept->scales.data, NULL};
    struct operand out = operand_at(q, &operand, both, &memory, own);
    round_into(q, &out, &operand);
    if (both) return out;
    operand.matmul = MATMUL_FORWARD, operand.repeated = true;
    return quantization_round(q, &operand);
}

/* Saved inputs have all rows of the batch, or those of a prompt. */
struct operand quantization_input_backward(const struct quantization *quantization,
                                           enum autocast_site site, int64_t layer,
                                           const struct tensor *in) {
    const struct quantization *q = quantization;
    struct quantized_operand operand = {.kind = QUANTIZED_INPUT,
                                        .site = site,
                                        .layer = layer,
                                        .in = in,
                                        .matmul = MATMUL_WEIGHT_GRADIENT,
                                        .repeated = true};
    if (!quantization_keeps(q, site)) return quantization_round(q, &operand);
    if (q->precision.recipe.in_blocks) return quantization_kept_blocks(q, &operand);
    const struct scaled_tensor *kept = quantization_kept_input(q, site, layer);
    void *own = kept->values.data;
    return operand_at(q, &operand, false, &(struct operand_memory){own, kept->scales.data, NULL},
                      own);
}

void quantization_begin_pass(const struct quantization *quantization) {
    const struct quantization *q = quantization;
    if (!q->be || !q->tracked) return;
    OP(q->be, clear, .data = q->tracked,
       .bytes = (size_t)quantization_count(q) * sizeof *q->tracked);
}

void quantization_begin_step(const struct quantization *quantization) {
    const struct quantization *q = quantization;
    if (!q->be) return;
    OP(q->be, clear, .data = quantization_own_records(q),
       .bytes = (size_t)quantization_records_each(q) * sizeof *q->records);
}

void quantization_end_step(const struct quantization *quantization, struct step_state *state,
                           const struct step_inputs *inputs) {
    const struct quantization *q = quantization;
    if (!q->be) return;
    const struct collectives *c = q->be->collectives;
    int64_t each = quantization_records_each(q);
    if (quantization_ranks_of(q) > 1 && !backend_plans(q->be))
        collectives_wait(
            c, collectives_all_gather(c, q->records, sizeof *q->records, quantization_records(q)));
    OP(q->be, quantize_history, .state = state, .amax = q->amax, .history = q->history,
       .records = q->records, .inputs = inputs, .ranks = quantization_ranks_of(q), .each = each,
       .count = quantization_count(q), .length = q->history_length, .margin = q->margin);
}
