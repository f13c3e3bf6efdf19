/* What the tables about memory share: the question they answer, and figures in cells. */
#pragma once

#include "data/base/error.h"
#include "model/lab/memory/memory_plan.h"
#include "model/lab/page/table.h"

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

/* Whether the device has plans in that precision. */
bool memory_can_compute(const struct backend *be, enum config_precision precision);

/* Bytes are printed in one unit all through a table. */
struct memory_unit {
    const char *name;
    double bytes;
    int digits;
};
extern const struct memory_unit memory_gib;
struct memory_unit memory_unit_for(size_t largest);
void memory_bytes_cell(struct table *table, const struct memory_unit *unit, size_t bytes);

/* An amount in a sentence: "2216.5 MiB"; that of a question, with " (free here)" if it is. Both
 * return text. */
enum { MEMORY_AMOUNT_MAX = 64 };
const char *memory_amount(char text[MEMORY_AMOUNT_MAX], size_t bytes);
const char *memory_question_amount(char text[MEMORY_AMOUNT_MAX],
                                   const struct memory_question *question);

/* Signs in a table of micro-batches that need an explanation. */
struct memory_signs {
    bool state, limit;
};

/* The largest micro-batch of a config that fits. */
int memory_batch_cell(struct table *table, struct memory_signs *signs,
                      const struct memory_question *question, const struct config *config,
                      struct error *error);

/* A table of them below "heading in <memory>", and what its signs mean. */
void memory_print_batches(FILE *out, const char *heading, const struct table *table,
                          const struct memory_signs *signs, const struct memory_question *question);
