/* Layers in host memory: their weights, gradients and saved activations pass by way of buffers for
 * two layers, and training gives the same bits. (Frozen weights: test_frozen.c.) */
#include "model/config/config_keys.h"
#include "test/model/trainer_fixture.h"

enum { STEPS = 4 };

static struct digest state_digest(struct rig *rig) {
    struct digest digest;
    struct sha256 hash;
    sha256_begin(&hash);
    rig_hash_masters(&hash, &rig->trainer.model);
    rig_hash_moments(&hash, &rig->trainer.optimizer);
    sha256_end(digest.hex, &hash);
    return digest;
}

/* CPUs know the peak of the whole process, and GPUs hand out 2 MiB at least. */
static void expect_planned_peak(struct rig *rig) {
    const struct memory_plan *plan = &rig->trainer.model.memory;
    const double planned = (double)(memory_total(plan) - plan->library);
    const double peak = (double)backend_peak_bytes(&rig->be);
    if (test_emulated())
        cr_expect_float_eq(peak, planned, 0.02 * planned, "%g of %g", peak, planned);
}

/* Trains with a validation in between, which leaves other layers in the buffers than a step. */
static struct digest train(const struct config *config, struct memory_plan *plan) {
    struct rig rig = {.config = *config};
    double loss;
    rig_open_separate(&rig, 2);
    *plan = rig.trainer.model.memory;
    rig_steps(&rig, STEPS / 2);
    cr_expect_eq(trainer_evaluate(&rig.trainer, &loss, &rig.loader, 4, &rig.error), 0);
    rig_steps(&rig, STEPS / 2);
    cr_expect_str_eq(rig.be.failure.text, "");
    struct digest digest = state_digest(&rig);
    expect_planned_peak(&rig);
    rig_close(&rig);
    return digest;
}

/* Sets which of weights, gradients and activations are streamed. */
static void set_streams(struct config *config, int bits) {
    config->offload.weights = bits & 1;
    config->offload.gradients = bits & 2;
    config->offload.activations = bits & 4;
}

static void set_up(struct config *config, enum config_precision precision, int variant) {
    rig_config(config, precision);
    set_family(config, variant % FAMILIES);
    config->model.n_layer = 1 + variant % 5;
    config->train.grad_accum_steps = 1 + variant % 3;
    config->train.recompute = (enum recompute)(variant / 2 % 3);
    config->offload.optimizer = variant & 1;
    config->loss_scale.init_scale = 0x1p30; /* overflows at first */
    if (variant & 4) config->gradients.dtype = CONFIG_DTYPE_LOWER;
    if (variant & 8) config->autocast.float32 = (struct config_words){1, {"mlp_fc"}};
}

/* In fp32, split and cast forms, whole layers and some matrices in fp32, in each family, beside
 * state in host memory and alone. Several micro-batches add to gradients that have left. */
Test(layer_stream, trains_to_the_same_bits) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++)
        for (int variant = 0; variant < 16; variant++) {
            struct config config;
            struct memory_plan here, streamed;
            if (test_leaves_out((size_t)variant + p)) continue;
            set_up(&config, rig_precisions[p], variant);
            const struct digest expected = train(&config, &here);
            const int bits = 1 + (variant + (int)p) % 7;
            set_streams(&config, bits);
            char what[80];
            snprintf(what, sizeof what, "precision %zu, variant %d, streams %d", p, variant, bits);
            expect_same_digest(expected, train(&config, &streamed), what);
            cr_expect_eq(streamed.streamed > 0, (bits & 1) != 0, "%s", what);
            cr_expect_eq(streamed.host_gradients > 0, (bits & 2) != 0, "%s", what);
            cr_expect_eq(streamed.host_activations > 0, (bits & 4) != 0, "%s", what);
        }
}

/* Dropout is recomputed, and adapters save activations, too. */
Test(layer_stream, keeps_activations_of_adapters_and_dropout) {
    for (int variant = 0; variant < 3; variant++) {
        struct config config;
        struct memory_plan plan;
        set_up(&config, CONFIG_PRECISION_BF16, variant);
        config.model.n_layer = 4;
        config.model.dropout = 0.25;
        if (variant > 0) config.adapter.type = CONFIG_ADAPTER_LORA, config.adapter.rank = 3;
        const struct digest expected = train(&config, &plan);
        set_streams(&config, variant == 2 ? 5 : 4);
        expect_same_digest(expected, train(&config, &plan), "activations");
    }
}

