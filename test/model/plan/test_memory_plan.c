/* Memory plans of variants: their bytes, and the largest micro-batch. */
#include "model/io/config_file.h"
#include "test/model/plan/memory_fixture.h"

TestSuite(memory_plan, .fini = close_rig);

static size_t total_with_batch(int64_t batch) {
    struct config config = rig.config;
    config.train.micro_batch_size = batch;
    return total_of(&config);
}

/* ---- plans */

Test(memory_plan, is_the_plan_of_a_run) {
    bool grows = false; /* the workspace grows with the batch if operands are widened */
    for (size_t p = 0; p < COUNT(rig_precisions); p++)
        for (int variant = 0; variant < 12; variant++) {
            struct memory_plan large;
            struct config larger;
            rig_config(&rig.config, rig_precisions[p]);
            rig.config.train.recompute = levels[variant / 4];
            if (variant & 1) rig.config.gradients.dtype = CONFIG_DTYPE_LOWER;
            if (variant & 2) rig.config.autocast.residual = CONFIG_DTYPE_LOWER;
            if (variant & 2) rig.config.sample.every = 1;
            if (variant & 1) rig.config.weights.copy = CONFIG_COPY_CAST;
            if (variant & 2) rig.config.optimizer.moments = CONFIG_MOMENTS_BFLOAT16;
            rig_open_backend(&rig, test_device(), 2);
            larger = rig.config; /* first, so that its workspace is known in the next plan */
            larger.train.micro_batch_size = 64;
            large = plan_of(&larger);
            struct memory_plan plan = plan_of(&rig.config);
            cr_expect_leq(plan.workspace, large.workspace);
            grows = grows || plan.workspace < large.workspace;
            cr_expect_eq(rig.be.workspace_bytes, 0);
            cr_expect_eq(rig.be.op, rig.be.run);
            rig.be.workspace_bytes = (size_t)1 << 40; /* as if left by an earlier run */
            cr_expect_eq(total_of(&rig.config), memory_total(&plan));
            cr_expect_eq(rig.be.workspace_bytes, (size_t)1 << 40);
            rig.be.workspace_bytes = 0;
            rig_open_data(&rig);
            cr_assert_eq(trainer_open(&rig.trainer, &rig.config, &rig.precision, &rig.be,
                                      TRAINER_INITIALIZED, &rig.error),
                         0);
            cr_expect_arr_eq(&plan, &rig.trainer.model.memory, sizeof plan);
            cr_expect_eq(memory_total(&plan), plan.master + plan.copies + plan.gradients +
                                                  plan.moments + plan.activations + plan.batches +
                                                  plan.workspace + plan.library);
            rig_close(&rig);
            rig = (struct rig){0};
        }
    cr_expect(grows);
}

/* wte 384 x 128, for 300 tokens; wpe 32 x 128; a layer: matrices 12 x 128 x 128, biases 9 x 128,
 * norms 4 x 128; the last norm 2 x 128. */
enum {
    VECTORS = LAYERS * (1152 + 512) + 256,
    MATRICES = 196608, /* matrix elements of a layer */
    LARGEST = 65536,   /* of those, the elements that one linear layer reads */
    ELEMENTS = 49152 + 4096 + LAYERS * MATRICES + VECTORS,
    COPIED = ELEMENTS - 4096, /* wpe is read in fp32 */
};

enum {
    STREAM = TOKENS * WIDTH * 4, /* rows of the width, in fp32 */
    COLUMN = TOKENS * 4,         /* a number for each row */
};

/* Bytes that a layer saves for backward: its input and the residual sum after attention, statistics
 * of two norms and of attention (two heads), then streams: norm outputs (2), attention output (1),
 * q, k, v (3), MLP (4 + 4). streams: bytes of one stream. */
static size_t layer_bytes(size_t stream, bool gelu) {
    return 2 * STREAM + 4 * COLUMN + 2 * COLUMN + (2 + 1 + 3 + 4 + (gelu ? 4u : 0u)) * stream;
}

/* Bytes outside the layers: the end of the residual stream, its norm's output and statistics,
 * losses, logits (three times the width), branch; then gradients of the stream, of the branch if
 * its dtype differs, of a norm, of the MLP, and of q, k, v. */
static size_t model_bytes(size_t stream) {
    size_t forward = STREAM + 3 * COLUMN + (1 + 3 + 1) * stream;
    size_t branch = stream == STREAM ? 0 : stream;
    return forward + STREAM + branch + (1 + 4 + 3) * stream;
}

/* fp8 compared with bf16: the outputs of norms and MLP are saved in 8 bits in each layer, and once
 * in bf16 for all layers; plus the largest input, matrix and gradient in 8 bits, and scales. */
