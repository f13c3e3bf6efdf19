/* What ./train says about the memory of a run and of models of well-known sizes, in at most 80
 * columns. */
#pragma once

#include <stdio.h>

#include "data/util/error.h"
#include "model/plan/memory_options.h"
#include "model/plan/memory_plan.h"
#include "model/page/table.h"

enum { MEMORY_WIDTH = 80 }; /* of tables, in columns */

/* What is asked: about a run of config, its precision resolved. */
struct memory_question {
    const struct config *config;
    struct backend *be;
    size_t memory; /* bytes that the run may take */
    bool free;     /* they are what is free here, rather than what was asked for */
};

/* gib < 0: what is free on be. */
struct memory_question memory_question(const struct config *config, struct backend *be, double gib);

/* Bytes are printed in one unit all through a table. */
struct memory_unit {
    const char *name;
    double bytes;
    int digits;
};
struct memory_unit memory_unit_for(size_t largest);
void memory_bytes_cell(struct table *table, const struct memory_unit *unit, size_t bytes);

/* The parts in each precision; what each option saves and costs; the largest micro-batches; and
 * whether it fits, or what to change. */
int memory_print_run(FILE *out, const struct memory_question *question, struct error *error);

/* Whether it fits, or the advice as flags to paste and what each costs. Returns RESULT_NONE if
 * nothing makes it fit. */
int memory_print_fit(FILE *out, const struct memory_question *question, struct error *error);

/* What memory_advise gave and returned, without costs: what to change, nothing if that is nothing,
 * or with RESULT_NONE that no option helps. */
void memory_print_advice(FILE *out, const struct memory_advice *advice, int status);

/* ---- models of well-known sizes, each with defaults, one sequence at a time */

enum { MEMORY_SIZES = 9 };
extern const enum config_preset memory_sizes[MEMORY_SIZES];

/* How they are trained, from fp32 to the least that bf16 needs. */
enum memory_variant {
    MEMORY_FP32,
    MEMORY_BF16,
    MEMORY_FP16,
    MEMORY_LOWER, /* bf16, gradients and moments in 16 bit too */
    MEMORY_LAYER, /* the same with train.recompute=layer */
    MEMORY_VARIANTS
};

/* A run of that model, in micro-batches of one sequence: as long as config's, but at least as
 * GPT-2's context of MEMORY_SIZES_TOKENS. */
enum { MEMORY_SIZES_TOKENS = 1024 };
void memory_size_config(struct config *out, enum config_preset size, enum memory_variant variant,
                        const struct config *config);

/* Bytes per parameter by part; the plan of each size and what it saves against fp32; and the
 * largest micro-batches. */
int memory_print_sizes(FILE *out, const struct memory_question *question, struct error *error);
