#include "model/core/forward.h"

#include "model/core/exchange.h"
#include "model/core/linear.h"

#include <assert.h>

/* Rows of the current batch that a pass computes: all, the rows of a prompt, or added ones. */
struct pass {
    struct gpt *gpt;
    int64_t first, rows;
    bool recomputing; /* for the backward pass; operations are not labelled a second time */
    bool stores_kv;   /* stores its keys and values for later passes, from cache_row on */
    int64_t cache_row;
    const struct added *added; /* NULL: the rows do not continue texts in the cache */
    const int32_t *tokens;     /* [rows] */
    const int32_t *positions;  /* [rows], or NULL: consecutive rows */
};

/* Return the trace label of an operation that writes two activations, or one. */
static struct trace_label label_two(const struct pass *pass, enum activation_id first,
                                    enum activation_id second, int64_t layer) {
    return (struct trace_label){.count = pass->recomputing ? 0 : 2,
                                .tensors = {{first, (int)layer}, {second, (int)layer}},
                                .first_row = pass->first,
                                .rows = pass->rows};
}

static struct trace_label label_one(const struct pass *pass, enum activation_id id, int64_t layer) {
    struct trace_label label = label_two(pass, id, id, layer);
    if (label.count == 2) label.count = 1;
    return label;
}

static struct tensor rows_of(const struct pass *pass, const struct tensor *tensor) {
    return tensor_slice(tensor, pass->first, pass->rows);
}

static float *statistics_of(const struct pass *pass, const struct tensor *tensor) {
    return tensor_range(tensor, pass->first, pass->rows).data;
}

/* Scratch tensors hold only the rows of the pass. */
static struct tensor scratch_of(const struct pass *pass, const struct tensor *tensor) {
    return tensor_slice(tensor, 0, pass->rows);
}

/* Returns the means of a norm; NULL for RMS norm, which has none. */
static float *means_of(const struct pass *pass, const struct tensor *mean) {
    return pass->gpt->shape.norm == NORM_LAYERNORM ? statistics_of(pass, mean) : NULL;
}

/* Returns the amax to track while writing the input of a quantized linear layer. */
static struct amax *amax_of(const struct pass *pass, enum autocast_site site, int64_t l) {
    return quantization_amax(&pass->gpt->quantization, QUANTIZED_INPUT, site, l);
}

/* Adds a sub-layer's output to the residual stream and normalizes the sum for the next
 * sub-layer. */
struct add_and_normalize_args {
    const struct tensor *out, *sum, *mean, *rstd; /* [N, C], [N, C], [N], [N] of the batch */
    const struct tensor *in, *residual;           /* [N, C]; in: scratch, rows of the pass only */
    const struct tensor *weight, *bias;           /* [C] */
    struct amax *track_amax;                      /* optional, of out */
    struct trace_label label;
};

static void add_and_normalize(const struct pass *pass, const struct add_and_normalize_args *args) {
    struct tensor branch = scratch_of(pass, args->in), out = rows_of(pass, args->out);
    struct tensor sum = rows_of(pass, args->sum), residual = rows_of(pass, args->residual);
    OP(pass->gpt->be, layernorm_forward, .out = &out, .sum = &sum,
       .mean = means_of(pass, args->mean), .rstd = statistics_of(pass, args->rstd), .in = &branch,
       .residual = &residual, .weight = args->weight, .bias = optional_tensor(args->bias),
       .epsilon = (float)pass->gpt->shape.norm_eps,
       .weight_offset = shape_weight_offset(&pass->gpt->shape), .track_amax = args->track_amax,
       .label = &args->label);
}

/* Drops elements of a tensor in place, in a pass of a training step. */
static void drop(const struct pass *pass, const struct tensor *tensor, enum dropout_use use,
                 int64_t layer) {
    const struct gpt *gpt = pass->gpt;
    if (!gpt->dropout.active || gpt->dropout.residual == 0) return;
    OP(gpt->be, dropout, .out = tensor, .in = tensor, .inputs = gpt->activations.inputs,
       .key = dropout_key(&gpt->dropout, use, layer, 0), .probability = gpt->dropout.residual);
}

/* Returns the length of the sequences that the rows of a pass consist of. */
static int64_t length_of(const struct pass *pass) {
    const struct gpt_shape *s = &pass->gpt->shape;
    return pass->rows < s->sequence_length ? pass->rows : s->sequence_length;
}

