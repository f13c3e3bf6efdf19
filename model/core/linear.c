#include "model/core/linear.h"

void linear_forward(struct gpt *gpt, const struct linear_forward_args *args) {
    struct operand in = {.values = *args->in}, weight = {.values = *args->weight};
    const bool out_in = gpt->shape.weights_out_in;
    if (gpt->precision.fp8_site[args->site]) {
        const struct quantized_operand operand = {.kind = QUANTIZED_WEIGHT,
                                                  .site = args->site,
                                                  .layer = args->layer,
                                                  .in = args->weight,
                                                  .over = out_in ? OVER_COLUMNS : OVER_ROWS,
                                                  .repeated = args->recomputing};
        in = quantization_input(&gpt->quantization, args->site, args->layer, args->in,
                                args->recomputing);
        weight = quantization_round(&gpt->quantization, &operand);
    }
    OP(gpt->be, matmul, .out = args->out, .a = &in.values, .a_scales = in.scales,
       .b = out_in ? &weight.values : operand_over_rows(&weight), .b_scales = weight.scales,
       .bias = optional_tensor(args->bias), .gelu_in = args->gelu_in,
       .transpose_b = out_in || operand_is_transposed(&weight), .track_amax = args->track_amax,
       .fast_accumulation = gpt->quantization.fast_accumulation,
       .scales_by_vector = quantization_by_vector(&gpt->quantization), .label = args->label);
}

/* Returns the operand of a matmul, quantized if the layer runs in fp8. */
static struct operand operand_of(const struct gpt *gpt, const struct linear_backward_args *args,
                                 struct quantized_operand operand) {
    operand.site = args->site, operand.layer = args->layer;
    if (!gpt->precision.fp8_site[args->site]) return (struct operand){.values = *operand.in};
    return quantization_round(&gpt->quantization, &operand);
}

static void weight_backward(const struct gpt *gpt, const struct linear_backward_args *args,
                            const struct operand *dout) {
    const bool out_in = gpt->shape.weights_out_in;
    struct operand in = {.values = *args->in};
    if (gpt->precision.fp8_site[args->site])
        in = quantization_input_backward(&gpt->quantization, args->site, args->layer, args->in);
    const struct operand *a = out_in ? dout : &in, *b = out_in ? &in : dout;
    OP(gpt->be, matmul, .out = args->dweight, .a = operand_over_rows(a), .a_scales = a->scales,
       .transpose_a = !operand_is_transposed(a), .b = operand_over_rows(b), .b_scales = b->scales,
       .transpose_b = operand_is_transposed(b), .accumulate = gpt->accumulate,
       .scales_by_vector = quantization_by_vector(&gpt->quantization));
}

void linear_backward(struct gpt *gpt, const struct linear_backward_args *args) {
    const bool out_in = gpt->shape.weights_out_in,
               by_vector = quantization_by_vector(&gpt->quantization);
    if (args->dbias) OP(gpt->be, column_sums, .sums = args->dbias, .in = args->dout);
    struct quantized_operand gradient = {
        .kind = QUANTIZED_GRADIENT, .in = args->dout, .over = by_vector ? OVER_ROWS : OVER_BOTH};
    struct operand dout = operand_of(gpt, args, gradient);
    if (args->dweight->rank) weight_backward(gpt, args, &dout);
    gradient.over = OVER_COLUMNS, gradient.repeated = true;
    if (gpt->precision.fp8_site[args->site] && by_vector) dout = operand_of(gpt, args, gradient);
    const struct operand weight =
        operand_of(gpt, args,
                   (struct quantized_operand){.kind = QUANTIZED_WEIGHT,
                                              .in = args->weight,
                                              .over = out_in ? OVER_ROWS : OVER_COLUMNS,
                                              .repeated = true});
    OP(gpt->be, matmul, .out = args->din, .a = &dout.values, .a_scales = dout.scales,
       .b = out_in ? operand_over_rows(&weight) : &weight.values, .b_scales = weight.scales,
       .transpose_b = !out_in || operand_is_transposed(&weight), .dgelu_in = args->dgelu_in,
       .track_amax = args->track_amax, .column_sums = args->din_sums, .scales_by_vector = by_vector,
       .label = args->label);
}