Test(memory_plan, bytes_of_8_bit) {
    enum { SMALL = 256, STREAM_8 = STREAM / 4, READ_ONCE = 1 + 1 + 4 };
    size_t stream = STREAM / 2;
    open_tiny(CONFIG_PRECISION_FP8);
    struct memory_plan plan = plan_of(&rig.config);
    size_t expected = model_bytes(stream) + LAYERS * layer_bytes(stream, true) -
                      (LAYERS - 1) * READ_ONCE * stream + LAYERS * READ_ONCE * STREAM_8 +
                      (4 + 4) * STREAM_8 + 4 * WIDTH * WIDTH;
    cr_expect_eq(plan.master, 4 * ELEMENTS);
    cr_expect_eq(plan.copies, 2 * VECTORS);
    if (rig.be.device.native_8_bit) expected += 4 * STREAM_8; /* a gradient's transpose */
    /* Scales of the three kinds and of three saved inputs a layer, 24 records of 12 bytes, and 24
     * amax of 8. */
    cr_expect_eq(plan.activations, expected + (3 + LAYERS * 3) * SMALL + 2 * SMALL + SMALL);
}

/* Formats of blocks compared with bf16: the outputs of norms and MLP are saved in 8 bits, or 4, in
 * each layer with scales of blocks of 32, or 16, and once in bf16 for all; plus the largest operand
 * of each kind in bf16, and records. NVFP4 also has a scale of each saved tensor, after those of
 * its blocks, and of each kind, 24 amax, and the amax of a transformed operand. */
Test(memory_plan, bytes_of_blocks) {
    enum { SMALL = 256, STREAM_16 = STREAM / 2, STREAM_8 = STREAM / 4, READ_ONCE = 1 + 1 + 4 };
    enum { SAVED = 1 + 1 + 4, OPERANDS = (4 + 4) * STREAM_16 + 2 * 4 * WIDTH * WIDTH };
    open_tiny(CONFIG_PRECISION_BF16);
    size_t unsaved = plan_of(&rig.config).activations - (LAYERS - 1) * READ_ONCE * STREAM_16;
    open_tiny(CONFIG_PRECISION_MXFP8);
    cr_expect_eq(plan_of(&rig.config).activations, unsaved + LAYERS * READ_ONCE * STREAM_8 +
                                                       OPERANDS + LAYERS * SAVED * STREAM_8 / 32 +
                                                       2 * SMALL);
    open_tiny(CONFIG_PRECISION_NVFP4);
    cr_expect_eq(plan_of(&rig.config).activations, unsaved + LAYERS * READ_ONCE * STREAM_8 / 2 +
                                                       OPERANDS + LAYERS * SAVED * STREAM_8 / 16 +
                                                       (2 + LAYERS * 3 + 3 + 1 + 1) * SMALL);
}

Test(memory_plan, bytes_of_a_tiny_model) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++) {
        if (config_precision_quantizes(rig_precisions[p])) continue; /* tested by bytes_of_8_bit */
        bool lower = rig_precisions[p] != CONFIG_PRECISION_FP32;
        size_t stream = lower ? STREAM / 2 : STREAM;
        open_tiny(rig_precisions[p]);
        struct memory_plan plan = plan_of(&rig.config);
        cr_expect_eq(plan.master, 4 * ELEMENTS);
        bool split = rig_precisions[p] == CONFIG_PRECISION_BF16;
        cr_expect_eq(plan.copies, split ? 2 * VECTORS : lower ? 2 * COPIED : 0);
        cr_expect_eq(plan.gradients, 4 * ELEMENTS);
        cr_expect_eq(plan.moments, 8 * ELEMENTS);
        cr_expect_eq(plan.activations, model_bytes(stream) + 2 * layer_bytes(stream, true));
        /* Tokens, targets and the step's inputs; two slots each on the host and on the device. */
        if (rig.be.device.host_memory)
            cr_expect_eq(plan.batches, 2 * 2 * (2 * COLUMN + ARENA_ALIGNMENT));
        rig.config.train.recompute = RECOMPUTE_GELU;
        cr_expect_eq(plan_of(&rig.config).activations,
                     model_bytes(stream) + layer_bytes(stream, true) + layer_bytes(stream, false));
        rig.config.train.recompute = RECOMPUTE_LAYER;
        cr_expect_eq(plan_of(&rig.config).activations,
                     model_bytes(stream) + layer_bytes(stream, true) + STREAM);
        rig.config.gradients.dtype = CONFIG_DTYPE_LOWER;
        cr_expect_eq(plan_of(&rig.config).gradients, (lower ? 2 : 4) * ELEMENTS);
        rig.config.optimizer.moments = CONFIG_MOMENTS_BFLOAT16;
        cr_expect_eq(plan_of(&rig.config).moments, 4 * ELEMENTS);
        /* Codes with a scale for 256, of the matrices of layers; 4 bytes of all others. */
        rig.config.optimizer.moments = CONFIG_MOMENTS_INT8;
        const size_t coded = LAYERS * MATRICES;
        cr_expect_eq(plan_of(&rig.config).moments,
                     2 * (coded + coded / 64 + 4 * (ELEMENTS - coded)));
        rig.config.weights.copy = CONFIG_COPY_CAST;
        cr_expect_eq(plan_of(&rig.config).copies, lower ? 2 * (VECTORS + LARGEST) : 0);
    }
}

