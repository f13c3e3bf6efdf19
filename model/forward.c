#include "model/forward.h"

#include "model/exchange.h"

#include <assert.h>

/* The rows of the batch in place that a pass computes: all, those of a prompt, or one. */
struct pass {
    struct gpt *gpt;
    int64_t first, rows;
    bool decodes; /* the one row attends to what earlier passes have kept */
    bool keeps;   /* its keys and values are for later ones */
    bool again;   /* for the backward pass: nobody is told twice */
};

static void tell(const struct pass *pass, struct written written) {
    written.first_row = pass->first;
    written.rows = pass->rows;
    pass->gpt->written = pass->again ? (struct written){0} : written;
}

/* The next operation writes one activation, or a sum and its layer norm. */
static void tell_one(const struct pass *pass, enum activation_id id, int64_t layer) {
    tell(pass, (struct written){.count = 1, .tensors = {{id, (int)layer}}});
}

static void tell_two(const struct pass *pass, enum activation_id first, enum activation_id second,
                     int64_t layer) {
    tell(pass,
         (struct written){.count = 2, .tensors = {{first, (int)layer}, {second, (int)layer}}});
}

static struct tensor rows_of(const struct pass *pass, const struct tensor *tensor) {
    return tensor_slice(tensor, pass->first, pass->rows);
}

static float *statistics_of(const struct pass *pass, const struct tensor *tensor) {
    return tensor_range(tensor, pass->first, pass->rows).data;
}

/* Scratch holds only the rows of the pass. */
static struct tensor scratch_of(const struct pass *pass, const struct tensor *tensor) {
    return tensor_slice(tensor, 0, pass->rows);
}

/* A bias that the model has, or NULL. */
static const struct tensor *if_there(const struct tensor *bias) {
    return bias->rank ? bias : NULL;
}

/* A linear layer of a block: out = in weight + bias, or the GELU of that, which goes to gelu_in. */
struct linear {
    enum autocast_site site;
    int64_t layer;
    const struct tensor *out, *in, *weight, *bias, *gelu_in;
    struct magnitude *magnitude; /* of out, if that is a GELU */
};

/* What was told is of the product, not of what rounds its operands. */
static void linear_forward(const struct pass *pass, const struct linear *layer) {
    struct gpt *gpt = pass->gpt;
    struct operand in = {.values = *layer->in}, weight = {.values = *layer->weight};
    bool linear = gpt->shape.linear;
    if (gpt->precision.eight[layer->site]) {
        struct written written = gpt->written;
        struct quantized_operand operand = {.kind = QUANTIZED_WEIGHT,
                                            .site = layer->site,
                                            .layer = layer->layer,
                                            .in = layer->weight,
                                            .over = linear ? OVER_COLUMNS : OVER_ROWS,
                                            .again = pass->again};
        gpt->written = (struct written){0};
        in = quantization_input(&gpt->quantization, layer->site, layer->layer, layer->in,
                                pass->again);
        weight = quantization_round(&gpt->quantization, &operand);
        gpt->written = written;
    }
    OP(gpt->be, matmul, .out = layer->out, .a = &in.values, .a_scales = in.scales,
       .b = linear ? &weight.values : operand_over_rows(&weight), .b_scales = weight.scales,
       .bias = if_there(layer->bias), .gelu_in = layer->gelu_in,
       .transpose_b = linear || operand_is_transposed(&weight), .magnitude = layer->magnitude,
       .fast_accumulation = gpt->quantization.fast_accumulation,
       .scales_by_vector = quantization_by_vector(&gpt->quantization));
}

/* Norms and their statistics: RMS norm has no means. */
static float *means_of(const struct pass *pass, const struct tensor *mean) {
    return pass->gpt->shape.norm == NORM_LAYERNORM ? statistics_of(pass, mean) : NULL;
}

/* For whoever writes the input of a linear layer of 8 bits. */
static struct magnitude *magnitude_of(const struct pass *pass, enum autocast_site site, int64_t l) {
    return quantization_magnitude(&pass->gpt->quantization, QUANTIZED_INPUT, site, l);
}

