/* The ceilings of this GPU, and how near each operation comes to them alone.
 *
 * An operation is called many times in a row between two marks on the device, so that neither the
 * launch nor the host shows; the shapes are those of a training step and far larger than the
 * caches. Bytes are what must be moved: each input read once, each output written once. */
#include <stdlib.h>
#include <string.h>

#include "data/base/random.h"
#include "test/gpu_bench.h"
#include "test/gpu_clock.h"

enum { ROUNDS = 5, BLOCKS_MAX = 32, PATTERN = 1 << 20 /* different random values */ };

/* One operation with all it works on. Bodies run under the plan table first. */
struct subject {
    struct bench *bench;
    struct backend *be;
    void (*body)(const struct subject *s);
    struct tensor t[8];
    int32_t *tokens;
    struct step_state *state;
    float *a, *b;
    void *scratch;
    int64_t heads;
    void *blocks[BLOCKS_MAX];
    int block_count;
};

static void *take(struct subject *s, size_t bytes) {
    void *memory = backend_allocate(s->be, bytes);
    if (!memory) {
        snprintf(s->be->failure.text, sizeof s->be->failure.text, "out of memory: no %zu MiB",
                 bytes >> 20);
        return NULL;
    }
    s->blocks[s->block_count++] = memory;
    return memory;
}

/* Real-looking numbers: a product of zeros draws less power and runs faster. */
static const float *random_pattern(void) {
    static float *pattern;
    if (pattern) return pattern;
    pattern = malloc(PATTERN * sizeof *pattern);
    for (uint64_t i = 0; i < PATTERN; i++) pattern[i] = (float)random_normal(3, 1, i);
    return pattern;
}

static void fill(struct subject *s, const struct tensor *tensor, double scale) {
    size_t bytes = tensor_bytes(tensor), size = dtype_bytes(tensor->dtype);
    size_t first = bytes < PATTERN * size ? bytes : PATTERN * size;
    float *values = malloc(PATTERN * sizeof *values);
    void *stored = malloc(PATTERN * size);
    for (int i = 0; i < PATTERN; i++) values[i] = (float)scale * random_pattern()[i];
    dtype_store(stored, tensor->dtype, 0, values, PATTERN);
    backend_upload(s->be, tensor->data, stored, first);
    for (size_t done = first; done < bytes; done *= 2)
        gpu_copy(s->be, (char *)tensor->data + done, tensor->data,
                 done < bytes - done ? done : bytes - done);
    gpu_wait(s->be);
    free(stored);
    free(values);
}

/* Tensor i of the subject: rows x columns, or a vector if columns is 0; scale 0: zeros. */
static void make(struct subject *s, int i, enum dtype dtype, int64_t rows, int64_t columns,
                 double scale) {
    s->t[i] = (struct tensor){NULL, dtype, columns ? 2 : 1, {rows, columns}};
    s->t[i].data = take(s, tensor_bytes(&s->t[i]));
    if (!s->t[i].data) return;
    if (scale > 0) fill(s, &s->t[i], scale);
    else OP(s->be, clear, .data = s->t[i].data, .bytes = tensor_bytes(&s->t[i]));
}

static float *make_vector(struct subject *s, int64_t count) {
    float *vector = take(s, (size_t)count * sizeof(float));
    if (vector) OP(s->be, clear, .data = vector, .bytes = (size_t)count * sizeof(float));
    return vector;
}

static void make_tokens(struct subject *s, int64_t count, int64_t limit) {
    size_t bytes = (size_t)count * sizeof(int32_t);
    int32_t *host = malloc(bytes);
    for (int64_t i = 0; i < count; i++)
        host[i] = (int32_t)(random_bits(4, 1, (uint64_t)i) % (uint64_t)limit);
    s->tokens = take(s, bytes);
    if (s->tokens) backend_upload(s->be, s->tokens, host, bytes);
    free(host);
}

