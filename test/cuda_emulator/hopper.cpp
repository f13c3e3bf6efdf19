/* Barriers that count bytes, tensor copies and matmuls of warp groups, as strict as the hardware
 * may be:
 *
 * - A copy completes when a thread would otherwise wait in vain; until then its target reads as
 *   NaN.
 * - Matmuls are done at the wait. Until then their sums read as NaN; a matmul on registers that
 *   were used in between needs a fence before it.
 * - Copies and matmuls see shared memory through a separate view (the "async proxy"). Stores of
 *   threads reach it by shared_stores_done. The launch fails where a matmul would read other
 *   values than the threads see. */
#include <math.h>
#include <string.h>

#include <cuda.h>

#include "test/cuda_emulator/fibers.h"
#include "test/cuda_emulator/hopper.h"
#include "test/cuda_emulator/limits.h"

namespace emu {

enum {
    RANK = 4,
    UNIT = 16,            /* bytes that are swizzled as one unit */
    ROW = 128,            /* bytes in a row of a tile */
    EIGHT_ROWS = 8 * ROW, /* bytes after which the swizzle pattern repeats */
    SUMS = 64,            /* per thread, for 128 columns */
    DEPTH = 16,
    COPIES = 64,
    PRODUCTS = 64,
    ACCUMULATORS = 8
};

/* Content of our CUtensorMap. */
struct tensor_map {
    const char *base;
    uint64_t sizes[RANK], strides[RANK]; /* in elements; strides in bytes */
    uint32_t box[RANK];
    uint32_t element;
    bool swizzled;
};
static_assert(sizeof(tensor_map) <= sizeof(CUtensorMap), "a tensor map has 128 bytes");

/* A barrier, as stored in shared memory. */
struct phase {
    uint64_t parity : 1, count : 15, awaited : 16, bytes : 32; /* bytes that have not arrived yet */
};
static_assert(sizeof(phase) == sizeof(uint64_t), "a barrier has 8 bytes");

struct copy_in_flight {
    char *to;
    tensor_map map;
    int place[RANK];
    uint64_t *barrier;
};

struct product_in_flight {
    float *d;
    float a[2][DEPTH]; /* A from registers: rows group and group + 8 of the warp */
    int columns;
    bool in_registers, a_transposed, transposed, add;
    unsigned a_at, b_at; /* bytes from the start of shared memory */
    float (*value)(uint16_t);
    tensor_core_format format;
    int group;
    site at;
};

/* Saved sums of a matmul, while its registers read as NaN. */
struct accumulator {
    float *d; /* NULL: free */
    int count;
    float sums[SUMS];
};

struct group_thread {
    product_in_flight products[PRODUCTS];
    accumulator accumulators[ACCUMULATORS];
    int count, open_group;
    bool fenced;
};

static group_thread threads[MAX_THREADS];
static copy_in_flight copies[COPIES];
static int copy_count;
static fiber *phase_waiters[MAX_THREADS];
static int phase_waiter_count;
alignas(8) static char view[SHARED_MOST +
                            MOST_ALIGNMENT]; /* shared memory as copies and matmuls see it */
static bool used;

/* Not memcpy: AddressSanitizer's red zones may lie in between, and ThreadSanitizer must not
 * count the emulator's own reads as accesses. */
__attribute__((no_sanitize("address"))) static void look(void *to, const void *from, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) ((volatile char *)to)[i] = ((const volatile char *)from)[i];
}

/* The same for much memory, in words if both addresses allow it. */
__attribute__((no_sanitize("address"))) static void look_at_much(char *to, const char *from,
                                                                 size_t bytes) {
    size_t i = 0;
    if ((uintptr_t)to % 8 == (uintptr_t)from % 8) {
        i = (8 - (uintptr_t)from % 8) % 8;
        look(to, from, i);
        for (; i + 8 <= bytes; i += 8)
            *(volatile uint64_t *)(to + i) = *(const volatile uint64_t *)(from + i);
    }
    look(to + i, from + i, bytes - i);
}

