#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "test/kernels/bench.h"
#include "test/kernels/check.h"
#include "test/kernels/delta_reference.h"
#include "test/kernels/golden.h"

enum { GATES_BEFORE = 3, GATES_AFTER = 2 }; /* columns around the gates */

static const struct delta_shape shapes[] = {
    {1, 1, 1, 1, 8, 8, DTYPE_F32, false},      {1, 77, 3, 6, 24, 40, DTYPE_F32, false},
    {2, 77, 3, 6, 24, 40, DTYPE_F32, true},    {1, 77, 3, 6, 24, 40, DTYPE_BF16, true},
    {2, 130, 1, 3, 17, 5, DTYPE_F16, true},    {1, 64, 2, 2, 64, 64, DTYPE_BF16, false},
    {1, 129, 1, 1, 128, 128, DTYPE_F32, true},
};

static struct tensor normal3(struct check *c, enum check_use use, const struct delta_shape *s,
                             int64_t columns) {
    struct tensor t = use == CHECK_READ
                          ? check_normal(c, s->dtype, s->batch * s->length, columns, 1.0)
                          : check_sum(c, s->dtype, s->batch * s->length, columns);
    return check_rank3(t, s->batch, s->length, columns);
}

struct operands {
    struct tensor qkv, gates, A_log, dt_bias, dout, out, dqkv, dgates, dA_log, ddt_bias;
    const int32_t *first_keys; /* in backend memory, or NULL */
    float *states;
    struct delta_reference reference;
};

static struct operands make(struct check *c, const struct delta_shape *s) {
    const int64_t gates = GATES_BEFORE + 2 * s->value_heads + GATES_AFTER;
    const int64_t states = (int64_t)s->batch * ((s->length - 1) / DELTA_CHUNK) * s->value_heads *
                           s->key_size * s->value_size;
    struct operands o = {.qkv = normal3(c, CHECK_READ, s, delta_columns(s)),
                         .gates = normal3(c, CHECK_READ, s, gates),
                         .A_log = check_normal(c, DTYPE_F32, s->value_heads, 0, 1.0),
                         .dt_bias = check_normal(c, DTYPE_F32, s->value_heads, 0, 1.0),
                         .dout = normal3(c, CHECK_READ, s, s->value_heads * s->value_size),
                         .dqkv = normal3(c, CHECK_WRITE, s, delta_columns(s)),
                         .out = normal3(c, CHECK_WRITE, s, s->value_heads * s->value_size),
                         .dgates = normal3(c, CHECK_WRITE, s, gates),
                         .dA_log = check_sum(c, DTYPE_F32, s->value_heads, 0),
                         .ddt_bias = check_sum(c, s->dtype, s->value_heads, 0),
                         .states =
                             check_memory(c, CHECK_WRITE, NULL, (size_t)states * sizeof(float))};
    delta_reference_open(&o.reference, c, s);
    o.reference.qkv = check_read(c, &o.qkv), o.reference.dout = check_read(c, &o.dout);
    o.reference.A_log = check_read(c, &o.A_log), o.reference.dt_bias = check_read(c, &o.dt_bias);
    const double *rows = check_read(c, &o.gates);
    for (int64_t i = 0; i < (int64_t)s->batch * s->length; i++)
        memcpy(o.reference.gates + i * 2 * s->value_heads, rows + i * gates + GATES_BEFORE,
               (size_t)(2 * s->value_heads) * sizeof *rows);
    if (s->documents)
        o.first_keys = check_memory(c, CHECK_READ, o.reference.first_keys,
                                    (size_t)(s->batch * s->length) * sizeof(int32_t));
    return o;
}

#define FORWARD_ARGS(o, s)                                                               \
    .out = &(o).out, .qkv = &(o).qkv, .gates = &(o).gates, .A_log = &(o).A_log,          \
    .dt_bias = &(o).dt_bias, .first_keys = (o).first_keys, .gates_column = GATES_BEFORE, \
    .key_heads = (s)->key_heads, .value_heads = (s)->value_heads, .key_size = (s)->key_size

