#include "model/core/linear.h"

#include "model/core/adapter.h"

/* Returns a tensor as an operand that is not quantized. */
static struct operand unquantized(const struct tensor *tensor) {
    return (struct operand){.stored.values = *tensor};
}

/* Adds the adapters of a linear layer to its sum, then applies the epilogue. */
static void add_adapters(struct gpt *gpt, const struct linear_forward_args *args,
                         const struct tensor *sum) {
    const bool gelu = args->epilogue == MATMUL_GELU;
    adapter_forward(gpt, ARGS(adapter, .site = args->site, .layer = args->layer, .out = sum,
                              .in = args->in, .label = gelu ? NULL : args->label));
    if (gelu)
        OP(gpt->be, gelu_forward, .out = args->out, .in = sum, .track_amax = args->track_amax,
           .label = args->label);
}

void linear_forward(struct gpt *gpt, const struct linear_forward_args *args) {
    struct operand in = unquantized(args->in), weight = unquantized(args->weight);
    const bool out_in = gpt->shape.weights_out_in, adapted = adapter_is_at(gpt, args->site);
    const bool fused = args->epilogue != MATMUL_STORE && !adapted;
    const struct tensor *out =
        args->epilogue != MATMUL_STORE && adapted ? args->pre_activation : args->out;
    if (precision_quantizes_forward(&gpt->precision, args->site, args->layer)) {
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
    OP(gpt->be, matmul, .out = out, .a = &a->values, .a_scales = optional_tensor(&a->scales),
       .b = &b->values, .b_scales = optional_tensor(&b->scales), .a_blocks = operand_blocks(&in),
       .b_blocks = operand_blocks(&weight), .bias = optional_tensor(args->bias),
       .epilogue = fused ? args->epilogue : MATMUL_STORE,
       .pre_activation = fused ? args->pre_activation : NULL,
       .transpose_b = out_in || operand_is_transposed(&weight),
       .track_amax = fused ? args->track_amax : NULL,
       .fast_accumulation = gpt->quantization.fast_accumulation, .sums = gpt->quantization.sums,
       .label = adapted ? NULL : args->label);
    if (adapted) add_adapters(gpt, args, out);
}

/* Returns the operand of a matmul, quantized if the layer's operands are. */
static struct operand operand_of(const struct gpt *gpt, const struct linear_backward_args *args,
                                 struct quantized_operand operand) {
    operand.site = args->site, operand.layer = args->layer;
    operand.inputs = gpt->activations.inputs;
    if (!precision_quantizes(&gpt->precision, args->site, args->layer))
        return unquantized(operand.in);
    return quantization_round(&gpt->quantization, &operand);
}

static void weight_backward(const struct gpt *gpt, const struct linear_backward_args *args,
                            const struct operand *dout) {
    const bool out_in = gpt->shape.weights_out_in;
    struct operand in = unquantized(args->in);
    if (precision_quantizes(&gpt->precision, args->site, args->layer))
        in = quantization_input_backward(&gpt->quantization, args->site, args->layer, args->in);
    const struct operand *first = out_in ? dout : &in, *second = out_in ? &in : dout;
    const struct scaled_tensor *a = operand_over_rows(first), *b = operand_over_rows(second);
    OP(gpt->be, matmul, .out = args->dweight, .a = &a->values,
       .a_scales = optional_tensor(&a->scales), .transpose_a = !operand_is_transposed(first),
       .b = &b->values, .b_scales = optional_tensor(&b->scales), .a_blocks = operand_blocks(first),
       .b_blocks = operand_blocks(second), .transpose_b = operand_is_transposed(second),
       .accumulate = gpt->accumulate, .sums = gpt->quantization.sums);
}

/* Adds what passes through the adapters to din, then applies the epilogue. */
static void add_adapters_backward(struct gpt *gpt, const struct linear_backward_args *args) {
    const bool dgelu = args->epilogue == MATMUL_DGELU;
    adapter_input_backward(gpt,
                           ARGS(adapter, .site = args->site, .layer = args->layer, .din = args->din,
                                .dout = args->dout, .label = dgelu ? NULL : args->label));
    if (dgelu)
        OP(gpt->be, gelu_backward, .din = args->din, .dout = args->din, .in = args->pre_activation,
           .track_amax = args->track_amax, .column_sums = args->din_sums, .label = args->label);
}

void linear_backward(struct gpt *gpt, const struct linear_backward_args *args) {
    const bool out_in = gpt->shape.weights_out_in, adapted = adapter_is_at(gpt, args->site);
    const bool fused = args->epilogue != MATMUL_STORE && !adapted;
    if (adapted)
        adapter_weight_backward(gpt, ARGS(adapter, .site = args->site, .layer = args->layer,
                                          .in = args->in, .dout = args->dout));
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
       .b = &b->values, .b_scales = optional_tensor(&b->scales), .a_blocks = operand_blocks(&dout),
       .b_blocks = operand_blocks(&weight),
       .transpose_b = !out_in || operand_is_transposed(&weight),
       .epilogue = fused ? args->epilogue : MATMUL_STORE,
       .pre_activation = fused ? args->pre_activation : NULL,
       .track_amax = fused ? args->track_amax : NULL, .column_sums = fused ? args->din_sums : NULL,
       .sums = gpt->quantization.sums, .label = adapted ? NULL : args->label);
    if (adapted) add_adapters_backward(gpt, args);
}
