#include "model/core/adapter_memory.h"

#include <math.h>

float adapter_scale(const struct config *config) {
    double rank = (double)config->adapter.rank;
    return (float)(config->adapter.alpha / (config->adapter.rslora ? sqrt(rank) : rank));
}

static void take_larger(size_t *bytes, enum dtype dtype, int64_t rows, int64_t columns) {
    size_t size = dtype_size(dtype, rows * columns);
    if (size > *bytes) *bytes = size;
}

void adapters_layout(struct adapters *adapters, struct arena *arena,
                     const struct model_shape *shape, const struct precision *precision,
                     bool training, bool dropout) {
    size_t a = 0, b = 0, h = 0, db = 0, dropped = 0;
    enum adapter_target targets[ADAPTER_FUSED_MAX];
    for (int64_t i = 0; i < shape_period(shape) * AUTOCAST_SITE_COUNT; i++) {
        const struct model_shape own = shape_of_layer(shape, i / AUTOCAST_SITE_COUNT);
        const enum autocast_site site = (enum autocast_site)(i % AUTOCAST_SITE_COUNT);
        int64_t ranks = adapter_targets_of(targets, &own, site) * shape->adapter_rank;
        if (ranks == 0) continue;
        take_larger(&a, precision->site[site], ranks, site_inputs(&own, site));
        take_larger(&b, precision->site[site], site_outputs(&own, site), ranks);
        take_larger(&h, precision->site[site], shape->rows, ranks);
        take_larger(&dropped, precision->site[site], shape->rows, site_inputs(&own, site));
        take_larger(&db, DTYPE_F32, site_outputs(&own, site), ranks);
    }
    adapters->a = arena_take(arena, a);
    adapters->b = arena_take(arena, b);
    adapters->h = arena_take(arena, h);
    adapters->dh = arena_take(arena, training ? h : 0);
    adapters->db = arena_take(arena, training ? db : 0);
    adapters->dropped = arena_take(arena, training && dropout ? dropped : 0);
}