static void backward_op(struct check *c, const struct delta_shape *s, const struct operands *o) {
    CHECK_OP(c, delta_rule_backward, .dqkv = &o->dqkv, .dgates = &o->dgates, .dA_log = &o->dA_log,
             .ddt_bias = &o->ddt_bias, .dout = &o->dout, .states = o->states, .qkv = &o->qkv,
             .gates = &o->gates, .A_log = &o->A_log, .dt_bias = &o->dt_bias,
             .first_keys = o->first_keys, .gates_column = GATES_BEFORE, .key_heads = s->key_heads,
             .value_heads = s->value_heads, .key_size = s->key_size);
}

static void both_passes(struct check *c, const void *given) {
    const struct delta_shape *s = given;
    struct operands o = make(c, s);
    const struct delta_reference *r = &o.reference;
    double *dgates = check_read(c, &o.dgates), *dA_log = check_read(c, &o.dA_log);
    double *ddt_bias = check_read(c, &o.ddt_bias);
    CHECK_OP(c, delta_rule_forward, FORWARD_ARGS(o, s), .states = o.states);
    backward_op(c, s, &o);
    if (!c->verify) return;
    delta_reference_run(r);
    check_close(c, "delta_rule", &o.out, r->out, NULL);
    check_close(c, "delta_rule", &o.dqkv, r->dqkv, NULL);
    for (int64_t i = 0; i < (int64_t)s->batch * s->length; i++)
        memcpy(dgates + i * tensor_columns(&o.dgates) + GATES_BEFORE,
               r->dgates + i * 2 * s->value_heads, (size_t)(2 * s->value_heads) * sizeof *dgates);
    for (int h = 0; h < s->value_heads; h++)
        dA_log[h] += r->dA_log[h], ddt_bias[h] += r->ddt_bias[h];
    check_close(c, "delta_rule", &o.dgates, dgates, NULL);
    check_close(c, "delta_rule", &o.dA_log, dA_log, r->dA_log_size);
    check_close(c, "delta_rule", &o.ddt_bias, ddt_bias, r->ddt_bias_size);
}

Test(delta_rule, both_passes) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_everywhere(both_passes, &shapes[i]);
}

/* A copy of rows first .. first + count - 1 of the first sequence. */
static struct tensor rows_of(struct check *c, enum check_use use, const struct tensor *from,
                             int64_t first, int64_t count) {
    const int64_t columns = tensor_columns(from);
    struct tensor t =
        check_tensor(c, use, from->dtype, count, columns, check_read(c, from) + first * columns);
    return check_rank3(t, 1, count, columns);
}

/* Documents have the bits that they have alone. */
static void alone(struct check *c, const void *given) {
    struct delta_shape s = *(const struct delta_shape *)given;
    struct operands all = make(c, &s);
    const int32_t *first_keys = all.reference.first_keys;
    CHECK_OP(c, delta_rule_forward, FORWARD_ARGS(all, &s), .states = all.states);
    backward_op(c, &s, &all);
    for (int first = 0, end; first < s.length; first = end) {
        struct operands one = all;
        for (end = first + 1; end < s.length && first_keys[end] == first;) end++;
        struct tensor *tensors[] = {&one.qkv, &one.gates, &one.dout,
                                    &one.out, &one.dqkv,  &one.dgates};
        for (int i = 0; i < 6; i++)
            *tensors[i] =
                rows_of(c, i < 3 ? CHECK_READ : CHECK_WRITE, tensors[i], first, end - first);
        const double
            *expected[3]; /* the same rows of out, dqkv, dgates, before they are rewritten */
        for (int i = 0; i < 3; i++) expected[i] = check_read(c, tensors[3 + i]);
        one.first_keys = NULL;
        CHECK_OP(c, delta_rule_forward, FORWARD_ARGS(one, &s), .states = one.states);
        backward_op(c, &s, &one);
        for (int i = 0; i < 3; i++) check_equal(c, "alone", tensors[3 + i], expected[i]);
    }
}

