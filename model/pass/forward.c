#include "model/pass/forward.h"

#include "model/core/exchange.h"
#include "model/pass/linear.h"

#include <assert.h>

/* Return the trace label of an operation that writes two activations, or one. */
static struct trace_label label_two(const struct pass *pass, enum activation_id first,
                                    enum activation_id second, int64_t layer) {
    return (struct trace_label){.count = pass->kind == PASS_RECOMPUTE ? 0 : 2,
                                .tensors = {{first, (int)layer}, {second, (int)layer}},
                                .first_row = pass_first_row(pass),
                                .rows = pass->rows};
}

static struct trace_label label_one(const struct pass *pass, enum activation_id id, int64_t layer) {
    struct trace_label label = label_two(pass, id, id, layer);
    if (label.count == 2) label.count = 1;
    return label;
}

static struct tensor rows_of(const struct pass *pass, const struct tensor *tensor) {
    return tensor_slice(tensor, pass_first_row(pass), pass->rows);
}

static float *statistics_of(const struct pass *pass, const struct tensor *tensor) {
    return tensor_range(tensor, pass_first_row(pass), pass->rows).data;
}

/* Scratch tensors hold only the rows of the pass. */
static struct tensor scratch_of(const struct pass *pass, const struct tensor *tensor) {
    return tensor_slice(tensor, 0, pass->rows);
}

/* Returns the means of a norm; NULL for RMS norm, which has none. */
static float *means_of(const struct pass *pass, const struct tensor *mean) {
    return pass->model->shape.norm == NORM_LAYERNORM ? statistics_of(pass, mean) : NULL;
}

/* Returns the amax to track while writing the input of a quantized linear layer. */
static struct amax *amax_of(const struct pass *pass, enum autocast_site site, int64_t l) {
    return quantization_amax(&pass->model->quantization, LINEAR_INPUT, site, l);
}

/* Adds a sub-layer's output to the residual stream and normalizes the sum for the next
 * sub-layer, which reads it as it is if it has no norm before it. */
struct add_and_normalize_args {
    const struct tensor *out, *sum, *mean, *rstd; /* [N, C], [N, C], [N], [N] of the batch */
    const struct tensor *in, *residual;           /* [N, C]; in: scratch, rows of the pass only */
    const struct tensor *weight, *bias;           /* [C]; rank 0: no norm */
    struct amax *track_amax;                      /* optional, of out */
    struct trace_label label;
};

static void add_and_normalize(const struct pass *pass, const struct add_and_normalize_args *args) {
    struct tensor branch = scratch_of(pass, args->in), out = rows_of(pass, args->out);
    struct tensor sum = rows_of(pass, args->sum), residual = rows_of(pass, args->residual);
    if (!args->weight->rank) {
        OP(pass->model->be, weighted_sum, .out = &sum, .a = &residual, .b = &branch,
           .columns = tensor_columns(&sum), .alpha = 1, .beta = 1);
        OP(pass->model->be, cast, .out = &out, .in = &sum, .track_amax = args->track_amax,
           .label = &args->label);
        return;
    }
    OP(pass->model->be, layernorm_forward, .out = &out, .sum = &sum,
       .mean = means_of(pass, args->mean), .rstd = statistics_of(pass, args->rstd), .in = &branch,
       .residual = &residual, .weight = args->weight, .bias = optional_tensor(args->bias),
       .epsilon = (float)pass->model->shape.norm_eps,
       .weight_offset = shape_weight_offset(&pass->model->shape), .track_amax = args->track_amax,
       .label = &args->label);
}

/* Drops elements of a tensor in place, in a pass of a training step, and multiplies by a factor; 0:
 * none. */
static void drop(const struct pass *pass, const struct tensor *tensor, enum dropout_use use,
                 int64_t layer, double factor) {
    const struct model *model = pass->model;
    const double probability = pass_drops(pass) ? model->dropout.residual : 0;
    if (probability == 0 && factor == 0) return;
    OP(model->be, dropout, .out = tensor, .in = tensor, .inputs = pass->batch.inputs,
       .key = dropout_key(&model->dropout, use, layer), .probability = probability,
       .scale = factor);
}

/* Returns the length of the sequences that the rows of a pass consist of. */
static int64_t length_of(const struct pass *pass) {
    const struct model_shape *s = &pass->model->shape;
    return pass->rows < s->sequence_length ? pass->rows : s->sequence_length;
}

/* The norm of the columns of qkv from `first` on, all heads of q or k, in place. */
struct whole_norm_args {
    const struct tensor *raw;    /* [N, columns of the heads] of the batch: written, for backward */
    const struct tensor *weight; /* [columns of the heads] */
    const struct tensor *rstd;   /* [N] of the batch */
    int64_t first;
    struct trace_label raw_label, normed_label, label;
};

