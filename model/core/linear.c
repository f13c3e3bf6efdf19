#include "model/core/linear.h"

#include <assert.h>

#include "model/core/adapter.h"

/* Returns a tensor of a linear layer as an operand of a matmul, quantized. */
static struct operand quantized(struct gpt *gpt, enum quantized kind, enum linear_matmul matmul,
                                enum autocast_site site, int64_t layer, const struct tensor *in) {
    return quantization_operand(
        &gpt->quantization,
        &(struct quantized_operand){kind, site, layer, matmul, in, gpt->activations.inputs});
}

/* Returns the blocks of an operand of codes, or NULL. */
static const struct matmul_blocks *optional_blocks(const struct operand *operand) {
    return operand->blocks.scales.rank ? &operand->blocks : NULL;
}

/* ---- Forward: out = in weight + bias */

static void linear_plain(const struct gpt *gpt, const struct linear_forward_args *args) {
    assert(!args->track_amax);
    OP(gpt->be, matmul, .out = args->out, .a = args->in, .b = args->weight,
       .transpose_b = gpt->shape.weights_out_in, .bias = optional_tensor(args->bias),
       .epilogue = args->epilogue, .pre_activation = args->pre_activation, .label = args->label);
}

static void linear_quantized(struct gpt *gpt, const struct linear_forward_args *args) {
    const struct operand in =
        quantized(gpt, QUANTIZED_INPUT, MATMUL_FORWARD, args->site, args->layer, args->in);
    const struct operand weight =
        quantized(gpt, QUANTIZED_WEIGHT, MATMUL_FORWARD, args->site, args->layer, args->weight);
    OP(gpt->be, matmul, .out = args->out, .a = &in.values, .a_scales = optional_tensor(&in.scales),
       .a_blocks = optional_blocks(&in), .b = &weight.values,
       .b_scales = optional_tensor(&weight.scales), .b_blocks = optional_blocks(&weight),
       .transpose_b = gpt->shape.weights_out_in || weight.transposed,
       .bias = optional_tensor(args->bias), .epilogue = args->epilogue,
       .pre_activation = args->pre_activation, .track_amax = args->track_amax,
       .fast_accumulation = gpt->quantization.fast_accumulation, .sums = gpt->quantization.sums,
       .label = args->label);
}

static void base_forward(struct gpt *gpt, const struct linear_forward_args *args) {
    if (precision_quantizes_forward(&gpt->precision, args->site, args->layer))
        linear_quantized(gpt, args);
    else linear_plain(gpt, args);
}

/* Adapters add to the matmul's output, so the epilogue is a step of its own. */
static void adapted_forward(struct gpt *gpt, const struct linear_forward_args *args) {
    const bool gelu = args->epilogue == MATMUL_GELU;
    struct linear_forward_args base = *args;
    base.epilogue = MATMUL_STORE, base.track_amax = NULL, base.label = NULL;
    if (gelu) base.out = args->pre_activation, base.pre_activation = NULL;
    base_forward(gpt, &base);
    adapter_forward(gpt, ARGS(adapter, .site = args->site, .layer = args->layer, .out = base.out,
                              .in = args->in, .label = gelu ? NULL : args->label));
    if (gelu)
        OP(gpt->be, gelu_forward, .out = args->out, .in = args->pre_activation,
           .track_amax = args->track_amax, .label = args->label);
}

void linear_forward(struct gpt *gpt, const struct linear_forward_args *args) {
    if (shape_adapts(&gpt->shape, args->site)) adapted_forward(gpt, args);
    else base_forward(gpt, args);
}

/* ---- Backward: dweight = in' dout, or its transpose, and din = dout weight' */

static void linear_plain_backward(const struct gpt *gpt, const struct linear_backward_args *args) {
    const bool out_in = gpt->shape.weights_out_in;
    assert(!args->track_amax);
    if (args->dweight->rank)
        OP(gpt->be, matmul, .out = args->dweight, .a = out_in ? args->dout : args->in,
           .transpose_a = true, .b = out_in ? args->in : args->dout, .accumulate = gpt->accumulate);
    OP(gpt->be, matmul, .out = args->din, .a = args->dout, .b = args->weight,
       .transpose_b = !out_in, .epilogue = args->epilogue, .pre_activation = args->pre_activation,
       .column_sums = args->din_sums, .label = args->label);
}

