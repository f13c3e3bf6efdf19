#include "model/pass/backward.h"

#include "model/core/exchange.h"
#include "model/pass/forward.h"
#include "model/pass/linear.h"

#include <assert.h>

/* Returns the trace label of an operation that writes the gradient of an activation. */
static struct trace_label label_of(const struct model *model, enum activation_id id,
                                   int64_t layer) {
    return (struct trace_label){1, true, {{id, (int)layer}}, 0, model->shape.rows};
}

/* Returns the label of a norm's backward pass, which writes the gradient of `id`, an activation of
 * the residual stream. It is also the gradient of `branch`, the output that was added there;
 * branch_layer < 0: none. */
static struct trace_label label_of_norm(const struct model *model, enum activation_id id,
                                        int64_t layer, enum activation_id branch,
                                        int64_t branch_layer) {
    struct trace_label label = label_of(model, id, layer);
    if (branch_layer < 0) return label;
    label.count = 2;
    label.tensors[1].id = branch;
    label.tensors[1].layer = (int)branch_layer;
    return label;
}

struct normalize_backward_args {
    const struct tensor *dbranch;         /* [N, C], input of the sub-layer's backward pass */
    const struct tensor *dout, *in;       /* [N, C] */
    const struct tensor *mean, *rstd;     /* [N] */
    const struct tensor *weight;          /* [C]; rank 0: no norm */
    const struct tensor *dweight, *dbias; /* += [C] */
    const struct tensor *dbranch_bias;    /* optional += [C], the sub-layer's last bias */
    struct amax *track_amax;              /* optional, of dbranch */
    bool last;               /* final norm: there is no gradient of the residual stream yet */
    enum dropout_use branch; /* use of dropout in the branch */
    int64_t branch_layer;    /* layer of the branch; -1: the first norm has none before it */
    struct trace_label label;
};

/* Computes the gradient of a branch with dropout or a factor from that of the residual stream. */
static void drop_backward(const struct pass *pass, const struct normalize_backward_args *args) {
    const struct model *model = pass->model;
    struct trace_label label = args->label;
    label.count = 1;
    label.tensors[0] = label.tensors[1];
    if (args->branch_layer < 0) return;
    OP(model->be, dropout, .out = args->dbranch, .in = &model->activations.gradients.residual_in,
       .inputs = pass->batch.inputs,
       .key = dropout_key(&model->dropout, args->branch, args->branch_layer),
       .probability = model->dropout.residual, .scale = model->shape.residual_multiplier,
       .track_amax = args->track_amax, .label = &label);
    if (args->dbranch_bias)
        OP(model->be, column_sums, .sums = args->dbranch_bias, .in = args->dbranch);
}

/* The same without a norm, of a sub-layer with a norm at its end. Rounds the sum for the branch
 * below, if there is one and dropout does not. */
static void add_backward(const struct pass *pass, const struct normalize_backward_args *args,
                         bool rounds) {
    const struct model *model = pass->model;
    const struct tensor *dresidual = &model->activations.gradients.residual_in;
    struct trace_label label = args->label, branch = args->label;
    branch.count = 1;
    branch.tensors[0] = branch.tensors[1];
    if (rounds || model_scales_branches(model)) label.count = 1;
    OP(model->be, weighted_sum, .out = dresidual, .a = dresidual, .b = args->dout,
       .columns = tensor_columns(dresidual), .alpha = 1, .beta = 1, .label = &label);
    if (rounds && args->branch_layer >= 0)
        OP(model->be, cast, .out = args->dbranch, .in = dresidual, .label = &branch);
}

