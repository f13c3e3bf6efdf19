/* Compares what the attention kernels assume about layouts with the oracle: fragments, masks, the
 * descriptors of their tiles, tensor maps, and the slots of their ring. The kernels' sources are
 * included, so that their parts can be called one by one. */
#include <stdio.h>

#include "kernels/cuda/attention_backward.h"
#include "kernels/cuda/partials.h"
#include "kernels/cuda/ptx_hopper.h"

/* Records the operands of each wgmma instead of multiplying. */
struct wgmma_call {
    uint64_t a, b;
    bool registers, half, wide;
    int a_transposed, transposed, add;
};
static struct wgmma_call calls[256];
static int call_count;

static void record(const struct wgmma_call &call) {
    if (threadIdx.x == 0 && call_count < 256) calls[call_count++] = call;
}
#define RECORDED(name, half)                                                                     \
    template <int TRANSPOSED, int ADD> static void name(float *, uint64_t a, uint64_t b) {       \
        record({a, b, false, half, false, 0, TRANSPOSED, ADD});                                  \
    }                                                                                            \
    template <int TRANSPOSED, int ADD>                                                           \
    static void name##_transposed(float *, uint64_t a, uint64_t b) {                             \
        record({a, b, false, half, false, 1, TRANSPOSED, ADD});                                  \
    }                                                                                            \
    template <int ADD> static void name##_wide(float *, uint64_t a, uint64_t b) {                \
        record({a, b, false, half, true, 0, 0, ADD});                                            \
    }                                                                                            \
    template <int TRANSPOSED, int ADD> static void name(float *, const uint32_t *, uint64_t b) { \
        record({0, b, true, half, false, 0, TRANSPOSED, ADD});                                   \
    }
RECORDED(recorded_bf16, false)
RECORDED(recorded_f16, true)

/* Records a wait instead of waiting. */
static phase_barrier *awaited;
static int awaited_parity;
static void recorded_wait(phase_barrier *barrier, int parity) {
    awaited = barrier;
    awaited_parity = parity;
}

#define group_product_bf16            recorded_bf16
#define group_product_bf16_transposed recorded_bf16_transposed
#define group_product_bf16_wide       recorded_bf16_wide
#define group_product_f16             recorded_f16
#define group_product_f16_transposed  recorded_f16_transposed
#define group_product_f16_wide        recorded_f16_wide
#define phase_wait                    recorded_wait
#include "kernels/cuda/attention_wgmma.h"
#undef phase_wait

namespace mma_backward {
#include "kernels/cuda/attention_mma_backward.h"
}
namespace mma_forward {
#include "kernels/cuda/attention_mma_forward.cu"
}
namespace wgmma_forward {
#include "kernels/cuda/attention_wgmma_forward.cu"
}
namespace wgmma_backward {
#include "kernels/cuda/attention_wgmma_backward.cu"
}
#include "test/cute_oracle/check.h"

/* ---- fragments of the mma kernels */

/* Compares an operand of mma, or two of B whose columns are 8 apart, with values of a tile whose
 * rows are m or n, with TRANS k. row and k: where the operand begins. */
template <typename T, int D, oracle::operand WHICH, bool TRANS>
static void check_fragment(const uint32_t r[4], int row, int k) {
    for (int i = 0; i < 8; i++) {
        bool second = WHICH == oracle::B && i >= 4;
        int value = second ? i - 4 : i;
        coord at = oracle::mma_coord(WHICH, (int)threadIdx.x, value);
        int down = row + at.row + (second ? 8 : 0), right = k + at.column;
        same(fragment_bits(r, i), code(TRANS ? right * D + down : down * D + right), "fragment",
             row, k, i);
    }
}

