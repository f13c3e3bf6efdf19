/* Speed of a training step on a GPU: GPT-2 124M in each precision, each operation, each ceiling.
 *
 *   build/fast/gpu_bench [--json FILE] [--batch N] [--seq N] [--layers N] [--width N] [--heads N]
 *                        [--precision P] [--seconds S] [--steps-only 1] [--attention-only 1]
 *                        [--kernels-only 1] [--autotune 1] [--graphs 0] [--wgmma 0] [--tiny 1]
 *
 * Ceilings come first, in the same run: matrix products, and copying memory. Model FLOPs are
 * 6 N + 6 L C T a token (N all parameters, the causal half of attention), so that utilization says
 * which part of the time would remain if only the products were computed, at their best speed.
 * All figures are medians. */
#include "test/gpu_bench.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/error.h"
#include "data/util/random.h"
#include "kernels/open/backend_open.h"
#include "model/cli/report.h"
#include "model/config/config_keys.h"
#include "model/optimize/trainer.h"
#include "test/gpu_clock.h"

enum { ROUNDS = 5, PART_STEPS = 3, WARM_UP = 2, TOKENS = 1 << 20 };

const char *const bench_precision_names[] = {"fp32", "tf32", "fp16", "bf16", "fp8"};

/* ---- shared by both halves */

bool bench_wants(const struct bench *bench, enum bench_precision precision) {
    return !bench->only || strcmp(bench->only, bench_precision_names[precision]) == 0;
}

void bench_json_begin(struct bench *bench, const char *name) {
    if (bench->json) fprintf(bench->json, ",\n\"%s\": [\n", name);
}

void bench_json_line(struct bench *bench, const char *format, ...) {
    if (!bench->json) return;
    va_list arguments;
    va_start(arguments, format);
    vfprintf(bench->json, format, arguments);
    va_end(arguments);
    fprintf(bench->json, ",\n");
}

/* JSON allows no comma before the end of an array, so an empty object ends it. */
void bench_json_end(struct bench *bench) {
    if (!bench->json) return;
    fprintf(bench->json, "{}]");
    fflush(bench->json);
}

void bench_failed(struct bench *bench, const char *what, const char *why) {
    printf("  %s: failed: %s\n", what, why);
    bench->failures++;
}

bool bench_open(struct bench *bench, struct backend *be, bool tf32) {
    struct error error;
    struct backend_options options = {DEVICE_CUDA, .tf32 = tf32, .graphs = !bench->one_by_one,
                                      .without_wgmma = bench->without_wgmma,
                                      .autotune = bench->autotune ? AUTOTUNE_ON : AUTOTUNE_OFF};
    if (backend_open(be, &options, &error) == 0) return true;
    bench_failed(bench, "opening the GPU", error.text);
    return false;
}

/* ---- time of a step by operation, with a mark before and after each */

struct clock {
    struct observer observer; /* first member: a pointer to it is cast to the clock */
    struct backend *be;
    int used;                        /* pairs of marks */
    enum operation_id of[GPU_MARKS]; /* pair -> operation */
    int product[GPU_MARKS];          /* pair -> index in products, or -1 */
    double seconds[OPERATION_IDS];
    struct bench_products *products;
};

static void collect(struct clock *clock) {
    for (int i = 0; i < clock->used; i++) {
        double seconds = gpu_seconds(clock->be, 2 * i, 2 * i + 1);
        clock->seconds[clock->of[i]] += seconds;
        if (clock->product[i] < 0) continue;
        clock->products->of[clock->product[i]].seconds += seconds / PART_STEPS;
        clock->products->of[clock->product[i]].calls += 1.0 / PART_STEPS;
    }
    clock->used = 0;
}

static void mark_begin(struct observer *observer, enum operation_id id, const void *args) {
    struct clock *clock = (struct clock *)observer;
    if (2 * clock->used + 2 > GPU_MARKS) collect(clock);
    clock->of[clock->used] = id;
    clock->product[clock->used] = id == ID_matmul ? bench_products_find(clock->products, args) : -1;
    gpu_mark(clock->be, 2 * clock->used);
}

static void mark_end(struct observer *observer, enum operation_id id, const void *args) {
    struct clock *clock = (struct clock *)observer;
    (void)id;
    (void)args;
    gpu_mark(clock->be, 2 * clock->used++ + 1);
}

/* ---- training */

struct rig {
    struct backend be;
    struct config config;
    struct trainer trainer;
    struct tokens tokens;
    struct loader loader;
    size_t measured_bytes; /* device memory taken from opening to the first steps */
    struct error error;
};

