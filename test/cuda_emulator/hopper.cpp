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
    WARP_ROWS = 16,
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
#ifdef __x86_64__
    if (bytes >= 32) {
        asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes)::"memory");
        return;
    }
#endif
    for (size_t i = 0; i < bytes; i++) ((volatile char *)to)[i] = ((const volatile char *)from)[i];
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
    look(view + first, at_shared(first), shared_end() - first);
    used = true;
}

/* ---- products */

static group_thread *own() {
    return &threads[self->id];
}

static accumulator *accumulator_of(group_thread *t, const float *d) {
    for (accumulator &a : t->accumulators)
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
    bool follows = accumulator_of(t, p.d) != NULL;
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
    accumulator *free = accumulator_of(t, NULL);
    if (!free) fail(at, "more accumulators at once than are emulated");
    free->d = p.d;
    free->count = p.columns / 2;
    look(free->sums, p.d, (size_t)free->count * sizeof *p.d);
    for (int i = 0; i < free->count; i++) p.d[i] = NAN;
}

/* Returns a tile's value as matmuls see it; fails if threads see another one. */
__attribute__((no_sanitize("address"))) static float value_at(const product_in_flight &p,
                                                              unsigned offset) {
    offset = swizzle(offset);
    if (offset < shared_begin() || offset + 2 > shared_end())
        fail(p.at, "a product reads beyond shared memory");
    uint16_t seen = *(const volatile uint16_t *)(view + offset);
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

/* A lane at group_wait, and how many of its products are due. */
struct waiting_lane {
    group_thread *thread;
    int due;
};

/* Operands of a warp: its rows of A, and B. */
struct operands {
    float a[WARP_ROWS][DEPTH], b[DEPTH][2 * SUMS];
};

/* Reads all 64 rows of A: the hardware does not promise that a warp reads its own 16 alone. */
static void read_operands(operands *o, const waiting_lane *const *lanes, int number) {
    const product_in_flight &p = lanes[0]->thread->products[number];
    unsigned right = p.a_transposed ? ROW : 2, down = p.a_transposed ? 2 : ROW;
    unsigned own_rows = (unsigned)(self->id / LANES % 4);
    for (unsigned row = 0; row < 4 * WARP_ROWS && !p.in_registers; row++)
        for (unsigned k = 0; k < DEPTH; k++) {
            float value = value_at(p, p.a_at + row * down + k * right);
            if (row / WARP_ROWS == own_rows) o->a[row % WARP_ROWS][k] = value;
        }
    for (unsigned row = 0; row < WARP_ROWS && p.in_registers; row++)
        look(o->a[row], lanes[row % 8 * 4]->thread->products[number].a[row / 8], sizeof o->a[row]);
    right = p.transposed ? 2 : ROW, down = p.transposed ? ROW : 2;
    for (unsigned k = 0; k < DEPTH; k++)
        for (unsigned column = 0; column < (unsigned)p.columns; column++)
            o->b[k][column] = value_at(p, p.b_at + k * down + column * right);
}

/* sums [columns] += row [DEPTH] * b [DEPTH, columns], from the first product to the last. Not
 * instrumented, so that the loop of a constant count is vectorized in sanitized builds too. */
__attribute__((no_sanitize("address", "undefined"))) static void
add_products(float *sums, const float *row, const operands *o, const product_in_flight &p) {
    if (tensor_cores_truncate())
        tensor_core_add(sums, (size_t)p.columns, o->b[0], 2 * SUMS, p.format, row, p.format, DEPTH);
    else
        for (int k = 0; k < DEPTH; k++)
            for (int column = 0; column < 2 * SUMS; column++)
                sums[column] += row[k] * o->b[k][column];
}

/* Each lane holds two neighbours of every eight columns, in two rows. */
static void multiply(const waiting_lane *const *lanes, int number) {
    static operands o;
    const product_in_flight &p = lanes[0]->thread->products[number];
    accumulator *held[LANES];
    for (int l = 0; l < LANES; l++) {
        group_thread *t = lanes[l]->thread;
        held[l] = accumulator_of(t, t->products[number].d);
    }
    read_operands(&o, lanes, number);
    for (int row = 0; row < WARP_ROWS; row++) {
        float sums[2 * SUMS] = {};
        accumulator **quad = held + row % 8 * 4;
        int half = row / 8 * 2;
        for (int c = 0; c < p.columns && p.add; c++)
            sums[c] = quad[c % 8 / 2]->sums[c / 8 * 4 + half + c % 2];
        add_products(sums, o.a[row], &o, p);
        for (int c = 0; c < p.columns; c++)
            quad[c % 8 / 2]->sums[c / 8 * 4 + half + c % 2] = sums[c];
    }
}

static bool same_product(const product_in_flight &a, const product_in_flight &b) {
    return a.a_at == b.a_at && a.b_at == b.b_at && a.columns == b.columns && a.add == b.add &&
           a.in_registers == b.in_registers && a.value == b.value &&
           a.a_transposed == b.a_transposed && a.transposed == b.transposed;
}

static bool same_due(const waiting_lane &a, const waiting_lane &b) {
    bool same = a.due == b.due;
    for (int i = 0; i < a.due && same; i++)
        same = same_product(a.thread->products[i], b.thread->products[i]);
    return same;
}

static void multiply_all(unsigned, void **payload, site at) {
    const waiting_lane *const *lanes = (const waiting_lane *const *)payload;
    for (int l = 1; l < LANES; l++)
        if (!same_due(*lanes[0], *lanes[l])) fail(at, "lanes of a warp wait for unlike products");
    for (int i = 0; i < lanes[0]->due; i++) multiply(lanes, i);
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
    group_thread *t = own();
    int done = 0;
    while (done < t->count && t->products[done].group < t->open_group - pending) done++;
    waiting_lane waiting = {t, done};
    collective("group_wait", ~0u, &waiting, multiply_all, at);
    for (int i = 0; i < done && self->lane == 0; i++) touched_by(t->products[i]);
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
    *function = strcmp(name, "cuTensorMapEncodeTiled") == 0 ? (void *)emu::encode
                : strcmp(name, "cuStreamWriteValue32") == 0 ? (void *)emu::write_value
                                                            : NULL;
    *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