/* A sub-layer's result is added to the residual stream and normalized for the next in one go. */
static void add_and_normalize(const struct pass *pass, const struct tensor *out,
                              const struct tensor *sum, const struct tensor *mean,
                              const struct tensor *rstd, const struct tensor *in,
                              const struct tensor *residual, const struct tensor *weight,
                              const struct tensor *bias, struct magnitude *magnitude) {
    struct tensor branch = scratch_of(pass, in), out_rows = rows_of(pass, out);
    struct tensor sum_rows = rows_of(pass, sum), residual_rows = rows_of(pass, residual);
    OP(pass->gpt->be, layernorm_forward, .out = &out_rows, .sum = &sum_rows,
       .mean = means_of(pass, mean), .rstd = statistics_of(pass, rstd), .in = &branch,
       .residual = &residual_rows, .weight = weight, .bias = if_there(bias),
       .epsilon = (float)pass->gpt->shape.norm_eps, .magnitude = magnitude);
}

/* Positions of the rows of a pass in a table of them: one that begins inside a sequence finds its
 * own in row 0 of the table it is given. */
static struct tensor positions_of(const struct pass *pass, const struct tensor *table,
                                  int64_t *length) {
    const struct gpt_shape *s = &pass->gpt->shape;
    *length = pass->rows < s->sequence_length ? pass->rows : s->sequence_length;
    return tensor_slice(table, pass->first, *length);
}

/* The heads of q and k, which stand side by side, are normalized, turned, or both. */
static void prepare_heads(const struct pass *pass, const struct tensor *qkv, int64_t l) {
    const struct gpt_shape *s = &pass->gpt->shape;
    const struct layer_parameters *w = &pass->gpt->weights.layers[l];
    struct tensor angles, raw;
    int64_t length = s->sequence_length;
    bool turns = s->positions == POSITIONS_ROPE;
    if (turns) angles = positions_of(pass, &pass->gpt->angles, &length);
    if (s->qk_norm) {
        raw = rows_of(pass, &pass->gpt->activations.layers[l].qk_raw);
        tell_two(pass, ACTIVATION_qk_raw, ACTIVATION_qkv, l);
        OP(pass->gpt->be, qk_norm_forward, .inout = qkv, .raw = &raw, .q_weight = &w->q_norm_weight,
           .k_weight = &w->k_norm_weight, .angles = turns ? &angles : NULL,
           .sequence_length = length, .heads = (int)s->n_head, .kv_heads = (int)s->n_kv_head,
           .epsilon = (float)s->norm_eps);
    } else if (turns) {
        OP(pass->gpt->be, rope, .inout = qkv, .angles = &angles, .sequence_length = length,
           .heads = (int)(s->n_head + s->n_kv_head));
    }
}

/* For rows that are decoded later, unless qkv itself stays. */
static void keep_keys_and_values(const struct pass *pass, const struct tensor *qkv, int64_t l) {
    struct tensor cache = gpt_cache(pass->gpt, l), rows = rows_of(pass, &cache);
    if (pass->gpt->has_cache) OP(pass->gpt->be, copy_last_columns, .out = &rows, .in = qkv);
}

static void attend(const struct pass *pass, int64_t l) {
    struct layer_activations *a = &pass->gpt->activations.layers[l];
    struct backend *be = pass->gpt->be;
    const struct gpt_shape *s = &pass->gpt->shape;
    struct tensor out = rows_of(pass, &a->attention_out);
    if (pass->decodes) {
        struct tensor cache = gpt_cache(pass->gpt, l), q = rows_of(pass, &a->qkv);
        cache = tensor_split(&cache, 1, tensor_rows(&cache));
        OP(be, attention_decode, .out = &out, .q = &q, .cache = &cache, .position = pass->first,
           .heads = (int)s->n_head, .kv_heads = (int)s->n_kv_head);
    } else {
        struct tensor qkv = rows_of(pass, &a->qkv);
        qkv = tensor_split(&qkv, s->batch, pass->rows / s->batch);
        out = tensor_split(&out, s->batch, pass->rows / s->batch);
        OP(be, attention_forward, .out = &out, .lse = a->lse.data, .qkv = &qkv,
           .heads = (int)s->n_head, .kv_heads = (int)s->n_kv_head);
    }
}

