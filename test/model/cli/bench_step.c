/* One training step of GPT-2 124M, split by operation and compared with its matmuls alone.
 *
 *   build/fast/tests --bench step/by_operation [--preset gpt2] [--batch 4] [--seq 256] [--steps 5]
 *       [--layers N] [--vocab N] [--precision fp32]
 *
 * The same of fine-tuning Qwen3 0.6B in bf16: LoRA, QLoRA (a base in nf4) and all weights, with the
 * rank and dropout of configs/finetune-lora.json. --counted: percent of tokens in the loss; with
 * --all-rows 1 the head reads the others too.
 *
 *   build/fast/tests --bench step/finetune [--preset qwen3-0.6b] [--batch 2] [--counted 100]
 *       [--all-rows 1] [--method qlora] ...
 *
 * The columns are those of ./train --profile (model/lab/evaluation/run_profile.h); tokens and
 * weights are random. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/error.h"
#include "data/util/random.h"
#include "kernels/open/backend_open.h"
#include "model/config/config_check.h"
#include "model/config/config_keys.h"
#include "model/lab/evaluation/run_profile.h"
#include "test/kernels/bench.h"

static void measure(struct trainer *trainer, const struct loader *loader, int repetitions,
                    const char *name) {
    struct error error;
    struct profile profile;
    const struct config *config = trainer->config;
    if (profile_trainer(&profile, trainer, loader, repetitions, &error)) bench_die(error.text);
    profile_print(stdout, &profile);
    printf("batch %lld T %lld %s tokens/s %.0f, ratio %.3f\n",
           (long long)config->train.micro_batch_size, (long long)config->data.seq_len, name,
           profile.tokens / profile.step, profile.step / profile.matmuls);
    fflush(stdout);
}

/* Random tokens, of which `counted` percent count in the loss. */
static void random_tokens(struct tokens *tokens, int64_t vocab_size, uint64_t counted) {
    struct error error;
    uint64_t count = 1 << 18;
    int32_t *text = malloc(count * sizeof *text);
    uint8_t *marks = malloc(count);
    if (!text || !marks) bench_die("out of memory");
    for (uint64_t i = 0; i < count; i++) {
        text[i] = (int32_t)(random_bits(1, 1, i) % (uint64_t)vocab_size);
        marks[i] = random_bits(1, 2, i) % 100 < counted ? TOKEN_COUNTS : 0;
    }
    if (counted < 100
            ? tokens_from_memory_marked(tokens, text, marks, count, "random tokens", &error)
            : tokens_from_memory(tokens, text, count, "random tokens", &error))
        bench_die(error.text);
    free(marks);
}

static void train(struct config *config, const char *name) {
    struct error error = {0};
    struct backend be;
    struct precision precision;
    struct trainer trainer;
    struct tokens tokens;
    struct loader loader;
    const int64_t counted = bench_number("counted", 100, 100);
    if (counted < 94 && !bench_text("all-rows", NULL))
        config->masked_share = 1 - (double)counted / 100;
    random_tokens(&tokens, config->model.vocab_size, (uint64_t)counted);
    struct loader_options options = {.seq_len = (int)config->data.seq_len,
                                     .seed = 1,
                                     .shuffle = true,
                                     .vocab_size = (int)config->model.vocab_size};
    if (loader_open(&loader, &tokens, &options, &error) ||
        backend_open(&be,
                     &(const struct backend_options){DEVICE_AUTO, .threads = (int)config->threads},
                     &error) ||
        precision_resolve(&precision, NULL, config, &be, &error) ||
        trainer_open(&trainer, config, &precision, &be, TRAINER_INITIALIZED, &error))
        bench_die(error.text);
    printf("%s, %d threads, %s\n", be.device.description, be.device.threads, name);
    measure(&trainer, &loader, (int)bench_number("steps", 5, 100), name);
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

static void set_sizes(struct config *config, const char *preset, int64_t batch) {
    config_defaults(config);
    config_apply_preset(config, preset_named(bench_text("preset", preset)));
    config->model.n_layer = bench_number("layers", config->model.n_layer, 1000);
    config->model.vocab_size = bench_number("vocab", config->model.vocab_size, 1 << 20);
    config->data.seq_len = bench_number("seq", 256, 1 << 20);
    config->train.micro_batch_size = bench_number("batch", batch, 1 << 20);
    config->train.grad_accum_steps = 1;
    config->loss_scale.init_scale = 1024;
}

static void by_operation(void) {
    const char *only = bench_text("precision", NULL);
    for (enum config_precision i = 0; i < CONFIG_PRECISION_AUTO; i++) {
        const char *name = config_precision_name(i);
        if (only ? strcmp(only, name) != 0 : i > CONFIG_PRECISION_BF16) continue;
        struct config config;
        set_sizes(&config, "gpt2", 4);
        config.precision = i;
        train(&config, name);
    }
}
BENCH_TABLE(step, by_operation, by_operation)

static void finetune(void) {
    static const char *const methods[] = {"lora", "qlora", "all weights"};
    const char *only = bench_text("method", NULL);
    bool found = false;
    for (int i = 0; i < 3; i++) {
        if (only && strcmp(only, methods[i]) != 0) continue;
        found = true;
        struct config config;
        set_sizes(&config, "qwen3-0.6b", 2);
        config.precision = CONFIG_PRECISION_BF16;
        if (i < 2) config.adapter.type = CONFIG_ADAPTER_LORA, config.adapter.dropout = 0.05;
        if (i == 1) config.adapter.base = CONFIG_BASE_NF4;
        train(&config, methods[i]);
    }
    if (!found) bench_die("--method takes lora, qlora or 'all weights'");
}
BENCH_TABLE(step, finetune, finetune)
