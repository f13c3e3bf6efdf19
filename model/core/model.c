#include "model/core/model.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/min_max.h"
#include "model/config/config_keys.h"
#include "model/core/rope.h"

/* Returns the rows of a chunk of logits that fits in chunk_bytes. Chunks are equal, in multiples of
 * 64 so that matrix units are full. */
static int64_t choose_logit_rows(const struct model_shape *s, enum dtype logits,
                                 size_t chunk_bytes) {
    int64_t fit = (int64_t)chunk_bytes / (s->padded_vocab * (int64_t)dtype_bytes(logits));
    if (fit < 64) fit = 64;
    if (fit >= s->rows) return s->rows;
    int64_t chunks = (s->rows + fit - 1) / fit;
    return round_up((s->rows + chunks - 1) / chunks, 64);
}

static void set_batch(struct model_shape *s, int64_t batch, int64_t sequence_length,
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
static void fuse(struct model *model, const struct parameter *p) {
    const struct parameter *first = p;
    while (first->fused_with_previous) first--;
    parameter_tensor(&model->weights, first)->shape[0] += p->extent.rows;
    parameter_tensor(&model->dweights, first)->shape[0] += p->extent.rows;
}

/* True for the vectors and convolutions of a frozen model, whose gradients operations write but
 * nothing reads. */
static bool is_unused(const struct parameter *p) {
    return p->group == GROUP_FROZEN && (p->site == SITE_LAYERNORM || p->extent.convolution);
}

/* Returns the gradient of a parameter. */
static struct tensor gradient_of(const struct model *model, const struct parameter *p) {
    const struct extent *extent = &p->extent;
    const struct gradient_stream *stream = &model->gradient_stream;
    if (gradient_stream_has(stream, p))
        return tensor_at(&stream->buffers, gradient_stream_place(stream, p), extent->padded_rows,
                         extent->columns);
    if (p->group != GROUP_FROZEN) {
        const struct tensor stored = model_gradients(model, p->offset, p->elements);
        return tensor_at(&stored, 0, extent->padded_rows, extent->columns);
    }
    if (is_unused(p))
        return tensor_at(&model->unused_gradients, 0, extent->padded_rows, extent->columns);
    return (struct tensor){0};
}

/* Returns the elements of the largest gradient that only unused_gradients holds. */
static int64_t unused_count(const struct model *model) {
    int64_t largest = 0;
    for (ptrdiff_t i = parameter_trained_count(model->list); i < arrlen(model->list); i++)
        if (is_unused(&model->list[i]) && model->list[i].elements > largest)
            largest = model->list[i].elements;
    return largest;
}

/* Lays out all parameter memory; called once to measure and once to assign addresses. */
static void layout_parameters(struct model *model, struct arena *arena, struct arena *host) {
    struct memory_plan *m = &model->memory;
    masters_layout(&model->masters, arena, host);
    m->master = arena->used;
    masters_layout_copies(&model->masters, arena);
    m->copies = arena->used - m->master;
    if (model->purpose == PURPOSE_TRAINING) {
        gradient_stream_layout(&model->gradient_stream, arena, host);
        model->gradients = arena_tensor(arena, model->precision.gradients,
                                        model->trained_count - model->gradient_stream.count, 0);
        model->unused_gradients =
            arena_tensor(arena, model->precision.gradients, unused_count(model), 0);
    }
    m->gradients = arena->used - m->master - m->copies;
    for (ptrdiff_t i = 0; i < arrlen(model->list); i++) {
        const struct parameter *p = &model->list[i];
        *parameter_tensor(&model->weights, p) = masters_read_tensor(&model->masters, p);
        if (model->purpose == PURPOSE_TRAINING)
            *parameter_tensor(&model->dweights, p) = gradient_of(model, p);
        if (p->fused_with_previous) fuse(model, p);
    }
    model->head = parameter_tensor(&model->weights, parameter_head(model->list));
    model->dhead = parameter_tensor(&model->dweights, parameter_head(model->list));
    model->token_table =
        masters_tensor(&model->masters, parameter_wte(model->list), &model->token_remainder);
}

/* Returns the rows and columns of an activation in a layer. States are saved for the backward pass
 * alone. */
static struct extent extent_in(const struct model *model, enum activation_id id, int64_t layer) {
    const bool unused = id == ACTIVATION_delta_states && model->purpose != PURPOSE_TRAINING;
    return unused ? (struct extent){0} : activation_extent(id, &model->shape, layer);
}

/* Returns the bytes of an activation in the layer where it is largest. */
static size_t largest_bytes(const struct model *model, enum activation_id id) {
    size_t bytes = 0;
    for (int64_t layer = 0; layer < shape_period(&model->shape); layer++) {
        const struct extent extent = extent_in(model, id, layer);
        const int64_t count = extent.rows * (extent.columns ? extent.columns : 1);
        bytes = MAX(bytes, dtype_size(model->precision.activation[id], count));
    }
    return bytes;
}

/* Lays out the scratch buffers, each as large as the largest tensor that uses it. */
static void layout_scratch(const struct model *model, struct arena *arena,
                           void *scratch[SCRATCH_COUNT]) {
    size_t bytes[SCRATCH_COUNT] = {0};
    for (int i = 0; i < ACTIVATION_COUNT; i++) {
        const struct activation *a = &activation_table[i];
        const size_t size = largest_bytes(model, (enum activation_id)i);
        if (size > bytes[a->memory]) bytes[a->memory] = size;
        if (model->purpose == PURPOSE_TRAINING && size > bytes[a->gradient])
            bytes[a->gradient] = size;
        if (i != ACTIVATION_lnf_out) continue;
        if (size > bytes[SCRATCH_branch]) bytes[SCRATCH_branch] = size;
        if (model->purpose == PURPOSE_TRAINING && size > bytes[SCRATCH_dhidden])
            bytes[SCRATCH_dhidden] = size;
    }
    bytes[SCRATCH_NONE] = 0;
    if (model_branch_is_residual(model)) bytes[SCRATCH_dbranch] = 0;
    for (int i = 0; i < SCRATCH_COUNT; i++) scratch[i] = arena_take(arena, bytes[i]);
    if (model_branch_is_residual(model)) scratch[SCRATCH_dbranch] = scratch[SCRATCH_dresidual];
}

/* True if the backward pass of a linear layer, in some layer, reads its input: for the gradient of
 * its weight or of its adapters. */
static bool reads_input_again(const struct model *model, enum autocast_site site) {
    bool reads = !shape_has_adapters(&model->shape);
    for (int64_t layer = 0; layer < shape_period(&model->shape); layer++) {
        const struct model_shape own = shape_of_layer(&model->shape, layer);
        reads |= shape_adapts(&own, site);
    }
    return reads;
}

/* Lays out one layer's tensors, or those of the model (layer -1). Layers share those that the
 * backward pass recomputes or does not read. The others of a layer are taken from `saved`. */
static void layout_layer(struct model *model, struct arena *arena, struct arena *saved,
                         void *const *scratch, int64_t layer) {
    struct activations *all = &model->activations;
    for (enum activation_id i = 0; i < ACTIVATIONS_AND_STATISTICS; i++) {
        const struct activation *a = &activation_table[i];
        if (a->layered != (layer >= 0)) continue;
        struct tensor *tensor = activation_tensor(all, i, layer);
        struct extent extent = extent_in(model, i, layer);
        *tensor = (struct tensor){scratch[a->memory],
                                  model->precision.activation[i],
                                  extent.columns ? 2 : 1,
                                  {extent.rows, extent.columns}};
        if (a->memory != SCRATCH_NONE) continue;
        bool unsaved = a->read_once && (quantization_keeps(&model->quantization, a->reader) ||
                                        !reads_input_again(model, a->reader));
        if (layer >= 0 && model->recompute < a->recomputed && !unsaved)
            tensor->data = arena_take(saved, tensor_bytes(tensor));
        else if (layer < 0) tensor->data = arena_take(arena, tensor_bytes(tensor));
        else if (layer == 0) tensor->data = arena_take(arena, largest_bytes(model, i));
        else tensor->data = activation_tensor(all, i, 0)->data;
    }
}

/* Lays out the tensors of all layers. Saved ones that are streamed have room for any layer's. */
static void layout_layers(struct model *model, struct arena *arena, void *const *scratch) {
    struct layer_stream *stream = &model->saved;
    if (stream->layers > 0) {
        stream->bytes = 0;
        for (int64_t layer = 0; layer < shape_period(&model->shape); layer++) {
            struct arena unused = {0}, measure = {0};
            layout_layer(model, &unused, &measure, scratch, layer);
            stream->bytes = MAX(stream->bytes, measure.used);
        }
        layer_stream_layout(stream, arena);
    }
    for (int64_t layer = -1; layer < model->shape.n_layer; layer++) {
        const bool streamed = layer >= 0 && stream->layers > 0;
        struct arena buffer = {0};
        if (streamed) buffer = layer_stream_buffer(stream, layer);
        layout_layer(model, arena, streamed ? &buffer : arena, scratch, layer);
    }
}

/* Gradients have the shapes and dtypes of their tensors, of those of layers in the first one. */
static void layout_gradients(struct model *model, void *const *scratch) {
    struct activations *all = &model->activations;
    for (enum activation_id i = 0; i < ACTIVATION_COUNT; i++) {
        const struct activation *a = &activation_table[i];
        struct tensor *gradient = activation_gradient(all, i);
        *gradient = *activation_tensor(all, i, 0);
        if (!a->gradient_in_place) gradient->data = scratch[a->gradient];
    }
    all->head_in = all->dhead_in = all->lnf_out;
    all->head_in.data = scratch[SCRATCH_branch];
    all->dhead_in.data = scratch[SCRATCH_dhidden];
}

void model_set_gradients(struct model *model, int64_t layer) {
    for (enum activation_id i = 0; i < ACTIVATION_COUNT; i++) {
        struct tensor *gradient = activation_gradient(&model->activations, i);
        const struct tensor *own = activation_tensor(&model->activations, i, layer);
        if (activation_table[i].layered) memcpy(gradient->shape, own->shape, sizeof own->shape);
    }
}

int64_t model_window(const struct model *model, int64_t layer) {
    int64_t window = shape_window(&model->shape, layer);
    return window < model->capacity.sequence_length ? window : 0;
}

const struct tensor *model_angles(const struct model *model, int64_t layer) {
    if (!shape_rotates(&model->shape, layer)) return NULL;
    bool others = model->window_angles.rank && shape_window(&model->shape, layer) > 0;
    return others ? &model->window_angles : &model->angles;
}

double model_attention_scale(const struct model *model) {
    double scalar = model->shape.query_pre_attn_scalar, factor = model->shape.attention_multiplier;
    if (factor > 0) return (double)(float)factor;
    return scalar > 0 ? (double)(float)(1 / sqrt(scalar)) : 1 / sqrt((double)model->shape.head_dim);
}

/* transformers rounds the factor to the dtype of the table. */
float model_embedding_scale(const struct model *model) {
    float scale = (float)sqrt((double)model->shape.n_embd), stored, widened;
    if (!model->shape.scale_embedding)
        return model->shape.embedding_multiplier > 0 ? (float)model->shape.embedding_multiplier : 1;
    if (model->token_remainder) return scale;
    dtype_store(&stored, model->token_table.dtype, 0, &scale, 1);
    return *dtype_widen(&widened, &stored, model->token_table.dtype, 0, 1);
}

static void layout_activations(struct model *model, struct arena *arena) {
    const struct model_shape *s = &model->shape;
    void *scratch[SCRATCH_COUNT];
    /* These come first, so that their addresses do not depend on the batch. */
    if (s->positions == POSITIONS_ROPE)
        model->angles =
            arena_tensor(arena, DTYPE_F32, model->capacity.sequence_length, shape_rotary(s));
    if (s->positions == POSITIONS_ROPE && s->rope_theta_window > 0 && s->window > 0)
        model->window_angles =
            arena_tensor(arena, DTYPE_F32, model->capacity.sequence_length, shape_rotary(s));
    if (s->query_scaling_beta > 0)
        model->query_angles =
            arena_tensor(arena, DTYPE_F32, model->capacity.sequence_length, shape_rotary(s));
    if (model->has_cache)
        model->cache = arena_tensor(arena, model->precision.activation[ACTIVATION_qkv],
                                    shape_attention_layers(s, s->n_layer) * model->cache_rows,
                                    2 * shape_kv(s));
    const int64_t states = (s->n_layer - shape_attention_layers(s, s->n_layer)) * model->texts;
    if (states > 0) {
        model->states = arena_tensor(arena, DTYPE_F32, states, shape_state(s));
        model->tails = arena_tensor(arena, model->precision.activation[ACTIVATION_qkv], states,
                                    (s->linear_conv_kernel_dim - 1) * shape_convolved(s));
    }
    quantization_layout(&model->quantization, arena, s);
    adapters_layout(&model->adapters, arena, s, &model->precision,
                    model->purpose == PURPOSE_TRAINING, model->dropout.adapter > 0);
    layout_scratch(model, arena, scratch);
    layout_layers(model, arena, scratch);
    layout_gradients(model, scratch);
}

/* Saves an activation in 8 or 4 bits if its one reader is a quantized layer in all blocks, unless
 *   - it is recomputed,
 *   - it is read again to recompute what follows, or
 *   - there are adapters: they read it in 16 bit, and frozen layers do not read it again. */
static int open_quantization(struct model *model, const struct config *config,
                             struct error *error) {
    bool keeps[LINEAR_COUNT] = {false};
    bool recomputes_fc = model->recompute == RECOMPUTE_GELU &&
                         model_gelu_is_fused(&model->shape, &model->precision, model->be, 0);
    for (int i = 0; i < ACTIVATION_COUNT; i++) {
        const struct activation *a = &activation_table[i];
        if (a->read_once && model->precision.quantized_site[a->reader] &&
            model->precision.quantized_in_all && model->recompute < a->recomputed &&
            !shape_has_adapters(&model->shape) && !(a->reader == SITE_MLP_FC && recomputes_fc))
            keeps[linear_index(a->reader)] = true;
    }
    return quantization_open(&model->quantization, config, &model->precision, model->be, keeps,
                             config->weights.keep_quantized && model->purpose == PURPOSE_TRAINING,
                             error);
}

/* Sets the largest batch, of sequences of data.seq_len tokens. */
static void set_capacity(struct model *model, const struct config *config, int64_t batch) {
    set_batch(&model->shape, batch, config->data.seq_len,
              model->precision.activation[ACTIVATION_logits], model->be->device.chunk_bytes);
}

/* Limits a chunk of logits to the rows whose targets count, with a quarter to spare: the head of a
 * batch that has more runs in chunks. Losses of pairs run the head twice, and keep the logits if
 * there is one chunk. */
static void limit_logits(struct model_shape *s, const struct config *config) {
    const int64_t counted = (int64_t)((1 - config->masked_share) * 1.25 * (double)s->rows);
    if (config_reads_text(config))
        s->logit_rows = MIN(s->logit_rows, round_up(MAX(counted, 1), 64));
}

static void open_training(struct model *model, const struct config *config) {
    set_capacity(model, config, config->train.micro_batch_size);
    limit_logits(&model->shape, config);
    if (config_reads_prompts(config) && config->grpo.temperature != 1)
        model->shape.logits_scaling =
            config->grpo.temperature *
            (model->shape.logits_scaling > 0 ? model->shape.logits_scaling : 1);
    model->recompute = config->train.recompute;
    model->texts = config_texts(config);
    model->shape.logit_rows = MAX(model->shape.logit_rows, model->texts);
    const bool streams = config->offload.activations;
    model->has_cache = config_reads_prompts(config) ||
                       ((model->recompute == RECOMPUTE_LAYER || streams) && model->texts > 0);
    model->offload_optimizer = config->offload.optimizer;
    model->saved.lane = LANE_ACTIVATIONS;
    model->saved.layers = streams ? model->shape.n_layer : 0;
}

static void open_evaluation(struct model *model, const struct config *config) {
    set_capacity(model, config, config->train.micro_batch_size);
    model->recompute = RECOMPUTE_NOT_SAVED;
}

static void open_sampling(struct model *model, const struct config *config) {
    set_capacity(model, config, 1);
    model->recompute = RECOMPUTE_NOT_SAVED;
    model->texts = config->samples > 0 ? config->samples : 1;
    model->shape.logit_rows = model->texts;
    model->has_cache = true;
    /* Decoding reads all weights for each token, so casting them each time would cost more than it
     * saves. */
    if (model->precision.masters == MASTERS_CAST) model->precision.masters = MASTERS_KEPT;
}

/* Marks the matrices of layers as frozen, where they are in the list: sampling reads them in 16 bit
 * alone, so their master weights need not be stored. */
static void freeze_layers(struct model *model) {
    const struct precision *precision = &model->precision;
    if (precision->frozen != precision->compute_dtype || precision->compute_dtype == DTYPE_F32 ||
        precision->frozen_format != WEIGHT_PLAIN || shape_has_adapters(&model->shape))
        return;
    for (ptrdiff_t i = 0; i < arrlen(model->list); i++) {
        struct parameter *p = &model->list[i];
        const bool lower = precision->site[p->site] == precision->frozen;
        if (parameter_in_layer(p) && lower) p->group = GROUP_FROZEN;
    }
}

static int open_layers(struct model *model, struct error *error) {
    size_t layers = (size_t)model->shape.n_layer;
    model->weights.layers = calloc(layers, sizeof *model->weights.layers);
    model->dweights.layers = calloc(layers, sizeof *model->dweights.layers);
    model->activations.layers = calloc(layers, sizeof *model->activations.layers);
    if (model->weights.layers && model->dweights.layers && model->activations.layers) return 0;
    return fail_memory(error, "the bookkeeping of %zu layers", layers);
}

static void plan_memory(struct model *model) {
    struct arena measure = {0}, host = {0};
    struct memory_plan *m = &model->memory;
    layout_parameters(model, &measure, &host);
    m->streamed = layer_stream_host_bytes(&model->masters.stream);
    m->host_gradients = layer_stream_host_bytes(&model->gradient_stream.stream);
    m->host = host.used - m->streamed - m->host_gradients;
    size_t parameters = measure.used;
    layout_activations(model, &measure);
    m->activations = measure.used - parameters;
    m->host_activations = layer_stream_host_bytes(&model->saved);
    model->host_bytes = host.used + m->host_activations;
}

/* Returns the first key of offload that is set, or NULL. */
static const char *offload_key(bool optimizer, bool weights, bool gradients, bool activations) {
    if (weights) return "weights";
    if (gradients) return "gradients";
    if (activations) return "activations";
    return optimizer ? "optimizer" : NULL;
}

/* Weights are streamed in each use, but a CPU evaluates and samples without. */
static int check_offload(const struct model *model, const struct config *config,
                         struct error *error) {
    const bool host = model->be->device.host_memory, trains = model->purpose == PURPOSE_TRAINING;
    const bool weights = config->offload.weights && (trains || !host);
    const bool gradients = config->offload.gradients && trains;
    const bool adapters = shape_has_adapters(&model->shape);
    const char *key =
        offload_key(model->offload_optimizer, weights, gradients, model->saved.layers > 0);
    if (host && key)
        return fail(error,
                    "offload.%s: there is no GPU whose memory it could save\n"
                    "leave it out, or use device \"cuda\"",
                    key);
    if (gradients && adapters)
        return fail(error,
                    "offload.gradients: the layers are frozen, and the gradients of adapters "
                    "are small\nleave it out");
    if (gradients && model->shape.full_attention_interval > 0)
        return fail(error,
                    "offload.gradients: not with model.full_attention_interval, whose layers "
                    "have gradients of two sizes\nleave it out");
    if (weights && trains && model->precision.masters == MASTERS_KEPT && !adapters)
        return fail(error, "offload.weights: not with weights.copy \"kept\", whose copies stay on "
                           "the GPU\nleave out weights.copy");
    return 0;
}

int model_open(struct model *model, const struct config *config, const struct precision *precision,
               struct backend *be, enum model_purpose purpose, struct error *error) {
    memset(model, 0, sizeof *model);
    model->be = be;
    model->precision = *precision;
    model->purpose = purpose;
    model->shape = config_shape(config);
    model->dropout = dropout_of(config);
    if (shape_has_adapters(&model->shape)) model->adapters.scale = adapter_scale(config);
    switch (purpose) {
    case PURPOSE_TRAINING: open_training(model, config); break;
    case PURPOSE_EVALUATION: open_evaluation(model, config); break;
    case PURPOSE_SAMPLING: open_sampling(model, config); break;
    }
    model->cache_rows = model->texts * config->data.seq_len;
    if (model->texts > config->data.seq_len)
        return fail(error,
                    "%" PRId64 " texts at once need a context of as many tokens, and this one has "
                    "%" PRId64,
                    model->texts, config->data.seq_len);
    model->capacity = model->shape;
    model->list = parameter_list(&model->shape, &model->count);
    for (ptrdiff_t i = 0; i < parameter_trained_count(model->list); i++)
        model->trained_count = model->list[i].offset + model->list[i].elements;
    if (purpose == PURPOSE_SAMPLING) freeze_layers(model);
    if (check_offload(model, config, error)) return -1;
    if (purpose == PURPOSE_TRAINING && config->offload.gradients)
        gradient_stream_open(&model->gradient_stream, model->list, model->precision.gradients);
    masters_open(
        &model->masters, model->list, &model->precision,
        (struct masters_offload){.remainders = model->offload_optimizer,
                                 .layers = config->offload.weights && !be->device.host_memory});
    if (open_quantization(model, config, error) || open_layers(model, error)) return -1;
    plan_memory(model);
    return 0;
}

static size_t parameter_bytes(const struct memory_plan *m) {
    return m->master + m->copies + m->gradients;
}

/* Layers with a window may have another base, and then no scaling. */
static int fill_angles(struct model *model, struct error *error) {
    const size_t bytes = tensor_bytes(&model->angles);
    struct model_shape windows = model->shape;
    float *angles = malloc(bytes);
    if (!angles) return fail_memory(error, "the angles of rope");
    windows.rope_theta = windows.rope_theta_window;
    windows.rope_scaling = ROPE_UNSCALED;
    rope_angles(angles, &model->shape, tensor_rows(&model->angles));
    backend_upload(model->be, model->angles.data, angles, bytes);
    if (model->window_angles.rank) {
        rope_angles(angles, &windows, tensor_rows(&model->angles));
        backend_upload(model->be, model->window_angles.data, angles, bytes);
    }
    if (model->query_angles.rank) {
        rope_scale_queries(angles, &model->shape, tensor_rows(&model->angles));
        backend_upload(model->be, model->query_angles.data, angles, bytes);
    }
    free(angles);
    return 0;
}

int model_allocate(struct model *model, struct error *error) {
    struct backend *be = model->be;
    const struct memory_plan *m = &model->memory;
    size_t parameters = parameter_bytes(m), state = parameters + m->moments;
    size_t available = backend_available(be), total = memory_total(m);
    if (total > available)
        return fail(error,
                    "not enough memory: %zu MiB needed (%zu for parameters, gradients and moments, "
                    "%zu for activations), %zu MiB available\n"
                    "choose a smaller model, or lower train.micro_batch_size (and raise "
                    "train.grad_accum_steps) or data.seq_len",
                    total >> 20, state >> 20, m->activations >> 20, available >> 20);
    model->parameter_memory = backend_allocate(be, parameters);
    if (!model->parameter_memory)
        return fail(error,
                    "out of memory: the parameters with their gradients and moments need %zu MiB\n"
                    "choose a smaller model",
                    state >> 20);
    model->activation_memory = backend_allocate(be, m->activations);
    if (!model->activation_memory)
        return fail(error,
                    "out of memory: the activations need %zu MiB\n"
                    "lower train.micro_batch_size (and raise train.grad_accum_steps) or "
                    "data.seq_len",
                    m->activations >> 20);
    if (model->host_bytes) {
        const char *key = offload_key(model->offload_optimizer, m->streamed, m->host_gradients,
                                      m->host_activations);
        model->host_memory = backend_host_allocate(be, model->host_bytes);
        if (!model->host_memory)
            return fail(error,
                        "out of memory of the host: offload.%s needs %zu MiB; at least 2 "
                        "GiB and 10 %% of the memory stay free\n"
                        "leave out offload.%s, or choose a smaller model",
                        key, model->host_bytes >> 20, key);
        memset(model->host_memory, 0, model->host_bytes);
    }
    model->shape = model->capacity; /* planning may have left another batch */
    struct arena arena = {model->parameter_memory, 0, parameters};
    struct arena host = {model->host_memory, 0, model->host_bytes};
    layout_parameters(model, &arena, &host);
    model->saved.host = arena_take(&host, m->host_activations);
    arena = (struct arena){model->activation_memory, 0, m->activations};
    layout_activations(model, &arena);
    OP(be, clear, .data = model->parameter_memory, .bytes = parameters);
    quantization_clear(&model->quantization);
    return model->shape.positions == POSITIONS_ROPE ? fill_angles(model, error) : 0;
}

void model_close(struct model *model) {
    struct backend *be = model->be;
    if (model->parameter_memory) backend_release(be, model->parameter_memory);
    if (model->host_memory) backend_host_release(model->be, model->host_memory);
    if (model->activation_memory) backend_release(be, model->activation_memory);
    arrfree(model->list);
    masters_close(&model->masters);
    quantization_close(&model->quantization);
    free(model->weights.layers);
    free(model->dweights.layers);
    free(model->activations.layers);
    memset(model, 0, sizeof *model);
}

void model_set_batch(struct model *model, int64_t batch, int64_t sequence_length) {
    assert(batch * sequence_length <= model->capacity.rows);
    if (batch == model->shape.batch && sequence_length == model->shape.sequence_length) return;
    set_batch(&model->shape, batch, sequence_length, model->precision.activation[ACTIVATION_logits],
              model->be->device.chunk_bytes);
    if (model->shape.logit_rows > model->capacity.logit_rows)
        model->shape.logit_rows = model->capacity.logit_rows;
    struct arena arena = {model->activation_memory, 0, model->memory.activations};
    layout_activations(model, &arena);
}

static void clear_range(struct model *model, int64_t first, int64_t end) {
    if (end == first) return;
    struct tensor range = model_gradients(model, first, end - first);
    OP(model->be, clear, .data = range.data, .bytes = tensor_bytes(&range));
}

/* Adjacent ranges of the flat array are cleared together. */
void model_clear_gradients(struct model *model) {
    int64_t first = 0, end = 0;
    for (ptrdiff_t i = 0; i < parameter_trained_count(model->list); i++) {
        const struct parameter *p = &model->list[i];
        if (p->gradient_from_matmul) continue;
        if (p->offset != end) {
            clear_range(model, first, end);
            first = p->offset;
        }
        end = p->offset + p->elements;
    }
    clear_range(model, first, end);
}

int64_t model_added_max(const struct model *model) {
    enum { ADDED_ROWS = 64 }; /* most rows of one text added per pass, at most the context */
    int64_t rows = MAX(model->texts, ADDED_ROWS);
    return rows < model->capacity.sequence_length ? rows : model->capacity.sequence_length;
}

struct tensor model_cache(const struct model *model, int64_t layer) {
    if (!model->has_cache) return model->activations.layers[layer].qkv;
    return tensor_slice(&model->cache,
                        shape_attention_layers(&model->shape, layer) * model->cache_rows,
                        model->cache_rows);
}

struct tensor model_state(const struct model *model, const struct tensor *all, int64_t layer,
                          int64_t text, int64_t texts) {
    const int64_t index = layer - shape_attention_layers(&model->shape, layer);
    return tensor_slice(all, index * model->texts + text, texts);
}

void model_copy_text(const struct model *model, int64_t from, int64_t to, int64_t rows) {
    const int64_t length = model->capacity.sequence_length;
    const struct tensor *const carried[] = {&model->states, &model->tails};
    for (int64_t layer = 0; layer < model->shape.n_layer; layer++) {
        const struct model_shape own = shape_of_layer(&model->shape, layer);
        const struct tensor cache = model_cache(model, layer);
        for (int i = 0; i < (own.is_delta ? 2 : rows > 0); i++) {
            const struct tensor out = own.is_delta ? model_state(model, carried[i], layer, to, 1)
                                                   : tensor_slice(&cache, to * length, rows);
            const struct tensor in = own.is_delta ? model_state(model, carried[i], layer, from, 1)
                                                  : tensor_slice(&cache, from * length, rows);
            OP(model->be, copy_last_columns, .out = &out, .in = &in);
        }
    }
}

bool model_branch_is_residual(const struct model *model) {
    return precision_branch_is_residual(&model->precision) && !model_scales_branches(model);
}

struct tensor model_gradients(const struct model *model, int64_t first, int64_t count) {
    const struct gradient_stream *stream = &model->gradient_stream;
    const int64_t end = stream->first + stream->count;
    if (first >= stream->first && first < end)
        return tensor_range(&stream->host, first - stream->first, count);
    assert(stream->count == 0 || first >= end || first + count <= stream->first);
    return tensor_range(&model->gradients, first >= end ? first - stream->count : first, count);
}

struct tensor model_gradient(const struct model *model, const struct parameter *parameter) {
    const struct tensor stored = model_gradients(model, parameter->offset, parameter->elements);
    return tensor_at(&stored, 0, parameter->extent.rows, parameter->extent.columns);
}
