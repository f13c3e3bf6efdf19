#include "model/core/quantization.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/random.h"
#include "kernels/collectives.h"

/* Matmuls that read an operand of each kind, in the order of a step. */
static const enum linear_matmul readers[QUANTIZED_KINDS][2] = {
    [QUANTIZED_INPUT] = {MATMUL_FORWARD, MATMUL_WEIGHT_GRADIENT},
    [QUANTIZED_WEIGHT] = {MATMUL_FORWARD, MATMUL_INPUT_GRADIENT},
    [QUANTIZED_GRADIENT] = {MATMUL_WEIGHT_GRADIENT, MATMUL_INPUT_GRADIENT},
};

int quantization_open(struct quantization *quantization, const struct config *config,
                      const struct precision *precision, struct backend *be,
                      const bool keeps[LINEAR_COUNT], struct error *error) {
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
        .tensor_cores = be->device.native_8_bit && !recipe->dequantized,
    };
    if (!recipe->dequantized) memcpy(quantization->keeps, keeps, sizeof quantization->keeps);
    quantization->kept =
        calloc((size_t)(quantization->layers * LINEAR_COUNT), sizeof *quantization->kept);
    return quantization->kept ? 0 : fail(error, "out of memory");
}

void quantization_close(struct quantization *quantization) {
    free(quantization->kept);
    *quantization = (struct quantization){0};
}

/* True if the matmul reduces over the rows of the operand as stored. */
static bool is_over_rows(const struct quantization *q, enum quantized kind,
                         enum linear_matmul matmul) {
    if (kind == QUANTIZED_WEIGHT) return (matmul == MATMUL_FORWARD) != q->weights_out_in;
    return matmul == MATMUL_WEIGHT_GRADIENT;
}

/* Returns the format in which an operand is quantized as stored. */
static struct quantize_format format_of(const struct quantization *q, enum quantized kind,
                                        enum linear_matmul matmul) {
    const struct quantize_format *format = &q->precision.recipe.format[kind][matmul];
    bool over_rows = is_over_rows(q, kind, matmul);
    return over_rows ? quantize_format_transposed(format) : *format;
}

bool quantization_serves_both(const struct quantization *quantization, enum quantized kind) {
    const struct quantize_format first = format_of(quantization, kind, readers[kind][0]);
    const struct quantize_format second = format_of(quantization, kind, readers[kind][1]);
    return quantize_format_equal(&first, &second) && !quantization->precision.recipe.hadamard;
}

/* True if operands of the kind have a scale of the tensor in both of their matmuls, so that its
 * amax can be tracked. */
static bool has_tensor_scale(const struct quantization *q, enum quantized kind) {
    for (int i = 0; i < 2; i++) {
        const struct quantize_format *format = &q->precision.recipe.format[kind][readers[kind][i]];
        if (!quantize_format_per_tensor(format) && !quantize_format_has_tensor_scale(format))
            return false;
    }
    return true;
}

static bool tracks_amax(const struct quantization *q) {
    for (int kind = 0; kind < QUANTIZED_KINDS; kind++)
        if (has_tensor_scale(q, (enum quantized)kind)) return true;
    return false;
}

struct size {
    int64_t rows, columns;
};

