#include "model/core/gpt.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/min_max.h"
#include "model/config/config_keys.h"
#include "model/core/added_rows.h"
#include "model/core/rope.h"

/* Returns the rows of a chunk of logits that fits in chunk_bytes. Chunks are equal, in multiples of
 * 64 so that matrix units are full. */
static int64_t choose_logit_rows(const struct gpt_shape *s, enum dtype logits, size_t chunk_bytes) {
    int64_t fit = (int64_t)chunk_bytes / (s->padded_vocab * (int64_t)dtype_bytes(logits));
    if (fit < 64) fit = 64;
    if (fit >= s->rows) return s->rows;
    int64_t chunks = (s->rows + fit - 1) / fit;
    return round_up((s->rows + chunks - 1) / chunks, 64);
}

static void set_batch(struct gpt_shape *s, int64_t batch, int64_t sequence_length,
                      enum dtype logits, size_t chunk_bytes) {
    s->batch = batch;
    s->sequence_length = sequence_length;
    s->rows = batch * sequence_length;
    s->logit_rows = choose_logit_rows(s, logits, chunk_bytes);
}

static struct tensor tensor_at(const struct tensor *flat, int64_t offset, int64_t rows,
                               int64_t columns) {
    struct tensor tensor = {NULL, flat->dtype, columns ? 2 : 1, {rows, columns}};
    if (flat->data) tensor.data = (char *)flat->data + (size_t)offset * dtype_bytes(flat->dtype);
    return tensor;
}

/* Adds the rows of a fused parameter to the tensor of the first one of its group. */
static void fuse(struct gpt *gpt, const struct parameter *p) {
    const struct parameter *first = p;
    while (first->fused_with_previous) first--;
    parameter_tensor(&gpt->weights, first)->shape[0] += p->extent.rows;
    parameter_tensor(&gpt->dweights, first)->shape[0] += p->extent.rows;
}

/* Returns the gradient of a parameter. That of a frozen norm is written but never read. */
static struct tensor gradient_of(const struct gpt *gpt, const struct parameter *p) {
    const struct extent *extent = &p->extent;
    const struct gradient_stream *stream = &gpt->gradient_stream;
    if (gradient_stream_has(stream, p))
        return tensor_at(&stream->buffers, gradient_stream_place(stream, p), extent->padded_rows,
                         extent->columns);
    if (p->group != GROUP_FROZEN) {
        const struct tensor stored = gpt_gradients(gpt, p->offset, p->elements);
        return tensor_at(&stored, 0, extent->padded_rows, extent->columns);
    }
    if (p->site == SITE_LAYERNORM)
        return tensor_at(&gpt->unused_gradients, 0, extent->padded_rows, extent->columns);
    return (struct tensor){0};
}

/* Returns the elements of the largest gradient that only unused_gradients holds. */
static int64_t unused_count(const struct gpt *gpt) {
    int64_t largest = 0;
    for (ptrdiff_t i = parameter_trained_count(gpt->list); i < arrlen(gpt->list); i++)
        if (gpt->list[i].site == SITE_LAYERNORM && gpt->list[i].elements > largest)
            largest = gpt->list[i].elements;
    return largest;
}

/* Lays out all parameter memory; called once to measure and once to assign addresses. */
static void layout_parameters(struct gpt *gpt, struct arena *arena, struct arena *host) {
    struct memory_plan *m = &gpt->memory;
    masters_layout(&gpt->masters, arena, host);
    m->master = arena->used;
    masters_layout_copies(&gpt->masters, arena);
    m->copies = arena->used - m->master;
    if (gpt->use == GPT_TRAINING) {
        gradient_stream_layout(&gpt->gradient_stream, arena, host);
        gpt->gradients = arena_tensor(arena, gpt->precision.gradients,
                                      gpt->trained_count - gpt->gradient_stream.count, 0);
        gpt->unused_gradients = arena_tensor(arena, gpt->precision.gradients, unused_count(gpt), 0);
    }
    m->gradients = arena->used - m->master - m->copies;
    for (ptrdiff_t i = 0; i < arrlen(gpt->list); i++) {
        const struct parameter *p = &gpt->list[i];
        *parameter_tensor(&gpt->weights, p) = masters_read_tensor(&gpt->masters, p);
        if (gpt->use == GPT_TRAINING) *parameter_tensor(&gpt->dweights, p) = gradient_of(gpt, p);
        if (p->fused_with_previous) fuse(gpt, p);
    }
    gpt->head = parameter_tensor(&gpt->weights, parameter_head(gpt->list));
    gpt->dhead = parameter_tensor(&gpt->dweights, parameter_head(gpt->list));
    gpt->token_table =
        masters_tensor(&gpt->masters, parameter_wte(gpt->list), &gpt->token_remainder);
}