static void normalize_whole(const struct pass *pass, const struct tensor *qkv, int64_t l,
                            const struct whole_norm_args *args) {
    const struct model *model = pass->model;
    const struct tensor raw = rows_of(pass, args->raw);
    const int64_t columns = tensor_columns(&raw);
    const struct tensor normed =
        tensor_view(&model->activations.layers[l].q_normed, pass->rows, columns);
    OP(model->be, weighted_sum, .out = &raw, .a = qkv, .a_first = args->first, .columns = columns,
       .alpha = 1, .label = &args->raw_label);
    OP(model->be, layernorm_forward, .out = &normed, .rstd = statistics_of(pass, args->rstd),
       .in = &raw, .weight = args->weight, .epsilon = (float)model->shape.norm_eps,
       .weight_offset = shape_weight_offset(&model->shape), .label = &args->normed_label);
    OP(model->be, weighted_sum, .out = qkv, .out_first = args->first, .a = &normed,
       .columns = columns, .alpha = 1, .label = &args->label);
}

/* Normalizes q and k, each as a whole. */
static void normalize_projections(const struct pass *pass, const struct tensor *qkv, int64_t l) {
    const struct layer_parameters *w = &pass->model->weights.layers[l];
    const struct layer_activations *a = &pass->model->activations.layers[l];
    normalize_whole(pass, qkv, l,
                    ARGS(whole_norm, .raw = &a->q_raw, .weight = &w->q_norm_weight,
                         .rstd = &a->q_norm_rstd, .raw_label = label_one(pass, ACTIVATION_q_raw, l),
                         .normed_label = label_one(pass, ACTIVATION_q_normed, l)));
    normalize_whole(pass, qkv, l,
                    ARGS(whole_norm, .raw = &a->k_raw, .weight = &w->k_norm_weight,
                         .rstd = &a->k_norm_rstd, .first = shape_q(&pass->model->shape),
                         .raw_label = label_one(pass, ACTIVATION_k_raw, l),
                         .label = label_one(pass, ACTIVATION_qkv, l)));
}

/* Normalizes the heads of q and k, which are adjacent columns, and applies rope. */
static void prepare_heads(const struct pass *pass, const struct tensor *qkv, int64_t l) {
    const struct model_shape *s = &pass->model->shape;
    const struct layer_parameters *w = &pass->model->weights.layers[l];
    const struct tensor *angles = model_angles(pass->model, l);
    const bool fuses = shape_rotary(s) == s->head_dim; /* the norm rotates whole heads */
    struct tensor raw;
    if (s->qk_norm_whole) normalize_projections(pass, qkv, l);
    if (s->qk_norm && !s->qk_norm_whole) {
        raw = rows_of(pass, &pass->model->activations.layers[l].qk_raw);
        const struct trace_label label = label_two(pass, ACTIVATION_qk_raw, ACTIVATION_qkv, l);
        OP(pass->model->be, qk_norm_forward, .inout = qkv, .raw = &raw,
           .q_weight = &w->q_norm_weight, .k_weight = &w->k_norm_weight,
           .angles = fuses ? angles : NULL, .positions = pass->batch.positions,
           .sequence_length = length_of(pass), .heads = (int)s->n_head,
           .kv_heads = (int)s->n_kv_head, .epsilon = (float)s->norm_eps,
           .weight_offset = shape_weight_offset(s), .label = &label);
        if (fuses) return;
    }
    if (angles)
        OP(pass->model->be, rope, .inout = qkv, .angles = angles,
           .positions = pass->batch.positions, .sequence_length = length_of(pass),
           .heads = (int)(s->n_head + s->n_kv_head), .head_dim = (int)s->head_dim,
           .query_angles = optional_tensor(&pass->model->query_angles),
           .query_heads = (int)s->n_head, .neighbours = s->rope_interleaved);
}

void model_split_gates(const struct model *model, const struct gate_columns *columns, bool join) {
    const struct model_shape *s = &model->shape;
    const int64_t q = shape_q(s), size = s->head_dim;
    const struct {
        const struct tensor *part;
        int64_t first, whole_first, columns, group;
        const struct trace_label *label;
    } moves[] = {{columns->qkv, 0, 0, q, size, NULL},
                 {columns->gate, 0, size, q, size, &columns->gate_label},
                 {columns->qkv, q, 2 * q, 2 * shape_kv(s), 0, &columns->qkv_label}};
    for (int i = 0; i < 3; i++)
        OP(model->be, weighted_sum, .out = join ? columns->whole : moves[i].part,
           .a = join ? moves[i].part : columns->whole,
           .out_first = join ? moves[i].whole_first : moves[i].first,
           .a_first = join ? moves[i].first : moves[i].whole_first, .columns = moves[i].columns,
           .group = moves[i].group, .out_step = join ? 2 * size : size,
           .a_step = join ? size : 2 * size, .alpha = 1,
           .label = !join    ? moves[i].label
                    : i == 2 ? &columns->whole_label
                             : NULL);
}