static void attention_block(const struct pass *pass, int64_t l) {
    const struct layer_parameters *w = &pass->gpt->weights.layers[l];
    struct layer_activations *a = &pass->gpt->activations.layers[l];
    struct tensor in = rows_of(pass, &a->ln1_out), qkv = rows_of(pass, &a->qkv);
    struct tensor out = rows_of(pass, &a->attention_out);
    struct tensor projection = scratch_of(pass, &a->attention_projection);
    if (!pass->gpt->shape.qk_norm) tell_one(pass, ACTIVATION_qkv, l);
    linear_forward(
        pass, &(struct linear){SITE_QKV, l, &qkv, &in, &w->qkv_weight, &w->qkv_bias, NULL, NULL});
    prepare_heads(pass, &qkv, l);
    if (pass->keeps) keep_keys_and_values(pass, &qkv, l);
    tell_one(pass, ACTIVATION_attention_out, l);
    attend(pass, l);
    tell_one(pass, ACTIVATION_attention_projection, l);
    linear_forward(pass, &(struct linear){SITE_ATTENTION_PROJECTION, l, &projection, &out,
                                          &w->attention_projection_weight,
                                          &w->attention_projection_bias, NULL, NULL});
}

static void mlp_hidden(const struct pass *pass, int64_t l) {
    const struct layer_parameters *w = &pass->gpt->weights.layers[l];
    struct layer_activations *a = &pass->gpt->activations.layers[l];
    struct tensor in = rows_of(pass, &a->ln2_out), hidden = rows_of(pass, &a->mlp_fc);
    struct tensor out = rows_of(pass, &a->mlp_gelu);
    if (pass->gpt->shape.mlp == MLP_SWIGLU) {
        tell_one(pass, ACTIVATION_mlp_fc, l);
        linear_forward(pass, &(struct linear){SITE_MLP_FC, l, &hidden, &in, &w->mlp_fc_weight,
                                              &w->mlp_fc_bias, NULL, NULL});
        tell_one(pass, ACTIVATION_mlp_gelu, l);
        OP(pass->gpt->be, swiglu_forward, .out = &out, .gate_up = &hidden,
           .magnitude = magnitude_of(pass, SITE_MLP_PROJECTION, l));
    } else {
        tell_two(pass, ACTIVATION_mlp_fc, ACTIVATION_mlp_gelu, l);
        linear_forward(pass, &(struct linear){SITE_MLP_FC, l, &out, &in, &w->mlp_fc_weight,
                                              &w->mlp_fc_bias, &hidden,
                                              magnitude_of(pass, SITE_MLP_PROJECTION, l)});
    }
}

static void mlp_block(const struct pass *pass, int64_t l) {
    const struct layer_parameters *w = &pass->gpt->weights.layers[l];
    struct layer_activations *a = &pass->gpt->activations.layers[l];
    struct tensor gelu = rows_of(pass, &a->mlp_gelu);
    struct tensor projection = scratch_of(pass, &a->mlp_projection);
    mlp_hidden(pass, l);
    tell_one(pass, ACTIVATION_mlp_projection, l);
    linear_forward(pass, &(struct linear){SITE_MLP_PROJECTION, l, &projection, &gelu,
                                          &w->mlp_projection_weight, &w->mlp_projection_bias, NULL,
                                          NULL});
}

/* The first norm of a layer, of what its input was stored as. */
static void normalize_in(const struct pass *pass, int64_t l) {
    const struct layer_parameters *w = &pass->gpt->weights.layers[l];
    struct layer_activations *a = &pass->gpt->activations.layers[l];
    struct tensor out = rows_of(pass, &a->ln1_out), in = rows_of(pass, &a->residual_in);
    tell_one(pass, ACTIVATION_ln1_out, l);
    OP(pass->gpt->be, layernorm_forward, .out = &out, .mean = means_of(pass, &a->ln1_mean),
       .rstd = statistics_of(pass, &a->ln1_rstd), .in = &in, .weight = &w->ln1_weight,
       .bias = if_there(&w->ln1_bias), .epsilon = (float)pass->gpt->shape.norm_eps,
       .magnitude = magnitude_of(pass, SITE_QKV, l));
}

