/* The same questions for models of well-known sizes, each with defaults, one sequence at a time. */
#pragma once

#include <stdio.h>

#include "data/base/error.h"
#include "model/lab/memory/memory_figures.h"

/* GPT-2's four, and the depth, heads and width of Llama 3.2 1B and Llama 2 7B, 13B and 70B. The
 * architecture is GPT-2's in all of them: parameters are what that makes of a shape. */
enum { MEMORY_SIZES = 8 };
struct memory_size {
    const char *name;
    int64_t n_layer, n_head, n_embd;
};
extern const struct memory_size memory_sizes[MEMORY_SIZES];

/* GPT-2's; sequences are at least as long as its context, as those of such models are. */
enum { MEMORY_SIZES_VOCABULARY = 50257, MEMORY_SIZES_TOKENS = 1024 };

/* How they are trained, from fp32 to the least that bf16 needs. */
enum memory_variant {
    MEMORY_FP32,
    MEMORY_BF16,
    MEMORY_FP16,
    MEMORY_LOWER, /* bf16, gradients and moments in 16 bit too */
    MEMORY_LAYER, /* the same with train.recompute=layer */
    MEMORY_VARIANTS
};

/* A run of that model, in micro-batches of one sequence of MEMORY_SIZES_TOKENS, or of config's
 * seq_len if that is longer. */
void memory_size_config(struct config *out, const struct memory_size *size,
                        enum memory_variant variant, const struct config *config);

/* Bytes per parameter by part; the plan of each size and what it saves against fp32; and the
 * largest micro-batches. At most 80 columns. */
int memory_print_sizes(FILE *out, const struct memory_question *question, struct error *error);
