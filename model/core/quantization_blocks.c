#include "model/core/quantization_blocks.h"

#include "data/util/random.h"

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

/* Rounds to a format whose values bf16 represents, into out: values, or codes and scales.
 * temporary: memory for a transformed operand, in bf16. */
static void round_blocks(const struct quantization *q, const struct fake_quantize_args *out,
                         const struct quantized_operand *operand, void *temporary) {
    struct fake_quantize_args args = *out;
    struct tensor transformed = *operand->in;
    const bool transforms =
        q->precision.recipe.hadamard && operand->matmul == MATMUL_WEIGHT_GRADIENT;
    transformed.dtype = DTYPE_BF16, transformed.data = temporary;
    args.format = quantization_format_of(q, operand->kind, operand->matmul);
    args.in = transforms ? &transformed : operand->in;
    args.track_amax =
        transforms ? transform(q, &transformed, operand) : quantization_tracked_amax(q, operand);
    args.found = transforms ? args.track_amax != NULL : quantization_amax_is_found(q, operand);
    args.record = quantization_record_of(q, operand);
    args.inputs = operand->inputs;
    args.key = key_of(q, operand);
    q->be->op->fake_quantize(q->be, &args);
}

/* Returns the fp32 scale of a tensor at that address, or a tensor of rank 0 in formats without. */
static struct tensor tensor_scale_at(const struct quantization *q, float *address) {
    struct tensor none = {.rank = 0};
    const struct quantize_format *format =
        &q->precision.recipe.format[QUANTIZED_INPUT][MATMUL_FORWARD];
    if (!quantize_format_has_tensor_scale(format)) return none;
    return (struct tensor){address, DTYPE_F32, 2, {1, 1}};
}

/* An operand as codes. */
struct coded {
    struct tensor codes, block_scales, tensor_scale;
};

static struct coded codes_at(const struct quantization *q, const struct quantized_operand *operand,
                             void *codes, void *block_scales, float *tensor_scale) {
    const struct tensor *in = operand->in;
    const struct quantize_format format = quantization_format_of(q, operand->kind, operand->matmul);
    struct coded of = {*in, quantize_format_scales(&format, tensor_rows(in), tensor_columns(in)),
                       tensor_scale_at(q, tensor_scale)};
    of.codes.dtype = format.element, of.codes.data = codes;
    of.block_scales.data = block_scales;
    return of;
}

static void round_to_codes(const struct quantization *q, const struct coded *of,
                           const struct quantized_operand *operand) {
    void *temporary = q->multiplies_blocks ? q->transform_values : q->values[operand->kind];
    round_blocks(q,
                 &(struct fake_quantize_args){.out = &of->codes,
                                              .block_scales = &of->block_scales,
                                              .scales = optional_tensor(&of->tensor_scale)},
                 operand, temporary);
}

static struct operand operand_of_codes(const struct quantization *q, const struct coded *of,
                                       const struct quantized_operand *operand) {
    return (struct operand){
        .stored = {of->codes, of->tensor_scale},
        .blocks = {of->block_scales, quantization_format_of(q, operand->kind, operand->matmul)}};
}

struct operand quantization_block_operand(const struct quantization *q,
                                          const struct quantized_operand *operand) {
    const struct operand_memory memory = quantization_memory_of(q, operand);
    const bool rounded = quantization_is_rounded(q, operand);
    if (q->multiplies_blocks) {
        const struct coded of =
            codes_at(q, operand, memory.values, memory.block_scales, memory.scales);
        if (!rounded) round_to_codes(q, &of, operand);
        return operand_of_codes(q, &of, operand);
    }
    struct operand out = {.stored.values = *operand->in};
    out.stored.values.dtype = DTYPE_BF16;
    out.stored.values.data = memory.values;
    out.stored.scales = tensor_scale_at(q, memory.scales);
    if (!rounded)
        round_blocks(q,
                     &(struct fake_quantize_args){.out = &out.stored.values,
                                                  .scales = optional_tensor(&out.stored.scales)},
                     operand, out.stored.values.data);
    return out;
}

/* Returns a saved input as codes. */
static struct coded kept_codes_of(const struct quantization *q,
                                  const struct quantized_operand *operand) {
    const struct scaled_tensor *kept = quantization_kept_input(q, operand->site, operand->layer);
    float *scale = NULL;
    if (q->kept_scales)
        scale = q->kept_scales + quantization_kept_index(operand->site, operand->layer);
    return codes_at(q, operand, kept->values.data, kept->scales.data, scale);
}

void quantization_keep_blocks(const struct quantization *q,
                              const struct quantized_operand *operand) {
    const struct coded of = kept_codes_of(q, operand);
    round_to_codes(q, &of, operand);
}

struct operand quantization_kept_blocks(const struct quantization *q,
                                        const struct quantized_operand *operand) {
    const struct coded of = kept_codes_of(q, operand);
    if (q->multiplies_blocks) return operand_of_codes(q, &of, operand);
    struct operand out = {.stored.values = *operand->in, .stored.scales = of.tensor_scale};
    out.stored.values.dtype = DTYPE_BF16;
    out.stored.values.data = q->values[QUANTIZED_INPUT];
    OP(q->be, dequantize_blocks, .out = &out.stored.values, .codes = &of.codes,
       .block_scales = &of.block_scales,
       .format = quantization_format_of(q, operand->kind, operand->matmul));
    return out;
}