/* Adds the gradient through a norm to the gradient of the residual stream. */
static void normalize_backward(const struct pass *pass,
                               const struct normalize_backward_args *args) {
    struct model *model = pass->model;
    const struct tensor *dresidual = &model->activations.gradients.residual_in;
    bool has_mean = model->shape.norm == NORM_LAYERNORM;
    bool drops = model_scales_branches(model);
    bool shared = model_branch_is_residual(model) || drops;
    struct trace_label label = args->label;
    if (drops) label.count = 1;
    if (!args->weight->rank) add_backward(pass, args, !shared);
    else
        OP(model->be, layernorm_backward, .din = dresidual,
           .din_lower = shared ? NULL : args->dbranch, .dweight = args->dweight,
           .dbias = has_mean ? args->dbias : NULL, .dout = args->dout, .in = args->in,
           .mean = has_mean ? args->mean->data : NULL, .rstd = args->rstd->data,
           .weight = args->weight, .weight_offset = shape_weight_offset(&model->shape),
           .dresidual = args->last ? NULL : dresidual,
           .track_amax = drops ? NULL : args->track_amax,
           .column_sums = drops ? NULL : args->dbranch_bias, .label = &label);
    if (drops) drop_backward(pass, args);
}

/* Returns the amax to track while writing the output gradient of a quantized linear layer; NULL
 * below the first layer. */
static struct amax *amax_of(const struct model *model, enum autocast_site site, int64_t l) {
    if (l < 0) return NULL;
    return quantization_amax(&model->quantization, LINEAR_GRADIENT, site, l);
}

/* Return the amax of a branch's gradient and the gradient of its last bias for the operation that
 * writes the gradient of the linear layer's output: the backward pass of the norm after it, or else
 * that of the next norm on the residual stream. */
static struct amax *branch_amax(const struct model *model, bool own_norm, enum autocast_site site,
                                int64_t l) {
    return own_norm == model->shape.post_norm ? amax_of(model, site, l) : NULL;
}
static const struct tensor *branch_bias(const struct model *model, bool own_norm,
                                        const struct tensor *dbias) {
    return own_norm == model->shape.post_norm ? optional_tensor(dbias) : NULL;
}

/* The end of a branch: a norm after its linear layer. */
struct branch_norm_args {
    enum activation_id raw, branch;       /* input and output of the norm */
    const struct tensor *rstd;            /* [N] */
    const struct tensor *weight;          /* [C] */
    const struct tensor *dweight, *dbias; /* += [C]; dbias: of the linear layer, or rank 0 */
    enum autocast_site site;              /* of the linear layer */
};

/* Returns the gradient of the linear layer's output, [N, C]: that of the branch, or what the
 * backward pass of the norm writes. */
static const struct tensor *branch_norm_backward(struct model *model, int64_t l,
                                                 const struct branch_norm_args *args) {
    const struct tensor *dbranch = activation_gradient(&model->activations, args->branch);
    const struct tensor *draw = activation_gradient(&model->activations, args->raw);
    const struct trace_label label = label_of(model, args->raw, l);
    if (!model->shape.post_norm) return dbranch;
    OP(model->be, layernorm_backward, .din = draw, .dweight = args->dweight, .dout = dbranch,
       .in = activation_tensor(&model->activations, args->raw, l), .rstd = args->rstd->data,
       .weight = args->weight, .weight_offset = shape_weight_offset(&model->shape),
       .track_amax = branch_amax(model, true, args->site, l),
       .column_sums = branch_bias(model, true, args->dbias), .label = &label);
    return draw;
}

/* Backward pass of the norm of all heads of q or k, in place. */
static void whole_norm_backward(const struct model *model, int64_t first, const struct tensor *raw,
                                const float *rstd, const struct tensor *weight,
                                const struct tensor *dweight, const struct trace_label *label) {
    const struct tensor *dqkv = &model->activations.gradients.qkv;
    const int64_t columns = tensor_columns(raw);
    const struct tensor d =
        tensor_view(&model->activations.gradients.q_normed, model->shape.rows, columns);
    OP(model->be, weighted_sum, .out = &d, .a = dqkv, .a_first = first, .columns = columns,
       .alpha = 1, .label = label);
    OP(model->be, layernorm_backward, .din = &d, .dweight = dweight, .dout = &d, .in = raw,
       .rstd = rstd, .weight = weight, .weight_offset = shape_weight_offset(&model->shape));
    OP(model->be, weighted_sum, .out = dqkv, .out_first = first, .a = &d, .columns = columns,
       .alpha = 1);
}