/* Returns the size of an operand of a linear layer, as stored. */
static struct size size_of(const struct quantization *q, const struct gpt_shape *s, int linear,
                           enum quantized kind) {
    const struct size features[LINEAR_COUNT] = {{s->n_embd, shape_qkv(s)}, /* inputs, outputs */
                                                {shape_q(s), s->n_embd},
                                                {s->n_embd, shape_hidden(s)},
                                                {s->n_inner, s->n_embd}};
    int64_t inputs = features[linear].rows, outputs = features[linear].columns;
    if (kind == QUANTIZED_INPUT) return (struct size){s->rows, inputs};
    if (kind == QUANTIZED_GRADIENT) return (struct size){s->rows, outputs};
    return q->weights_out_in ? (struct size){outputs, inputs} : features[linear];
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Returns the bytes of the scales that a matmul reads. */
static size_t scale_bytes_of(const struct quantize_format *format, struct size size) {
    if (quantize_format_dequantized(format))
        return quantize_format_has_tensor_scale(format) ? sizeof(float) : 0;
    struct tensor scales = quantize_format_scales(format, size.rows, size.columns);
    return tensor_bytes(&scales);
}

/* Lays out a buffer for the largest operand of each kind, and one for its scales. */
static void layout_operands(struct quantization *q, struct arena *arena,
                            const struct gpt_shape *s) {
    size_t gradient = 0;
    for (int kind = 0; kind < QUANTIZED_KINDS; kind++) {
        size_t values = 0, scale_bytes = 0;
        for (int i = 0; i < LINEAR_COUNT * 2; i++) {
            struct size size = size_of(q, s, i / 2, (enum quantized)kind);
            struct quantize_format format =
                format_of(q, (enum quantized)kind, readers[kind][i % 2]);
            values = larger(
                values, dtype_size(q->precision.recipe.dequantized ? DTYPE_BF16 : format.element,
                                   size.rows * size.columns));
            scale_bytes = larger(scale_bytes, scale_bytes_of(&format, size));
        }
        q->values[kind] = arena_take(arena, values);
        q->scales[kind] = arena_take(arena, scale_bytes);
        if (kind == QUANTIZED_GRADIENT) gradient = values;
    }
    if (q->tensor_cores && quantization_serves_both(q, QUANTIZED_GRADIENT))
        q->transposed = arena_take(arena, gradient);
}

/* Inputs are saved in the format of the weight gradient. Their scales come first and are
 * contiguous. */
static void layout_saved_inputs(struct quantization *q, struct arena *arena,
                                const struct gpt_shape *s) {
    const struct quantize_format format = format_of(q, QUANTIZED_INPUT, MATMUL_WEIGHT_GRADIENT);
    int64_t count = q->precision.recipe.dequantized ? 0 : q->layers * LINEAR_COUNT;
    size_t bytes = 0;
    for (int64_t i = 0; i < count; i++) {
        struct size size = size_of(q, s, (int)(i % LINEAR_COUNT), QUANTIZED_INPUT);
        q->kept[i].scales = quantize_format_scales(&format, size.rows, size.columns);
        bytes += tensor_bytes(&q->kept[i].scales);
    }
    char *scales = arena_take(arena, bytes);
    for (int64_t i = 0; i < count; i++) {
        struct scaled_tensor *kept = &q->kept[i];
        struct size size = size_of(q, s, (int)(i % LINEAR_COUNT), QUANTIZED_INPUT);
        if (!q->keeps[i % LINEAR_COUNT]) continue;
        kept->values = arena_tensor(arena, format.element, size.rows, size.columns);
        kept->scales.data = scales;
        if (scales) scales += tensor_bytes(&kept->scales);
    }
}

static int64_t ranks_of(const struct quantization *quantization) {
    return quantization->be->collectives->ranks->size;
}

/* Number of records of a rank, padded to the alignment of collectives. */
static int64_t records_each(const struct quantization *quantization) {
    int64_t count = quantization_count(quantization);
    return ranks_of(quantization) > 1 ? round_up(count, RANKS_ALIGNMENT) : count;
}

int64_t quantization_records(const struct quantization *quantization) {
    return quantization->be ? ranks_of(quantization) * records_each(quantization) : 0;
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
    layout_operands(q, arena, shape);
    layout_saved_inputs(q, arena, shape);
}

int64_t quantization_count(const struct quantization *quantization) {
    return quantization->layers * LINEAR_COUNT * QUANTIZED_KINDS;
}

int64_t quantization_place(const struct quantization *quantization, enum quantized kind,
                           enum autocast_site site, int64_t layer) {
    (void)quantization;
    return (layer * LINEAR_COUNT + linear_index(site)) * QUANTIZED_KINDS + (int64_t)kind;
}

static struct quantize_record *own_records(const struct quantization *quantization) {
    if (!quantization->records) return NULL;
    return quantization->records +
           quantization->be->collectives->ranks->rank * records_each(quantization);
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

/* True if the operation that writes the tensor tracks its amax. A GELU and its gradient are part of
 * a matmul, which does so if its operands have 8 bits. */
static bool writer_tracks_amax(const struct quantization *q, enum quantized kind,
                               enum autocast_site site) {
    const bool *fp8_site = q->precision.fp8_site;
    switch (site) {
    case SITE_QKV: return kind == QUANTIZED_INPUT;
    case SITE_ATTENTION_PROJECTION: return kind == QUANTIZED_GRADIENT;
    case SITE_MLP_FC:
        return kind == QUANTIZED_INPUT ||
               (kind == QUANTIZED_GRADIENT && (q->gated || fp8_site[SITE_MLP_PROJECTION]));
    case SITE_MLP_PROJECTION:
        return kind == QUANTIZED_GRADIENT ||
               (kind == QUANTIZED_INPUT &&
                (q->gated || (fp8_site[SITE_MLP_FC] && !q->precision.backward_only)));
    default: return false;
    }
}

struct amax *quantization_amax(const struct quantization *quantization, enum quantized kind,
                               enum autocast_site site, int64_t layer) {
    const struct quantization *q = quantization;
    if (!q->be || !precision_quantizes(&q->precision, site, layer) || !q->tracked ||
        !has_tensor_scale(q, kind) || !writer_tracks_amax(q, kind, site))
        return NULL;
    return q->tracked + quantization_place(q, kind, site, layer);
}

/* True if the operand is stored transposed, beside its own layout or instead of it. */
static bool has_transposed(const struct quantization *q, const struct quantized_operand *operand) {
    return q->tensor_cores && is_over_rows(q, operand->kind, operand->matmul) &&
           tensor_rows(operand->in) % EIGHT_BIT_UNIT == 0 &&
           tensor_columns(operand->in) % EIGHT_BIT_UNIT == 0;
}

/* Memory of an operand. */
struct operand_memory {
    void *values, *transposed, *scales;
};

/* Returns the operand with its values, its transpose, or `both`. */
static struct operand operand_at(const struct quantization *q,
                                 const struct quantized_operand *operand, bool both,
                                 const struct operand_memory *memory) {
    const struct tensor *in = operand->in;
    const struct quantize_format format = format_of(q, operand->kind, operand->matmul);
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
        out.transposed.values.data = memory->transposed;
    }
    out.stored.values.dtype = out.transposed.values.dtype = format.element;
    out.stored.scales.data = out.transposed.scales.data = memory->scales;
    return out;
}

/* Returns random bits for a use; the operand's layer, site, kind and matmul make them its own. */
static uint64_t bits_of(const struct quantization *q, uint64_t use,
                        const struct quantized_operand *operand) {
    int64_t place = quantization_place(q, operand->kind, operand->site, operand->layer);
    uint64_t counter = (uint64_t)place * LINEAR_MATMULS + (uint64_t)operand->matmul;
    return random_bits(q->seed, use, counter);
}

static struct rounding_key key_of(const struct quantization *q,
                                  const struct quantized_operand *operand) {
    enum { STREAM = 0x726f756e }; /* distinguishes these bits from other uses of the seed */
    uint64_t bits = bits_of(q, STREAM, operand);
    return (struct rounding_key){(uint32_t)bits, (uint32_t)(bits >> 32)};
}

/* Transforms an operand of the weight gradient; both operands have the same signs. Returns the
 * amax. */
static struct amax *transform(const struct quantization *q, const struct tensor *out,
                              const struct quantized_operand *operand) {
    enum { STREAM = 0x68616461 };
    struct quantized_operand input = *operand;
    input.kind = QUANTIZED_INPUT;
    struct amax *amax = q->tracked ? q->transformed : NULL;
    if (amax) OP(q->be, clear, .data = amax, .bytes = sizeof *amax);
    OP(q->be, hadamard, .out = out, .in = operand->in,
       .signs = (uint32_t)bits_of(q, STREAM, &input) & 0xffff, .track_amax = amax);
    return amax;
}

/* Returns the operand's tracked amax, or NULL. */
static struct amax *tracked_amax(const struct quantization *q,
                                 const struct quantized_operand *operand) {
    if (!q->tracked || !has_tensor_scale(q, operand->kind)) return NULL;
    return q->tracked + quantization_place(q, operand->kind, operand->site, operand->layer);
}

/* True if the tensor was quantized before. */
static bool is_repeated(const struct quantization *q, const struct quantized_operand *operand) {
    bool first = q->precision.backward_only && operand->kind != QUANTIZED_GRADIENT;
    return operand->repeated && !first;
}

/* True if *tracked_amax holds the amax, from the operation that wrote the tensor or from an earlier
 * rounding of it. A transformed gradient has an amax of its own. */
static bool amax_is_found(const struct quantization *q, const struct quantized_operand *operand) {
    bool transformed = q->precision.recipe.hadamard && operand->kind == QUANTIZED_GRADIENT;
    return tracked_amax(q, operand) && ((is_repeated(q, operand) && !transformed) ||
                                        writer_tracks_amax(q, operand->kind, operand->site));
}

/* Returns the operand's record for this step, or NULL. */
static struct quantize_record *record_of(const struct quantization *q,
                                         const struct quantized_operand *operand) {
    struct quantize_record *records = own_records(q);
    if (!records || is_repeated(q, operand)) return NULL;
    return records + quantization_place(q, operand->kind, operand->site, operand->layer);
}

/* Rounds to a format whose values bf16 represents. */
static struct operand dequantized_operand(const struct quantization *q,
                                          const struct quantized_operand *operand) {
    const struct quantize_format format = format_of(q, operand->kind, operand->matmul);
    const bool transforms =
        q->precision.recipe.hadamard && operand->matmul == MATMUL_WEIGHT_GRADIENT;
    struct operand out = {.stored.values = *operand->in};
    struct tensor *values = &out.stored.values;
    values->dtype = DTYPE_BF16;
    values->data = q->values[operand->kind];
    if (quantize_format_has_tensor_scale(&format))
        out.stored.scales = (struct tensor){q->scales[operand->kind], DTYPE_F32, 2, {1, 1}};
    struct amax *amax = transforms ? transform(q, values, operand) : tracked_amax(q, operand);
    OP(q->be, fake_quantize, .out = values, .scales = optional_tensor(&out.stored.scales),
       .in = transforms ? values : operand->in, .format = format, .track_amax = amax,
       .found = transforms ? amax != NULL : amax_is_found(q, operand),
       .record = record_of(q, operand), .inputs = operand->inputs, .key = key_of(q, operand));
    return out;
}

static void round_into(const struct quantization *q, const struct operand *out,
                       const struct quantized_operand *operand) {
    int64_t place = quantization_place(q, operand->kind, operand->site, operand->layer);
    struct amax *amax = tracked_amax(q, operand);
    OP(q->be, quantize, .out = out->stored.values.rank ? &out->stored.values : NULL,
       .transposed = out->transposed.values.rank ? &out->transposed.values : NULL,
       .scales = &out->stored.scales, .in = operand->in,
       .amax = q->amax && amax ? q->amax + place : NULL, .track_amax = amax,
       .found = amax_is_found(q, operand), .record = record_of(q, operand),
       .scale_rounding = q->precision.recipe.format[operand->kind][operand->matmul].rounding);
}

struct operand quantization_round(const struct quantization *quantization,
                                  const struct quantized_operand *operand) {
    const struct quantization *q = quantization;
    if (q->precision.recipe.dequantized) return dequantized_operand(q, operand);
    bool both = operand->kind == QUANTIZED_GRADIENT && operand->matmul == MATMUL_WEIGHT_GRADIENT &&
                quantization_serves_both(q, QUANTIZED_GRADIENT);
    void *values = q->values[operand->kind];
    const struct operand_memory memory = {values, both ? q->transposed : values,
                                          q->scales[operand->kind]};
    struct operand out = operand_at(q, operand, both, &memory);
    round_into(q, &out, operand);
    return out;
}

bool quantization_keeps(const struct quantization *quantization, enum autocast_site site) {
    return linear_index(site) >= 0 && quantization->keeps[linear_index(site)];
}

static const struct scaled_tensor *kept_input(const struct quantization *q, enum autocast_site site,
                                              int64_t layer) {
    return &q->kept[layer * LINEAR_COUNT + linear_index(site)];
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
    const struct scaled_tensor *kept = kept_input(q, site, layer);
    bool both = quantization_serves_both(q, QUANTIZED_INPUT);
    operand.matmul = MATMUL_WEIGHT_GRADIENT;
    void *own = kept->values.data, *shared = q->values[QUANTIZED_INPUT];
    const struct operand_memory memory = {has_transposed(q, &operand) ? shared : own, own,
                                          kept->scales.data};
    struct operand out = operand_at(q, &operand, both, &memory);
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
    const struct scaled_tensor *kept = kept_input(q, site, layer);
    void *own = kept->values.data;
    return operand_at(q, &operand, false, &(struct operand_memory){own, own, kept->scales.data});
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
    OP(q->be, clear, .data = own_records(q), .bytes = (size_t)records_each(q) * sizeof *q->records);
}

void quantization_end_step(const struct quantization *quantization, struct step_state *state,
                           const struct step_inputs *inputs) {
    const struct quantization *q = quantization;
    if (!q->be) return;
    const struct collectives *c = q->be->collectives;
    int64_t each = records_each(q);
    if (ranks_of(q) > 1 && !backend_plans(q->be))
        collectives_wait(
            c, collectives_all_gather(c, q->records, sizeof *q->records, quantization_records(q)));
    OP(q->be, quantize_history, .state = state, .amax = q->amax, .history = q->history,
       .records = q->records, .inputs = inputs, .ranks = ranks_of(q), .each = each,
       .count = quantization_count(q), .length = q->history_length, .margin = q->margin);
}