static void make_config(struct config *config, const struct bench *bench,
                        enum bench_precision precision) {
    static const enum config_precision values[] = {CONFIG_PRECISION_FP32, CONFIG_PRECISION_FP32,
                                                   CONFIG_PRECISION_FP16, CONFIG_PRECISION_BF16,
                                                   CONFIG_PRECISION_FP8};
    config_defaults(config);
    config->precision = values[precision];
    config->tf32 = precision == BENCH_TF32;
    config->model.n_layer = bench->layers;
    config->model.n_head = bench->heads;
    config->model.n_embd = bench->width;
    config->model.n_positions = bench->seq;
    config->model.vocab_size = bench->vocabulary;
    config->data.seq_len = bench->seq;
    config->train.micro_batch_size = bench->batch;
    config->train.grad_accum_steps = 1;
    config->loss_scale.init_scale = 1024;
}

static int open_data(struct rig *rig) {
    int vocabulary = (int)rig->config.model.vocab_size;
    uint64_t needed = (uint64_t)rig->config.data.seq_len * 4 + TOKENS;
    int32_t *text = malloc(needed * sizeof *text); /* tokens_close frees it */
    if (!text) return fail(&rig->error, "out of memory");
    for (uint64_t i = 0; i < needed; i++)
        text[i] = (int32_t)(random_bits(1, 1, i) % (uint64_t)vocabulary);
    struct loader_options options = {.seq_len = (int)rig->config.data.seq_len,
                                     .seed = 1,
                                     .shuffle = true,
                                     .vocab_size = vocabulary};
    if (tokens_from_memory(&rig->tokens, text, needed, "random tokens", &rig->error)) return -1;
    return loader_open(&rig->loader, &rig->tokens, &options, &rig->error);
}

/* Queues as many steps as possible, so that the GPU never waits for the host. */
static int steps(struct rig *rig, int count) {
    struct step_report report;
    for (int begun = 0, ended = 0; ended < count;) {
        bool begin = begun < count && begun - ended < BACKEND_SLOTS;
        if (begin ? trainer_begin_step(&rig->trainer, &rig->loader, &rig->error)
                  : trainer_end_step(&rig->trainer, &report, &rig->error))
            return -1;
        if (begin) begun++;
        else ended++;
    }
    gpu_wait(&rig->be);
    return rig->be.failure.text[0] ? fail(&rig->error, "%s", rig->be.failure.text) : 0;
}

/* The first steps are not timed: they load kernels. */
static int open_training(struct rig *rig) {
    struct precision precision;
    if (open_data(rig) || precision_resolve(&precision, NULL, &rig->config, &rig->be, &rig->error))
        return -1;
    size_t before = backend_available(&rig->be);
    if (trainer_open(&rig->trainer, &rig->config, &precision, &rig->be, TRAINER_INITIALIZED,
                     &rig->error) ||
        steps(rig, WARM_UP))
        return -1;
    size_t after = backend_available(&rig->be);
    rig->measured_bytes = before > after ? before - after : 0;
    return 0;
}

/* Prints the matmuls that do not run as they were asked for: their figures are of another form. */
static void print_fallbacks(const struct backend *be) {
    const char *line;
    for (int i = 0; (line = backend_fallback(be, i)); i++) printf("  fallback: %s\n", line);
}

static void close_rig(struct rig *rig) {
    gpu_clock_close();
    trainer_close(&rig->trainer);
    loader_close(&rig->loader);
    tokens_close(&rig->tokens);
    backend_close(&rig->be);
}

/* Returns the seconds of a step: the median over rounds of several steps without waits in
 * between. */
static int time_steps(struct rig *rig, const struct bench *bench, double *seconds) {
    double rounds[ROUNDS], start = progress_clock();
    if (steps(rig, 1)) return -1;
    double once = progress_clock() - start, wanted = 20 * bench->seconds / ROUNDS;
    int count = bench->tiny || once > wanted ? 1 : (int)(wanted / once);
    for (int i = 0; i < ROUNDS; i++) {
        start = progress_clock();
        if (steps(rig, count)) return -1;
        rounds[i] = (progress_clock() - start) / count;
    }
    *seconds = median_of(rounds, ROUNDS);
    return 0;
}

static int time_parts(struct rig *rig, double parts[OPERATION_IDS],
                      struct bench_products *products) {
    static struct clock clock; /* too large for the stack */
    memset(&clock, 0, sizeof clock);
    clock.observer = (struct observer){mark_begin, mark_end};
    clock.be = &rig->be;
    clock.products = products;
    backend_observe(&rig->be, &clock.observer);
    int failed = steps(rig, PART_STEPS);
    backend_observe(&rig->be, NULL);
    if (failed) return -1;
    collect(&clock);
    for (int i = 0; i < OPERATION_IDS; i++) parts[i] = clock.seconds[i] / PART_STEPS;
    return 0;
}

