/* Scale and scratch memory of adapters (model/pass/adapter.h). */
#pragma once

#include "kernels/arena.h"
#include "model/architecture/adapters.h"
#include "model/config/config.h"
#include "model/core/precision.h"

/* Scratch that all sites share, each tensor as large as its largest use. */
struct adapters {
    float scale;  /* alpha / rank, or alpha / sqrt(rank) */
    void *a, *b;  /* [R, inputs], [outputs, R] in the site's dtype */
    void *h, *dh; /* [N, R] in the site's dtype */
    float *db;    /* [outputs, R], gradient of the block-diagonal matrix */
    void
        *dropped; /* [N, inputs] input after dropout, then its gradient before; with dropout only */
};

/* Returns the factor of the adapters' output. */
float adapter_scale(const struct config *config);

/* Lays out the scratch for a batch of this shape; called once to measure and once to assign
 * addresses. Takes nothing without adapters. */
void adapters_layout(struct adapters *adapters, struct arena *arena,
                     const struct model_shape *shape, const struct precision *precision,
                     bool training, bool dropout);

/* True if the linear layer of a site has adapters in the layer of the shape. */
static inline bool shape_adapts(const struct model_shape *shape, enum autocast_site site) {
    enum adapter_target targets[ADAPTER_FUSED_MAX];
    return adapter_targets_of(targets, shape, site) > 0;
}