template <typename T, int D> static __global__ void fragments_kernel() {
    DYNAMIC_SHARED(T, tile);
    const oracle::operand A = oracle::A, B = oracle::B;
    for (int i = (int)threadIdx.x; i < 64 * D; i += WARP)
        store_bits(tile, tile_offset<D>(i / D, i % D / 8) + i % 8, code(i));
    __syncthreads();
    struct tile_lanes down = down_then_right<D>(tile), right = right_then_down<D>(tile);
    struct mma_backward::stream_lanes stream = mma_backward::stream_lanes<D>(tile);
    for (int i = 0; i < 64 / 16 * D / 16; i++) {
        int row = i / (D / 16) * 16, column = i % (D / 16) * 16;
        uint32_t r[4];
        fragment_a<D>(r, &down, row, column);
        check_fragment<T, D, A, false>(r, row, column);
        fragments_b<D>(r, &right, column, row);
        check_fragment<T, D, B, false>(r, row, column);
        fragments_b_trans<D>(r, &down, row, column);
        check_fragment<T, D, B, true>(r, column, row);
        ldmatrix_x4(r, mma_backward::column_from(stream.along + row * D * 2, column));
        check_fragment<T, D, B, false>(r, row, column);
        ldmatrix_x4_trans(r, mma_backward::column_from(stream.down + row * D * 2, column));
        check_fragment<T, D, B, true>(r, column, row);
    }
}

/* Accumulators rounded to 16 bits, as A of the next product. */
template <typename T> static __global__ void rounded_kernel() {
    int thread = (int)threadIdx.x, lane = thread % WARP;
    float left[4], right[4], s[GROUP_SUMS];
    uint32_t a[4], p[4][4];
    for (int i = 0; i < 4; i++) {
        coord at = oracle::mma_coord(oracle::C, lane, i);
        left[i] = coded<T>(at.row * 64 + at.column);
        right[i] = coded<T>(at.row * 64 + at.column + 8);
    }
    rounded_fragment<T>(a, left, right);
    for (int i = 0; i < 8; i++) {
        coord at = oracle::mma_coord(oracle::A, lane, i);
        same(fragment_bits(a, i), code(at.row * 64 + at.column), "mma", lane, i);
    }
    for (int i = 0; i < GROUP_SUMS; i++) {
        coord at = oracle::wgmma_coord(oracle::C, thread, i);
        s[i] = coded<T>(at.row * 64 + at.column);
    }
    round_to<T>(p, s);
    for (int i = 0; i < 32; i++) {
        coord at = oracle::wgmma_coord(oracle::A, thread, i % 8);
        same(fragment_bits(p[i / 8], i % 8), code(at.row * 64 + i / 8 * 16 + at.column), "wgmma",
             thread, i);
    }
}

/* ---- masks */

template <int KEYS> static void check_forward_mask(int ahead) {
    float s[mma_forward::ROW_TILES][KEYS / 8][4] = {};
    mma_forward::mask<KEYS>(s, ahead);
    for (int i = 0; i < mma_forward::ROW_TILES * KEYS / 2; i++) {
        int band = i / (KEYS / 2), n = i / 4 % (KEYS / 8);
        coord at = oracle::mma_coord(oracle::C, (int)threadIdx.x % WARP, i % 4);
        bool masked = n * 8 + at.column > ahead + band * 16 + at.row;
        same(isinf(s[band][n][i % 4]), masked, "mma, forward", KEYS, ahead, i);
    }
}
template <int D, bool KEYS_DOWN> static void check_backward_mask(int ahead) {
    float s[mma_backward::backward_tiles<D>::BANDS][2][4] = {};
    mma_backward::mask<D, KEYS_DOWN>(s, ahead);
    for (int i = 0; i < mma_backward::backward_tiles<D>::BANDS * 8; i++) {
        coord at = oracle::mma_coord(oracle::C, (int)threadIdx.x % WARP, i % 4);
        int row = i / 8 * 16 + at.row, column = i / 4 % 2 * 8 + at.column;
        bool masked = KEYS_DOWN ? row > ahead + column : column > ahead + row;
        same(isinf(s[i / 8][i / 4 % 2][i % 4]), masked, "mma, backward", KEYS_DOWN, ahead, i);
    }
}
template <bool KEYS_DOWN> static void check_wgmma_mask(int ahead) {
    float s[GROUP_SUMS] = {};
    mask<KEYS_DOWN>(s, ahead);
    for (int i = 0; i < GROUP_SUMS; i++) {
        coord at = oracle::wgmma_coord(oracle::C, (int)threadIdx.x, i);
        int row = ahead + at.row - (int)threadIdx.x / WARP * 16;
        bool masked = KEYS_DOWN ? row > at.column : at.column > row;
        same(isinf(s[i]), masked, "wgmma", KEYS_DOWN, ahead, i);
    }
}
static __global__ void masks_kernel() {
    for (int ahead = -70; ahead <= 70; ahead++) {
        check_forward_mask<64>(ahead), check_forward_mask<48>(ahead), check_forward_mask<32>(ahead);
        check_backward_mask<64, false>(ahead), check_backward_mask<64, true>(ahead);
        check_backward_mask<128, false>(ahead), check_backward_mask<128, true>(ahead);
        check_wgmma_mask<false>(ahead), check_wgmma_mask<true>(ahead);
    }
}