static void embed(const struct pass *pass) {
    struct gpt *gpt = pass->gpt;
    struct tensor residual = rows_of(pass, &gpt->activations.layers[0].residual_in), positions;
    bool learned = gpt->shape.positions == POSITIONS_LEARNED;
    int64_t length = gpt->shape.sequence_length;
    if (learned) positions = positions_of(pass, &gpt->weights.wpe, &length);
    tell_one(pass, ACTIVATION_residual_in, 0);
    OP(gpt->be, embedding_forward, .out = &residual,
       .tokens = gpt->activations.tokens ? gpt->activations.tokens + pass->first : NULL,
       .token_table = &gpt->token_table, .token_remainder = gpt->token_remainder,
       .position_table = learned ? &positions : NULL, .sequence_length = length);
    normalize_in(pass, 0);
}

static void normalize_mid(const struct pass *pass, int64_t l) {
    const struct layer_parameters *w = &pass->gpt->weights.layers[l];
    struct layer_activations *a = &pass->gpt->activations.layers[l];
    tell_two(pass, ACTIVATION_residual_mid, ACTIVATION_ln2_out, l);
    add_and_normalize(pass, &a->ln2_out, &a->residual_mid, &a->ln2_mean, &a->ln2_rstd,
                      &a->attention_projection, &a->residual_in, &w->ln2_weight, &w->ln2_bias,
                      magnitude_of(pass, SITE_MLP_FC, l));
}

/* The end of layer l: the first norm of the next one, or the last of all. */
static void normalize_out(const struct pass *pass, int64_t l) {
    struct gpt *gpt = pass->gpt;
    struct activations *all = &gpt->activations;
    struct layer_activations *a = &all->layers[l], *next = &all->layers[l + 1];
    const struct layer_parameters *next_w = &gpt->weights.layers[l + 1];
    if (l == gpt->shape.n_layer - 1) {
        tell_two(pass, ACTIVATION_residual_final, ACTIVATION_lnf_out, 0);
        add_and_normalize(pass, &all->lnf_out, &all->residual_final, &all->lnf_mean, &all->lnf_rstd,
                          &a->mlp_projection, &a->residual_mid, &gpt->weights.lnf_weight,
                          &gpt->weights.lnf_bias, NULL);
    } else {
        tell_two(pass, ACTIVATION_residual_in, ACTIVATION_ln1_out, l + 1);
        add_and_normalize(pass, &next->ln1_out, &next->residual_in, &next->ln1_mean,
                          &next->ln1_rstd, &a->mlp_projection, &a->residual_mid,
                          &next_w->ln1_weight, &next_w->ln1_bias,
                          magnitude_of(pass, SITE_QKV, l + 1));
    }
}

static void run(const struct pass *pass) {
    pass->gpt->written = (struct written){0};
    quantization_begin_pass(&pass->gpt->quantization);
    exchange_weights_arrived(pass->gpt->exchange, -1);
    embed(pass);
    for (int64_t l = 0; l < pass->gpt->shape.n_layer; l++) {
        exchange_weights_arrived(pass->gpt->exchange, l);
        masters_cast(&pass->gpt->masters, pass->gpt->be, l);
        attention_block(pass, l);
        normalize_mid(pass, l);
        mlp_block(pass, l);
        normalize_out(pass, l);
    }
}

