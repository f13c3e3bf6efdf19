#include "model/core/quantized_operand.h"

#include <stddef.h>

#include "kernels/collectives.h"

const enum linear_matmul quantization_readers[QUANTIZED_KINDS][2] = {
    [QUANTIZED_INPUT] = {MATMUL_FORWARD, MATMUL_WEIGHT_GRADIENT},
    [QUANTIZED_WEIGHT] = {MATMUL_FORWARD, MATMUL_INPUT_GRADIENT},
    [QUANTIZED_GRADIENT] = {MATMUL_WEIGHT_GRADIENT, MATMUL_INPUT_GRADIENT},
};

bool quantization_is_over_rows(const struct quantization *q, enum quantized kind,
                               enum linear_matmul matmul) {
    if (kind == QUANTIZED_WEIGHT) return (matmul == MATMUL_FORWARD) != q->weights_out_in;
    return matmul == MATMUL_WEIGHT_GRADIENT;
}

struct quantize_format quantization_format_of(const struct quantization *q, enum quantized kind,
                                              enum linear_matmul matmul) {
    const struct quantize_format *format = &q->precision.recipe.format[kind][matmul];
    bool over_rows = quantization_is_over_rows(q, kind, matmul);
    return over_rows ? quantize_format_transposed(format) : *format;
}

bool quantization_serves_both(const struct quantization *q, enum quantized kind) {
    const struct quantize_format first =
        quantization_format_of(q, kind, quantization_readers[kind][0]);
    const struct quantize_format second =
        quantization_format_of(q, kind, quantization_readers[kind][1]);
    bool transformed = q->precision.recipe.hadamard && kind != QUANTIZED_WEIGHT;
    return quantize_format_equal(&first, &second) && !transformed;
}

bool quantization_has_tensor_scale(const struct quantization *q, enum quantized kind) {
    for (int i = 0; i < 2; i++) {
        const struct quantize_format *format =
            &q->precision.recipe.format[kind][quantization_readers[kind][i]];
        if (!quantize_format_per_tensor(format) && !quantize_format_has_tensor_scale(format))
            return false;
    }
    return true;
}

int64_t quantization_ranks_of(const struct quantization *quantization) {
    return quantization->be->collectives->ranks->size;
}

int64_t quantization_records_each(const struct quantization *quantization) {
    int64_t count = quantization_count(quantization);
    return quantization_ranks_of(quantization) > 1 ? round_up(count, RANKS_ALIGNMENT) : count;
}

int64_t quantization_records(const struct quantization *quantization) {
    return quantization->be
               ? quantization_ranks_of(quantization) * quantization_records_each(quantization)
               : 0;
}

int64_t quantization_count(const struct quantization *quantization) {
    return quantization->layers * LINEAR_COUNT * QUANTIZED_KINDS;
}

int64_t quantization_place(const struct quantization *quantization, enum quantized kind,
                           enum autocast_site site, int64_t layer) {
    (void)quantization;
    return (layer * LINEAR_COUNT + linear_index(site)) * QUANTIZED_KINDS + (int64_t)kind;
}

struct quantize_record *quantization_own_records(const struct quantization *quantization) {
    if (!quantization->records) return NULL;
    return quantization->records +
           quantization->be->collectives->ranks->rank * quantization_records_each(quantization);
}

bool quantization_writer_tracks_amax(const struct quantization *q, enum quantized kind,
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

struct amax *quantization_tracked_amax(const struct quantization *q,
                                       const struct quantized_operand *operand) {
    if (!q->tracked || !quantization_has_tensor_scale(q, operand->kind)) return NULL;
    return q->tracked + quantization_place(q, operand->kind, operand->site, operand->layer);
}

/* True if the tensor was quantized before. */
static bool is_repeated(const struct quantization *q, const struct quantized_operand *operand) {
    bool first = q->precision.backward_only && operand->kind != QUANTIZED_GRADIENT;
    return operand->repeated && !first;
}

bool quantization_amax_is_found(const struct quantization *q,
                                const struct quantized_operand *operand) {
    bool transformed = q->precision.recipe.hadamard &&
                       (operand->kind == QUANTIZED_GRADIENT ||
                        (operand->kind == QUANTIZED_INPUT && quantization_keeps(q, operand->site)));
    return quantization_tracked_amax(q, operand) &&
           ((is_repeated(q, operand) && !transformed) ||
            quantization_writer_tracks_amax(q, operand->kind, operand->site));
}

struct quantize_record *quantization_record_of(const struct quantization *q,
                                               const struct quantized_operand *operand) {
    struct quantize_record *records = quantization_own_records(q);
    if (!records || is_repeated(q, operand)) return NULL;
    return records + quantization_place(q, operand->kind, operand->site, operand->layer);
}

bool quantization_keeps(const struct quantization *quantization, enum autocast_site site) {
    return linear_index(site) >= 0 && quantization->keeps[linear_index(site)];
}

bool quantization_shares_weights(const struct quantization *q) {
    return !q->tensor_cores && quantization_serves_both(q, QUANTIZED_WEIGHT);
}

/* Returns the memory of a kept weight, or NULL. */
static const struct operand_memory *kept_weight(const struct quantization *q,
                                                const struct quantized_operand *operand) {
    if (!q->weights || operand->kind != QUANTIZED_WEIGHT) return NULL;
    bool second = operand->matmul == MATMUL_INPUT_GRADIENT && !quantization_shares_weights(q);
    return q->weights + 2 * quantization_kept_index(operand->site, operand->layer) + second;
}

struct operand_memory quantization_memory_of(const struct quantization *q,
                                             const struct quantized_operand *operand) {
    const struct operand_memory *own = kept_weight(q, operand);
    if (own) return *own;
    return (struct operand_memory){q->values[operand->kind], q->scales[operand->kind],
                                   q->block_scales[operand->kind]};
}

bool quantization_is_rounded(const struct quantization *q,
                             const struct quantized_operand *operand) {
    if (!kept_weight(q, operand)) return false;
    bool by_first = operand->matmul == MATMUL_FORWARD || quantization_shares_weights(q);
    return q->weights_rounded || (by_first && is_repeated(q, operand));
}