/* Stores keys and values for later rows, unless qkv itself is the cache. */
static void store_keys_and_values(const struct pass *pass, const struct tensor *qkv, int64_t l) {
    struct tensor cache = model_cache(pass->model, l);
    const bool scatters = pass->decode.scatters;
    if (!pass->model->has_cache) return;
    if (!scatters) cache = tensor_slice(&cache, pass->cache_row, pass->rows);
    OP(pass->model->be, copy_last_columns, .out = &cache, .in = qkv,
       .keys = scatters ? pass->batch.keys : NULL, .stride = pass->decode.stride);
}

/* Attention of rows to the keys that batch.keys names: in the cache, or elsewhere in the batch. */
static void attend_to_keys(const struct pass *pass, int64_t l) {
    struct model *model = pass->model;
    struct layer_activations *a = &model->activations.layers[l];
    const struct pass_decode *decode = &pass->decode;
    const bool extends = pass->kind == PASS_EXTEND;
    const int64_t window = model_window(model, l);
    const int64_t outside = decode->scatters ? 0 : decode->least - window;
    const int64_t first = extends ? pass_first_row(pass) : decode->first;
    const int64_t rows = extends ? pass->rows : decode->rows;
    struct tensor cache = extends ? model_cache(model, l) : a->qkv;
    struct tensor q = tensor_slice(&a->qkv, first, rows);
    struct tensor out = tensor_slice(&a->attention_out, first, rows);
    const struct trace_label label = label_one(pass, ACTIVATION_attention_out, l);
    OP(model->be, attention_decode, .out = &out, .q = &q, .cache = &cache, .keys = pass->batch.keys,
       .stride = decode->stride, .keys_from = window > 0 && outside > 0 ? outside : 0,
       .keys_to = decode->longest, .keys_max = model->capacity.sequence_length,
       .split_as = decode->scatters ? model->texts : 0, .window = window,
       .scale = model_attention_scale(model), .softcap = (float)model->shape.attention_softcap,
       .heads = (int)model->shape.n_head, .kv_heads = (int)model->shape.n_kv_head,
       .label = extends ? &label : NULL);
}

static void attend(const struct pass *pass, int64_t l) {
    struct layer_activations *a = &pass->model->activations.layers[l];
    const struct model_shape *s = &pass->model->shape;
    struct tensor out = rows_of(pass, &a->attention_out), qkv = rows_of(pass, &a->qkv);
    const struct trace_label label = label_one(pass, ACTIVATION_attention_out, l);
    qkv = tensor_split(&qkv, s->batch, pass->rows / s->batch);
    out = tensor_split(&out, s->batch, pass->rows / s->batch);
    OP(pass->model->be, attention_forward, .out = &out, .lse = a->lse.data, .qkv = &qkv,
       .first_keys = pass->batch.first_keys, .window = model_window(pass->model, l),
       .scale = model_attention_scale(pass->model), .softcap = (float)s->attention_softcap,
       .track_amax = s->attention_gate ? NULL : amax_of(pass, SITE_ATTENTION_PROJECTION, l),
       .heads = (int)s->n_head, .kv_heads = (int)s->n_kv_head, .label = &label);
    if (pass->decode.rows > 0) attend_to_keys(pass, l);
}

/* With a cache, a pass runs rows of one text or, if there are several, one row of each. Their
 * states are those of the texts. */
struct carried {
    struct tensor state, tail; /* of the texts of the pass; rank 0: nothing is carried */
    int64_t rows;              /* of a text, without padding */
    bool resumes;
};

static struct carried carried_of(const struct pass *pass, int64_t l, int64_t texts) {
    const struct model *model = pass->model;
    struct carried carried = {.rows = pass->state_rows > 0 ? pass->state_rows : pass->rows / texts,
                              .resumes = pass->kind == PASS_EXTEND};
    if (!pass_has_cache(pass)) return carried;
    carried.state = model_state(model, &model->states, l, pass->text, texts);
    carried.tail = model_state(model, &model->tails, l, pass->text, texts);
    return carried;
}