static void weight_backward_quantized(struct gpt *gpt, const struct linear_backward_args *args,
                                      const struct operand *dout) {
    const struct operand in =
        quantized(gpt, QUANTIZED_INPUT, MATMUL_WEIGHT_GRADIENT, args->site, args->layer, args->in);
    const struct operand *a = gpt->shape.weights_out_in ? dout : &in;
    const struct operand *b = gpt->shape.weights_out_in ? &in : dout;
    OP(gpt->be, matmul, .out = args->dweight, .a = &a->values,
       .a_scales = optional_tensor(&a->scales), .a_blocks = optional_blocks(a),
       .transpose_a = !a->transposed, .b = &b->values, .b_scales = optional_tensor(&b->scales),
       .b_blocks = optional_blocks(b), .transpose_b = b->transposed, .accumulate = gpt->accumulate,
       .sums = gpt->quantization.sums);
}

/* The gradient is quantized even if the weight is frozen, for the statistics of its record. */
static void linear_quantized_backward(struct gpt *gpt, const struct linear_backward_args *args) {
    struct operand dout = quantized(gpt, QUANTIZED_GRADIENT, MATMUL_WEIGHT_GRADIENT, args->site,
                                    args->layer, args->dout);
    if (args->dweight->rank) weight_backward_quantized(gpt, args, &dout);
    dout = quantized(gpt, QUANTIZED_GRADIENT, MATMUL_INPUT_GRADIENT, args->site, args->layer,
                     args->dout);
    const struct operand weight = quantized(gpt, QUANTIZED_WEIGHT, MATMUL_INPUT_GRADIENT,
                                            args->site, args->layer, args->weight);
    OP(gpt->be, matmul, .out = args->din, .a = &dout.values,
       .a_scales = optional_tensor(&dout.scales), .a_blocks = optional_blocks(&dout),
       .b = &weight.values, .b_scales = optional_tensor(&weight.scales),
       .b_blocks = optional_blocks(&weight),
       .transpose_b = !gpt->shape.weights_out_in || weight.transposed, .epilogue = args->epilogue,
       .pre_activation = args->pre_activation, .track_amax = args->track_amax,
       .column_sums = args->din_sums, .sums = gpt->quantization.sums, .label = args->label);
}

static void base_backward(struct gpt *gpt, const struct linear_backward_args *args) {
    if (args->dbias) OP(gpt->be, column_sums, .sums = args->dbias, .in = args->dout);
    if (precision_quantizes(&gpt->precision, args->site, args->layer))
        linear_quantized_backward(gpt, args);
    else linear_plain_backward(gpt, args);
}

/* The weights of adapters come first, because din may be written over in. */
static void adapted_backward(struct gpt *gpt, const struct linear_backward_args *args) {
    const bool dgelu = args->epilogue == MATMUL_DGELU;
    struct linear_backward_args base = *args;
    base.epilogue = MATMUL_STORE, base.pre_activation = NULL;
    base.din_sums = NULL, base.track_amax = NULL, base.label = NULL;
    adapter_weight_backward(gpt, ARGS(adapter, .site = args->site, .layer = args->layer,
                                      .in = args->in, .dout = args->dout));
    base_backward(gpt, &base);
    adapter_input_backward(gpt,
                           ARGS(adapter, .site = args->site, .layer = args->layer, .din = args->din,
                                .dout = args->dout, .label = dgelu ? NULL : args->label));
    if (dgelu)
        OP(gpt->be, gelu_backward, .din = args->din, .dout = args->din, .in = args->pre_activation,
           .track_amax = args->track_amax, .column_sums = args->din_sums, .label = args->label);
}

void linear_backward(struct gpt *gpt, const struct linear_backward_args *args) {
    if (shape_adapts(&gpt->shape, args->site)) adapted_backward(gpt, args);
    else base_backward(gpt, args);
}
