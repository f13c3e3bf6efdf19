/* Ten steps on the device under test compared with the same ten steps on the CPU, in each
 * precision: the whole model, with head widths and lengths that take the kernels' special paths.
 * On the CPU itself there is nothing to compare. */
#include "test/model/trainer_fixture.h"
#ifdef EMULATED
#include "test/cuda_emulator/control.h"
#endif

enum { STEPS = 10 };

/* Bounds on the difference after ten steps on two devices. Both round activations to the same
 * dtypes but sum in different orders, and Adam amplifies the noise of small gradients. Measured
 * on the CPU against itself, 128 wide, with matmuls that sum in another order
 * (ONEDNN_MAX_CPU_ISA=SSE41): losses differ by up to 3e-6, 2e-4, 7e-5 in fp32, bf16, fp16, norms
 * by 7e-6, 2e-3, 7e-4. Attention on tensor cores also rounds its probabilities to 16 bits. The
 * bounds are four times that, in fp32 a little more. */
struct bounds {
    enum config_precision precision;
    double loss;     /* absolute */
    double norm;     /* relative */
    double movement; /* |difference of final weights| / |what training on the CPU changed| */
};

static const struct bounds all_bounds[] = {
    {CONFIG_PRECISION_FP32, 2e-5, 4e-5, 5e-4},
    {CONFIG_PRECISION_BF16, 1e-3, 8e-3, 0.06},
    {CONFIG_PRECISION_FP16, 3e-4, 3e-3, 0.03},
};

struct result {
    struct step_report reports[STEPS];
    float *initial, *final; /* master weights */
    int64_t count;
    struct digest digest;
};

static void configure(struct config *config, enum config_precision precision) {
    rig_config(config, precision);
    config->model.n_embd = 64; /* head width 64: tensor cores, if the device has them */
    config->model.n_head = 1;
    config->model.n_positions = config->data.seq_len = 77;
    config->train.steps = STEPS;
    config->optimizer.lr = 1e-3;
    config->loss_scale.init_scale = 0x1p30; /* overflows at first: tests skipped steps too */
    config->loss_scale.backoff_factor = 0x1p-8;
    config->loss_scale.growth_interval = 4;
}

#ifdef EMULATED
/* Memory that runs out after planning: kernels take some when they are first launched. The plan
 * reserves it, so a plan that fits also runs. */
Test(device_training, a_plan_that_fits_also_runs) {
    static struct rig rig;
    setenv("CUDA_EMULATOR_LAZY", "1500000", 1);
    for (int fits = 0; fits < 2; fits++) {
        memset(&rig, 0, sizeof rig);
        configure(&rig.config, CONFIG_PRECISION_BF16);
        rig_open_data(&rig);
        rig_open_backend(&rig, DEVICE_CUDA, 1);
        cr_assert_eq(trainer_open(&rig.trainer, &rig.config, &rig.precision, &rig.be,
                                  TRAINER_PLANNED, &rig.error),
                     0, "%s", rig.error.text);
        size_t total = memory_total(&rig.trainer.model.memory);
        trainer_close(&rig.trainer);
        cuda_emulator_memory(fits ? total + 4096 : total); /* the state of a step is not in it */
        int status = trainer_open(&rig.trainer, &rig.config, &rig.precision, &rig.be,
                                  TRAINER_INITIALIZED, &rig.error);
        cr_assert_eq(status, fits ? 0 : -1);
        if (!fits) cr_expect(strstr(rig.error.text, "not enough memory"), "%s", rig.error.text);
        for (int step = 0; fits && step < 3; step++) rig_step(&rig);
        rig_close(&rig);
    }
}

/* So many ranks share this host that none may pin the moments. */
Test(device_training, offload_fails_at_the_start_if_the_host_is_full) {
    static struct rig rig;
    struct ranks ranks = {.size = 1, .local_size = 1 << 20};
    struct backend_options options = {.device = DEVICE_CUDA, .ranks = &ranks};
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig.config.model.n_embd = 512;
    rig.config.model.vocab_size = 8000; /* moments of 77 MiB */
    rig.config.offload.optimizer = true;
    rig_open_data(&rig);
    cr_assert_eq(backend_open(&rig.be, &options, &rig.error), 0, "%s", rig.error.text);
    cr_assert_eq(precision_resolve(&rig.precision, NULL, &rig.config, &rig.be, &rig.error), 0);
    cr_assert_eq(
        trainer_open(&rig.trainer, &rig.config, &rig.precision, &rig.be, TRAINER_EMPTY, &rig.error),
        -1);
    cr_expect(strstr(rig.error.text, "of the host"), "%s", rig.error.text);
    cr_expect(strstr(rig.error.text, "leave out offload.optimizer"), "%s", rig.error.text);
    rig_close(&rig);
}
#endif

