#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/device.h"
#include "test/kernels/check.h"

static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
static const int64_t counts[] = {1, 13, 512, 513, 20011};

struct shape {
    int64_t count;
    enum dtype a, b, out;
};

/* All pairs of dtypes and all lengths, but not every combination of both. */
static void each_shape(void (*body)(struct check *c, const void *given)) {
    int n = 0;
    for (int i = 0; i < 27; i++) {
        struct shape s = {counts[n++ % 5], dtypes[i % 3], dtypes[i / 3 % 3], dtypes[i / 9]};
        check_everywhere(body, &s);
    }
}

/* One rounding and nothing else: exact. Includes values that overflow fp16 and subnormals. */
static void cast(struct check *c, const void *given) {
    const struct shape *s = given;
    struct tensor wide = check_normal(c, DTYPE_F32, s->count, 0, 1.0);
    double *values = check_read(c, &wide);
    for (int64_t i = 0; i < s->count; i++) values[i] = ldexp(values[i], (int)(i % 50) - 30);
    struct tensor in = check_tensor(c, CHECK_READ, s->a, s->count, 0, values);
    struct tensor out = check_output(c, s->out, s->count, 0);
    CHECK_OP(c, cast, .out = &out, .in = &in);
    if (!c->verify) return;
    double *expected = check_read(c, &in);
    for (int64_t i = 0; i < s->count; i++) expected[i] = check_round(expected[i], s->out);
    check_equal(c, "cast", &out, expected);
}

static void cast_to_codes(struct check *c, const void *given) {
    struct tensor in = check_normal(c, DTYPE_F32, 16, 0, 1), out = in;
    out.dtype = DTYPE_E4M3;
    (void)given;
    OP(&c->be, cast, .out = &out, .in = &in);
}

/* On every device: quantize and fake_quantize write codes. */
Test(cast, codes_are_refused) {
    int status;
    /* A process that has used a GPU, as one of many tests may have, cannot use it in a child. */
    if (test_device() == DEVICE_CUDA && !test_emulated()) return;
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        check_everywhere(cast_to_codes, NULL);
        _exit(0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "status %d", status);
}

Test(cast, all_dtypes) {
    each_shape(cast);
}

/* Source and target at odd offsets. */
static void cast_range(struct check *c, const void *given) {
    const struct shape *s = given;
    struct tensor in_all = check_normal(c, s->a, s->count + 1, 0, 1.0);
    struct tensor out_all = check_output(c, s->out, s->count + 3, 0);
    struct tensor in = tensor_range(&in_all, 1, s->count);
    struct tensor out = tensor_range(&out_all, 3, s->count);
    CHECK_OP(c, cast, .out = &out, .in = &in);
    if (!c->verify) return;
    double *expected = check_read(c, &in), *around = check_read(c, &out_all);
    for (int64_t i = 0; i < s->count; i++) expected[i] = check_round(expected[i], s->out);
    check_equal(c, "cast", &out, expected);
    for (int i = 0; i < 3; i++) cr_assert(isnan(around[i]), "wrote before the start");
}

Test(cast, odd_places) {
    check_everywhere(cast_range, &(const struct shape){9001, DTYPE_F32, 0, DTYPE_BF16});
    check_everywhere(cast_range, &(const struct shape){9001, DTYPE_F16, 0, DTYPE_F32});
    check_everywhere(cast_range, &(const struct shape){9001, DTYPE_BF16, 0, DTYPE_BF16});
}

static void clear(struct check *c, const void *given) {
    const int64_t *bytes = given;
    char *noise = (char *)check_doubles(c, *bytes);
    memset(noise, 0x5a, (size_t)*bytes);
    void *memory = check_memory(c, CHECK_WRITE, noise, (size_t)*bytes);
    CHECK_OP(c, clear, .data = memory, .bytes = (size_t)*bytes);
    backend_download(&c->be, noise, memory, (size_t)*bytes);
    for (int64_t i = 0; i < *bytes; i++) cr_assert_eq(noise[i], 0, "byte %ld", (long)i);
}

Test(clear, any_length) {
    static const int64_t lengths[] = {0, 1, 2, 255, 65536, 65537, 300001};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        check_everywhere(clear, &lengths[i]);
}

static void loss_sum(struct check *c, const void *given) {
    const int64_t *count = given;
    const double start = 1.25, weight = 1.0f / 77;
    struct tensor total = check_tensor(c, CHECK_WRITE, DTYPE_F32, 1, 0, &start);
    struct tensor losses = check_normal(c, DTYPE_F32, *count, 0, 5.0);
    const struct step_inputs inputs = {.loss_weight = (float)weight};
    const struct step_inputs *place = check_memory(c, CHECK_READ, &inputs, sizeof inputs);
    CHECK_OP(c, loss_sum, .total = total.data, .losses = losses.data, .count = *count,
             .inputs = place);
    if (!c->verify) return;
    double *x = check_read(c, &losses), expected = start, size = start;
    for (int64_t i = 0; i < *count; i++) {
        expected += weight * x[i];
        size += weight * fabs(x[i]);
    }
    check_close(c, "loss_sum", &total, &expected, &size);
}

Test(loss_sum, any_length) {
    for (int i = 0; i < 5; i++) check_everywhere(loss_sum, &counts[i]);
}
