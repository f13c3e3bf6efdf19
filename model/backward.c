#include "model/backward.h"

#include "model/exchange.h"
#include "model/forward.h"

/* The next operation writes the gradient of an activation. */
static void tell(struct gpt *gpt, enum activation_id id, int64_t layer) {
    gpt->written = (struct written){1, true, {{id, (int)layer}}, 0, gpt->shape.rows};
}

/* The norm of layer l's `id`, an activation of the residual stream: its gradient, and with it that
 * of what was added there, `branch` of a layer; below the first layer nothing was. */
static void tell_norm(struct gpt *gpt, enum activation_id id, int64_t layer,
                      enum activation_id branch, int64_t branch_layer) {
    tell(gpt, id, layer);
    if (branch_layer < 0) return;
    gpt->written.count = 2;
    gpt->written.tensors[1].id = branch;
    gpt->written.tensors[1].layer = (int)branch_layer;
}

/* The gradient of x through a norm joins the one that flows along the residual stream;
 * dbranch is what the sub-layer below reads its gradient in, and dbranch_bias the gradient of its
 * last bias; NULL below the first. */
static void normalize_backward(struct gpt *gpt, const struct tensor *dbranch,
                               const struct tensor *dout, const struct tensor *in,
                               const struct tensor *mean, const struct tensor *rstd,
                               const struct tensor *weight, const struct tensor *dweight,
                               const struct tensor *dbias, const struct tensor *dbranch_bias,
                               struct magnitude *magnitude, bool first) {
    const struct tensor *dresidual = &gpt->activations.gradients.residual_in;
    bool has_mean = gpt->shape.norm == NORM_LAYERNORM;
    bool shared = precision_branch_is_residual(&gpt->precision);
    OP(gpt->be, layernorm_backward, .din = dresidual, .din_lower = shared ? NULL : dbranch,
       .dweight = dweight, .dbias = has_mean ? dbias : NULL, .dout = dout, .in = in,
       .mean = has_mean ? mean->data : NULL, .rstd = rstd->data, .weight = weight,
       .dresidual = first ? NULL : dresidual, .magnitude = magnitude,
       .column_sums = dbranch_bias && dbranch_bias->rank ? dbranch_bias : NULL);
}

/* For whoever writes the gradient of a linear layer of 8 bits; NULL below the first. */
static struct magnitude *magnitude_of(const struct gpt *gpt, enum autocast_site site, int64_t l) {
    if (l < 0) return NULL;
    return quantization_magnitude(&gpt->quantization, QUANTIZED_GRADIENT, site, l);
}

/* A linear layer of a block, out = in weight + bias. */
struct linear {
    enum autocast_site site;
    int64_t layer;
    const struct tensor *dweight;            /* added to or not */
    const struct tensor *dbias;              /* added to; NULL: by whoever wrote dout */
    const struct tensor *din;                /* times gelu'(dgelu_in), if that is given */
    const struct tensor *dout, *in, *weight; /* in: not read any more when din is written */
    const struct tensor *dgelu_in;           /* optional */
    const struct tensor *din_sums;           /* optional, with dgelu_in: += column sums of din */
    struct magnitude *magnitude;             /* of din, with dgelu_in */
};

/* An operand as the product reads it. What is looked at again makes no record. */
static struct operand operand_of(const struct gpt *gpt, const struct linear *layer,
                                 const struct quantized_operand *operand) {
    struct quantized_operand named = *operand;
    named.site = layer->site, named.layer = layer->layer;
    if (!gpt->precision.eight[layer->site]) return (struct operand){.values = *operand->in};
    return quantization_round(&gpt->quantization, &named);
}

static void weight_backward(const struct gpt *gpt, const struct linear *layer,
                            const struct operand *dout) {
    bool linear = gpt->shape.linear;
    bool eight = gpt->precision.eight[layer->site];
    struct operand in = {.values = *layer->in};
    if (eight)
        in = quantization_input_again(&gpt->quantization, layer->site, layer->layer, layer->in);
    const struct operand *a = linear ? dout : &in, *b = linear ? &in : dout;
    OP(gpt->be, matmul, .out = layer->dweight, .a = operand_over_rows(a), .a_scales = a->scales,
       .transpose_a = !operand_is_transposed(a), .b = operand_over_rows(b), .b_scales = b->scales,
       .transpose_b = operand_is_transposed(b), .accumulate = gpt->accumulate,
       .scales_by_vector = quantization_by_vector(&gpt->quantization));
}

/* A bias whose gradient is the column sums of what an operation writes; NULL if there is none. */
static const struct tensor *if_there(const struct tensor *dbias) {
    return dbias->rank ? dbias : NULL;
}