/* Normalizes the heads of q and k, which are adjacent columns, and applies rope. */
static void prepare_heads(const struct pass *pass, const struct tensor *qkv, int64_t l) {
    const struct gpt_shape *s = &pass->gpt->shape;
    const struct layer_parameters *w = &pass->gpt->weights.layers[l];
    const struct tensor *angles = gpt_angles(pass->gpt, l);
    struct tensor raw;
    if (s->qk_norm) {
        raw = rows_of(pass, &pass->gpt->activations.layers[l].qk_raw);
        const struct trace_label label = label_two(pass, ACTIVATION_qk_raw, ACTIVATION_qkv, l);
        OP(pass->gpt->be, qk_norm_forward, .inout = qkv, .raw = &raw, .q_weight = &w->q_norm_weight,
           .k_weight = &w->k_norm_weight, .angles = angles, .positions = pass->positions,
           .sequence_length = length_of(pass), .heads = (int)s->n_head,
           .kv_heads = (int)s->n_kv_head, .epsilon = (float)s->norm_eps,
           .weight_offset = shape_weight_offset(s), .label = &label);
    } else if (angles) {
        OP(pass->gpt->be, rope, .inout = qkv, .angles = angles, .positions = pass->positions,
           .sequence_length = length_of(pass), .heads = (int)(s->n_head + s->n_kv_head));
    }
}

/* Stores keys and values for later rows, unless qkv itself is the cache. */
static void store_keys_and_values(const struct pass *pass, const struct tensor *qkv, int64_t l) {
    struct tensor cache = gpt_cache(pass->gpt, l);
    if (!pass->gpt->has_cache) return;
    cache = tensor_slice(&cache, pass->cache_row, pass->rows);
    OP(pass->gpt->be, copy_last_columns, .out = &cache, .in = qkv);
}

/* Attention of the rows of a pass to keys in the cache. */
static void attend_to_cache(const struct pass *pass, int64_t l) {
    struct gpt *gpt = pass->gpt;
    struct layer_activations *a = &gpt->activations.layers[l];
    const struct added *added = pass->added;
    const int64_t window = gpt_window(gpt, l), outside = added->keys_least - window;
    const int64_t from = window > 0 && outside > 0 ? outside : 0;
    struct tensor cache = gpt_cache(gpt, l), q = rows_of(pass, &a->qkv);
    struct tensor out = rows_of(pass, &a->attention_out);
    const struct trace_label label = label_one(pass, ACTIVATION_attention_out, l);
    OP(gpt->be, attention_decode, .out = &out, .q = &q, .cache = &cache, .keys = gpt->added,
       .stride = added->stride, .keys_from = from, .keys_to = added->keys_to,
       .keys_max = gpt->capacity.sequence_length, .window = window,
       .scale = gpt_attention_scale(gpt), .softcap = (float)gpt->shape.attention_softcap,
       .heads = (int)gpt->shape.n_head, .kv_heads = (int)gpt->shape.n_kv_head, .label = &label);
}

/* Attention of the batch's last rows to prefixes elsewhere in the batch. */
static void attend_to_prefixes(const struct pass *pass, int64_t l) {
    struct gpt *gpt = pass->gpt;
    struct layer_activations *a = &gpt->activations.layers[l];
    const struct branches *branches = &gpt->activations.branches;
    struct tensor q = tensor_slice(&a->qkv, branches->first, branches->rows);
    struct tensor out = tensor_slice(&a->attention_out, branches->first, branches->rows);
    OP(gpt->be, attention_decode, .out = &out, .q = &q, .cache = &a->qkv, .keys = branches->keys,
       .stride = 1, .keys_to = branches->keys_max, .keys_max = gpt->capacity.sequence_length,
       .window = gpt_window(gpt, l), .scale = gpt_attention_scale(gpt),
       .softcap = (float)gpt->shape.attention_softcap, .heads = (int)gpt->shape.n_head,
       .kv_heads = (int)gpt->shape.n_kv_head);
}

