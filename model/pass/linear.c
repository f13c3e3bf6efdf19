#include "model/pass/linear.h"

#include <assert.h>

#include "model/pass/adapter.h"

/* Returns a tensor of a linear layer as an operand of a matmul, quantized. */
static struct operand quantized(const struct pass *pass, enum linear_operand kind,
                                enum linear_matmul matmul, enum autocast_site site, int64_t layer,
                                const struct tensor *in) {
    return quantization_operand(
        &pass->model->quantization,
        &(struct quantized_operand){kind, site, layer, matmul, in, pass->batch.inputs});
}

/* Returns the blocks of an operand of codes, or NULL. */
static const struct matmul_blocks *optional_blocks(const struct operand *operand) {
    return operand->blocks.scales.rank ? &operand->blocks : NULL;
}

/* ---- Forward: out = in weight + bias */

static void linear_plain(const struct model *model, const struct linear_forward_args *args,
                         const struct stored_matrices *stored) {
    assert(!args->track_amax);
    OP(model->be, matmul, .out = args->out, .a = args->in, .b = args->weight, .b_stored = stored,
       .transpose_b = model->shape.weights_out_in, .bias = optional_tensor(args->bias),
       .epilogue = args->epilogue, .pre_activation = args->pre_activation, .label = args->label);
}

static void linear_quantized(const struct pass *pass, const struct linear_forward_args *args) {
    const struct model *model = pass->model;
    const struct operand in =
        quantized(pass, LINEAR_INPUT, MATMUL_FORWARD, args->site, args->layer, args->in);
    const struct operand weight =
        quantized(pass, LINEAR_WEIGHT, MATMUL_FORWARD, args->site, args->layer, args->weight);
    OP(model->be, matmul, .out = args->out, .a = &in.values,
       .a_scales = optional_tensor(&in.scales), .a_blocks = optional_blocks(&in),
       .b = &weight.values, .b_scales = optional_tensor(&weight.scales),
       .b_blocks = optional_blocks(&weight),
       .transpose_b = model->shape.weights_out_in || weight.transposed,
       .bias = optional_tensor(args->bias), .epilogue = args->epilogue,
       .pre_activation = args->pre_activation, .track_amax = args->track_amax,
       .fast_accumulation = model->quantization.fast_accumulation, .label = args->label);
}

/* True if a matmul of these rows can read the weights as they are stored. */
static bool reads_stored(const struct model *model, const struct linear_forward_args *args) {
    return tensor_rows(args->in) <= model->be->device.stored_rows[args->weight->dtype] &&
           model->shape.weights_out_in && tensor_columns(args->in) % 2 == 0;
}

static void base_forward(const struct pass *pass, const struct linear_forward_args *args) {
    const struct model *model = pass->model;
    const bool quantizes = precision_quantizes_forward(&model->precision, args->site, args->layer);
    struct stored_matrices stored;
    if (!quantizes && reads_stored(model, args) &&
        masters_stored(&model->masters, &stored, args->layer, args->site)) {
        linear_plain(model, args, &stored);
        return;
    }
    masters_cast(&model->masters, model->be, args->layer, args->site);
    if (quantizes) linear_quantized(pass, args);
    else linear_plain(model, args, NULL);
}

/* Adapters add to the matmul's output, so the epilogue is a step of its own. */
static void adapted_forward(const struct pass *pass, const struct linear_forward_args *args) {
    const bool gelu = args->epilogue == MATMUL_GELU;
    struct linear_forward_args base = *args;
    base.epilogue = MATMUL_STORE, base.track_amax = NULL, base.label = NULL;
    if (gelu) base.out = args->pre_activation, base.pre_activation = NULL;
    base_forward(pass, &base);
    adapter_forward(pass, ARGS(adapter, .site = args->site, .layer = args->layer, .out = base.out,
                               .in = args->in, .label = gelu ? NULL : args->label));
    if (gelu)
        OP(pass->model->be, gelu_forward, .out = args->out, .in = args->pre_activation,
           .track_amax = args->track_amax, .label = args->label);
}

static bool has_adapters(const struct pass *pass, enum autocast_site site, int64_t layer) {
    const struct model_shape own = shape_of_layer(&pass->model->shape, layer);
    return shape_adapts(&own, site);
}

void linear_forward(const struct pass *pass, const struct linear_forward_args *args) {
    if (has_adapters(pass, args->site, args->layer)) adapted_forward(pass, args);
    else base_forward(pass, args);
}

/* ---- Backward: dweight = in' dout, or its transpose, and din = dout weight' */

