#include "model/forward.h"

#include <assert.h>

/* The rows of the batch in place that a pass computes: all, those of a prompt, or one. */
struct pass {
    struct gpt *gpt;
    int64_t first, rows;
    bool decodes; /* the one row attends to what earlier passes have left in qkv */
};

static struct tensor rows_of(const struct pass *pass, const struct tensor *tensor) {
    return tensor_slice(tensor, pass->first, pass->rows);
}

static float *statistics_of(const struct pass *pass, const struct tensor *tensor) {
    return tensor_range(tensor, pass->first, pass->rows).data;
}

/* Scratch that holds only the rows of the pass. */
static struct tensor branch_of(const struct pass *pass, enum dtype dtype) {
    struct tensor branch = tensor_as(&pass->gpt->activations.branch, dtype);
    return tensor_slice(&branch, 0, pass->rows);
}

/* A sub-layer's result is added to the residual stream and normalized for the next in one go. */
static void add_and_normalize(const struct pass *pass, const struct tensor *out,
                              const struct tensor *sum, const struct tensor *mean,
                              const struct tensor *rstd, const struct tensor *residual,
                              enum dtype branch_dtype, const struct tensor *weight,
                              const struct tensor *bias) {
    struct tensor branch = branch_of(pass, branch_dtype), out_rows = rows_of(pass, out);
    struct tensor sum_rows = rows_of(pass, sum), residual_rows = rows_of(pass, residual);
    OP(pass->gpt->be, layernorm_forward, .out = &out_rows, .sum = &sum_rows,
       .mean = statistics_of(pass, mean), .rstd = statistics_of(pass, rstd), .in = &branch,
       .residual = &residual_rows, .weight = weight, .bias = bias, .epsilon = LAYERNORM_EPSILON);
}

static void attend(const struct pass *pass, struct layer_activations *a) {
    struct backend *be = pass->gpt->be;
    const struct gpt_shape *s = &pass->gpt->shape;
    struct tensor out = rows_of(pass, &a->attention_out);
    if (pass->decodes) {
        struct tensor cache = tensor_split(&a->qkv, s->batch, s->sequence_length);
        OP(be, attention_decode, .out = &out, .qkv = &cache, .position = pass->first,
           .heads = (int)s->n_head);
    } else {
        struct tensor qkv = rows_of(pass, &a->qkv);
        qkv = tensor_split(&qkv, s->batch, pass->rows / s->batch);
        out = tensor_split(&out, s->batch, pass->rows / s->batch);
        OP(be, attention_forward, .out = &out, .lse = a->lse.data, .qkv = &qkv,
           .heads = (int)s->n_head);
    }
}

static void attention_block(const struct pass *pass, const struct layer_parameters *w,
                            struct layer_activations *a) {
    struct backend *be = pass->gpt->be;
    struct tensor branch = branch_of(pass, pass->gpt->precision.attention_projection);
    struct tensor in = rows_of(pass, &a->ln1_out), qkv = rows_of(pass, &a->qkv);
    struct tensor out = rows_of(pass, &a->attention_out);
    OP(be, matmul, .out = &qkv, .a = &in, .b = &w->qkv_weight, .bias = &w->qkv_bias);
    attend(pass, a);
    OP(be, matmul, .out = &branch, .a = &out, .b = &w->attention_projection_weight,
       .bias = &w->attention_projection_bias);
}

static void mlp_hidden(const struct pass *pass, const struct layer_parameters *w,
                       struct layer_activations *a) {
    struct tensor in = rows_of(pass, &a->ln2_out), hidden = rows_of(pass, &a->mlp_fc);
    struct tensor gelu = rows_of(pass, &a->mlp_gelu);
    OP(pass->gpt->be, matmul, .out = &gelu, .a = &in, .b = &w->mlp_fc_weight,
       .bias = &w->mlp_fc_bias, .gelu_in = &hidden);
}

static void mlp_block(const struct pass *pass, const struct layer_parameters *w,
                      struct layer_activations *a) {
    struct tensor branch = branch_of(pass, pass->gpt->precision.mlp_projection);
    struct tensor gelu = rows_of(pass, &a->mlp_gelu);
    mlp_hidden(pass, w, a);
    OP(pass->gpt->be, matmul, .out = &branch, .a = &gelu, .b = &w->mlp_projection_weight,
       .bias = &w->mlp_projection_bias);
}

/* The first norm of a layer, of what its input was stored as. */
static void normalize_in(const struct pass *pass, const struct layer_parameters *w,
                         struct layer_activations *a) {
    struct tensor out = rows_of(pass, &a->ln1_out), in = rows_of(pass, &a->residual_in);
    OP(pass->gpt->be, layernorm_forward, .out = &out, .mean = statistics_of(pass, &a->ln1_mean),
       .rstd = statistics_of(pass, &a->ln1_rstd), .in = &in, .weight = &w->ln1_weight,
       .bias = &w->ln1_bias, .epsilon = LAYERNORM_EPSILON);
}

