/* Compares the emulator's mma.sync, ldmatrix and wgmma with the oracle, value by value. It says
 * nothing about timing: fences, waits, and when a tile may be overwritten. */
#include <stdarg.h>
#include <stdio.h>

#include "kernels/cuda/ptx_hopper.h"
#include "test/cute_oracle/check.h"

/* ---- counting */

static long compared, different, all_compared, all_different;

void begin(const char *format, ...) {
    char name[100];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    printf("%-52s ", name);
    compared = different = 0;
}

void end() {
    printf("%10ld compared, %ld different\n", compared, different);
    all_compared += compared;
    all_different += different;
}

static bool differs(bool equal, const char *what, int a, int b, int c) {
    compared++;
    if (equal || different++ >= 5) return false;
    printf("\n    %s (%d, %d, %d): ", what, a, b, c);
    return true;
}

void same(double ours, double theirs, const char *what, int a, int b, int c) {
    if (differs(ours == theirs, what, a, b, c)) printf("ours %.9g, CuTe's %.9g\n", ours, theirs);
}

void same_bits(uint64_t ours, uint64_t theirs, const char *what, int a, int b, int c) {
    if (differs(ours == theirs, what, a, b, c))
        printf("ours %016llx, CuTe's %016llx\n", (unsigned long long)ours,
               (unsigned long long)theirs);
}

/* ---- mma.sync m16n8k16: each value of A alone times each value of B alone, plus C */

template <typename T> static __global__ void mma_kernel() {
    int lane = (int)threadIdx.x;
    for (int pair = 0; pair < 8 * WARP * 4 * WARP; pair++) {
        int a_value = pair % 8, a_lane = pair / 8 % WARP;
        int b_value = pair / 256 % 4, b_lane = pair / 1024;
        coord left = oracle::mma_coord(oracle::A, a_lane, a_value);
        coord right = oracle::mma_coord(oracle::B, b_lane, b_value);
        uint32_t a[4] = {}, b[2] = {};
        float c[4], d[4];
        for (int i = 0; i < 4; i++) c[i] = (float)(lane * 4 + i + 1);
        if (lane == a_lane) set_fragment(a, a_value, bits_of<T>(3));
        if (lane == b_lane) set_fragment(b, b_value, bits_of<T>(5));
        if (HALF) mma_m16n8k16_f16_f32(d, a, b, c);
        else mma_m16n8k16_bf16_f32(d, a, b, c);
        for (int i = 0; i < 4; i++) {
            coord at = oracle::mma_coord(oracle::C, lane, i);
            bool meet = left.column == right.column && left.row == at.row && right.row == at.column;
            same(d[i], c[i] + (meet ? 15 : 0), "mma", pair, lane, i);
        }
    }
}

/* ---- ldmatrix */

template <bool TRANS> static __global__ void ldmatrix_kernel() {
    DYNAMIC_SHARED(uint16_t, rows);
    int lane = (int)threadIdx.x, row = (lane * 5 + 3) % WARP; /* rows in any order */
    for (int i = 0; i < 8; i++) rows[row * 8 + i] = (uint16_t)(lane * 8 + i);
    __syncthreads();
    uint32_t r[4];
    if (TRANS) ldmatrix_x4_trans(r, rows + row * 8);
    else ldmatrix_x4(r, rows + row * 8);
    for (int bit = 0; bit < 128; bit++) {
        int from = fragment_bits(r, bit / 16);
        same(oracle::ldmatrix_source(TRANS, from / 8, from % 8 * 16 + bit % 16),
             oracle::ldmatrix_destination(TRANS, lane, bit), "ldmatrix", lane, bit);
    }
}

/* ---- wgmma m64n64k16: one value of A times a tile of B whose values all differ */

enum { TILE_BYTES = 64 * 128 };

/* A sum of another row. */
static float kept(int thread, int i) {
    return (float)(thread * GROUP_SUMS + i + 1);
}

static uint64_t descriptor_of(oracle::major order, const void *tile, int step) {
    return oracle::descriptor(order, 64, emu::shared_offset(tile), step, 0);
}