static void linear_plain_backward(const struct pass *pass,
                                  const struct linear_backward_args *args) {
    const struct model *model = pass->model;
    const bool out_in = model->shape.weights_out_in;
    assert(!args->track_amax);
    if (args->dweight->rank)
        OP(model->be, matmul, .out = args->dweight, .a = out_in ? args->dout : args->in,
           .transpose_a = true, .b = out_in ? args->in : args->dout, .accumulate = !pass->first);
    OP(model->be, matmul, .out = args->din, .a = args->dout, .b = args->weight,
       .transpose_b = !out_in, .epilogue = args->epilogue, .pre_activation = args->pre_activation,
       .column_sums = args->din_sums, .label = args->label);
}

static void weight_backward_quantized(const struct pass *pass,
                                      const struct linear_backward_args *args,
                                      const struct operand *dout) {
    const struct model *model = pass->model;
    const struct operand in =
        quantized(pass, LINEAR_INPUT, MATMUL_WEIGHT_GRADIENT, args->site, args->layer, args->in);
    const struct operand *a = model->shape.weights_out_in ? dout : &in;
    const struct operand *b = model->shape.weights_out_in ? &in : dout;
    OP(model->be, matmul, .out = args->dweight, .a = &a->values,
       .a_scales = optional_tensor(&a->scales), .a_blocks = optional_blocks(a),
       .transpose_a = !a->transposed, .b = &b->values, .b_scales = optional_tensor(&b->scales),
       .b_blocks = optional_blocks(b), .transpose_b = b->transposed, .accumulate = !pass->first);
}

/* The gradient is quantized even if the weight is frozen, for the statistics of its record. */
static void linear_quantized_backward(const struct pass *pass,
                                      const struct linear_backward_args *args) {
    const struct model *model = pass->model;
    struct operand dout = quantized(pass, LINEAR_GRADIENT, MATMUL_WEIGHT_GRADIENT, args->site,
                                    args->layer, args->dout);
    if (args->dweight->rank) weight_backward_quantized(pass, args, &dout);
    dout = quantized(pass, LINEAR_GRADIENT, MATMUL_INPUT_GRADIENT, args->site, args->layer,
                     args->dout);
    const struct operand weight = quantized(pass, LINEAR_WEIGHT, MATMUL_INPUT_GRADIENT, args->site,
                                            args->layer, args->weight);
    OP(model->be, matmul, .out = args->din, .a = &dout.values,
       .a_scales = optional_tensor(&dout.scales), .a_blocks = optional_blocks(&dout),
       .b = &weight.values, .b_scales = optional_tensor(&weight.scales),
       .b_blocks = optional_blocks(&weight),
       .transpose_b = !model->shape.weights_out_in || weight.transposed, .epilogue = args->epilogue,
       .pre_activation = args->pre_activation, .track_amax = args->track_amax,
       .column_sums = args->din_sums, .label = args->label);
}

static void base_backward(const struct pass *pass, const struct linear_backward_args *args) {
    masters_cast(&pass->model->masters, pass->model->be, args->layer, args->site);
    if (args->dbias) OP(pass->model->be, column_sums, .sums = args->dbias, .in = args->dout);
    if (precision_quantizes(&pass->model->precision, args->site, args->layer))
        linear_quantized_backward(pass, args);
    else linear_plain_backward(pass, args);
}

/* The weights of adapters come first, because din may be written over in. */
static void adapted_backward(const struct pass *pass, const struct linear_backward_args *args) {
    const bool dgelu = args->epilogue == MATMUL_DGELU;
    struct linear_backward_args base = *args;
    base.epilogue = MATMUL_STORE, base.pre_activation = NULL;
    base.din_sums = NULL, base.track_amax = NULL, base.label = NULL;
    adapter_weight_backward(pass, ARGS(adapter, .site = args->site, .layer = args->layer,
                                       .in = args->in, .dout = args->dout));
    base_backward(pass, &base);
    adapter_input_backward(pass,
                           ARGS(adapter, .site = args->site, .layer = args->layer, .din = args->din,
                                .dout = args->dout, .label = dgelu ? NULL : args->label));
    if (dgelu)
        OP(pass->model->be, gelu_backward, .din = args->din, .dout = args->din,
           .in = args->pre_activation, .track_amax = args->track_amax,
           .column_sums = args->din_sums, .label = args->label);
}

void linear_backward(const struct pass *pass, const struct linear_backward_args *args) {
    if (has_adapters(pass, args->site, args->layer)) adapted_backward(pass, args);
    else base_backward(pass, args);
}
