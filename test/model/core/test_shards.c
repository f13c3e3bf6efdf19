/* Buckets of a model whose layers are larger than a bucket, planned for two ranks without memory.
 */
#include "test/model/trainer_fixture.h"

enum { WIDTH = 2048, LAYERS = 3 };

/* The first bucket of a layer has exactly as many elements as one may have: the matrices of
 * attention (4 squares of the width) and half of those of the MLP (8 squares). */
enum { MOST = 32 << 20, SQUARE = WIDTH * WIDTH, FIRST = 8 * SQUARE, SECOND = 4 * SQUARE };
_Static_assert(FIRST == MOST, "the largest bucket");

static void expect_buckets(const struct shards *shards, int64_t elements) {
    int64_t at = 0;
    int of_layers = 0;
    for (ptrdiff_t i = 0; i < arrlen(shards->buckets); i++) {
        const struct bucket *bucket = &shards->buckets[i];
        cr_expect_eq(bucket->first, at, "buckets follow one another");
        at += bucket->count;
        if (bucket->layer < 0) continue;
        cr_expect_eq(bucket->layer, of_layers / 2);
        cr_expect_eq(bucket->count, of_layers % 2 ? SECOND : FIRST, "bucket %d of layers: %lld",
                     of_layers, (long long)bucket->count);
        of_layers++;
    }
    cr_expect_eq(of_layers, 2 * LAYERS);
    cr_expect_eq(at, elements, "every element is in a bucket");
    cr_expect_eq(shards->largest, FIRST);
}

Test(shards, large_layers_are_cut_between_matrices) {
    static struct rig rig;
    const struct ranks ranks = {.size = 2, .rank = 1};
    rig_config(&rig.config, CONFIG_PRECISION_BF16);
    rig.config.model.n_layer = LAYERS;
    rig.config.model.n_embd = WIDTH;
    rig.config.model.n_head = 16;
    rig_open_data(&rig);
    rig_open_backend(&rig, DEVICE_CPU, 1);
    const struct collectives *alone = rig.be.collectives;
    struct collectives several = *alone;
    several.ranks = &ranks;
    rig.be.collectives = &several;
    cr_assert_eq(trainer_open(&rig.trainer, &rig.config, &rig.precision, &rig.be, TRAINER_PLANNED,
                              &rig.error),
                 0, "%s", rig.error.text);
    expect_buckets(&rig.trainer.optimizer.exchange.shards, rig.trainer.model.count);
    trainer_close(&rig.trainer);
    rig.be.collectives = alone;
    rig_close(&rig);
}
