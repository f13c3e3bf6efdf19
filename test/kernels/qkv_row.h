/* A row of qkv is q | k | v: H heads of D values, then H_kv heads, then H_kv heads. */
#pragma once

#include <stdint.h>

struct qkv_row {
    int64_t heads, kv_heads, width;         /* H, H_kv, D */
    int64_t q_columns, kv_columns, columns; /* H D, H_kv D, of the whole row */
};

/* kv_heads 0 means as many as heads. */
static inline struct qkv_row qkv_row(int64_t heads, int64_t kv_heads, int64_t width) {
    if (kv_heads == 0) kv_heads = heads;
    return (struct qkv_row){heads,         kv_heads,         width,
                            heads * width, kv_heads * width, (heads + 2 * kv_heads) * width};
}

/* Returns the columns of the keys and values that query head `head` reads. */
static inline int64_t key_column(struct qkv_row row, int64_t head) {
    return row.q_columns + head / (row.heads / row.kv_heads) * row.width;
}
static inline int64_t value_column(struct qkv_row row, int64_t head) {
    return key_column(row, head) + row.kv_columns;
}