/* ---- ThreadSanitizer sees the copy engine as a thread of its own, which starts at the request */

static void *engine;
static char asked;

static void *become_engine() {
#ifdef EMU_TSAN
    void *before = __tsan_get_current_fiber();
    if (!engine) engine = __tsan_create_fiber(0);
    __tsan_switch_to_fiber(engine, __tsan_switch_to_fiber_no_sync);
    acquire(&asked);
    return before;
#else
    return engine;
#endif
}

static void become_again(void *before) {
    (void)before;
#ifdef EMU_TSAN
    __tsan_switch_to_fiber(before, __tsan_switch_to_fiber_no_sync);
#endif
}

void hopper_block_begins() {
    if (used) poison(view, sizeof view);
    for (int i = 0; used && i < MAX_THREADS; i++) {
        threads[i].count = threads[i].open_group = 0;
        threads[i].fenced = false;
        for (accumulator &a : threads[i].accumulators) a.d = NULL;
    }
    copy_count = phase_waiter_count = 0;
    used = false;
}

const char *hopper_block_ends() {
    if (copy_count > 0) return "a tensor copy was under way when the block ended";
    for (int i = 0; used && i < thread_count; i++)
        if (threads[i].count > 0) return "products of a group were never waited for";
    return NULL;
}

/* ---- barriers */

static phase load_phase(const uint64_t *barrier) {
    phase p;
    look(&p, barrier, sizeof p);
    return p;
}

static void wake_waiters() {
    for (int i = 0; i < phase_waiter_count; i++) make_ready(phase_waiters[i]);
    phase_waiter_count = 0;
}

static void change_phase(uint64_t *barrier, int arrivals, int64_t bytes, site at) {
    phase p = load_phase(barrier);
    if ((int)p.awaited < arrivals)
        fail(at, "more arrivals at a barrier than its count of %d", (int)p.count);
    p.awaited = (uint64_t)((int)p.awaited - arrivals);
    p.bytes = (uint64_t)((int64_t)p.bytes + bytes);
    if (p.awaited == 0 && p.bytes == 0) {
        p.parity ^= 1;
        p.awaited = p.count;
        wake_waiters();
    }
    look(barrier, &p, sizeof p);
}

void phase_init(uint64_t *barrier, int count, site at) {
    check_aligned("a barrier", barrier, 8, at);
    phase p = {};
    p.count = p.awaited = (uint64_t)count;
    look(barrier, &p, sizeof p);
    used = true;
}

void phase_arrive(uint64_t *barrier, int bytes, site at) {
    release(barrier);
    change_phase(barrier, 0, bytes, at);
    change_phase(barrier, 1, 0, at);
}

/* ---- tensor copies */

static unsigned swizzle(unsigned offset) {
    return offset ^ offset / ROW % 8 * UNIT;
}

static void deliver(const copy_in_flight &copy) {
    const tensor_map &m = copy.map;
    unsigned base = shared_offset(copy.to), at = 0;
    char *shared = copy.to - base;
    void *before = become_engine();
    uint32_t i[RANK];
    for (i[3] = 0; i[3] < m.box[3]; i[3]++)
        for (i[2] = 0; i[2] < m.box[2]; i[2]++)
            for (i[1] = 0; i[1] < m.box[1]; i[1]++)
                for (i[0] = 0; i[0] < m.box[0]; i[0]++, at += m.element) {
                    const char *from = m.base;
                    bool inside = true;
                    for (int d = 0; d < RANK; d++) {
                        int64_t x = copy.place[d] + (int64_t)i[d];
                        inside = inside && x >= 0 && x < (int64_t)m.sizes[d];
                        from += x * (int64_t)m.strides[d];
                    }
                    char value[4] = {0};
                    unsigned to = base + at;
                    if (inside) look(value, from, m.element);
                    if (inside && i[0] == 0) touched(from, m.box[0] * m.element, false);
                    if (m.swizzled) to = swizzle(to);
                    look(shared + to, value, m.element);
                    look(view + to, value, m.element);
                }
    touched(copy.to, at, true);
    release(copy.barrier);
    become_again(before);
    change_phase(copy.barrier, 0, -(int64_t)at, site{"a tensor copy", 0});
}