/* A layout is a plan without the parts that only a walk measures. */
Test(memory_plan, layouts) {
    struct memory_plan layout;
    open_tiny(CONFIG_PRECISION_FP16);
    struct memory_plan plan = plan_of(&rig.config);
    cr_assert_eq(memory_layout_of(&layout, &rig.config, &rig.be, &rig.error), 0);
    cr_expect_eq(memory_total(&layout) + plan.batches + plan.workspace + plan.library,
                 memory_total(&plan));
    cr_expect_eq(layout.activations, plan.activations);
    cr_expect_eq(memory_state_bytes(&layout), memory_state_bytes(&plan));
    cr_expect_eq(memory_state_bytes(&plan) + plan.activations, memory_total(&layout));
}

/* Two parts of a micro-batch and the update, in two slots; the parts again for each number of units
 * of rows that count. */
Test(memory_plan, has_the_graphs_that_steps_record) {
    open_tiny(CONFIG_PRECISION_BF16);
    const size_t library = rig.be.device.library_bytes;
    cr_expect_eq(plan_of(&rig.config).library, library, "none on a CPU");
    rig.be.device.graph_bytes = 4096;
    cr_expect_eq(plan_of(&rig.config).library, library + 6 * 4096);
    rig.config.masked_share = 0.5;
    cr_expect_eq(plan_of(&rig.config).library, library + BACKEND_GRAPHS * 4096);
}

/* ---- the largest micro-batch */

static int64_t largest(size_t memory) {
    int64_t batch = -7;
    cr_assert_eq(memory_largest_batch(&batch, &rig.config, &rig.be, memory, &rig.error), 0, "%s",
                 rig.error.text);
    return batch;
}

Test(memory_plan, largest_batch_fits_and_one_more_does_not) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++)
        for (size_t level = 0; level < COUNT(levels); level++) {
            open_tiny(rig_precisions[p]);
            rig.config.train.recompute = levels[level];
            for (size_t own = (size_t)10 << 20; own < (size_t)60 << 20; own = own * 5 / 3) {
                size_t memory = own + rig.be.device.library_bytes;
                int64_t batch = largest(memory);
                cr_assert_gt(batch, 0);
                cr_expect_leq(total_with_batch(batch), memory);
                cr_expect_gt(total_with_batch(batch + 1), memory);
            }
        }
}

Test(memory_plan, largest_batch_to_the_byte) {
    open_tiny(CONFIG_PRECISION_FP16); /* its workspace grows with the batch */
    struct memory_plan one = plan_of(&rig.config);
    size_t state = one.master + one.copies + one.gradients + one.moments;
    for (int64_t batch = 1; batch < 20; batch += 6) {
        cr_expect_eq(largest(total_with_batch(batch)), batch);
        cr_expect_eq(largest(total_with_batch(batch) - 1), batch - 1);
    }
    cr_expect_eq(largest(state), 0);
    cr_expect_eq(largest(state - 1), MEMORY_NO_STATE);
    cr_expect_eq(largest(0), MEMORY_NO_STATE);
    rig.config.train.micro_batch_size = 1000; /* ignored */
    cr_expect_eq(largest(total_with_batch(3)), 3);
}

/* Unlimited memory leaves the limits of the config, and sizes do not overflow. */
Test(memory_plan, largest_batch_is_within_config_limits) {
    static const int64_t lengths[] = {32, 256, 257, 1 << 20};
    open_tiny(CONFIG_PRECISION_FP32);
    for (size_t i = 0; i < COUNT(lengths); i++) {
        rig.config.data.seq_len = rig.config.model.n_positions = lengths[i];
        int64_t batch = largest((size_t)1 << 62);
        cr_expect(memory_batch_allowed(&rig.config, batch));
        cr_expect_not(memory_batch_allowed(&rig.config, batch + 1));
        for (int more = 0; more < 2; more++) {
            struct config config = rig.config;
            char text[64], *overrides[] = {text};
            snprintf(text, sizeof text, "train.micro_batch_size=%d", (int)batch + more);
            cr_expect_eq(config_override(&config, "tiny", overrides, 1, &rig.error), -more,
                         "%s: %s", text, rig.error.text);
        }
    }
    cr_expect_not(memory_batch_allowed(&rig.config, 0));
    rig.config.model.n_layer = 1024;
    rig.config.model.n_embd = 65536;
    rig.config.model.n_head = 1024;
    cr_expect_eq(largest((size_t)1 << 62), 16);
}
