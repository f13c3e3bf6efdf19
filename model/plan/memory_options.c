#include "model/plan/memory_options.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include <stb/stb_ds.h>

#include "model/config/config_keys.h"
#include "model/core/precision.h"
#include "model/core/update_rule.h"
#include "model/plan/memory_costs.h"
#include "model/plan/memory_plan.h"

static const struct row {
    const char *key; /* config key that the option sets */
    unsigned value;  /* enum value, or true */
    enum memory_bits bits;
    const char *cost; /* NULL: depends on the config */
} rows[MEMORY_OPTIONS] = {
#define ROW(option, key, value, bits, cost) [MEMORY_##option] = {key, value, MEMORY_##bits, cost}
    ROW(SPLIT, "weights.copy", CONFIG_COPY_SPLIT, SAME_BITS, "same bits"),
    ROW(RECOMPUTE_GELU, "train.recompute", RECOMPUTE_GELU, SAME_BITS, NULL),
    ROW(RECOMPUTE_LAYER, "train.recompute", RECOMPUTE_LAYER, SAME_BITS, NULL),
    ROW(GRADIENTS, "gradients.dtype", CONFIG_DTYPE_LOWER, LESS_EXACT,
        "gradients rounded to 16 bit"),
    ROW(MOMENTS, "optimizer.moments", CONFIG_MOMENTS_BFLOAT16, LESS_EXACT,
        "moments rounded to bf16"),
    ROW(CODES, "optimizer.moments", CONFIG_MOMENTS_INT8, LESS_EXACT, "moments in 8-bit codes"),
    ROW(CAST, "weights.copy", CONFIG_COPY_CAST, SAME_BITS, "same bits; weights cast each pass"),
    ROW(SAVED, "offload.activations", true, SAME_BITS, NULL),
    ROW(OFFLOAD, "offload.optimizer", true, SAME_BITS, NULL),
    ROW(STREAM, "offload.weights", true, SAME_BITS, NULL),
    ROW(SENT, "offload.gradients", true, SAME_BITS, NULL),
    ROW(TEXTS, "grpo.texts_at_once", 8, OTHER_ORDER, "slower sampling"),
    ROW(MICRO_BATCH, "train.micro_batch_size", 0, OTHER_ORDER, NULL), /* and grad_accum_steps */
    ROW(RESIDUAL, "autocast.residual", CONFIG_DTYPE_LOWER, LESS_EXACT, "residual stream in 16 bit"),
    ROW(BASE, "adapter.base", CONFIG_BASE_NF4, LESS_EXACT, "frozen layers in 4 bits (QLoRA)"),
    ROW(PRECISION, "precision", CONFIG_PRECISION_BF16, LESS_EXACT,
        "products and activations in 16 bit"),
#undef ROW
};

/* ---- effect of an option */

/* True if int8 moments would change a run: if some are not in 8 bits yet that could be. */
static bool codes_moments(const struct config *config) {
    struct config other = *config;
    struct model_shape shape = config_shape(config);
    int64_t count;
    bool found = false;
    if (config->optimizer.moments == CONFIG_MOMENTS_INT8) return false;
    other.optimizer.moments = CONFIG_MOMENTS_INT8;
    struct parameter *list = parameter_list(&shape, &count);
    for (ptrdiff_t i = 0; i < parameter_trained_count(list) && !found; i++)
        found = update_rule_in_8bit(&other, &list[i]);
    arrfree(list);
    return found;
}

/* True if the option would change a run of config, whose resolved precision is p. */
static bool has_effect(enum memory_option option, const struct config *config,
                       const struct precision *p, const struct backend *be) {
    bool lower = p->compute_dtype != DTYPE_F32, kept = p->masters == MASTERS_KEPT;
    const bool streams = !be->device.host_memory && config->model.n_layer > BACKEND_SLOTS;
    const bool adapters = config->adapter.type != CONFIG_ADAPTER_NONE;
    switch (option) {
    case MEMORY_SPLIT: return kept && p->compute_dtype == DTYPE_BF16;
    case MEMORY_CAST: return kept && p->compute_dtype == DTYPE_F16;
    case MEMORY_RECOMPUTE_GELU:
    case MEMORY_RECOMPUTE_LAYER: return config->train.recompute < rows[option].value;
    case MEMORY_GRADIENTS: return lower && p->gradients == DTYPE_F32;
    case MEMORY_MOMENTS: return config->optimizer.moments == CONFIG_MOMENTS_FLOAT32;
    case MEMORY_CODES: return codes_moments(config);
    case MEMORY_OFFLOAD: return !config->offload.optimizer && !be->device.host_memory;
    case MEMORY_SAVED: return !config->offload.activations && streams;
    case MEMORY_STREAM:
        return !config->offload.weights && streams &&
               (adapters || !lower || config->weights.copy != CONFIG_COPY_KEPT);
    case MEMORY_SENT: return !config->offload.gradients && streams && !adapters;
    case MEMORY_TEXTS: return config_texts(config) > rows[option].value;
    case MEMORY_RESIDUAL: return lower && p->residual == DTYPE_F32;
    case MEMORY_BASE: return adapters && p->frozen_format != WEIGHT_NF4;
    case MEMORY_PRECISION: return !lower && config->autocast.enabled;
    default: return true;
    }
}