/* Backward pass of prepare_heads, in place: from the gradient of attention's q and k to that of the
 * QKV matmul's output. */
static void heads_backward(const struct model *model, int64_t l) {
    const struct model_shape *s = &model->shape;
    const struct layer_parameters *w = &model->weights.layers[l], *dw = &model->dweights.layers[l];
    const struct tensor *dqkv = &model->activations.gradients.qkv;
    const struct tensor *angles = model_angles(model, l);
    const bool norms = s->qk_norm && !s->qk_norm_whole, fuses = shape_rotary(s) == s->head_dim;
    if (angles && !(norms && fuses))
        OP(model->be, rope, .inout = dqkv, .angles = angles, .sequence_length = s->sequence_length,
           .heads = (int)(s->n_head + s->n_kv_head), .head_dim = (int)s->head_dim,
           .query_angles = optional_tensor(&model->query_angles), .query_heads = (int)s->n_head,
           .neighbours = s->rope_interleaved, .inverse = true);
    if (norms)
        OP(model->be, qk_norm_backward, .dinout = dqkv, .dq_weight = &dw->q_norm_weight,
           .dk_weight = &dw->k_norm_weight, .raw = &model->activations.layers[l].qk_raw,
           .q_weight = &w->q_norm_weight, .k_weight = &w->k_norm_weight,
           .angles = fuses ? angles : NULL, .sequence_length = s->sequence_length,
           .heads = (int)s->n_head, .kv_heads = (int)s->n_kv_head, .epsilon = (float)s->norm_eps,
           .weight_offset = shape_weight_offset(s));
    if (!s->qk_norm_whole) return;
    const struct layer_activations *a = &model->activations.layers[l];
    const struct trace_label label = label_of(model, ACTIVATION_q_normed, l);
    whole_norm_backward(model, 0, &a->q_raw, a->q_norm_rstd.data, &w->q_norm_weight,
                        &dw->q_norm_weight, &label);
    whole_norm_backward(model, shape_q(s), &a->k_raw, a->k_norm_rstd.data, &w->k_norm_weight,
                        &dw->k_norm_weight, NULL);
}

/* Steps 7 and 6 of layer_forward: the gradients of mlp_fc, by way of mlp_activated, and of ln2_out.
 */