/* dweight and dbias, then din, which is what was told about. */
static void linear_backward(struct gpt *gpt, struct linear layer) {
    bool linear = gpt->shape.linear, by_vector = quantization_by_vector(&gpt->quantization);
    struct written written = gpt->written;
    gpt->written = (struct written){0};
    if (layer.dbias) OP(gpt->be, column_sums, .sums = layer.dbias, .in = layer.dout);
    struct quantized_operand gradient = {
        .kind = QUANTIZED_GRADIENT, .in = layer.dout, .over = by_vector ? OVER_ROWS : OVER_BOTH};
    struct operand dout = operand_of(gpt, &layer, &gradient);
    weight_backward(gpt, &layer, &dout);
    gradient.over = OVER_COLUMNS, gradient.again = true;
    if (gpt->precision.eight[layer.site] && by_vector) dout = operand_of(gpt, &layer, &gradient);
    struct operand weight =
        operand_of(gpt, &layer,
                   &(struct quantized_operand){.kind = QUANTIZED_WEIGHT,
                                               .in = layer.weight,
                                               .over = linear ? OVER_ROWS : OVER_COLUMNS,
                                               .again = true});
    gpt->written = written;
    OP(gpt->be, matmul, .out = layer.din, .a = &dout.values, .a_scales = dout.scales,
       .b = linear ? operand_over_rows(&weight) : &weight.values, .b_scales = weight.scales,
       .transpose_b = !linear || operand_is_transposed(&weight), .dgelu_in = layer.dgelu_in,
       .magnitude = layer.magnitude, .column_sums = layer.din_sums, .scales_by_vector = by_vector);
}

static void mlp_backward(struct gpt *gpt, int64_t l) {
    const struct layer_parameters *w = &gpt->weights.layers[l], *dw = &gpt->dweights.layers[l];
    const struct layer_activations *a = &gpt->activations.layers[l];
    const struct activation_gradients *d = &gpt->activations.gradients;
    struct magnitude *dmlp_fc = magnitude_of(gpt, SITE_MLP_FC, l);
    const struct tensor *dmlp_fc_bias = if_there(&dw->mlp_fc_bias);
    bool gated = gpt->shape.mlp == MLP_SWIGLU;
    struct linear projection = {
        .site = SITE_MLP_PROJECTION,
        .layer = l,
        .dweight = &dw->mlp_projection_weight,
        .din = gated ? &a->mlp_gelu : &d->mlp_fc, /* a tensor takes the gradient of its own */
        .dout = &d->mlp_projection,
        .in = &a->mlp_gelu,
        .weight = &w->mlp_projection_weight,
        .dgelu_in = gated ? NULL : &a->mlp_fc,
        .din_sums = gated ? NULL : dmlp_fc_bias,
        .magnitude = gated ? NULL : dmlp_fc,
    };
    if (!gated) tell(gpt, ACTIVATION_mlp_fc, l);
    linear_backward(gpt, projection);
    if (gated) {
        tell(gpt, ACTIVATION_mlp_fc, l);
        OP(gpt->be, swiglu_backward, .dgate_up = &d->mlp_fc, .dout = &a->mlp_gelu,
           .gate_up = &a->mlp_fc, .magnitude = dmlp_fc);
    }
    tell(gpt, ACTIVATION_ln2_out, l);
    linear_backward(gpt, (struct linear){.site = SITE_MLP_FC,
                                         .layer = l,
                                         .dweight = &dw->mlp_fc_weight,
                                         .dbias = gated ? dmlp_fc_bias : NULL,
                                         .din = &d->ln2_out,
                                         .dout = &d->mlp_fc,
                                         .in = &a->ln2_out,
                                         .weight = &w->mlp_fc_weight});
}

/* From the gradient of q and k as attention reads them to that of the product they come from. */
static void heads_backward(const struct gpt *gpt, int64_t l) {
    const struct gpt_shape *s = &gpt->shape;
    const struct layer_parameters *w = &gpt->weights.layers[l], *dw = &gpt->dweights.layers[l];
    const struct tensor *dqkv = &gpt->activations.gradients.qkv;
    bool turned = s->positions == POSITIONS_ROPE;
    if (s->qk_norm)
        OP(gpt->be, qk_norm_backward, .dinout = dqkv, .dq_weight = &dw->q_norm_weight,
           .dk_weight = &dw->k_norm_weight, .raw = &gpt->activations.layers[l].qk_raw,
           .q_weight = &w->q_norm_weight, .k_weight = &w->k_norm_weight,
           .angles = turned ? &gpt->angles : NULL, .sequence_length = s->sequence_length,
           .heads = (int)s->n_head, .kv_heads = (int)s->n_kv_head, .epsilon = (float)s->norm_eps);
    else if (turned)
        OP(gpt->be, rope, .inout = dqkv, .angles = &gpt->angles,
           .sequence_length = s->sequence_length, .heads = (int)(s->n_head + s->n_kv_head),
           .inverse = true);
}

