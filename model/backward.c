#include "model/backward.h"

#include "model/forward.h"

/* The gradient of x through a layer norm joins the one that flows along the residual stream;
 * branch_dtype is what the sub-layer below reads its gradient in. */
static void normalize_backward(struct gpt *gpt, enum dtype dout_dtype, enum dtype branch_dtype,
                               const struct tensor *in, const struct tensor *mean,
                               const struct tensor *rstd, const struct tensor *weight,
                               const struct tensor *dweight, const struct tensor *dbias,
                               bool first) {
    struct activations *a = &gpt->activations;
    struct tensor dout = tensor_as(&a->dnorm, dout_dtype);
    struct tensor dbranch = tensor_as(&a->dbranch, branch_dtype);
    bool shared = precision_branch_is_residual(&gpt->precision);
    OP(gpt->be, layernorm_backward, .din = &a->dresidual, .din_lower = shared ? NULL : &dbranch,
       .dweight = dweight, .dbias = dbias, .dout = &dout, .in = in, .mean = mean->data,
       .rstd = rstd->data, .weight = weight, .dresidual = first ? NULL : &a->dresidual);
}

/* out = in weight + bias: dweight (added to or not) and dbias, then din. */
static void linear_backward(const struct gpt *gpt, const struct tensor *din,
                            const struct tensor *dweight, const struct tensor *dbias,
                            const struct tensor *dout, const struct tensor *in,
                            const struct tensor *weight, const struct tensor *dgelu_in) {
    struct backend *be = gpt->be;
    OP(be, matmul, .out = dweight, .a = in, .transpose_a = true, .b = dout,
       .accumulate = gpt->accumulate, .dbias = dbias);
    OP(be, matmul, .out = din, .a = dout, .b = weight, .transpose_b = true, .dgelu_in = dgelu_in);
}

static void mlp_backward(struct gpt *gpt, const struct layer_parameters *w,
                         const struct layer_parameters *dw, const struct layer_activations *a) {
    struct tensor dout = tensor_as(&gpt->activations.dbranch, gpt->precision.mlp_projection);
    struct tensor dnorm = tensor_as(&gpt->activations.dnorm, gpt->precision.ln2_out);
    const struct tensor *dhidden = &gpt->activations.dhidden;
    linear_backward(gpt, dhidden, &dw->mlp_projection_weight, &dw->mlp_projection_bias, &dout,
                    &a->mlp_gelu, &w->mlp_projection_weight, &a->mlp_fc);
    linear_backward(gpt, &dnorm, &dw->mlp_fc_weight, &dw->mlp_fc_bias, dhidden, &a->ln2_out,
                    &w->mlp_fc_weight, NULL);
}

static void attention_block_backward(struct gpt *gpt, const struct layer_parameters *w,
                                     const struct layer_parameters *dw,
                                     const struct layer_activations *a) {
    const struct gpt_shape *s = &gpt->shape;
    const struct precision *p = &gpt->precision;
    struct tensor dout = tensor_as(&gpt->activations.dbranch, p->attention_projection);
    struct tensor dattention = tensor_as(&gpt->activations.dnorm, p->attention_out);
    struct tensor dnorm = tensor_as(&gpt->activations.dnorm, p->ln1_out);
    const struct tensor *dqkv_rows = &gpt->activations.dqkv;
    linear_backward(gpt, &dattention, &dw->attention_projection_weight,
                    &dw->attention_projection_bias, &dout, &a->attention_out,
                    &w->attention_projection_weight, NULL);
    struct tensor dqkv = tensor_split(dqkv_rows, s->batch, s->sequence_length);
    struct tensor qkv = tensor_split(&a->qkv, s->batch, s->sequence_length);
    struct tensor out = tensor_split(&a->attention_out, s->batch, s->sequence_length);
    struct tensor dattention_out = tensor_split(&dattention, s->batch, s->sequence_length);
    OP(gpt->be, attention_backward, .dqkv = &dqkv, .dout = &dattention_out, .qkv = &qkv,
       .out = &out, .lse = a->lse.data, .heads = (int)s->n_head);
    linear_backward(gpt, &dnorm, &dw->qkv_weight, &dw->qkv_bias, dqkv_rows, &a->ln1_out,
                    &w->qkv_weight, NULL);
}

void gpt_backward(struct gpt *gpt) {
    const struct precision *p = &gpt->precision;
    struct activations *all = &gpt->activations;
    normalize_backward(gpt, p->lnf_out, p->mlp_projection, &all->residual_final, &all->lnf_mean,
                       &all->lnf_rstd, &gpt->weights.lnf_weight, &gpt->dweights.lnf_weight,
                       &gpt->dweights.lnf_bias, true);
    for (int64_t l = gpt->shape.n_layer - 1; l >= 0; l--) {
        struct layer_activations *a = &all->layers[l];
        const struct layer_parameters *w = &gpt->weights.layers[l];
        const struct layer_parameters *dw = &gpt->dweights.layers[l];
        gpt_recompute(gpt, l);
        mlp_backward(gpt, w, dw, a);
        normalize_backward(gpt, p->ln2_out, p->attention_projection, &a->residual_mid, &a->ln2_mean,
                           &a->ln2_rstd, &w->ln2_weight, &dw->ln2_weight, &dw->ln2_bias, false);
        attention_block_backward(gpt, w, dw, a);
        normalize_backward(gpt, p->ln1_out, p->mlp_projection, &a->residual_in, &a->ln1_mean,
                           &a->ln1_rstd, &w->ln1_weight, &dw->ln1_weight, &dw->ln1_bias, false);
    }
    OP(gpt->be, embedding_backward, .dtoken_table = &gpt->dweights.wte,
       .dposition_table = &gpt->dweights.wpe, .dout = &all->dresidual, .tokens = all->tokens,
       .sequence_length = gpt->shape.sequence_length);
}