/* Lays out the scratch buffers, each as large as the largest tensor that uses it. */
static void layout_scratch(const struct gpt *gpt, struct arena *arena,
                           void *scratch[SCRATCH_COUNT]) {
    const struct precision *p = &gpt->precision;
    size_t bytes[SCRATCH_COUNT] = {0};
    for (int i = 0; i < ACTIVATION_COUNT; i++) {
        const struct activation *a = &activation_table[i];
        struct extent extent = activation_extent((enum activation_id)i, &gpt->shape);
        size_t size = (size_t)(extent.rows * extent.columns) * dtype_bytes(p->activation[i]);
        if (size > bytes[a->memory]) bytes[a->memory] = size;
        if (gpt->use == GPT_TRAINING && size > bytes[a->gradient]) bytes[a->gradient] = size;
    }
    bytes[SCRATCH_NONE] = 0;
    if (gpt_branch_is_residual(gpt)) bytes[SCRATCH_dbranch] = 0;
    for (int i = 0; i < SCRATCH_COUNT; i++) scratch[i] = arena_take(arena, bytes[i]);
    if (gpt_branch_is_residual(gpt)) scratch[SCRATCH_dbranch] = scratch[SCRATCH_dresidual];
}

/* True if the backward pass of a linear layer reads its input: for the gradient of its weight or of
 * its adapters. */
static bool reads_input_again(const struct gpt *gpt, enum autocast_site site) {
    return !shape_has_adapters(&gpt->shape) || shape_adapts(&gpt->shape, site);
}

/* Lays out one layer's tensors, or those of the model (layer -1). Layers share those that the
 * backward pass recomputes or does not read. The others of a layer are taken from `saved`. */
static void layout_layer(struct gpt *gpt, struct arena *arena, struct arena *saved,
                         void *const *scratch, int64_t layer) {
    struct activations *all = &gpt->activations;
    for (enum activation_id i = 0; i < ACTIVATIONS_AND_STATISTICS; i++) {
        const struct activation *a = &activation_table[i];
        if (a->layered != (layer >= 0)) continue;
        struct tensor *tensor = activation_tensor(all, i, layer);
        struct extent extent = activation_extent(i, &gpt->shape);
        *tensor = (struct tensor){scratch[a->memory],
                                  gpt->precision.activation[i],
                                  extent.columns ? 2 : 1,
                                  {extent.rows, extent.columns}};
        if (a->memory != SCRATCH_NONE) continue;
        bool unsaved = a->read_once && (quantization_keeps(&gpt->quantization, a->reader) ||
                                        !reads_input_again(gpt, a->reader));
        if (layer >= 0 && gpt->recompute < a->recomputed && !unsaved)
            tensor->data = arena_take(saved, tensor_bytes(tensor));
        else if (layer <= 0) tensor->data = arena_take(arena, tensor_bytes(tensor));
        else tensor->data = activation_tensor(all, i, 0)->data;
    }
}

