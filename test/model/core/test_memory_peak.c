/* A run takes the memory that its plan says: trainings in separate processes, with memory as
 * counted by Linux. */
#include "model/config/config_keys.h"
#include "test/model/trainer_fixture.h"

#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include "model/task/sample.h"

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

enum { LENGTH = 32, STEPS = 2 };

/* All in bytes. */
struct peak {
    size_t plan, library; /* the whole plan, and its estimate for the library */
    size_t first;         /* rise of peak resident memory in a first run */
    size_t second;        /* rise in a second run, when the library is initialized */
    bool panels;          /* the library's matmuls need their own buffers */
    bool complete;
};

/* Returns a figure of a file of /proc/self in bytes, 0 if it is not there. */
static size_t figure_of(const char *path, const char *label) {
    char line[256], format[32];
    size_t kib = 0;
    snprintf(format, sizeof format, "%s: %%zu kB", label);
    FILE *file = fopen(path, "r");
    while (file && !kib && fgets(line, sizeof line, file))
        if (sscanf(line, format, &kib) != 1) kib = 0;
    if (file) fclose(file);
    return kib * 1024;
}

static size_t peak_resident(void) {
    return figure_of("/proc/self/status", "VmHWM");
}

/* Memory of our own, counted page by page. Pages of files, such as the program's code, come and go
 * with the memory of the machine; and VmRSS sums counters of the processors, which lag by up to 32
 * pages each. */
static size_t resident(void) {
    size_t bytes = figure_of("/proc/self/smaps_rollup", "Anonymous");
    return bytes ? bytes : figure_of("/proc/self/status", "RssAnon");
}

/* Many activations and parameters with little arithmetic: narrow layers, and positions that no
 * sequence reaches. */
static void peak_config(struct config *config, enum config_precision precision,
                        enum recompute level) {
    rig_config(config, precision);
    config->model.n_layer = 6;
    config->model.n_embd = 128;
    config->model.n_positions = 81920;
    config->model.vocab_size = 256;
    config->data.seq_len = LENGTH;
    config->train.micro_batch_size = 64;
    config->train.grad_accum_steps = 1;
    config->train.recompute = level;
}

static bool sample(struct rig *rig) {
    const int32_t prompt[] = {1, 2, 3};
    struct sample_result result;
    struct sample_options options = {
        .prompt = prompt, .prompt_length = 3, .tokens = LENGTH - 3, .temperature = 1, .top_p = 1};
    return sample_tokens(&rig->trainer.model, &result, &options, &rig->error) == 0;
}

static bool take_step(struct rig *rig) {
    struct step_report report;
    return trainer_begin_step(&rig->trainer, &rig->loader, &rig->error) == 0 &&
           trainer_end_step(&rig->trainer, &report, &rig->error) == 0;
}

static bool train(struct rig *rig) {
    if (trainer_open(&rig->trainer, &rig->config, &rig->precision, &rig->be, TRAINER_INITIALIZED,
                     &rig->error))
        return false;
    for (int step = 0; step < STEPS; step++)
        if (!take_step(rig)) return false;
    return (rig->config.sample.every == 0 || sample(rig)) && rig->be.failure.text[0] == 0;
}

static void run(struct peak *peak, struct rig *rig) {
    rig_open_data(rig);
    size_t before = peak_resident();
    rig_open_backend(rig, DEVICE_CPU, 2);
    if (!train(rig)) return;
    peak->plan = memory_total(&rig->trainer.model.memory);
    peak->library = rig->trainer.model.memory.library;
    peak->panels = peak->library > (size_t)8 << 20;
    peak->first = peak_resident() - before;
    trainer_close(&rig->trainer);
    backend_release(&rig->be, rig->be.workspace);
    rig->be.workspace = NULL;
    malloc_trim(0);
    mallopt(M_MMAP_THRESHOLD, 1 << 16); /* large buffers leave no holes */
    before = resident();
    if (!train(rig)) return;
    peak->second = resident() - before;
    peak->complete = true;
}

static struct peak measure(const struct config *config) {
    struct peak peak = {0};
    int ends[2], status;
    cr_assert_eq(pipe(ends), 0);
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        struct rig rig = {.config = *config};
        run(&peak, &rig);
        _exit(write(ends[1], &peak, sizeof peak) == sizeof peak ? 0 : 1);
    }
    close(ends[1]);
    cr_expect_eq(read(ends[0], &peak, sizeof peak), sizeof peak);
    close(ends[0]);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(status == 0 && peak.complete, "the run failed");
    return peak;
}

/* A first run takes what is planned within 2 %: most of the difference is the estimate for the
 * library, whose code and buffers are a few MiB at any size. A second run finds the library
 * initialized, so it takes the rest of the plan almost to the page, except for holes that the
 * library's buffers leave in the heap. Planned but unused are the token slots of a sample and
 * the remainders of pages. staging: bytes of a matrix in fp32, which the heap may keep after
 * weights were quantized. A library with panels keeps up to 2 MiB more of them than it is estimated
 * to, for products as wide as those of the adapters (1.7 MiB at SSE4.1). */
static void check_first(const struct peak *peak, const struct config *config, const char *what,
                        size_t staging) {
    double all = (double)peak->first / (double)peak->plan - 1;
    if (peak->panels) staging += (size_t)2 << 20;
    if (peak->first > peak->plan)
        all = peak->first > peak->plan + staging ? all - (double)staging / (double)peak->plan : 0;
    cr_expect_lt(fabs(all), 0.02, "%s %s: %.2f %% off the plan of %zu MiB", what,
                 config_name_of("train.recompute", config->train.recompute), 100 * all,
                 peak->plan >> 20);
}