static void mlp_backward(const struct pass *pass, int64_t l) {
    struct model *model = pass->model;
    const struct layer_parameters *w = &model->weights.layers[l], *dw = &model->dweights.layers[l];
    const struct layer_activations *a = &model->activations.layers[l];
    const struct activation_gradients *d = &model->activations.gradients;
    struct amax *dmlp_fc = amax_of(model, SITE_MLP_FC, l);
    const struct tensor *dmlp_fc_bias = optional_tensor(&dw->mlp_fc_bias);
    const bool gated = mlp_is_gated(model->shape.mlp), fuses = model->shape.mlp == MLP_GELU;
    /* In a gated MLP the gradient of mlp_activated overwrites the activation. */
    const struct trace_label fc_label = label_of(model, ACTIVATION_mlp_fc, l);
    const struct trace_label label = label_of(model, ACTIVATION_ln2_out, l);
    const struct tensor *dout = branch_norm_backward(
        model, l,
        ARGS(branch_norm, .raw = ACTIVATION_mlp_projection_raw, .branch = ACTIVATION_mlp_projection,
             .rstd = &a->post_mlp_norm_rstd, .weight = &w->post_mlp_norm_weight,
             .dweight = &dw->post_mlp_norm_weight, .dbias = &dw->mlp_projection_bias,
             .site = SITE_MLP_PROJECTION));
    linear_backward(
        pass,
        ARGS(linear_backward, .site = SITE_MLP_PROJECTION, .layer = l,
             .dweight = &dw->mlp_projection_weight, .din = gated ? &a->mlp_activated : &d->mlp_fc,
             .dout = dout, .in = &a->mlp_activated, .weight = &w->mlp_projection_weight,
             .epilogue = fuses ? MATMUL_DGELU : MATMUL_STORE,
             .pre_activation = fuses ? &a->mlp_fc : NULL, .din_sums = fuses ? dmlp_fc_bias : NULL,
             .track_amax = fuses ? dmlp_fc : NULL, .label = fuses ? &fc_label : NULL));
    if (gated)
        OP(model->be, gated_backward, .dgate_up = &d->mlp_fc, .dout = &a->mlp_activated,
           .gate_up = &a->mlp_fc, .gate = model_gate(&model->shape), .track_amax = dmlp_fc,
           .label = &fc_label);
    else if (!fuses)
        OP(model->be, gelu_backward, .din = &d->mlp_fc, .dout = &d->mlp_fc, .in = &a->mlp_fc,
           .relu2 = true, .column_sums = dmlp_fc_bias, .track_amax = dmlp_fc, .label = &fc_label);
    linear_backward(pass, ARGS(linear_backward, .site = SITE_MLP_FC, .layer = l,
                               .dweight = &dw->mlp_fc_weight, .dbias = gated ? dmlp_fc_bias : NULL,
                               .din = &d->ln2_out, .dout = &d->mlp_fc, .in = &a->ln2_out,
                               .weight = &w->mlp_fc_weight, .label = &label));
}

/* Step 3: the gradient of qkv. prepared: q and k passed a norm or rope, whose backward pass writes
 * what the bias gradient sums. */
static void attend_backward(const struct pass *pass, int64_t l, bool prepared) {
    struct model *model = pass->model;
    const struct model_shape *s = &model->shape;
    const struct layer_activations *a = &model->activations.layers[l];
    const struct activation_gradients *d = &model->activations.gradients;
    const struct trace_label label = label_of(model, ACTIVATION_qkv, l);
    struct tensor dqkv = tensor_split(&d->qkv, s->batch, s->sequence_length);
    struct tensor qkv = tensor_split(&a->qkv, s->batch, s->sequence_length);
    struct tensor out = tensor_split(&a->attention_out, s->batch, s->sequence_length);
    struct tensor dout = tensor_split(&d->attention_out, s->batch, s->sequence_length);
    OP(model->be, attention_backward, .dqkv = &dqkv, .dout = &dout, .qkv = &qkv, .out = &out,
       .lse = a->lse.data, .first_keys = pass->batch.first_keys, .window = model_window(model, l),
       .scale = model_attention_scale(model), .softcap = (float)s->attention_softcap,
       .column_sums = prepared ? NULL : optional_tensor(&model->dweights.layers[l].qkv_bias),
       .track_amax = amax_of(model, SITE_QKV, l), .heads = (int)s->n_head,
       .kv_heads = (int)s->n_kv_head, .label = &label);
}

