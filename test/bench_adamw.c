/* make bench-adamw: the update of GPT-2 124M's parameters with each form of its arrays, in turns,
 * and how fast a plain copy of memory is in the same run.
 *
 *   build/fast/bench_adamw [--count 124439808] [--rounds 9]
 *
 * Medians. Bytes are those read and written for each parameter, GB/s with them. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/base/statistics.h"
#include "kernels/backend_open.h"

enum { ROUNDS_MAX = 99, FORMS = 7 };

struct form {
    const char *name;
    enum dtype gradients, moments;
    bool copy, split;
};

static const struct form forms[FORMS] = {
    {"fp32", DTYPE_F32, DTYPE_F32, false, false},
    {"bf16 copy", DTYPE_F32, DTYPE_F32, true, false},
    {"split", DTYPE_F32, DTYPE_F32, false, true},
    {"split, bf16 moments", DTYPE_F32, DTYPE_BF16, false, true},
    {"split, bf16 gradients", DTYPE_BF16, DTYPE_F32, false, true},
    {"bf16 copy, bf16 gradients and moments", DTYPE_BF16, DTYPE_BF16, true, false},
    {"split, bf16 gradients and moments", DTYPE_BF16, DTYPE_BF16, false, true},
};

static void die(const char *error) {
    fprintf(stderr, "bench_adamw: %s\n", error);
    exit(1);
}

/* Gradients are read; all else is read and written, but a copy only written. */
static int64_t bytes_of(const struct form *form) {
    size_t moments = 2 * dtype_bytes(form->moments);
    return (int64_t)(dtype_bytes(form->gradients) + 2 * (4 + moments) + (form->copy ? 2 : 0));
}

/* Memory of the largest form, which all use: their values are the same small number throughout. */
struct arrays {
    void *master, *moment1, *moment2, *copy, *gradients;
};

static struct tensor flat(void *data, enum dtype dtype, int64_t count) {
    return (struct tensor){data, dtype, 1, {count}};
}

static double update_s(struct backend *be, const struct form *form, const struct arrays *a,
                       const struct step_state *state, int64_t count) {
    struct tensor master = flat(a->master, form->split ? DTYPE_BF16 : DTYPE_F32, count);
    struct tensor moment1 = flat(a->moment1, form->moments, count);
    struct tensor moment2 = flat(a->moment2, form->moments, count);
    struct tensor copy = flat(a->copy, DTYPE_BF16, count);
    struct tensor gradients = flat(a->gradients, form->gradients, count);
    double begin = omp_get_wtime();
    OP(be, adamw, .master = &master, .remainder = form->split ? a->copy : NULL, .moment1 = &moment1,
       .moment2 = &moment2, .copy = form->copy ? &copy : NULL, .gradients = &gradients,
       .state = state, .key = {1, 2}, .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8,
       .weight_decay = 0.1);
    return omp_get_wtime() - begin;
}

static double copy_s(struct backend *be, const struct arrays *a, int64_t count) {
    struct tensor to = flat(a->moment1, DTYPE_F32, count), from = flat(a->master, DTYPE_F32, count);
    double begin = omp_get_wtime();
    OP(be, cast, .out = &to, .in = &from);
    return omp_get_wtime() - begin;
}

static void *filled(struct backend *be, size_t bytes) {
    void *memory = backend_allocate(be, bytes);
    if (!memory) die("out of memory");
    OP(be, clear, .data = memory, .bytes = bytes); /* by the threads that will use it */
    return memory;
}

static int64_t number_of(const char *text) {
    char *end;
    long long value = text ? strtoll(text, &end, 10) : 0;
    if (value < 1 || *end) die("usage: bench_adamw [--count PARAMETERS] [--rounds N]");
    return value;
}

int main(int argc, char **argv) {
    int64_t count = 124439808, rounds = 9;
    for (int i = 1; i < argc; i += 2) {
        int64_t value = number_of(argv[i + 1]);
        if (strcmp(argv[i], "--count") == 0) count = value;
        else if (strcmp(argv[i], "--rounds") == 0 && value <= ROUNDS_MAX) rounds = value;
        else die("usage: bench_adamw [--count PARAMETERS] [--rounds N]");
    }
    struct backend be;
    struct error error = {0};
    if (backend_open(&be, &(const struct backend_options){DEVICE_CPU, .threads = 0}, &error))
        die(error.text);
    size_t bytes = (size_t)count * sizeof(float);
    struct arrays arrays = {filled(&be, bytes), filled(&be, bytes), filled(&be, bytes),
                            filled(&be, bytes / 2), filled(&be, bytes)};
    struct step_state state = {.loss_scale = 1, .clip_factor = 1};
    double times[FORMS][ROUNDS_MAX], copies[ROUNDS_MAX];
    for (int64_t round = -1; round < rounds; round++) {
        int64_t at = round < 0 ? 0 : round;
        for (int i = 0; i < FORMS; i++)
            times[i][at] = update_s(&be, &forms[i], &arrays, &state, count);
        copies[at] = copy_s(&be, &arrays, count);
    }
    printf("AdamW of %lld parameters on %s, %d threads, medians of %d\n", (long long)count,
           be.device.description, be.device.threads, (int)rounds);
    double unit = median_of(times[1], (int)rounds), plain = median_of(copies, (int)rounds);
    printf("%-38s %9s %6s %6s %9s\n", "", "ms", "bytes", "GB/s", "of a copy");
    for (int i = 0; i < FORMS; i++) {
        double s = median_of(times[i], (int)rounds), moved = (double)(bytes_of(&forms[i]) * count);
        printf("%-38s %9.1f %6lld %6.1f %9.2f\n", forms[i].name, 1e3 * s,
               (long long)bytes_of(&forms[i]), 1e-9 * moved / s, s / unit);
    }
    printf("%-38s %9.1f %6d %6.1f\n", "copying fp32", 1e3 * plain, 8, 8e-9 * (double)count / plain);
    return 0;
}