static void make_state(struct subject *s) {
    struct step_state state = {.loss_scale = 1, .clip_factor = 1};
    s->state = take(s, sizeof state);
    if (s->state) backend_upload(s->be, s->state, &state, sizeof state);
}

static void release(struct subject *s) {
    while (s->block_count) backend_release(s->be, s->blocks[--s->block_count]);
}

static double timed(struct subject *s, int calls) {
    gpu_mark(s->be, 0);
    for (int i = 0; i < calls; i++) s->body(s);
    gpu_mark(s->be, 1);
    return gpu_seconds(s->be, 0, 1) / calls;
}

/* Seconds of one call, the median of some rounds; 0 after a failure. Releases what was made. */
static double measure(struct subject *s, const char *what) {
    struct backend *be = s->be;
    double rounds[ROUNDS] = {0};
    if (!be->failure.text[0]) {
        backend_plan_begin(be);
        s->body(s);
        if (backend_plan_end(be, &be->failure) == 0) {
            timed(s, 1);
            double once = timed(s, 1), wanted = s->bench->seconds / ROUNDS;
            int calls = once * 200 < wanted ? 200 : 1 + (int)(wanted / once);
            if (s->bench->tiny) calls = 1;
            for (int i = 0; i < ROUNDS && !be->failure.text[0]; i++) rounds[i] = timed(s, calls);
        }
    }
    double seconds = median_of(rounds, ROUNDS);
    if (be->failure.text[0]) {
        bench_failed(s->bench, what, be->failure.text);
        be->failure.text[0] = 0;
        seconds = 0;
    }
    release(s);
    return seconds;
}

/* ---- ceilings */

static void copy_body(const struct subject *s) {
    if (s->be->op == s->be->run)
        gpu_copy(s->be, s->t[0].data, s->t[1].data, tensor_bytes(&s->t[0]));
}

static void product_body(const struct subject *s) {
    OP(s->be, matmul, .out = &s->t[0], .a = &s->t[1], .b = &s->t[2]);
}

static void bench_copy(struct bench *bench, struct backend *be) {
    struct subject s = {bench, be, copy_body, .block_count = 0};
    int64_t count = bench->tiny ? 1 << 14 : 1 << 28;
    make(&s, 0, DTYPE_F32, count, 0, 0);
    make(&s, 1, DTYPE_F32, count, 0, 1);
    double seconds = measure(&s, "copy");
    bench->copy_rate = seconds > 0 ? 8.0 * (double)count / seconds : 0;
    printf("  %-24s %9.0f GB/s read + written\n", "copy of 1 GiB", bench->copy_rate * 1e-9);
    bench_json_line(bench, "{\"ceiling\": \"copy\", \"gb_per_s\": %.1f}", bench->copy_rate * 1e-9);
}

static void bench_product(struct bench *bench, struct backend *be, enum bench_precision precision) {
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    static const int64_t sizes[] = {4096, 8192};
    const char *name = bench_precision_names[precision];
    for (int i = 0; i < (bench->tiny ? 1 : 2); i++) {
        int64_t size = bench->tiny ? 64 : sizes[i];
        struct subject s = {bench, be, product_body, .block_count = 0};
        for (int t = 0; t < 3; t++) make(&s, t, dtypes[precision], size, size, t ? 0.5 : 0);
        double seconds = measure(&s, name);
        double rate = seconds > 0 ? 2.0 * (double)(size * size * size) / seconds : 0;
        if (rate > bench->product_rate[precision]) bench->product_rate[precision] = rate;
        printf("  product %-4s %5lld^3 %14.1f TFLOP/s\n", name, (long long)size, rate * 1e-12);
        bench_json_line(bench,
                        "{\"ceiling\": \"product\", \"precision\": \"%s\", \"size\": %lld, "
                        "\"tflop_per_s\": %.2f}",
                        name, (long long)size, rate * 1e-12);
    }
}