/* Steps 3 and 2 in a Gated DeltaNet. */
static void delta_rule_backward(const struct pass *pass, int64_t l) {
    struct model *model = pass->model;
    const struct model_shape *s = &model->shape;
    const struct layer_parameters *w = &model->weights.layers[l], *dw = &model->dweights.layers[l];
    const struct layer_activations *a = &model->activations.layers[l];
    const struct activation_gradients *d = &model->activations.gradients;
    const int64_t batch = s->batch, length = s->sequence_length;
    const struct tensor in = tensor_split(&a->qkv, batch, length);
    const struct tensor din = tensor_split(&d->qkv, batch, length);
    const struct tensor between = tensor_split(&a->convolved, batch, length);
    const struct tensor dbetween = tensor_split(&d->convolved, batch, length);
    const struct tensor dmixed = tensor_split(&d->delta_out, batch, length);
    const struct trace_label labels[] = {label_of(model, ACTIVATION_convolved, l),
                                         label_of(model, ACTIVATION_qkv, l)};
    masters_cast(&model->masters, model->be, l, SITE_ATTENTION);
    OP(model->be, qk_norm_backward, .dinout = &d->delta_out, .dq_weight = &dw->gated_norm_weight,
       .raw = &a->delta_raw, .q_weight = &w->gated_norm_weight, .k_weight = &w->gated_norm_weight,
       .heads = (int)s->linear_num_value_heads, .epsilon = (float)s->norm_eps);
    OP(model->be, delta_rule_backward, .dqkv = &dbetween, .dgates = &din, .dA_log = &dw->a_log,
       .ddt_bias = &dw->dt_bias, .dout = &dmixed, .states = a->delta_states.data, .qkv = &between,
       .gates = &in, .A_log = &w->a_log, .dt_bias = &w->dt_bias,
       .first_keys = pass->batch.first_keys, .gates_column = shape_convolved(s) + shape_values(s),
       .key_heads = (int)s->linear_num_key_heads, .value_heads = (int)s->linear_num_value_heads,
       .key_size = (int)s->linear_key_head_dim, .label = &labels[0]);
    OP(model->be, causal_convolution_backward, .din = &din, .dweight = &dw->conv_weight,
       .dout = &dbetween, .in = &in, .weight = &w->conv_weight,
       .first_keys = pass->batch.first_keys, .label = &labels[1]);
}

/* Computes the activation gated again. */
static void repeat_gate(const struct pass *pass, int64_t l) {
    struct pass again = *pass;
    again.kind = PASS_RECOMPUTE;
    model_gate_mixed(&again, l);
}

/* The gradients of what the gate multiplies, and of the gate: attention's lies in its place. */
static void gate_backward(struct model *model, int64_t l) {
    struct activations *all = &model->activations;
    const struct mixer_gate gate = model_mixer_gate(model, l);
    const struct tensor *gates = activation_tensor(all, gate.gate, l);
    const bool in_place = gate.gate == ACTIVATION_gate;
    const struct trace_label label = label_of(model, gate.in, l);
    OP(model->be, gated_backward,
       .dgate_up = in_place ? gates : activation_gradient(all, gate.gate),
       .dup = activation_gradient(all, gate.in), .dout = &all->gradients.gated, .gate_up = gates,
       .up = activation_tensor(all, gate.in, l), .gate_column = gate.column, .gate = gate.function,
       .label = &label);
}

/* The gradient of the QKV matmul's output. */
static void join_gates(const struct model *model, int64_t l) {
    const struct activation_gradients *d = &model->activations.gradients;
    const struct gate_columns columns = {.whole = &d->qkv_gate,
                                         .qkv = &d->qkv,
                                         .gate = &model->activations.layers[l].gate,
                                         .whole_label = label_of(model, ACTIVATION_qkv_gate, l)};
    model_split_gates(model, &columns, true);
}

/* Runs layer l backward, the steps of layer_forward in reverse order. Each norm also writes the
 * gradient of the branch that was added before it, so step 8 is that of the layer above. */