/* Options of a precision. */
struct figures {
    double step, parts[OPERATION_IDS]; /* seconds */
    double plan, measured;             /* bytes */
    double tokens_per_step, flops_per_token;
    struct bench_products products;
};

static int measure(struct bench *bench, enum bench_precision precision, struct figures *figures,
                   struct error *error) {
    struct rig *rig = calloc(1, sizeof *rig);
    if (!rig) return fail(error, "out of memory");
    make_config(&rig->config, bench, precision);
    if (!bench_open(bench, &rig->be, rig->config.tf32)) {
        free(rig);
        return fail(error, "no GPU");
    }
    int failed = open_training(rig) || time_steps(rig, bench, &figures->step) ||
                 time_parts(rig, figures->parts, &figures->products);
    if (failed) fail(error, "%s", rig->error.text);
    else bench_products_alone(bench, &rig->be, &figures->products);
    print_fallbacks(&rig->be);
    const struct model *model = &rig->trainer.model;
    const struct model_shape *s = &model->shape;
    figures->plan = (double)memory_total(&model->memory);
    figures->measured = (double)rig->measured_bytes;
    figures->tokens_per_step = (double)(bench->batch * bench->seq);
    if (!failed)
        figures->flops_per_token = 6.0 * (double)shape_parameter_count(&model->shape) +
                                   6.0 * (double)(s->n_layer * s->n_embd * s->sequence_length);
    close_rig(rig);
    free(rig);
    return failed ? -1 : 0;
}

static void print_figures(struct bench *bench, enum bench_precision precision,
                          const struct figures *f) {
    const char *name = bench_precision_names[precision];
    double rate = bench->product_rate[precision], speed = f->tokens_per_step / f->step;
    double mfu = rate > 0 ? f->flops_per_token * speed / rate : 0;
    printf("  %-4s %10.0f tokens/s %9.2f ms/step  MFU %5.1f %%  %.2f GiB (plan %.2f)\n", name,
           speed, 1e3 * f->step, 100 * mfu, f->measured / 0x1p30, f->plan / 0x1p30);
    bench_json_line(bench,
                    "{\"precision\": \"%s\", \"batch\": %lld, \"tokens_per_s\": %.1f, "
                    "\"ms_per_step\": %.4f, \"mfu\": %.4f, \"flops_per_token\": %.0f, "
                    "\"measured_bytes\": %.0f, \"plan_bytes\": %.0f}",
                    name, (long long)bench->batch, speed, 1e3 * f->step, mfu, f->flops_per_token,
                    f->measured, f->plan);
    fflush(stdout);
}

static void print_parts(struct bench *bench, const struct figures all[], const bool done[]) {
    printf("%-30s", "Step by operation, ms");
    for (int p = 0; p < BENCH_PRECISIONS; p++) printf(" %9s", bench_precision_names[p]);
    printf("\n");
    bench_json_begin(bench, "parts");
    for (int id = 0; id <= OPERATION_IDS; id++) {
        double any = id == OPERATION_IDS;
        for (int p = 0; p < BENCH_PRECISIONS && id < OPERATION_IDS; p++) any += all[p].parts[id];
        if (any == 0) continue; /* not part of this model's step */
        const char *name =
            id < OPERATION_IDS ? operation_name((enum operation_id)id) : "between operations";
        printf("  %-28s", name);
        for (int p = 0; p < BENCH_PRECISIONS; p++) {
            double seconds = all[p].step;
            for (int i = 0; i < OPERATION_IDS; i++) seconds -= all[p].parts[i];
            if (id < OPERATION_IDS) seconds = all[p].parts[id];
            if (!done[p]) {
                printf(" %9s", "-");
                continue;
            }
            printf(" %9.3f", 1e3 * seconds);
            bench_json_line(bench, "{\"precision\": \"%s\", \"operation\": \"%s\", \"ms\": %.4f}",
                            bench_precision_names[p], name, 1e3 * seconds);
        }
        printf("\n");
    }
    bench_json_end(bench);
}

static void bench_training(struct bench *bench) {
    static struct figures all[BENCH_PRECISIONS]; /* too large for the stack */
    bool done[BENCH_PRECISIONS] = {false};
    struct error error;
    printf("Training, %lld layers of %lld, batch %lld x %lld\n", (long long)bench->layers,
           (long long)bench->width, (long long)bench->batch, (long long)bench->seq);
    bench_json_begin(bench, "training");
    for (int p = 0; p < BENCH_PRECISIONS; p++) {
        if (!bench_wants(bench, p)) continue;
        done[p] = measure(bench, p, &all[p], &error) == 0;
        if (done[p]) print_figures(bench, p, &all[p]);
        else bench_failed(bench, bench_precision_names[p], error.text);
    }
    bench_json_end(bench);
    print_parts(bench, all, done);
    bench_json_begin(bench, "products");
    for (int p = 0; p < BENCH_PRECISIONS; p++)
        if (done[p]) bench_products_print(bench, &all[p].products, p);
    bench_json_end(bench);
}