/* Lays out the tensors of all layers. Saved ones that are streamed are alike in all layers. */
static void layout_layers(struct gpt *gpt, struct arena *arena, void *const *scratch) {
    struct layer_stream *stream = &gpt->saved;
    if (stream->layers > 0) {
        struct arena unused = {0}, measure = {0};
        layout_layer(gpt, &unused, &measure, scratch, 0);
        stream->bytes = measure.used;
        layer_stream_layout(stream, arena);
    }
    for (int64_t layer = -1; layer < gpt->shape.n_layer; layer++) {
        const bool streamed = layer >= 0 && stream->layers > 0;
        struct arena buffer = {0};
        if (streamed) buffer = layer_stream_buffer(stream, layer);
        layout_layer(gpt, arena, streamed ? &buffer : arena, scratch, layer);
    }
}

/* Gradients have the shapes and dtypes of their tensors. */
static void layout_gradients(struct gpt *gpt, void *const *scratch) {
    struct activations *all = &gpt->activations;
    for (enum activation_id i = 0; i < ACTIVATION_COUNT; i++) {
        const struct activation *a = &activation_table[i];
        struct tensor *gradient = activation_gradient(all, i);
        *gradient = *activation_tensor(all, i, 0);
        if (!a->gradient_in_place) gradient->data = scratch[a->gradient];
    }
}

int64_t gpt_window(const struct gpt *gpt, int64_t layer) {
    int64_t window = shape_window(&gpt->shape, layer);
    return window < gpt->capacity.sequence_length ? window : 0;
}

const struct tensor *gpt_angles(const struct gpt *gpt, int64_t layer) {
    if (gpt->shape.positions != POSITIONS_ROPE) return NULL;
    bool others = gpt->window_angles.rank && shape_window(&gpt->shape, layer) > 0;
    return others ? &gpt->window_angles : &gpt->angles;
}

float gpt_attention_scale(const struct gpt *gpt) {
    double scalar = gpt->shape.query_pre_attn_scalar;
    return scalar > 0 ? (float)(1 / sqrt(scalar)) : 0.0f;
}

/* transformers rounds the factor to the dtype of the table. */
float gpt_embedding_scale(const struct gpt *gpt) {
    float scale = (float)sqrt((double)gpt->shape.n_embd), stored, widened;
    if (!gpt->shape.scale_embedding) return 0;
    if (gpt->token_remainder) return scale;
    dtype_store(&stored, gpt->token_table.dtype, 0, &scale, 1);
    return *dtype_widen(&widened, &stored, gpt->token_table.dtype, 0, 1);
}

static void layout_activations(struct gpt *gpt, struct arena *arena) {
    const struct gpt_shape *s = &gpt->shape;
    struct activations *a = &gpt->activations;
    void *scratch[SCRATCH_COUNT];
    /* These come first, so that their addresses do not depend on the batch. */
    if (s->positions == POSITIONS_ROPE)
        gpt->angles = arena_tensor(arena, DTYPE_F32, gpt->capacity.sequence_length, s->head_dim);
    if (s->positions == POSITIONS_ROPE && s->rope_theta_window > 0 && s->window > 0)
        gpt->window_angles =
            arena_tensor(arena, DTYPE_F32, gpt->capacity.sequence_length, s->head_dim);
    if (gpt->has_cache)
        gpt->cache = arena_tensor(arena, gpt->precision.activation[ACTIVATION_qkv],
                                  s->n_layer * gpt->cache_rows, 2 * shape_kv(s));
    if (gpt->texts) gpt->added = arena_take(arena, added_bytes(gpt_added_max(gpt)));
    a->first_keys = NULL;
    a->positions = NULL;
    a->branches.rows = 0;
    a->tokens = arena_take(arena, (size_t)s->rows * sizeof *a->tokens);
    a->targets = arena_take(arena, (size_t)s->rows * sizeof *a->targets);
    quantization_layout(&gpt->quantization, arena, s);
    adapters_layout(&gpt->adapters, arena, s, &gpt->precision, gpt->use == GPT_TRAINING,
                    gpt->dropout.adapter > 0);
    layout_scratch(gpt, arena, scratch);
    layout_layers(gpt, arena, scratch);
    layout_gradients(gpt, scratch);
}

/* Saves an activation in 8 or 4 bits if its one reader is a quantized layer in all blocks, unless
 *   - it is recomputed,
 *   - it is read again to recompute what follows, or
 *   - there are adapters: they read it in 16 bit, and frozen layers do not read it again. */
