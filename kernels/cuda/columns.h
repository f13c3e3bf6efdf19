/* Arrays whose dtype is known at run time only, and threads that own a pack of columns.
 *
 * Templates over the types of all tensors of a kernel would multiply. Types whose loads must be in
 * flight together are template parameters; the others (gradients that are added to once, second
 * copies, rare shapes) are passed as struct array and pay one uniform branch per access. */
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/storage.h"

struct array {
    void *data; /* NULL: absent */
    enum dtype dtype;
    bool packed; /* packs can be read at every multiple of PACK columns */
};

static inline struct array array_of(const struct tensor *tensor) {
    struct array array = {NULL, DTYPE_F32, true};
    if (tensor) array = {tensor->data, tensor->dtype, rows_are_packed(tensor)};
    return array;
}

/* Returns how many of the columns column..column + PACK - 1 exist; 0 or less beyond the last. */
static __device__ __forceinline__ int columns_from(int64_t column, int64_t columns) {
    return columns - column < PACK ? (int)(columns - column) : (int)PACK;
}

/* Number of threads of a block in which each owns a pack of columns, in whole warps up to
 * `most`. */
static inline unsigned threads_for_columns(int64_t columns, unsigned most) {
    int64_t threads = blocks_of(columns, PACK * WARP) * WARP;
    return threads < most ? (unsigned)threads : most;
}

/* Loads or stores `count` values from element `at` on. PACKED: count is PACK, and the address is
 * aligned to a pack. */
template <bool PACKED, typename T>
static __device__ __forceinline__ void load_columns(float *values, const T *from, int count) {
    if (PACKED) load_pack(values, from);
    else load_some(values, from, count);
}
template <bool PACKED, typename T>
static __device__ __forceinline__ void store_columns(T *to, const float *values, int count) {
    if (PACKED) store_pack(to, values);
    else store_some(to, values, count);
}

/* Stores each lane's pack of a row with `left` columns from there on, 0 or less beyond the end. All
 * lanes of a warp must call, with neighbouring packs. In fp32 a pack is a sector of memory and
 * takes two accesses: a pair of lanes shares each, so that no access leaves half a sector. */
template <typename T>
static __device__ __forceinline__ void store_neighbours(T *to, int left, const float *values) {
    if (left > 0) store_pack(to, values);
}
static __device__ __forceinline__ void store_neighbours(float *to, int left, const float *values) {
    int odd = (int)threadIdx.x % 2;
    float4 *at = (float4 *)to - odd; /* address of the pair's first access */
    float first[PACK / 2], second[PACK / 2];
    for (int i = 0; i < PACK / 2; i++) {
        float low = values[i], high = values[PACK / 2 + i];
        float given = __shfl_xor_sync(0xffffffffu, odd ? low : high, 1);
        first[i] = odd ? given : low;
        second[i] = odd ? high : given;
    }
    left += odd * PACK;
    if (left > 0) at[0] = make_float4(first[0], first[1], first[2], first[3]);
    if (left > PACK) at[2] = make_float4(second[0], second[1], second[2], second[3]);
}

static __device__ __forceinline__ void load_array(float *values, const struct array &from,
                                                  int64_t at, int count) {
    STORAGE_SWITCH(from.dtype, T, {
        if (from.packed && count == PACK) load_pack(values, (const T *)from.data + at);
        else load_some(values, (const T *)from.data + at, count);
    });
}

static __device__ __forceinline__ void store_array(const struct array &to, int64_t at,
                                                   const float *values, int count) {
    STORAGE_SWITCH(to.dtype, T, {
        if (to.packed && count == PACK) store_pack((T *)to.data + at, values);
        else store_some((T *)to.data + at, values, count);
    });
}

/* sums += values as rounded to the stored type. */
static __device__ __forceinline__ void add_as_stored(float *sums, const struct array &stored,
                                                     const float *values, int count) {
    STORAGE_SWITCH(stored.dtype, T, {
        for (int i = 0; i < PACK; i++)
            if (i < count) sums[i] += rounded<T>(values[i]);
    });
}

/* to += values, rounded once. */
static __device__ __forceinline__ void add_to_array(const struct array &to, int64_t at,
                                                    const float *values, int count) {
    float sums[PACK];
    load_array(sums, to, at, count);
    for (int i = 0; i < PACK; i++) sums[i] += values[i];
    store_array(to, at, sums, count);
}