static void attend(const struct pass *pass, int64_t l) {
    struct layer_activations *a = &pass->gpt->activations.layers[l];
    const struct gpt_shape *s = &pass->gpt->shape;
    struct tensor out = rows_of(pass, &a->attention_out), qkv = rows_of(pass, &a->qkv);
    const struct trace_label label = label_one(pass, ACTIVATION_attention_out, l);
    qkv = tensor_split(&qkv, s->batch, pass->rows / s->batch);
    out = tensor_split(&out, s->batch, pass->rows / s->batch);
    /* Sampling does not isolate documents. */
    OP(pass->gpt->be, attention_forward, .out = &out, .lse = a->lse.data, .qkv = &qkv,
       .first_keys = pass->stores_kv ? NULL : pass->gpt->activations.first_keys,
       .window = gpt_window(pass->gpt, l), .scale = gpt_attention_scale(pass->gpt),
       .softcap = (float)s->attention_softcap, .heads = (int)s->n_head,
       .kv_heads = (int)s->n_kv_head, .label = &label);
    if (!pass->stores_kv && pass->gpt->activations.branches.rows > 0) attend_to_prefixes(pass, l);
}

static void mlp_hidden(const struct pass *pass, int64_t l) {
    const struct layer_parameters *w = &pass->gpt->weights.layers[l];
    struct layer_activations *a = &pass->gpt->activations.layers[l];
    struct tensor in = rows_of(pass, &a->ln2_out), hidden = rows_of(pass, &a->mlp_fc);
    struct tensor out = rows_of(pass, &a->mlp_gelu);
    const bool gated = mlp_is_gated(pass->gpt->shape.mlp);
    struct amax *track_amax = amax_of(pass, SITE_MLP_PROJECTION, l);
    const struct trace_label label =
        gated ? label_one(pass, ACTIVATION_mlp_fc, l)
              : label_two(pass, ACTIVATION_mlp_fc, ACTIVATION_mlp_gelu, l);
    linear_forward(pass->gpt,
                   ARGS(linear_forward, .site = SITE_MLP_FC, .layer = l,
                        .out = gated ? &hidden : &out, .in = &in, .weight = &w->mlp_fc_weight,
                        .bias = &w->mlp_fc_bias, .epilogue = gated ? MATMUL_STORE : MATMUL_GELU,
                        .pre_activation = gated ? NULL : &hidden,
                        .track_amax = gated ? NULL : track_amax, .label = &label));
    if (!gated) return;
    const struct trace_label gate_label = label_one(pass, ACTIVATION_mlp_gelu, l);
    OP(pass->gpt->be, gated_forward, .out = &out, .gate_up = &hidden,
       .gate = gpt_gate(&pass->gpt->shape), .track_amax = track_amax, .label = &gate_label);
}

/* Computes the first norm of a layer from its stored input. */
static void normalize_in(const struct pass *pass, int64_t l) {
    const struct layer_parameters *w = &pass->gpt->weights.layers[l];
    struct layer_activations *a = &pass->gpt->activations.layers[l];
    struct tensor out = rows_of(pass, &a->ln1_out), in = rows_of(pass, &a->residual_in);
    const struct trace_label label = label_one(pass, ACTIVATION_ln1_out, l);
    OP(pass->gpt->be, layernorm_forward, .out = &out, .mean = means_of(pass, &a->ln1_mean),
       .rstd = statistics_of(pass, &a->ln1_rstd), .in = &in, .weight = &w->ln1_weight,
       .bias = optional_tensor(&w->ln1_bias), .epsilon = (float)pass->gpt->shape.norm_eps,
       .weight_offset = shape_weight_offset(&pass->gpt->shape),
       .track_amax = amax_of(pass, SITE_QKV, l), .label = &label);
}

static void embed(const struct pass *pass) {
    struct gpt *gpt = pass->gpt;
    struct tensor residual = rows_of(pass, &gpt->activations.layers[0].residual_in);
    bool learned = gpt->shape.positions == POSITIONS_LEARNED;
    const struct trace_label label = label_one(pass, ACTIVATION_residual_in, 0);
    OP(gpt->be, embedding_forward, .out = &residual, .tokens = pass->tokens,
       .token_table = &gpt->token_table, .token_remainder = gpt->token_remainder,
       .token_scale = gpt_embedding_scale(gpt),
       .position_table = learned ? &gpt->weights.wpe : NULL,
       .positions = learned ? pass->positions : NULL, .sequence_length = length_of(pass),
       .label = &label);
    drop(pass, &residual, DROPOUT_EMBEDDING, 0);
    normalize_in(pass, 0);
}

