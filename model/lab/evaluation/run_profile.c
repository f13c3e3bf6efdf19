#include "model/lab/evaluation/run_profile.h"

#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/program.h"
#include "data/util/statistics.h"
#include "data/util/table.h"
#include "model/cli/report.h"
#include "model/pass/linear.h"
#include "model/session/setup.h"

enum { REPETITIONS_DEFAULT = 5 };

/* Recorded arguments of a matmul without bias and epilogue, with copies of its tensors, which are
 * on the caller's stack. */
struct recorded_matmul {
    struct matmul_args args;
    struct tensor out, a, b;
    struct tensor a_scales, b_scales; /* unset if there are none */
};

struct clock {
    struct observer observer; /* the first member, so that a pointer to it casts to this struct */
    struct trainer *trainer;
    double began;
    double seconds[OPERATION_IDS];   /* time per operation since the last clear */
    struct recorded_matmul *matmuls; /* stb_ds array, filled by recording */
};

/* Waits for all queued operations: a download returns only after they are done. */
static void synchronize(const struct trainer *trainer) {
    float ignored;
    backend_download(trainer->be, &ignored, &trainer->optimizer.state->loss, sizeof ignored);
}

static void start_clock(struct observer *observer, enum operation_id id, const void *args) {
    (void)id;
    (void)args;
    ((struct clock *)observer)->began = progress_clock();
}

static void stop_clock(struct observer *observer, enum operation_id id, const void *args) {
    struct clock *clock = (struct clock *)observer;
    (void)args;
    synchronize(clock->trainer);
    clock->seconds[id] += progress_clock() - clock->began;
}

static void record(struct observer *observer, enum operation_id id, const void *all_args) {
    struct clock *clock = (struct clock *)observer;
    const struct matmul_args *args = all_args;
    if (id != ID_matmul) return;
    struct recorded_matmul matmul = {*args,
                                     *matmul_sum(args),
                                     *args->a,
                                     *args->b,
                                     args->a_scales ? *args->a_scales : (struct tensor){0},
                                     args->b_scales ? *args->b_scales : (struct tensor){0}};
    matmul.args.epilogue = MATMUL_STORE;
    matmul.args.bias = matmul.args.pre_activation = matmul.args.column_sums = NULL;
    matmul.args.track_amax = NULL;
    matmul.args.b_stored = NULL;
    matmul.args.label = NULL;
    arrput(clock->matmuls, matmul);
}

static int step(struct trainer *trainer, const struct loader *loader, struct error *error) {
    struct step_report report;
    if (trainer_begin_step(trainer, loader, error)) return -1;
    return trainer_end_step(trainer, &report, error);
}

static void replay(struct backend *be, struct recorded_matmul *matmuls) {
    for (ptrdiff_t i = 0; i < arrlen(matmuls); i++) {
        struct recorded_matmul *p = &matmuls[i];
        p->args.out = &p->out, p->args.a = &p->a, p->args.b = &p->b;
        if (p->args.a_scales) p->args.a_scales = &p->a_scales, p->args.b_scales = &p->b_scales;
        be->op->matmul(be, &p->args);
    }
}

/* Plans the replayed matmuls: without biases and epilogues they may differ from any in a step. */
static int prepare(struct backend *be, struct clock *clock, struct error *error) {
    backend_plan_begin(be);
    replay(be, clock->matmuls);
    return backend_plan_end(be, error);
}

/* Measures one round: an unmodified step, a step with each operation timed, the matmuls alone. */
static int measure(struct profile *profile, struct clock *clock, const struct loader *loader,
                   int round, double *steps, double *matmuls, double *parts, struct error *error) {
    struct trainer *trainer = clock->trainer;
    double began = progress_clock();
    if (step(trainer, loader, error)) return -1;
    steps[round] = progress_clock() - began;
    memset(clock->seconds, 0, sizeof clock->seconds);
    clock->observer = (struct observer){start_clock, stop_clock};
    backend_observe(trainer->be, &clock->observer);
    int failed = step(trainer, loader, error);
    backend_observe(trainer->be, NULL);
    if (failed) return -1;
    for (int i = 0; i < OPERATION_IDS; i++)
        parts[i * profile->repetitions + round] = clock->seconds[i];
    began = progress_clock();
    replay(trainer->be, clock->matmuls);
    synchronize(trainer);
    matmuls[round] = progress_clock() - began;
    return trainer->be->failure.text[0] ? fail(error, "%s", trainer->be->failure.text) : 0;
}

static int warm_up(struct clock *clock, const struct loader *loader, struct error *error) {
    struct backend *be = clock->trainer->be;
    clock->observer = (struct observer){.after = record};
    backend_observe(be, &clock->observer);
    int failed = step(clock->trainer, loader, error);
    backend_observe(be, NULL);
    return failed || prepare(be, clock, error) ? -1 : 0;
}

