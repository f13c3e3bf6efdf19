#include "model/core/quantization.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/collectives.h"
#include "model/core/precision.h"

int quantization_open(struct quantization *quantization, const struct config *config,
                      const struct precision *precision, struct backend *be,
                      const bool keeps[LINEAR_COUNT], struct error *error) {
    *quantization = (struct quantization){0};
    if (!precision->fp8) return 0;
    bool e4m3 = config->fp8.format == CONFIG_FORMAT_E4M3;
    bool delayed = config->fp8.recipe == CONFIG_RECIPE_DELAYED;
    *quantization = (struct quantization){
        .be = be,
        .recipe = config->fp8.recipe,
        .power_of_two = config->fp8.power_of_two,
        .fast_accumulation = config->fp8.fast_accumulation,
        .margin = delayed ? ldexpf(1, (int)config->fp8.margin) : 1,
        .history_length = delayed ? config->fp8.amax_history_length : 0,
        .layers = config->model.n_layer,
        .gated = mlp_is_gated(config->model.mlp),
        .tensor_cores = be->device.native_8_bit,
        .dtype = {DTYPE_E4M3, DTYPE_E4M3, e4m3 ? DTYPE_E4M3 : DTYPE_E5M2},
    };
    memcpy(quantization->keeps, keeps, sizeof quantization->keeps);
    memcpy(quantization->fp8_site, precision->fp8_site, sizeof quantization->fp8_site);
    quantization->kept =
        calloc((size_t)(quantization->layers * LINEAR_COUNT), sizeof *quantization->kept);
    return quantization->kept ? 0 : fail(error, "out of memory");
}

void quantization_close(struct quantization *quantization) {
    free(quantization->kept);
    *quantization = (struct quantization){0};
}

/* Largest number of elements, and largest dimension, of the operands of a kind. */
struct bounds {
    int64_t elements, side;
};

static void grow(struct bounds *bounds, int64_t rows, int64_t columns) {
    if (rows * columns > bounds->elements) bounds->elements = rows * columns;
    if (rows > bounds->side) bounds->side = rows;
    if (columns > bounds->side) bounds->side = columns;
}

struct sides {
    int64_t inputs, outputs; /* features of a linear layer */
};

static struct sides sides_of(const struct gpt_shape *s, int linear) {
    const struct sides sides[LINEAR_COUNT] = {{s->n_embd, shape_qkv(s)},
                                              {shape_q(s), s->n_embd},
                                              {s->n_embd, shape_hidden(s)},
                                              {s->n_inner, s->n_embd}};
    return sides[linear];
}

/* Finds the bounds over all linear layers: in [N, inputs], W [inputs, outputs] or its transpose,
 * dout [N, outputs]. */
static void find_bounds(struct bounds bounds[QUANTIZED_KINDS], const struct gpt_shape *s) {
    for (int i = 0; i < LINEAR_COUNT; i++) {
        struct sides sides = sides_of(s, i);
        grow(&bounds[QUANTIZED_INPUT], s->rows, sides.inputs);
        grow(&bounds[QUANTIZED_WEIGHT], sides.inputs, sides.outputs);
        grow(&bounds[QUANTIZED_GRADIENT], s->rows, sides.outputs);
    }
}