Test(delta_rule, documents_have_the_bits_that_they_have_alone) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (shapes[i].documents) check_everywhere(alone, &shapes[i]);
}

/* A prompt with padding, then a few rows at once with padding, then single rows of two texts: the
 * rows of one pass, and its state. */
enum { PROMPT = 70, PADDED = 80, ADDED = 3, ADDED_PADDED = 5, SINGLE = 4 };

static void resumed(struct check *c, const void *given) {
    const struct delta_shape *s = given;
    struct operands all = make(c, s);
    const int64_t columns = s->value_heads * s->value_size;
    const int64_t floats = (int64_t)s->value_heads * s->key_size * s->value_size;
    struct tensor state = check_output(c, DTYPE_F32, 1, floats), state2;
    const struct {
        int first, rows, padded;
    } steps[] = {{0, PROMPT, PADDED}, {PROMPT, ADDED, ADDED_PADDED}};
    double *got = check_doubles(c, s->length * columns);
    for (int i = 0; i < 2; i++) {
        struct operands o = all;
        const int first = steps[i].first, padded = steps[i].padded;
        o.qkv = rows_of(c, CHECK_READ, &all.qkv, first, padded);
        o.gates = rows_of(c, CHECK_READ, &all.gates, first, padded);
        o.out = rows_of(c, CHECK_WRITE, &all.out, first, padded);
        CHECK_OP(c, delta_rule_forward, FORWARD_ARGS(o, s), .state = state.data,
                 .state_rows = steps[i].rows, .resumes = i > 0);
        memcpy(got + first * columns, check_read(c, &o.out),
               (size_t)(steps[i].rows * columns) * sizeof *got);
    }
    /* Both texts continue alike. */
    double *twice = check_doubles(c, 2 * floats), *one = check_read(c, &state);
    memcpy(twice, one, (size_t)floats * sizeof *one);
    memcpy(twice + floats, one, (size_t)floats * sizeof *one);
    state2 = check_tensor(c, CHECK_WRITE, DTYPE_F32, 2, floats, twice);
    for (int i = PROMPT + ADDED; i < PROMPT + ADDED + SINGLE; i++) {
        struct operands o = all;
        struct tensor *tensors[] = {&o.qkv, &o.gates, &o.out};
        for (int j = 0; j < 3; j++) {
            const int64_t width = tensor_columns(tensors[j]);
            const double *row = check_read(c, tensors[j]) + i * width;
            double *rows = check_doubles(c, 2 * width);
            memcpy(rows, row, (size_t)width * sizeof *row);
            memcpy(rows + width, row, (size_t)width * sizeof *row);
            *tensors[j] = check_rank3(
                check_tensor(c, j < 2 ? CHECK_READ : CHECK_WRITE, s->dtype, 2, width, rows), 2, 1,
                width);
        }
        CHECK_OP(c, delta_rule_forward, FORWARD_ARGS(o, s), .state = state2.data, .state_rows = 1,
                 .resumes = true);
        const double *rows = check_read(c, &o.out);
        cr_assert_arr_eq(rows, rows + columns, (size_t)columns * sizeof *rows);
        memcpy(got + i * columns, rows, (size_t)columns * sizeof *got);
    }
    if (!c->verify) return;
    const int rows = PROMPT + ADDED + SINGLE;
    struct tensor stored = check_tensor(c, CHECK_READ, s->dtype, rows, columns, got);
    delta_reference_run(&all.reference);
    check_close(c, "delta_rule", &stored, all.reference.out, NULL);
    struct tensor first = tensor_slice(&state2, 0, 1);
    check_close(c, "delta_rule", &first, all.reference.state_after[rows - 1], NULL);
}

Test(delta_rule, generation_resumes_from_a_state) {
    check_everywhere(resumed, &(struct delta_shape){1, 85, 3, 6, 24, 40, DTYPE_F32, false});
    check_everywhere(resumed, &(struct delta_shape){1, 85, 1, 2, 32, 16, DTYPE_BF16, false});
}

