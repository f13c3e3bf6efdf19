/* Exchange between ranks in a training step, through the collectives of the backend:
 *
 *     backward pass    gradients, bucket by bucket as they are complete: each rank gets the sum of
 *                      its own parts, or of all where the optimizer is not divided. wte's leave
 *                      after the head, long before the embedding adds to them: what it adds in the
 *                      last micro-batch follows as rows, where those are fewer (struct embedded)
 *     gradient norm    the sums of squares and the losses of all ranks
 *     update           the weights as operations read them, bucket by bucket; the next forward
 *                      pass waits for those of a layer when it comes to it
 *
 * Decisions that end a run are reduced in each step before the weights are sent: over MPI, where
 * all traffic is one queue, the reduction would wait for them.
 *
 * With one rank, or an exchange that is NULL, none of this does anything; nor while the backend
 * plans. */
#pragma once

#include "data/util/error.h"
#include "kernels/arena.h"
#include "kernels/backend.h"
#include "kernels/collectives.h"
#include "model/config/config.h"
#include "model/core/shards.h"

/* Input of the embedding's backward pass: the gradient of its output in the last micro-batch, of
 * one rank. */
struct embedded {
    struct tensor dout;    /* [N, C] */
    const int32_t *tokens; /* [N] */
};

/* Reasons to end a run or to wait, of this rank or of all: each field is reduced to its largest
 * value. */
struct rank_decisions {
    int64_t signal;      /* number of a signal that asks for the end, or 0 */
    int64_t out_of_time; /* 1: train.minutes are over */
    int64_t saving;      /* 1: a checkpoint is still being written */
};

/* Replaces the decisions of this rank by those of all. */
void rank_decisions_reduce(struct rank_decisions *decisions, const struct ranks *ranks);

struct exchange {
    struct backend *be;
    const struct collectives *collectives;
    struct shards shards;
    const struct masters *masters;
    const struct tensor *gradients; /* [count], of the model */
    enum dtype wire_dtype;          /* dtype in which gradients go to other ranks */
    struct tensor lower;            /* [count] of that dtype, if it is not that of gradients */
    uint64_t *gradient_tickets;     /* [buckets]; 0: none under way */
    uint64_t *weight_tickets;       /* [buckets]; likewise */
    int64_t squares_count;          /* sums of squares of a rank's own parts: see shards_run */
    double *squares;                /* [ranks, squares_count], with several ranks */
    int64_t losses_count;           /* RANKS_ALIGNMENT for each rank */
    float *losses;                  /* [losses_count]: the first of each rank's is its loss */
    void *memory;                   /* of the arrays above; NULL until exchange_allocate */
    size_t bytes;
    enum dtype residual;            /* of the gradient of the embedding's output */
    int64_t embedded_columns;       /* C */
    int64_t embedded_rows;          /* N of each rank's struct embedded; 0: none travels */
    struct tensor embedded, tokens; /* [ranks, N C] and [ranks, N], filled up to whole parts; the
                                     * tokens are integers of 32 bit */
    /* With several ranks, optional: called in each step for this rank's decisions. */
    void (*decide)(struct rank_decisions *own, void *context);
    void *context;
    struct rank_decisions decisions; /* of all ranks, in the last step that has begun */
    double waited; /* seconds that this process waited for data, where waiting is not queued */
};

/* Lays the exchange out for a model's list, masters and gradients, which stay the caller's. */
int exchange_open(struct exchange *exchange, struct backend *be, const struct config *config,
                  const struct precision *precision, const struct parameter *list,
                  const struct masters *masters, const struct tensor *gradients,
                  struct error *error);
int exchange_allocate(struct exchange *exchange, struct error *error);
void exchange_close(struct exchange *exchange);

/* After the backward pass of which layer the gradients of a bucket leave. */
int exchange_leaves_after(const struct exchange *exchange, const struct bucket *bucket);

/* In the last backward pass of a step: the gradients that the pass of this layer completes, may
 * leave. */
void exchange_gradients(struct exchange *exchange, int64_t layer);

/* In the same pass, after its last layer: whether the embedding's gradient is to be computed for
 * all ranks. Then wte's has the sums of the other parts, and operations find the rows of each rank,
 * to be added in the order of ranks. Else it is computed for the own rows alone. */
bool exchange_embedded(struct exchange *exchange, const struct embedded *own);
struct embedded exchange_embedded_of(const struct exchange *exchange, int rank);

/* Operations called afterwards find the sums of all ranks in the own parts of gradients. */
void exchange_gradients_arrived(struct exchange *exchange);

/* Each rank has its row of squares, and its loss in *loss: afterwards all rows, and the sum of
 * losses. Reduces the decisions. */
void exchange_sums(struct exchange *exchange, float *loss);

/* The own part of a bucket was updated: what operations read of it may leave. */
void exchange_weights(struct exchange *exchange, const struct bucket *bucket);

/* Operations called afterwards find the weights of a layer; -1: those of no layer, among them all
 * vectors. */
void exchange_weights_arrived(struct exchange *exchange, int64_t layer);

/* The same for all layers. */
void exchange_settle(struct exchange *exchange);

/* Makes all of the masters whole on every rank; between steps only the own parts, and what
 * operations read, are. Afterwards they can be downloaded. */
void exchange_masters(struct exchange *exchange);