static int open_quantization(struct gpt *gpt, const struct config *config, struct error *error) {
    bool keeps[LINEAR_COUNT] = {false};
    bool recomputes_fc = gpt->recompute == RECOMPUTE_GELU &&
                         gpt_gelu_is_fused(&gpt->shape, &gpt->precision, gpt->be, 0);
    for (int i = 0; i < ACTIVATION_COUNT; i++) {
        const struct activation *a = &activation_table[i];
        if (a->read_once && gpt->precision.quantized_site[a->reader] &&
            gpt->precision.quantized_in_all && gpt->recompute < a->recomputed &&
            !shape_has_adapters(&gpt->shape) && !(a->reader == SITE_MLP_FC && recomputes_fc))
            keeps[linear_index(a->reader)] = true;
    }
    return quantization_open(&gpt->quantization, config, &gpt->precision, gpt->be, keeps,
                             config->weights.keep_quantized && gpt->use == GPT_TRAINING, error);
}

/* Sets the largest batch, of sequences of data.seq_len tokens. */
static void set_capacity(struct gpt *gpt, const struct config *config, int64_t batch) {
    set_batch(&gpt->shape, batch, config->data.seq_len,
              gpt->precision.activation[ACTIVATION_logits], gpt->be->device.chunk_bytes);
}

/* Sets what the loss is. */
static void set_objective(struct gpt *gpt, const struct config *config) {
    _Static_assert((int)PREFERENCE_DPO + 1 == (int)CONFIG_OBJECTIVE_DPO &&
                       (int)PREFERENCE_IPO + 1 == (int)CONFIG_OBJECTIVE_IPO &&
                       (int)PREFERENCE_ORPO + 1 == (int)CONFIG_OBJECTIVE_ORPO &&
                       (int)PREFERENCE_KTO + 1 == (int)CONFIG_OBJECTIVE_KTO &&
                       (int)PREFERENCE_SIMPO + 1 == (int)CONFIG_OBJECTIVE_SIMPO,
                   "the same order");
    gpt->isolates = config->data.isolate;
    gpt->prefers = config->train.objective != CONFIG_OBJECTIVE_LANGUAGE;
    if (!gpt->prefers) return;
    gpt->rule = (struct preference_rule){
        .objective = (enum preference_objective)((int)config->train.objective - 1),
        .beta = (float)config->objective.beta,
        .label_smoothing = (float)config->objective.label_smoothing,
        .gamma = (float)config->objective.gamma,
        .nll_weight = (float)config->objective.nll_weight,
        .desirable_weight = (float)config->objective.desirable_weight,
        .undesirable_weight = (float)config->objective.undesirable_weight,
    };
}

static void open_training(struct gpt *gpt, const struct config *config) {
    set_capacity(gpt, config, config->train.micro_batch_size);
    _Static_assert((int)RECOMPUTE_NONE == (int)CONFIG_RECOMPUTE_NONE &&
                       (int)RECOMPUTE_GELU == (int)CONFIG_RECOMPUTE_GELU &&
                       (int)RECOMPUTE_LAYER == (int)CONFIG_RECOMPUTE_LAYER,
                   "the same values");
    gpt->recompute = (enum recompute)config->train.recompute;
    set_objective(gpt, config);
    gpt->distill.top = config->distill_top;
    gpt->distill.alpha = (float)config->distill.alpha;
    gpt->distill.temperature = (float)config->distill.temperature;
    gpt->texts = config->sample.every > 0;
    const bool streams = config->offload.activations;
    gpt->has_cache = (gpt->recompute == RECOMPUTE_LAYER || streams) && gpt->texts > 0;
    gpt->offload = config->offload.optimizer;
    gpt->saved.lane = LANE_ACTIVATIONS;
    gpt->saved.layers = streams ? gpt->shape.n_layer : 0;
}

static void open_evaluation(struct gpt *gpt, const struct config *config) {
    set_capacity(gpt, config, config->train.micro_batch_size);
    gpt->recompute = RECOMPUTE_NOT_SAVED;
    set_objective(gpt, config);
}

