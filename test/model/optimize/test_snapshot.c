/* A snapshot is the state after its step, whatever training does meanwhile. The emulated GPU
 * copies as late as allowed, so a step that does not wait for the copy spoils it. */
#include "kernels/backend.h"
#include "model/io/checkpoint.h"
#include "model/io/checkpoint_writer.h"
#include "model/optimize/snapshot.h"
#include "test/model/trainer_fixture.h"
#include "test/scratch.h"

static size_t history_bytes(const struct quantization *q) {
    return q->history_length ? (size_t)(q->history_length * quantization_count(q)) * sizeof(float)
                             : 0;
}

static struct digest digest_of(struct sha256 *hash) {
    struct digest digest;
    sha256_end(digest.hex, hash);
    return digest;
}

/* Hashes a checkpoint's weights, moments and fp8 history. */
static struct digest state_digest(const struct trainer *trainer) {
    struct sha256 hash;
    const struct quantization *q = &trainer->model.quantization;
    size_t bytes = history_bytes(q);
    sha256_begin(&hash);
    rig_hash_masters(&hash, &trainer->model);
    rig_hash_moments(&hash, &trainer->optimizer);
    if (bytes) {
        float *history = malloc(bytes);
        backend_download(q->be, history, q->history, bytes);
        sha256_add(&hash, history, bytes);
        free(history);
    }
    return digest_of(&hash);
}

static size_t moment_bytes(const struct trainer *trainer) {
    const struct tensor *moments = trainer->optimizer.moments;
    return tensor_bytes(&moments[0]) + tensor_bytes(&moments[1]);
}

static struct digest copy_digest(const struct snapshot *snapshot, const struct trainer *trainer) {
    struct sha256 hash;
    size_t count = (size_t)trainer->model.count;
    float *values = malloc(count * sizeof *values);
    sha256_begin(&hash);
    masters_download(&snapshot->masters, NULL, values, 0, (int64_t)count);
    sha256_add(&hash, values, count * sizeof *values);
    sha256_add(&hash, snapshot->moments, moment_bytes(trainer));
    sha256_add(&hash, snapshot->history, history_bytes(&trainer->model.quantization));
    free(values);
    return digest_of(&hash);
}

static void take(struct snapshot *snapshot, const struct trainer *trainer) {
    char *to = snapshot->moments;
    snapshot_begin(snapshot, trainer);
    for (int i = 0; i < 2; i++) {
        const struct tensor *moments = &trainer->optimizer.moments[i];
        size_t half = tensor_bytes(moments) / 2;
        const char *from = moments->data;
        snapshot_add(snapshot, to, from, half);
        snapshot_add(snapshot, to + half, from + half, tensor_bytes(moments) - half);
        to += tensor_bytes(moments);
    }
    snapshot_take(snapshot);
}

/* Takes three snapshots. The state of the last two is changed before they are read. */
static void check_snapshots(struct rig *rig, const char *what) {
    struct snapshot snapshot;
    rig_open(rig, 2);
    cr_assert_eq(snapshot_open(&snapshot, &rig->trainer, moment_bytes(&rig->trainer), &rig->error),
                 0, "%s", rig->error.text);
    cr_expect_geq(snapshot.bytes, (size_t)rig->trainer.model.count * 8);
    for (int round = 0; round < 3; round++) {
        rig_steps(rig, 1);
        take(&snapshot, &rig->trainer);
        struct digest before = {0};
        if (round > 0) { /* the first one is read as soon as it is complete */
            before = state_digest(&rig->trainer);
            rig_steps(rig, 2);
        }
        cr_expect(snapshot_ready(&snapshot, true));
        struct digest taken = copy_digest(&snapshot, &rig->trainer),
                      now = state_digest(&rig->trainer);
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
    rig.config.offload.optimizer = rig.config.offload.weights = true;
    if (test_device() != DEVICE_CUDA) return; /* nothing to offload to */
    check_snapshots(&rig, "offloaded");
}

static void expect_same_files(const char *left, const char *right, const char *what) {
    static const char *const names[] = {"model.safetensors", "optimizer.safetensors",
                                        "fp8.safetensors", "trainer.json"};
    for (size_t i = 0; i < COUNT(names); i++) {
        char hex[2][SHA256_HEX_MAX], path[2][FILE_PATH_MAX];
        cr_assert_eq(file_path_join(path[0], left, names[i], &error), 0);
        cr_assert_eq(file_path_join(path[1], right, names[i], &error), 0);
        cr_expect_eq(file_exists(path[0]), file_exists(path[1]), "%s: %s", what, names[i]);
        if (!file_exists(path[0])) continue;
        for (int k = 0; k < 2; k++)
            cr_assert_eq(sha256_file(hex[k], NULL, path[k], &error), 0, "%s", error.text);
        cr_expect_str_eq(hex[0], hex[1], "%s: %s differs", what, names[i]);
    }
}

/* A checkpoint written while training continues has the same files as one that training waited
 * for. */
static void check_files(struct rig *rig, const char *what) {
    struct checkpoint_writer writer;
    char waited[FILE_PATH_MAX], path[FILE_PATH_MAX], run[256];
    rig_open(rig, 2);
    snprintf(run, sizeof run, "%s", in_folder("background"));
    checkpoint_writer_open(&writer, &rig->trainer, run);
    cr_assert_eq(checkpoint_writer_open_snapshot(&writer, &error), 0, "%s", error.text);
    rig_steps(rig, 3);
    cr_assert_eq(checkpoint_save(&rig->trainer, in_folder("waited"), waited, &error), 0, "%s",
                 error.text);
    cr_assert_eq(checkpoint_writer_begin(&writer, &error), 0, "%s", error.text);
    rig_steps(rig, 2);
    cr_assert_eq(checkpoint_writer_end(&writer, path, &error), 0, "%s", error.text);
    expect_same_files(waited, path, what);
    checkpoint_writer_close(&writer);
    rig_close(rig);
}

Test(snapshot, gives_the_files_of_a_checkpoint_that_was_waited_for, .init = make_folder,
     .fini = remove_folder) {
    for (int i = 0; i < 4; i++) {
        struct rig rig = {0};
        rig_config(&rig.config, i == 1 ? CONFIG_PRECISION_FP8 : CONFIG_PRECISION_BF16);
        rig.config.fp8.recipe = CONFIG_RECIPE_DELAYED;
        rig.config.optimizer.moments = i == 2 ? CONFIG_MOMENTS_BFLOAT16 : CONFIG_MOMENTS_FLOAT32;
        const bool offloads = i == 3 && test_device() == DEVICE_CUDA;
        rig.config.offload.optimizer = rig.config.offload.weights = offloads;
        check_files(&rig, i == 1 ? "fp8" : i == 2 ? "moments in bf16" : i ? "offloaded" : "bf16");
    }
}

/* The plan includes a snapshot in runs that save in the background. */
Test(snapshot, is_planned) {
    struct rig rig = {0};
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    for (int i = 0; i < 4; i++) {
        rig.config.checkpoint.every = i == 1 ? 0 : i == 2 ? rig.config.train.steps : 5;
        rig.config.checkpoint.background = i != 3;
        rig_open(&rig, 1);
        snapshot_plan(&rig.trainer);
        size_t planned = rig.trainer.model.memory.snapshot;
        size_t least = i == 0 ? (size_t)rig.trainer.model.count * 12 : 0;
        cr_expect_geq(planned, least, "%d: %zu", i, planned);
        cr_expect_leq(planned, least + (i == 0 ? 1000 : 0), "%d: %zu", i, planned);
        rig_close(&rig);
    }
}