/* The scales of saved inputs come first and are contiguous. */
static void layout_saved_inputs(struct quantization *q, struct arena *arena,
                                const struct gpt_shape *s) {
    int64_t scales = 0, count = q->layers * LINEAR_COUNT;
    for (int64_t i = 0; i < count; i++)
        scales += quantization_by_vector(q) ? sides_of(s, i % LINEAR_COUNT).inputs : 1;
    float *scale = arena_take(arena, (size_t)scales * sizeof *scale);
    for (int64_t i = 0; i < count; i++) {
        struct operand *kept = &q->kept[i];
        int64_t inputs = sides_of(s, i % LINEAR_COUNT).inputs;
        if (!q->keeps[i % LINEAR_COUNT]) continue;
        kept->values = arena_tensor(arena, q->dtype[QUANTIZED_INPUT], s->rows, inputs);
        kept->scales = scale;
        if (scale) scale += quantization_by_vector(q) ? inputs : 1;
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
    struct bounds bounds[QUANTIZED_KINDS] = {{0, 0}};
    if (!q->be) return;
    int64_t count = quantization_count(q);
    find_bounds(bounds, shape);
    /* These come first, so that their addresses do not depend on the batch; their values
     * persist. */
    q->records = arena_take(arena, (size_t)quantization_records(q) * sizeof *q->records);
    if (!quantization_by_vector(q))
        q->tracked = arena_take(arena, (size_t)count * sizeof *q->tracked);
    if (q->history_length) {
        q->amax = arena_take(arena, (size_t)count * sizeof *q->amax);
        q->history = arena_take(arena, (size_t)(q->history_length * count) * sizeof *q->history);
    }
    for (int kind = 0; kind < QUANTIZED_KINDS; kind++) {
        int64_t scales = quantization_by_vector(q) ? bounds[kind].side : 1;
        q->values[kind] = arena_take(arena, (size_t)bounds[kind].elements);
        q->scales[kind] = arena_take(arena, (size_t)scales * sizeof(float));
    }
    if (q->tensor_cores && !quantization_by_vector(q))
        q->transposed = arena_take(arena, (size_t)bounds[QUANTIZED_GRADIENT].elements);
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
    switch (site) {
    case SITE_QKV: return kind == QUANTIZED_INPUT;
    case SITE_ATTENTION_PROJECTION: return kind == QUANTIZED_GRADIENT;
    case SITE_MLP_FC:
        return kind == QUANTIZED_INPUT ||
               (kind == QUANTIZED_GRADIENT && (q->gated || q->fp8_site[SITE_MLP_PROJECTION]));
    case SITE_MLP_PROJECTION:
        return kind == QUANTIZED_GRADIENT ||
               (kind == QUANTIZED_INPUT && (q->gated || q->fp8_site[SITE_MLP_FC]));
    default: return false;
    }
}

struct amax *quantization_amax(const struct quantization *quantization, enum quantized kind,
                               enum autocast_site site, int64_t layer) {
    const struct quantization *q = quantization;
    if (!q->be || !q->fp8_site[site] || !q->tracked || !writer_tracks_amax(q, kind, site))
        return NULL;
    return q->tracked + quantization_place(q, kind, site, layer);
}

/* True if the operand is stored transposed, beside its own layout or instead of it. */
static bool has_transposed(const struct quantization *q, const struct quantized_operand *operand) {
    return q->tensor_cores && operand->over != OVER_COLUMNS &&
           tensor_rows(operand->in) % EIGHT_BIT_UNIT == 0 &&
           tensor_columns(operand->in) % EIGHT_BIT_UNIT == 0;
}

/* Returns the operand with its values and its transpose at the given addresses. */
static struct operand operand_at(const struct quantization *q,
                                 const struct quantized_operand *operand, void *values,
                                 void *transposed, float *scales) {
    const struct tensor *in = operand->in;
    struct operand out = {.scales = scales};
    bool is_transposed = has_transposed(q, operand);
    if (!is_transposed || operand->over == OVER_BOTH) out.values = *in, out.values.data = values;
    if (is_transposed) {
        out.transposed = tensor_view(in, tensor_columns(in), tensor_rows(in));
        out.transposed.data = transposed;
    }
    out.values.dtype = out.transposed.dtype = q->dtype[operand->kind];
    return out;
}

static void round_into(const struct quantization *q, const struct operand *out,
                       const struct quantized_operand *operand) {
    int64_t place = quantization_place(q, operand->kind, operand->site, operand->layer);
    struct quantize_record *records = own_records(q);
    enum quantize_by by = operand->over == OVER_ROWS ? QUANTIZE_COLUMNS : QUANTIZE_ROWS;
    assert(!(quantization_by_vector(q) && operand->over == OVER_BOTH));
    OP(q->be, quantize, .out = out->values.rank ? &out->values : NULL,
       .transposed = out->transposed.rank ? &out->transposed : NULL, .scales = (float *)out->scales,
       .in = operand->in, .amax = q->amax ? q->amax + place : NULL,
       .track_amax = q->tracked ? q->tracked + place : NULL,
       .found =
           q->tracked && (operand->repeated || writer_tracks_amax(q, operand->kind, operand->site)),
       .record = records && !operand->repeated ? records + place : NULL,
       .by = quantization_by_vector(q) ? by : QUANTIZE_WHOLE, .power_of_two = q->power_of_two);
}

struct operand quantization_round(const struct quantization *quantization,
                                  const struct quantized_operand *operand) {
    const struct quantization *q = quantization;
    void *values = q->values[operand->kind];
    struct operand out =
        operand_at(q, operand, values, operand->over == OVER_BOTH ? q->transposed : values,
                   q->scales[operand->kind]);
    round_into(q, &out, operand);
    return out;
}

bool quantization_keeps(const struct quantization *quantization, enum autocast_site site) {
    return linear_index(site) >= 0 && quantization->keeps[linear_index(site)];
}

struct operand quantization_input(const struct quantization *quantization, enum autocast_site site,
                                  int64_t layer, const struct tensor *in, bool repeated) {
    const struct quantization *q = quantization;
    const struct operand *kept = &q->kept[layer * LINEAR_COUNT + linear_index(site)];
    struct quantized_operand operand = {
        .kind = QUANTIZED_INPUT, .site = site, .layer = layer, .in = in, .repeated = repeated};
    if (!quantization_keeps(q, site)) return quantization_round(q, &operand);
    operand.over = quantization_by_vector(q) ? OVER_ROWS : OVER_BOTH;
    void *values = has_transposed(q, &operand) ? q->values[QUANTIZED_INPUT] : kept->values.data;
    struct operand out = operand_at(q, &operand, values, kept->values.data, (float *)kept->scales);
    round_into(q, &out, &operand);
    if (operand.over == OVER_BOTH) return out;
    operand.over = OVER_COLUMNS, operand.repeated = true;
    return quantization_round(q, &operand);
}

/* Saved inputs have all rows of the batch, or those of a prompt. */
struct operand quantization_input_backward(const struct quantization *quantization,
                                           enum autocast_site site, int64_t layer,
                                           const struct tensor *in) {
    const struct quantization *q = quantization;
    const struct operand *kept = &q->kept[layer * LINEAR_COUNT + linear_index(site)];
    struct quantized_operand operand = {.kind = QUANTIZED_INPUT,
                                        .site = site,
                                        .layer = layer,
                                        .in = in,
                                        .over = OVER_ROWS,
                                        .repeated = true};
    if (!quantization_keeps(q, site)) return quantization_round(q, &operand);
    return operand_at(q, &operand, kept->values.data, kept->values.data, (float *)kept->scales);
}

void quantization_begin_pass(const struct quantization *quantization) {
    const struct quantization *q = quantization;
    if (!q->be || quantization_by_vector(q)) return;
    OP(q->be, clear, .data = q->tracked,
       .bytes = (size_t)quantization_count(q) * sizeof *q->tracked);
}

void quantization_begin_step(const struct quantization *quantization) {
    const struct quantization *q = quantization;
    if (!q->be) return;
    OP(q->be, clear, .data = own_records(q), .bytes = (size_t)records_each(q) * sizeof *q->records);
}

void quantization_end_step(const struct quantization *quantization, struct step_state *state,
                           int64_t step) {
    const struct quantization *q = quantization;
    if (!q->be) return;
    const struct collectives *c = q->be->collectives;
    int64_t each = records_each(q);
    if (ranks_of(q) > 1 && !backend_plans(q->be))
        collectives_wait(
            c, collectives_all_gather(c, q->records, sizeof *q->records, quantization_records(q)));
    OP(q->be, quantize_history, .state = state, .amax = q->amax, .history = q->history,
       .records = q->records, .ranks = ranks_of(q), .each = each, .count = quantization_count(q),
       .length = q->history_length, .at = q->history_length ? step % q->history_length : 0,
       .margin = q->margin);
}
