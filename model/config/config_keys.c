#include "model/config/config_keys.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/arena.h"
#include "model/architecture/adapters.h"
#include "model/architecture/autocast_sites.h"
#include "model/architecture/families.h"

static const char *const precision_names[] = {
#define X(NAME, name, ...) name,
    DTYPES(X)
#undef X
        "fp8",
#define X(NAME, name, ...) name,
    BLOCK_PRECISIONS(X)
#undef X
        "auto",
    NULL};
static const char *const preset_names[] = {"",
#define X(NAME, name, ...) name,
                                           MODEL_PRESETS(X)
#undef X
                                               NULL};
static const char *const dtype_names[] = {"float32", "lower", NULL};
static const char *const optimizer_names[] = {
#define X(NAME, name, ...) #name,
    OPTIMIZERS(X)
#undef X
        NULL};
static const char *const objective_names[] = {
#define X(NAME, name, ...) #name,
    OBJECTIVES(X)
#undef X
        NULL};
static const char *const grpo_names[] = {
#define X(NAME, name, ...) #name,
    GRPO_LOSSES(X)
#undef X
        NULL};
static const char *const recipe_names[] = {
#define X(NAME, name, ...) name,
    RECIPES(X)
#undef X
        NULL};
#define RECIPE_HELP(NAME, name, scales, ...) " " name ": " scales "."
static const char *const mlp_names[] = {
#define X(NAME, name, ...) name,
    MLPS(X)
#undef X
        NULL};

/* The key is also the path of the field, so it is written once. A row does not compile if its type
 * differs from the field's. The last arguments begin with the help text. */
#define FIELD_OF(type_, field_) \
    _Generic(((struct config *)0)->field_, type_ : offsetof(struct config, field_))