static void layer_backward(const struct pass *pass, int64_t l) {
    struct model *model = pass->model;
    const struct layer_parameters *w = &model->weights.layers[l], *dw = &model->dweights.layers[l];
    const struct layer_activations *a = &model->activations.layers[l];
    const struct activation_gradients *d = &model->activations.gradients;
    const struct model_shape own = shape_of_layer(&model->shape, l);
    const bool prepared = shape_prepares_heads(&own), gates = shape_gates(&own);
    const struct trace_label out_label =
        label_of(model, gates ? ACTIVATION_gated : ACTIVATION_attention_out, l);
    const struct trace_label label = label_of(model, ACTIVATION_ln1_out, l);

    model_set_gradients(model, l);
    /* 7, 6. mlp_projection [N, C] -> ln2_out [N, C] */
    mlp_backward(pass, l);
    /* 5. ln2_out -> residual_mid, attention_projection [N, C] */
    normalize_backward(
        pass, ARGS(normalize_backward, .dbranch = &d->attention_projection, .dout = &d->ln2_out,
                   .in = &a->residual_mid, .mean = &a->ln2_mean, .rstd = &a->ln2_rstd,
                   .weight = &w->ln2_weight, .dweight = &dw->ln2_weight, .dbias = &dw->ln2_bias,
                   .dbranch_bias = branch_bias(model, false, &dw->attention_projection_bias),
                   .track_amax = branch_amax(model, false, SITE_ATTENTION_PROJECTION, l),
                   .branch = DROPOUT_ATTENTION, .branch_layer = l,
                   .label = label_of_norm(model, ACTIVATION_residual_mid, l,
                                          ACTIVATION_attention_projection, l)));
    /* 4. attention_projection -> attention_out [N, H D] */
    const struct tensor *dprojection = branch_norm_backward(
        model, l,
        ARGS(branch_norm, .raw = ACTIVATION_attention_projection_raw,
             .branch = ACTIVATION_attention_projection, .rstd = &a->post_attention_norm_rstd,
             .weight = &w->post_attention_norm_weight, .dweight = &dw->post_attention_norm_weight,
             .dbias = &dw->attention_projection_bias, .site = SITE_ATTENTION_PROJECTION));
    if (gates) repeat_gate(pass, l);
    linear_backward(pass, ARGS(linear_backward, .site = SITE_ATTENTION_PROJECTION, .layer = l,
                               .dweight = &dw->attention_projection_weight,
                               .din = gates ? &d->gated : &d->attention_out, .dout = dprojection,
                               .in = gates ? &a->gated : &a->attention_out,
                               .weight = &w->attention_projection_weight, .label = &out_label));
    /* 3, 2. attention_out -> qkv [N, (H + 2 H_kv) D] */
    if (gates) gate_backward(model, l);
    if (own.is_delta) delta_rule_backward(pass, l);
    else {
        attend_backward(pass, l, prepared);
        heads_backward(model, l);
        if (gates) join_gates(model, l);
    }
    /* 1. qkv -> ln1_out [N, C] */
    linear_backward(pass,
                    ARGS(linear_backward, .site = SITE_QKV, .layer = l, .dweight = &dw->qkv_weight,
                         .dbias = prepared ? optional_tensor(&dw->qkv_bias) : NULL,
                         .din = &d->ln1_out, .dout = own.attention_gate ? &d->qkv_gate : &d->qkv,
                         .in = &a->ln1_out, .weight = &w->qkv_weight, .label = &label));
    /* 8 of the layer below: ln1_out -> residual_in, that layer's mlp_projection [N, C] */
    normalize_backward(
        pass,
        ARGS(normalize_backward, .dbranch = &d->mlp_projection, .dout = &d->ln1_out,
             .in = &a->residual_in, .mean = &a->ln1_mean, .rstd = &a->ln1_rstd,
             .weight = &w->ln1_weight, .dweight = &dw->ln1_weight, .dbias = &dw->ln1_bias,
             .dbranch_bias = l > 0 ? branch_bias(model, false, &dw[-1].mlp_projection_bias) : NULL,
             .track_amax = branch_amax(model, false, SITE_MLP_PROJECTION, l - 1),
             .branch = DROPOUT_MLP, .branch_layer = l - 1,
             .label = label_of_norm(model, ACTIVATION_residual_in, l, ACTIVATION_mlp_projection,
                                    l - 1)));
}

