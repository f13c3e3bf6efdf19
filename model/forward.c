#include "model/forward.h"

/* A sub-layer's result is added to the residual stream and normalized for the next in one go. */
static void add_and_normalize(struct gpt *gpt, struct tensor *out, struct tensor *sum,
                              struct tensor *mean, struct tensor *rstd,
                              const struct tensor *residual, enum dtype branch_dtype,
                              const struct tensor *weight, const struct tensor *bias) {
    struct tensor branch = tensor_as(&gpt->activations.branch, branch_dtype);
    OP(gpt->be, layernorm_forward, .out = out, .sum = sum, .mean = mean->data, .rstd = rstd->data,
       .in = &branch, .residual = residual, .weight = weight, .bias = bias,
       .epsilon = LAYERNORM_EPSILON);
}

static void attention_block(struct gpt *gpt, const struct layer_parameters *w,
                            struct layer_activations *a) {
    struct backend *be = gpt->be;
    const struct gpt_shape *s = &gpt->shape;
    struct tensor branch = tensor_as(&gpt->activations.branch, gpt->precision.attention_projection);
    struct tensor qkv = tensor_split(&a->qkv, s->batch, s->sequence_length);
    struct tensor out = tensor_split(&a->attention_out, s->batch, s->sequence_length);
    OP(be, matmul, .out = &a->qkv, .a = &a->ln1_out, .b = &w->qkv_weight, .bias = &w->qkv_bias);
    OP(be, attention_forward, .out = &out, .lse = a->lse.data, .qkv = &qkv,
       .heads = (int)s->n_head);
    OP(be, matmul, .out = &branch, .a = &a->attention_out, .b = &w->attention_projection_weight,
       .bias = &w->attention_projection_bias);
}

static void mlp_block(struct gpt *gpt, const struct layer_parameters *w,
                      struct layer_activations *a) {
    struct backend *be = gpt->be;
    struct tensor branch = tensor_as(&gpt->activations.branch, gpt->precision.mlp_projection);
    OP(be, matmul, .out = &a->mlp_gelu, .a = &a->ln2_out, .b = &w->mlp_fc_weight,
       .bias = &w->mlp_fc_bias, .gelu_in = &a->mlp_fc);
    OP(be, matmul, .out = &branch, .a = &a->mlp_gelu, .b = &w->mlp_projection_weight,
       .bias = &w->mlp_projection_bias);
}

static void embed(struct gpt *gpt) {
    struct layer_activations *a = &gpt->activations.layers[0];
    const struct layer_parameters *w = &gpt->weights.layers[0];
    OP(gpt->be, embedding_forward, .out = &a->residual_in, .tokens = gpt->activations.tokens,
       .token_table = &gpt->masters.wte, .position_table = &gpt->masters.wpe,
       .sequence_length = gpt->shape.sequence_length);
    OP(gpt->be, layernorm_forward, .out = &a->ln1_out, .mean = a->ln1_mean.data,
       .rstd = a->ln1_rstd.data, .in = &a->residual_in, .weight = &w->ln1_weight,
       .bias = &w->ln1_bias, .epsilon = LAYERNORM_EPSILON);
}

void gpt_forward(struct gpt *gpt) {
    const struct precision *p = &gpt->precision;
    struct activations *all = &gpt->activations;
    int64_t last = gpt->shape.n_layer - 1;
    embed(gpt);
    for (int64_t l = 0; l <= last; l++) {
        struct layer_activations *a = &all->layers[l];
        const struct layer_parameters *w = &gpt->weights.layers[l];
        attention_block(gpt, w, a);
        add_and_normalize(gpt, &a->ln2_out, &a->residual_mid, &a->ln2_mean, &a->ln2_rstd,
                          &a->residual_in, p->attention_projection, &w->ln2_weight, &w->ln2_bias);
        mlp_block(gpt, w, a);
        if (l == last) {
            add_and_normalize(gpt, &all->lnf_out, &all->residual_final, &all->lnf_mean,
                              &all->lnf_rstd, &a->residual_mid, p->mlp_projection,
                              &gpt->weights.lnf_weight, &gpt->weights.lnf_bias);
        } else {
            struct layer_activations *next = &all->layers[l + 1];
            const struct layer_parameters *next_w = &gpt->weights.layers[l + 1];
            add_and_normalize(gpt, &next->ln1_out, &next->residual_in, &next->ln1_mean,
                              &next->ln1_rstd, &a->residual_mid, p->mlp_projection,
                              &next_w->ln1_weight, &next_w->ln1_bias);
        }
    }
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