/* Ends layer l with the first norm of the next layer, or with the final norm. */
static void normalize_out(const struct pass *pass, int64_t l) {
    struct gpt *gpt = pass->gpt;
    struct activations *all = &gpt->activations;
    struct layer_activations *a = &all->layers[l], *next = &all->layers[l + 1];
    const struct layer_parameters *next_w = &gpt->weights.layers[l + 1];
    struct add_and_normalize_args args = {.in = &a->mlp_projection, .residual = &a->residual_mid};
    if (l == gpt->shape.n_layer - 1) {
        args.out = &all->lnf_out, args.sum = &all->residual_final;
        args.mean = &all->lnf_mean, args.rstd = &all->lnf_rstd;
        args.weight = &gpt->weights.lnf_weight, args.bias = &gpt->weights.lnf_bias;
        args.label = label_two(pass, ACTIVATION_residual_final, ACTIVATION_lnf_out, 0);
    } else {
        args.out = &next->ln1_out, args.sum = &next->residual_in;
        args.mean = &next->ln1_mean, args.rstd = &next->ln1_rstd;
        args.weight = &next_w->ln1_weight, args.bias = &next_w->ln1_bias;
        args.track_amax = amax_of(pass, SITE_QKV, l + 1);
        args.label = label_two(pass, ACTIVATION_residual_in, ACTIVATION_ln1_out, l + 1);
    }
    add_and_normalize(pass, &args);
}

/* A linear layer without an epilogue, whose output is the activation `id`. */
static void linear(const struct pass *pass, enum activation_id id,
                   const struct linear_forward_args *args) {
    struct linear_forward_args labelled = *args;
    const struct trace_label label = label_one(pass, id, args->layer);
    /* If q and k are normalized, the norm writes the traced qkv, so this matmul has no label. */
    if (id != ACTIVATION_qkv || !pass->gpt->shape.qk_norm) labelled.label = &label;
    linear_forward(pass->gpt, &labelled);
}

/* A linear layer that writes to the residual stream: its output is `branch` or, with a norm of this
 * weight after it, `raw`, which the norm turns into the branch. */
struct branch_args {
    struct linear_forward_args linear; /* out is set here */
    enum activation_id raw, branch;
    const struct tensor *weight; /* [C], or rank 0: no norm */
    const struct tensor *rstd;   /* [N] of the batch */
    enum dropout_use dropout;
};

static void project_branch(const struct pass *pass, const struct branch_args *args) {
    struct gpt *gpt = pass->gpt;
    const int64_t l = args->linear.layer;
    const struct tensor branch =
        scratch_of(pass, activation_tensor(&gpt->activations, args->branch, l));
    const struct trace_label label = label_one(pass, args->branch, l);
    struct linear_forward_args projection = args->linear;
    struct tensor raw = branch;
    if (gpt->shape.post_norm)
        raw = rows_of(pass, activation_tensor(&gpt->activations, args->raw, l));
    projection.out = &raw;
    linear(pass, gpt->shape.post_norm ? args->raw : args->branch, &projection);
    if (gpt->shape.post_norm)
        OP(gpt->be, layernorm_forward, .out = &branch, .rstd = statistics_of(pass, args->rstd),
           .in = &raw, .weight = args->weight, .epsilon = (float)gpt->shape.norm_eps,
           .weight_offset = shape_weight_offset(&gpt->shape), .label = &label);
    drop(pass, &branch, args->dropout, l);
}

/* Runs layer l on N rows, from residual_in and its norm ln1_out to those of the next layer. H heads
 * of size D read H_kv heads of keys and values; F is the width of the MLP. The order is mirrored by
 * layer_backward. */
