/* Attention of single queries over a cache of keys and values: its arguments, as in
 * kernels/kernels.h, which includes this. */
#pragma once

#include <stdint.h>

#include "kernels/host_device.h"
#include "kernels/tensor.h"

struct trace_label;

/* Keys of a query, with their values: rows of the cache in two runs, a prefix that queries may
 * share and its own rows. They count from 0 through both runs. */
struct decode_keys {
    int32_t prefix, prefix_count; /* rows prefix .. prefix + prefix_count - 1 */
    int32_t first, count;         /* rows first, first + stride, ...: `count` of them */
};

/* Rows of attention_forward's result, one for each query over its own keys, for generation and for
 * texts with a common prefix. A row of the cache ends with its keys and values, like a row of qkv;
 * columns before them are not read. */
struct attention_decode_args {
    const struct tensor *out;        /* [N, H D] */
    const struct tensor *q;          /* [N, H D or more]: the first columns are read */
    const struct tensor *cache;      /* [R, 2 H_kv D or more], dtype of q */
    const struct decode_keys *keys;  /* [N], in backend memory, of at least one key each */
    int64_t stride;                  /* rows from one own key to the next */
    int64_t keys_from, keys_to;      /* no query reads keys before keys_from, or from keys_to on */
    int64_t keys_max;                /* largest keys_to of all calls: scratch and the sizes of the
                                      * parts that keys are split into follow from it and N. Parts
                                      * begin at keys_from on a CPU, at key 0 on a GPU. The scratch
                                      * is enough for fewer queries, too */
    int64_t split_as;                /* number of queries that the parts follow from on a CPU, at
                                      * least N, so that results do not depend on N; 0: N */
    int64_t window;                  /* a query reads at most this many keys, the last; 0: all */
    double scale;                    /* as in struct attention_forward_args */
    float softcap;                   /* the same */
    int heads;                       /* H */
    int kv_heads;                    /* H_kv: H is a multiple of it */
    const struct trace_label *label; /* optional */
};

/* Returns the number of keys of both runs. */
static ON_HOST_AND_DEVICE int64_t decode_key_count(const struct decode_keys *keys) {
    return (int64_t)keys->prefix_count + keys->count;
}

/* Returns the first key that a query reads. window: as in struct attention_decode_args. */
static ON_HOST_AND_DEVICE int64_t decode_first_key(const struct decode_keys *keys, int64_t window) {
    int64_t outside = decode_key_count(keys) - window;
    return window > 0 && outside > 0 ? outside : 0;
}

/* Returns the cache row of a query's key. */
static ON_HOST_AND_DEVICE int64_t decode_key_row(const struct decode_keys *keys, int64_t key,
                                                 int64_t stride) {
    return key < keys->prefix_count ? keys->prefix + key
                                    : keys->first + (key - keys->prefix_count) * stride;
}

/* Returns the cache row of a query's last key, its own. */
static ON_HOST_AND_DEVICE int64_t decode_last_row(const struct decode_keys *keys, int64_t stride) {
    return decode_key_row(keys, decode_key_count(keys) - 1, stride);
}
