/* GPU work of a step: kernel launches and the library's matmuls. Counted on the emulated GPU for
 * GPT-2's twelve layers and vocabulary, narrow, in one micro-batch. */
#include "test/model/trainer_fixture.h"

#ifdef EMULATED
#include "test/cuda_emulator/control.h"
#include "test/cuda_emulator/fake_cublaslt.h"

struct launches {
    struct cuda_emulator_stats stats;
    long products;
};

/* Each part of a step is launched directly, then recorded, in both slots of the batches. */
enum { WARM_UP = 2 * BACKEND_SLOTS };

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
    rig_steps(&rig, WARM_UP);
    cuda_emulator_stats_reset();
    long before = fake_cublaslt_counts()->products;
    rig_step(&rig);
    struct launches launches = {cuda_emulator_stats(), fake_cublaslt_counts()->products - before};
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
    UPDATE = 9, /* squares and AdamW of the layers are apart from those of the tables */
};

Test(launches, of_a_step) {
    struct launches bf16 = launches_of_a_step(CONFIG_PRECISION_BF16);
    int kernels = IN_LAYERS + LAST_NORM + EMBEDDING + LOSS + UPDATE;
    cr_expect_eq((int)bf16.stats.launches, kernels, "%d kernels, not %d", (int)bf16.stats.launches,
                 kernels);
    cr_expect_eq(bf16.stats.graph_launches, 2, "the micro-batch and the update");
    cr_expect_eq(bf16.stats.recordings, 0);
    cr_expect_eq(bf16.stats.host_launches, 2 + 2, "graphs; copies of the batch and the result");
    cr_expect_eq(bf16.products, PRODUCTS, "%ld products, not %d", bf16.products, PRODUCTS);
}

/* Trainings on graphs. */
struct variant {
    enum config_precision precision;
    bool offload;
    bool streams;   /* frozen layers, under adapters */
    bool masked;    /* the weight of the loss differs from step to step */
    bool evaluates; /* after each step, which takes a slot */
};

static void configure(struct rig *rig, const struct variant *variant, bool graphs) {
    memset(rig, 0, sizeof *rig);
    rig_config(&rig->config, variant->precision);
    rig->config.cuda_graphs = graphs;
    rig->config.train.grad_accum_steps = 3;
    rig->config.fp8.recipe = CONFIG_RECIPE_DELAYED;
    rig->config.fp8.amax_history_length = 3;
    rig->config.loss_scale.init_scale = 0x1p30;
    rig->config.loss_scale.backoff_factor = 0x1p-8;
    if (variant->precision == CONFIG_PRECISION_BF16)
        rig->config.optimizer.moments = CONFIG_MOMENTS_BFLOAT16;
    rig->config.offload.optimizer = variant->offload;
    rig->config.offload.weights = variant->streams;
    if (variant->streams) rig->config.adapter.type = CONFIG_ADAPTER_LORA;
    if (variant->streams) rig->config.model.n_layer = 3;
}

/* Queues a step, and waits until at most `unfinished` are left. */
static void queue_step(struct rig *rig, struct trainer *trainer, int unfinished) {
    struct step_report report;
    cr_assert_eq(trainer_begin_step(trainer, &rig->loader, &rig->error), 0);
    while (trainer->unfinished > unfinished)
        cr_assert_eq(trainer_end_step(trainer, &report, &rig->error), 0);
}

/* Skipped steps and batches of several micro-batches; learning rate, seed and batch change. The
 * host is a step ahead unless it evaluates. */
static struct digest train(const struct variant *variant, bool graphs) {
    static struct rig rig;
    enum { STEPS = 7 };
    uint8_t mask[RIG_MASK_BYTES];
    configure(&rig, variant, graphs);
    cuda_emulator_stats_reset();
    rig_open_on(&rig, DEVICE_CUDA, 1);
    rig_mask(mask);
    if (variant->masked) rig.tokens.shards[0].mask.bits = mask;
    for (int step = 0; step < STEPS; step++) {
        double loss;
        queue_step(&rig, &rig.trainer, !variant->evaluates && step + 1 < STEPS);
        if (variant->evaluates)
            cr_assert_eq(trainer_evaluate(&rig.trainer, &loss, &rig.loader, 2, &rig.error), 0);
    }
    struct digest digest = rig_digest(&rig);
    struct cuda_emulator_stats stats = cuda_emulator_stats();
    /* Parts of a step in each of their slots; the first time each is launched directly. */
    uint64_t parts = variant->evaluates ? 4 : 6;
    cr_expect_eq(stats.graph_launches, graphs ? STEPS * 4 - parts : 0);
    cr_expect_eq(stats.recordings, graphs ? parts : 0);
    rig.tokens.shards[0].mask.bits = NULL;
    rig_close(&rig);
    return digest;
}

static void expect_same_bits(const struct variant *variant, const char *what) {
    expect_same_digest(train(variant, true), train(variant, false), what);
}

Test(launches, graphs_change_no_bit) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++)
        expect_same_bits(&(struct variant){.precision = rig_precisions[p]}, "graphs");
    expect_same_bits(&(struct variant){CONFIG_PRECISION_BF16, .offload = true}, "offload");
    expect_same_bits(&(struct variant){CONFIG_PRECISION_BF16, .streams = true}, "streams");
    expect_same_bits(&(struct variant){CONFIG_PRECISION_BF16, .streams = true, .evaluates = true},
                     "streams and evaluates");
    expect_same_bits(&(struct variant){CONFIG_PRECISION_BF16, .masked = true}, "masks");
    expect_same_bits(&(struct variant){CONFIG_PRECISION_BF16, .evaluates = true}, "evaluation");
}

