/* Attention over sequences of 1024 tokens: one document, packed documents, and a window. */
#include "test/kernels/bench.h"

enum { T_MAX = 1024 };

static const char *const kinds[] = {
    "whole",       "documents of 32",       "documents of 256",  "window of 256",
    "whole, bf16", "documents of 32, bf16", "documents of 1024", NULL};

/* Sizes of the documents and the window of each kind; 0: none. */
static const int64_t documents[] = {0, 32, 256, 0, 0, 32, T_MAX},
                     windows[] = {0, 0, 0, 256, 0, 0, 0};

static enum dtype dtype_of(int kind) {
    return kind == 4 || kind == 5 ? DTYPE_BF16 : DTYPE_F32;
}

struct operands {
    struct tensor qkv, out, dout, dqkv, lse;
    int32_t *first_keys;
};

static struct tensor sequences(struct bench *b, enum dtype dtype, int64_t columns) {
    struct tensor rows = bench_rows(b, dtype, columns);
    int64_t count = b->rows / T_MAX > 1 ? b->rows / T_MAX : 1;
    rows.shape[0] = b->rows / count * count;
    return tensor_split(&rows, count, rows.shape[0] / count);
}

static struct operands operands_of(struct bench *b, int kind) {
    enum dtype dtype = dtype_of(kind);
    int64_t all = BENCH_HEADS * BENCH_HEAD_SIZE, document = documents[kind];
    struct operands o = {sequences(b, dtype, BENCH_QKV),
                         sequences(b, dtype, all),
                         sequences(b, dtype, all),
                         sequences(b, dtype, BENCH_QKV),
                         bench_rows(b, DTYPE_F32, BENCH_HEADS),
                         NULL};
    if (!document && !windows[kind]) return o;
    o.first_keys = arena_take(&b->arena, (size_t)b->rows * sizeof *o.first_keys);
    for (int64_t i = 0; o.first_keys && i < b->rows; i++) {
        int64_t t = i % o.qkv.shape[1], past = t - windows[kind] + 1;
        o.first_keys[i] = (int32_t)(document ? t - t % document : past > 0 ? past : 0);
    }
    return o;
}

static size_t time_forward(struct bench *b, int kind) {
    struct operands o = operands_of(b, kind);
    OP(&b->be, attention_forward, .out = &o.out, .lse = o.lse.data, .qkv = &o.qkv,
       .first_keys = o.first_keys, .scale = 0.125, .heads = BENCH_HEADS,
       .kv_heads = BENCH_KV_HEADS);
    return tensor_bytes(&o.qkv) + tensor_bytes(&o.out);
}
BENCH(attention, forward, kinds, time_forward)

static size_t time_backward(struct bench *b, int kind) {
    struct operands o = operands_of(b, kind);
    OP(&b->be, attention_backward, .dqkv = &o.dqkv, .dout = &o.dout, .qkv = &o.qkv, .out = &o.out,
       .lse = o.lse.data, .first_keys = o.first_keys, .scale = 0.125, .heads = BENCH_HEADS,
       .kv_heads = BENCH_KV_HEADS);
    return 2 * tensor_bytes(&o.qkv) + 2 * tensor_bytes(&o.out);
}
BENCH(attention, backward, kinds, time_backward)
