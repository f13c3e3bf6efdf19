#include "model/core/quantization.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/min_max.h"
#include "data/util/random.h"
#include "kernels/collectives.h"
#include "model/config/config_keys.h"

/* Matmuls that read a tensor of each kind, in the order of a step. */
static const enum linear_matmul readers[LINEAR_OPERANDS][2] = {
    [LINEAR_INPUT] = {MATMUL_FORWARD, MATMUL_WEIGHT_GRADIENT},
    [LINEAR_WEIGHT] = {MATMUL_FORWARD, MATMUL_INPUT_GRADIENT},
    [LINEAR_GRADIENT] = {MATMUL_WEIGHT_GRADIENT, MATMUL_INPUT_GRADIENT},
};

/* ---- Formats by kind and matmul */

/* True if the matmul reduces over the rows of the tensor as stored. */
static bool is_over_rows(const struct quantization *q, enum linear_operand kind,
                         enum linear_matmul matmul) {
    if (kind == LINEAR_WEIGHT) return (matmul == MATMUL_FORWARD) != q->shape.weights_out_in;
    return matmul == MATMUL_WEIGHT_GRADIENT;
}

/* Returns the format in which a tensor is quantized as stored. */
static struct quantize_format format_of(const struct quantization *q, enum linear_operand kind,
                                        enum linear_matmul matmul) {
    const struct quantize_format *format = &q->precision.recipe.format[kind][matmul];
    return is_over_rows(q, kind, matmul) ? quantize_format_transposed(format) : *format;
}

/* True if tensors of the kind have a scale of the tensor in both matmuls, so that their amax can be
 * tracked. */
static bool has_tensor_scale(const struct quantization *q, enum linear_operand kind) {
    for (int i = 0; i < 2; i++) {
        const struct quantize_format *format = &q->precision.recipe.format[kind][readers[kind][i]];
        if (!quantize_format_per_tensor(format) && !quantize_format_has_tensor_scale(format))
            return false;
    }
    return true;
}

/* True if the tensor passes a Hadamard transform before the matmul. */
static bool is_transformed(const struct quantization *q, enum linear_matmul matmul) {
    return q->precision.recipe.hadamard && matmul == MATMUL_WEIGHT_GRADIENT;
}

/* True if both matmuls read the same values and scales. */
static bool has_one_format(const struct quantization *q, enum linear_operand kind) {
    const struct quantize_format first = format_of(q, kind, readers[kind][0]);
    const struct quantize_format second = format_of(q, kind, readers[kind][1]);
    return quantize_format_equal(&first, &second) && !is_transformed(q, readers[kind][0]) &&
           !is_transformed(q, readers[kind][1]);
}

bool quantization_keeps(const struct quantization *quantization, enum autocast_site site) {
    return linear_index(site) >= 0 && quantization->keeps[linear_index(site)];
}

/* Tensor cores read two layouts of a weight, each in memory of its own. */
bool quantization_serves_both(const struct quantization *quantization, enum linear_operand kind,
                              int linear) {
    const struct quantization *q = quantization;
    if (kind == LINEAR_INPUT && !q->keeps[linear]) return false;
    if (kind == LINEAR_WEIGHT && (!q->keeps_weights || q->tensor_cores)) return false;
    return has_one_format(q, kind);
}

/* True if a slot has memory of its own for one of its matmuls. */
static bool has_own_memory(const struct quantization *q, enum linear_operand kind, int linear,
                           int reader) {
    if (kind == LINEAR_INPUT) return q->keeps[linear] && reader == 1;
    return kind == LINEAR_WEIGHT && q->keeps_weights;
}

/* True if the operand is in codes of blocks, as saved inputs are on every device. */
static bool is_in_codes(const struct quantization *q, enum linear_operand kind, int linear,
                        int reader) {
    return !q->precision.recipe.in_blocks || q->multiplies_blocks ||
           (kind == LINEAR_INPUT && has_own_memory(q, kind, linear, reader));
}