static void layer_forward(const struct pass *pass, int64_t l) {
    const struct layer_parameters *w = &pass->gpt->weights.layers[l];
    const struct layer_activations *a = &pass->gpt->activations.layers[l];
    const struct tensor ln1_out = rows_of(pass, &a->ln1_out), qkv = rows_of(pass, &a->qkv);
    const struct tensor attention_out = rows_of(pass, &a->attention_out);
    const struct tensor mlp_gelu = rows_of(pass, &a->mlp_gelu);

    /* 1. qkv [N, (H + 2 H_kv) D] of ln1_out [N, C] */
    linear(pass, ACTIVATION_qkv,
           ARGS(linear_forward, .site = SITE_QKV, .layer = l, .out = &qkv, .in = &ln1_out,
                .weight = &w->qkv_weight, .bias = &w->qkv_bias));
    /* 2. norm of the heads of q and k, and rope, in place */
    prepare_heads(pass, &qkv, l);
    /* 3. attention_out [N, H D] */
    if (pass->stores_kv) store_keys_and_values(pass, &qkv, l);
    if (pass->added) attend_to_cache(pass, l);
    else attend(pass, l);
    /* 4. attention_projection [N, C] */
    project_branch(pass, ARGS(branch,
                              .linear = {.site = SITE_ATTENTION_PROJECTION,
                                         .layer = l,
                                         .in = &attention_out,
                                         .weight = &w->attention_projection_weight,
                                         .bias = &w->attention_projection_bias},
                              .raw = ACTIVATION_attention_projection_raw,
                              .branch = ACTIVATION_attention_projection,
                              .weight = &w->post_attention_norm_weight,
                              .rstd = &a->post_attention_norm_rstd, .dropout = DROPOUT_ATTENTION));
    /* 5. residual_mid = residual_in + attention_projection, and its norm ln2_out [N, C] */
    add_and_normalize(
        pass, ARGS(add_and_normalize, .out = &a->ln2_out, .sum = &a->residual_mid,
                   .mean = &a->ln2_mean, .rstd = &a->ln2_rstd, .in = &a->attention_projection,
                   .residual = &a->residual_in, .weight = &w->ln2_weight, .bias = &w->ln2_bias,
                   .track_amax = amax_of(pass, SITE_MLP_FC, l),
                   .label = label_two(pass, ACTIVATION_residual_mid, ACTIVATION_ln2_out, l)));
    /* 6. mlp_fc [N, F], or [N, 2 F] if gated, and mlp_gelu [N, F] */
    mlp_hidden(pass, l);
    /* The backward pass reads nothing of the rest but the input of a last norm. */
    if (pass->recomputing && !pass->gpt->shape.post_norm) return;
    /* 7. mlp_projection [N, C] */
    project_branch(pass,
                   ARGS(branch,
                        .linear = {.site = SITE_MLP_PROJECTION,
                                   .layer = l,
                                   .in = &mlp_gelu,
                                   .weight = &w->mlp_projection_weight,
                                   .bias = &w->mlp_projection_bias},
                        .raw = ACTIVATION_mlp_projection_raw, .branch = ACTIVATION_mlp_projection,
                        .weight = &w->post_mlp_norm_weight, .rstd = &a->post_mlp_norm_rstd,
                        .dropout = DROPOUT_MLP));
    if (pass->recomputing) return;
    /* 8. the next layer's residual_in = residual_mid + mlp_projection, and its norm */
    layer_stream_wait(&pass->gpt->saved, pass->gpt->be, l + 1);
    normalize_out(pass, l);
}

/* Sends the saved activations of a layer to the host, unless the backward pass will find them in
 * their buffer. */
static void save_layer(struct gpt *gpt, int64_t l) {
    layer_stream_hold(&gpt->saved, l);
    if (l + BACKEND_SLOTS < gpt->shape.n_layer) layer_stream_send(&gpt->saved, gpt->be, l);
}

static void run(const struct pass *pass) {
    quantization_begin_pass(&pass->gpt->quantization);
    layer_stream_begin(&pass->gpt->masters.stream);
    layer_stream_begin(&pass->gpt->saved);
    exchange_weights_arrived(pass->gpt->exchange, -1);
    embed(pass);
    for (int64_t l = 0; l < pass->gpt->shape.n_layer; l++) {
        exchange_weights_arrived(pass->gpt->exchange, l);
        masters_ready(&pass->gpt->masters, pass->gpt->be, l, l + 1);
        layer_forward(pass, l);
        if (pass->gpt->backward_follows) save_layer(pass->gpt, l);
    }
}