/* ---- descriptors, as the kernels build them for each of their tiles */

/* Calls that follow are recorded. */
static void begin_calls() {
    __syncthreads();
    if (threadIdx.x == 0) call_count = 0;
    __syncthreads();
}
/* The leading offset of an MN-major operand is the distance of its blocks of 64 columns. An
 * instruction with 64 columns reads one block: CuTe has 0 there, the kernels 1. */
static uint64_t compared(oracle::major order) {
    return order == oracle::K_MAJOR ? ~(uint64_t)0 : ~((uint64_t)0x3fff << 16);
}
/* Compares an operand of call i with step `step` of the tile at `address`, 64 columns wide. */
static void same_operand(uint64_t ours, oracle::major order, unsigned address, int step,
                         const char *what, int i) {
    same_bits(ours & compared(order),
              oracle::descriptor(order, 64, address, step, 0) & compared(order), what, order, i);
}

/* Compares the calls of start_scores with tiles a and b, or without a those of start_sums. */
template <typename T, int D>
static void check_calls(const unsigned char *a, const unsigned char *b) {
    const oracle::major order = a ? oracle::K_MAJOR : oracle::MN_MAJOR;
    const int blocks = a ? 1 : D / 64;
    float sums[D / 64][GROUP_SUMS];
    uint32_t p[4][4] = {};
    begin_calls();
    if (a) start_scores<T, D, 1>(sums, a, b);
    else start_sums<T, D, 1>(sums, &p, b);
    __syncthreads();
    if (threadIdx.x > 0) return;
    unsigned a_at = a ? emu::shared_offset(a) : 0, b_at = emu::shared_offset(b);
    same(call_count, a ? D / 16 : 4 * blocks, "products", D, order);
    for (int i = 0; i < call_count; i++) {
        uint64_t b_theirs = oracle::descriptor(order, D, b_at, i / blocks, i % blocks);
        if (a) same_bits(calls[i].a, oracle::descriptor(order, D, a_at, i, 0), "A", D, i);
        same_bits(calls[i].b & compared(order), b_theirs & compared(order), "B", D, i);
        same(calls[i].transposed, order, "order of B", D, i);
        same(calls[i].add, !a || i > 0, "adds", D, i);
        same(calls[i].half, HALF, "type", D, i);
        same(calls[i].registers, !a, "A in registers", D, i);
        same(calls[i].wide || calls[i].a_transposed, false, "form", D, i);
    }
}
/* Layout of 128 rows of b: 64 values of 128 rows come first, then the next 64. */
template <typename T, int D>
static void check_wide_calls(const unsigned char *a, const unsigned char *b) {
    float sums[2][GROUP_SUMS];
    begin_calls();
    start_scores<T, D, 2>(sums, a, b);
    __syncthreads();
    if (threadIdx.x > 0) return;
    same(call_count, D / 16, "wide products", D);
    for (int i = 0; i < call_count; i++) {
        unsigned half = (unsigned)i / 4 * TILE_BYTES;
        same_operand(calls[i].a, oracle::K_MAJOR, emu::shared_offset(a) + half, i % 4, "A", i);
        same_operand(calls[i].b, oracle::K_MAJOR, emu::shared_offset(b) + 2 * half, i % 4, "B", i);
        same(calls[i].wide && !calls[i].a_transposed, true, "wide form", D, i);
        same(calls[i].add, i > 0, "adds", D, i);
        same(calls[i].half, HALF, "type", D, i);
    }
}
template <typename T, int D> static __global__ void forward_descriptors_kernel() {
    typedef struct wgmma_forward::layout<D> places;
    DYNAMIC_TILES(shared);
    struct wgmma_forward::ring<D> ring = {
        shared + places::SLOTS_AT, {}, {}
    };
    for (int i = 0; i < wgmma_forward::GROUPS * places::SLOTS; i++) {
        const unsigned char *slot = wgmma_forward::slot_at(ring, i % places::SLOTS);
        const unsigned char *own = shared + i / places::SLOTS * head_tile<D>::BYTES;
        if (places::TILES == 2) check_wide_calls<T, D>(own, slot);
        else check_calls<T, D>(own, slot);
        for (int j = 0; j < places::TILES; j++)
            check_calls<T, D>(NULL, slot + places::VALUES + j * head_tile<D>::BYTES);
    }
}
/* dQ: both operands are read by columns, dS' of one group's keys after the other's. */
template <typename T, int D>
static void check_query_calls(const struct wgmma_backward::places<D> &p, int step) {
    float dq[GROUP_SUMS];
    begin_calls();
    wgmma_backward::start_query_sums<T, D>(dq, p, step);
    __syncthreads();
    if (threadIdx.x > 0) return; /* thread 0 is in group 0 */
    same(call_count, 2 * 64 / 16, "products of dQ", D);
    for (int i = 0; i < call_count; i++) {
        const unsigned char *ds = wgmma_backward::ds_tile(p, step, 0, i / 4);
        const unsigned char *keys = wgmma_backward::keys_of(p, i / 4);
        same_operand(calls[i].a, oracle::MN_MAJOR, emu::shared_offset(ds), i % 4, "dS", i);
        same_operand(calls[i].b, oracle::MN_MAJOR, emu::shared_offset(keys), i % 4, "K", i);
        same(calls[i].a_transposed && calls[i].transposed && !calls[i].wide, true, "form", D, i);
        same(calls[i].add, i > 0, "adds", D, i);
        same(calls[i].half, HALF, "type", D, i);
    }
}
template <typename T, int D> static __global__ void backward_descriptors_kernel() {
    typedef struct wgmma_backward::layout<D> at;
    DYNAMIC_TILES(shared);
    struct wgmma_backward::places<D> p = wgmma_backward::places_of<D>(shared);
    for (int i = 0; i < wgmma_backward::GROUPS * at::SLOTS; i++) {
        const unsigned char *keys = wgmma_backward::keys_of(p, i / at::SLOTS);
        const unsigned char *slot = wgmma_backward::slot_at(p, i % at::SLOTS);
        for (int j = 0; j < 2; j++) {
            const unsigned char *a = keys + j * at::VALUES, *b = slot + j * at::DOUT;
            if (at::HALVES == 2) check_wide_calls<T, D>(a, b);
            else check_calls<T, D>(a, b);
            for (int half = 0; half < at::HALVES; half++)
                check_calls<T, D>(NULL, b + half * TILE_BYTES);
        }
    }
    for (int step = 0; step < wgmma_backward::DS_BUFFERS; step++) check_query_calls<T, D>(p, step);
}