/* Computes delta_out of qkv in a Gated DeltaNet (kernels/delta_rule_args.h). */
static void mix_by_delta_rule(const struct pass *pass, int64_t l) {
    struct model *model = pass->model;
    const struct model_shape *s = &model->shape;
    const struct layer_parameters *w = &model->weights.layers[l];
    const struct layer_activations *a = &model->activations.layers[l];
    const int64_t sequences = pass->kind == PASS_EXTEND ? model->texts : s->batch;
    const int64_t length = pass->rows / sequences, kernel = s->linear_conv_kernel_dim;
    const struct carried carried = carried_of(pass, l, sequences);
    const struct tensor qkv = rows_of(pass, &a->qkv), convolved = rows_of(pass, &a->convolved);
    const struct tensor mixed = rows_of(pass, &a->delta_out), raw = rows_of(pass, &a->delta_raw);
    const struct tensor in = tensor_split(&qkv, sequences, length);
    const struct tensor between = tensor_split(&convolved, sequences, length);
    const struct tensor rule = tensor_split(&mixed, sequences, length);
    const struct trace_label labels[] = {
        label_one(pass, ACTIVATION_convolved, l),
        label_two(pass, ACTIVATION_delta_raw, ACTIVATION_delta_out, l)};
    struct tensor tail = carried.tail;
    if (tail.rank) {
        tail = tensor_view(&tail, sequences * (kernel - 1), shape_convolved(s));
        tail = tensor_split(&tail, sequences, kernel - 1);
    }
    masters_cast(&model->masters, model->be, l, SITE_ATTENTION);
    OP(model->be, causal_convolution_forward, .out = &between, .tail = optional_tensor(&tail),
       .in = &in, .weight = &w->conv_weight, .first_keys = pass->batch.first_keys,
       .state_rows = carried.rows, .resumes = carried.resumes, .label = &labels[0]);
    OP(model->be, delta_rule_forward, .out = &rule,
       .states = pass_drops(pass) ? a->delta_states.data : NULL, .state = carried.state.data,
       .qkv = &between, .gates = &in, .A_log = &w->a_log, .dt_bias = &w->dt_bias,
       .first_keys = pass->batch.first_keys, .gates_column = shape_convolved(s) + shape_values(s),
       .state_rows = carried.rows, .resumes = carried.resumes,
       .key_heads = (int)s->linear_num_key_heads, .value_heads = (int)s->linear_num_value_heads,
       .key_size = (int)s->linear_key_head_dim);
    OP(model->be, qk_norm_forward, .inout = &mixed, .raw = &raw, .q_weight = &w->gated_norm_weight,
       .k_weight = &w->gated_norm_weight, .heads = (int)s->linear_num_value_heads,
       .epsilon = (float)s->norm_eps, .label = &labels[1]);
}

/* Computes attention_out of qkv by attention. */
static void mix_by_attention(const struct pass *pass, int64_t l) {
    const struct tensor qkv = rows_of(pass, &pass->model->activations.layers[l].qkv);
    prepare_heads(pass, &qkv, l);
    if (pass_has_cache(pass)) store_keys_and_values(pass, &qkv, l);
    if (pass->kind == PASS_EXTEND) attend_to_keys(pass, l);
    else attend(pass, l);
}

struct mixer_gate model_mixer_gate(const struct model *model, int64_t l) {
    if (!shape_of_layer(&model->shape, l).is_delta)
        return (struct mixer_gate){ACTIVATION_gate, ACTIVATION_attention_out, 0, GATE_SIGMOID};
    const int64_t column = shape_convolved(&model->shape);
    return (struct mixer_gate){ACTIVATION_qkv, ACTIVATION_delta_out, column, GATE_SILU};
}

void model_gate_mixed(const struct pass *pass, int64_t l) {
    struct activations *all = &pass->model->activations;
    const struct mixer_gate gate = model_mixer_gate(pass->model, l);
    const struct tensor out = scratch_of(pass, &all->layers[l].gated);
    const struct tensor gates = rows_of(pass, activation_tensor(all, gate.gate, l));
    const struct tensor in = rows_of(pass, activation_tensor(all, gate.in, l));
    const struct trace_label label = label_one(pass, ACTIVATION_gated, l);
    OP(pass->model->be, gated_forward, .out = &out, .gate_up = &gates, .up = &in,
       .gate_column = gate.column, .gate = gate.function,
       .track_amax = amax_of(pass, SITE_ATTENTION_PROJECTION, l), .label = &label);
}

static void mlp_hidden(const struct pass *pass, int64_t l) {
    const struct layer_parameters *w = &pass->model->weights.layers[l];
    struct layer_activations *a = &pass->model->activations.layers[l];
    struct tensor in = rows_of(pass, &a->ln2_out), hidden = rows_of(pass, &a->mlp_fc);
    struct tensor out = rows_of(pass, &a->mlp_activated);
    const bool fuses = pass->model->shape.mlp == MLP_GELU;
    struct amax *track_amax = amax_of(pass, SITE_MLP_PROJECTION, l);
    const struct trace_label label =
        fuses ? label_two(pass, ACTIVATION_mlp_fc, ACTIVATION_mlp_activated, l)
              : label_one(pass, ACTIVATION_mlp_fc, l);
    linear_forward(pass,
                   ARGS(linear_forward, .site = SITE_MLP_FC, .layer = l,
                        .out = fuses ? &out : &hidden, .in = &in, .weight = &w->mlp_fc_weight,
                        .bias = &w->mlp_fc_bias, .epilogue = fuses ? MATMUL_GELU : MATMUL_STORE,
                        .pre_activation = fuses ? &hidden : NULL,
                        .track_amax = fuses ? track_amax : NULL, .label = &label));
    if (fuses) return;
    const struct trace_label gate_label = label_one(pass, ACTIVATION_mlp_activated, l);
    if (pass->model->shape.mlp == MLP_RELU2)
        OP(pass->model->be, gelu_forward, .out = &out, .in = &hidden, .relu2 = true,
           .track_amax = track_amax, .label = &gate_label);
    else
        OP(pass->model->be, gated_forward, .out = &out, .gate_up = &hidden,
           .gate = model_gate(&pass->model->shape), .track_amax = track_amax, .label = &gate_label);
}

