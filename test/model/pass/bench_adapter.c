/* Cost of adapters: a forward and backward pass of one layer in the shape of Llama 3.1 8B, with
 * adapters in all its linear layers, beside the same passes of the frozen layer alone (no weight
 * gradients). Both run in turns on one model.
 *
 *   build/fast/tests --bench adapter --rows 512 --rank 16 --precision bf16 --base nf4
 *
 * Prints also the time in which a frozen layer is cast or dequantized, which each pass includes
 * once. */
#include <stdio.h>
#include <string.h>

#include <omp.h>

#include "data/util/statistics.h"
#include "kernels/open/backend_open.h"
#include "model/config/config_keys.h"
#include "model/optimize/trainer.h"
#include "model/pass/backward.h"
#include "model/pass/forward.h"
#include "test/kernels/bench.h"

static void make_config(struct config *config) {
    int64_t width = bench_number("width", 4096, 65536);
    const char *precision = bench_text("precision", "bf16");
    config_defaults(config);
    while (strcmp(config_precision_name(config->precision), precision) != 0)
        if ((config->precision = (config->precision + 1) % (CONFIG_PRECISION_AUTO + 1)) ==
            CONFIG_PRECISION_AUTO)
            bench_die("--precision is unknown");
    const char *base = bench_text("base", "auto");
    while (strcmp(config_name_of("adapter.base", config->adapter.base), base) != 0)
        if (config->adapter.base++ == CONFIG_BASE_FP8_BLOCK) bench_die("--base is unknown");
    config->model.n_layer = 1;
    config->model.n_embd = width;
    config->model.n_head = width < 256 ? 2 : width / 128;
    config->model.n_kv_head = config->model.n_head / (width < 1024 ? 1 : 4);
    config->model.n_inner = width * 7 / 2;
    config->model.norm = NORM_RMSNORM;
    config->model.positions = POSITIONS_ROPE;
    config->model.mlp = MLP_SWIGLU;
    config->model.bias = BIAS_NONE;
    config->data.seq_len = config->model.n_positions = bench_number("rows", 512, 1 << 20);
    config->train.micro_batch_size = 1;
    config->adapter.type = CONFIG_ADAPTER_LORA;
    config->adapter.rank = bench_number("rank", 16, 1024);
}

/* Returns the seconds of a forward and backward pass of the layer. */
static double time_passes(struct trainer *trainer, const struct batch *batch, unsigned targets) {
    struct pass pass = trainer_pass(trainer, true, true);
    pass.batch = batch->sent;
    trainer->model.shape.adapter_targets = targets;
    double began = omp_get_wtime();
    model_forward(&pass);
    model_backward(&pass);
    return omp_get_wtime() - began;
}

static double time_cast(struct model *model) {
    double began = omp_get_wtime();
    masters_ready(&model->masters, model->be, 0, 0);
    for (enum autocast_site i = 0; i < AUTOCAST_SITE_COUNT; i++)
        if (linear_index(i) >= 0) masters_cast(&model->masters, model->be, 0, i);
    return omp_get_wtime() - began;
}

static void table(void) {
    struct error error;
    struct config config;
    struct precision precision;
    struct backend be;
    struct trainer trainer;
    double adapted[BENCH_ROUNDS_MAX], frozen[BENCH_ROUNDS_MAX], ratios[BENCH_ROUNDS_MAX],
        casts[BENCH_ROUNDS_MAX];
    int rounds = bench_rounds();
    make_config(&config);
    if (backend_open(&be, &(const struct backend_options){.device = DEVICE_CPU}, &error) ||
        precision_resolve(&precision, NULL, &config, &be, &error) ||
        trainer_open(&trainer, &config, &precision, &be, TRAINER_INITIALIZED, &error))
        bench_die(error.text);
    const struct batch_format format = {.batch = 1, .length = config.data.seq_len};
    struct batch batch; /* of tokens 0 */
    if (batch_open(&batch, &be, &format, &error)) bench_die(error.text);
    batch_upload(&batch);
    struct model *model = &trainer.model;
    unsigned targets = model->shape.adapter_targets;
    for (int i = -1; i < rounds; i++) {
        int at = i < 0 ? 0 : i;
        adapted[at] = time_passes(&trainer, &batch, targets);
        frozen[at] = time_passes(&trainer, &batch, 0);
        casts[at] = time_cast(model);
        ratios[at] = adapted[at] / frozen[at];
    }
    printf("%s, rank %lld, %lld rows: %.1f ms; frozen layer alone %.1f ms; ratio %.3f; base %s, "
           "cast in %.1f "
           "ms\n",
           precision_name(&precision), (long long)config.adapter.rank,
           (long long)config.data.seq_len, 1e3 * median_of(adapted, rounds),
           1e3 * median_of(frozen, rounds), median_of(ratios, rounds),
           config_name_of("adapter.base", config.adapter.base), 1e3 * median_of(casts, rounds));
    batch_close(&batch);
    trainer_close(&trainer);
    backend_close(&be);
}
BENCH_TABLE(adapter, layer, table)
