#include "model/pass/adapter.h"

/* The adapters of one site in one layer. */
struct site_adapters {
    struct model_shape shape; /* of the layer */
    int count;
    enum adapter_target targets[ADAPTER_FUSED_MAX];
    struct tensor a, b, h, dh, db;
};

/* Returns the row of a target in the outputs of its site. */
static int64_t first_output(const struct model_shape *s, enum adapter_target target) {
    if (target == ADAPTER_K) return shape_q_gate(s);
    if (target == ADAPTER_V) return shape_q_gate(s) + shape_kv(s);
    if (target == ADAPTER_DELTA_Z) return shape_convolved(s);
    if (target == ADAPTER_DELTA_B) return shape_convolved(s) + shape_values(s);
    if (target == ADAPTER_DELTA_A) return shape_qkv(s) - s->linear_num_value_heads;
    return target == ADAPTER_UP ? s->n_inner : 0;
}

/* Lists B of each target, or its gradient. */
static void list_blocks(struct diagonal_block blocks[ADAPTER_FUSED_MAX],
                        const struct site_adapters *adapters,
                        const struct layer_parameters *parameters) {
    for (int i = 0; i < adapters->count; i++)
        blocks[i] = (struct diagonal_block){parameters->lora_b[adapters->targets[i]],
                                            first_output(&adapters->shape, adapters->targets[i])};
}

/* Returns the adapters of a site, in the dtype in which it computes. `rows` is N. */
static struct site_adapters adapters_of(const struct model *model, enum autocast_site site,
                                        int64_t layer, int64_t rows) {
    const struct adapters *memory = &model->adapters;
    enum dtype dtype = model->precision.site[site];
    struct site_adapters all = {.shape = shape_of_layer(&model->shape, layer)};
    const struct model_shape *s = &all.shape;
    all.count = adapter_targets_of(all.targets, s, site);
    int64_t ranks = all.count * s->adapter_rank, outputs = site_outputs(s, site);
    all.a = (struct tensor){memory->a, dtype, 2, {ranks, site_inputs(s, site)}};
    if (dtype == DTYPE_F32) all.a = model->weights.layers[layer].lora_a[all.targets[0]];
    all.b = (struct tensor){memory->b, dtype, 2, {outputs, ranks}};
    all.h = (struct tensor){memory->h, dtype, 2, {rows, ranks}};
    all.dh = (struct tensor){memory->dh, dtype, 2, {rows, ranks}};
    all.db = (struct tensor){memory->db, DTYPE_F32, 2, {outputs, ranks}};
    return all;
}

/* Rounds A and B into the memory of adapters_of, which it returns. */
static struct site_adapters load(const struct pass *pass, const struct adapter_args *adapter) {
    const struct model *model = pass->model;
    const struct layer_parameters *w = &model->weights.layers[adapter->layer];
    struct site_adapters all =
        adapters_of(model, adapter->site, adapter->layer, tensor_rows(adapter->in));
    if (all.a.dtype != DTYPE_F32)
        OP(model->be, cast, .out = &all.a, .in = &w->lora_a[all.targets[0]]);
    struct block_diagonal_forward_args args = {
        .out = &all.b,
        .count = all.count,
        .scale = pass->without_adapters ? 0 : model->adapters.scale};
    list_blocks(args.blocks, &all, w);
    model->be->op->block_diagonal_forward(model->be, &args);
    return all;
}

static bool drops(const struct pass *pass) {
    return pass_drops(pass) && pass->model->dropout.adapter > 0;
}

/* Dropout of the input of a site's adapters, or of its gradient; out may be accumulated to. */
static void drop(const struct pass *pass, const struct adapter_args *args, const struct tensor *out,
                 const struct tensor *in, bool accumulate, const struct trace_label *label) {
    const struct model *model = pass->model;
    OP(model->be, dropout, .out = out, .in = in, .inputs = pass->batch.inputs,
       .key = dropout_key(&model->dropout, DROPOUT_ADAPTER + args->site, args->layer),
       .probability = model->dropout.adapter, .accumulate = accumulate, .label = label);
}

/* Returns what the adapters read: in, or in with dropout. */
static struct tensor input_of(const struct pass *pass, const struct adapter_args *args) {
    struct tensor dropped = *args->in;
    if (!drops(pass)) return dropped;
    dropped.data = pass->model->adapters.dropped;
    dropped.dtype = pass->model->precision.site[args->site];
    drop(pass, args, &dropped, args->in, false, NULL);
    return dropped;
}

void adapter_forward(const struct pass *pass, const struct adapter_args *args) {
    const struct model *model = pass->model;
    struct site_adapters all = load(pass, args);
    struct tensor in = input_of(pass, args);
    OP(model->be, matmul, .out = &all.h, .a = &in, .b = &all.a, .transpose_b = true);
    OP(model->be, matmul, .out = args->out, .a = &all.h, .b = &all.b, .transpose_b = true,
       .accumulate = true, .label = args->label);
}

void adapter_weight_backward(const struct pass *pass, const struct adapter_args *args) {
    const struct model *model = pass->model;
    struct backend *be = model->be;
    const struct layer_parameters *dw = &model->dweights.layers[args->layer];
    struct site_adapters all = load(pass, args);
    struct tensor in = input_of(pass, args);
    OP(be, matmul, .out = &all.h, .a = &in, .b = &all.a, .transpose_b = true);
    OP(be, matmul, .out = &all.db, .a = args->dout, .transpose_a = true, .b = &all.h);
    OP(be, matmul, .out = &all.dh, .a = args->dout, .b = &all.b);
    OP(be, matmul, .out = &dw->lora_a[all.targets[0]], .a = &all.dh, .transpose_a = true, .b = &in,
       .accumulate = !pass->first);
    struct block_diagonal_backward_args gradients = {.dout = &all.db,
                                                     .count = all.count,
                                                     .scale = model->adapters.scale,
                                                     .accumulate = !pass->first};
    list_blocks(gradients.dblocks, &all, dw);
    be->op->block_diagonal_backward(be, &gradients);
}

void adapter_input_backward(const struct pass *pass, const struct adapter_args *args) {
    const struct model *model = pass->model;
    struct site_adapters all = adapters_of(model, args->site, args->layer, tensor_rows(args->dout));
    struct tensor through = *args->din;
    if (!drops(pass)) {
        OP(model->be, matmul, .out = args->din, .a = &all.dh, .b = &all.a, .accumulate = true,
           .label = args->label);
        return;
    }
    through.data = model->adapters.dropped, through.dtype = model->precision.site[args->site];
    OP(model->be, matmul, .out = &through, .a = &all.dh, .b = &all.a);
    drop(pass, args, args->din, &through, true, args->label);
}
