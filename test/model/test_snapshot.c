/* A snapshot is the state of the step after which it was taken, whatever training does meanwhile.
 * The emulated GPU copies as late as it may: what does not wait for the copy spoils it. */
#include "kernels/backend.h"
#include "model/snapshot.h"
#include "test/model/trainer_fixture.h"

/* All that a checkpoint has of weights, moments and the history of fp8. */
static struct digest state_digest(const struct trainer *trainer) {
    struct digest digest;
    struct sha256 hash;
    uint8_t bytes[SHA256_BYTES];
    const struct gpt *gpt = &trainer->gpt;
    const struct quantization *q = &gpt->quantization;
    sha256_begin(&hash);
    rig_hash_masters(&hash, gpt);
    rig_hash_moments(&hash, &trainer->optimizer);
    size_t count = q->history_length ? (size_t)(q->history_length * quantization_count(q)) : 0;
    if (count) {
        float *history = malloc(count * sizeof *history);
        backend_download(q->be, history, q->history, count * sizeof *history);
        sha256_add(&hash, history, count * sizeof *history);
        free(history);
    }
    sha256_end(&hash, bytes);
    sha256_hex(digest.hex, bytes);
    return digest;
}

/* Takes three snapshots. The state of the last two is changed before they are looked at. */
static void check_snapshots(struct rig *rig, const char *what) {
    struct snapshot snapshot;
    rig_open(rig, 2);
    cr_assert_eq(snapshot_open(&snapshot, &rig->trainer, &rig->error), 0, "%s", rig->error.text);
    cr_expect_geq(snapshot.bytes, (size_t)rig->trainer.gpt.count * 8);
    for (int round = 0; round < 3; round++) {
        rig_steps(rig, 1);
        int64_t step = rig->trainer.state.step;
        snapshot_take(&snapshot, &rig->trainer);
        struct digest before = {0};
        if (round > 0) { /* the first one is looked at as soon as it is there */
            before = state_digest(&rig->trainer);
            rig_steps(rig, 2);
        }
        cr_expect(snapshot_there(&snapshot, true));
        cr_expect_eq(snapshot.state.state.step, step);
        struct digest taken = state_digest(&snapshot.state), now = state_digest(&rig->trainer);
        expect_same_digest(taken, round > 0 ? before : now, what);
        if (round > 0) cr_expect_str_neq(now.hex, before.hex);
        cr_expect_eq(rig->be.failure.text[0], 0, "%s", rig->be.failure.text);
    }
    snapshot_close(&snapshot);
    rig_close(rig);
}

Test(snapshot, stays_as_it_was_in_each_precision) {
    for (size_t i = 0; i < COUNT(rig_precisions); i++) {
        struct rig rig = {0};
        rig_config(&rig.config, rig_precisions[i]);
        if (rig_precisions[i] == CONFIG_PRECISION_FP8)
            rig.config.fp8.recipe = CONFIG_RECIPE_DELAYED;
        check_snapshots(&rig, config_precision_name(rig_precisions[i]));
    }
}

Test(snapshot, stays_as_it_was_in_each_form_of_weights) {
    static const enum config_copy forms[] = {CONFIG_COPY_SPLIT, CONFIG_COPY_KEPT, CONFIG_COPY_CAST};
    for (size_t i = 0; i < COUNT(forms); i++) {
        struct rig rig = {0};
        rig_config(&rig.config, CONFIG_PRECISION_BF16);
        rig.config.weights.copy = forms[i];
        rig.config.optimizer.moments = i ? CONFIG_MOMENTS_BFLOAT16 : CONFIG_MOMENTS_FLOAT32;
        check_snapshots(&rig, "forms of weights");
    }
}

Test(snapshot, stays_as_it_was_where_the_host_keeps_state) {
    struct rig rig = {0};
    rig_config(&rig.config, CONFIG_PRECISION_BF16);
    rig.config.offload.optimizer = true;
    if (test_device() != DEVICE_CUDA) return; /* nothing to offload to */
    check_snapshots(&rig, "offloaded");
}

/* It counts in the plan of runs that save on the way. */
Test(snapshot, is_planned) {
    struct rig rig = {0};
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    for (int i = 0; i < 4; i++) {
        rig.config.checkpoint.every = i == 1 ? 0 : i == 2 ? rig.config.train.steps : 5;
        rig.config.checkpoint.background = i != 3;
        rig_open(&rig, 1);
        snapshot_plan(&rig.trainer);
        size_t planned = rig.trainer.gpt.memory.snapshot;
        cr_expect_eq(planned, i == 0 ? snapshot_bytes(&rig.trainer) : 0, "%d: %zu", i, planned);
        rig_close(&rig);
    }
}
