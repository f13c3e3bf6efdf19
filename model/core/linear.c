#include "model/core/linear.h"

/* Returns a tensor as an operand that is not quantized. */
static struct operand unquantized(const struct tensor *tensor) {
    return (struct operand){.stored.values = *tensor};
}

void linear_forward(struct gpt *gpt, const struct linear_forward_args *args) {
    struct operand in = unquantized(args->in), weight = unquantized(args->weight);
    const bool out_in = gpt->shape.weights_out_in;
    if (gpt->precision.fp8_site[args->site]) {
        const struct quantized_operand operand = {.kind = QUANTIZED_WEIGHT,
                                                  .site = args->site,
                                                  .layer = args->layer,
                                                  .in = args->weight,
                                                  .matmul = MATMUL_FORWARD,
                                                  .repeated = args->recomputing};
        in = quantization_input(&gpt->quantization, args->site, args->layer, args->in,
                                args->recomputing);
        weight = quantization_round(&gpt->quantization, &operand);
    }
    const struct scaled_tensor *a = &in.stored;
    const struct scaled_tensor *b = operand_over_rows(&weight);
    OP(gpt->be, matmul, .out = args->out, .a = &a->values, .a_scales = optional_tensor(&a->scales),
       .b = &b->values, .b_scales = optional_tensor(&b->scales),
       .bias = optional_tensor(args->bias), .epilogue = args->epilogue,
       .pre_activation = args->pre_activation,
       .transpose_b = out_in || operand_is_transposed(&weight), .track_amax = args->track_amax,
       .fast_accumulation = gpt->quantization.fast_accumulation, .label = args->label);
}

/* Returns the operand of a matmul, quantized if the layer runs in fp8. */
static struct operand operand_of(const struct gpt *gpt, const struct linear_backward_args *args,
                                 struct quantized_operand operand) {
    operand.site = args->site, operand.layer = args->layer;
    if (!gpt->precision.fp8_site[args->site]) return unquantized(operand.in);
    return quantization_round(&gpt->quantization, &operand);
}

static void weight_backward(const struct gpt *gpt, const struct linear_backward_args *args,
                            const struct operand *dout) {
    const bool out_in = gpt->shape.weights_out_in;
    struct operand in = unquantized(args->in);
    if (gpt->precision.fp8_site[args->site])
        in = quantization_input_backward(&gpt->quantization, args->site, args->layer, args->in);
    const struct operand *first = out_in ? dout : &in, *second = out_in ? &in : dout;
    const struct scaled_tensor *a = operand_over_rows(first), *b = operand_over_rows(second);
    OP(gpt->be, matmul, .out = args->dweight, .a = &a->values,
       .a_scales = optional_tensor(&a->scales), .transpose_a = !operand_is_transposed(first),
       .b = &b->values, .b_scales = optional_tensor(&b->scales),
       .transpose_b = operand_is_transposed(second), .accumulate = gpt->accumulate);
}

void linear_backward(struct gpt *gpt, const struct linear_backward_args *args) {
    const bool out_in = gpt->shape.weights_out_in;
    if (args->dbias) OP(gpt->be, column_sums, .sums = args->dbias, .in = args->dout);
    struct quantized_operand gradient = {
        .kind = QUANTIZED_GRADIENT, .in = args->dout, .matmul = MATMUL_WEIGHT_GRADIENT};
    struct operand dout = operand_of(gpt, args, gradient);
    if (args->dweight->rank) weight_backward(gpt, args, &dout);
    gradient.matmul = MATMUL_INPUT_GRADIENT, gradient.repeated = true;
    if (!quantization_serves_both(&gpt->quantization, QUANTIZED_GRADIENT))
        dout = operand_of(gpt, args, gradient);
    const struct operand weight =
        operand_of(gpt, args,
                   (struct quantized_operand){.kind = QUANTIZED_WEIGHT,
                                              .in = args->weight,
                                              .matmul = MATMUL_INPUT_GRADIENT,
                                              .repeated = true});
    const struct scaled_tensor *a = &dout.stored;
    const struct scaled_tensor *b = operand_over_rows(&weight);
    OP(gpt->be, matmul, .out = args->din, .a = &a->values, .a_scales = optional_tensor(&a->scales),
       .b = &b->values, .b_scales = optional_tensor(&b->scales),
       .transpose_b = !out_in || operand_is_transposed(&weight), .epilogue = args->epilogue,
       .pre_activation = args->pre_activation, .track_amax = args->track_amax,
       .column_sums = args->din_sums, .label = args->label);
}
