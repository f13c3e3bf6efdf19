/* One training step of GPT-2 124M, split by operation and compared with its matmuls alone.
 *
 *   build/fast/tests --bench step [--preset gpt2] [--batch 4] [--seq 256] [--steps 5]
 *       [--layers N] [--precision fp32]
 *
 * The columns are those of ./train --profile (model/cli/run_profile.h); tokens are random. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/error.h"
#include "data/util/random.h"
#include "kernels/open/backend_open.h"
#include "model/config/config_check.h"
#include "model/config/config_keys.h"
#include "model/cli/run_profile.h"
#include "test/kernels/bench.h"

static void measure(struct trainer *trainer, const struct loader *loader, int repetitions,
                    const char *precision) {
    struct error error;
    struct profile profile;
    const struct config *config = trainer->config;
    if (profile_trainer(&profile, trainer, loader, repetitions, &error)) bench_die(error.text);
    profile_print(stdout, &profile);
    printf("batch %lld T %lld %s tokens/s %.0f, ratio %.3f\n",
           (long long)config->train.micro_batch_size, (long long)config->data.seq_len, precision,
           profile.tokens / profile.step, profile.step / profile.matmuls);
    fflush(stdout);
}

static void train(struct config *config, const char *precision_name, int repetitions) {
    char note[PRECISION_NOTE_MAX];
    struct error error = {0};
    struct backend be;
    struct precision precision;
    struct trainer trainer;
    struct tokens tokens;
    struct loader loader;
    uint64_t count = 1 << 18;
    int32_t *text = malloc(count * sizeof *text);
    for (uint64_t i = 0; i < count; i++)
        text[i] = (int32_t)(random_bits(1, 1, i) % (uint64_t)config->model.vocab_size);
    struct loader_options options = {.seq_len = (int)config->data.seq_len,
                                     .seed = 1,
                                     .shuffle = true,
                                     .vocab_size = (int)config->model.vocab_size};
    if (tokens_from_memory(&tokens, text, count, "random tokens", &error) ||
        loader_open(&loader, &tokens, &options, &error) ||
        backend_open(&be,
                     &(const struct backend_options){DEVICE_AUTO, .threads = (int)config->threads},
                     &error) ||
        precision_resolve(&precision, note, config, &be, &error) ||
        trainer_open(&trainer, config, &precision, &be, TRAINER_INITIALIZED, &error))
        bench_die(error.text);
    printf("%s, %d threads, %s\n", be.device.description, be.device.threads, precision_name);
    measure(&trainer, &loader, repetitions, precision_name);
    trainer_close(&trainer);
    backend_close(&be);
    loader_close(&loader);
    tokens_close(&tokens);
}

static enum config_preset preset_named(const char *name) {
    const struct config_option *option = config_option_of("model.preset");
    for (int i = 1; option->names[i]; i++)
        if (strcmp(option->names[i], name) == 0) return (enum config_preset)i;
    bench_die("--preset takes a model of configs/README.md");
}

static void table(void) {
    const char *only = bench_text("precision", NULL);
    for (enum config_precision i = 0; i < CONFIG_PRECISION_AUTO; i++) {
        const char *name = config_precision_name(i);
        if (only ? strcmp(only, name) != 0 : i > CONFIG_PRECISION_BF16) continue;
        struct config config;
        config_defaults(&config);
        config.precision = i;
        config_apply_preset(&config, preset_named(bench_text("preset", "gpt2")));
        config.model.n_layer = bench_number("layers", config.model.n_layer, 1000);
        config.data.seq_len = bench_number("seq", 256, 1024);
        config.train.micro_batch_size = bench_number("batch", 4, 1 << 20);
        config.train.grad_accum_steps = 1;
        config.loss_scale.init_scale = 1024;
        train(&config, name, (int)bench_number("steps", 5, 100));
    }
}
BENCH_TABLE(step, by_operation, table)