static bool smaller_batch(struct config *config) {
    int64_t batch = config->train.micro_batch_size;
    int64_t sequences = batch * config->train.grad_accum_steps;
    do batch--;
    while (batch > 0 && sequences % batch);
    if (batch == 0 ||
        (double)(sequences / batch) > config_option_of("train.grad_accum_steps")->maximum)
        return false;
    config->train.micro_batch_size = batch;
    config->train.grad_accum_steps = sequences / batch;
    return true;
}

bool memory_apply(struct config *config, enum memory_option option, const struct backend *be) {
    struct precision precision;
    struct error ignored;
    if (precision_resolve(&precision, NULL, config, be, &ignored) ||
        !has_effect(option, config, &precision, be))
        return false;
    if (option == MEMORY_MICRO_BATCH) return smaller_batch(config);
    assert(option < MEMORY_OPTIONS);
    unsigned value = rows[option].value;
    if (option == MEMORY_PRECISION && !be->device.computes[DTYPE_BF16])
        value = CONFIG_PRECISION_FP16;
    config_set(config, config_option_of(rows[option].key), value);
    return true;
}

bool memory_option_setting(char text[MEMORY_SETTING_MAX], enum memory_option option, int index,
                           const struct config *config) {
    const char *const keys[] = {rows[option].key, "train.grad_accum_steps"};
    if (index > (option == MEMORY_MICRO_BATCH)) return false;
    const struct config_option *row = config_option_of(keys[index]);
    double value = config_number(config, row);
    if (row->type == CONFIG_INTEGER) snprintf(text, MEMORY_SETTING_MAX, "%s=%.0f", row->key, value);
    else
        snprintf(text, MEMORY_SETTING_MAX, "%s=%s", row->key,
                 row->names   ? row->names[(int)value]
                 : value != 0 ? "true"
                              : "false");
    return true;
}

static void transfer_cost(char text[MEMORY_COST_MAX], double seconds, const char *what) {
    char time[MEMORY_SECONDS_MAX];
    snprintf(text, MEMORY_COST_MAX, "same bits; %s of %s a step",
             memory_seconds_text(time, seconds), what);
}

static double transfer_seconds(const struct config *config, struct backend *be) {
    return memory_copy_seconds(config, be) + memory_offload_seconds(config, be);
}

void memory_option_cost(char text[MEMORY_COST_MAX], enum memory_option option,
                        const struct config *from, const struct config *to, struct backend *be) {
    double more = memory_recomputed_part(to, be) - memory_recomputed_part(from, be);
    if (rows[option].cost) snprintf(text, MEMORY_COST_MAX, "%s", rows[option].cost);
    else if (option == MEMORY_OFFLOAD)
        transfer_cost(text, memory_offload_seconds(to, be), "traffic");
    else if (option == MEMORY_SAVED || option == MEMORY_STREAM || option == MEMORY_SENT)
        transfer_cost(text, transfer_seconds(to, be) - transfer_seconds(from, be), "copies");
    else if (option == MEMORY_MICRO_BATCH)
        snprintf(text, MEMORY_COST_MAX, "different summation order; %" PRId64 " per step",
                 to->train.grad_accum_steps);
    else if (more > 0)
        snprintf(text, MEMORY_COST_MAX, "same bits; %.1f %% more arithmetic", 100 * more);
    else snprintf(text, MEMORY_COST_MAX, "same bits; GELU once more");
}

/* ---- search for the cheapest set */

struct search {
    struct memory_advice *advice;
    struct backend *be;
    size_t memory, host;
    struct error *error;
    struct config least; /* config with the smallest layout so far */
    size_t least_bytes;
};

/* Returns 0 if config fits, RESULT_NONE if not. Most sets already fail by their layout, which is
 * much faster than a full plan. */
static int try_config(struct search *search, const struct config *config) {
    struct memory_plan *plan = &search->advice->plan;
    if (memory_layout_of(plan, config, search->be, search->error)) return -1;
    if (memory_total(plan) < search->least_bytes) {
        search->least = *config;
        search->least_bytes = memory_total(plan);
    }
    if (memory_total(plan) > search->memory) return RESULT_NONE;
    if (memory_plan_of(plan, config, search->be, search->error)) return -1;
    if (memory_total(plan) > search->memory) return RESULT_NONE;
    if (memory_host(plan) > search->host) return RESULT_NONE;
    search->advice->config = *config;
    return 0;
}

/* Tries all sets of the first `count` options on top of config, in order of cost. */
static int try_sets(struct search *search, const struct config *config, int count) {
    if (count == 0) return try_config(search, config);
    enum memory_option costliest = (enum memory_option)(count - 1);
    bool *chosen = &search->advice->chosen[costliest];
    struct config other = *config;
    *chosen = false;
    int status = try_sets(search, &other, count - 1);
    while (status == RESULT_NONE && memory_apply(&other, costliest, search->be)) {
        *chosen = true;
        status = try_sets(search, &other, count - 1);
    }
    return status;
}

int memory_advise(struct memory_advice *advice, const struct config *config, struct backend *be,
                  size_t memory, size_t host, struct error *error) {
    struct search search = {advice, be, memory, host, error, .least_bytes = SIZE_MAX};
    int status = try_sets(&search, config, MEMORY_OPTIONS);
    advice->bits = MEMORY_UNCHANGED;
    for (enum memory_option i = 0; i < MEMORY_OPTIONS; i++)
        if (advice->chosen[i] && rows[i].bits > advice->bits) advice->bits = rows[i].bits;
    if (status != RESULT_NONE) return status;
    advice->config = search.least;
    return memory_plan_of(&advice->plan, &advice->config, be, error) ? -1 : RESULT_NONE;
}
