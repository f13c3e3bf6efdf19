/* Muon (Jordan et al. 2024; operation order of torch.optim.Muon): the momentum of each matrix of a
 * transformer block is replaced by the nearest matrix with orthonormal rows or columns, up to what
 * a few Newton-Schulz iterations leave. q, k and v are matrices of their own, as are gate and up.
 * The optimizer makes the momentum and updates the weights. */
#pragma once

#include "data/util/error.h"
#include "kernels/arena.h"
#include "kernels/backend.h"
#include "model/config/config.h"
#include "model/architecture/parameters.h"

/* Scratch, in the backend's memory, for matrices of up to `elements` elements whose shorter side is
 * at most `side`. */
struct muon {
    struct backend *be;
    const struct config *config;
    int64_t elements, side;
    int64_t direction_count;
    struct tensor directions; /* [direction_count] momentum; the iteration's dtype, but fp32 instead
                               * of fp16, in which small values would vanish */
    struct tensor part;       /* [elements] one of q, k, v; the same dtype */
    struct tensor iterate;    /* [elements] fp16, for an iteration in it */
    struct tensor product;    /* [elements] fp32 */
    struct tensor gram;       /* [side, side] the iteration's dtype */
    struct tensor square;     /* [side, side] fp32 */
    void *memory;             /* NULL until muon_allocate, or without elements */
    size_t bytes;
};

/* Measures the scratch; elements, side and direction_count are given. */
void muon_open(struct muon *muon, struct backend *be, const struct config *config);
int muon_allocate(struct muon *muon, struct error *error);
void muon_close(struct muon *muon);

/* True if a parameter is q, k and v side by side. */
bool muon_splits_qkv(const struct parameter *parameter, const struct model_shape *shape);

/* Orthogonalizes the momentum of a parameter, whose layout is that of the shape, and returns the
 * factor of the learning rate. Those of q, k and v in one matrix are multiplied into it. */
double muon_direction(const struct muon *muon, const struct tensor *matrix,
                      const struct parameter *parameter, const struct model_shape *shape);
