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
#include "model/core/gpt_layout.h"
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
    gpt_layout_parameters(gpt, &measure, &host);
    m->streamed = layer_stream_host_bytes(&gpt->masters.stream);
    m->host_gradients = layer_stream_host_bytes(&gpt->gradient_stream.stream);
    m->host = host.used - m->streamed - m->host_gradients;
    size_t parameters = measure.used;
    gpt_layout_activations(gpt, &measure);
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
    gpt_layout_parameters(gpt, &arena, &host);
    gpt->saved.host = arena_take(&host, m->host_activations);
    arena = (struct arena){gpt->activation_memory, 0, m->activations};
    gpt_layout_activations(gpt, &arena);
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
    gpt_layout_activations(gpt, &arena);
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
