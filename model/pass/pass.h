/* A pass of a model over a batch: an argument of model_forward, objective_loss and model_backward,
 * which read all of it from here, so that nothing is set in the model before a pass and put back
 * after it. */
#pragma once

#include "model/core/model.h"
#include "model/pass/batch.h"

struct config;
struct objective;

enum pass_kind {
    PASS_EVALUATE, /* forward only */
    PASS_TRAIN,    /* forward with dropout, saving what is read backward, then backward */
    PASS_PREFILL,  /* forward over the first rows of a sequence, whose keys and values are stored in
                    * the cache (model_cache) */
    PASS_EXTEND, /* forward over rows that continue texts in the cache, and are stored there too */
    PASS_RECOMPUTE, /* a layer of PASS_TRAIN again (model_recompute); its operations have no label
                     */
};

/* Rows that attend to batch.keys instead of keys of their own sequence: all rows of PASS_EXTEND,
 * and in PASS_EVALUATE the last rows of the batch, to prefixes in other rows of it. */
struct pass_decode {
    int64_t first, rows;    /* PASS_EVALUATE: the first of these rows, and their number; 0: none */
    int64_t stride;         /* as in struct attention_decode_args */
    bool scatters;          /* PASS_EXTEND: each row is of another text, and stored as its last key
                             * instead of behind the row before it */
    int64_t least, longest; /* smallest and largest number of keys of a row */
};

struct pass {
    struct model *model;
    enum pass_kind kind;
    struct batch_view batch; /* in backend memory */
    int64_t rows;            /* rows that are computed: B T, or fewer with a cache */
    int64_t cache_row;       /* with a cache: its row for the first row; the others follow */
    int64_t state_rows;      /* with a cache, of one text: rows before the padding; 0: all */
    int64_t text;            /* PASS_PREFILL: the text that the rows begin, whose states they set */
    struct pass_decode decode;
    bool without_adapters; /* adapters add nothing */

    /* PASS_TRAIN: first and last micro-batch of a step. Gradients of matrices are replaced in the
     * first one and added to in others, and all are sent to other ranks in the last one. */
    bool first, last;
    const float *loss_scale;           /* PASS_TRAIN: backend memory */
    const struct objective *objective; /* NULL: the cross entropy of each token */
    const struct config *config;       /* with an objective: its settings */
    struct step_sums *sums;            /* of the objective: backend memory, += */
    void *memory;                      /* the same, as it needs it */
};

/* True for passes that store their keys and values for later ones. */
static inline bool pass_has_cache(const struct pass *pass) {
    return pass->kind == PASS_PREFILL || pass->kind == PASS_EXTEND;
}

/* Returns the first row of the activations that a pass computes. Models whose qkv is the cache have
 * added rows behind those before them. */
static inline int64_t pass_first_row(const struct pass *pass) {
    return pass->kind == PASS_EXTEND && !pass->model->has_cache ? pass->cache_row : 0;
}

/* True if the pass belongs to a step of training, so that elements are dropped. */
static inline bool pass_drops(const struct pass *pass) {
    return pass->kind == PASS_TRAIN || pass->kind == PASS_RECOMPUTE;
}