/* Returns the bytes in which a model keeps its tensors, which no plan counts. */
static double bookkeeping(const struct config *config) {
    return (double)config->model.n_layer *
           (2 * sizeof(struct layer_parameters) + sizeof(struct layer_activations));
}

/* panels_max: additional bytes allowed where the library has buffers for its panels. Of those that
 * a first run left, a second one uses again what its threads happen to reach. */
static void check_second(const struct peak *peak, const struct config *config, const char *what,
                         double panels_max) {
    const double beside_max = (peak->panels ? panels_max : 0x1.8p17) + bookkeeping(config);
    const double unused_max = peak->panels ? 0x1p20 : 0x1p18;
    double beside = (double)peak->second - (double)(peak->plan - peak->library);
    cr_expect_gt(peak->plan, (size_t)100 << 20, "%s: too small to be measured", what);
    cr_expect(beside < beside_max && beside > -unused_max, "%s %s: %.0f KiB beside the plan", what,
              config_name_of("train.recompute", config->train.recompute), beside / 1024);
    if (getenv("PEAKS"))
        fprintf(stderr, "%s %s: plan %zu KiB, %+.2f %%, beside it when run again %.0f KiB\n", what,
                config_name_of("train.recompute", config->train.recompute), peak->plan >> 10,
                100 * ((double)peak->first / (double)peak->plan - 1), beside / 1024);
}

static void check(const struct config *config, const char *what, size_t staging) {
    struct peak peak = measure(config);
    check_first(&peak, config, what, staging);
    check_second(&peak, config, what, 0x1p22);
}

static void check_levels(enum config_precision precision) {
    if (SANITIZED) cr_skip_test("a sanitizer has its own memory for each byte of ours");
    for (int level = 0; level <= RECOMPUTE_LAYER; level++) {
        struct config config;
        peak_config(&config, precision, (enum recompute)level);
        check(&config, config_precision_name(precision), 0);
    }
}

Test(memory_peak, fp32) {
    check_levels(CONFIG_PRECISION_FP32);
}

Test(memory_peak, bf16) {
    check_levels(CONFIG_PRECISION_BF16);
}

Test(memory_peak, fp16) {
    check_levels(CONFIG_PRECISION_FP16);
}

/* Keys and values of samples are planned in addition to the shared layer. */
Test(memory_peak, sixteen_bit_gradients_and_samples) {
    if (SANITIZED) cr_skip_test("a sanitizer has its own memory for each byte of ours");
    struct config config;
    peak_config(&config, CONFIG_PRECISION_BF16, RECOMPUTE_LAYER);
    config.gradients.dtype = CONFIG_DTYPE_LOWER;
    config.autocast.residual = CONFIG_DTYPE_LOWER;
    config.sample.every = 1;
    config.train.grad_accum_steps = 2;
    config.model.n_positions = 131072; /* more memory, because there are more matmuls */
    check(&config, "lower", 0);
}

/* A large table, in the forms that take the least memory: upper halves and remainders in bf16, a
 * temporary copy in fp16; and 16-bit moments, or with it 8-bit ones. For matmuls this wide the
 * library takes its own buffers, up to 40 MiB without AVX2, so only the rise of a second run is
 * compared; 13 MiB of those buffers stay. The smallest array that could be counted twice is a
 * 16-bit table, 32 MiB. */
Test(memory_peak, weights_and_moments_in_sixteen_bit) {
    if (SANITIZED) cr_skip_test("a sanitizer has its own memory for each byte of ours");
    for (int fp16 = 0; fp16 < 2; fp16++) {
        struct config config;
        peak_config(&config, fp16 ? CONFIG_PRECISION_FP16 : CONFIG_PRECISION_BF16, RECOMPUTE_GELU);
        config.model.n_layer = 1;
        config.model.n_embd = 256;
        config.model.vocab_size = 65536;
        config.model.n_positions = LENGTH;
        config.train.micro_batch_size = 4;
        config.gradients.dtype = CONFIG_DTYPE_LOWER;
        config.optimizer.moments = fp16 ? CONFIG_MOMENTS_INT8 : CONFIG_MOMENTS_BFLOAT16;
        config.optimizer.embeddings_8bit = true;
        config.weights.copy = fp16 ? CONFIG_COPY_CAST : CONFIG_COPY_SPLIT;
        struct peak peak = measure(&config);
        check_second(&peak, &config, "state in 16 bit", 0x1.8p24);
    }
}

/* Adapters on a frozen model, as it is and quantized. */
Test(memory_peak, adapters) {
    if (SANITIZED) cr_skip_test("a sanitizer has its own memory for each byte of ours");
    const enum config_base bases[] = {CONFIG_BASE_BFLOAT16, CONFIG_BASE_NF4};
    for (int i = 0; i < 2; i++) {
        struct config config;
        peak_config(&config, CONFIG_PRECISION_BF16, RECOMPUTE_LAYER);
        config.model.n_layer = 16;
        config.model.n_embd = 512;
        config.model.n_positions = LENGTH;
        config.adapter.type = CONFIG_ADAPTER_LORA;
        config.adapter.rank = 8;
        config.train.micro_batch_size = 32;
        config.adapter.base = bases[i];
        check(&config, config_name_of("adapter.base", bases[i]),
              i == 0 ? 0 : (size_t)4 * 512 * 512 * sizeof(float));
    }
}