/* Computes the first norm of a layer from its stored input. */
static void normalize_in(const struct pass *pass, int64_t l) {
    const struct layer_parameters *w = &pass->model->weights.layers[l];
    struct layer_activations *a = &pass->model->activations.layers[l];
    struct tensor out = rows_of(pass, &a->ln1_out), in = rows_of(pass, &a->residual_in);
    const struct trace_label label = label_one(pass, ACTIVATION_ln1_out, l);
    struct amax *track_amax = amax_of(pass, SITE_QKV, l);
    if (!w->ln1_weight.rank) {
        OP(pass->model->be, cast, .out = &out, .in = &in, .track_amax = track_amax,
           .label = &label);
        return;
    }
    OP(pass->model->be, layernorm_forward, .out = &out, .mean = means_of(pass, &a->ln1_mean),
       .rstd = statistics_of(pass, &a->ln1_rstd), .in = &in, .weight = &w->ln1_weight,
       .bias = optional_tensor(&w->ln1_bias), .epsilon = (float)pass->model->shape.norm_eps,
       .weight_offset = shape_weight_offset(&pass->model->shape), .track_amax = track_amax,
       .label = &label);
}

static void embed(const struct pass *pass) {
    struct model *model = pass->model;
    struct tensor residual = rows_of(pass, &model->activations.layers[0].residual_in);
    bool learned = model->shape.positions == POSITIONS_LEARNED;
    const struct trace_label label = label_one(pass, ACTIVATION_residual_in, 0);
    OP(model->be, embedding_forward, .out = &residual, .tokens = pass->batch.tokens,
       .token_table = &model->token_table, .token_remainder = model->token_remainder,
       .token_scale = model_embedding_scale(model),
       .position_table = learned ? &model->weights.wpe : NULL,
       .positions = learned ? pass->batch.positions : NULL, .sequence_length = length_of(pass),
       .label = &label);
    drop(pass, &residual, DROPOUT_EMBEDDING, 0, 0);
    normalize_in(pass, 0);
}

/* Ends layer l with the first norm of the next layer, or with the final norm. */
static void normalize_out(const struct pass *pass, int64_t l) {
    struct model *model = pass->model;
    struct activations *all = &model->activations;
    struct layer_activations *a = &all->layers[l], *next = &all->layers[l + 1];
    const struct layer_parameters *next_w = &model->weights.layers[l + 1];
    struct add_and_normalize_args args = {.in = &a->mlp_projection, .residual = &a->residual_mid};
    if (l == model->shape.n_layer - 1) {
        args.out = &all->lnf_out, args.sum = &all->residual_final;
        args.mean = &all->lnf_mean, args.rstd = &all->lnf_rstd;
        args.weight = &model->weights.lnf_weight, args.bias = &model->weights.lnf_bias;
        args.label = label_two(pass, ACTIVATION_residual_final, ACTIVATION_lnf_out, 0);
    } else {
        args.out = &next->ln1_out, args.sum = &next->residual_in;
        args.mean = &next->ln1_mean, args.rstd = &next->ln1_rstd;
        args.weight = &next_w->ln1_weight, args.bias = &next_w->ln1_bias;
        args.track_amax = amax_of(pass, SITE_QKV, l + 1);
        args.label = label_two(pass, ACTIVATION_residual_in, ACTIVATION_ln1_out, l + 1);
    }
    add_and_normalize(pass, &args);
    /* Logits are linear in the head's input, which has far fewer elements. */
    const struct tensor head_in = rows_of(pass, &all->lnf_out);
    if (l == model->shape.n_layer - 1 && model->shape.logits_scaling > 0)
        OP(model->be, dropout, .out = &head_in, .in = &head_in,
           .scale = 1 / model->shape.logits_scaling);
}

/* A linear layer without an epilogue, whose output is the activation `id`. */
static void linear(const struct pass *pass, enum activation_id id,
                   const struct linear_forward_args *args) {
    struct linear_forward_args labelled = *args;
    const struct trace_label label = label_one(pass, id, args->layer);
    const struct model_shape own = shape_of_layer(&pass->model->shape, args->layer);
    /* If q and k are normalized, the norm writes the traced qkv, so this matmul has no label.
     */
    if (id != ACTIVATION_qkv || !own.qk_norm) labelled.label = &label;
    linear_forward(pass, &labelled);
}

