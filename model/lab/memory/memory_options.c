#include "model/lab/memory/memory_options.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model/config/config_keys.h"
#include "model/lab/memory/memory_plan.h"
#include "model/precision.h"

static const struct config_option *option_of(const char *key) {
    return &config_options[config_option_index(key, strlen(key))];
}

/* ---- what each does */

typedef bool applier(struct config *config, const struct precision *precision,
                     const struct backend *be);

static bool set_copy(struct config *config, const struct precision *precision, enum dtype lower,
                     enum config_copy copy) {
    bool saves = precision->masters == MASTERS_KEPT && precision->lower == lower;
    if (saves) config->weights.copy = copy;
    return saves;
}

static bool split_copy(struct config *config, const struct precision *precision,
                       const struct backend *be) {
    (void)be;
    return set_copy(config, precision, DTYPE_BF16, CONFIG_COPY_SPLIT);
}

static bool cast_copy(struct config *config, const struct precision *precision,
                      const struct backend *be) {
    (void)be;
    return set_copy(config, precision, DTYPE_F16, CONFIG_COPY_CAST);
}

static bool set_recompute(struct config *config, enum config_recompute level) {
    bool more = config->train.recompute < level;
    if (more) config->train.recompute = level;
    return more;
}

static bool recompute_gelu(struct config *config, const struct precision *precision,
                           const struct backend *be) {
    (void)precision, (void)be;
    return set_recompute(config, CONFIG_RECOMPUTE_GELU);
}

static bool recompute_layer(struct config *config, const struct precision *precision,
                            const struct backend *be) {
    (void)precision, (void)be;
    return set_recompute(config, CONFIG_RECOMPUTE_LAYER);
}

static bool lower_gradients(struct config *config, const struct precision *precision,
                            const struct backend *be) {
    (void)be;
    bool changes = precision->lower != DTYPE_F32 && precision->gradients == DTYPE_F32;
    if (changes) config->gradients.dtype = CONFIG_DTYPE_LOWER;
    return changes;
}

static bool lower_moments(struct config *config, const struct precision *precision,
                          const struct backend *be) {
    (void)be;
    bool changes = precision->moments == DTYPE_F32;
    if (changes) config->optimizer.moments = CONFIG_MOMENTS_BFLOAT16;
    return changes;
}

static bool offload_optimizer(struct config *config, const struct precision *precision,
                              const struct backend *be) {
    (void)precision;
    if (config->offload.optimizer || be->device.host_memory) return false;
    config->offload.optimizer = true;
    return true;
}

static bool lower_residual(struct config *config, const struct precision *precision,
                           const struct backend *be) {
    (void)be;
    bool changes = precision->lower != DTYPE_F32 && precision->residual == DTYPE_F32;
    if (changes) config->autocast.residual = CONFIG_DTYPE_LOWER;
    return changes;
}

static bool lower_precision(struct config *config, const struct precision *precision,
                            const struct backend *be) {
    bool changes = precision->lower == DTYPE_F32 && config->autocast.enabled;
    if (changes)
        config->precision =
            be->device.computes[DTYPE_BF16] ? CONFIG_PRECISION_BF16 : CONFIG_PRECISION_FP16;
    return changes;
}

static bool smaller_batch(struct config *config, const struct precision *precision,
                          const struct backend *be) {
    (void)precision, (void)be;
    int64_t batch = config->train.micro_batch_size;
    int64_t sequences = batch * config->train.grad_accum_steps;
    do batch--;
    while (batch > 0 && sequences % batch);
    if (batch == 0 || (double)(sequences / batch) > option_of("train.grad_accum_steps")->maximum)
        return false;
    config->train.micro_batch_size = batch;
    config->train.grad_accum_steps = sequences / batch;
    return true;
}

static const struct row {
    const char *keys[MEMORY_OPTION_KEYS];
    enum memory_bits bits;
    applier *apply;
    const char *cost; /* NULL: it depends on the config */
} rows[MEMORY_OPTIONS] = {
    [MEMORY_SPLIT] = {{"weights.copy"}, MEMORY_SAME_BITS, split_copy, "same bits"},
    [MEMORY_RECOMPUTE_GELU] = {{"train.recompute"}, MEMORY_SAME_BITS, recompute_gelu, NULL},
    [MEMORY_RECOMPUTE_LAYER] = {{"train.recompute"}, MEMORY_SAME_BITS, recompute_layer, NULL},
    [MEMORY_GRADIENTS] = {{"gradients.dtype"},
                          MEMORY_LESS_EXACT,
                          lower_gradients,
                          "gradients rounded to 16 bit"},
    [MEMORY_MOMENTS] = {{"optimizer.moments"},
                        MEMORY_LESS_EXACT,
                        lower_moments,
                        "moments rounded to bf16"},
    [MEMORY_CAST] = {{"weights.copy"},
                     MEMORY_SAME_BITS,
                     cast_copy,
                     "same bits; weights cast each pass"},
    [MEMORY_OFFLOAD] = {{"offload.optimizer"}, MEMORY_SAME_BITS, offload_optimizer, NULL},
    [MEMORY_MICRO_BATCH] = {{"train.micro_batch_size", "train.grad_accum_steps"},
                            MEMORY_OTHER_ORDER,
                            smaller_batch,
                            NULL},
    [MEMORY_RESIDUAL] = {{"autocast.residual"},
                         MEMORY_LESS_EXACT,
                         lower_residual,
                         "residual stream in 16 bit"},
    [MEMORY_PRECISION] = {{"precision"},
                          MEMORY_LESS_EXACT,
                          lower_precision,
                          "products and activations in 16 bit"},
};