void gpt_recompute(struct gpt *gpt, int64_t layer) {
    struct pass pass = {gpt, 0, gpt->shape.rows, .recomputing = true,
                        .positions = gpt->activations.positions};
    struct layer_activations *a = &gpt->activations.layers[layer];
    if (gpt->recompute == RECOMPUTE_NONE || layer == gpt->shape.n_layer - 1) return;
    if (gpt->recompute == RECOMPUTE_LAYER) {
        /* The first norm reads the stored sum, so its summands are not recomputed. */
        normalize_in(&pass, layer);
        layer_forward(&pass, layer);
    } else if (mlp_is_gated(gpt->shape.mlp)) {
        OP(gpt->be, gated_forward, .out = &a->mlp_gelu, .gate_up = &a->mlp_fc,
           .gate = gpt_gate(&gpt->shape));
    } else if (!gpt_gelu_is_fused(&gpt->shape, &gpt->precision, gpt->be, layer)) {
        OP(gpt->be, gelu_forward, .out = &a->mlp_gelu, .in = &a->mlp_fc);
    } else {
        mlp_hidden(&pass, layer);
    }
}

void gpt_forward(struct gpt *gpt) {
    run(&(struct pass){gpt, 0, gpt->shape.rows, .tokens = gpt->activations.tokens,
                       .positions = gpt->activations.positions});
}

void gpt_prefill(struct gpt *gpt, int64_t rows, int64_t cache_row) {
    assert(gpt->shape.batch == 1 && (gpt->has_cache || cache_row == 0));
    run(&(struct pass){gpt, 0, rows, .stores_kv = true, .cache_row = cache_row,
                       .tokens = gpt->activations.tokens});
}

int64_t gpt_extend(struct gpt *gpt, const struct added *added) {
    const struct added_arrays arrays = added_arrays_in(gpt->added, added->rows);
    int64_t first = gpt->has_cache ? 0 : added->cache_row;
    assert(gpt->shape.batch == 1 && added->rows <= gpt_added_max(gpt));
    run(&(struct pass){gpt, first, added->rows, .stores_kv = true, .cache_row = added->cache_row,
                       .added = added, .tokens = arrays.tokens, .positions = arrays.positions});
    return first;
}

/* Returns the trace label of an operation that writes rows of lnf_out or logits, or of their
 * gradient. */
static struct trace_label label_rows(enum activation_id id, bool gradient, int64_t first,
                                     int64_t rows) {
    return (struct trace_label){1, gradient, {{id, 0}}, first, rows};
}

/* Computes the gradients of the head's input, rows of lnf_out from first on, and of its weights. */
static void loss_backward(struct gpt *gpt, const struct tensor *logits, const struct tensor *in,
                          int64_t first) {
    const struct trace_label label =
        label_rows(ACTIVATION_lnf_out, true, first, tensor_rows(logits));
    struct tensor din =
        tensor_slice(&gpt->activations.gradients.lnf_out, first, tensor_rows(logits));
    OP(gpt->be, matmul, .out = &din, .a = logits, .b = gpt->head, .label = &label);
    if (gpt->dhead->rank)
        OP(gpt->be, matmul, .out = gpt->dhead, .a = logits, .transpose_a = true, .b = in,
           .accumulate = gpt->accumulate || first > 0);
}

/* Replaces logits of rows first and following by the gradient of their losses on the batch and on
 * its teacher. */
static void distill(struct gpt *gpt, const struct tensor *logits, int64_t first,
                    const float *loss_scale, const struct trace_label *label) {
    const struct activations *a = &gpt->activations;
    const int64_t rows = tensor_rows(logits), top = gpt->distill.top;
    struct tensor losses = tensor_range(&a->losses, first, rows);
    struct tensor teacher = {(void *)a->teacher_logits, DTYPE_F16, 2, {gpt->shape.rows, top}};
    teacher = tensor_slice(&teacher, first, rows);
    OP(gpt->be, distillation, .losses = losses.data, .logits = logits,
       .targets = a->targets ? a->targets + first : NULL,
       .teacher_tokens = a->teacher_tokens ? a->teacher_tokens + first * top : NULL,
       .teacher_logits = &teacher, .alpha = gpt->distill.alpha,
       .temperature = gpt->distill.temperature, .loss_scale = loss_scale, .inputs = a->inputs,
       .softcap = (float)gpt->shape.logit_softcap, .vocab_size = gpt->shape.vocab_size,
       .label = label);
}