/* stmatrix stores dS' as wgmma reads it: rows of keys, columns of queries. */
template <typename T> static __global__ void stored_kernel() {
    DYNAMIC_TILES(tile);
    float s[GROUP_SUMS];
    uint32_t a[4][4];
    for (int i = 0; i < GROUP_SUMS; i++) {
        coord at = oracle::wgmma_coord(oracle::C, (int)threadIdx.x, i);
        s[i] = coded<T>(at.row * 64 + at.column);
    }
    round_to<T>(a, s);
    wgmma_backward::store_ds(tile, a);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < 64 * 64; i += GROUP_THREADS) {
        uint16_t found;
        memcpy(&found, tile + 2 * oracle::tile_offset(oracle::MN_MAJOR, 64, i / 64, i % 64), 2);
        same(found, code(i), "dS as stored", i / 64, i % 64);
    }
}

/* ---- tensor maps, and where copies of their tiles store each value */

enum { ROWS = 70, HEADS = 3, BATCH = 2 };

static oracle::tensor_map our_map;
static RECORD_TENSOR_MAP(recording_encode, our_map);

/* Maps may order their dimensions differently: those with the same stride belong together. The ones
 * that a box spans have to come in the same order. */
static void same_map(const oracle::tensor_map &map) {
    same(our_map.type, map.type, "map: type");
    same(our_map.rank, map.rank, "map: rank");
    same_bits(our_map.base, map.base, "map: base");
    same(our_map.interleave, map.interleave, "map: interleave");
    same(our_map.swizzle, map.swizzle, "map: swizzle");
    same(our_map.fill, map.fill, "map: fill");
    int last = -1;
    for (int d = 0; d < 4; d++) {
        int e = 0;
        while (e < 3 && map.strides[e] != our_map.strides[d]) e++;
        same((double)our_map.strides[d], (double)map.strides[e], "map: stride", d);
        same((double)our_map.sizes[d], (double)map.sizes[e], "map: size", d);
        same((double)our_map.box[d], (double)map.box[e], "map: box", d);
        same((double)our_map.steps[d], (double)map.steps[e], "map: steps", d);
        if (our_map.box[d] == 1) continue;
        same(e > last, true, "map: order", d);
        last = e;
    }
}

