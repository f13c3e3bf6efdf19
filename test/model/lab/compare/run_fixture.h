/* Shared by the tests of ./compare: synthetic run directories with known results. */
#pragma once

#include <criterion/criterion.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "data/util/random.h"
#include "model/lab/compare/runs.h"
#include "test/scratch.h"

/* Each field's comment begins with the default that 0 or NULL selects, if there is one. */
struct run_recipe {
    const char *name;      /* "run"; also the directory */
    const char *precision; /* "fp32" */
    int seed;              /* also the seed of the noise, so that runs of a seed are paired */
    int steps, planned;    /* 100; planned: steps */
    double bias;           /* % added to the losses */
    double bias_from;      /* first step with bias; earlier steps have early_bias */
    double early_bias;
    double shaken; /* standard deviation of noise added to each loss, in %; validations: a tenth */
    double norm_factor; /* 1 */
    double norm_shaken; /* relative noise of gradient norms */
    int skipped_from, skipped_count;
    int lost_from, lost_count;         /* steps whose loss is null */
    int zeros_of_four;                 /* number of steps in four with a gradient norm of 0 */
    int no_norm_from, no_norm_count;   /* steps whose gradient norm is null, though not skipped */
    int eval_every;                    /* 0: no validation */
    double validation_bias;            /* %, in addition to bias */
    double scale;                      /* 1; loss scale */
    double tokens_per_s, memory_bytes; /* 1000; 1e6 */
    double lr;                         /* 0.001; in the config */
    const char *more;                  /* ", \"key\": value ..." for the config */
};

/* Noise of mean 0 and variance 1. */
static inline double fixture_noise(int seed, int stream, int step) {
    uint64_t bits = random_bits((uint64_t)seed + 77, (uint64_t)stream, (uint64_t)step);
    return ((double)(bits >> 11) / (double)(1ULL << 53) - 0.5) * sqrt(12);
}

static inline double fixture_loss(int seed, int step) {
    return 2 + 3 * exp(-step / 30.0) + 0.05 * fixture_noise(seed, 0, step) + 0.01 * seed;
}

static inline double fixture_norm(int seed, int step) {
    return 1 + 0.4 * fixture_noise(seed, 1, step);
}

static inline void fixture_config(FILE *file, const struct run_recipe *r) {
    fprintf(file,
            "{\"name\": \"%s\", \"precision\": \"%s\", \"seed\": %d, \"run_dir\": \"%s\",\n"
            " \"train\": {\"steps\": %d, \"micro_batch_size\": 2},\n"
            " \"optimizer\": {\"lr\": %g, \"warmup_steps\": 4}%s}\n",
            r->name, r->precision ? r->precision : "fp32", r->seed, r->name,
            r->planned ? r->planned : r->steps, r->lr ? r->lr : 0.001, r->more ? r->more : "");
}

static inline void fixture_number(FILE *file, const char *key, double value) {
    if (isfinite(value)) fprintf(file, ", \"%s\": %.12g", key, value);
    else fprintf(file, ", \"%s\": null", key);
}

static inline void fixture_step(FILE *file, const struct run_recipe *r, int step) {
    bool skipped = step >= r->skipped_from && step < r->skipped_from + r->skipped_count;
    bool lost = step >= r->lost_from && step < r->lost_from + r->lost_count;
    double bias = step >= r->bias_from ? r->bias : r->early_bias,
           factor = r->norm_factor ? r->norm_factor : 1;
    double loss = fixture_loss(r->seed, step) *
                  (1 + (bias + r->shaken * fixture_noise(r->seed, 5, step)) / 100);
    double norm =
        fixture_norm(r->seed, step) * factor + r->norm_shaken * fixture_noise(r->seed, 6, step);
    if (step % 4 < r->zeros_of_four) norm = 0;
    if (step >= r->no_norm_from && step < r->no_norm_from + r->no_norm_count) norm = NAN;
    fprintf(file, "{\"step\": %d, \"tokens\": %d", step, step * 64);
    fixture_number(file, "loss", lost ? NAN : loss);
    fixture_number(file, "lr", 0.001);
    fixture_number(file, "grad_norm", skipped ? NAN : norm);
    fixture_number(file, "loss_scale", r->scale ? r->scale : 1);
    fprintf(file, ", \"skipped\": %s", skipped ? "true" : "false");
    fixture_number(file, "step_ms", 2);
    fixture_number(file, "tokens_per_s", r->tokens_per_s ? r->tokens_per_s : 1000);
    fixture_number(file, "memory_bytes", r->memory_bytes ? r->memory_bytes : 1e6);
    fputs("}\n", file);
    if (r->eval_every && step % r->eval_every == 0) {
        fprintf(file, "{\"step\": %d", step);
        fixture_number(
            file, "val_loss",
            (2 + 3 * exp(-step / 30.0) + 0.01 * r->seed) * (1 + r->bias / 100) *
                (1 +
                 (r->validation_bias + 0.1 * r->shaken * fixture_noise(r->seed, 7, step)) / 100));
        fputs("}\n", file);
    }
}

static inline FILE *open_in_folder(const char *name, const char *mode) {
    FILE *file = fopen(in_folder("%s", name), mode);
    cr_assert_not_null(file, "%s", name);
    return file;
}

static inline void put_text(const char *name, const char *text) {
    FILE *file = open_in_folder(name, "w");
    fputs(text, file);
    cr_assert_eq(fclose(file), 0);
}

/* Writes the directory. Returns its path, as in_folder does. */
static inline const char *make_run(struct run_recipe r) {
    char name[300];
    if (!r.name) r.name = "run";
    if (!r.steps) r.steps = 100;
    cr_assert_eq(directory_create(in_folder("%s", r.name), &error), 0, "%s", error.text);
    snprintf(name, sizeof name, "%s/config.json", r.name);
    FILE *config = open_in_folder(name, "w");
    fixture_config(config, &r);
    cr_assert_eq(fclose(config), 0);
    snprintf(name, sizeof name, "%s/metrics.jsonl", r.name);
    FILE *metrics = open_in_folder(name, "w");
    for (int step = 1; step <= r.steps; step++) fixture_step(metrics, &r, step);
    cr_assert_eq(fclose(metrics), 0);
    return in_folder("%s", r.name);
}

static inline struct run_record read_run(const char *path) {
    struct run_record run;
    cr_assert_eq(run_record_read(&run, path, &error), 0, "%s", error.text);
    return run;
}

static inline struct run_record made(struct run_recipe recipe) {
    return read_run(make_run(recipe));
}

static inline void expect_close(double found, double expected, double tolerance, const char *what) {
    cr_expect(fabs(found - expected) <= tolerance, "%s: %.9g, expected %.9g", what, found,
              expected);
}

static inline void expect_said(const char *part) {
    cr_expect_not_null(strstr(error.text, part), "\"%s\" is not in: %s", part, error.text);
}
