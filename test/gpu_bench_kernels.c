/* The ceilings of this GPU, and how near each memory-bound operation comes to them alone.
 *
 * The shapes are those of a training step and far larger than the caches. Bytes are the minimum
 * traffic: each input read once, each output written once. */
#include <stdlib.h>

#include "data/util/random.h"
#include "test/gpu_bench_subject.h"

/* ---- ceilings */

static void copy_body(const struct subject *s) {
    if (s->be->op == s->be->run)
        gpu_copy(s->be, s->t[0].data, s->t[1].data, tensor_bytes(&s->t[0]));
}

/* 8-bit operands have a scale each, and b has the layout that tensor cores need. */
static void product_body(const struct subject *s) {
    const struct tensor one = {s->a, DTYPE_F32, 2, {1, 1}};
    if (dtype_is_quantized(s->t[1].dtype)) {
        OP(s->be, matmul, .out = &s->t[0], .a = &s->t[1], .b = &s->t[2], .transpose_b = true,
           .a_scales = &one, .b_scales = &one, .fast_accumulation = true);
        return;
    }
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
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_E4M3};
    static const int64_t sizes[] = {4096, 8192};
    const char *name = bench_precision_names[precision];
    for (int i = 0; i < (bench->tiny ? 1 : 2); i++) {
        int64_t size = bench->tiny ? 64 : sizes[i];
        struct subject s = {bench, be, product_body, .block_count = 0};
        enum dtype dtype = dtypes[precision];
        make(&s, 0, precision == BENCH_FP8 ? DTYPE_BF16 : dtype, size, size, 0);
        for (int t = 1; t < 3; t++) make(&s, t, dtype, size, size, 0.5);
        s.a = precision == BENCH_FP8 ? make_vector(&s, 1) : NULL;
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

/* ---- memory-bound operations */

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
       .loss_scale = &s->state->loss_scale, .inputs = s->inputs,
       .vocab_size = s->bench->vocabulary);
}

static void softcap_body(const struct subject *s) {
    OP(s->be, softcap, .inout = &s->t[0], .cap = 30);
}

/* AdamW on split masters: upper halves and remainders. */
static void adamw_body(const struct subject *s) {
    OP(s->be, update, .master = &s->t[0], .remainder = s->t[3].data,
       .moments = {&s->t[1], &s->t[2]}, .gradients = &s->t[4], .state = s->state,
       .inputs = s->inputs, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1,
       .lr_factor = 1);
}

/* The same with moments in 8 bits. */
static void adamw_8bit_body(const struct subject *s) {
    OP(s->be, update, .master = &s->t[0], .remainder = s->t[3].data,
       .moments = {&s->t[1], &s->t[2]}, .scales = {.of = {s->t[5].data, s->t[6].data}},
       .gradients = &s->t[4], .state = s->state, .inputs = s->inputs, .beta1 = 0.9, .beta2 = 0.95,
       .epsilon = 1e-8, .weight_decay = 0.1, .lr_factor = 1);
}

static void gradient_norm_body(const struct subject *s) {
    OP(s->be, gradient_squares, .squares = s->scratch, .gradients = &s->t[4], .state = s->state);
    OP(s->be, gradient_norm, .state = s->state, .squares = s->scratch,
       .count = backend_squares(s->be, &s->t[4]), .grad_clip = 1);
}

static void attention_decode_body(const struct subject *s) {
    OP(s->be, attention_decode, .out = &s->t[0], .q = &s->t[2], .cache = &s->t[1],
       .keys = (const void *)s->tokens, .stride = 1, .keys_to = s->bench->seq,
       .keys_max = s->bench->seq, .scale = 0.125, .heads = (int)s->heads,
       .kv_heads = (int)s->kv_heads);
}

/* Operations of Llama: norms without mean and bias, and three query heads for each key-value
 * head. */
static void rmsnorm_forward_body(const struct subject *s) {
    OP(s->be, layernorm_forward, .out = &s->t[0], .sum = &s->t[1], .rstd = s->b, .in = &s->t[2],
       .residual = &s->t[3], .weight = &s->t[4], .epsilon = 1e-5f);
}

static void rmsnorm_backward_body(const struct subject *s) {
    OP(s->be, layernorm_backward, .din = &s->t[3], .din_lower = &s->t[0], .dweight = &s->t[4],
       .dout = &s->t[2], .in = &s->t[1], .rstd = s->b, .weight = &s->t[6], .dresidual = &s->t[3]);
}

static void rope_body(const struct subject *s) {
    OP(s->be, rope, .inout = &s->t[0], .angles = &s->t[2], .sequence_length = s->bench->seq,
       .heads = (int)(s->heads + s->kv_heads));
}

static void qk_norm_forward_body(const struct subject *s) {
    OP(s->be, qk_norm_forward, .inout = &s->t[0], .raw = &s->t[1], .q_weight = &s->t[3],
       .k_weight = &s->t[3], .angles = &s->t[2], .sequence_length = s->bench->seq,
       .heads = (int)s->heads, .kv_heads = (int)s->kv_heads, .epsilon = 1e-6f);
}