/* transformers' layer, of convolution, delta rule, norm and gate: rows of qkv | z | b | a. */
static void layer(struct check *c, const void *given) {
    (void)given;
    enum { HEADS = 2, SIZE = 40, VALUES = HEADS * SIZE, T = 77 };
    struct tensor projection = golden_tensor(c, CHECK_READ, "delta_rule:projection");
    struct tensor weight = golden_tensor(c, CHECK_READ, "delta_rule:conv_weight");
    struct tensor A_log = golden_tensor(c, CHECK_READ, "delta_rule:A_log");
    struct tensor dt_bias = golden_tensor(c, CHECK_READ, "delta_rule:dt_bias");
    struct tensor norm_weight = golden_tensor(c, CHECK_READ, "delta_rule:norm_weight");
    struct tensor dout = golden_tensor(c, CHECK_READ, "delta_rule:dout");
    const int32_t *first_keys = golden_tokens(c, "delta_rule:first_keys", NULL);
    const int64_t columns = tensor_rows(&weight), all = tensor_columns(&projection);
    projection = check_rank3(projection, 1, T, all);
    struct tensor qkv = check_rank3(check_output(c, DTYPE_F32, T, columns), 1, T, columns);
    struct tensor delta = check_rank3(check_output(c, DTYPE_F32, T, VALUES), 1, T, VALUES);
    struct tensor out = check_output(c, DTYPE_F32, T, VALUES);
    const int64_t floats = HEADS * (columns - VALUES) / 2 * SIZE;
    float *states = check_memory(c, CHECK_WRITE, NULL, (size_t)floats * sizeof(float));
    CHECK_OP(c, causal_convolution_forward, .out = &qkv, .in = &projection, .weight = &weight,
             .first_keys = first_keys);
    CHECK_OP(c, delta_rule_forward, .out = &delta, .states = states, .qkv = &qkv,
             .gates = &projection, .A_log = &A_log, .dt_bias = &dt_bias, .first_keys = first_keys,
             .gates_column = columns + VALUES, .key_heads = 1, .value_heads = HEADS,
             .key_size = (int)(columns - VALUES) / 2);
    struct tensor raw = check_output(c, DTYPE_F32, T, VALUES);
    CHECK_OP(c, qk_norm_forward, .inout = &delta, .raw = &raw, .q_weight = &norm_weight,
             .k_weight = &norm_weight, .heads = HEADS, .epsilon = 1e-6f);
    CHECK_OP(c, gated_forward, .out = &out, .gate_up = &projection, .up = &delta,
             .gate_column = columns);
    struct tensor dprojection = check_output(c, DTYPE_F32, T, all);
    dprojection = check_rank3(dprojection, 1, T, all);
    double *zeros = check_doubles(c, columns * 4);
    struct tensor dnorm = check_tensor(c, CHECK_WRITE, DTYPE_F32, SIZE, 0, zeros);
    struct tensor dA_log = check_tensor(c, CHECK_WRITE, DTYPE_F32, HEADS, 0, zeros);
    struct tensor ddt_bias = check_tensor(c, CHECK_WRITE, DTYPE_F32, HEADS, 0, zeros);
    struct tensor dweight = check_tensor(c, CHECK_WRITE, DTYPE_F32, columns, 4, zeros);
    struct tensor ddelta = check_rank3(check_output(c, DTYPE_F32, T, VALUES), 1, T, VALUES);
    struct tensor dqkv = check_rank3(check_output(c, DTYPE_F32, T, columns), 1, T, columns);
    CHECK_OP(c, gated_backward, .dgate_up = &dprojection, .dup = &ddelta, .dout = &dout,
             .gate_up = &projection, .up = &delta, .gate_column = columns);
    CHECK_OP(c, qk_norm_backward, .dinout = &ddelta, .dq_weight = &dnorm, .raw = &raw,
             .q_weight = &norm_weight, .k_weight = &norm_weight, .heads = HEADS, .epsilon = 1e-6f);
    CHECK_OP(c, delta_rule_backward, .dqkv = &dqkv, .dgates = &dprojection, .dA_log = &dA_log,
             .ddt_bias = &ddt_bias, .dout = &ddelta, .states = states, .qkv = &qkv,
             .gates = &projection, .A_log = &A_log, .dt_bias = &dt_bias, .first_keys = first_keys,
             .gates_column = columns + VALUES, .key_heads = 1, .value_heads = HEADS,
             .key_size = (int)(columns - VALUES) / 2);
    CHECK_OP(c, causal_convolution_backward, .din = &dprojection, .dweight = &dweight,
             .dout = &dqkv, .in = &projection, .weight = &weight, .first_keys = first_keys);
    if (!c->verify) return;
    golden_close(c, "golden_sum", &qkv, "delta_rule:qkv", NULL);
    golden_close(c, "golden_delta_rule", &raw, "delta_rule:delta_out", NULL);
    golden_close(c, "golden_delta_rule", &out, "delta_rule:out", NULL);
    golden_close(c, "golden_delta_rule", &dprojection, "delta_rule:dprojection", NULL);
    golden_close(c, "golden_delta_rule", &dweight, "delta_rule:dconv_weight", NULL);
    golden_close(c, "golden_delta_rule", &dnorm, "delta_rule:dnorm_weight", NULL);
    golden_close(c, "golden_delta_decay", &dA_log, "delta_rule:dA_log", NULL);
    golden_close(c, "golden_delta_decay", &ddt_bias, "delta_rule:ddt_bias", NULL);
}

