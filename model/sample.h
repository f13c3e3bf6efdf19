/* Text from a model: one token after another, drawn from its prediction. */
#ifndef MODEL_SAMPLE_H
#define MODEL_SAMPLE_H

#include <signal.h>
#include <stdint.h>

#include "model/gpt.h"

struct sample_options {
    const uint8_t *prompt; /* tokens of a byte vocabulary; at least one */
    int64_t prompt_length;
    int64_t tokens;     /* to add */
    double temperature; /* 0: always the likeliest */
    int64_t top_k;      /* draw among the k likeliest; 0: all */
    uint64_t seed, stream;
    const volatile sig_atomic_t *stop; /* optional: looked at between tokens */
};

/* Prepares products for the batch shapes sampling uses; between gpt_open and gpt_allocate, while
 * the backend is planning. */
void sample_plan(struct gpt *gpt);

/* Writes prompt and continuation, options->tokens bytes longer, to text; *length becomes its bytes
 * in all, fewer if it was stopped. Runs under the model's
 * autocast; the batch in place is lost. A context longer than the capacity keeps its end. */
int sample_text(struct gpt *gpt, uint8_t *text, int64_t *length,
                const struct sample_options *options, char *error);

/* Bytes as a terminal may show them: what is neither printable, a line break, a tab nor valid
 * UTF-8 becomes U+FFFD. */
void sample_print(FILE *out, const uint8_t *text, int64_t length);

#endif
