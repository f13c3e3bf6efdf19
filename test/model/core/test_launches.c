/* GPU work of a step: kernel launches and the library's matmuls. Counted on the emulated GPU for
 * GPT-2's twelve layers and vocabulary, narrow, in one micro-batch. */
#include "test/model/trainer_fixture.h"

#ifdef EMULATED
#include "test/cuda_emulator/control.h"
#include "test/cuda_emulator/fake_cublaslt.h"

struct launches {
    uint64_t kernels, graphs;
    long products;
};

static struct launches launches_of_a_step(enum config_precision precision) {
    static struct rig rig;
    memset(&rig, 0, sizeof rig);
    rig_config(&rig.config, precision);
    rig.config.model.n_layer = 12;
    rig.config.model.n_head = 1;
    rig.config.model.n_embd = 64;
    rig.config.model.vocab_size = 50257;
    rig.config.train.micro_batch_size = 1;
    rig.config.train.grad_accum_steps = 1;
    rig_open_on(&rig, DEVICE_CUDA, 1);
    rig_step(&rig);
    cuda_emulator_stats_reset();
    long before = fake_cublaslt_counts()->products;
    rig_step(&rig);
    struct launches launches = {cuda_emulator_stats().launches,
                                cuda_emulator_stats().graph_launches,
                                fake_cublaslt_counts()->products - before};
    rig_close(&rig);
    return launches;
}

/* Each additional launch costs some microseconds, which matters in a small model's step. */
enum {
    LAYERS = 12,
    PRODUCTS = LAYERS * (4 + 8) + 3, /* linear layers; head */
    /* Attention and two norms. Their gradients have a second kernel each for sums over rows, and
     * attention's one more. Then sums of the matmuls that the library multiplied by gelu'. */
    IN_LAYERS = LAYERS * (1 + 2 + 3 + 2 * 2 + 2),
    LAST_NORM = 1 + 2,
    EMBEDDING = 1 + 7, /* two passes of a sort; sums for tokens, frequent tokens, positions */
    LOSS = 2,
    UPDATE = 7,
};

Test(launches, of_a_step) {
    struct launches bf16 = launches_of_a_step(CONFIG_PRECISION_BF16);
    int kernels = IN_LAYERS + LAST_NORM + EMBEDDING + LOSS + UPDATE;
    cr_expect_eq((int)bf16.kernels, kernels, "%d kernels, not %d", (int)bf16.kernels, kernels);
    cr_expect_eq(bf16.graphs, 2, "the micro-batch and the update");
    cr_expect_eq(bf16.products, PRODUCTS, "%ld products, not %d", bf16.products, PRODUCTS);
}

/* Skipped steps and batches of several micro-batches; learning rate and batch change. */
static struct digest train(enum config_precision precision, bool graphs, bool offload) {
    static struct rig rig;
    memset(&rig, 0, sizeof rig);
    rig_config(&rig.config, precision);
    rig.config.cuda_graphs = graphs;
    rig.config.train.grad_accum_steps = 3;
    rig.config.loss_scale.init_scale = 0x1p30;
    rig.config.loss_scale.backoff_factor = 0x1p-8;
    rig.config.offload.optimizer = offload;
    cuda_emulator_stats_reset();
    rig_open_on(&rig, DEVICE_CUDA, 1);
    for (int step = 0; step < 5; step++) rig_step(&rig);
    struct digest digest = rig_digest(&rig);
    /* The first step of each kind is launched directly. */
    uint64_t wanted = 4 + (5 * 2 - 1) + 4;
    cr_expect_eq(cuda_emulator_stats().graph_launches, graphs ? wanted : 0);
    rig_close(&rig);
    return digest;
}

Test(launches, graphs_change_no_bit) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++)
        expect_same_digest(train(rig_precisions[p], true, false),
                           train(rig_precisions[p], false, false), "graphs");
    expect_same_digest(train(CONFIG_PRECISION_BF16, true, true),
                       train(CONFIG_PRECISION_BF16, false, true), "graphs and offload");
}
#endif
