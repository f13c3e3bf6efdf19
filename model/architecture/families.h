/* Families of models: the classes of huggingface/transformers that have the same parts. */
#pragma once

#include "model/architecture/parameters.h"

enum model_family {
#define X(NAME, ...) FAMILY_##NAME,
    MODEL_FAMILIES(X)
#undef X
        FAMILY_COUNT
};

/* Families, as a set. IN_LLAMAS: Llama's, and others whose config.json has Llama's keys. */
enum {
#define X(NAME, ...) IN_##NAME = 1 << FAMILY_##NAME,
    MODEL_FAMILIES(X)
#undef X
        IN_ALL = (1 << FAMILY_COUNT) - 1,
    IN_QWEN = IN_QWEN2 | IN_QWEN3,
    IN_GEMMA = IN_GEMMA2 | IN_GEMMA3,
    IN_OLMO = IN_OLMO2 | IN_OLMO3,
    /* Families whose layers with and without a window differ in more than the window. */
    IN_KINDS = IN_GEMMA | IN_OLMO3 | IN_EXAONE4,
    IN_LLAMAS = IN_ALL & ~(IN_GPT2 | IN_GEMMA),
    IN_GRANITES = IN_GRANITE | IN_HYPERCLOVAX | IN_GRANITE4,
    /* Families of which a part of a head rotates, and positions are not scaled. */
    IN_PARTIAL = IN_PHI3 | IN_GLM4 | IN_QWEN3_5,
    /* Families with heads of 128, and with 1e-5 in norms, in files that name none. */
    IN_HEAD_OF_128 = IN_QWEN3 | IN_SEED_OSS | IN_GLM4 | IN_MINISTRAL3,
    IN_EPSILON_1E_5 = IN_OLMO | IN_EXAONE4 | IN_ARCEE | IN_PHI3 | IN_MINISTRAL3,
    /* Families with attention_bias and mlp_bias. */
    IN_BIASED = IN_LLAMA | IN_SMOLLM3 | IN_GRANITE | IN_HYPERCLOVAX | IN_ARCEE
};

struct family {
    const char *type, *class, *gguf;
    int64_t begin, end, pad; /* tokens */
    int64_t window, window_pattern;
    struct model_shape parts;
};

extern const struct family families[FAMILY_COUNT]; /* columns of MODEL_FAMILIES */

/* Returns the family whose parts are those of the shape, or FAMILY_COUNT. A GPT-2 may have a
 * window, although no class has one. */
enum model_family shape_family(const struct model_shape *shape);
