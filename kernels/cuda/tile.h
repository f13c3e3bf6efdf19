/* Tiles of bytes, transposed through shared memory: written row by row, read down the columns.
 *
 * Unit u of row r is stored at index u ^ (r / 16), so that neither writes of a row's units nor
 * reads of words down a column have bank conflicts. A thread reads 16 rows of one word, four
 * columns of bytes, and writes a unit to each. Matrices have multiples of 16 rows and columns. */
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/storage.h"

enum {
    TILE_THREADS = 256,
    TILE_SIDE = 128,                      /* in bytes */
    TILE_UNIT = EIGHT_BIT_UNIT,           /* bytes that a thread moves at once */
    TILE_UNITS = TILE_SIDE / TILE_UNIT,   /* units in a row */
    TILE_STEP = TILE_THREADS / TILE_UNITS /* rows that a block moves at once */
};

struct tile {
    uint4 units[TILE_SIDE][TILE_UNITS];
};

static inline dim3 tile_grid(int64_t rows, int64_t columns) {
    dim3 grid((unsigned)blocks_of(columns, TILE_SIDE), (unsigned)blocks_of(rows, TILE_SIDE));
    assert(rows % TILE_UNIT == 0 && columns % TILE_UNIT == 0 && grid.y <= 65535);
    return grid;
}

/* Stores the thread's unit of row `row` of the tile. */
static __device__ __forceinline__ void tile_put(struct tile *tile, int row, uint4 unit) {
    tile->units[row][(int)threadIdx.x % TILE_UNITS ^ (row / TILE_UNIT)] = unit;
}

/* Word j of `to` consists of bytes j of a, b, c, d. */
static __device__ __forceinline__ void transpose_words(uint32_t *to, uint32_t a, uint32_t b,
                                                       uint32_t c, uint32_t d) {
    uint32_t low = __byte_perm(a, b, 0x5140), high = __byte_perm(a, b, 0x7362);
    uint32_t low2 = __byte_perm(c, d, 0x5140), high2 = __byte_perm(c, d, 0x7362);
    to[0] = __byte_perm(low, low2, 0x5410);
    to[1] = __byte_perm(low, low2, 0x7632);
    to[2] = __byte_perm(high, high2, 0x5410);
    to[3] = __byte_perm(high, high2, 0x7632);
}

/* Returns the lower 4 bits of each of 16 bytes, in order. */
static __device__ __forceinline__ uint2 lower_halves(uint4 unit) {
    uint32_t words[4] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t w = words[i] & 0x0f0f0f0f;
        w = (w | w >> 4) & 0x00ff00ff;
        words[i] = (w | w >> 8) & 0xffff;
    }
    return make_uint2(words[0] | words[1] << 16, words[2] | words[3] << 16);
}

/* Stores the block's tile of a matrix of 8- or 4-bit elements, whose `columns` are in bytes,
 * transposed, to out. Call after a barrier. */
template <int BITS>
static __device__ __forceinline__ void
tile_store(uint8_t *__restrict__ out, const struct tile *tile, int64_t rows, int64_t columns) {
    int group = (int)threadIdx.x % TILE_UNITS, word = (int)threadIdx.x / TILE_UNITS;
    int64_t row = (int64_t)blockIdx.y * TILE_SIDE + group * TILE_UNIT;
    int64_t column = (int64_t)blockIdx.x * TILE_SIDE + word * 4;
    if (row >= rows || column >= columns) return;
    union {
        uint32_t words[4];
        uint4 unit;
    } packed[4];
    for (int i = 0; i < 4; i++) {
        uint32_t down[4], across[4];
        for (int j = 0; j < 4; j++) {
            const uint32_t *line = (const uint32_t *)tile->units[group * TILE_UNIT + i * 4 + j];
            down[j] = line[(word / 4 ^ group) * 4 + word % 4];
        }
        transpose_words(across, down[0], down[1], down[2], down[3]);
        for (int j = 0; j < 4; j++) packed[j].words[i] = across[j];
    }
    for (int j = 0; j < 4; j++) {
        uint4 unit = packed[j].unit;
        /* With 4 bits, a column of bytes is two of the matrix, of rows / 2 bytes each. */
        uint8_t *to = out + (column + j) * rows + row * BITS / 8;
        if (BITS == 8) {
            *(uint4 *)to = unit;
            continue;
        }
        *(uint2 *)to = lower_halves(unit);
        *(uint2 *)(to + rows / 2) =
            lower_halves(make_uint4(unit.x >> 4, unit.y >> 4, unit.z >> 4, unit.w >> 4));
    }
}