static void open_sampling(struct gpt *gpt, const struct config *config) {
    set_capacity(gpt, config, 1);
    gpt->recompute = RECOMPUTE_NOT_SAVED;
    gpt->texts = config->samples > 0 ? config->samples : 1;
    gpt->shape.logit_rows = gpt->texts;
    gpt->has_cache = true;
    /* Decoding reads all weights for each token, so casting them each time would cost more than it
     * saves. */
    if (gpt->precision.masters == MASTERS_CAST) gpt->precision.masters = MASTERS_KEPT;
}

static int open_layers(struct gpt *gpt, struct error *error) {
    size_t layers = (size_t)gpt->shape.n_layer;
    gpt->weights.layers = calloc(layers, sizeof *gpt->weights.layers);
    gpt->dweights.layers = calloc(layers, sizeof *gpt->dweights.layers);
    gpt->activations.layers = calloc(layers, sizeof *gpt->activations.layers);
    if (gpt->weights.layers && gpt->dweights.layers && gpt->activations.layers) return 0;
    return fail(error, "out of memory for the bookkeeping of %zu layers", layers);
}

static void plan_memory(struct gpt *gpt) {
    struct arena measure = {0}, host = {0};
    struct memory_plan *m = &gpt->memory;
    layout_parameters(gpt, &measure, &host);
    m->streamed = layer_stream_host_bytes(&gpt->masters.stream);
    m->host_gradients = layer_stream_host_bytes(&gpt->gradient_stream.stream);
    m->host = host.used - m->streamed - m->host_gradients;
    size_t parameters = measure.used;
    layout_activations(gpt, &measure);
    m->activations = measure.used - parameters;
    m->host_activations = layer_stream_host_bytes(&gpt->saved);
    gpt->host_bytes = host.used + m->host_activations;
}

/* Returns the first key of offload that is set, or NULL. */
static const char *offload_key(bool optimizer, bool weights, bool gradients, bool activations) {
    if (weights) return "weights";
    if (gradients) return "gradients";
    if (activations) return "activations";
    return optimizer ? "optimizer" : NULL;
}

/* Weights are streamed in each use, but a CPU evaluates and samples without. */
static int check_offload(const struct gpt *gpt, const struct config *config, struct error *error) {
    const bool host = gpt->be->device.host_memory, trains = gpt->use == GPT_TRAINING;
    const bool weights = config->offload.weights && (trains || !host);
    const bool gradients = config->offload.gradients && trains;
    const bool adapters = shape_has_adapters(&gpt->shape);
    const char *key = offload_key(gpt->offload, weights, gradients, gpt->saved.layers > 0);
    if (host && key)
        return fail(error,
                    "offload.%s: there is no GPU whose memory it could save\n"
                    "leave it out, or use device \"cuda\"",
                    key);
    if (gradients && adapters)
        return fail(error,
                    "offload.gradients: the layers are frozen, and the gradients of adapters "
                    "are small\nleave it out");
    if (weights && trains && gpt->precision.masters == MASTERS_KEPT && !adapters)
        return fail(error, "offload.weights: not with weights.copy \"kept\", whose copies stay on "
                           "the GPU\nleave out weights.copy");
    return 0;
}