Test(delta_rule, layer_equals_transformers) {
    check_everywhere(layer, NULL);
}

/* A layer of Qwen3.5 0.8B. */
enum { TIMED_HEADS = 16, TIMED_SIZE = 128, TIMED_VALUES = TIMED_HEADS * TIMED_SIZE, TIMED_T = 512 };

static struct tensor timed_rows(struct bench *b, int variant, int64_t columns) {
    struct tensor t = arena_tensor(&b->arena, (enum dtype)variant, TIMED_T, columns);
    return check_rank3(t, 1, TIMED_T, columns);
}

static size_t time_pass(struct bench *b, int variant, bool backward) {
    struct tensor qkv = timed_rows(b, variant, 3 * TIMED_VALUES), dqkv = qkv;
    struct tensor gates = timed_rows(b, variant, 2 * TIMED_HEADS), dgates = gates;
    struct tensor out = timed_rows(b, variant, TIMED_VALUES);
    struct tensor heads = arena_tensor(&b->arena, DTYPE_F32, TIMED_HEADS, 0), dheads = heads;
    float *states = arena_take(&b->arena, (TIMED_T - 1) / DELTA_CHUNK * TIMED_VALUES * TIMED_SIZE *
                                              sizeof *states);
    if (backward) {
        dqkv = timed_rows(b, variant, 3 * TIMED_VALUES);
        dgates = timed_rows(b, variant, 2 * TIMED_HEADS);
        dheads = arena_tensor(&b->arena, DTYPE_F32, TIMED_HEADS, 0);
        OP(&b->be, delta_rule_backward, .dqkv = &dqkv, .dgates = &dgates, .dA_log = &dheads,
           .ddt_bias = &dheads, .dout = &out, .states = states, .qkv = &qkv, .gates = &gates,
           .A_log = &heads, .dt_bias = &heads, .key_heads = TIMED_HEADS, .value_heads = TIMED_HEADS,
           .key_size = TIMED_SIZE);
    } else
        OP(&b->be, delta_rule_forward, .out = &out, .states = states, .qkv = &qkv, .gates = &gates,
           .A_log = &heads, .dt_bias = &heads, .key_heads = TIMED_HEADS, .value_heads = TIMED_HEADS,
           .key_size = TIMED_SIZE);
    return (backward ? 3 : 1) * tensor_bytes(&qkv);
}

static size_t time_forward(struct bench *b, int variant) {
    return time_pass(b, variant, false);
}
BENCH(delta_rule, forward, bench_dtypes, time_forward)

static size_t time_backward(struct bench *b, int variant) {
    return time_pass(b, variant, true);
}
BENCH(delta_rule, backward, bench_dtypes, time_backward)
