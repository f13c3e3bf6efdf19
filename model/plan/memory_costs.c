#include "model/plan/memory_costs.h"

#include <stdio.h>

#include "data/util/min_max.h"
#include "model/architecture/activations.h"
#include "model/config/config_keys.h"
#include "model/core/model.h"
#include "model/core/precision.h"

/* ---- cost of offloading */

/* An update reads and writes trained layers where they are, and reads gradients there for the norm,
 * too. */
double memory_offload_seconds(const struct config *config, struct backend *be) {
    struct memory_plan plan;
    struct error ignored;
    if (memory_plan_of(&plan, config, be, &ignored) || be->device.link <= 0) return 0;
    const bool frozen = config->adapter.type != CONFIG_ADAPTER_NONE;
    return (double)(plan.host + (frozen ? 0 : plan.streamed) + 2 * plan.host_gradients) /
           be->device.link;
}

/* A forward pass copies the weights of all layers; the backward pass finds the last ones in the
 * buffers, and their activations. */
struct memory_copies memory_copies_of(const struct memory_plan *plan, const struct config *config) {
    const double layers = (double)config_shape(config).n_layer;
    const double left = MAX(layers - BACKEND_SLOTS, 0) / layers;
    const double micros = (double)config->train.grad_accum_steps;
    const double activations = left * micros * (double)plan->host_activations;
    const double gradients = (double)plan->host_gradients;
    return (struct memory_copies){
        .to_device =
            (1 + left) * micros * (double)plan->streamed + (micros - 1) * gradients + activations,
        .to_host = micros * gradients + activations,
    };
}

double memory_copy_seconds(const struct config *config, struct backend *be) {
    struct memory_plan plan;
    struct error ignored;
    if (memory_plan_of(&plan, config, be, &ignored) || be->device.link <= 0) return 0;
    const struct memory_copies copies = memory_copies_of(&plan, config);
    return MAX(copies.to_device, copies.to_host) / be->device.link;
}

const char *memory_seconds_text(char text[MEMORY_SECONDS_MAX], double seconds) {
    const bool whole = seconds >= 1;
    snprintf(text, MEMORY_SECONDS_MAX, "%.3g %s", whole ? seconds : 1e3 * seconds,
             whole ? "s" : "ms");
    return text;
}

/* ---- cost of recomputing */

/* Returns the multiply-adds of a site's adapters for one row, in matmuls with A [R, inputs] and
 * with B [outputs, R] (model/pass/adapter.h). */
static int64_t adapter_multiply_adds(const struct model_shape *shape, enum autocast_site site,
                                     int64_t with_a, int64_t with_b) {
    enum adapter_target targets[ADAPTER_FUSED_MAX];
    int64_t ranks = adapter_targets_of(targets, shape, site) * shape->adapter_rank;
    return ranks * (with_a * site_inputs(shape, site) + with_b * site_outputs(shape, site));
}

/* Returns the multiply-adds that recomputing adds per row of a layer: those of the matmuls whose
 * output is recomputed. */
static int64_t recomputed_multiply_adds(const struct model_shape *shape, int64_t layer,
                                        const struct config *config) {
    bool recomputing[AUTOCAST_SITE_COUNT] = {false};
    struct model_shape row = shape_of_layer(shape, layer);
    int64_t total = 0;
    row.rows = row.logit_rows = 1;
    for (enum activation_id i = 0; i < ACTIVATION_COUNT && config->train.recompute; i++) {
        const struct activation *a = &activation_table[i];
        if (!a->layered || a->residual || (int)a->recomputed > (int)config->train.recompute ||
            activation_extent(i, &row, layer).rows == 0)
            continue;
        recomputing[a->writer] = true;
    }
    for (enum autocast_site i = 0; i < AUTOCAST_SITE_COUNT; i++)
        if (recomputing[i])
            total += shape_layer_multiply_adds(&row, i) + adapter_multiply_adds(&row, i, 1, 1);
    return total;
}

/* Returns the number of layers that recompute a GELU together with the matmul before it. */
static int64_t fused_count(const struct model_shape *shape, const struct config *config,
                           const struct backend *be) {
    struct precision precision;
    struct error ignored;
    int64_t count = 0;
    if (config->train.recompute != RECOMPUTE_GELU ||
        precision_resolve(&precision, NULL, config, be, &ignored))
        return 0;
    for (int64_t layer = 0; layer + 1 < shape->n_layer; layer++)
        count += model_gelu_is_fused(shape, &precision, be, layer);
    return count;
}

/* Returns the multiply-adds of attention for one row: scores and weighted values, half of each
 * because of the causal mask. The backward pass has five such matmuls instead of two: the
 * recomputed scores and four gradients. A delta rule has three passes over its state. */
static double mixing_multiply_adds(const struct model_shape *own, const struct config *config) {
    return (double)(own->is_delta ? 3 * shape_state(own) : shape_q(own) * config->data.seq_len);
}

/* Each matrix takes part in three matmuls of a step. Frozen ones have no gradient, so only in two.
 */
double memory_recomputed_part(const struct config *config, const struct backend *be) {
    struct model_shape shape = config_shape(config);
    double layers = (double)shape.n_layer, matmuls = shape_has_adapters(&shape) ? 2 : 3;
    double head = matmuls * (double)(shape.padded_vocab * shape.n_embd);
    double products = 0, recompute = 0;
    for (int64_t layer = 0; layer < shape.n_layer; layer++) {
        const struct model_shape own = shape_of_layer(&shape, layer);
        products += matmuls * (double)shape_layer_multiply_adds(&own, AUTOCAST_SITE_COUNT);
        /* The backward pass repeats the matmul with A: the forward pass is not saved. */
        for (enum autocast_site i = 0; i < AUTOCAST_SITE_COUNT; i++)
            products += (double)adapter_multiply_adds(&own, i, 4, 3);
        const double mixing = mixing_multiply_adds(&own, config);
        products += 3.5 * mixing;
        recompute += (double)recomputed_multiply_adds(&shape, layer, config);
        if (config->train.recompute == RECOMPUTE_LAYER) recompute += mixing;
    }
    double fused = (double)fused_count(&shape, config, be) *
                   (double)shape_layer_multiply_adds(&shape, SITE_MLP_FC);
    return ((layers - 1) / layers * recompute + fused) / (products + head);
}