void bench_ceilings(struct bench *bench) {
    printf("Ceilings, measured\n");
    bench_json_begin(bench, "ceilings");
    for (int tf32 = 0; tf32 < 2; tf32++) {
        struct backend be;
        if (!bench_open(bench, &be, tf32)) break;
        if (!tf32) bench_copy(bench, &be);
        for (int p = 0; p < BENCH_PRECISIONS; p++)
            if ((p == BENCH_TF32) == tf32 && bench_wants(bench, p)) bench_product(bench, &be, p);
        gpu_clock_close();
        backend_close(&be);
    }
    bench_json_end(bench);
    fflush(stdout);
}

/* ---- what memory bounds */

static void layernorm_forward_body(const struct subject *s) {
    OP(s->be, layernorm_forward, .out = &s->t[0], .sum = &s->t[1], .mean = s->a, .rstd = s->b,
       .in = &s->t[2], .residual = &s->t[3], .weight = &s->t[4], .bias = &s->t[5],
       .epsilon = 1e-5f);
}

static void layernorm_backward_body(const struct subject *s) {
    OP(s->be, layernorm_backward, .din = &s->t[3], .din_lower = &s->t[0], .dweight = &s->t[4],
       .dbias = &s->t[5], .dout = &s->t[2], .in = &s->t[1], .mean = s->a, .rstd = s->b,
       .weight = &s->t[6], .dresidual = &s->t[3]);
}

static void gelu_forward_body(const struct subject *s) {
    OP(s->be, gelu_forward, .out = &s->t[0], .in = &s->t[1]);
}

static void gelu_backward_body(const struct subject *s) {
    OP(s->be, gelu_backward, .din = &s->t[0], .dout = &s->t[1], .in = &s->t[2]);
}

static void cross_entropy_body(const struct subject *s) {
    OP(s->be, cross_entropy, .losses = s->a, .logits = &s->t[0], .targets = s->tokens,
       .loss_scale = &s->state->loss_scale, .weight = 1, .vocab_size = s->bench->vocabulary);
}

/* Of split masters: their upper halves and remainders. */
static void adamw_body(const struct subject *s) {
    OP(s->be, adamw, .master = &s->t[0], .remainder = s->t[3].data, .moment1 = &s->t[1],
       .moment2 = &s->t[2], .gradients = &s->t[4], .state = s->state, .lr = 1e-4, .beta1 = 0.9,
       .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1);
}

static void gradient_norm_body(const struct subject *s) {
    OP(s->be, gradient_squares, .squares = s->scratch, .gradients = &s->t[4], .state = s->state);
    OP(s->be, gradient_norm, .state = s->state, .squares = s->scratch,
       .count = backend_squares(s->be, &s->t[4]), .grad_clip = 1);
}

static void attention_decode_body(const struct subject *s) {
    OP(s->be, attention_decode, .out = &s->t[0], .q = &s->t[2], .cache = &s->t[1],
       .position = s->bench->seq - 1, .heads = (int)s->heads, .kv_heads = (int)s->heads);
}

static void embedding_forward_body(const struct subject *s) {
    OP(s->be, embedding_forward, .out = &s->t[0], .tokens = s->tokens, .token_table = &s->t[1],
       .position_table = &s->t[2], .sequence_length = s->bench->seq);
}

static void embedding_backward_body(const struct subject *s) {
    OP(s->be, embedding_backward, .dtoken_table = &s->t[1], .dposition_table = &s->t[2],
       .dout = &s->t[0], .tokens = s->tokens, .sequence_length = s->bench->seq);
}

static void cast_body(const struct subject *s) {
    OP(s->be, cast, .out = &s->t[0], .in = &s->t[1]);
}

static void clear_body(const struct subject *s) {
    OP(s->be, clear, .data = s->t[0].data, .bytes = tensor_bytes(&s->t[0]));
}

static void column_sums_body(const struct subject *s) {
    if (s->be->op == s->be->run) gpu_column_sums(s->be, &s->t[0], &s->t[1], s->scratch);
}