/* Adds the embedding gradient of one rank's rows. A frozen embedding has none. */
static void add_embedded(const struct pass *pass, const struct embedding_rows *rows, bool own) {
    struct model *model = pass->model;
    bool learned = model->shape.positions == POSITIONS_LEARNED;
    if (!model->dweights.wte.rank) return;
    OP(model->be, embedding_backward, .dtoken_table = &model->dweights.wte,
       .dposition_table = learned && own ? &model->dweights.wpe : NULL, .dout = &rows->dout,
       .tokens = rows->tokens, .positions = pass->batch.positions,
       .token_scale = model_embedding_scale(model),
       .sequence_length = model->shape.sequence_length);
}

static void embed_backward(const struct pass *pass, struct exchange *exchange) {
    struct model *model = pass->model;
    struct embedding_rows own = {model->activations.gradients.residual_in, pass->batch.tokens};
    if (model->dropout.residual > 0)
        OP(model->be, dropout, .out = &own.dout, .in = &own.dout, .inputs = pass->batch.inputs,
           .key = dropout_key(&model->dropout, DROPOUT_EMBEDDING, 0),
           .probability = model->dropout.residual);
    const struct ranks *ranks = model->be->collectives->ranks;
    if (!exchange_embedding_rows(exchange, &own)) {
        add_embedded(pass, &own, true);
        return;
    }
    for (int rank = 0; rank < ranks->size; rank++) {
        struct embedding_rows rows = exchange_embedding_rows_of(exchange, rank);
        add_embedded(pass, &rows, rank == ranks->rank);
    }
}

void model_backward(const struct pass *pass) {
    struct model *model = pass->model;
    struct activations *all = &model->activations;
    const struct activation_gradients *d = &all->gradients;
    const struct parameters *w = &model->weights, *dw = &model->dweights;
    struct exchange *exchange = pass->last ? model->exchange : NULL;
    int64_t last = model->shape.n_layer - 1;
    assert(pass->kind == PASS_TRAIN && pass->rows == model->shape.rows && pass->decode.rows == 0);
    /* heads_backward rotates row t of each sequence by position t. */
    assert(!pass->batch.positions || model->shape.positions == POSITIONS_LEARNED);
    exchange_gradients(exchange, model->shape.n_layer);
    layer_stream_begin(&model->gradient_stream.stream);
    if (model->shape.logits_scaling > 0)
        OP(model->be, dropout, .out = &d->lnf_out, .in = &d->lnf_out,
           .scale = 1 / model->shape.logits_scaling);
    normalize_backward(
        pass, ARGS(normalize_backward, .dbranch = &d->mlp_projection, .dout = &d->lnf_out,
                   .in = &all->residual_final, .mean = &all->lnf_mean, .rstd = &all->lnf_rstd,
                   .weight = &w->lnf_weight, .dweight = &dw->lnf_weight, .dbias = &dw->lnf_bias,
                   .dbranch_bias = branch_bias(model, false, &dw->layers[last].mlp_projection_bias),
                   .track_amax = branch_amax(model, false, SITE_MLP_PROJECTION, last), .last = true,
                   .branch = DROPOUT_MLP, .branch_layer = last,
                   .label = label_of_norm(model, ACTIVATION_residual_final, 0,
                                          ACTIVATION_mlp_projection, last)));
    for (int64_t l = last; l >= 0; l--) {
        masters_ready(&model->masters, model->be, l, l - 1);
        gradient_stream_ready(&model->gradient_stream, model->be, l, !pass->first);
        layer_stream_fetch(&model->saved, model->be, l - 1);
        layer_stream_wait(&model->saved, model->be, l);
        model_recompute(pass, l);
        layer_backward(pass, l);
        layer_stream_send(&model->gradient_stream.stream, model->be, l);
        exchange_gradients(exchange, l);
    }
    embed_backward(pass, exchange);
    layer_stream_end(&model->gradient_stream.stream, model->be);
    exchange_gradients(exchange, -1);
}