/* Returns the digest after `steps` more steps. */
static struct digest digest_after(struct rig *rig, int steps) {
    rig_steps(rig, steps);
    struct sha256 hash;
    struct digest digest;
    sha256_begin(&hash);
    rig_hash_masters(&hash, &rig->trainer.model);
    sha256_end(digest.hex, &hash);
    return digest;
}

/* The learning rate of the last step is 0, so its graph, an earlier step's, changes no weight. */
Test(launches, graphs_have_the_learning_rate_of_the_step) {
    static struct rig rig;
    configure(&rig, &(struct variant){.precision = CONFIG_PRECISION_BF16}, true);
    rig.config.train.steps = 8;
    rig.config.optimizer.warmup_steps = 2;
    rig_open_on(&rig, DEVICE_CUDA, 1);
    struct digest first = digest_after(&rig, 6), before = digest_after(&rig, 1);
    struct digest after = digest_after(&rig, 1);
    cr_expect_str_neq(first.hex, before.hex, "the step before changes weights");
    expect_same_digest(after, before, "a step without a learning rate");
    rig_close(&rig);
}

static void open_trainer(struct trainer *trainer, struct rig *rig) {
    cr_assert_eq(trainer_open(trainer, &rig->config, &rig->precision, &rig->be, TRAINER_INITIALIZED,
                              &rig->error),
                 0, "%s", rig->error.text);
}

/* ---- several ranks: collectives as rank 0 of 2 sees them, where rank 1 has zeros */

static uint64_t clear_others(const struct collectives *c, void *data, size_t element_bytes,
                             int64_t count) {
    const struct rank_part other = ranks_part(count, 2, 1);
    OP((struct backend *)c->state, clear,
       .data = (char *)data + (size_t)other.first * element_bytes,
       .bytes = (size_t)other.count * element_bytes);
    return 1;
}

static uint64_t keep_own(const struct collectives *c, void *data, enum dtype dtype, int64_t count) {
    (void)c, (void)data, (void)dtype, (void)count;
    return 1;
}

static void wait_for_nothing(const struct collectives *c, uint64_t ticket) {
    (void)c, (void)ticket;
}

static struct digest train_as_rank(const struct variant *variant, int64_t micros, bool graphs) {
    static struct rig rig;
    static const struct collective_functions functions = {
        .reduce_scatter = keep_own, .all_gather = clear_others, .wait = wait_for_nothing};
    const struct ranks ranks = {.size = 2, .local_size = 1};
    const struct collectives several = {&ranks, &functions, &rig.be, "two ranks"};
    enum { STEPS = 5 };
    configure(&rig, variant, graphs);
    rig.config.train.grad_accum_steps = micros;
    rig.config.ranks.shard = CONFIG_SHARD_NONE;
    rig_open_data(&rig);
    rig_open_backend(&rig, DEVICE_CUDA, 1);
    const struct collectives *alone = rig.be.collectives;
    rig.be.collectives = &several;
    open_trainer(&rig.trainer, &rig);
    cuda_emulator_stats_reset();
    rig_steps(&rig, STEPS);
    struct cuda_emulator_stats stats = cuda_emulator_stats();
    /* All but the first and the last micro-batch of a step; the first time, in each slot, one is
     * launched directly. */
    uint64_t within = micros > 2 ? (uint64_t)(micros - 2) * STEPS : 0, slots = within ? 2 : 0;
    cr_expect_eq(stats.graph_launches, graphs ? within - slots : 0, "%d micro-batches: %d graphs",
                 (int)micros, (int)stats.graph_launches);
    cr_expect_eq(stats.recordings, graphs ? slots : 0);
    struct digest digest = rig_digest(&rig);
    trainer_close(&rig.trainer);
    rig.be.collectives = alone;
    rig_close(&rig);
    return digest;
}

Test(launches, graphs_of_several_ranks) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++)
        for (int64_t micros = 1; micros <= 5; micros += 2) {
            const struct variant variant = {.precision = rig_precisions[p]};
            expect_same_digest(train_as_rank(&variant, micros, true),
                               train_as_rank(&variant, micros, false), "several ranks");
        }
}

static void open_configured(struct rig *rig, bool graphs) {
    configure(rig, &(struct variant){.precision = CONFIG_PRECISION_BF16}, graphs);
    rig_open_on(rig, DEVICE_CUDA, 1);
}

/* Two trainers on one device. */
static struct digest take_turns(bool graphs) {
    static struct rig rig;
    static struct trainer other;
    open_configured(&rig, graphs);
    open_trainer(&other, &rig);
    for (int i = 0; i < 8; i++) queue_step(&rig, i % 2 ? &other : &rig.trainer, 0);
    struct digest digest = rig_digest(&rig);
    trainer_close(&other);
    rig_close(&rig);
    return digest;
}

Test(launches, graphs_of_two_trainers) {
    expect_same_digest(take_turns(true), take_turns(false), "two trainers");
}

/* A trainer is opened where another was, with a shorter batch. */
static struct digest open_again(bool graphs) {
    static struct rig rig;
    open_configured(&rig, graphs);
    rig_steps(&rig, 4);
    trainer_close(&rig.trainer);
    rig.config.train.micro_batch_size = 1;
    open_trainer(&rig.trainer, &rig);
    cuda_emulator_stats_reset();
    rig_steps(&rig, 6);
    cr_expect_eq(cuda_emulator_stats().graph_launches, graphs ? 6 * 4 - 6 : 0);
    struct digest digest = rig_digest(&rig);
    rig_close(&rig);
    return digest;
}

Test(launches, graphs_of_an_earlier_trainer) {
    expect_same_digest(open_again(true), open_again(false), "an earlier trainer");
}
#endif
