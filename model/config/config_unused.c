#include "model/config/config_unused.h"

#include <stdbool.h>
#include <stdio.h>

#include "model/config/config_keys.h"

enum { KEYS_MAX = 8 };

/* True if a flag gave the key, or a file gave it a value other than the default: configs of
 * checkpoints repeat all defaults. The key must have a number, an enum or a boolean. */
static bool is_changed(const struct config *config, const char *key) {
    const struct config_option *option = config_option_of(key);
    return config_given_by_flag(config, key) || (config_given(config, key) && !option->computed &&
                                                 config_number(config, option) != option->initial);
}

/* True if some steps of the run compute in this precision. */
static bool computes_in(const struct config *config, enum config_precision precision) {
    return config->precision == precision ||
           (config->precision_switch.at > 0 && config->precision_switch.precision == precision);
}

void config_unused(const struct config *config, char *text, size_t size) {
    const enum config_optimizer optimizer = config->optimizer.name;
    const enum config_objective objective = config->train.objective;
    const bool muon = optimizer == CONFIG_OPTIMIZER_MUON;
    const bool none = config->adapter.type == CONFIG_ADAPTER_NONE;
    const struct {
        bool unused;
        const char *reason, *keys[KEYS_MAX];
    } rules[] = {
        {none,
         "adapter.type is none",
         {"adapter.rank", "adapter.alpha", "adapter.dropout", "adapter.rslora", "adapter.base"}},
        {objective == CONFIG_OBJECTIVE_LANGUAGE,
         "train.objective is language",
         {"objective.beta", "objective.label_smoothing", "objective.nll_weight", "objective.gamma",
          "objective.desirable_weight", "objective.undesirable_weight"}},
        {!config->distill.logits[0],
         "distill.logits is empty",
         {"distill.alpha", "distill.temperature"}},
        {config->optimizer.schedule != CONFIG_SCHEDULE_WSD,
         "optimizer.schedule is not wsd",
         {"optimizer.decay_fraction"}},
        {!muon && optimizer != CONFIG_OPTIMIZER_SGD,
         "optimizer.name is neither muon nor sgd",
         {"optimizer.momentum", "optimizer.nesterov"}},
        {!muon,
         "optimizer.name is not muon",
         {"optimizer.adamw_lr", "optimizer.scale", "optimizer.newton_schulz_steps",
          "optimizer.newton_schulz_dtype"}},
        {config->optimizer.moments != CONFIG_MOMENTS_INT8,
         "optimizer.moments is not int8",
         {"optimizer.min_8bit_size", "optimizer.embeddings_8bit", "optimizer.rounding_8bit"}},
        {config->precision_switch.at <= 0,
         "precision_switch.at is 0",
         {"precision_switch.precision"}},
        {!computes_in(config, CONFIG_PRECISION_FP8),
         "precision is not fp8",
         {"fp8.recipe", "fp8.format", "fp8.power_of_two", "fp8.amax_history_length", "fp8.margin",
          "fp8.fast_accumulation"}},
        {!computes_in(config, CONFIG_PRECISION_MXFP8), "precision is not mxfp8", {"mx.format"}},
        {!computes_in(config, CONFIG_PRECISION_MXFP8) &&
             !computes_in(config, CONFIG_PRECISION_MXFP4),
         "precision is neither mxfp8 nor mxfp4",
         {"mx.scales"}},
        {!computes_in(config, CONFIG_PRECISION_NVFP4),
         "precision is not nvfp4",
         {"nvfp4.stochastic_rounding", "nvfp4.hadamard", "nvfp4.square_blocks"}},
    };
    size_t used = 0;
    text[0] = 0;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        for (int key = 0; rules[i].unused && key < KEYS_MAX && rules[i].keys[key]; key++)
            if (is_changed(config, rules[i].keys[key]) && used < size)
                used += (size_t)snprintf(text + used, size - used, "%s has no effect: %s\n",
                                         rules[i].keys[key], rules[i].reason);
}