/* Computes qkv, and in a model with gates these. */
static void project_heads(const struct pass *pass, const struct tensor *qkv, int64_t l) {
    const struct model *model = pass->model;
    const struct layer_parameters *w = &model->weights.layers[l];
    const struct layer_activations *a = &model->activations.layers[l];
    const bool gates = shape_of_layer(&model->shape, l).attention_gate;
    const struct tensor ln1_out = rows_of(pass, &a->ln1_out);
    const struct tensor whole = gates ? scratch_of(pass, &a->qkv_gate) : *qkv;
    linear(pass, gates ? ACTIVATION_qkv_gate : ACTIVATION_qkv,
           ARGS(linear_forward, .site = SITE_QKV, .layer = l, .out = &whole, .in = &ln1_out,
                .weight = &w->qkv_weight, .bias = &w->qkv_bias));
    if (!gates) return;
    const struct tensor gate = rows_of(pass, &a->gate);
    struct gate_columns columns = {.whole = &whole,
                                   .qkv = qkv,
                                   .gate = &gate,
                                   .gate_label = label_one(pass, ACTIVATION_gate, l)};
    if (!model->shape.qk_norm) columns.qkv_label = label_one(pass, ACTIVATION_qkv, l);
    model_split_gates(model, &columns, false);
}

/* A linear layer that writes to the residual stream: its output is `branch` or, with a norm of
 * this weight after it, `raw`, which the norm turns into the branch. */
struct branch_args {
    struct linear_forward_args linear; /* out is set here */
    enum activation_id raw, branch;
    const struct tensor *weight; /* [C], or rank 0: no norm */
    const struct tensor *rstd;   /* [N] of the batch */
    enum dropout_use dropout;
};

static void project_branch(const struct pass *pass, const struct branch_args *args) {
    struct model *model = pass->model;
    const int64_t l = args->linear.layer;
    const struct tensor branch =
        scratch_of(pass, activation_tensor(&model->activations, args->branch, l));
    const struct trace_label label = label_one(pass, args->branch, l);
    struct linear_forward_args projection = args->linear;
    struct tensor raw = branch;
    if (model->shape.post_norm)
        raw = rows_of(pass, activation_tensor(&model->activations, args->raw, l));
    projection.out = &raw;
    linear(pass, model->shape.post_norm ? args->raw : args->branch, &projection);
    if (model->shape.post_norm)
        OP(model->be, layernorm_forward, .out = &branch, .rstd = statistics_of(pass, args->rstd),
           .in = &raw, .weight = args->weight, .epsilon = (float)model->shape.norm_eps,
           .weight_offset = shape_weight_offset(&model->shape), .label = &label);
    drop(pass, &branch, args->dropout, l, model->shape.residual_multiplier);
}

/* Runs layer l on N rows, from residual_in and its norm ln1_out to those of the next layer. H
 * heads of size D read H_kv heads of keys and values; F is the width of the MLP. The order is
 * mirrored by layer_backward. */