template <typename T, bool REGISTERS, int ORDER>
static void multiply(float *d, const uint32_t *a, uint64_t a_tile, uint64_t b_tile) {
    group_fence();
    if (HALF && REGISTERS) group_product_f16<ORDER, 1>(d, a, b_tile);
    else if (HALF) group_product_f16<ORDER, 1>(d, a_tile, b_tile);
    else if (REGISTERS) group_product_bf16<ORDER, 1>(d, a, b_tile);
    else group_product_bf16<ORDER, 1>(d, a_tile, b_tile);
    group_commit();
    group_wait<0>();
}

template <typename T, bool REGISTERS, int ORDER> static __global__ void wgmma_kernel() {
    DYNAMIC_TILES(a_tile);
    const oracle::major order = (oracle::major)ORDER;
    unsigned char *b_tile = a_tile + TILE_BYTES;
    int thread = (int)threadIdx.x;
    for (int i = thread; i < 64 * 64; i += GROUP_THREADS) {
        int n = i / 64, k = i % 64, row = ORDER ? k : n, column = ORDER ? n : k;
        store_bits(a_tile, i, 0);
        store_bits(b_tile, oracle::tile_offset(order, 64, row, column), code(i));
    }
    __syncthreads();
    for (int one = 0; one < 64 * 16; one++) {
        int m = one / 16, k = one % 16, step = (m + k) % 4;
        int offset = oracle::tile_offset(oracle::K_MAJOR, 64, m, step * 16 + k);
        uint32_t a[4] = {};
        float d[GROUP_SUMS];
        for (int i = 0; i < 8; i++) {
            coord at = oracle::wgmma_coord(oracle::A, thread, i);
            if (at.row == m && at.column == k) set_fragment(a, i, bits_of<T>(1));
        }
        for (int i = 0; i < GROUP_SUMS; i++)
            d[i] = oracle::wgmma_coord(oracle::C, thread, i).row == m ? 0 : kept(thread, i);
        if (thread == 0) store_bits(a_tile, offset, bits_of<T>(1));
        if (thread == 0) shared_stores_done();
        __syncthreads();
        multiply<T, REGISTERS, ORDER>(d, a, descriptor_of(oracle::K_MAJOR, a_tile, step),
                                      descriptor_of(order, b_tile, step));
        for (int i = 0; i < GROUP_SUMS; i++) {
            coord at = oracle::wgmma_coord(oracle::C, thread, i);
            float product = coded<T>(at.column * 64 + step * 16 + k);
            same(d[i], at.row == m ? product : kept(thread, i), "wgmma", one, thread, i);
        }
        __syncthreads();
        if (thread == 0) store_bits(a_tile, offset, 0);
    }
}

template <typename T, bool REGISTERS, int ORDER> static void check_wgmma() {
    begin("wgmma m64n64k16 %s: A in %s, B %s", HALF ? "fp16" : "bf16",
          REGISTERS ? "registers" : "a tile", ORDER ? "MN-major" : "K-major");
    launch_block(wgmma_kernel<T, REGISTERS, ORDER>, GROUP_THREADS, 2 * TILE_BYTES);
    end();
}

template <typename T> static void check_type() {
    begin("mma.sync m16n8k16 %s: each of A with each of B", HALF ? "fp16" : "bf16");
    launch_block(mma_kernel<T>, WARP, 0);
    end();
    check_wgmma<T, false, oracle::K_MAJOR>();
    check_wgmma<T, false, oracle::MN_MAJOR>();
    check_wgmma<T, true, oracle::K_MAJOR>();
    check_wgmma<T, true, oracle::MN_MAJOR>();
}

int main() {
    printf("layouts of the emulator and of attention, compared with CUTLASS %s\n",
           oracle::version());
    begin("ldmatrix .x4, bit by bit"), launch_block(ldmatrix_kernel<false>, WARP, 512), end();
    begin("ldmatrix .x4.trans, bit by bit"), launch_block(ldmatrix_kernel<true>, WARP, 512), end();
    check_type<__nv_bfloat16>();
    check_type<__half>();
    check_attention();
    printf("%ld compared, %ld different\n", all_compared, all_different);
    return all_different != 0;
}