/* Computes logits of the head's input, rows of lnf_out. */
static void compute_logits(struct gpt *gpt, const struct tensor *logits, const struct tensor *in,
                           const struct trace_label *label) {
    const float cap = (float)gpt->shape.logit_softcap;
    OP(gpt->be, matmul, .out = logits, .a = in, .b = gpt->head, .transpose_b = true,
       .label = cap > 0 ? NULL : label);
    if (cap > 0) OP(gpt->be, softcap, .inout = logits, .cap = cap, .label = label);
}

/* Arguments of a pass over the head. */
struct head_pass {
    int64_t first;           /* first row */
    const float *loss_scale; /* NULL: no gradients */
    const float *weights;    /* [N] of the losses, or NULL */
    float *losses;           /* [N] */
    bool has_logits;         /* all rows are one chunk, whose logits are there already */
};

/* Computes the losses of rows first and following, with gradients if there is a loss scale. */
static void run_head(struct gpt *gpt, const struct head_pass *pass) {
    struct backend *be = gpt->be;
    struct activations *a = &gpt->activations;
    const struct gpt_shape *s = &gpt->shape;
    exchange_weights_arrived(gpt->exchange, s->n_layer);
    masters_ready(&gpt->masters, be, -1, -1);
    for (int64_t first = pass->first; first < s->rows; first += s->logit_rows) {
        int64_t rows = s->rows - first < s->logit_rows ? s->rows - first : s->logit_rows;
        struct tensor in = tensor_slice(&a->lnf_out, first, rows);
        struct tensor logits = tensor_slice(&a->logits, 0, rows);
        const struct trace_label label = label_rows(ACTIVATION_logits, false, first, rows);
        const struct trace_label dlabel = label_rows(ACTIVATION_logits, true, first, rows);
        if (!pass->has_logits) compute_logits(gpt, &logits, &in, &label);
        if (pass->loss_scale && gpt->distill.top > 0)
            distill(gpt, &logits, first, pass->loss_scale, &dlabel);
        else
            OP(be, cross_entropy, .losses = pass->losses ? pass->losses + first : NULL,
               .logits = &logits, .targets = a->targets ? a->targets + first : NULL,
               .loss_scale = pass->loss_scale, .inputs = a->inputs,
               .weights = pass->weights ? pass->weights + first : NULL,
               .softcap = (float)s->logit_softcap, .vocab_size = s->vocab_size,
               .label = pass->loss_scale ? &dlabel : NULL);
        if (pass->loss_scale) loss_backward(gpt, &logits, &in, first);
    }
}

/* Computes the losses of pairs from those of tokens, then the gradients. */
static void preference_loss(struct gpt *gpt, const float *loss_scale,
                            struct preference_sums *sums) {
    const struct gpt_shape *s = &gpt->shape;
    const struct activations *a = &gpt->activations;
    const struct preference_memory *memory = &a->preference;
    run_head(gpt, &(struct head_pass){.losses = a->losses.data});
    OP(gpt->be, preference, .losses = a->losses.data, .weights = memory->weights,
       .targets = a->targets, .count = s->rows, .answers = memory->answers, .sums = sums,
       .batch = memory->batch, .rule = gpt->rule);
    if (!loss_scale) return;
    run_head(gpt, &(struct head_pass){.loss_scale = loss_scale,
                                      .weights = memory->weights,
                                      .losses = memory->unused_losses,
                                      .has_logits = s->logit_rows >= s->rows});
}

void gpt_loss(struct gpt *gpt, const float *loss_scale, struct preference_sums *sums) {
    if (gpt->prefers) preference_loss(gpt, loss_scale, sums);
    else
        run_head(gpt, &(struct head_pass){.loss_scale = loss_scale,
                                          .losses = gpt->activations.losses.data});
}

void gpt_losses(struct gpt *gpt, int64_t first) {
    run_head(gpt,
             &(struct head_pass){.first = first / gpt->shape.logit_rows * gpt->shape.logit_rows,
                                 .losses = gpt->activations.losses.data});
}

void gpt_logits(struct gpt *gpt, int64_t first, int64_t rows) {
    struct tensor in = tensor_slice(&gpt->activations.lnf_out, first, rows);
    struct tensor logits = tensor_slice(&gpt->activations.logits, 0, rows);
    masters_ready(&gpt->masters, gpt->be, -1, -1);
    compute_logits(gpt, &logits, &in, NULL);
}
