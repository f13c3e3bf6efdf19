#include "model/core/backward.h"

#include "model/core/exchange.h"
#include "model/core/forward.h"
#include "model/core/linear.h"

/* Returns the trace label of an operation that writes the gradient of an activation. */
static struct trace_label label_of(const struct gpt *gpt, enum activation_id id, int64_t layer) {
    return (struct trace_label){1, true, {{id, (int)layer}}, 0, gpt->shape.rows};
}

/* Returns the label of a norm's backward pass, which writes the gradient of `id`, an activation of
 * the residual stream. It is also the gradient of `branch`, the output that was added there;
 * branch_layer < 0: none. */
static struct trace_label label_of_norm(const struct gpt *gpt, enum activation_id id, int64_t layer,
                                        enum activation_id branch, int64_t branch_layer) {
    struct trace_label label = label_of(gpt, id, layer);
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
    const struct tensor *weight;          /* [C] */
    const struct tensor *dweight, *dbias; /* += [C] */
    const struct tensor *dbranch_bias;    /* optional += [C], the sub-layer's last bias */
    struct amax *track_amax;              /* optional, of dbranch */
    bool last;               /* final norm: there is no gradient of the residual stream yet */
    enum dropout_use branch; /* use of dropout in the branch */
    int64_t branch_layer;    /* layer of the branch; -1: the first norm has none before it */
    struct trace_label label;
};

/* Computes the gradient of a branch with dropout from that of the residual stream. */
static void drop_backward(struct gpt *gpt, const struct normalize_backward_args *args) {
    struct trace_label label = args->label;
    label.count = 1;
    label.tensors[0] = label.tensors[1];
    if (args->branch_layer < 0) return;
    OP(gpt->be, dropout, .out = args->dbranch, .in = &gpt->activations.gradients.residual_in,
       .inputs = gpt->activations.inputs,
       .key = dropout_key(&gpt->dropout, args->branch, args->branch_layer, 0),
       .probability = gpt->dropout.residual, .track_amax = args->track_amax, .label = &label);
    if (args->dbranch_bias)
        OP(gpt->be, column_sums, .sums = args->dbranch_bias, .in = args->dbranch);
}

/* Adds the gradient through a norm to the gradient of the residual stream. */
static void normalize_backward(struct gpt *gpt, const struct normalize_backward_args *args) {
    const struct tensor *dresidual = &gpt->activations.gradients.residual_in;
    bool has_mean = gpt->shape.norm == NORM_LAYERNORM;
    bool drops = gpt->dropout.residual > 0;
    bool shared = gpt_branch_is_residual(gpt) || drops;
    struct trace_label label = args->label;
    if (drops) label.count = 1;
    OP(gpt->be, layernorm_backward, .din = dresidual, .din_lower = shared ? NULL : args->dbranch,
       .dweight = args->dweight, .dbias = has_mean ? args->dbias : NULL, .dout = args->dout,
       .in = args->in, .mean = has_mean ? args->mean->data : NULL, .rstd = args->rstd->data,
       .weight = args->weight, .weight_offset = shape_weight_offset(&gpt->shape),
       .dresidual = args->last ? NULL : dresidual, .track_amax = drops ? NULL : args->track_amax,
       .column_sums = drops ? NULL : args->dbranch_bias, .label = &label);
    if (drops) drop_backward(gpt, args);
}

/* Returns the amax to track while writing the output gradient of a quantized linear layer; NULL
 * below the first layer. */
static struct amax *amax_of(const struct gpt *gpt, enum autocast_site site, int64_t l) {
    if (l < 0) return NULL;
    return quantization_amax(&gpt->quantization, QUANTIZED_GRADIENT, site, l);
}

/* Return the amax of a branch's gradient and the gradient of its last bias for the operation that
 * writes the gradient of the linear layer's output: the backward pass of the norm after it, or else
 * that of the next norm on the residual stream. */