#define ROW(TYPE_, type_, field_, ...) \
    { .key = #field_, .type = CONFIG_##TYPE_, .offset = FIELD_OF(type_, field_), __VA_ARGS__ }
#define COLUMNS(used_if_, changes_) .used_if = USED_IF_##used_if_, .changes = CHANGES_##changes_
#define INTEGER(field_, used_if_, changes_, initial_, minimum_, maximum_, ...)        \
    ROW(INTEGER, int64_t, field_, COLUMNS(used_if_, changes_), .initial = (initial_), \
        .minimum = (minimum_), .maximum = (maximum_), .help = __VA_ARGS__)
#define NUMBER(field_, used_if_, changes_, initial_, minimum_, maximum_, ...)       \
    ROW(NUMBER, double, field_, COLUMNS(used_if_, changes_), .initial = (initial_), \
        .minimum = (minimum_), .maximum = (maximum_), .help = __VA_ARGS__)
#define BOOLEAN(field_, used_if_, changes_, initial_, ...)                                       \
    ROW(BOOLEAN, bool, field_, COLUMNS(used_if_, changes_), .initial = (initial_), .maximum = 1, \
        .help = __VA_ARGS__)
#define STRING(field_, used_if_, changes_, initial_, least_length_, ...)         \
    ROW(STRING, char *, field_, COLUMNS(used_if_, changes_), .text = (initial_), \
        .minimum = (least_length_), .maximum = CONFIG_STRING_MAX - 1, .help = __VA_ARGS__)
/* gcc and clang give an enum without negative values the type unsigned int. */
#define ENUM(field_, used_if_, changes_, initial_, names_, ...)                     \
    ROW(ENUM, unsigned, field_, COLUMNS(used_if_, changes_), .initial = (initial_), \
        .names = (names_), .help = __VA_ARGS__)
#define LIST(field_, used_if_, changes_, names_, ...)                                      \
    ROW(LIST, struct config_words, field_, COLUMNS(used_if_, changes_), .names = (names_), \
        .help = __VA_ARGS__)
#define NAMES(...)      ((const char *const[]){__VA_ARGS__, NULL})
#define COMPUTED(rule_) .computed = rule_
#define PRESET_RULE     "or the preset's, or init_from's"
#define PRESET          COMPUTED(PRESET_RULE)
#define BELOW_MAXIMUM   .below_maximum = true

_Static_assert((int)AUTOCAST_NAME_COUNT <= (int)CONFIG_WORDS_MAX,
               "struct config_words must hold every site");

const struct config_option config_options[] = {
#include "model/config/config_table.inc"
};
const int config_option_count = sizeof config_options / sizeof *config_options;
_Static_assert(sizeof config_options / sizeof *config_options <= CONFIG_OPTION_LIMIT,
               "raise CONFIG_OPTION_LIMIT");

const struct config_block config_blocks[] = {
    {"model", "Sizes and parts of the transformer, and its initial weights."},
    {"adapter", "Fine-tuning of low-rank adapters on a frozen model (LoRA)."},
    {"data", "Training and validation data."},
    {"train", "Length of the run and size of a step."},
    {"objective", "Preference tuning; used with train.objective other than language only."},
    {"grpo", "Learning from rewards; used with train.objective grpo only."},
    {"reward", "Rewards of completions; used with train.objective grpo only."},
    {"distill", "Distillation from the stored logits of a teacher."},
    {"optimizer", "Update rule and learning rate."},
    {"autocast", "Operations in 16 bit when precision is not fp32."},
    {"fp8", "Quantization of linear layers; used with fp8 only, but for require."},
    {"mx", "Microscaling formats; used with mxfp8 and mxfp4 only."},
    {"nvfp4", "Recipe of NVFP4; used with nvfp4 only."},
    {"precision_switch", "Another precision for the last part of a run."},
    {"gradients", "Storage of gradients."},
    {"weights", "Storage of 16-bit and of quantized weights."},
    {"offload", "What is kept in host memory."},
    {"ranks", "Data-parallel training; see kernels/comm/README.md."},
    {"loss_scale", "Dynamic loss scaling; used with fp16 only."},
    {"eval", "Validation during training."},
    {"checkpoint", "Checkpoints and resuming."},
    {"sample", "Text from the model during training."},
    {"log", "Output of a run."},
};
const int config_block_count = sizeof config_blocks / sizeof *config_blocks;

static bool text_is(const char *text, const char *name, size_t length) {
    return strlen(text) == length && memcmp(text, name, length) == 0;
}

int config_option_index(const char *name, size_t length) {
    for (int i = 0; i < config_option_count; i++)
        if (text_is(config_options[i].key, name, length)) return i;
    return -1;
}

const struct config_option *config_option_of(const char *key) {
    int row = config_option_index(key, strlen(key));
    assert(row >= 0);
    return &config_options[row];
}

int config_block_index(const char *name, size_t length) {
    for (int i = 0; i < config_block_count; i++)
        if (text_is(config_blocks[i].name, name, length)) return i;
    return -1;
}

int config_option_block(const struct config_option *option) {
    const char *dot = strchr(option->key, '.');
    return dot ? config_block_index(option->key, (size_t)(dot - option->key)) : -1;
}

const char *config_option_name(const struct config_option *option) {
    const char *dot = strchr(option->key, '.');
    return dot ? dot + 1 : option->key;
}

int config_name_count(const struct config_option *option) {
    int count = 0;
    while (option->names[count]) count++;
    return count;
}

bool config_has_switch(const struct config_option *option) {
    const char *const *names = option->type == CONFIG_ENUM ? option->names : NULL;
    while (names && *names && strcmp(*names, "on") != 0) names++;
    return names && *names;
}

const char *config_format_number(char text[CONFIG_NUMBER_MAX], double value) {
    for (int digits = 1; digits <= 17; digits++) {
        /* %g uses an exponent from `digits` digits on; plain digits are easier to read up to
         * 2^53. */
        if (value == floor(value) && fabs(value) < 0x1p53)
            snprintf(text, CONFIG_NUMBER_MAX, "%.0f", value);
        else snprintf(text, CONFIG_NUMBER_MAX, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    return text;
}

double config_number(const struct config *config, const struct config_option *option) {
    const void *field = (const char *)config + option->offset;
    switch (option->type) {
    case CONFIG_ENUM: return *(const unsigned *)field;
    case CONFIG_INTEGER: return (double)*(const int64_t *)field;
    case CONFIG_BOOLEAN: return *(const bool *)field;
    default: return *(const double *)field;
    }
}

void config_set(struct config *config, const struct config_option *option, double value) {
    void *field = (char *)config + option->offset;
    switch (option->type) {
    case CONFIG_STRING: strcpy(field, option->text); break;
    case CONFIG_ENUM: *(unsigned *)field = (unsigned)value; break;
    case CONFIG_INTEGER: *(int64_t *)field = (int64_t)value; break;
    case CONFIG_NUMBER: *(double *)field = value; break;
    case CONFIG_BOOLEAN: *(bool *)field = value != 0; break;
    case CONFIG_LIST: memset(field, 0, sizeof(struct config_words)); break;
    }
}

void config_defaults(struct config *config) {
    memset(config, 0, sizeof *config);
    config->rank_count = 1;
    for (int i = 0; i < config_option_count; i++)
        config_set(config, &config_options[i], config_options[i].initial);
}

bool config_given(const struct config *config, const char *name) {
    int row = config_option_index(name, strlen(name));
    if (row >= 0) return config->sources[row] != CONFIG_SOURCE_DEFAULT;
    int block = config_block_index(name, strlen(name));
    assert(block >= 0);
    for (int i = 0; i < config_option_count; i++)
        if (config_option_block(&config_options[i]) == block &&
            config->sources[i] != CONFIG_SOURCE_DEFAULT)
            return true;
    return false;
}

bool config_given_by_flag(const struct config *config, const char *key) {
    return config->sources[config_option_of(key) - config_options] == CONFIG_SOURCE_FLAG;
}

struct model_shape config_shape(const struct config *config) {
    struct model_shape shape = {
#define X(size) .size = config->model.size,
        MODEL_SIZES(X)
#undef X
#define X(type, part, ...) .part = config->model.part,
            MODEL_PARTS(X)
#undef X
                .padded_vocab = round_up(config->model.vocab_size, VOCAB_ALIGNMENT),
    };
    if (!shape.n_kv_head) shape.n_kv_head = shape.n_head;
    if (!shape.head_dim) shape.head_dim = shape.n_embd / shape.n_head;
    if (!shape.n_inner)
        shape.n_inner =
            mlp_is_gated(shape.mlp) ? round_up(8 * shape.n_embd / 3, 64) : 4 * shape.n_embd;
    shape.no_pre_norm &= shape.post_norm;
    shape.qk_norm_whole &= shape.qk_norm;
    if (shape.positions != POSITIONS_ROPE) shape.no_rope_interval = 0;
    if (shape.positions != POSITIONS_ROPE) shape.rope_interleaved = false;
    if (shape.positions != POSITIONS_ROPE || shape.rope_scaling != ROPE_YARN)
        shape.query_scaling_beta = 0;
    shape.weights_out_in = shape.llama_names = shape_family(&shape) != FAMILY_GPT2;
    if (config->adapter.type == CONFIG_ADAPTER_NONE) return shape;
    shape.adapter_rank = config->adapter.rank;
    for (int i = 0; i < config->adapter.targets.count; i++)
        shape.adapter_targets |= adapter_targets_named(&shape, config->adapter.targets.items[i]);
    if (config->adapter.targets.count == 0)
        shape.adapter_targets = adapter_targets_named(&shape, "all-linear");
    return shape;
}

const char *config_name_of(const char *key, unsigned value) {
    return config_option_of(key)->names[value];
}

const char *config_preset_name(enum config_preset preset) {
    return config_name_of("model.preset", preset);
}

const char *config_precision_name(enum config_precision precision) {
    return config_name_of("precision", precision);
}
