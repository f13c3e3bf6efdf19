/* The functions of kernels/cuda/ptx_hopper.h in the emulator (hopper.cpp). Keep both files in
 * step. */
#ifndef TEST_CUDA_EMULATOR_PTX_HOPPER_EMULATED_H
#define TEST_CUDA_EMULATOR_PTX_HOPPER_EMULATED_H

#include <cuda.h>

namespace emu {

void phase_init(uint64_t *barrier, int count, site at);
void phase_arrive(uint64_t *barrier, int bytes, site at);
void phase_wait(uint64_t *barrier, int parity, site at);
void tensor_copy(void *to, const CUtensorMap *map, const int place[4], uint64_t *barrier, site at);
void shared_stores_done();

/* One matmul of a warp group: A from a descriptor, or from registers if a is not NULL. */
struct group_product {
    float *d;
    const uint32_t *a;
    uint64_t a_tile, b_tile;
    int columns; /* 64 or 128 of B */
    bool a_transposed, transposed, add;
    float (*value)(uint16_t bits);
    tensor_core_format format;
};
void group_multiply(const group_product &product, site at);
void group_fence(site at);
void group_commit(site at);
void group_wait(int pending, site at);

} // namespace emu

#define DYNAMIC_TILES(name) \
    unsigned char *name = static_cast<unsigned char *>(emu::dynamic_shared(TILE_ALIGNMENT))

static inline void phase_init(uint64_t *barrier, int count, EMU_SITE) {
    emu::phase_init(barrier, count, EMU_HERE);
}
static inline void phase_init_done() {}
static inline void phase_arrive(uint64_t *barrier, EMU_SITE) {
    emu::phase_arrive(barrier, 0, EMU_HERE);
}
static inline void phase_arrive_expecting(uint64_t *barrier, int bytes, EMU_SITE) {
    emu::phase_arrive(barrier, bytes, EMU_HERE);
}
static inline void phase_wait(uint64_t *barrier, int parity, EMU_SITE) {
    emu::phase_wait(barrier, parity, EMU_HERE);
}
static inline void tensor_copy(void *to, const CUtensorMap *map, int x, int y, int z, int w,
                               uint64_t *barrier, EMU_SITE) {
    const int place[4] = {x, y, z, w};
    emu::tensor_copy(to, map, place, barrier, EMU_HERE);
}
static inline void tensor_map_prefetch(const CUtensorMap *) {}
static inline void shared_stores_done() {
    emu::shared_stores_done();
}
template <int registers> static inline void group_takes_registers() {}
template <int registers> static inline void group_gives_registers() {}
static inline void group_fence(EMU_SITE) {
    emu::group_fence(EMU_HERE);
}
static inline void group_commit(EMU_SITE) {
    emu::group_commit(EMU_HERE);
}
template <int pending> static inline void group_wait(EMU_SITE) {
    emu::group_wait(pending, EMU_HERE);
}
static inline uint64_t tile_descriptor(const void *tile) {
    return (uint64_t)(emu::shared_offset(tile) >> 4 & 0x3fff) | (uint64_t)1 << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}
#define GROUP_TILES(name, value, format, transposed)                                              \
    template <int TRANSPOSED, int ADD>                                                            \
    static inline void name(float d[32], uint64_t a, uint64_t b, EMU_SITE) {                      \
        emu::group_multiply(                                                                      \
            {d, NULL, a, b, 64, transposed, TRANSPOSED != 0, ADD != 0, value, format}, EMU_HERE); \
    }
#define GROUP_PRODUCT(name, value, format)                                                     \
    GROUP_TILES(name, value, format, false)                                                    \
    GROUP_TILES(name##_transposed, value, format, true)                                        \
    template <int TRANSPOSED, int ADD>                                                         \
    static inline void name(float d[32], const uint32_t a[4], uint64_t b, EMU_SITE) {          \
        emu::group_multiply({d, a, 0, b, 64, false, TRANSPOSED != 0, ADD != 0, value, format}, \
                            EMU_HERE);                                                         \
    }                                                                                          \
    template <int ADD>                                                                         \
    static inline void name##_wide(float d[64], uint64_t a, uint64_t b, EMU_SITE) {            \
        emu::group_multiply({d, NULL, a, b, 128, false, false, ADD != 0, value, format},       \
                            EMU_HERE);                                                         \
    }
GROUP_PRODUCT(group_product_bf16, emu::bf16_value, emu::BF16)
GROUP_PRODUCT(group_product_f16, emu::f16_value, emu::F16)
#undef GROUP_PRODUCT
#undef GROUP_TILES
static inline void stmatrix_x4(void *row, const uint32_t r[4], EMU_SITE) {
    emu::stmatrix(row, r, EMU_HERE);
}
static inline void add_to_global(float *to, const float values[4], EMU_SITE) {
    emu::check_aligned("add_to_global", to, 16, EMU_HERE);
    for (int i = 0; i < 4; i++) to[i] += values[i];
}
#endif
