#include "model/core/adapter.h"

/* The adapters of one site in one layer. */
struct site_adapters {
    int count;
    enum adapter_target targets[ADAPTER_FUSED_MAX];
    struct tensor a, b, h, dh, db;
};

/* Returns the row of a target in the outputs of its site. */
static int64_t first_output(const struct gpt_shape *s, enum adapter_target target) {
    if (target == ADAPTER_K) return shape_q(s);
    if (target == ADAPTER_V) return shape_qk(s);
    return target == ADAPTER_UP ? s->n_inner : 0;
}

/* Lists B of each target, or its gradient. */
static void list_blocks(struct diagonal_block blocks[ADAPTER_FUSED_MAX],
                        const struct site_adapters *adapters, const struct gpt_shape *shape,
                        const struct layer_parameters *parameters) {
    for (int i = 0; i < adapters->count; i++)
        blocks[i] = (struct diagonal_block){parameters->lora_b[adapters->targets[i]],
                                            first_output(shape, adapters->targets[i])};
}

/* Rounds A and B to the dtype in which the site computes. `rows` is N. */
static struct site_adapters load(const struct gpt *gpt, enum autocast_site site, int64_t layer,
                                 int64_t rows) {
    const struct gpt_shape *s = &gpt->shape;
    const struct layer_parameters *w = &gpt->weights.layers[layer];
    const struct adapters *memory = &gpt->adapters;
    enum dtype dtype = gpt->precision.site[site];
    struct site_adapters all;
    all.count = adapter_targets_of(all.targets, s, site);
    int64_t ranks = all.count * s->adapter_rank, outputs = site_outputs(s, site);
    const struct tensor *a = &w->lora_a[all.targets[0]];
    all.a = (struct tensor){memory->a, dtype, 2, {ranks, site_inputs(s, site)}};
    all.b = (struct tensor){memory->b, dtype, 2, {outputs, ranks}};
    all.h = (struct tensor){memory->h, dtype, 2, {rows, ranks}};
    all.dh = (struct tensor){memory->dh, dtype, 2, {rows, ranks}};
    all.db = (struct tensor){memory->db, DTYPE_F32, 2, {outputs, ranks}};
    if (dtype == DTYPE_F32) all.a = *a;
    else OP(gpt->be, cast, .out = &all.a, .in = a);
    struct block_diagonal_forward_args args = {
        .out = &all.b, .count = all.count, .scale = memory->scale};
    list_blocks(args.blocks, &all, s, w);
    gpt->be->op->block_diagonal_forward(gpt->be, &args);
    return all;
}

static bool drops(const struct gpt *gpt) {
    return gpt->dropout.active && gpt->dropout.adapter > 0;
}

/* Dropout of the input of a site's adapters, or of its gradient; out may be accumulated to. */
static void drop(const struct gpt *gpt, const struct adapter_args *args, const struct tensor *out,
                 const struct tensor *in, bool accumulate, const struct trace_label *label) {
    OP(gpt->be, dropout, .out = out, .in = in, .inputs = gpt->activations.inputs,
       .key = dropout_key(&gpt->dropout, DROPOUT_ADAPTER, args->layer, (int)args->site),
       .probability = gpt->dropout.adapter, .accumulate = accumulate, .label = label);
}

/* Returns what the adapters read: in, or in with dropout. */
static struct tensor input_of(const struct gpt *gpt, const struct adapter_args *args) {
    struct tensor dropped = *args->in;
    if (!drops(gpt)) return dropped;
    dropped.data = gpt->adapters.dropped, dropped.dtype = gpt->precision.site[args->site];
    drop(gpt, args, &dropped, args->in, false, NULL);
    return dropped;
}

void adapter_forward(struct gpt *gpt, const struct adapter_args *args) {
    struct site_adapters all = load(gpt, args->site, args->layer, tensor_rows(args->in));
    struct tensor in = input_of(gpt, args);
    OP(gpt->be, matmul, .out = &all.h, .a = &in, .b = &all.a, .transpose_b = true);
    OP(gpt->be, matmul, .out = args->out, .a = &all.h, .b = &all.b, .transpose_b = true,
       .accumulate = true, .label = args->label);
}

void adapter_weight_backward(struct gpt *gpt, const struct adapter_args *args) {
    struct backend *be = gpt->be;
    const struct layer_parameters *dw = &gpt->dweights.layers[args->layer];
    struct site_adapters all = load(gpt, args->site, args->layer, tensor_rows(args->in));
    struct tensor in = input_of(gpt, args);
    OP(be, matmul, .out = &all.h, .a = &in, .b = &all.a, .transpose_b = true);
    OP(be, matmul, .out = &all.db, .a = args->dout, .transpose_a = true, .b = &all.h);
    OP(be, matmul, .out = &all.dh, .a = args->dout, .b = &all.b);
    OP(be, matmul, .out = &dw->lora_a[all.targets[0]], .a = &all.dh, .transpose_a = true, .b = &in,
       .accumulate = gpt->accumulate);
    struct block_diagonal_backward_args gradients = {.dout = &all.db,
                                                     .count = all.count,
                                                     .scale = gpt->adapters.scale,
                                                     .accumulate = gpt->accumulate};
    list_blocks(gradients.dblocks, &all, &gpt->shape, dw);
    be->op->block_diagonal_backward(be, &gradients);
}

void adapter_input_backward(struct gpt *gpt, const struct adapter_args *args) {
    struct site_adapters all = load(gpt, args->site, args->layer, tensor_rows(args->dout));
    struct tensor through = *args->din;
    if (!drops(gpt)) {
        OP(gpt->be, matmul, .out = args->din, .a = &all.dh, .b = &all.a, .accumulate = true,
           .label = args->label);
        return;
    }
    through.data = gpt->adapters.dropped, through.dtype = gpt->precision.site[args->site];
    OP(gpt->be, matmul, .out = &through, .a = &all.dh, .b = &all.a);
    drop(gpt, args, args->din, &through, true, args->label);
}
