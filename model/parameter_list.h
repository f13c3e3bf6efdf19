/* The parameters of a model, listed from its sizes alone: names, shapes, and places in the flat
 * arrays. For the layout, and for those who read and write files without a model in memory. */
#ifndef MODEL_PARAMETER_LIST_H
#define MODEL_PARAMETER_LIST_H

#include <stdbool.h>
#include <stdint.h>

#include "model/config/config.h"
#include "model/precision.h"
#include "model/tensors.h"

enum {
    PARAMETER_ALIGNMENT = 128, /* elements: 256 bytes in 16 bit */
    VOCAB_ALIGNMENT = 128,     /* rows that the embedding is padded to, inside only */
};

struct gpt_shape {
    int64_t n_layer, n_head, n_embd, n_positions;
    int64_t vocab_size, padded_vocab;
    int64_t batch, sequence_length; /* B, T of the activations in place */
    int64_t rows;                   /* B * T */
    int64_t logit_rows;             /* rows of logits that exist at a time */
};

/* One parameter as checkpoints, initialization and the optimizer see it. */
struct parameter {
    char name[64];         /* Hugging Face name without "transformer." */
    int64_t rows, columns; /* as in files: without padding; columns 0: a vector */
    int64_t offset;        /* first element in the flat arrays */
    bool decay;
    enum autocast_operation operation; /* that reads it */
    float init;                        /* standard deviation, or INIT_ONE, INIT_ZERO */
};

#define INIT_ZERO 0.0f
#define INIT_ONE  (-1.0f)

/* The sizes in config->model, without a batch. */
struct gpt_shape parameter_shape(const struct config *config);

/* An stb_ds array in the order of the flat arrays. Stores how many elements a flat array has, and
 * how many of them are decayed. Of the shape the sizes without the batch are read. */
struct parameter *parameter_list(const struct gpt_shape *shape, int64_t *count, int64_t *decayed);

/* Elements that a parameter of this shape takes in a flat array. */
int64_t parameter_elements(int64_t rows, int64_t columns);

#endif