int profile_trainer(struct profile *profile, struct trainer *trainer, const struct loader *loader,
                    int repetitions, struct error *error) {
    struct clock clock = {.trainer = trainer};
    const struct config *config = trainer->config;
    size_t count = (size_t)repetitions;
    double *figures = malloc(count * (2 + OPERATION_IDS) * sizeof *figures);
    if (!figures) return fail_memory(error, "%d repetitions", repetitions);
    double *steps = figures, *matmuls = steps + count, *parts = matmuls + count;
    *profile = (struct profile){.repetitions = repetitions};
    profile->tokens = (double)batches_step_tokens(config);
    int status = warm_up(&clock, loader, error);
    for (int i = 0; status == 0 && i < repetitions; i++)
        status = measure(profile, &clock, loader, i, steps, matmuls, parts, error);
    if (status == 0) {
        profile->step = median_of(steps, repetitions);
        profile->matmuls = median_of(matmuls, repetitions);
        for (int i = 0; i < OPERATION_IDS; i++)
            profile->operations[i] = median_of(parts + (size_t)i * count, repetitions);
    }
    arrfree(clock.matmuls);
    free(figures);
    return status;
}

void profile_print(FILE *out, const struct profile *profile) {
    for (int i = 0; i < OPERATION_IDS; i++)
        if (profile->operations[i] >= 0.05e-3)
            fprintf(out, "    %-20s %9.1f ms\n", operation_name((enum operation_id)i),
                    1e3 * profile->operations[i]);
    fprintf(out, "    %-20s %9.1f ms\n    %-20s %9.1f ms\n", "step", 1e3 * profile->step,
            "matmuls alone", 1e3 * profile->matmuls);
}

static int write_profile(const struct profile *profile, const struct trainer *trainer,
                         const char *folder, struct error *error) {
    const struct backend *be = trainer->be;
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "precision", precision_name(&trainer->model.precision));
    cJSON_AddStringToObject(root, "device", be->device.description);
    JSON_NUMBERS(root, {"threads", be->device.threads});
    cJSON_AddStringToObject(root, "library", be->device.library);
    cJSON_AddStringToObject(root, "compiler", __VERSION__);
    JSON_NUMBERS(
        root, {"repetitions", profile->repetitions}, {"tokens_per_step", profile->tokens},
        {"step_ms", 1e3 * profile->step}, {"tokens_per_s", profile->tokens / profile->step},
        {"products_ms", 1e3 * profile->matmuls}, {"ratio", profile->step / profile->matmuls});
    cJSON *parts = cJSON_AddObjectToObject(root, "operations");
    for (int i = 0; i < OPERATION_IDS; i++)
        if (profile->operations[i] > 0)
            JSON_NUMBERS(parts,
                         {operation_name((enum operation_id)i), 1e3 * profile->operations[i]});
    cJSON *fallbacks = cJSON_AddArrayToObject(root, "fallbacks");
    const char *line;
    for (int i = 0; (line = backend_fallback(be, i)); i++) json_add_text(fallbacks, "%s", line);
    int status = report_write(root, folder, "profile", error);
    cJSON_Delete(root);
    return status;
}

static int profile_run(const struct config *config, struct trainer *trainer,
                       const struct loader *loader, const struct command_line *line,
                       struct error *error) {
    struct profile profile;
    int repetitions = line->repetitions > 0 ? (int)line->repetitions : REPETITIONS_DEFAULT;
    if (profile_trainer(&profile, trainer, loader, repetitions, error)) return -1;
    printf("a step of %s in %s, medians of %d:\n", config->name,
           precision_name(&trainer->model.precision), repetitions);
    profile_print(stdout, &profile);
    printf("%.0f tokens/s; the step takes %.3f times that of its matmuls alone\n",
           profile.tokens / profile.step, profile.step / profile.matmuls);
    const char *fallback;
    for (int i = 0; (fallback = backend_fallback(trainer->be, i)); i++)
        printf("fallback: %s\n", fallback);
    return line->out ? write_profile(&profile, trainer, line->out, error) : 0;
}

int run_profile(const struct config *given, const char *from, const struct command_line *line,
                struct error *error) {
    (void)from;
    struct config own = *given, *config = &own;
    struct backend be;
    struct precision precision;
    struct source text = {0};
    struct trainer trainer = {0};
    if (line->out && report_folder(line->out, error)) return EXIT_FAILED;
    if (setup_backend(&be, config, NULL, NULL, error)) return EXIT_FAILED;
    int status = precision_resolve(&precision, stderr, config, &be, error);
    if (status == 0)
        status = source_open(&text, config, config->data.train, SOURCE_TRAINING, error);
    if (status == 0) status = setup_documents(&own, &text, error);
    if (status == 0) status = setup_distillation(&own, &text, error);
    if (status == 0) status = setup_trainer(&trainer, config, &precision, &be, error);
    if (status == 0) trainer_initialize(&trainer);
    if (status == 0) status = profile_run(config, &trainer, &text.loader, line, error);
    if (trainer.config) trainer_close(&trainer);
    source_close(&text);
    backend_close(&be);
    return status ? EXIT_FAILED : EXIT_DONE;
}