static struct result train_on(enum device device, const struct config *config) {
    static struct rig rig;
    struct result result;
    memset(&rig, 0, sizeof rig);
    rig.config = *config;
    rig_open_on(&rig, device, 1);
    struct model *model = &rig.trainer.model;
    result.initial = masters_values(model);
    for (int step = 0; step < STEPS; step++) result.reports[step] = rig_step(&rig);
    result.final = masters_values(model);
    result.count = model->count;
    result.digest = rig_digest(&rig);
    rig_close(&rig);
    return result;
}

static void discard(struct result *result) {
    free(result->initial);
    free(result->final);
}

static double distance(const float *a, const float *b, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return sqrt(sum);
}

static void compare(const struct result *got, const struct result *cpu,
                    const struct bounds *bounds) {
    for (int step = 0; step < STEPS; step++) {
        const struct step_report *a = &got->reports[step], *b = &cpu->reports[step];
        cr_expect_eq(a->skipped, b->skipped, "step %d", step);
        cr_expect_eq(a->loss_scale, b->loss_scale, "step %d", step);
        cr_expect(fabs(a->loss - b->loss) <= bounds->loss, "step %d: loss %.9g, on the CPU %.9g",
                  step, a->loss, b->loss);
        if (a->skipped) continue;
        cr_expect(fabs(a->gradient_norm / b->gradient_norm - 1) <= bounds->norm,
                  "step %d: norm %.9g, on the CPU %.9g", step, a->gradient_norm, b->gradient_norm);
    }
    cr_assert_eq(got->count, cpu->count);
    cr_expect_eq(distance(got->initial, cpu->initial, cpu->count), 0, "initial weights differ");
    double apart = distance(got->final, cpu->final, cpu->count);
    double moved = distance(cpu->initial, cpu->final, cpu->count);
    cr_expect(apart / moved <= bounds->movement, "final weights: %g of the movement",
              apart / moved);
}

static void check(const struct config *config, const struct bounds *bounds) {
    if (test_device() == DEVICE_CPU) return;
    struct result cpu = train_on(DEVICE_CPU, config);
    struct result got = train_on(test_device(), config);
    compare(&got, &cpu, bounds);
    discard(&cpu);
    discard(&got);
}

static void check_precision(int index) {
    struct config config;
    configure(&config, all_bounds[index].precision);
    check(&config, &all_bounds[index]);
}

Test(device_training, fp32) {
    check_precision(0);
}

Test(device_training, bf16) {
    check_precision(1);
}

Test(device_training, fp16) {
    check_precision(2);
}

Test(device_training, twice_gives_the_same_bits) {
    struct config config;
    configure(&config, CONFIG_PRECISION_BF16);
    struct result once = train_on(test_device(), &config);
    struct result again = train_on(test_device(), &config);
    expect_same_digest(once.digest, again.digest, "a second run");
    discard(&once);
    discard(&again);
}

/* Everything that can be 16 bits is, including the residual stream and the weights' gradients.
 * Each adds roundings of the same size: over two layers, twice as many. */
Test(device_training, bf16_everywhere) {
    struct config config;
    configure(&config, CONFIG_PRECISION_BF16);
    config.autocast.residual = CONFIG_DTYPE_LOWER;
    config.gradients.dtype = CONFIG_DTYPE_LOWER;
    check(&config, &(const struct bounds){CONFIG_PRECISION_BF16, 2e-3, 1.6e-2, 0.12});
}

/* Operations kept in fp32 cause matmuls and casts of mixed dtypes; odd sizes rule out packs. */
Test(device_training, unlike_dtypes_and_odd_sizes) {
    static const char *const kept[] = {"attention", "mlp_projection", "lm_head"};
    struct config config;
    configure(&config, CONFIG_PRECISION_FP16);
    config.model.n_embd = 36;
    config.model.n_head = 3;
    config.autocast.float32.count = COUNT(kept);
    for (size_t i = 0; i < COUNT(kept); i++) config.autocast.float32.items[i] = (char *)kept[i];
    check(&config, &all_bounds[2]);
}