/* All but two layers of what is streamed leave the device, in the plan and in the peak. */
Test(layer_stream, leaves_buffers_for_two_layers) {
    for (int bits = 1; bits < 8; bits++) {
        struct config config;
        struct memory_plan here, streamed;
        set_up(&config, CONFIG_PRECISION_BF16, 0);
        config.model.n_layer = 6;
        train(&config, &here);
        set_streams(&config, bits);
        train(&config, &streamed);
        const size_t left = streamed.streamed + streamed.host_gradients + streamed.host_activations;
        cr_expect_eq(memory_total(&here) - memory_total(&streamed), left / 6 * 4, "%d", bits);
        cr_expect_eq(memory_host(&streamed), left, "%d", bits);
    }
}

/* Copies of each lane; and those that the next wait of the lane is for. If these were all, no layer
 * would run meanwhile. */
static struct { int copies, exposed, waits, begun[BACKEND_SLOTS]; } lanes[COPY_LANES];

static void count_copy(struct backend *be, struct copy_slot slot, void *to, const void *from,
                       size_t bytes) {
    (void)be;
    memcpy(to, from, bytes);
    lanes[slot.lane].copies++;
    lanes[slot.lane].begun[slot.slot] = lanes[slot.lane].waits;
}

static void count_copied(struct backend *be, struct copy_slot slot) {
    (void)be;
    lanes[slot.lane].exposed += lanes[slot.lane].begun[slot.slot] == lanes[slot.lane].waits++;
}

/* A forward pass waits for the weights of its first layer. A pass that adds to gradients waits for
 * those of its first layer, another one for the first layer that has left, and each for its last.
 * Activations of the last two layers stay. */
Test(layer_stream, copies_each_layer_once_in_a_pass) {
    enum { LAYERS = 5, MICROS = 2 };
    struct rig rig = {.trainer.model.be = NULL};
    if (test_device() != DEVICE_CPU) return;
    set_up(&rig.config, CONFIG_PRECISION_BF16, 0);
    rig.config.model.n_layer = LAYERS;
    rig.config.train.grad_accum_steps = MICROS;
    set_streams(&rig.config, 7);
    rig_open_separate(&rig, 2);
    struct device_functions functions = *rig.be.functions;
    functions.copy = count_copy;
    functions.copied = count_copied;
    rig.be.functions = &functions;
    memset(lanes, 0, sizeof lanes);
    rig_step(&rig);
    cr_expect_eq(lanes[LANE_WEIGHTS].copies, MICROS * (LAYERS + LAYERS - BACKEND_SLOTS));
    cr_expect_eq(lanes[LANE_WEIGHTS].exposed, MICROS);
    cr_expect_eq(lanes[LANE_GRADIENTS].copies, LAYERS * (2 * MICROS - 1));
    cr_expect_eq(lanes[LANE_GRADIENTS].exposed, 2 * MICROS);
    cr_expect_eq(lanes[LANE_ACTIVATIONS].copies, 2 * MICROS * (LAYERS - BACKEND_SLOTS));
    rig_close(&rig);
}

Test(layer_stream, needs_a_gpu_and_something_to_stream) {
    struct config config;
    set_up(&config, CONFIG_PRECISION_BF16, 0);
    set_streams(&config, 2);
    rig_expect_refused(&config, true, 1, "offload.gradients: there is no GPU");
    set_streams(&config, 4);
    rig_expect_refused(&config, true, 1, "offload.activations: there is no GPU");
    set_streams(&config, 2);
    config.adapter.type = CONFIG_ADAPTER_LORA;
    rig_expect_refused(&config, false, 1, "offload.gradients: the layers are frozen");
}

/* Ranks send each other trained weights and gradients from the device. */
Test(layer_stream, trains_on_one_rank_unless_frozen) {
    struct config config;
    set_up(&config, CONFIG_PRECISION_BF16, 0);
    set_streams(&config, 1);
    rig_expect_refused(&config, false, 2, "offload.weights: not with several ranks");
    set_streams(&config, 2);
    rig_expect_refused(&config, false, 2, "offload.gradients: not with several ranks");
    set_streams(&config, 0);
    config.offload.optimizer = true;
    rig_expect_refused(&config, false, 2, "offload.optimizer: not with several ranks");
}