/* Makes what the operation works on; returns the bytes that it must move. N rows of C, P
 * parameters, dtypes as in a bf16 step. */
static double make_layernorm(struct subject *s, int64_t N, int64_t C) {
    bool backward = s->body == layernorm_backward_body;
    make(s, 0, DTYPE_BF16, N, C, 0);
    make(s, 1, DTYPE_F32, N, C, backward ? 1 : 0);
    make(s, 2, DTYPE_BF16, N, C, 1);
    make(s, 3, DTYPE_F32, N, C, 1);
    for (int i = 4; i < 7; i++) make(s, i, DTYPE_F32, C, 0, 1);
    s->a = make_vector(s, N);
    s->b = make_vector(s, N);
    return (double)(N * C) * (backward ? 2 + 4 + 4 + 4 + 2 : 2 + 4 + 4 + 2) + 8.0 * (double)N;
}

static double make_gelu(struct subject *s, int64_t N, int64_t C) {
    int tensors = s->body == gelu_forward_body ? 2 : 3;
    for (int i = 0; i < tensors; i++) make(s, i, DTYPE_BF16, N, 4 * C, i ? 1 : 0);
    return (double)(N * 4 * C) * 2 * tensors;
}

static double make_cross_entropy(struct subject *s, int64_t N, int64_t C) {
    (void)C;
    int64_t rows = N < 4096 ? N : 4096, columns = (s->bench->vocabulary + 127) / 128 * 128;
    make(s, 0, DTYPE_BF16, rows, columns, 1);
    make_tokens(s, rows, s->bench->vocabulary);
    make_state(s);
    s->a = make_vector(s, rows);
    return (double)(rows * columns) * 4 + 8.0 * (double)rows;
}

static int64_t parameters_of(const struct subject *s, int64_t C) {
    int64_t count = 12 * s->bench->layers * C * C + s->bench->vocabulary * C;
    return (count + 127) / 128 * 128;
}

/* Split masters, with moments and gradients of one dtype. */
static double make_split_update(struct subject *s, int64_t C, enum dtype state) {
    int64_t count = parameters_of(s, C);
    make(s, 0, DTYPE_BF16, count, 0, 0.02);
    make(s, 1, state, count, 0, 0);
    make(s, 2, state, count, 0, 0);
    make(s, 3, DTYPE_BF16, count, 0, 0);
    make(s, 4, state, count, 0, 1e-3);
    make_state(s);
    return (double)count * (double)(2 * 4 + 5 * dtype_bytes(state));
}

static double make_update(struct subject *s, int64_t N, int64_t C) {
    (void)N;
    return make_split_update(s, C, DTYPE_F32);
}

static double make_lower_update(struct subject *s, int64_t N, int64_t C) {
    (void)N;
    return make_split_update(s, C, DTYPE_BF16);
}

static double make_gradient_norm(struct subject *s, int64_t N, int64_t C) {
    (void)N;
    int64_t count = parameters_of(s, C);
    make(s, 4, DTYPE_F32, count, 0, 1e-3);
    s->scratch = take(s, (size_t)backend_squares(s->be, &s->t[4]) * sizeof(double));
    make_state(s);
    return (double)count * 4;
}

/* One query of each of so many whole sequences that their keys and values exceed a cache. */
static double make_attention_decode(struct subject *s, int64_t N, int64_t C) {
    int64_t T = s->bench->seq, sequences = 4 * N / T;
    s->heads = s->bench->heads;
    make(s, 0, DTYPE_BF16, sequences, C, 0);
    make(s, 1, DTYPE_BF16, sequences * T, 2 * C, 1);
    make(s, 2, DTYPE_BF16, sequences, C, 1);
    s->t[1] = tensor_split(&s->t[1], sequences, T);
    return (double)(sequences * T * 2 * C) * 2;
}

