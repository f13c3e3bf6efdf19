/* Whole models as make_golden.py trains them, and the fixtures with what PyTorch computed
 * (test/golden/fixtures.md). */
#pragma once

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/error.h"
#include "model/config/config_keys.h"
#include "model/io/safetensors.h"
#include "model/optimize/trainer.h"
#include "test/safetensors_find.h"

enum family {
    GPT2,
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    GEMMA2,
    GEMMA3,
    OLMO3,
    HYPERCLOVAX,
    QWEN3_5,
    DELTANET,
    EXAONE4,
    PHI3
};

enum { STEPS = 10, MICRO_BATCHES = 2, BATCH = 2, VOCABULARY = 61 };

/* Tokens of a sequence; fixtures with adapters have odd sizes. */
enum { LENGTH = 16, LORA_LENGTH = 77 };

/* A file, with the data of each of its tensors. */
struct fixture {
    struct safetensors file;
    void **data; /* [file.count] */
};

static inline void fixture_open(struct fixture *fixture, const char *path) {
    struct error error;
    struct safetensors *file = &fixture->file;
    cr_assert_eq(safetensors_open(file, path, &error), 0, "%s", error.text);
    fixture->data = calloc((size_t)file->count, sizeof *fixture->data);
    for (int i = 0; i < file->count; i++)
        cr_assert_not_null(fixture->data[i] = safetensors_data(file, &file->entries[i]));
}

static inline void fixture_close(struct fixture *fixture) {
    for (int i = 0; i < fixture->file.count; i++) free(fixture->data[i]);
    free(fixture->data);
    safetensors_close(&fixture->file);
}

/* Returns a tensor's data, or NULL. */
static inline const void *data_in(const struct fixture *fixture, const char *name,
                                  enum safetensors_dtype dtype) {
    const struct safetensors_entry *entry = safetensors_find(&fixture->file, name);
    cr_assert(!entry || entry->dtype == dtype);
    return entry ? fixture->data[entry - fixture->file.entries] : NULL;
}

enum { NAME_MAX_BYTES = 128 };
static inline void name_in_fixture(char name[NAME_MAX_BYTES], enum family family, const char *what,
                                   const struct parameter *parameter) {
    snprintf(name, NAME_MAX_BYTES, "%s.%s%s", what, family == GPT2 ? "transformer." : "",
             parameter->name);
}

/* Parts of Gemma's models beside the sizes that all share. */
static inline void make_gemma(struct config *config, bool third) {
    config->model.n_layer = 3;
    config->model.norm_zero_centered = config->model.post_norm = true;
    config->model.scale_embedding = true;
    config->model.mlp = MLP_GEGLU;
    config->model.query_pre_attn_scalar = 12;
    config->model.window = 6;
    config->model.window_pattern = 2;
    config->model.rope_theta = third ? 1e6 : 1000;
    config->model.rope_scaling = third ? ROPE_LINEAR : ROPE_UNSCALED;
    config->model.rope_factor = 2.5;
    config->model.rope_theta_window = third ? 1000 : 0;
    config->model.attention_softcap = third ? 0 : 1.5;
    config->model.logit_softcap = third ? 0 : 2;
    config->model.qk_norm = third;
}

static inline void make_olmo3(struct config *config) {
    config->model.n_layer = 3;
    config->model.post_norm = config->model.no_pre_norm = true;
    config->model.qk_norm = config->model.qk_norm_whole = true;
    config->model.tied_head = false;
    config->model.window = 6;
    config->model.window_pattern = 2;
    config->model.rope_theta = config->model.rope_theta_window = 1000;
    config->model.rope_scaling = ROPE_YARN;
    config->model.rope_factor = 2.5;
    config->model.rope_original_positions = LENGTH / 2;
}

static inline void make_deltanet(struct config *config) {
    config->model.n_layer = 3;
    config->model.qk_norm = config->model.attention_gate = config->model.norm_zero_centered = true;
    config->model.norm_eps = 1e-3;
    config->model.partial_rotary_factor = 0.5;
    config->model.full_attention_interval = 2;
    config->model.linear_num_key_heads = 2;
    config->model.linear_num_value_heads = 4;
    config->model.linear_key_head_dim = 6;
    config->model.linear_value_head_dim = 10;
}

static inline void make_exaone4(struct config *config) {
    config->model.n_layer = 3;
    config->model.post_norm = config->model.no_pre_norm = config->model.qk_norm = true;
    config->model.window = 6;
    config->model.window_pattern = config->model.no_rope_interval = 2;
    config->model.rope_theta = 1000;
}

static inline void make_phi3(struct config *config) {
    config->model.norm_eps = 1e-5;
    config->model.tied_head = false;
    config->model.window = 6;
    config->model.fused = FUSED_ALL;
    config->model.partial_rotary_factor = 0.5;
    config->model.rope_theta = 1000;
}