bool memory_apply(struct config *config, enum memory_option option, const struct backend *be) {
    struct precision precision;
    struct error ignored;
    char note[PRECISION_NOTE_MAX];
    if (precision_resolve(&precision, note, config, be, &ignored)) return false;
    return rows[option].apply(config, &precision, be);
}

enum memory_bits memory_option_bits(enum memory_option option) {
    return rows[option].bits;
}

bool memory_option_setting(char text[MEMORY_SETTING_MAX], enum memory_option option, int index,
                           const struct config *config) {
    const char *key = index < MEMORY_OPTION_KEYS ? rows[option].keys[index] : NULL;
    if (!key) return false;
    const struct config_option *row = option_of(key);
    const char *field = (const char *)config + row->offset;
    if (row->type == CONFIG_ENUM) {
        unsigned word;
        memcpy(&word, field, sizeof word);
        snprintf(text, MEMORY_SETTING_MAX, "%s=%s", key, row->words[word]);
    } else if (row->type == CONFIG_BOOLEAN) {
        bool set;
        memcpy(&set, field, sizeof set);
        snprintf(text, MEMORY_SETTING_MAX, "%s=%s", key, set ? "true" : "false");
    } else {
        int64_t whole;
        assert(row->type == CONFIG_INTEGER);
        memcpy(&whole, field, sizeof whole);
        snprintf(text, MEMORY_SETTING_MAX, "%s=%" PRId64, key, whole);
    }
    return true;
}

void memory_option_cost(char text[MEMORY_COST_MAX], enum memory_option option,
                        const struct config *from, const struct config *to, struct backend *be) {
    double more = memory_recomputed_part(to, be) - memory_recomputed_part(from, be);
    if (rows[option].cost) snprintf(text, MEMORY_COST_MAX, "%s", rows[option].cost);
    else if (option == MEMORY_OFFLOAD)
        snprintf(text, MEMORY_COST_MAX, "same bits; %.3g ms of traffic a step",
                 1e3 * memory_offload_seconds(to, be));
    else if (option == MEMORY_MICRO_BATCH)
        snprintf(text, MEMORY_COST_MAX, "different summation order; %" PRId64 " per step",
                 to->train.grad_accum_steps);
    else if (more > 0)
        snprintf(text, MEMORY_COST_MAX, "same bits; %.1f %% more arithmetic", 100 * more);
    else snprintf(text, MEMORY_COST_MAX, "same bits; GELU once more");
}

/* ---- what offloading costs */

double memory_offload_seconds(const struct config *config, struct backend *be) {
    struct memory_plan plan;
    struct error ignored;
    if (memory_plan_of(&plan, config, be, &ignored) || be->device.link <= 0) return 0;
    return (double)plan.host / be->device.link;
}

/* ---- what recomputing costs */

/* Whether the GELU of a layer comes with the product that gives its input, so that only both can be
 * had again: a library's GELU may be that of the unrounded sum. */
static bool gelu_is_fused(const struct gpt_shape *shape, const struct config *config,
                          const struct backend *be) {
    struct precision precision;
    struct error ignored;
    char note[PRECISION_NOTE_MAX];
    if (mlp_is_gated(shape->mlp) || be->device.gelu_of_stored) return false;
    if (precision_resolve(&precision, note, config, be, &ignored)) return true;
    return !precision.eight[SITE_MLP_FC];
}

/* Multiplications that a layer does once more, for one row: of the sites that write what is shared.
 * The GELU's input is there, which does not always help. */
static int64_t products_again(const struct gpt_shape *shape, const struct config *config,
                              const struct backend *be) {
    bool again[AUTOCAST_SITE_COUNT] = {false};
    bool fused = gelu_is_fused(shape, config, be);
    int64_t total = 0;
    for (int i = 0; i < ACTIVATION_COUNT && config->train.recompute; i++) {
        const struct activation *a = &activation_table[i];
        if (!a->layered || a->residual || (int)a->shared > (int)config->train.recompute) continue;
        again[a->writer] = true;
        if (a->shared == SHARE_GELU && fused) again[activation_table[i - 1].writer] = true;
    }
    for (enum autocast_site i = 0; i < AUTOCAST_SITE_COUNT; i++)
        if (again[i]) total += shape_layer_products(shape, i);
    return total;
}

double memory_recomputed_part(const struct config *config, const struct backend *be) {
    struct gpt_shape shape = config_shape(config);
    double layers = (double)shape.n_layer, width = (double)shape.n_embd;
    /* Scores and their use, half of each because nothing looks ahead. Going back there are five
     * such products for two: the scores once more, and four gradients. */
    double attention = (double)(shape_q(&shape) * config->data.seq_len);
    double products = (double)shape_layer_products(&shape, AUTOCAST_SITE_COUNT);
    double head = (double)shape.padded_vocab * width;
    double step = 3 * (layers * products + head) + 3.5 * layers * attention;
    double again = (double)products_again(&shape, config, be);
    if (config->train.recompute == CONFIG_RECOMPUTE_LAYER) again += attention;
    return (layers - 1) * again / step; /* the last layer's is still there */
}
