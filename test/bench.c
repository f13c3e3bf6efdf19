/* make bench: one training step of GPT-2 124M, split by operation, against its bare products.
 *
 *   build/fast/bench [--batch 4] [--seq 256] [--steps 5] [--precision fp32] ...
 *
 * For each precision the step is timed as it is, then with a clock around every operation, and the
 * matrix products of one step are replayed alone, without biases or epilogues, on the same memory.
 * All figures are medians over the same number of repetitions, taken in turns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/error.h"
#include "data/random.h"
#include "model/report.h"
#include "model/trainer.h"
#include "test/bench.h"

enum { REPETITIONS_MAX = 100 };

/* A product as it was asked for; the tensors of the arguments lived on the stack of the caller. */
struct product {
    struct tensor out, a, b;
    bool transpose_a, transpose_b, accumulate;
};

/* Operations have no place for a caller's context, and there is one benchmark at a time. */
static struct {
    const struct operations *inner;
    double seconds[OPERATION_IDS];
    struct product *products; /* stb_ds array, filled while recording */
    bool recording;
} clockwork;

static void record(const struct matmul_args *args) {
    struct product product = {*(args->gelu_in ? args->gelu_in : args->out),
                              *args->a,
                              *args->b,
                              args->transpose_a,
                              args->transpose_b,
                              args->accumulate};
    if (clockwork.recording) arrput(clockwork.products, product);
}

#define X(name)                                                                    \
    static void timed_##name(struct backend *be, const struct name##_args *args) { \
        double start = report_clock();                                             \
        clockwork.inner->name(be, args);                                           \
        clockwork.seconds[ID_##name] += report_clock() - start;                    \
    }
OPERATIONS(X)
#undef X

static void recorded_matmul(struct backend *be, const struct matmul_args *args) {
    record(args);
    timed_matmul(be, args);
}

static const struct operations timed_operations = {
#define X(name) .name = timed_##name,
    OPERATIONS(X)
#undef X
};

static void replay(struct backend *be) {
    for (ptrdiff_t i = 0; i < arrlen(clockwork.products); i++) {
        const struct product *p = &clockwork.products[i];
        OP(be, matmul, .out = &p->out, .a = &p->a, .b = &p->b, .transpose_a = p->transpose_a,
           .transpose_b = p->transpose_b, .accumulate = p->accumulate);
    }
}

static void die(const char *error) {
    fprintf(stderr, "bench: %s\n", error);
    exit(1);
}

static void step(struct trainer *trainer, const struct loader *loader) {
    char error[ERROR_MAX];
    struct step_report report;
    if (trainer_begin_step(trainer, loader, error)) die(error);
    if (trainer_end_step(trainer, &report, error)) die(error);
}

static void print_parts(const double seconds[], int repetitions) {
    for (int i = 0; i < OPERATION_IDS; i++)
        if (seconds[i] * 1e3 >= 0.05 * repetitions)
            printf("    %-20s %9.1f ms\n", operation_name(i), 1e3 * seconds[i] / repetitions);
}

static void measure(struct trainer *trainer, const struct loader *loader, int repetitions,
                    const char *precision) {
    struct backend *be = trainer->be;
    double plain[REPETITIONS_MAX], bare[REPETITIONS_MAX];
    const struct operations *run = be->op;
    struct operations recorder = timed_operations;
    recorder.matmul = recorded_matmul;
    clockwork.inner = run;
    be->op = &recorder;
    clockwork.recording = true;
    step(trainer, loader); /* also warms up */
    clockwork.recording = false;
    memset(clockwork.seconds, 0, sizeof clockwork.seconds);
    for (int i = 0; i < repetitions; i++) {
        double start = report_clock();
        be->op = run;
        step(trainer, loader);
        plain[i] = report_clock() - start;
        be->op = &timed_operations;
        step(trainer, loader);
        be->op = run;
        start = report_clock();
        replay(be);
        bare[i] = report_clock() - start;
    }
    print_parts(clockwork.seconds, repetitions);
    const struct config *config = trainer->config;
    double tokens = (double)(config->train.micro_batch_size * config->data.seq_len);
    double step_time = median(plain, repetitions), bare_time = median(bare, repetitions);
    printf("    %-20s %9.1f ms\n    %-20s %9.1f ms\n", "step", 1e3 * step_time, "bare products",
           1e3 * bare_time);
    printf("batch %lld T %lld %s tokens/s %.0f, ratio %.3f\n",
           (long long)config->train.micro_batch_size, (long long)config->data.seq_len, precision,
           tokens / step_time, step_time / bare_time);
    fflush(stdout);
    arrfree(clockwork.products);
    clockwork.products = NULL;
}

static void bench(struct config *config, const char *precision_name, int repetitions) {
    char error[ERROR_MAX] = "", note[ERROR_MAX];
    struct backend be;
    struct precision precision;
    struct trainer trainer;
    struct tokens tokens;
    struct loader loader;
    uint64_t count = 1 << 18;
    uint16_t *text = malloc(count * sizeof *text);
    for (uint64_t i = 0; i < count; i++)
        text[i] = (uint16_t)(random_bits(1, 1, i) % (uint64_t)config->model.vocab_size);
    struct loader_options options = {(int)config->data.seq_len, 1, true,
                                     (int)config->model.vocab_size};
    if (tokens_from_memory(&tokens, text, count, "random tokens", error) ||
        loader_open(&loader, &tokens, &options, error) ||
        backend_open(&be,
                     &(const struct backend_options){DEVICE_AUTO, .threads = (int)config->threads},
                     error) ||
        precision_resolve(&precision, note, config, &be, error) ||
        trainer_open(&trainer, config, &precision, &be, true, error))
        die(error);
    printf("%s, %d threads, %s\n", be.description, be.threads, precision_name);
    measure(&trainer, &loader, repetitions, precision_name);
    trainer_close(&trainer);
    backend_close(&be);
    loader_close(&loader);
    tokens_close(&tokens);
}

int main(int argc, char **argv) {
    static const char *const names[] = {"fp32", "bf16", "fp16"};
    static const enum config_precision values[] = {CONFIG_PRECISION_FP32, CONFIG_PRECISION_BF16,
                                                   CONFIG_PRECISION_FP16};
    int batch = 4, seq = 256, repetitions = 5, layers = 12;
    const char *only = NULL;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--batch") == 0) batch = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--seq") == 0) seq = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--steps") == 0) repetitions = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--layers") == 0) layers = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--precision") == 0) only = argv[i + 1];
        else die("usage: bench [--batch N] [--seq N] [--steps N] [--layers N] [--precision P]");
    }
    if (batch < 1 || seq < 1 || seq > 1024 || layers < 1 || repetitions < 1 ||
        repetitions > REPETITIONS_MAX)
        die("a number is out of range");
    for (int i = 0; i < 3; i++) {
        if (only && strcmp(only, names[i]) != 0) continue;
        struct config config;
        config_defaults(&config);
        config.precision = values[i];
        config.model.n_layer = layers;
        config.model.n_head = 12;
        config.model.n_embd = 768;
        config.model.n_positions = 1024;
        config.model.vocab_size = 50257;
        config.data.seq_len = seq;
        config.train.micro_batch_size = batch;
        config.train.grad_accum_steps = 1;
        config.loss_scale.init_scale = 1024;
        bench(&config, names[i], repetitions);
    }
    return 0;
}