static double make_embedding(struct subject *s, int64_t N, int64_t C) {
    int64_t V = s->bench->vocabulary, T = s->bench->seq, distinct = 0;
    make(s, 0, DTYPE_F32, N, C, 1);
    make(s, 1, DTYPE_F32, V, C, 0.02);
    make(s, 2, DTYPE_F32, T, C, 0.02);
    make_tokens(s, N, V);
    bool *seen = calloc((size_t)V, 1);
    for (int64_t i = 0; i < N; i++) {
        uint64_t token = random_bits(4, 1, (uint64_t)i) % (uint64_t)V;
        distinct += !seen[token];
        seen[token] = true;
    }
    free(seen);
    if (s->body == embedding_forward_body) return (double)((N + distinct + T) * C) * 4;
    return (double)((N + 2 * distinct + 2 * T) * C) * 4;
}

static double make_cast(struct subject *s, int64_t N, int64_t C) {
    make(s, 0, DTYPE_BF16, N, 4 * C, 0);
    make(s, 1, DTYPE_F32, N, 4 * C, 1);
    return (double)(N * 4 * C) * 6;
}

static double make_clear(struct subject *s, int64_t N, int64_t C) {
    make(s, 0, DTYPE_F32, N, 4 * C, 0);
    return (double)(N * 4 * C) * 4;
}

static double make_column_sums(struct subject *s, int64_t N, int64_t C) {
    make(s, 0, DTYPE_F32, 3 * C, 0, 0);
    make(s, 1, DTYPE_BF16, N, 3 * C, 1);
    s->scratch = take(s, gpu_column_sums_bytes(s->be, &s->t[1]));
    return (double)(N * 3 * C) * 2;
}

static const struct {
    const char *name;
    void (*body)(const struct subject *s);
    double (*make)(struct subject *s, int64_t N, int64_t C);
} cases[] = {
    {"layernorm_forward", layernorm_forward_body, make_layernorm},
    {"layernorm_backward", layernorm_backward_body, make_layernorm},
    {"gelu_forward", gelu_forward_body, make_gelu},
    {"gelu_backward", gelu_backward_body, make_gelu},
    {"cross_entropy", cross_entropy_body, make_cross_entropy},
    {"adamw", adamw_body, make_update},
    {"adamw_lower", adamw_body, make_lower_update},
    {"gradient_norm", gradient_norm_body, make_gradient_norm},
    {"attention_decode", attention_decode_body, make_attention_decode},
    {"embedding_forward", embedding_forward_body, make_embedding},
    {"embedding_backward", embedding_backward_body, make_embedding},
    {"column_sums", column_sums_body, make_column_sums},
    {"cast", cast_body, make_cast},
    {"clear", clear_body, make_clear},
};

void bench_kernels(struct bench *bench) {
    struct backend be;
    if (!bench_open(bench, &be, false)) return;
    printf("Operations that memory bounds, as in a bf16 step (%% of the copy above)\n");
    bench_json_begin(bench, "kernels");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct subject s = {bench, &be, cases[i].body, .block_count = 0};
        double bytes = cases[i].make(&s, bench->batch * bench->seq, bench->width);
        double seconds = measure(&s, cases[i].name);
        if (seconds <= 0) continue;
        double rate = bytes / seconds, share = bench->copy_rate > 0 ? rate / bench->copy_rate : 0;
        printf("  %-24s %9.1f us %9.0f GB/s %6.1f %%\n", cases[i].name, seconds * 1e6, rate * 1e-9,
               100 * share);
        bench_json_line(bench,
                        "{\"kernel\": \"%s\", \"us\": %.2f, \"gb_per_s\": %.1f, "
                        "\"of_copy\": %.4f}",
                        cases[i].name, seconds * 1e6, rate * 1e-9, share);
    }
    bench_json_end(bench);
    gpu_clock_close();
    backend_close(&be);
    fflush(stdout);
}

/* ---- attention */

