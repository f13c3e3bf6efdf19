/* Attention alone, forward and backward, with as many key-value heads as query heads and with
 * fewer. */
#include <string.h>

#include "test/gpu_bench_subject.h"

static void attention_forward_body(const struct subject *s) {
    OP(s->be, attention_forward, .out = &s->t[0], .lse = s->a, .qkv = &s->t[1], .scale = 0.125,
       .heads = (int)s->heads, .kv_heads = (int)s->kv_heads);
}

static void attention_backward_body(const struct subject *s) {
    OP(s->be, attention_backward, .dqkv = &s->t[3], .dout = &s->t[2], .qkv = &s->t[1],
       .out = &s->t[0], .lse = s->a, .scale = 0.125, .heads = (int)s->heads,
       .kv_heads = (int)s->kv_heads);
}

struct attention_case {
    enum dtype dtype;
    int64_t batch, heads, kv_heads, length, head;
    const char *name; /* of the dtype, or "tf32" */
};

static struct tensor sequences(struct tensor flat, const struct attention_case *c) {
    struct tensor view = {flat.data, flat.dtype, 3, {c->batch, c->length, flat.shape[1]}};
    return view;
}

/* Returns the seconds of the forward pass, or of the backward pass after a forward pass. */
static double attention_seconds(struct bench *bench, struct backend *be,
                                const struct attention_case *c, bool backward) {
    struct subject s = {bench, be, attention_forward_body, .heads = c->heads,
                        .kv_heads = c->kv_heads};
    int64_t rows = c->batch * c->length, width = c->heads * c->head;
    int64_t all = width + 2 * c->kv_heads * c->head;
    for (int i = 0; i < (backward ? 4 : 2); i++) {
        make(&s, i, c->dtype, rows, i % 2 ? all : width, i == 1 || i == 2 ? 1 : 0);
        s.t[i] = sequences(s.t[i], c);
    }
    s.a = make_vector(&s, rows * c->heads);
    if (backward && !be->failure.text[0]) {
        backend_plan_begin(be);
        s.body(&s);
        if (backend_plan_end(be, &be->failure) == 0) s.body(&s);
        s.body = attention_backward_body;
    }
    return measure(&s, backward ? "attention_backward" : "attention_forward");
}

static void bench_attention_case(struct bench *bench, struct backend *be,
                                 const struct attention_case *c) {
    /* The causal half of two matmuls of T x T x D a head; backward: five matmuls. */
    double half =
        2.0 * (double)(c->batch * c->heads * c->head) * (double)c->length * (double)c->length;
    double forward = attention_seconds(bench, be, c, false);
    double backward = attention_seconds(bench, be, c, true);
    if (forward <= 0 && backward <= 0) return; /* the reason has been reported */
    double forward_rate = forward > 0 ? half / forward * 1e-12 : 0;
    double backward_rate = backward > 0 ? 2.5 * half / backward * 1e-12 : 0;
    printf("  %-4s D %3lld T %5lld B %2lld H %2lld / %2lld %9.1f TFLOP/s %9.1f TFLOP/s\n", c->name,
           (long long)c->head, (long long)c->length, (long long)c->batch, (long long)c->heads,
           (long long)c->kv_heads, forward_rate, backward_rate);
    bench_json_line(bench,
                    "{\"wgmma\": %s, \"dtype\": \"%s\", \"D\": %lld, \"T\": %lld, \"B\": %lld, "
                    "\"H\": %lld, \"kv\": %lld, "
                    "\"forward_us\": %.2f, \"backward_us\": %.2f, \"forward_tflop_per_s\": %.2f, "
                    "\"backward_tflop_per_s\": %.2f}",
                    bench->without_wgmma ? "false" : "true", c->name, (long long)c->head,
                    (long long)c->length, (long long)c->batch, (long long)c->heads,
                    (long long)c->kv_heads, forward * 1e6, backward * 1e6, forward_rate,
                    backward_rate);
}

/* tf32: only the cases in fp32, with that option. True if the GPU has kernels of its own beside
 * those of sm_80. */
static bool bench_attention_cases(struct bench *bench, const struct attention_case *list,
                                  size_t count, bool tf32) {
    struct backend be;
    if (!bench_open(bench, &be, tf32)) return false;
    bool hopper = strstr(be.device.description, "sm_90") != NULL;
    const char *title = tf32                   ? "Attention, TF32"
                        : !hopper              ? "Attention, causal"
                        : bench->without_wgmma ? "Attention, mma.sync"
                                               : "Attention, wgmma";
    printf("%-24s %17s %17s\n", title, "forward", "backward");
    for (size_t i = 0; i < count; i++) {
        struct attention_case c = list[i];
        if (bench->tiny)
            c.batch = 1, c.heads = 2 * c.heads / c.kv_heads, c.kv_heads = 2, c.length /= 64;
        if (c.dtype == DTYPE_BF16 && !be.device.native[DTYPE_BF16]) continue;
        if (tf32 && c.dtype != DTYPE_F32) continue;
        c.name = tf32 ? "tf32" : dtype_name(c.dtype);
        bench_attention_case(bench, &be, &c);
    }
    gpu_clock_close();
    backend_close(&be);
    fflush(stdout);
    return hopper;
}

/* Measures both kernels if there are two. */
void bench_attention(struct bench *bench) {
    static const struct attention_case list[] = {
        {DTYPE_BF16, 16, 12, 12, 1024, 64}, {DTYPE_BF16, 8, 12, 12, 2048, 64},
        {DTYPE_BF16, 4, 12, 12, 4096, 64},  {DTYPE_BF16, 2, 12, 12, 8192, 64},
        {DTYPE_BF16, 1, 12, 12, 16384, 64}, {DTYPE_F16, 16, 12, 12, 1024, 64},
        {DTYPE_BF16, 16, 6, 6, 1024, 128},  {DTYPE_BF16, 8, 6, 6, 2048, 128},
        {DTYPE_BF16, 4, 6, 6, 4096, 128},   {DTYPE_BF16, 2, 6, 6, 8192, 128},
        {DTYPE_BF16, 1, 6, 6, 16384, 128},  {DTYPE_F32, 16, 12, 12, 1024, 64},
        {DTYPE_F32, 4, 6, 6, 4096, 128},    {DTYPE_BF16, 16, 9, 3, 1024, 64},
        {DTYPE_BF16, 2, 32, 8, 4096, 128}, /* the Llama family */
        {DTYPE_BF16, 8, 4, 1, 4096, 256},  /* Gemma 3 1B */
    };
    bench_json_begin(bench, "attention");
    const size_t count = sizeof list / sizeof *list;
    bool choice = bench_attention_cases(bench, list, count, false);
    if (choice && !bench->without_wgmma) {
        bench->without_wgmma = true;
        bench_attention_cases(bench, list, count, false);
        bench->without_wgmma = false;
    }
    bench_attention_cases(bench, list, count, true);
    bench_json_end(bench);
}