void gpt_recompute(struct gpt *gpt, int64_t layer) {
    struct pass pass = {gpt, 0, gpt->shape.rows, .again = true};
    struct layer_activations *a = &gpt->activations.layers[layer];
    if (gpt->sharing == SHARE_NOTHING || layer == gpt->shape.n_layer - 1) return;
    if (gpt->sharing == SHARE_LAYER) {
        /* What was normalized is the sum as it was stored, so its parts are not needed. */
        normalize_in(&pass, layer);
        attention_block(&pass, layer);
        normalize_mid(&pass, layer);
        mlp_hidden(&pass, layer);
    } else if (gpt->shape.mlp == MLP_SWIGLU) {
        OP(gpt->be, swiglu_forward, .out = &a->mlp_gelu, .gate_up = &a->mlp_fc);
    } else if (gpt->be->device.gelu_of_stored || gpt->precision.eight[SITE_MLP_FC]) {
        OP(gpt->be, gelu_forward, .out = &a->mlp_gelu, .in = &a->mlp_fc);
    } else {
        mlp_hidden(&pass, layer);
    }
}

void gpt_forward(struct gpt *gpt) {
    run(&(struct pass){gpt, 0, gpt->shape.rows, .keeps = false});
}

void gpt_prefill(struct gpt *gpt, int64_t rows) {
    assert(gpt->shape.batch == 1);
    run(&(struct pass){gpt, 0, rows, .keeps = true});
}

void gpt_decode(struct gpt *gpt, int64_t row) {
    assert(gpt->shape.batch == 1);
    run(&(struct pass){gpt, row, 1, .decodes = true, .keeps = true});
}

/* The next operation writes rows of an activation of the model, or of its gradient. */
static void tell_rows(struct gpt *gpt, enum activation_id id, bool gradient, int64_t first,
                      int64_t rows) {
    gpt->written = (struct written){1, gradient, {{id, 0}}, first, rows};
}

/* The head's part of gradients: of lnf_out, rows from first on, and of its weights. */
static void loss_backward(struct gpt *gpt, const struct tensor *logits, const struct tensor *in,
                          int64_t first) {
    struct tensor din =
        tensor_slice(&gpt->activations.gradients.lnf_out, first, tensor_rows(logits));
    tell_rows(gpt, ACTIVATION_lnf_out, true, first, tensor_rows(logits));
    OP(gpt->be, matmul, .out = &din, .a = logits, .b = gpt->head);
    OP(gpt->be, matmul, .out = gpt->dhead, .a = logits, .transpose_a = true, .b = in,
       .accumulate = gpt->accumulate || first > 0);
}

void gpt_loss(struct gpt *gpt, const float *loss_scale, float weight) {
    struct backend *be = gpt->be;
    struct activations *a = &gpt->activations;
    const struct gpt_shape *s = &gpt->shape;
    exchange_weights_arrived(gpt->exchange, s->n_layer);
    masters_cast(&gpt->masters, be, -1);
    for (int64_t first = 0; first < s->rows; first += s->logit_rows) {
        int64_t rows = s->rows - first < s->logit_rows ? s->rows - first : s->logit_rows;
        struct tensor in = tensor_slice(&a->lnf_out, first, rows);
        struct tensor logits = tensor_slice(&a->logits, 0, rows);
        struct tensor losses = tensor_range(&a->losses, first, rows);
        tell_rows(gpt, ACTIVATION_logits, false, first, rows);
        OP(be, matmul, .out = &logits, .a = &in, .b = gpt->head, .transpose_b = true);
        if (loss_scale) tell_rows(gpt, ACTIVATION_logits, true, first, rows);
        OP(be, cross_entropy, .losses = losses.data, .logits = &logits,
           .targets = a->targets ? a->targets + first : NULL, .loss_scale = loss_scale,
           .weight = weight, .vocab_size = s->vocab_size);
        if (loss_scale) loss_backward(gpt, &logits, &in, first);
    }
}

void gpt_logits(struct gpt *gpt, int64_t row) {
    struct tensor in = tensor_slice(&gpt->activations.lnf_out, row, 1);
    struct tensor logits = tensor_slice(&gpt->activations.logits, 0, 1);
    masters_cast(&gpt->masters, gpt->be, -1);
    OP(gpt->be, matmul, .out = &logits, .a = &in, .b = gpt->head, .transpose_b = true);
}