int gpt_open(struct gpt *gpt, const struct config *config, const struct precision *precision,
             struct backend *be, enum gpt_use use, struct error *error) {
    memset(gpt, 0, sizeof *gpt);
    gpt->be = be;
    gpt->precision = *precision;
    gpt->use = use;
    gpt->shape = config_shape(config);
    gpt->dropout = dropout_of(config);
    if (shape_has_adapters(&gpt->shape)) gpt->adapters.scale = adapter_scale(config);
    switch (use) {
    case GPT_TRAINING: open_training(gpt, config); break;
    case GPT_EVALUATION: open_evaluation(gpt, config); break;
    case GPT_SAMPLING: open_sampling(gpt, config); break;
    }
    gpt->cache_rows = gpt->texts * config->data.seq_len;
    if (gpt->texts > config->data.seq_len)
        return fail(error,
                    "%" PRId64 " texts at once need a context of as many tokens, and this one has "
                    "%" PRId64,
                    gpt->texts, config->data.seq_len);
    gpt->capacity = gpt->shape;
    gpt->list = parameter_list(&gpt->shape, &gpt->count);
    for (ptrdiff_t i = 0; i < parameter_trained_count(gpt->list); i++)
        gpt->trained_count = gpt->list[i].offset + gpt->list[i].elements;
    if (check_offload(gpt, config, error)) return -1;
    if (use == GPT_TRAINING && config->offload.gradients)
        gradient_stream_open(&gpt->gradient_stream, gpt->list, gpt->precision.gradients);
    masters_open(
        &gpt->masters, gpt->list, &gpt->precision,
        (struct masters_offload){.remainders = gpt->offload,
                                 .layers = config->offload.weights && !be->device.host_memory});
    if (open_quantization(gpt, config, error) || open_layers(gpt, error)) return -1;
    plan_memory(gpt);
    return 0;
}

static size_t parameter_bytes(const struct memory_plan *m) {
    return m->master + m->copies + m->gradients;
}

/* Layers with a window may have another base, and then no scaling. */
static int fill_angles(struct gpt *gpt, struct error *error) {
    const size_t bytes = tensor_bytes(&gpt->angles);
    struct gpt_shape windows = gpt->shape;
    float *angles = malloc(bytes);
    if (!angles) return fail(error, "out of memory for the angles of rope");
    windows.rope_theta = windows.rope_theta_window;
    windows.rope_scaling = ROPE_UNSCALED;
    rope_angles(angles, &gpt->shape, tensor_rows(&gpt->angles));
    backend_upload(gpt->be, gpt->angles.data, angles, bytes);
    if (gpt->window_angles.rank) {
        rope_angles(angles, &windows, tensor_rows(&gpt->angles));
        backend_upload(gpt->be, gpt->window_angles.data, angles, bytes);
    }
    free(angles);
    return 0;
}

int gpt_allocate(struct gpt *gpt, struct error *error) {
    struct backend *be = gpt->be;
    const struct memory_plan *m = &gpt->memory;
    size_t parameters = parameter_bytes(m), state = parameters + m->moments;
    size_t available = backend_available(be), total = memory_total(m);
    if (total > available)
        return fail(error,
                    "not enough memory: %zu MiB needed (%zu for parameters, gradients and moments, "
                    "%zu for activations), %zu MiB available\n"
                    "choose a smaller model, or lower train.micro_batch_size (and raise "
                    "train.grad_accum_steps) or data.seq_len",
                    total >> 20, state >> 20, m->activations >> 20, available >> 20);
    gpt->parameter_memory = backend_allocate(be, parameters);
    if (!gpt->parameter_memory)
        return fail(error,
                    "out of memory: the parameters with their gradients and moments need %zu MiB\n"
                    "choose a smaller model",
                    state >> 20);
    gpt->activation_memory = backend_allocate(be, m->activations);
    if (!gpt->activation_memory)
        return fail(error,
                    "out of memory: the activations need %zu MiB\n"
                    "lower train.micro_batch_size (and raise train.grad_accum_steps) or "
                    "data.seq_len",
                    m->activations >> 20);
    if (gpt->host_bytes) {
        const char *key =
            offload_key(gpt->offload, m->streamed, m->host_gradients, m->host_activations);
        gpt->host_memory = backend_host_allocate(be, gpt->host_bytes);
        if (!gpt->host_memory)
            return fail(error,
                        "out of memory of the host: offload.%s needs %zu MiB; at least 2 "
                        "GiB and 10 %% of the memory stay free\n"
                        "leave out offload.%s, or choose a smaller model",
                        key, gpt->host_bytes >> 20, key);
        memset(gpt->host_memory, 0, gpt->host_bytes);
    }
    struct arena arena = {gpt->parameter_memory, 0, parameters};
    struct arena host = {gpt->host_memory, 0, gpt->host_bytes};
    layout_parameters(gpt, &arena, &host);
    gpt->saved.host = arena_take(&host, m->host_activations);
    arena = (struct arena){gpt->activation_memory, 0, m->activations};
    layout_activations(gpt, &arena);
    OP(be, clear, .data = gpt->parameter_memory, .bytes = parameters);
    quantization_clear(&gpt->quantization);
    return gpt->shape.positions == POSITIONS_ROPE ? fill_angles(gpt, error) : 0;
}