static void qk_norm_backward_body(const struct subject *s) {
    OP(s->be, qk_norm_backward, .dinout = &s->t[0], .dq_weight = &s->t[4], .dk_weight = &s->t[5],
       .raw = &s->t[1], .q_weight = &s->t[3], .k_weight = &s->t[3], .angles = &s->t[2],
       .sequence_length = s->bench->seq, .heads = (int)s->heads, .kv_heads = (int)s->kv_heads,
       .epsilon = 1e-6f);
}

static void gated_forward_body(const struct subject *s) {
    OP(s->be, gated_forward, .out = &s->t[0], .gate_up = &s->t[1]);
}

static void gated_backward_body(const struct subject *s) {
    OP(s->be, gated_backward, .dgate_up = &s->t[1], .dout = &s->t[0], .gate_up = &s->t[1]);
}

static void embedding_forward_body(const struct subject *s) {
    OP(s->be, embedding_forward, .out = &s->t[0], .tokens = s->tokens, .token_table = &s->t[1],
       .position_table = &s->t[2], .sequence_length = s->bench->seq, .token_scale = 1);
}

static void embedding_backward_body(const struct subject *s) {
    OP(s->be, embedding_backward, .dtoken_table = &s->t[1], .dposition_table = &s->t[2],
       .dout = &s->t[0], .tokens = s->tokens, .sequence_length = s->bench->seq, .token_scale = 1);
}

static void cast_body(const struct subject *s) {
    OP(s->be, cast, .out = &s->t[0], .in = &s->t[1]);
}

/* Quantizes the MLP's gradient for both matmuls that read it. Its amax is computed here, or
 * known from the operation that wrote it. */
static void quantize_body(const struct subject *s) {
    const struct tensor scale = {s->a, DTYPE_F32, 2, {1, 1}};
    OP(s->be, quantize, .out = &s->t[0], .transposed = &s->t[2], .scales = &scale, .in = &s->t[1]);
}

static void quantize_found_body(const struct subject *s) {
    const struct tensor scale = {s->a, DTYPE_F32, 2, {1, 1}};
    OP(s->be, quantize, .out = &s->t[0], .transposed = &s->t[2], .scales = &scale, .in = &s->t[1],
       .track_amax = s->scratch, .found = true);
}

static void quantize_rows_body(const struct subject *s) {
    const struct tensor scales = {s->a, DTYPE_F32, 2, {tensor_rows(&s->t[1]), 1}};
    OP(s->be, quantize, .out = &s->t[0], .scales = &scales, .in = &s->t[1]);
}

static void clear_body(const struct subject *s) {
    OP(s->be, clear, .data = s->t[0].data, .bytes = tensor_bytes(&s->t[0]));
}

static void column_sums_body(const struct subject *s) {
    OP(s->be, column_sums, .sums = &s->t[0], .in = &s->t[1]);
}

/* Allocates the operands of an operation; returns the bytes that it must move. N rows of C, P
 * parameters, dtypes as in a bf16 step. */
static double make_layernorm(struct subject *s, int64_t N, int64_t C) {
    bool backward = s->body == layernorm_backward_body || s->body == rmsnorm_backward_body;
    make(s, 0, DTYPE_BF16, N, C, 0);
    make(s, 1, DTYPE_F32, N, C, backward ? 1 : 0);
    make(s, 2, DTYPE_BF16, N, C, 1);
    make(s, 3, DTYPE_F32, N, C, 1);
    for (int i = 4; i < 7; i++) make(s, i, DTYPE_F32, C, 0, 1);
    s->a = make_vector(s, N);
    s->b = make_vector(s, N);
    return (double)(N * C) * (backward ? 2 + 4 + 4 + 4 + 2 : 2 + 4 + 4 + 2) + 8.0 * (double)N;
}

/* q, k and v of heads 64 wide, their copy, the angles, and the tensors of the head norm. */
static double make_heads(struct subject *s, int64_t N, int64_t C) {
    int64_t size = 64;
    s->kv_heads = C / size / 3 > 0 ? C / size / 3 : 1;
    s->heads = 3 * s->kv_heads;
    int64_t qk = (s->heads + s->kv_heads) * size;
    make(s, 0, DTYPE_BF16, N, qk + s->kv_heads * size, 1);
    make(s, 1, DTYPE_BF16, N, qk, 1);
    make(s, 2, DTYPE_F32, s->bench->seq, size, 0.5);
    for (int i = 3; i < 6; i++) make(s, i, DTYPE_F32, size, 0, 1);
    return (double)(N * qk) * 2 * (s->body == rope_body ? 2 : 3);
}