template <int D>
static __global__ void copy_kernel(const uint16_t *all, const __grid_constant__ CUtensorMap map) {
    DYNAMIC_TILES(shared);
    phase_barrier *full = (phase_barrier *)(shared + 2 * head_tile<D>::BYTES);
    unsigned char *tile = shared + head_tile<D>::BYTES;
    if (threadIdx.x == 0) phase_init(full, 1), phase_init_done();
    __syncthreads();
    for (int i = 0; i < HEADS * BATCH * 2; i++) {
        int head = i % HEADS, batch = i / HEADS % BATCH, first = i / HEADS / BATCH * 64;
        if (threadIdx.x == 0) {
            phase_arrive_expecting(full, head_tile<D>::BYTES);
            fetch_rows<D>(tile, &map, head, first, batch, full);
        }
        phase_wait(full, i % 2);
        for (int j = (int)threadIdx.x; j < 64 * D; j += (int)blockDim.x) {
            int row = first + j / D, column = j % D;
            int offset = oracle::tile_offset(oracle::K_MAJOR, D, j / D, column);
            uint16_t found, expected = 0;
            memcpy(&found, tile + 2 * offset, sizeof found);
            if (row < ROWS) expected = all[((batch * ROWS + row) * HEADS + head) * D + column];
            same(found, expected, "copied", row, column, i);
            same(chunk_at(j / D, column / 8) + column % 8, offset, "chunk_at", j / D, column);
            same(oracle::tile_offset(oracle::MN_MAJOR, D, j / D, column), offset, "MN-major", j);
        }
        __syncthreads();
    }
}