static void usage(void) {
    fprintf(stderr, "usage: gpu_bench [--json FILE] [--batch N] [--seq N] [--layers N] "
                    "[--width N] [--heads N]\n"
                    "                 [--precision P] [--seconds S] [--steps-only 1] "
                    "[--attention-only 1]\n"
                    "                 [--kernels-only 1] [--autotune 1] [--graphs 0] [--wgmma 0] "
                    "[--tiny 1]\n");
    exit(2);
}

static void read_options(struct bench *bench, int argc, char **argv) {
    for (int i = 1; i < argc; i += 2) {
        const char *key = argv[i], *value = argv[i + 1];
        if (!value) usage();
        if (strcmp(key, "--json") == 0) bench->json = fopen(value, "w");
        else if (strcmp(key, "--batch") == 0) bench->batch = atoi(value);
        else if (strcmp(key, "--seq") == 0) bench->seq = atoi(value);
        else if (strcmp(key, "--layers") == 0) bench->layers = atoi(value);
        else if (strcmp(key, "--width") == 0) bench->width = atoi(value);
        else if (strcmp(key, "--heads") == 0) bench->heads = atoi(value);
        else if (strcmp(key, "--seconds") == 0) bench->seconds = atof(value);
        else if (strcmp(key, "--precision") == 0) bench->only = value;
        else if (strcmp(key, "--steps-only") == 0) bench->steps_only = atoi(value);
        else if (strcmp(key, "--attention-only") == 0) bench->attention_only = atoi(value);
        else if (strcmp(key, "--kernels-only") == 0) bench->kernels_only = atoi(value);
        else if (strcmp(key, "--autotune") == 0) bench->autotune = atoi(value);
        else if (strcmp(key, "--graphs") == 0) bench->one_by_one = !atoi(value);
        else if (strcmp(key, "--wgmma") == 0) bench->without_wgmma = !atoi(value);
        else if (strcmp(key, "--tiny") == 0) bench->tiny = atoi(value);
        else usage();
        if (strcmp(key, "--json") == 0 && !bench->json) {
            perror(value);
            exit(1);
        }
    }
    bool known = !bench->only;
    for (int p = 0; p < BENCH_PRECISIONS; p++)
        known = known || strcmp(bench->only, bench_precision_names[p]) == 0;
    if (!known || bench->batch < 1 || bench->seq < 8 || bench->layers < 1 || bench->heads < 1 ||
        bench->width < 1 || bench->width % bench->heads || bench->seconds <= 0)
        usage();
}

int main(int argc, char **argv) {
    struct bench bench = {.batch = 32,
                          .seq = 1024,
                          .layers = 12,
                          .heads = 12,
                          .width = 768,
                          .vocabulary = 50257,
                          .seconds = 0.1};
    struct backend be;
    read_options(&bench, argc, argv);
    if (bench.tiny) {
        bench.batch = 2, bench.seq = 16, bench.layers = 1, bench.heads = 2, bench.width = 32;
        bench.vocabulary = 257;
        printf("A rehearsal with tiny shapes: no figure below means anything\n");
    }
    if (!bench_open(&bench, &be, false)) return 1;
    printf("%s\n", be.device.description);
    if (!be.device.native_8_bit)
        printf("Without 8-bit tensor cores: fp8 multiplies the same numbers in bf16\n");
    if (bench.json)
        fprintf(bench.json, "{\"device\": \"%s\", \"rehearsal\": %s, \"native_8_bit\": %s",
                be.device.description, bench.tiny ? "true" : "false",
                be.device.native_8_bit ? "true" : "false");
    backend_close(&be);
    bool all = !bench.steps_only && !bench.attention_only && !bench.kernels_only;
    if (all || bench.kernels_only) bench_ceilings(&bench);
    if (all || bench.steps_only) bench_training(&bench);
    if (all || bench.attention_only) bench_attention(&bench);
    if (all || bench.kernels_only) bench_kernels(&bench);
    if (bench.json) {
        fprintf(bench.json, ",\n\"failures\": %d}\n", bench.failures);
        if (fclose(bench.json) != 0) bench_failed(&bench, "writing the JSON file", "disk full?");
    }
    if (bench.failures) printf("%d measurements failed\n", bench.failures);
    return bench.failures > 0;
}