static bool deliver_one() {
    if (copy_count == 0) return false;
    copy_in_flight first;
    look(&first, copies, sizeof first);
    look(copies, copies + 1, (size_t)--copy_count * sizeof *copies);
    deliver(first);
    return true;
}

void phase_wait(uint64_t *barrier, int parity, site at) {
    while ((int)load_phase(barrier).parity == parity) {
        if (deliver_one()) continue;
        self->state = AT_BARRIER;
        self->waits = "phase_wait";
        self->at = at;
        phase_waiters[phase_waiter_count++] = self;
        wait_turn();
    }
    acquire(barrier);
}

void tensor_copy(void *to, const CUtensorMap *map, const int place[RANK], uint64_t *barrier,
                 site at) {
    copy_in_flight copy;
    memcpy(&copy.map, map, sizeof copy.map);
    const tensor_map &m = copy.map;
    size_t bytes = m.element;
    for (int d = 0; d < RANK; d++) bytes *= m.box[d];
    check_aligned("the target of a tensor copy", to, m.swizzled ? EIGHT_ROWS : ROW, at);
    if (shared_offset(to) + bytes > shared_end()) fail(at, "a tensor copy leaves shared memory");
    if (copy_count == COPIES) fail(at, "more tensor copies at once than are emulated");
    copy.to = (char *)to;
    copy.barrier = barrier;
    memcpy(copy.place, place, sizeof copy.place);
    poison(to, bytes);
    poison(view + shared_offset(to), bytes);
    look(&copies[copy_count++], &copy, sizeof copy);
    release(&asked);
    used = true;
    wake_waiters(); /* a thread that waits in vain completes the copy */
}

void shared_stores_done() {
    unsigned first = shared_begin();
    look_at_much(view + first, at_shared(first), shared_end() - first);
    used = true;
}

/* ---- products */

static group_thread *own() {
    return &threads[self->id];
}

static accumulator *accumulator_of(const float *d) {
    for (accumulator &a : own()->accumulators)
        if (a.d == d) return &a;
    return NULL;
}

/* Reads registers of the warp: each lane gets its two rows of A. */
struct rows_of_a {
    const uint32_t *a;
    float (*rows)[DEPTH];
    float (*value)(uint16_t);
};

static void gather(unsigned mask, void **payload, site at) {
    if (mask != ~0u) fail(at, "a product of a group needs all lanes");
    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < 8; i++)
            for (int reader = 0; reader < 4; reader++) {
                const rows_of_a *from = (const rows_of_a *)payload[l];
                rows_of_a *to = (rows_of_a *)payload[l / 4 * 4 + reader];
                uint16_t bits = (uint16_t)(from->a[i / 2] >> i % 2 * 16);
                to->rows[i / 2 % 2][l % 4 * 2 + i % 2 + i / 4 * 8] = from->value(bits);
            }
}

/* Returns the start of a descriptor's tile. Consecutive rows must be contiguous; the start may
 * lie within a row for columns, or at whole groups of rows. */
static unsigned tile_of(uint64_t descriptor, bool transposed, site at) {
    unsigned start = (unsigned)(descriptor & 0x3fff) * UNIT;
    if (descriptor >> 62 != 1) fail(at, "a descriptor that is not swizzled over 128 bytes");
    if ((descriptor >> 32 & 0x3fff) != EIGHT_ROWS / UNIT)
        fail(at, "a descriptor whose groups of eight rows are not 1024 bytes apart");
    if (descriptor >> 49 & 7) fail(at, "a descriptor with a base offset, which is not emulated");
    if (start % EIGHT_ROWS >= (transposed ? 1u : (unsigned)ROW))
        fail(at, "a descriptor that begins neither with a tile nor with columns of it");
    return start;
}

