/* The same questions for models of well-known sizes, each with defaults, one sequence at a time. */
#pragma once

#include <stdio.h>

#include "data/base/error.h"
#include "model/lab/memory/memory_figures.h"

enum { MEMORY_SIZES = 9 };
extern const enum config_preset memory_sizes[MEMORY_SIZES];

/* Sequences are at least as long as GPT-2's context, as those of such models are. */
enum { MEMORY_SIZES_TOKENS = 1024 };

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
void memory_size_config(struct config *out, enum config_preset size, enum memory_variant variant,
                        const struct config *config);

/* Bytes per parameter by part; the plan of each size and what it saves against fp32; and the
 * largest micro-batches. At most 80 columns. */
int memory_print_sizes(FILE *out, const struct memory_question *question, struct error *error);
