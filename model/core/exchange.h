/* Exchange between ranks in a training step, through the collectives of the backend:
 *
 *     backward pass    gradients, each bucket as soon as it is complete: each rank gets the sum of
 *                      its own parts, or of all if the optimizer is not sharded. If that takes
 *                      fewer bytes, wte is sent early, after the head, and the embedding's
 *                      contribution of the last micro-batch later (struct embedding_rows)
 *     gradient norm    the sums of squares and the losses of all ranks
 *     update           the weights that operations read, bucket by bucket; the next forward pass
 *                      waits for those of a layer before it runs the layer
 *
 * These functions do nothing with one rank, with a NULL exchange, or while the backend plans. */
#pragma once

#include "data/util/error.h"
#include "kernels/arena.h"
#include "kernels/backend.h"
#include "kernels/collectives.h"
#include "model/config/config.h"
#include "model/core/shards.h"

/* Input of the embedding's backward pass on one rank, in the last micro-batch: the gradient of its
 * output, and the tokens. */
struct embedding_rows {
    struct tensor dout;    /* [N, C] */
    const int32_t *tokens; /* [N] */
};

struct exchange {
    struct backend *be;
    const struct collectives *collectives;
    struct shards shards;
    const struct masters *masters;
    const struct tensor *gradients; /* [count] gradients of the model */
    enum dtype wire_dtype;          /* dtype in which gradients go to other ranks */
    struct tensor wire; /* [count] gradients in wire_dtype, if that differs from their dtype */
    uint64_t *gradient_tickets; /* [buckets]; 0: no transfer in flight */
    uint64_t *weight_tickets;   /* [buckets]; the same */
    int64_t squares_count;      /* sums of squares of one rank's parts: see shards_run */
    double *squares;            /* [ranks, squares_count], with several ranks */
    int64_t losses_count;       /* RANKS_ALIGNMENT per rank */
    float *losses;              /* [losses_count]: the first element of each rank is its loss */
    void *memory;               /* holds the arrays above; NULL until exchange_allocate */
    size_t bytes;
    enum dtype residual;      /* dtype of the gradient of the embedding's output */
    int64_t embedded_columns; /* C */
    int64_t embedded_rows;    /* N of each rank's struct embedding_rows; 0: rows are not sent */
    struct tensor embedded;   /* [ranks, N C], padded */
    struct tensor tokens;     /* [ranks, N], padded: int32, whose bits are sent as those of fp32 */
    double waited;            /* seconds that this process was blocked waiting for other ranks */
};

/* Plans the exchange for a model's list, master weights and gradients, which the caller keeps
 * owning. */
int exchange_open(struct exchange *exchange, struct backend *be, const struct config *config,
                  const struct precision *precision, const struct parameter *list,
                  const struct masters *masters, const struct tensor *gradients,
                  struct error *error);
int exchange_allocate(struct exchange *exchange, struct error *error);
void exchange_close(struct exchange *exchange);

/* Sends the gradients that the backward pass of this layer completes. Only for the last backward
 * pass of a step. */
void exchange_gradients(struct exchange *exchange, int64_t layer);

/* Gathers the rows of all ranks after the last layer of the same pass. Returns true if wte's
 * gradient now has the sums over all ranks: the caller then adds the rows of each rank, in order
 * (exchange_embedding_rows_of). Returns false if rows are not sent: the caller adds its own. */
bool exchange_embedding_rows(struct exchange *exchange, const struct embedding_rows *own);
struct embedding_rows exchange_embedding_rows_of(const struct exchange *exchange, int rank);

/* After this call, operations see the sums over all ranks in this rank's parts of the gradients. */
void exchange_gradients_arrived(struct exchange *exchange);

/* Gathers each rank's row of squares, and adds up state->loss and the first `count` of state->sums
 * over all ranks. */
void exchange_sums(struct exchange *exchange, struct step_state *state, int count);

/* Sends the weights that operations read of this rank's part of a bucket, after its update. */
void exchange_weights(struct exchange *exchange, const struct bucket *bucket);

/* Gathers the directions of a bucket, of which each rank has its own part, and waits for them. */
void exchange_directions(struct exchange *exchange, const struct bucket *bucket,
                         const struct tensor *directions);

/* After this call, operations see the updated weights of a layer; -1: all vectors, and the weights
 * outside the layers. */
void exchange_weights_arrived(struct exchange *exchange, int64_t layer);

/* The same for all layers. */
void exchange_wait_for_weights(struct exchange *exchange);

/* Gathers the complete master weights on every rank, so that they can be downloaded. Between steps
 * a rank has only its own parts and the weights that operations read. */
void exchange_masters(struct exchange *exchange);