static struct amax *branch_amax(const struct gpt *gpt, bool own_norm, enum autocast_site site,
                                int64_t l) {
    return own_norm == gpt->shape.post_norm ? amax_of(gpt, site, l) : NULL;
}
static const struct tensor *branch_bias(const struct gpt *gpt, bool own_norm,
                                        const struct tensor *dbias) {
    return own_norm == gpt->shape.post_norm ? optional_tensor(dbias) : NULL;
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
static const struct tensor *branch_norm_backward(struct gpt *gpt, int64_t l,
                                                 const struct branch_norm_args *args) {
    const struct tensor *dbranch = activation_gradient(&gpt->activations, args->branch);
    const struct tensor *draw = activation_gradient(&gpt->activations, args->raw);
    const struct trace_label label = label_of(gpt, args->raw, l);
    if (!gpt->shape.post_norm) return dbranch;
    OP(gpt->be, layernorm_backward, .din = draw, .dweight = args->dweight, .dout = dbranch,
       .in = activation_tensor(&gpt->activations, args->raw, l), .rstd = args->rstd->data,
       .weight = args->weight, .weight_offset = shape_weight_offset(&gpt->shape),
       .track_amax = branch_amax(gpt, true, args->site, l),
       .column_sums = branch_bias(gpt, true, args->dbias), .label = &label);
    return draw;
}

/* Backward pass of prepare_heads, in place: from the gradient of attention's q and k to that of the
 * QKV matmul's output. */
static void heads_backward(const struct gpt *gpt, int64_t l) {
    const struct gpt_shape *s = &gpt->shape;
    const struct layer_parameters *w = &gpt->weights.layers[l], *dw = &gpt->dweights.layers[l];
    const struct tensor *dqkv = &gpt->activations.gradients.qkv;
    const struct tensor *angles = gpt_angles(gpt, l);
    if (s->qk_norm)
        OP(gpt->be, qk_norm_backward, .dinout = dqkv, .dq_weight = &dw->q_norm_weight,
           .dk_weight = &dw->k_norm_weight, .raw = &gpt->activations.layers[l].qk_raw,
           .q_weight = &w->q_norm_weight, .k_weight = &w->k_norm_weight, .angles = angles,
           .sequence_length = s->sequence_length, .heads = (int)s->n_head,
           .kv_heads = (int)s->n_kv_head, .epsilon = (float)s->norm_eps,
           .weight_offset = shape_weight_offset(s));
    else if (angles)
        OP(gpt->be, rope, .inout = dqkv, .angles = angles, .sequence_length = s->sequence_length,
           .heads = (int)(s->n_head + s->n_kv_head), .inverse = true);
}

/* Steps 7 and 6 of layer_forward: the gradients of mlp_fc, by way of mlp_gelu, and of ln2_out. */
static void mlp_backward(struct gpt *gpt, int64_t l) {
    const struct layer_parameters *w = &gpt->weights.layers[l], *dw = &gpt->dweights.layers[l];
    const struct layer_activations *a = &gpt->activations.layers[l];
    const struct activation_gradients *d = &gpt->activations.gradients;
    struct amax *dmlp_fc = amax_of(gpt, SITE_MLP_FC, l);
    const struct tensor *dmlp_fc_bias = optional_tensor(&dw->mlp_fc_bias);
    const bool gated = mlp_is_gated(gpt->shape.mlp);
    /* In a gated MLP the gradient of mlp_gelu overwrites the activation. */
    const struct trace_label fc_label = label_of(gpt, ACTIVATION_mlp_fc, l);
    const struct trace_label label = label_of(gpt, ACTIVATION_ln2_out, l);
    const struct tensor *dout = branch_norm_backward(
        gpt, l,
        ARGS(branch_norm, .raw = ACTIVATION_mlp_projection_raw, .branch = ACTIVATION_mlp_projection,
             .rstd = &a->post_mlp_norm_rstd, .weight = &w->post_mlp_norm_weight,
             .dweight = &dw->post_mlp_norm_weight, .dbias = &dw->mlp_projection_bias,
             .site = SITE_MLP_PROJECTION));
    linear_backward(
        gpt,
        ARGS(linear_backward, .site = SITE_MLP_PROJECTION, .layer = l,
             .dweight = &dw->mlp_projection_weight, .din = gated ? &a->mlp_gelu : &d->mlp_fc,
             .dout = dout, .in = &a->mlp_gelu, .weight = &w->mlp_projection_weight,
             .epilogue = gated ? MATMUL_STORE : MATMUL_DGELU,
             .pre_activation = gated ? NULL : &a->mlp_fc, .din_sums = gated ? NULL : dmlp_fc_bias,
             .track_amax = gated ? NULL : dmlp_fc, .label = gated ? NULL : &fc_label));
    if (gated)
        OP(gpt->be, gated_backward, .dgate_up = &d->mlp_fc, .dout = &a->mlp_gelu,
           .gate_up = &a->mlp_fc, .gate = gpt_gate(&gpt->shape), .track_amax = dmlp_fc,
           .label = &fc_label);
    linear_backward(gpt, ARGS(linear_backward, .site = SITE_MLP_FC, .layer = l,
                              .dweight = &dw->mlp_fc_weight, .dbias = gated ? dmlp_fc_bias : NULL,
                              .din = &d->ln2_out, .dout = &d->mlp_fc, .in = &a->ln2_out,
                              .weight = &w->mlp_fc_weight, .label = &label));
}

/* Step 3: the gradient of qkv. prepared: q and k passed a norm or rope, whose backward pass writes
 * what the bias gradient sums. */
static void attend_backward(struct gpt *gpt, int64_t l, bool prepared) {
    const struct gpt_shape *s = &gpt->shape;
    const struct layer_activations *a = &gpt->activations.layers[l];
    const struct activation_gradients *d = &gpt->activations.gradients;
    const struct trace_label label = label_of(gpt, ACTIVATION_qkv, l);
    struct tensor dqkv = tensor_split(&d->qkv, s->batch, s->sequence_length);
    struct tensor qkv = tensor_split(&a->qkv, s->batch, s->sequence_length);
    struct tensor out = tensor_split(&a->attention_out, s->batch, s->sequence_length);
    struct tensor dout = tensor_split(&d->attention_out, s->batch, s->sequence_length);
    OP(gpt->be, attention_backward, .dqkv = &dqkv, .dout = &dout, .qkv = &qkv, .out = &out,
       .lse = a->lse.data, .first_keys = gpt->activations.first_keys, .window = gpt_window(gpt, l),
       .scale = gpt_attention_scale(gpt), .softcap = (float)s->attention_softcap,
       .column_sums = prepared ? NULL : optional_tensor(&gpt->dweights.layers[l].qkv_bias),
       .heads = (int)s->n_head, .kv_heads = (int)s->n_kv_head, .label = &label);
}

/* Runs layer l backward, the steps of layer_forward in reverse order. Each norm also writes the
 * gradient of the branch that was added before it, so step 8 is that of the layer above. */
static void layer_backward(struct gpt *gpt, int64_t l) {
    const struct layer_parameters *w = &gpt->weights.layers[l], *dw = &gpt->dweights.layers[l];
    const struct layer_activations *a = &gpt->activations.layers[l];
    const struct activation_gradients *d = &gpt->activations.gradients;
    const bool prepared = gpt->shape.qk_norm || gpt->shape.positions == POSITIONS_ROPE;
    const struct trace_label out_label = label_of(gpt, ACTIVATION_attention_out, l);
    const struct trace_label label = label_of(gpt, ACTIVATION_ln1_out, l);

    /* 7, 6. mlp_projection [N, C] -> ln2_out [N, C] */
    mlp_backward(gpt, l);
    /* 5. ln2_out -> residual_mid, attention_projection [N, C] */
    normalize_backward(
        gpt, ARGS(normalize_backward, .dbranch = &d->attention_projection, .dout = &d->ln2_out,
                  .in = &a->residual_mid, .mean = &a->ln2_mean, .rstd = &a->ln2_rstd,
                  .weight = &w->ln2_weight, .dweight = &dw->ln2_weight, .dbias = &dw->ln2_bias,
                  .dbranch_bias = branch_bias(gpt, false, &dw->attention_projection_bias),
                  .track_amax = branch_amax(gpt, false, SITE_ATTENTION_PROJECTION, l),
                  .branch = DROPOUT_ATTENTION, .branch_layer = l,
                  .label = label_of_norm(gpt, ACTIVATION_residual_mid, l,
                                         ACTIVATION_attention_projection, l)));
    /* 4. attention_projection -> attention_out [N, H D] */
    const struct tensor *dprojection = branch_norm_backward(
        gpt, l,
        ARGS(branch_norm, .raw = ACTIVATION_attention_projection_raw,
             .branch = ACTIVATION_attention_projection, .rstd = &a->post_attention_norm_rstd,
             .weight = &w->post_attention_norm_weight, .dweight = &dw->post_attention_norm_weight,
             .dbias = &dw->attention_projection_bias, .site = SITE_ATTENTION_PROJECTION));
    linear_backward(gpt, ARGS(linear_backward, .site = SITE_ATTENTION_PROJECTION, .layer = l,
                              .dweight = &dw->attention_projection_weight, .din = &d->attention_out,
                              .dout = dprojection, .in = &a->attention_out,
                              .weight = &w->attention_projection_weight, .label = &out_label));
    /* 3, 2. attention_out -> qkv [N, (H + 2 H_kv) D] */
    attend_backward(gpt, l, prepared);
    heads_backward(gpt, l);
    /* 1. qkv -> ln1_out [N, C] */
    linear_backward(
        gpt, ARGS(linear_backward, .site = SITE_QKV, .layer = l, .dweight = &dw->qkv_weight,
                  .dbias = prepared ? optional_tensor(&dw->qkv_bias) : NULL, .din = &d->ln1_out,
                  .dout = &d->qkv, .in = &a->ln1_out, .weight = &w->qkv_weight, .label = &label));
    /* 8 of the layer below: ln1_out -> residual_in, that layer's mlp_projection [N, C] */
    normalize_backward(
        gpt,
        ARGS(normalize_backward, .dbranch = &d->mlp_projection, .dout = &d->ln1_out,
             .in = &a->residual_in, .mean = &a->ln1_mean, .rstd = &a->ln1_rstd,
             .weight = &w->ln1_weight, .dweight = &dw->ln1_weight, .dbias = &dw->ln1_bias,
             .dbranch_bias = l > 0 ? branch_bias(gpt, false, &dw[-1].mlp_projection_bias) : NULL,
             .track_amax = branch_amax(gpt, false, SITE_MLP_PROJECTION, l - 1),
             .branch = DROPOUT_MLP, .branch_layer = l - 1,
             .label =
                 label_of_norm(gpt, ACTIVATION_residual_in, l, ACTIVATION_mlp_projection, l - 1)));
}

/* Adds the embedding gradient of one rank's rows. A frozen embedding has none. */
static void add_embedded(struct gpt *gpt, const struct embedding_rows *rows, bool own) {
    bool learned = gpt->shape.positions == POSITIONS_LEARNED;
    if (!gpt->dweights.wte.rank) return;
    OP(gpt->be, embedding_backward, .dtoken_table = &gpt->dweights.wte,
       .dposition_table = learned && own ? &gpt->dweights.wpe : NULL, .dout = &rows->dout,
       .tokens = rows->tokens, .positions = gpt->activations.positions,
       .token_scale = gpt_embedding_scale(gpt), .sequence_length = gpt->shape.sequence_length);
}

static void embed_backward(struct gpt *gpt, struct exchange *exchange) {
    struct embedding_rows own = {gpt->activations.gradients.residual_in, gpt->activations.tokens};
    if (gpt->dropout.residual > 0)
        OP(gpt->be, dropout, .out = &own.dout, .in = &own.dout, .inputs = gpt->activations.inputs,
           .key = dropout_key(&gpt->dropout, DROPOUT_EMBEDDING, 0, 0),
           .probability = gpt->dropout.residual);
    const struct ranks *ranks = gpt->be->collectives->ranks;
    if (!exchange_embedding_rows(exchange, &own)) {
        add_embedded(gpt, &own, true);
        return;
    }
    for (int rank = 0; rank < ranks->size; rank++) {
        struct embedding_rows rows = exchange_embedding_rows_of(exchange, rank);
        add_embedded(gpt, &rows, rank == ranks->rank);
    }
}

void gpt_backward(struct gpt *gpt) {
    struct activations *all = &gpt->activations;
    const struct activation_gradients *d = &all->gradients;
    const struct parameters *w = &gpt->weights, *dw = &gpt->dweights;
    struct exchange *exchange = gpt->last_micro_batch ? gpt->exchange : NULL;
    int64_t last = gpt->shape.n_layer - 1;
    exchange_gradients(exchange, gpt->shape.n_layer);
    layer_stream_begin(&gpt->gradient_stream.stream);
    normalize_backward(
        gpt, ARGS(normalize_backward, .dbranch = &d->mlp_projection, .dout = &d->lnf_out,
                  .in = &all->residual_final, .mean = &all->lnf_mean, .rstd = &all->lnf_rstd,
                  .weight = &w->lnf_weight, .dweight = &dw->lnf_weight, .dbias = &dw->lnf_bias,
                  .dbranch_bias = branch_bias(gpt, false, &dw->layers[last].mlp_projection_bias),
                  .track_amax = branch_amax(gpt, false, SITE_MLP_PROJECTION, last), .last = true,
                  .branch = DROPOUT_MLP, .branch_layer = last,
                  .label = label_of_norm(gpt, ACTIVATION_residual_final, 0,
                                         ACTIVATION_mlp_projection, last)));
    for (int64_t l = last; l >= 0; l--) {
        masters_ready(&gpt->masters, gpt->be, l, l - 1);
        gradient_stream_ready(&gpt->gradient_stream, gpt->be, l, gpt->accumulate);
        layer_stream_fetch(&gpt->saved, gpt->be, l - 1);
        layer_stream_wait(&gpt->saved, gpt->be, l);
        gpt_recompute(gpt, l);
        layer_backward(gpt, l);
        layer_stream_send(&gpt->gradient_stream.stream, gpt->be, l);
        exchange_gradients(exchange, l);
    }
    embed_backward(gpt, exchange);
    layer_stream_end(&gpt->gradient_stream.stream, gpt->be);
    exchange_gradients(exchange, -1);
}