static void layer_forward(const struct pass *pass, int64_t l) {
    const struct layer_parameters *w = &pass->model->weights.layers[l];
    const struct layer_activations *a = &pass->model->activations.layers[l];
    const struct model_shape own = shape_of_layer(&pass->model->shape, l);
    const struct tensor qkv = rows_of(pass, &a->qkv);
    const struct tensor mixed =
        shape_gates(&own) ? scratch_of(pass, &a->gated) : rows_of(pass, &a->attention_out);
    const struct tensor mlp_activated = rows_of(pass, &a->mlp_activated);

    /* 1. qkv [N, (H + 2 H_kv) D] of ln1_out [N, C], and gates [N, H D]; in a Gated DeltaNet
     * what its operations read */
    project_heads(pass, &qkv, l);
    /* 2, 3. norm of the heads of q and k, and rope, in place; attention_out [N, H D] */
    if (own.is_delta) mix_by_delta_rule(pass, l);
    else mix_by_attention(pass, l);
    if (shape_gates(&own)) model_gate_mixed(pass, l);
    /* 4. attention_projection [N, C] */
    project_branch(pass, ARGS(branch,
                              .linear = {.site = SITE_ATTENTION_PROJECTION,
                                         .layer = l,
                                         .in = &mixed,
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
    /* 6. mlp_fc [N, F], or [N, 2 F] if gated, and mlp_activated [N, F] */
    mlp_hidden(pass, l);
    /* The backward pass reads nothing of the rest but the input of a last norm. */
    if (pass->kind == PASS_RECOMPUTE && !pass->model->shape.post_norm) return;
    /* 7. mlp_projection [N, C] */
    project_branch(pass,
                   ARGS(branch,
                        .linear = {.site = SITE_MLP_PROJECTION,
                                   .layer = l,
                                   .in = &mlp_activated,
                                   .weight = &w->mlp_projection_weight,
                                   .bias = &w->mlp_projection_bias},
                        .raw = ACTIVATION_mlp_projection_raw, .branch = ACTIVATION_mlp_projection,
                        .weight = &w->post_mlp_norm_weight, .rstd = &a->post_mlp_norm_rstd,
                        .dropout = DROPOUT_MLP));
    if (pass->kind == PASS_RECOMPUTE) return;
    /* 8. the next layer's residual_in = residual_mid + mlp_projection, and its norm */
    layer_stream_wait(&pass->model->saved, pass->model->be, l + 1);
    normalize_out(pass, l);
}

/* Sends the saved activations of a layer to the host, unless the backward pass will find them
 * in their buffer. */
static void save_layer(struct model *model, int64_t l) {
    layer_stream_hold(&model->saved, l);
    if (l + BACKEND_SLOTS < model->shape.n_layer) layer_stream_send(&model->saved, model->be, l);
}

void model_forward(const struct pass *pass) {
    struct model *model = pass->model;
    assert(!pass_has_cache(pass) || pass->batch.batch == 1);
    assert(pass->kind != PASS_PREFILL || model->has_cache || pass->cache_row == 0);
    assert(pass->kind != PASS_EXTEND || pass->rows <= model_added_max(model));
    model_set_batch(model, pass->batch.batch, pass->batch.length);
    quantization_begin_pass(&model->quantization, pass->kind == PASS_TRAIN && !pass->first,
                            pass->decode.rows > 0 || pass->kind == PASS_EXTEND);
    layer_stream_begin(&model->masters.stream);
    layer_stream_begin(&model->saved);
    exchange_weights_arrived(model->exchange, -1);
    embed(pass);
    for (int64_t l = 0; l < model->shape.n_layer; l++) {
        exchange_weights_arrived(model->exchange, l);
        masters_ready(&model->masters, model->be, l, l + 1);
        layer_forward(pass, l);
        if (pass->kind == PASS_TRAIN) save_layer(model, l);
    }
}

void model_recompute(const struct pass *pass, int64_t layer) {
    struct model *model = pass->model;
    struct pass again = *pass;
    struct layer_activations *a = &model->activations.layers[layer];
    again.kind = PASS_RECOMPUTE;
    if (model->recompute == RECOMPUTE_NONE || layer == model->shape.n_layer - 1) return;
    if (model->recompute == RECOMPUTE_LAYER) {
        /* The first norm reads the stored sum, so its summands are not recomputed. */
        normalize_in(&again, layer);
        layer_forward(&again, layer);
    } else if (mlp_is_gated(model->shape.mlp)) {
        OP(model->be, gated_forward, .out = &a->mlp_activated, .gate_up = &a->mlp_fc,
           .gate = model_gate(&model->shape));
    } else if (!model_gelu_is_fused(&model->shape, &model->precision, model->be, layer)) {
        OP(model->be, gelu_forward, .out = &a->mlp_activated, .in = &a->mlp_fc,
           .relu2 = model->shape.mlp == MLP_RELU2);
    } else {
        mlp_hidden(&again, layer);
    }
}

/* Returns the trace label of an operation that writes rows of lnf_out or logits, or of their
 * gradient. */
static struct trace_label label_rows(enum activation_id id, bool gradient, int64_t first,
                                     int64_t rows) {
    return (struct trace_label){1, gradient, {{id, 0}}, first, rows};
}

/* The input of a run of the head, and its gradient: lnf_out, or copies of its rows. */
struct head_input {
    struct tensor in, din; /* [rows of the run, C] */
    bool gathered;
};

static struct head_input head_input_of(const struct pass *pass) {
    struct activations *a = &pass->model->activations;
    const int64_t counted = pass->batch.counted;
    if (counted == 0) return (struct head_input){a->lnf_out, a->gradients.lnf_out, false};
    return (struct head_input){tensor_slice(&a->head_in, 0, counted),
                               tensor_slice(&a->dhead_in, 0, counted), true};
}

/* Computes the gradients of the head's input, rows from first on, and of its weights. */
static void loss_backward(const struct pass *pass, const struct head_input *input,
                          const struct tensor *logits, int64_t first) {
    struct model *model = pass->model;
    const int64_t rows = tensor_rows(logits);
    const struct trace_label label = label_rows(ACTIVATION_lnf_out, true, first, rows);
    struct tensor in = tensor_slice(&input->in, first, rows);
    struct tensor din = tensor_slice(&input->din, first, rows);
    OP(model->be, matmul, .out = &din, .a = logits, .b = model->head,
       .label = input->gathered ? NULL : &label);
    if (model->dhead->rank)
        OP(model->be, matmul, .out = model->dhead, .a = logits, .transpose_a = true, .b = &in,
           .accumulate = !pass->first || first > 0);
}

/* Computes logits of the head's input, rows of lnf_out. */
static void compute_logits(struct model *model, const struct tensor *logits,
                           const struct tensor *in, const struct trace_label *label) {
    const float cap = (float)model->shape.logit_softcap;
    OP(model->be, matmul, .out = logits, .a = in, .b = model->head, .transpose_b = true,
       .label = cap > 0 ? NULL : label);
    if (cap > 0) OP(model->be, softcap, .inout = logits, .cap = cap, .label = label);
}

static void run_chunk(const struct pass *pass, const struct head_args *args,
                      const struct head_input *input, int64_t first, int64_t rows) {
    struct model *model = pass->model;
    const struct batch_view *batch = &pass->batch;
    const struct model_shape *s = &model->shape;
    const struct tensor in = tensor_slice(&input->in, first, rows);
    const struct trace_label label = label_rows(ACTIVATION_logits, false, first, rows);
    const struct trace_label dlabel = label_rows(ACTIVATION_logits, true, first, rows);
    const struct head_chunk chunk = {
        .logits = tensor_slice(&model->activations.logits, 0, rows),
        .first = input->gathered ? 0 : first,
        .places = input->gathered ? batch->counted_rows + first : NULL,
        .label = &dlabel,
    };
    if (!args->has_logits) compute_logits(model, &chunk.logits, &in, &label);
    if (args->op) args->op(pass, &chunk);
    else
        OP(model->be, cross_entropy, .losses = args->losses ? args->losses + chunk.first : NULL,
           .logits = &chunk.logits, .targets = batch->targets ? batch->targets + chunk.first : NULL,
           .loss_scale = args->has_gradients ? pass->loss_scale : NULL, .inputs = batch->inputs,
           .weights = args->weights ? args->weights + chunk.first : NULL, .places = chunk.places,
           .softcap = (float)s->logit_softcap, .vocab_size = s->vocab_size,
           .label = args->has_gradients ? &dlabel : NULL);
    if (args->has_gradients) loss_backward(pass, input, &chunk.logits, first);
}

/* Plans the last chunks of all numbers of counted rows. A GPU's products are not tried for
 * them. */
static void plan_counted(const struct pass *pass, const struct head_args *args,
                         const struct head_input *input) {
    struct backend *be = pass->model->be;
    const int64_t all = pass->model->shape.rows, most = pass->model->shape.logit_rows;
    const int64_t unit = pass->batch.counted_unit;
    if (unit == 0 || !backend_plans(be)) return;
    const bool only_sizes = backend_plan_sizes(be, true);
    for (int64_t counted = unit; counted < all; counted += unit) {
        const int64_t first = (counted - 1) / most * most;
        run_chunk(pass, args, input, first, counted - first);
    }
    backend_plan_sizes(be, only_sizes);
}

void model_head(const struct pass *pass, const struct head_args *args) {
    struct model *model = pass->model;
    const struct batch_view *batch = &pass->batch;
    struct tensor *dlnf_out = &model->activations.gradients.lnf_out;
    const struct head_input input = head_input_of(pass);
    const int64_t rows = tensor_rows(&input.in), most = model->shape.logit_rows;
    exchange_weights_arrived(model->exchange, model->shape.n_layer);
    masters_cast(&model->masters, model->be, -1, SITE_LM_HEAD);
    if (input.gathered) {
        OP(model->be, gather_rows, .out = &input.in, .in = &model->activations.lnf_out,
           .rows = batch->counted_rows);
        OP(model->be, clear, .data = args->losses,
           .bytes = (size_t)model->shape.rows * sizeof *args->losses);
    }
    for (int64_t first = 0; first < rows; first += most)
        run_chunk(pass, args, &input, first, rows - first < most ? rows - first : most);
    plan_counted(pass, args, &input);
    if (input.gathered && args->has_gradients) {
        const struct trace_label label = label_rows(ACTIVATION_lnf_out, true, 0, model->shape.rows);
        OP(model->be, gather_rows, .out = dlnf_out, .in = &input.din, .rows = batch->counted_places,
           .label = &label);
    }
}

bool head_is_one_chunk(const struct pass *pass) {
    const struct head_input input = head_input_of(pass);
    return tensor_rows(&input.in) <= pass->model->shape.logit_rows;
}

void model_logits(struct model *model, int64_t first, int64_t rows) {
    struct tensor in = tensor_slice(&model->activations.lnf_out, first, rows);
    struct tensor logits = tensor_slice(&model->activations.logits, 0, rows);
    masters_cast(&model->masters, model->be, -1, SITE_LM_HEAD);
    compute_logits(model, &logits, &in, NULL);
}