static void attention_block_backward(struct gpt *gpt, int64_t l) {
    const struct gpt_shape *s = &gpt->shape;
    const struct layer_parameters *w = &gpt->weights.layers[l], *dw = &gpt->dweights.layers[l];
    const struct layer_activations *a = &gpt->activations.layers[l];
    const struct activation_gradients *d = &gpt->activations.gradients;
    /* Then attention does not write the gradient of the product itself. */
    bool prepared = s->qk_norm || s->positions == POSITIONS_ROPE;
    tell(gpt, ACTIVATION_attention_out, l);
    linear_backward(gpt, (struct linear){.site = SITE_ATTENTION_PROJECTION,
                                         .layer = l,
                                         .dweight = &dw->attention_projection_weight,
                                         .din = &d->attention_out,
                                         .dout = &d->attention_projection,
                                         .in = &a->attention_out,
                                         .weight = &w->attention_projection_weight});
    struct tensor dqkv = tensor_split(&d->qkv, s->batch, s->sequence_length);
    struct tensor qkv = tensor_split(&a->qkv, s->batch, s->sequence_length);
    struct tensor out = tensor_split(&a->attention_out, s->batch, s->sequence_length);
    struct tensor dout = tensor_split(&d->attention_out, s->batch, s->sequence_length);
    tell(gpt, ACTIVATION_qkv, l);
    OP(gpt->be, attention_backward, .dqkv = &dqkv, .dout = &dout, .qkv = &qkv, .out = &out,
       .lse = a->lse.data, .column_sums = prepared ? NULL : if_there(&dw->qkv_bias),
       .heads = (int)s->n_head, .kv_heads = (int)s->n_kv_head);
    heads_backward(gpt, l);
    tell(gpt, ACTIVATION_ln1_out, l);
    linear_backward(gpt, (struct linear){.site = SITE_QKV,
                                         .layer = l,
                                         .dweight = &dw->qkv_weight,
                                         .dbias = prepared ? if_there(&dw->qkv_bias) : NULL,
                                         .din = &d->ln1_out,
                                         .dout = &d->qkv,
                                         .in = &a->ln1_out,
                                         .weight = &w->qkv_weight});
}

/* What one rank embedded, this one or another. */
static void add_embedded(struct gpt *gpt, const struct embedded *rows, bool own) {
    bool learned = gpt->shape.positions == POSITIONS_LEARNED;
    OP(gpt->be, embedding_backward, .dtoken_table = &gpt->dweights.wte,
       .dposition_table = learned && own ? &gpt->dweights.wpe : NULL, .dout = &rows->dout,
       .tokens = rows->tokens, .sequence_length = gpt->shape.sequence_length);
}

static void embed_backward(struct gpt *gpt, struct exchange *exchange) {
    struct embedded own = {gpt->activations.gradients.residual_in, gpt->activations.tokens};
    const struct ranks *ranks = gpt->be->collectives->ranks;
    if (!exchange_embedded(exchange, &own)) {
        add_embedded(gpt, &own, true);
        return;
    }
    for (int rank = 0; rank < ranks->size; rank++) {
        struct embedded rows = exchange_embedded_of(exchange, rank);
        add_embedded(gpt, &rows, rank == ranks->rank);
    }
}

void gpt_backward(struct gpt *gpt) {
    struct activations *all = &gpt->activations;
    const struct activation_gradients *d = &all->gradients;
    const struct parameters *w = &gpt->weights, *dw = &gpt->dweights;
    struct exchange *exchange = gpt->completes ? gpt->exchange : NULL;
    int64_t last = gpt->shape.n_layer - 1;
    exchange_gradients(exchange, gpt->shape.n_layer);
    tell_norm(gpt, ACTIVATION_residual_final, 0, ACTIVATION_mlp_projection, last);
    normalize_backward(gpt, &d->mlp_projection, &d->lnf_out, &all->residual_final, &all->lnf_mean,
                       &all->lnf_rstd, &w->lnf_weight, &dw->lnf_weight, &dw->lnf_bias,
                       &dw->layers[last].mlp_projection_bias,
                       magnitude_of(gpt, SITE_MLP_PROJECTION, last), true);
    for (int64_t l = last; l >= 0; l--) {
        struct layer_activations *a = &all->layers[l];
        const struct layer_parameters *lw = &w->layers[l], *ldw = &dw->layers[l];
        masters_cast(&gpt->masters, gpt->be, l);
        gpt_recompute(gpt, l);
        mlp_backward(gpt, l);
        tell_norm(gpt, ACTIVATION_residual_mid, l, ACTIVATION_attention_projection, l);
        normalize_backward(gpt, &d->attention_projection, &d->ln2_out, &a->residual_mid,
                           &a->ln2_mean, &a->ln2_rstd, &lw->ln2_weight, &ldw->ln2_weight,
                           &ldw->ln2_bias, &ldw->attention_projection_bias,
                           magnitude_of(gpt, SITE_ATTENTION_PROJECTION, l), false);
        attention_block_backward(gpt, l);
        tell_norm(gpt, ACTIVATION_residual_in, l, ACTIVATION_mlp_projection, l - 1);
        normalize_backward(gpt, &d->mlp_projection, &d->ln1_out, &a->residual_in, &a->ln1_mean,
                           &a->ln1_rstd, &lw->ln1_weight, &ldw->ln1_weight, &ldw->ln1_bias,
                           l > 0 ? &dw->layers[l - 1].mlp_projection_bias : NULL,
                           magnitude_of(gpt, SITE_MLP_PROJECTION, l - 1), false);
        exchange_gradients(exchange, l);
    }
    embed_backward(gpt, exchange);
    exchange_gradients(exchange, -1);
}