/* Overwrites its input with the gradient, as in training. */
static double make_gated(struct subject *s, int64_t N, int64_t C) {
    make(s, 0, DTYPE_BF16, N, 8 * C / 3, 1);
    make(s, 1, DTYPE_BF16, N, 8 * C / 3 * 2, 1);
    return (double)(N * (8 * C / 3)) * 2 * (s->body == gated_forward_body ? 3 : 5);
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
    return (count + MOMENT_BLOCK - 1) / MOMENT_BLOCK * MOMENT_BLOCK;
}

/* Split master weights, with moments and gradients of one dtype. */
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

static double make_8bit_update(struct subject *s, int64_t N, int64_t C) {
    int64_t count = parameters_of(s, C), blocks = count / MOMENT_BLOCK;
    (void)N;
    make(s, 0, DTYPE_BF16, count, 0, 0.02);
    for (int i = 1; i < 3; i++) make(s, i, DTYPE_DYNAMIC8, count, 0, 0);
    make(s, 3, DTYPE_BF16, count, 0, 0);
    make(s, 4, DTYPE_F32, count, 0, 1e-3);
    for (int i = 5; i < 7; i++) make(s, i, DTYPE_F32, blocks, 0, 0);
    make_state(s);
    return (double)count * (2 * 4 + 4 + 2 * 2) + (double)blocks * 2 * 2 * 4;
}

static double make_gradient_norm(struct subject *s, int64_t N, int64_t C) {
    (void)N;
    int64_t count = parameters_of(s, C);
    make(s, 4, DTYPE_F32, count, 0, 1e-3);
    s->scratch = take(s, (size_t)backend_squares(s->be, &s->t[4]) * sizeof(double));
    make_state(s);
    return (double)count * 4;
}

/* One query for each of so many sequences that their keys and values exceed a cache. */
static double make_decode(struct subject *s, int64_t N, int64_t C, int64_t kv_heads) {
    int64_t T = s->bench->seq, sequences = 4 * N / T;
    s->heads = s->bench->heads;
    s->kv_heads = kv_heads;
    int64_t columns = 2 * C / s->heads * kv_heads;
    make(s, 0, DTYPE_BF16, sequences, C, 0);
    make(s, 1, DTYPE_BF16, sequences * T, columns, 1);
    make(s, 2, DTYPE_BF16, sequences, C, 1);
    make_decode_keys(s, sequences, T);
    return (double)(sequences * T * columns) * 2;
}

static double make_attention_decode(struct subject *s, int64_t N, int64_t C) {
    return make_decode(s, N, C, s->bench->heads);
}

/* Two query heads read the same keys and values. */
static double make_grouped_decode(struct subject *s, int64_t N, int64_t C) {
    return make_decode(s, N, C, s->bench->heads / 2);
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

static double make_quantize(struct subject *s, int64_t N, int64_t C) {
    bool whole = s->body != quantize_rows_body, found = s->body == quantize_found_body;
    make(s, 0, DTYPE_E5M2, N, 4 * C, 0);
    make(s, 1, DTYPE_BF16, N, 4 * C, 1);
    if (whole) make(s, 2, DTYPE_E5M2, 4 * C, N, 0);
    s->a = make_vector(s, whole ? 1 : N);
    s->scratch = make_vector(s, sizeof(struct amax) / sizeof(float));
    return (double)(N * 4 * C) * (found ? 2 + 2 : whole ? 2 + 2 + 2 : 2 + 1);
}

static double make_clear(struct subject *s, int64_t N, int64_t C) {
    make(s, 0, DTYPE_F32, N, 4 * C, 0);
    return (double)(N * 4 * C) * 4;
}

static double make_column_sums(struct subject *s, int64_t N, int64_t C) {
    make(s, 0, DTYPE_F32, 3 * C, 0, 0);
    make(s, 1, DTYPE_BF16, N, 3 * C, 1);
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
    {"softcap", softcap_body, make_cross_entropy},
    {"adamw", adamw_body, make_update},
    {"adamw_lower", adamw_body, make_lower_update},
    {"adamw_8bit", adamw_8bit_body, make_8bit_update},
    {"gradient_norm", gradient_norm_body, make_gradient_norm},
    {"attention_decode", attention_decode_body, make_attention_decode},
    {"attention_decode_grouped", attention_decode_body, make_grouped_decode},
    {"rmsnorm_forward", rmsnorm_forward_body, make_layernorm},
    {"rmsnorm_backward", rmsnorm_backward_body, make_layernorm},
    {"rope", rope_body, make_heads},
    {"qk_norm_forward", qk_norm_forward_body, make_heads},
    {"qk_norm_backward", qk_norm_backward_body, make_heads},
    {"gated_forward", gated_forward_body, make_gated},
    {"gated_backward", gated_backward_body, make_gated},
    {"embedding_forward", embedding_forward_body, make_embedding},
    {"embedding_backward", embedding_backward_body, make_embedding},
    {"column_sums", column_sums_body, make_column_sums},
    {"cast", cast_body, make_cast},
    {"quantize", quantize_body, make_quantize},
    {"quantize_found", quantize_found_body, make_quantize},
    {"quantize_rows", quantize_rows_body, make_quantize},
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