/* Settings as in make_golden.py. */
static inline void make_model(struct config *config, enum family family) {
    config->model.n_layer = 2;
    config->model.n_head = 2;
    config->model.n_embd = 32;
    config->model.n_positions = LENGTH;
    config->model.vocab_size = VOCABULARY;
    bool llama = family == LLAMA || family == MISTRAL || family == HYPERCLOVAX;
    if (family == GPT2) return;
    config->model.n_head = 6;
    config->model.n_kv_head = family == QWEN2 ? 1 : 2;
    config->model.head_dim = family == QWEN2 ? 6 : 8;
    config->model.n_embd = 36;
    config->model.n_inner = 88;
    config->model.norm = NORM_RMSNORM;
    config->model.norm_eps = llama ? 1e-5 : 1e-6;
    config->model.positions = POSITIONS_ROPE;
    config->model.rope_theta = llama ? 1000 : 1e6;
    config->model.rope_scaling = family == LLAMA ? ROPE_LLAMA3 : ROPE_UNSCALED;
    config->model.rope_original_positions = 8;
    config->model.mlp = MLP_SWIGLU;
    config->model.bias = family == QWEN2 ? BIAS_QKV : BIAS_NONE;
    config->model.tied_head = !llama;
    config->model.window = family == MISTRAL ? 6 : 0;
    config->model.qk_norm = family == QWEN3 || family == QWEN3_5;
    config->model.attention_gate = config->model.norm_zero_centered = family == QWEN3_5;
    if (family == HYPERCLOVAX) {
        config->model.embedding_multiplier = 7;
        config->model.attention_multiplier = 0.2;
        config->model.residual_multiplier = 0.22;
        config->model.logits_scaling = 1 / 0.4;
        config->model.post_norm = true;
    }
    if (family == GEMMA2 || family == GEMMA3) make_gemma(config, family == GEMMA3);
    if (family == OLMO3) make_olmo3(config);
    if (family == DELTANET) make_deltanet(config);
    if (family == EXAONE4) make_exaone4(config);
    if (family == PHI3) make_phi3(config);
}

/* Rope scaling as in ROPES of make_golden.py, by the name of the fixture. */
static inline void make_rope(struct config *config, const char *fixture) {
    static const enum rope_scaling kinds[] = {ROPE_LINEAR, ROPE_DYNAMIC, ROPE_YARN};
    static const char *const names[] = {"_linear_", "_dynamic_", "_yarn_"};
    for (int i = 0; i < 3; i++) {
        if (!strstr(fixture, names[i])) continue;
        config->model.rope_scaling = kinds[i];
        config->model.rope_factor = 2.5;
        config->model.rope_original_positions = LENGTH / 2;
    }
}

/* Sizes as in LORA_SIZES of make_golden.py. */
static inline void make_lora_sizes(struct config *config) {
    config->model.n_positions = LORA_LENGTH;
    if (config->model.norm == NORM_LAYERNORM) return;
    config->model.n_head = 9;
    config->model.n_kv_head = 3;
    config->model.head_dim = 4;
}

/* Adapters as in make_lora of make_golden.py. */
static inline void make_lora(struct config *config, const char *targets) {
    const struct config_option *option = config_option_of("adapter.targets");
    config->adapter.type = CONFIG_ADAPTER_LORA;
    config->adapter.rank = 5;
    config->adapter.alpha = 8;
    for (int i = 0; option->names[i]; i++)
        if (strstr(targets, option->names[i]))
            config->adapter.targets.items[config->adapter.targets.count++] = option->names[i];
}

/* Steps, AdamW and loss scales as in make_golden.py. */
static inline void make_training(struct config *config) {
    config->train.steps = STEPS;
    config->train.micro_batch_size = BATCH;
    config->train.grad_accum_steps = MICRO_BATCHES;
    config->optimizer.lr = 1e-3;
    config->optimizer.schedule = CONFIG_SCHEDULE_CONSTANT;
    config->optimizer.warmup_steps = 0;
    config->optimizer.beta1 = 0.9;
    config->optimizer.beta2 = 0.95;
    config->optimizer.eps = 1e-8;
    config->optimizer.weight_decay = 0.1;
    config->optimizer.grad_clip = 1;
    config->loss_scale.init_scale = 0x1p13;
    config->loss_scale.growth_factor = 0x1p10;
    config->loss_scale.backoff_factor = 0x1p-10;
    config->loss_scale.growth_interval = 3;
    config->loss_scale.min_scale = 1;
}

static inline double norm_of(const float *values, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += (double)values[i] * values[i];
    return sqrt(sum);
}

/* Euclidean length of got * scale - expected. */
static inline double distance(const float *got, double scale, const float *expected,
                              int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        double difference = got[i] * scale - expected[i];
        sum += difference * difference;
    }
    return sqrt(sum);
}

/* Returns the values of a tensor as fp32 on the host, to be freed. */
static inline float *values_of(struct backend *be, const struct tensor *tensor) {
    size_t count = (size_t)tensor_count(tensor);
    void *raw = malloc(tensor_bytes(tensor));
    float *values = malloc(count * sizeof *values);
    backend_download(be, raw, tensor->data, tensor_bytes(tensor));
    const float *wide = dtype_widen(values, raw, tensor->dtype, 0, count);
    if (wide != values) memcpy(values, wide, count * sizeof *values);
    free(raw);
    return values;
}

static inline bool verbose(void) {
    return getenv("CHECK_VERBOSE") != NULL;
}