static void attention_forward_body(const struct subject *s) {
    OP(s->be, attention_forward, .out = &s->t[0], .lse = s->a, .qkv = &s->t[1],
       .heads = (int)s->heads, .kv_heads = (int)s->heads);
}

static void attention_backward_body(const struct subject *s) {
    OP(s->be, attention_backward, .dqkv = &s->t[3], .dout = &s->t[2], .qkv = &s->t[1],
       .out = &s->t[0], .lse = s->a, .heads = (int)s->heads, .kv_heads = (int)s->heads);
}

struct attention_case {
    enum dtype dtype;
    int64_t batch, heads, length, head;
};

static struct tensor sequences(struct tensor flat, const struct attention_case *c) {
    struct tensor view = {flat.data, flat.dtype, 3, {c->batch, c->length, flat.shape[1]}};
    return view;
}

/* Seconds of the forward, or of the backward pass after a forward pass. */
static double attention_seconds(struct bench *bench, struct backend *be,
                                const struct attention_case *c, bool backward) {
    struct subject s = {bench, be, attention_forward_body, .heads = c->heads};
    int64_t rows = c->batch * c->length, width = c->heads * c->head;
    for (int i = 0; i < (backward ? 4 : 2); i++) {
        make(&s, i, c->dtype, rows, i % 2 ? 3 * width : width, i == 1 || i == 2 ? 1 : 0);
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
    /* The causal half of two products of T x T x D a head; backward: five products. */
    double half =
        2.0 * (double)(c->batch * c->heads * c->head) * (double)c->length * (double)c->length;
    double forward = attention_seconds(bench, be, c, false);
    double backward = attention_seconds(bench, be, c, true);
    if (forward <= 0 && backward <= 0) return; /* why has been said */
    double forward_rate = forward > 0 ? half / forward * 1e-12 : 0;
    double backward_rate = backward > 0 ? 2.5 * half / backward * 1e-12 : 0;
    printf("  %-4s D %3lld T %4lld B %2lld H %2lld %9.1f TFLOP/s %9.1f TFLOP/s\n",
           dtype_name(c->dtype), (long long)c->head, (long long)c->length, (long long)c->batch,
           (long long)c->heads, forward_rate, backward_rate);
    bench_json_line(bench,
                    "{\"dtype\": \"%s\", \"D\": %lld, \"T\": %lld, \"B\": %lld, \"H\": %lld, "
                    "\"forward_us\": %.2f, \"backward_us\": %.2f, \"forward_tflop_per_s\": %.2f, "
                    "\"backward_tflop_per_s\": %.2f}",
                    dtype_name(c->dtype), (long long)c->head, (long long)c->length,
                    (long long)c->batch, (long long)c->heads, forward * 1e6, backward * 1e6,
                    forward_rate, backward_rate);
}

void bench_attention(struct bench *bench) {
    static const struct attention_case list[] = {
        {DTYPE_BF16, 16, 12, 1024, 64}, {DTYPE_BF16, 8, 12, 2048, 64},
        {DTYPE_BF16, 4, 12, 4096, 64},  {DTYPE_F16, 16, 12, 1024, 64},
        {DTYPE_BF16, 16, 6, 1024, 128}, {DTYPE_BF16, 4, 6, 4096, 128},
        {DTYPE_F32, 16, 12, 1024, 64},
    };
    struct backend be;
    if (!bench_open(bench, &be, false)) return;
    printf("Attention, causal %24s %17s\n", "forward", "backward");
    bench_json_begin(bench, "attention");
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        struct attention_case c = list[i];
        if (bench->tiny) c.batch = 1, c.heads = 2, c.length /= 64;
        if (c.dtype == DTYPE_BF16 && !be.device.native[DTYPE_BF16]) continue;
        bench_attention_case(bench, &be, &c);
    }
    bench_json_end(bench);
    gpu_clock_close();
    backend_close(&be);
    fflush(stdout);
}
