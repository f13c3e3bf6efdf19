/* The family of a shape: one for each set of parts, and none for parts that no family has. */
#include <criterion/criterion.h>

#include "model/architecture/families.h"
#include "model/config/config_keys.h"
#include "test/model/families.h"

/* The families of set_family, by number. */
static const enum model_family expected[FAMILIES] = {
    FAMILY_GPT2,     FAMILY_LLAMA,       FAMILY_QWEN2,   FAMILY_COUNT, FAMILY_COUNT, FAMILY_QWEN3,
    FAMILY_GEMMA2,   FAMILY_GEMMA3,      FAMILY_SMOLLM3, FAMILY_OLMO2, FAMILY_OLMO3, FAMILY_EXAONE4,
    FAMILY_GRANITE,  FAMILY_HYPERCLOVAX, FAMILY_ARCEE,   FAMILY_PHI3,  FAMILY_COUNT, FAMILY_GLM4,
    FAMILY_GRANITE4, FAMILY_MINISTRAL3,  FAMILY_QWEN3_5};

static struct model_shape shape_of(int number) {
    struct config config;
    config_defaults(&config);
    set_family(&config, number);
    return config_shape(&config);
}

Test(families, of_their_parts) {
    for (int i = 0; i < FAMILIES; i++) {
        const struct model_shape shape = shape_of(i);
        cr_expect_eq(shape_family(&shape), expected[i], "%d", i);
    }
}

/* Windows in all layers are Mistral's, in some layers Qwen's. GPT-2's parameters have no window. */
Test(families, windows_and_biases_of_llamas) {
    const struct {
        int64_t window, from;
        enum model_bias bias;
        bool qk_norm;
        enum model_family family;
    } cases[] = {
        {0, 0, BIAS_NONE, false, FAMILY_LLAMA},   {0, 0, BIAS_ALL, false, FAMILY_LLAMA},
        {8, 0, BIAS_NONE, false, FAMILY_MISTRAL}, {8, 1, BIAS_NONE, false, FAMILY_COUNT},
        {8, 0, BIAS_ALL, false, FAMILY_COUNT},    {8, 1, BIAS_QKV, false, FAMILY_QWEN2},
        {8, 1, BIAS_NONE, true, FAMILY_QWEN3},    {0, 0, BIAS_QKV, true, FAMILY_COUNT},
        {0, 0, BIAS_ALL, true, FAMILY_COUNT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_shape shape = shape_of(1);
        shape.n_layer = 2;
        shape.window = cases[i].window, shape.window_from = cases[i].from;
        shape.bias = cases[i].bias, shape.qk_norm = cases[i].qk_norm;
        cr_expect_eq(shape_family(&shape), cases[i].family, "case %zu", i);
    }
    struct model_shape gpt2 = shape_of(0);
    gpt2.window = 8;
    cr_expect_eq(shape_family(&gpt2), FAMILY_GPT2);
    gpt2.n_kv_head = 1;
    cr_expect_eq(shape_family(&gpt2), FAMILY_COUNT);
}

/* Exchanges each part that all models of a family have, and sets those that others lack. */
Test(families, another_part_is_another_family) {
    for (int i = 0; i < FAMILIES; i++) {
        const struct model_shape shape = shape_of(i);
        const enum model_family own = expected[i];
        const bool gemma2 = own == FAMILY_GEMMA2, gemma3 = own == FAMILY_GEMMA3;
        const bool granite =
            own == FAMILY_GRANITE || own == FAMILY_HYPERCLOVAX || own == FAMILY_GRANITE4;
        const struct model_shape has = {.partial_rotary_factor = own == FAMILY_PHI3 ||
                                                                 own == FAMILY_GLM4 ||
                                                                 own == FAMILY_QWEN3_5,
                                        .full_attention_interval = own == FAMILY_QWEN3_5,
                                        .query_scaling_beta = own == FAMILY_MINISTRAL3,
                                        .embedding_multiplier = granite,
                                        .attention_multiplier = granite,
                                        .residual_multiplier = granite,
                                        .logits_scaling = granite,
                                        .rope_theta_window = gemma3 || own == FAMILY_OLMO3,
                                        .attention_softcap = gemma2,
                                        .no_rope_interval = own == FAMILY_SMOLLM3,
                                        .logit_softcap = gemma2 || gemma3,
                                        .query_pre_attn_scalar = gemma2 || gemma3};
        if (own == FAMILY_COUNT) continue;
#define FREE(part)
#define FIXED(part)                                                     \
    {                                                                   \
        struct model_shape other = shape;                               \
        other.part = !other.part;                                       \
        cr_expect_neq(shape_family(&other), own, "%s of %d", #part, i); \
    }
#define OPTIONAL(part)                                                                 \
    {                                                                                  \
        struct model_shape other = shape;                                              \
        other.part = 3;                                                                \
        cr_expect_eq(shape_family(&other) == own, has.part > 0, "%s of %d", #part, i); \
    }
#define X(type, part, in_a_family) in_a_family(part)
        MODEL_PARTS(X)
#undef X
    }
}