void gpt_close(struct gpt *gpt) {
    struct backend *be = gpt->be;
    if (gpt->parameter_memory) backend_release(be, gpt->parameter_memory);
    if (gpt->host_memory) backend_host_release(gpt->be, gpt->host_memory);
    if (gpt->activation_memory) backend_release(be, gpt->activation_memory);
    arrfree(gpt->list);
    masters_close(&gpt->masters);
    quantization_close(&gpt->quantization);
    free(gpt->weights.layers);
    free(gpt->dweights.layers);
    free(gpt->activations.layers);
    memset(gpt, 0, sizeof *gpt);
}

void gpt_set_batch(struct gpt *gpt, int64_t batch, int64_t sequence_length) {
    assert(batch * sequence_length <= gpt->capacity.rows);
    if (batch == gpt->shape.batch && sequence_length == gpt->shape.sequence_length) return;
    set_batch(&gpt->shape, batch, sequence_length, gpt->precision.activation[ACTIVATION_logits],
              gpt->be->device.chunk_bytes);
    if (gpt->shape.logit_rows > gpt->capacity.logit_rows)
        gpt->shape.logit_rows = gpt->capacity.logit_rows;
    struct arena arena = {gpt->activation_memory, 0, gpt->memory.activations};
    layout_activations(gpt, &arena);
}

static void clear_range(struct gpt *gpt, int64_t first, int64_t end) {
    if (end == first) return;
    struct tensor range = gpt_gradients(gpt, first, end - first);
    OP(gpt->be, clear, .data = range.data, .bytes = tensor_bytes(&range));
}

/* Adjacent ranges of the flat array are cleared together. */
void gpt_clear_gradients(struct gpt *gpt) {
    int64_t first = 0, end = 0;
    for (ptrdiff_t i = 0; i < parameter_trained_count(gpt->list); i++) {
        const struct parameter *p = &gpt->list[i];
        if (p->gradient_from_matmul) continue;
        if (p->offset != end) {
            clear_range(gpt, first, end);
            first = p->offset;
        }
        end = p->offset + p->elements;
    }
    clear_range(gpt, first, end);
    gpt->accumulate = false;
}

int64_t gpt_added_max(const struct gpt *gpt) {
    int64_t rows = MAX(gpt->texts, ADDED_ROWS);
    return rows < gpt->capacity.sequence_length ? rows : gpt->capacity.sequence_length;
}

struct tensor gpt_cache(const struct gpt *gpt, int64_t layer) {
    if (!gpt->has_cache) return gpt->activations.layers[layer].qkv;
    return tensor_slice(&gpt->cache, layer * gpt->cache_rows, gpt->cache_rows);
}

bool gpt_branch_is_residual(const struct gpt *gpt) {
    return precision_branch_is_residual(&gpt->precision) && gpt->dropout.residual == 0;
}

struct tensor gpt_gradients(const struct gpt *gpt, int64_t first, int64_t count) {
    const struct gradient_stream *stream = &gpt->gradient_stream;
    const int64_t end = stream->first + stream->count;
    if (first >= stream->first && first < end)
        return tensor_range(&stream->host, first - stream->first, count);
    assert(stream->count == 0 || first >= end || first + count <= stream->first);
    return tensor_range(&gpt->gradients, first >= end ? first - stream->count : first, count);
}

struct tensor gpt_gradient(const struct gpt *gpt, const struct parameter *parameter) {
    const struct tensor stored = gpt_gradients(gpt, parameter->offset, parameter->elements);
    return tensor_at(&stored, 0, parameter->extent.rows, parameter->extent.columns);
}