/* True if the operation that writes the tensor tracks its amax. */
static bool writer_tracks_amax(const struct quantization *q, enum linear_operand kind,
                               enum autocast_site site, int64_t layer) {
    const struct model_shape own = shape_of_layer(&q->shape, layer), *s = &own;
    const bool quantizes = kind == LINEAR_GRADIENT || !q->precision.backward_only;
#define BY_GELU(SITE) \
    (s->mlp != MLP_GELU || (quantizes && q->precision.quantized_site[SITE_##SITE]))
#define BY_ATTENTION          (shape_gates(s) || !q->attends_to_cache)
#define BY_ATTENTION_BACKWARD (!q->prepared)
#define X(SITE, inputs, outputs, input, gradient) \
    if (site == SITE_##SITE)                      \
        return kind == LINEAR_INPUT ? input : kind == LINEAR_GRADIENT && gradient;
    LINEAR_LAYERS(X)
#undef X
#undef BY_GELU
#undef BY_ATTENTION
#undef BY_ATTENTION_BACKWARD
    return false;
}

/* ---- Slots and records */

int64_t quantization_count(const struct quantization *quantization) {
    return quantization->shape.n_layer * LINEAR_COUNT * LINEAR_OPERANDS;
}

/* Returns the index of a tensor's slot and record. */
static int64_t index_of(enum linear_operand kind, enum autocast_site site, int64_t layer) {
    return (layer * LINEAR_COUNT + linear_index(site)) * LINEAR_OPERANDS + (int64_t)kind;
}

static int64_t ranks_of(const struct quantization *q) {
    return q->be->collectives->ranks->size;
}

/* Returns the number of records of a rank, padded to the alignment of collectives. */
static int64_t records_each(const struct quantization *q) {
    int64_t count = quantization_count(q);
    return ranks_of(q) > 1 ? round_up(count, RANKS_ALIGNMENT) : count;
}

/* Returns the number of records of all ranks. */
static int64_t record_count(const struct quantization *q) {
    return q->be ? ranks_of(q) * records_each(q) : 0;
}

/* Returns this rank's records; NULL while planning. */
static struct quantize_record *own_records(const struct quantization *q) {
    return q->records ? q->records + q->be->collectives->ranks->rank * records_each(q) : NULL;
}

static struct amax *tracked_amax(const struct quantization *q, enum linear_operand kind,
                                 int64_t index) {
    return q->tracked && has_tensor_scale(q, kind) ? q->tracked + index : NULL;
}

struct amax *quantization_amax(const struct quantization *quantization, enum linear_operand kind,
                               enum autocast_site site, int64_t layer) {
    const struct quantization *q = quantization;
    if (!q->be || !precision_quantizes(&q->precision, site, layer) ||
        !writer_tracks_amax(q, kind, site, layer))
        return NULL;
    return tracked_amax(q, kind, index_of(kind, site, layer));
}

/* ---- Memory */

struct size {
    int64_t rows, columns;
};

/* Returns the features of a linear layer in a block: its inputs and outputs. */
static struct size features_of(const struct model_shape *s, int64_t layer, int linear) {
    const struct model_shape own = shape_of_layer(s, layer);
    enum autocast_site site = 0;
    while (linear_index(site) != linear) site++;
    return (struct size){site_inputs(&own, site), site_outputs(&own, site)};
}

/* True if codes of so many features fill whole bytes. */
static bool fills_bytes(const struct quantization *q, int64_t features) {
    enum dtype element = q->precision.recipe.format[LINEAR_INPUT][MATMUL_WEIGHT_GRADIENT].element;
    return element != DTYPE_E2M1 || features % 2 == 0;
}

int quantization_open(struct quantization *quantization, const struct config *config,
                      const struct precision *precision, struct backend *be,
                      const bool keeps[LINEAR_COUNT], bool keeps_weights, struct error *error) {
    *quantization = (struct quantization){0};
    if (!precision->quantizes) return 0;
    const struct recipe *recipe = &precision->recipe;
    const struct model_shape shape = config_shape(config);
    *quantization = (struct quantization){
        .be = be,
        .precision = *precision,
        .seed = (uint64_t)config->seed,
        .fast_accumulation = config->fp8.fast_accumulation,
        .margin = recipe->delayed ? ldexpf(1, (int)config->fp8.margin) : 1,
        .history_length = recipe->delayed ? config->fp8.amax_history_length : 0,
        .shape = shape,
        .prepared = shape_prepares_heads(&shape),
        .tensor_cores = be->device.native_8_bit && !recipe->in_blocks,
        .multiplies_blocks = recipe->in_blocks && recipe_is_native(recipe, be),
        .keeps_weights = keeps_weights,
    };
    memcpy(quantization->keeps, keeps, sizeof quantization->keeps);
    for (int64_t i = 0; i < shape_period(&quantization->shape) * LINEAR_COUNT; i++) {
        const int linear = (int)(i % LINEAR_COUNT);
        struct size features = features_of(&quantization->shape, i / LINEAR_COUNT, linear);
        quantization->keeps[linear] &= fills_bytes(quantization, features.rows);
        quantization->multiplies_blocks &=
            fills_bytes(quantization, features.rows) && fills_bytes(quantization, features.columns);
    }
    quantization->slots =
        calloc((size_t)quantization_count(quantization), sizeof *quantization->slots);
    return quantization->slots ? 0 : fail_memory(error, "the slots of quantized operands");
}

void quantization_close(struct quantization *quantization) {
    free(quantization->slots);
    *quantization = (struct quantization){0};
}

/* Returns the size of a tensor of a block as stored. */
static struct size size_of(const struct quantization *q, const struct model_shape *s, int64_t layer,
                           int linear, enum linear_operand kind) {
    const struct size features = features_of(s, layer, linear);
    if (kind == LINEAR_INPUT) return (struct size){s->rows, features.rows};
    if (kind == LINEAR_GRADIENT) return (struct size){s->rows, features.columns};
    return q->shape.weights_out_in ? (struct size){features.columns, features.rows} : features;
}

struct operand_bytes {
    size_t values, scales, block_scales;
};

/* Returns the memory of a slot's tensor for one of its matmuls. */
static struct operand_bytes bytes_of(const struct quantization *q, const struct model_shape *s,
                                     int64_t index, int reader, bool codes) {
    const enum linear_operand kind = (enum linear_operand)(index % LINEAR_OPERANDS);
    const int linear = (int)(index / LINEAR_OPERANDS % LINEAR_COUNT);
    const int64_t layer = index / LINEAR_OPERANDS / LINEAR_COUNT;
    const struct size size = size_of(q, s, layer, linear, kind);
    const struct quantize_format format = format_of(q, kind, readers[kind][reader]);
    const struct tensor scales = quantize_format_scales(&format, size.rows, size.columns);
    const size_t bytes = tensor_bytes(&scales);
    struct operand_bytes all = {
        .values = dtype_size(codes ? format.element : DTYPE_BF16, size.rows * size.columns)};
    if (!q->precision.recipe.in_blocks) all.scales = bytes;
    else if (quantize_format_has_tensor_scale(&format)) all.scales = sizeof(float);
    if (q->precision.recipe.in_blocks && codes) all.block_scales = bytes;
    return all;
}

/* Reserves memory for an operand: its values, then all of its scales in one piece. */
static struct operand_memory take(struct arena *arena, struct operand_bytes bytes) {
    const size_t first =
        (size_t)round_up((int64_t)bytes.block_scales, MATMUL_SCALE_ALIGNMENT) + bytes.scales;
    struct operand_memory memory = {.values = arena_take(arena, bytes.values)};
    char *scales = arena_take(arena, first);
    if (bytes.block_scales) memory.block_scales = scales;
    if (bytes.scales && scales) memory.scales = scales + (first - bytes.scales);
    return memory;
}

/* Lays out a buffer for the largest tensor of a kind. Returns its size. */
static size_t layout_shared(struct quantization *q, struct arena *arena,
                            const struct model_shape *s, enum linear_operand kind) {
    const bool codes = !q->precision.recipe.in_blocks || q->multiplies_blocks;
    struct operand_bytes most = {0};
    for (int64_t i = 0; i < shape_period(s) * LINEAR_COUNT * 2; i++) {
        struct operand_bytes bytes = bytes_of(q, s, i / 2 * LINEAR_OPERANDS + kind, i % 2, codes);
        most.values = MAX(most.values, bytes.values);
        most.scales = MAX(most.scales, bytes.scales);
        most.block_scales = MAX(most.block_scales, bytes.block_scales);
    }
    q->shared[kind] = take(arena, most);
    return most.values;
}

/* Lays out a buffer in bf16 for the largest tensor that is transformed. */
static void *layout_transform(const struct quantization *q, struct arena *arena,
                              const struct model_shape *s) {
    size_t most = 0;
    for (int64_t i = 0; i < shape_period(s) * LINEAR_COUNT; i++) {
        const int64_t layer = i / LINEAR_COUNT;
        const struct size in = size_of(q, s, layer, i % LINEAR_COUNT, LINEAR_INPUT);
        const struct size gradient = size_of(q, s, layer, i % LINEAR_COUNT, LINEAR_GRADIENT);
        const int64_t columns = MAX(in.columns, gradient.columns);
        most = MAX(most, dtype_size(DTYPE_BF16, in.rows * columns));
    }
    return arena_take(arena, most);
}

/* Points a slot to the memory that each of its matmuls reads. `transposed` is a second buffer of
 * gradients, for tensor cores that read both layouts of a tensor. */
static void layout_slot(struct quantization *q, struct arena *arena, const struct model_shape *s,
                        int64_t index, void *transposed) {
    const enum linear_operand kind = (enum linear_operand)(index % LINEAR_OPERANDS);
    const int linear = (int)(index / LINEAR_OPERANDS % LINEAR_COUNT);
    const bool both = quantization_serves_both(q, kind, linear);
    struct operand_memory *memory = q->slots[index].memory;
    for (int reader = 1; reader >= 0; reader--) {
        memory[reader] = both && reader == 0 ? memory[1] : q->shared[kind];
        if (!has_own_memory(q, kind, linear, reader) || (both && reader == 0)) continue;
        const bool codes = is_in_codes(q, kind, linear, reader);
        memory[reader] = take(arena, bytes_of(q, s, index, reader, codes));
    }
    if (both && q->tensor_cores)
        memory[0].values = kind == LINEAR_GRADIENT ? transposed : q->shared[kind].values;
}

void quantization_layout(struct quantization *quantization, struct arena *arena,
                         const struct model_shape *shape) {
    struct quantization *q = quantization;
    if (!q->be) return;
    const int64_t count = quantization_count(q);
    bool tracks = false;
    for (int kind = 0; kind < LINEAR_OPERANDS; kind++)
        tracks |= has_tensor_scale(q, (enum linear_operand)kind);
    /* These come first, so that their addresses do not depend on the batch; their values
     * persist. */
    q->records = arena_take(arena, (size_t)record_count(q) * sizeof *q->records);
    if (tracks) q->tracked = arena_take(arena, (size_t)count * sizeof *q->tracked);
    if (q->precision.recipe.hadamard) q->transformed = arena_take(arena, sizeof *q->transformed);
    if (q->history_length) {
        q->amax = arena_take(arena, (size_t)count * sizeof *q->amax);
        q->history = arena_take(arena, (size_t)(q->history_length * count) * sizeof *q->history);
    }
    layout_shared(q, arena, shape, LINEAR_INPUT);
    if (!q->keeps_weights) layout_shared(q, arena, shape, LINEAR_WEIGHT);
    const size_t gradient = layout_shared(q, arena, shape, LINEAR_GRADIENT);
    if (q->multiplies_blocks && q->precision.recipe.hadamard)
        q->transform_values = layout_transform(q, arena, shape);
    const bool both = q->tensor_cores && has_one_format(q, LINEAR_GRADIENT);
    void *transposed = both ? arena_take(arena, gradient) : NULL;
    for (int64_t i = 0; i < count; i++) layout_slot(q, arena, shape, i, transposed);
}

void quantization_clear(const struct quantization *quantization) {
    const struct quantization *q = quantization;
    if (!q->be) return;
    const size_t count = (size_t)quantization_count(q);
    OP(q->be, clear, .data = q->records, .bytes = (size_t)record_count(q) * sizeof *q->records);
    if (!q->history_length) return;
    OP(q->be, clear, .data = q->amax, .bytes = count * sizeof *q->amax);
    OP(q->be, clear, .data = q->history,
       .bytes = (size_t)q->history_length * count * sizeof *q->history);
}

/* ---- Operands */

/* Returns the operand of a matmul with the slot's addresses. The memory need not be filled yet. */
static struct operand operand_in(const struct quantization *q, const struct quantized_slot *slot,
                                 const struct quantized_operand *o, int reader) {
    const int64_t rows = tensor_rows(o->in), columns = tensor_columns(o->in);
    const int linear = linear_index(o->site);
    const struct quantize_format format = format_of(q, o->kind, readers[o->kind][reader]);
    const struct operand_memory *memory = &slot->memory[reader];
    struct tensor scales = quantize_format_scales(&format, rows, columns);
    struct operand out = {.values = *o->in, .scales = scales};
    if (q->precision.recipe.in_blocks) {
        const bool codes = is_in_codes(q, o->kind, linear, reader);
        scales.data = memory->block_scales;
        const int rank = quantize_format_has_tensor_scale(&format) ? 2 : 0;
        out.scales = (struct tensor){memory->scales, DTYPE_F32, rank, {1, 1}};
        out.values.dtype = codes ? format.element : DTYPE_BF16;
        if (codes) out.blocks = (struct matmul_blocks){scales, format};
    } else {
        const bool whole = rows % EIGHT_BIT_UNIT == 0 && columns % EIGHT_BIT_UNIT == 0;
        out.transposed =
            q->tensor_cores && whole && is_over_rows(q, o->kind, readers[o->kind][reader]);
        /* Tensor cores do not read sizes with a remainder, so both matmuls read one layout. */
        if (!whole && quantization_serves_both(q, o->kind, linear)) memory = &slot->memory[1];
        out.values.dtype = format.element;
        out.scales.data = memory->scales;
    }
    out.values.data = memory->values;
    if (!out.transposed) return out;
    /* The scales of a row and of a column are the same in memory. */
    assert(tensor_rows(&scales) == 1 || tensor_columns(&scales) == 1);
    out.values = tensor_view(&out.values, columns, rows);
    out.scales = tensor_view(&out.scales, tensor_columns(&scales), tensor_rows(&scales));
    return out;
}

/* Returns random bits for a use; the tensor's layer, site, kind and matmul make them its own. */
static uint64_t bits_of(const struct quantization *q, uint64_t use, int64_t index,
                        enum linear_matmul matmul) {
    return random_bits(q->seed, use, (uint64_t)index * LINEAR_MATMULS + (uint64_t)matmul);
}

/* Transforms a tensor for the weight gradient; both of its operands have the same signs. Returns
 * the amax. */
static struct amax *transform(const struct quantization *q, const struct tensor *out,
                              const struct quantized_operand *o) {
    enum { STREAM = 0x68616461 }; /* distinguishes these bits from other uses of the seed */
    const int64_t input = index_of(LINEAR_INPUT, o->site, o->layer);
    struct amax *amax = q->tracked ? q->transformed : NULL;
    if (amax) OP(q->be, clear, .data = amax, .bytes = sizeof *amax);
    OP(q->be, hadamard, .out = out, .in = o->in,
       .signs = (uint32_t)bits_of(q, STREAM, input, MATMUL_WEIGHT_GRADIENT) & 0xffff,
       .track_amax = amax);
    return amax;
}

/* Rounds to blocks: to codes and their scales, or to values in bf16. A transformed tensor lies in
 * the memory of the values meanwhile, unless codes go there. */
static void quantize_blocks(const struct quantization *q, const struct operand *out,
                            const struct quantized_operand *o, struct fake_quantize_args args) {
    enum { STREAM = 0x726f756e }; /* distinguishes these bits from other uses of the seed */
    const int64_t index = index_of(o->kind, o->site, o->layer);
    const uint64_t key = bits_of(q, STREAM, index, o->matmul);
    const bool codes = out->blocks.scales.rank > 0;
    struct tensor transformed = *o->in;
    if (is_transformed(q, o->matmul)) {
        void *values = codes ? q->shared[o->kind].values : out->values.data;
        transformed.dtype = DTYPE_BF16;
        transformed.data = q->multiplies_blocks ? q->transform_values : values;
        args.track_amax = transform(q, &transformed, o);
        args.found = args.track_amax != NULL;
    }
    args.out = &out->values, args.in = &transformed;
    args.block_scales = codes ? &out->blocks.scales : NULL;
    args.scales = optional_tensor(&out->scales);
    args.format = format_of(q, o->kind, o->matmul);
    args.inputs = o->inputs;
    args.key = (struct rounding_key){(uint32_t)key, (uint32_t)(key >> 32)};
    q->be->op->fake_quantize(q->be, &args);
}

/* Quantizes a tensor for a matmul, and for its other one if that reads the same values, perhaps
 * transposed. */
static void quantize(struct quantization *q, struct quantized_slot *slot,
                     const struct quantized_operand *o) {
    const int64_t index = slot - q->slots;
    const int linear = linear_index(o->site), reader = o->matmul == readers[o->kind][1];
    const bool both = quantization_serves_both(q, o->kind, linear);
    const struct operand first = operand_in(q, slot, o, reader);
    const struct operand second = operand_in(q, slot, o, both ? !reader : reader);
    const struct operand *plain = first.transposed ? &second : &first;
    const struct operand *transposed = first.transposed ? &first : &second;
    struct tensor scales = plain->scales; /* shaped as the tensor is stored */
    if (plain->transposed)
        scales = tensor_view(&scales, tensor_columns(&scales), tensor_rows(&scales));
    struct amax *amax = tracked_amax(q, o->kind, index);
    const bool found =
        amax && (slot->measured || writer_tracks_amax(q, o->kind, o->site, o->layer));
    struct quantize_record *record = own_records(q);
    if (record) record = slot->recorded ? NULL : record + index;
    if (q->precision.recipe.in_blocks)
        quantize_blocks(
            q, &first, o,
            (struct fake_quantize_args){.track_amax = amax, .record = record, .found = found});
    else
        OP(q->be, quantize, .out = plain->transposed ? NULL : &plain->values,
           .transposed = transposed->transposed ? &transposed->values : NULL, .scales = &scales,
           .in = o->in, .amax = q->amax && amax ? q->amax + index : NULL, .track_amax = amax,
           .found = found, .record = record,
           .scale_rounding = q->precision.recipe.format[o->kind][o->matmul].rounding);
    slot->recorded = true;
    slot->measured |= !is_transformed(q, o->matmul);
    slot->done[reader] = both || has_own_memory(q, o->kind, linear, reader);
    slot->done[!reader] |= both;
}

/* Returns the values of a saved input whose codes the device does not multiply. */
static struct operand dequantized(const struct quantization *q, const struct operand *codes,
                                  const struct quantized_operand *o) {
    struct operand out = {.values = *o->in, .scales = codes->scales};
    out.values.dtype = DTYPE_BF16;
    out.values.data = q->shared[o->kind].values;
    OP(q->be, dequantize_blocks, .out = &out.values, .codes = &codes->values,
       .block_scales = &codes->blocks.scales, .format = codes->blocks.format);
    return out;
}

struct operand quantization_operand(struct quantization *quantization,
                                    const struct quantized_operand *operand) {
    struct quantization *q = quantization;
    struct quantized_slot *slot = &q->slots[index_of(operand->kind, operand->site, operand->layer)];
    const int reader = operand->matmul == readers[operand->kind][1];
    const bool saves = operand->kind == LINEAR_INPUT && quantization_keeps(q, operand->site);
    if (saves && reader == 0) {
        struct quantized_operand saved = *operand;
        saved.matmul = MATMUL_WEIGHT_GRADIENT;
        quantize(q, slot, &saved);
    }
    if (!slot->done[reader]) quantize(q, slot, operand);
    const struct operand out = operand_in(q, slot, operand, reader);
    return out.blocks.scales.rank && !q->multiplies_blocks ? dequantized(q, &out, operand) : out;
}

/* ---- Passes and steps */

void quantization_begin_pass(struct quantization *quantization, bool further_micro_batch,
                             bool attends_to_cache) {
    struct quantization *q = quantization;
    if (!q->be) return;
    q->attends_to_cache = attends_to_cache;
    for (int64_t i = 0; i < quantization_count(q); i++) {
        struct quantized_slot *slot = &q->slots[i];
        const bool kept =
            q->keeps_weights && further_micro_batch && i % LINEAR_OPERANDS == LINEAR_WEIGHT;
        slot->done[0] = slot->done[1] = kept;
        slot->recorded = slot->measured = false;
    }
    if (!q->tracked) return;
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
    if (ranks_of(q) > 1 && !backend_plans(q->be))
        collectives_wait(
            c, collectives_all_gather(c, q->records, sizeof *q->records, record_count(q)));
    OP(q->be, quantize_history, .state = state, .amax = q->amax, .history = q->history,
       .records = q->records, .inputs = inputs, .ranks = ranks_of(q), .each = records_each(q),
       .count = quantization_count(q), .length = q->history_length, .margin = q->margin);
}