/* A pass that begins inside a sequence finds its own position in row 0 of the table it is given. */
static void embed(const struct pass *pass) {
    struct gpt *gpt = pass->gpt;
    struct layer_activations *a = &gpt->activations.layers[0];
    struct tensor residual = rows_of(pass, &a->residual_in);
    int64_t length =
        pass->rows < gpt->shape.sequence_length ? pass->rows : gpt->shape.sequence_length;
    struct tensor positions = tensor_slice(&gpt->masters.wpe, pass->first, length);
    OP(gpt->be, embedding_forward, .out = &residual,
       .tokens = gpt->activations.tokens ? gpt->activations.tokens + pass->first : NULL,
       .token_table = &gpt->masters.wte, .position_table = &positions, .sequence_length = length);
    normalize_in(pass, &gpt->weights.layers[0], a);
}

static void normalize_mid(const struct pass *pass, const struct layer_parameters *w,
                          struct layer_activations *a) {
    add_and_normalize(pass, &a->ln2_out, &a->residual_mid, &a->ln2_mean, &a->ln2_rstd,
                      &a->residual_in, pass->gpt->precision.attention_projection, &w->ln2_weight,
                      &w->ln2_bias);
}

static void run(const struct pass *pass) {
    struct gpt *gpt = pass->gpt;
    const struct precision *p = &gpt->precision;
    struct activations *all = &gpt->activations;
    int64_t last = gpt->shape.n_layer - 1;
    embed(pass);
    for (int64_t l = 0; l <= last; l++) {
        struct layer_activations *a = &all->layers[l];
        const struct layer_parameters *w = &gpt->weights.layers[l];
        attention_block(pass, w, a);
        normalize_mid(pass, w, a);
        mlp_block(pass, w, a);
        if (l == last) {
            add_and_normalize(pass, &all->lnf_out, &all->residual_final, &all->lnf_mean,
                              &all->lnf_rstd, &a->residual_mid, p->mlp_projection,
                              &gpt->weights.lnf_weight, &gpt->weights.lnf_bias);
        } else {
            struct layer_activations *next = &all->layers[l + 1];
            const struct layer_parameters *next_w = &gpt->weights.layers[l + 1];
            add_and_normalize(pass, &next->ln1_out, &next->residual_in, &next->ln1_mean,
                              &next->ln1_rstd, &a->residual_mid, p->mlp_projection,
                              &next_w->ln1_weight, &next_w->ln1_bias);
        }
    }
}

void gpt_recompute(struct gpt *gpt, int64_t layer) {
    struct pass pass = {gpt, 0, gpt->shape.rows, false};
    struct layer_activations *a = &gpt->activations.layers[layer];
    const struct layer_parameters *w = &gpt->weights.layers[layer];
    if (gpt->sharing == SHARE_NOTHING || layer == gpt->shape.n_layer - 1) return;
    if (gpt->sharing == SHARE_LAYER) {
        /* What was normalized is the sum as it was stored, so its parts are not needed. */
        normalize_in(&pass, w, a);
        attention_block(&pass, w, a);
        normalize_mid(&pass, w, a);
        mlp_hidden(&pass, w, a);
    } else if (gpt->be->device.gelu_of_stored) {
        OP(gpt->be, gelu_forward, .out = &a->mlp_gelu, .in = &a->mlp_fc);
    } else {
        mlp_hidden(&pass, w, a);
    }
}

void gpt_forward(struct gpt *gpt) {
    run(&(struct pass){gpt, 0, gpt->shape.rows, false});
}

void gpt_prefill(struct gpt *gpt, int64_t rows) {
    assert(gpt->shape.batch == 1);
    run(&(struct pass){gpt, 0, rows, false});
}

void gpt_decode(struct gpt *gpt, int64_t row) {
    assert(gpt->shape.batch == 1);
    run(&(struct pass){gpt, row, 1, true});
}

void gpt_loss(struct gpt *gpt, const float *loss_scale, float weight) {
    struct backend *be = gpt->be;
    struct activations *a = &gpt->activations;
    const struct gpt_shape *s = &gpt->shape;
    for (int64_t first = 0; first < s->rows; first += s->logit_rows) {
        int64_t rows = s->rows - first < s->logit_rows ? s->rows - first : s->logit_rows;
        struct tensor in = tensor_slice(&a->lnf_out, first, rows);
        struct tensor logits = tensor_slice(&a->logits, 0, rows);
        struct tensor losses = tensor_range(&a->losses, first, rows);
        OP(be, matmul, .out = &logits, .a = &in, .b = &gpt->weights.wte, .transpose_b = true);
        OP(be, cross_entropy, .losses = losses.data, .logits = &logits,
           .targets = a->targets ? a->targets + first : NULL, .loss_scale = loss_scale,
           .weight = weight, .vocab_size = s->vocab_size);
        if (!loss_scale) continue;
        struct tensor dnorm = tensor_as(&a->dnorm, gpt->precision.lnf_out);
        struct tensor din = tensor_slice(&dnorm, first, rows);
        OP(be, matmul, .out = &din, .a = &logits, .b = &gpt->weights.wte);
        OP(be, matmul, .out = &gpt->dweights.wte, .a = &logits, .transpose_a = true, .b = &in,
           .accumulate = gpt->accumulate || first > 0);
    }
}

void gpt_logits(struct gpt *gpt, int64_t row) {
    struct tensor in = tensor_slice(&gpt->activations.lnf_out, row, 1);
    struct tensor logits = tensor_slice(&gpt->activations.logits, 0, 1);
    OP(gpt->be, matmul, .out = &logits, .a = &in, .b = &gpt->weights.wte, .transpose_b = true);
}