void group_multiply(const group_product &p, site at) {
    group_thread *t = own();
    product_in_flight next = {};
    bool follows = accumulator_of(p.d) != NULL;
    if (!t->fenced && !follows) fail(at, "a product without group_fence after its registers' use");
    if (t->count == PRODUCTS) fail(at, "more products at once than are emulated");
    uint32_t none[4] = {};
    rows_of_a rows = {p.a ? p.a : none, next.a, p.value};
    collective("group_product", ~0u, &rows, gather, at);
    next.d = p.d;
    next.in_registers = p.a != NULL;
    next.columns = p.columns;
    next.a_transposed = p.a_transposed;
    next.transposed = p.transposed;
    next.add = p.add;
    next.value = p.value;
    next.format = p.format;
    next.group = t->open_group;
    next.at = at;
    if (!p.a) next.a_at = tile_of(p.a_tile, p.a_transposed, at);
    next.b_at = tile_of(p.b_tile, p.transposed, at);
    product_in_flight *kept = &t->products[t->count++];
    look(kept, &next, sizeof next);
    used = true;
    if (follows) return;
    accumulator *free = accumulator_of(NULL);
    if (!free) fail(at, "more accumulators at once than are emulated");
    free->d = p.d;
    free->count = p.columns / 2;
    look(free->sums, p.d, (size_t)free->count * sizeof *p.d);
    for (int i = 0; i < free->count; i++) p.d[i] = NAN;
}

/* Returns a tile's value as matmuls see it; fails if threads see another one. */
__attribute__((no_sanitize("address"))) static float value_at(const product_in_flight &p,
                                                              unsigned offset) {
    uint16_t seen;
    offset = swizzle(offset);
    if (offset < shared_begin() || offset + 2 > shared_end())
        fail(p.at, "a product reads beyond shared memory");
    look(&seen, view + offset, sizeof seen);
    if (seen != *(const volatile uint16_t *)at_shared(offset))
        fail(p.at, "a product reads what threads have stored, without shared_stores_done");
    return p.value(seen);
}

/* Reports the reads to ThreadSanitizer, each lane's part of the warp's rows. */
static void touched_by(const product_in_flight &p) {
    char *shared = at_shared(0);
    unsigned a_row = p.a_at + (unsigned)(self->id / LANES % 4 * 16) * ROW;
    for (unsigned i = 0; !p.in_registers && !p.a_transposed && i < 16 * 2; i++)
        touched(shared + swizzle(a_row + i / 2 * ROW + i % 2 * UNIT), UNIT, false);
    if (p.a_transposed) touched(shared + p.a_at, DEPTH * ROW, false);
    for (unsigned i = 0; !p.transposed && i < (unsigned)p.columns * 2; i++)
        touched(shared + swizzle(p.b_at + i / 2 * ROW + i % 2 * UNIT), UNIT, false);
    if (p.transposed) touched(shared + p.b_at, DEPTH * ROW, false);
}

/* Reads two of A's rows, with the other lanes all of them: the hardware does not promise that a
 * warp's product reads its own 16 rows alone. */
static void check_all_rows(const product_in_flight &p) {
    unsigned first = p.a_at + (unsigned)self->lane * (p.a_transposed ? 4 : 2 * ROW);
    unsigned right = p.a_transposed ? ROW : 2, down = p.a_transposed ? 2 : ROW;
    for (unsigned i = 0; i < 2 * DEPTH; i++)
        value_at(p, first + i / DEPTH * down + i % DEPTH * right);
}

