#include "model/config/config_effects.h"

#include <string.h>

#include "data/util/note.h"
#include "model/config/config_print.h"

#define PRECISION(NAME) (1u << CONFIG_PRECISION_##NAME)
static const unsigned quantized_precisions =
    PRECISION(FP8) | PRECISION(MXFP8) | PRECISION(MXFP4) | PRECISION(NVFP4);
static const unsigned lower_precisions = quantized_precisions | PRECISION(FP16) | PRECISION(BF16);

/* True if some steps of the run compute in one of these precisions. */
static bool computes_in(const struct config *config, unsigned precisions) {
    unsigned used = 1u << config->precision;
    if (config->precision == CONFIG_PRECISION_AUTO)
        used = PRECISION(FP32) | PRECISION(FP16) | PRECISION(BF16);
    if (config->precision_switch.at > 0) used |= 1u << config->precision_switch.precision;
    return used & precisions;
}

/* The keys that a value of another key reads, and what warnings about others say. */
struct reader {
    const char *keys, *set;
};
static const struct reader objectives[] = {
#define X(NAME, name, ROWS, has_reference, nll_weight, keys) {keys, "train.objective is " #name},
    OBJECTIVES(X)
#undef X
};
static const struct reader optimizers[] = {
#define X(NAME, name, keys) {keys, "optimizer.name is " #name},
    OPTIMIZERS(X)
#undef X
};

/* True if `name` is one of the keys, which spaces separate. */
static bool lists(const char *keys, const char *name) {
    const size_t length = strlen(name);
    for (const char *at = keys; (at = strstr(at, name)); at += length)
        if ((at == keys || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0')) return true;
    return false;
}

/* Returns why a condition of a key does not hold, or NULL if it does. */
static const char *reason_against(const struct config *c, const char *name,
                                  enum config_condition condition) {
    if (condition == USED_IF_ALWAYS) return NULL;
    switch (condition) {
#define X(NAME, parent, holds, reason)                                 \
    case USED_IF_##NAME: {                                             \
        const char *outer = reason_against(c, name, USED_IF_##parent); \
        return outer || (holds) ? outer : reason;                      \
    }
#include "model/config/config_conditions.inc"
#undef X
    case CONFIG_CONDITION_COUNT: break;
    }
    return NULL;
}

const char *config_unused_reason(const struct config *config, const struct config_option *option) {
    return reason_against(config, config_option_name(option), option->used_if);
}

/* Two tokenizers besides bytes are equivalent, because older files name the same one
 * differently. */
static bool same_value(const struct config *a, const struct config *b,
                       const struct config_option *option) {
    char left[CONFIG_VALUE_MAX], right[CONFIG_VALUE_MAX];
    if (strcmp(option->key, "data.tokenizer") == 0)
        return (a->data.tokenizer == TOKENIZER_BYTES) == (b->data.tokenizer == TOKENIZER_BYTES);
    config_value_text(left, a, option);
    config_value_text(right, b, option);
    return strcmp(left, right) == 0;
}

/* True if a flag gave the key, or a file another value than the default. A file's details of
 * validations and samples that a flag switches off do not count. */
static bool is_set(const struct config *config, const struct config *initial,
                   const struct config_option *option) {
    if (config_given_by_flag(config, option->key)) return true;
    if (strncmp(option->key, "eval.", 5) == 0 && config_given_by_flag(config, "eval.every"))
        return false;
    if (strncmp(option->key, "sample.", 7) == 0 && config_given_by_flag(config, "sample.every"))
        return false;
    return config_given(config, option->key) && !same_value(config, initial, option);
}

void config_unused(const struct config *config, FILE *out) {
    struct config initial;
    config_defaults(&initial);
    for (int i = 0; i < config_option_count; i++) {
        const struct config_option *option = &config_options[i];
        const char *reason = config_unused_reason(config, option);
        if (reason && is_set(config, &initial, option))
            note(out, "warning", "%s has no effect: %s", option->key, reason);
    }
}

/* Replaces values that stand for those of other keys. */
static void resolve_sizes(struct config *config) {
    const struct model_shape shape = config_shape(config);
#define X(size) config->model.size = shape.size;
    MODEL_SIZES(X)
#undef X
    if (config->model.query_pre_attn_scalar == 0)
        config->model.query_pre_attn_scalar = (double)shape.head_dim;
}

int config_changed_rows(const struct config_option *rows[CONFIG_OPTION_LIMIT],
                        const struct config *before, const struct config *now) {
    struct config a = *before, b = *now;
    int count = 0;
    resolve_sizes(&a);
    resolve_sizes(&b);
    for (int i = 0; i < config_option_count; i++) {
        const struct config_option *option = &config_options[i];
        if (!config_unused_reason(before, option) && !config_unused_reason(now, option) &&
            !same_value(before, now, option) && !same_value(&a, &b, option))
            rows[count++] = option;
    }
    return count;
}