template <typename T, int D> static void check_copies() {
    static uint16_t host[BATCH * ROWS * HEADS * 128];
    uint16_t *all;
    for (size_t i = 0; i < sizeof host / 2; i++) host[i] = (uint16_t)(i + 1);
    cudaMalloc((void **)&all, sizeof host);
    cudaMemcpy(all, host, sizeof host, cudaMemcpyHostToDevice);
    struct cuda_state cuda = {};
    struct backend be = {};
    struct tensor of = {};
    struct attention_shape shape = {BATCH, ROWS, 1, 1, D};
    CUtensorMap map, floats;
    be.state = &cuda;
    of.dtype = HALF ? DTYPE_F16 : DTYPE_BF16;
    of.data = all;
    cuda.encode_tensor_map = (void *)recording_encode;
    attention_wgmma_map_floats(&floats, &be, (const float *)all, 128, 6, 3, 2);
    same_map(oracle::map_of_floats(6, 3, 2, (uint64_t)all));
    attention_wgmma_map(&map, &be, &of, HEADS, &shape);
    same_map(oracle::map_of_heads(HALF, D, ROWS, HEADS, BATCH, (uint64_t)all));
    cuda.major = 9;
    cuda.encode_tensor_map = NULL;
    bool made = attention_wgmma_supports(&cuda, of.dtype, D) &&
                attention_wgmma_map(&map, &be, &of, HEADS, &shape);
    same(made, true, "the emulator takes the map");
    if (made)
        launch_block(copy_kernel<D>, 64, 2 * head_tile<D>::BYTES + 8, (const uint16_t *)all, map);
    cudaFree(all);
}

/* ---- slots and parities of the ring */

static __global__ void ring_kernel() {
    DYNAMIC_SHARED(unsigned char, shared);
    typedef struct wgmma_forward::layout<64> at;
    static_assert(at::SLOTS == 4, "stages of oracle.cpp");
    phase_barrier *barriers = (phase_barrier *)shared;
    struct wgmma_forward::ring<64> ring = {
        shared, {barriers, at::SLOTS}, { barriers + at::SLOTS, at::SLOTS }
    };
    for (int step = 0; step < 64; step++) {
        oracle::pipeline_state reads = oracle::consumer_state(step);
        oracle::pipeline_state fills = oracle::producer_state(step);
        wait_for_step(ring.full, step);
        same((double)(awaited - ring.full.first), reads.index, "slot to read", step);
        same(awaited_parity, reads.phase, "parity to read", step);
        same((double)(wgmma_forward::slot_at(ring, step) - shared) / at::SLOT, reads.index,
             "address of the slot", step);
        same((double)(barrier_of(ring.full, step) - ring.full.first), fills.index,
             "barrier that counts bytes", step);
        if (step < at::SLOTS) continue; /* nothing to wait for */
        wait_for_step(ring.empty, step - at::SLOTS);
        same((double)(awaited - ring.empty.first), fills.index, "slot to fill", step);
        same(awaited_parity, fills.phase, "parity to fill", step);
    }
}

/* ---- all of it */

template <typename T, int D> static void check_width() {
    const char *type = HALF ? "fp16" : "bf16";
    begin("%s, heads of %d: fragments by ldmatrix", type, D);
    launch_block(fragments_kernel<T, D>, WARP, 64 * D * 2);
    end();
    begin("%s, heads of %d: descriptors of all tiles and steps", type, D);
    launch_block(forward_descriptors_kernel<T, D>, WARP, wgmma_forward::layout<D>::BYTES);
    launch_block(backward_descriptors_kernel<T, D>, WARP, wgmma_backward::layout<D>::BYTES);
    end();
    begin("%s, heads of %d: tensor maps and swizzled tiles", type, D);
    check_copies<T, D>();
    end();
}

void check_attention() {
    begin("accumulators rounded to A, bf16 and fp16");
    launch_block(rounded_kernel<__nv_bfloat16>, GROUP_THREADS, 0);
    launch_block(rounded_kernel<__half>, GROUP_THREADS, 0);
    end();
    begin("dS' as stored, bf16 and fp16");
    launch_block(stored_kernel<__nv_bfloat16>, GROUP_THREADS, TILE_BYTES);
    launch_block(stored_kernel<__half>, GROUP_THREADS, TILE_BYTES);
    end();
    begin("masks"), launch_block(masks_kernel, GROUP_THREADS, 0), end();
    begin("slots and parities of the ring"), launch_block(ring_kernel, 1, 256), end();
    check_width<__nv_bfloat16, 64>();
    check_width<__nv_bfloat16, 128>();
    check_width<__half, 64>();
    check_width<__half, 128>();
}
