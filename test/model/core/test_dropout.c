/* model.dropout and adapter.dropout: the same bits however a step is divided or recomputed. */
#include "kernels/observer.h"
#include "test/model/trainer_fixture.h"

enum { STEPS = 4 };

static void set_up(struct config *config, enum config_precision precision, int family) {
    rig_config(config, precision);
    set_family(config, family);
    config->model.dropout = 0.2;
}

static struct digest train(const struct config *config, double *loss) {
    struct rig rig = {.config = *config};
    rig_open(&rig, 2);
    *loss = (double)rig_steps(&rig, STEPS).loss;
    cr_expect_str_eq(rig.be.failure.text, "");
    struct digest digest = rig_digest(&rig);
    rig_close(&rig);
    return digest;
}

Test(dropout_training, gives_the_same_bits_at_any_recompute_level) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++)
        for (int family = 0; family < 3; family++)
            for (int adapters = 0; adapters < 2; adapters++) {
                struct config config;
                struct digest digests[3];
                double loss;
                if (test_leaves_out(p + (size_t)(family + adapters))) continue;
                set_up(&config, rig_precisions[p], family);
                config.adapter.type = adapters ? CONFIG_ADAPTER_LORA : CONFIG_ADAPTER_NONE;
                config.adapter.dropout = 0.3;
                for (int level = 0; level < 3; level++) {
                    config.train.recompute = (enum recompute)level;
                    digests[level] = train(&config, &loss);
                }
                expect_same_digest(digests[0], digests[1], "gelu");
                expect_same_digest(digests[0], digests[2], "layer");
            }
}

/* Keys of a micro-batch: those of the forward pass, and the backward pass's that are none of them.
 */
struct keys {
    struct observer observer;
    bool backward;
    uint64_t *forward; /* stb_ds array */
    int repeated, unknown;
};

static void collect(struct observer *observer, enum operation_id id, const void *args) {
    struct keys *keys = (struct keys *)observer;
    if (id == ID_cross_entropy) keys->backward = true;
    const struct dropout_args *drop = args;
    if (id != ID_dropout || drop->probability == 0) return; /* a factor alone draws nothing */
    struct rounding_key key = drop->key;
    const uint64_t bits = (uint64_t)key.first << 32 | key.second;
    bool known = false;
    for (ptrdiff_t i = 0; i < arrlen(keys->forward); i++) known |= keys->forward[i] == bits;
    if (keys->backward) {
        keys->unknown += !known;
    } else {
        keys->repeated += known;
        arrput(keys->forward, bits);
    }
}

/* Tensors that share a key drop the same elements. Adapters share that of their site. */
Test(dropout_training, each_tensor_has_a_key_of_its_own) {
    for (int family = 0; family < FAMILIES; family++) {
        struct keys keys = {.observer.before = collect};
        struct rig rig = {.config.name = ""};
        set_up(&rig.config, CONFIG_PRECISION_FP32, family);
        rig.config.adapter.type = CONFIG_ADAPTER_LORA;
        rig.config.adapter.dropout = 0.3;
        rig.config.train.grad_accum_steps = 1;
        rig_open(&rig, 2);
        backend_observe(&rig.be, &keys.observer);
        rig_step(&rig);
        const int layers = (int)rig.config.model.n_layer;
        cr_expect_eq(arrlen(keys.forward), 1 + layers * (2 + LINEAR_COUNT), "%td uses",
                     arrlen(keys.forward));
        cr_expect_eq(keys.repeated, 0, "%d keys are used twice", keys.repeated);
        cr_expect_eq(keys.unknown, 0, "%d keys of the backward pass alone", keys.unknown);
        cr_expect(keys.backward);
        arrfree(keys.forward);
        rig_close(&rig);
    }
}

/* Four sequences a step, in one micro-batch or four: fp32 sums in another order differ by a few
 * 1e-7, other masks by a hundredth. */
Test(dropout_training, does_not_depend_on_micro_batches) {
    struct config config;
    double one, four, other;
    set_up(&config, CONFIG_PRECISION_FP32, 1);
    config.train.micro_batch_size = 4, config.train.grad_accum_steps = 1;
    train(&config, &one);
    config.train.micro_batch_size = 1, config.train.grad_accum_steps = 4;
    train(&config, &four);
    cr_expect_float_eq(one, four, 5e-6, "%.8f and %.8f", one, four);
    config.model.dropout = 0;
    train(&config, &other);
    cr_expect_gt(fabs(one - other), 1e-4, "nothing is dropped");
}

/* Returns the loss of a validation after some steps, and stores that of the last step. */
static double validate(const struct config *config, double *again) {
    struct rig rig = {.config = *config};
    double loss;
    rig_open(&rig, 2);
    rig_steps(&rig, 1);
    cr_assert_eq(trainer_evaluate(&rig.trainer, &loss, &rig.loader, 8, &rig.error), 0);
    cr_assert_eq(trainer_evaluate(&rig.trainer, again, &rig.loader, 8, &rig.error), 0);
    rig_close(&rig);
    return loss;
}

Test(dropout_training, validation_drops_nothing) {
    struct config config;
    double again, without;
    set_up(&config, CONFIG_PRECISION_FP32, 1);
    config.optimizer.lr = 0; /* so that the weights are the initial ones */
    double loss = validate(&config, &again);
    cr_expect_eq(loss, again);
    config.model.dropout = 0;
    without = validate(&config, &again);
    cr_expect_eq(loss, without);
}

/* The gradient of the loss with respect to a bias, by differences: masks of both passes agree. The
 * step of 1e-2 has an error of its square, fp32 losses one of 1e-6 / 1e-2. */
Test(dropout_training, gradients_follow_the_masks) {
    struct rig rig = {.trainer.model.be = NULL};
    set_up(&rig.config, CONFIG_PRECISION_FP32, 0);
    rig.config.optimizer.lr = 0;
    rig.config.optimizer.grad_clip = 0;
    rig_open(&rig, 2);
    struct model *model = &rig.trainer.model;
    for (ptrdiff_t i = 0; i < arrlen(model->list); i++) {
        const struct parameter *p = &model->list[i];
        const float step = 1e-2f;
        float value, losses[2];
        bool tested = strstr(p->name, "bias") || strstr(p->name, "wpe");
        if (!tested || strstr(p->name, "c_attn")) continue; /* keys' biases have no gradient */
        rig.trainer.state.step = rig.trainer.state.next_sample = 0;
        rig_step(&rig);
        struct tensor view = model_gradient(model, p);
        float *gradient = rig_floats(&rig.be, &view);
        masters_download(&model->masters, &rig.be, &value, p->offset + 3, 1);
        for (int side = 0; side < 2; side++) {
            float moved = value + (side ? step : -step);
            masters_upload(&model->masters, &rig.be, &moved, p->offset + 3, 1);
            rig.trainer.state.step = rig.trainer.state.next_sample = 0;
            losses[side] = rig_step(&rig).loss;
        }
        masters_upload(&model->masters, &rig.be, &value, p->offset + 3, 1);
        cr_expect_float_eq(gradient[3], (losses[1] - losses[0]) / (2 * step), 4e-4,
                           "%s: %g, not %g", p->name, (double)gradient[3],
                           (double)((losses[1] - losses[0]) / (2 * step)));
        free(gradient);
    }
    rig_close(&rig);
}