static void multiply(const product_in_flight &p) {
    if (self->lane == 0) touched_by(p);
    if (!p.in_registers) check_all_rows(p);
    accumulator *a = accumulator_of(p.d);
    unsigned first = (unsigned)(self->id / LANES % 4 * 16 + self->lane / 4);
    unsigned right_of_a = p.a_transposed ? ROW : 2, down_of_a = p.a_transposed ? 2 : ROW;
    for (unsigned i = 0; i < (unsigned)a->count; i++) {
        unsigned row = first + i / 2 % 2 * 8;
        unsigned column = i / 4 * 8 + (unsigned)self->lane % 4 * 2 + i % 2;
        float sum = p.add ? a->sums[i] : 0, left[DEPTH], right[DEPTH];
        for (unsigned k = 0; k < DEPTH; k++) {
            left[k] = p.in_registers ? p.a[i / 2 % 2][k]
                                     : value_at(p, p.a_at + row * down_of_a + k * right_of_a);
            right[k] =
                value_at(p, p.b_at + (p.transposed ? k * ROW + column * 2 : column * ROW + k * 2));
        }
        if (tensor_cores_truncate())
            tensor_core_add(&sum, 1, left, 1, p.format, right, p.format, DEPTH);
        else
            for (unsigned k = 0; k < DEPTH; k++) sum += left[k] * right[k];
        a->sums[i] = sum;
    }
}

static void meet(const char *name, site at) {
    collective(
        name, ~0u, NULL, [](unsigned, void **, site) {}, at);
}

void group_fence(site at) {
    meet("group_fence", at);
    own()->fenced = true;
}

void group_commit(site at) {
    meet("group_commit", at);
    own()->open_group++;
}

void group_wait(int pending, site at) {
    meet("group_wait", at);
    group_thread *t = own();
    int done = 0;
    for (; done < t->count && t->products[done].group < t->open_group - pending; done++)
        multiply(t->products[done]);
    t->count -= done;
    look(t->products, t->products + done, (size_t)t->count * sizeof *t->products);
    for (accumulator &a : t->accumulators) {
        bool busy = false;
        for (int i = 0; i < t->count; i++) busy = busy || t->products[i].d == a.d;
        if (!a.d || busy) continue;
        look(a.d, a.sums, (size_t)a.count * sizeof *a.d);
        a.d = NULL;
    }
    t->fenced = false; /* their registers may be used from now on */
}

/* ---- tensor maps */

static CUresult encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *base,
                       const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                       const cuuint32_t *steps, CUtensorMapInterleave interleave,
                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                       CUtensorMapFloatOOBfill) {
    tensor_map m = {};
    m.base = (const char *)base;
    m.element = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 2;
    m.swizzled = swizzle == CU_TENSOR_MAP_SWIZZLE_128B;
    bool known = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ||
                 type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16 ||
                 type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    if (!known || rank != RANK || (uintptr_t)base % 16 ||
        interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
        (swizzle && swizzle != CU_TENSOR_MAP_SWIZZLE_128B))
        return CUDA_ERROR_INVALID_VALUE;
    for (int d = 0; d < RANK; d++) {
        m.sizes[d] = sizes[d];
        m.strides[d] = d ? strides[d - 1] : m.element;
        m.box[d] = box[d];
        if (!sizes[d] || !box[d] || box[d] > 256 || steps[d] != 1 || (d && strides[d - 1] % 16))
            return CUDA_ERROR_INVALID_VALUE;
    }
    uint32_t inner = box[0] * m.element;
    if (inner % 16 || (m.swizzled && inner > ROW)) return CUDA_ERROR_INVALID_VALUE;
    memset(map, 0, sizeof *map);
    memcpy(map, &m, sizeof m);
    return CUDA_SUCCESS;
}

} // namespace emu

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned,
                                                        unsigned long long,
                                                        cudaDriverEntryPointQueryResult *result) {
    bool found = strcmp(name, "cuTensorMapEncodeTiled") == 0;
    *function = found ? (void *)emu::encode : NULL;
    *result = found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
