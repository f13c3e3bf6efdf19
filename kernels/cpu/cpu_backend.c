#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "data/util/host_memory.h"
#include "data/util/printed.h"
#include "kernels/arena.h"

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/few_rows.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/products.h"

/* Large allocations use huge pages if the system has them, which means fewer page faults. The end
 * keeps small pages, so that no more than planned is allocated. */
static void *cpu_allocate(struct backend *be, size_t bytes) {
    (void)be;
    enum { PAGE = 2 << 20, LARGE = 32 * PAGE };
    size_t rounded = (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
    void *memory = NULL;
    if (bytes < LARGE) return aligned_alloc(ARENA_ALIGNMENT, rounded ? rounded : ARENA_ALIGNMENT);
    if (posix_memalign(&memory, PAGE, rounded)) return NULL;
    madvise(memory, rounded / PAGE * PAGE, MADV_HUGEPAGE);
    return memory;
}

static size_t cpu_available(struct backend *be) {
    (void)be;
    return host_memory_available();
}

static void cpu_release(struct backend *be, void *memory) {
    (void)be;
    free(memory);
}

static void cpu_upload(struct backend *be, void *to, const void *host, size_t bytes) {
    (void)be;
    memcpy(to, host, bytes);
}

static void cpu_download(struct backend *be, void *host, const void *from, size_t bytes) {
    (void)be;
    memcpy(host, from, bytes);
}

static void cpu_send(struct backend *be, int slot, void *to, const void *host, size_t bytes) {
    (void)slot;
    cpu_upload(be, to, host, bytes);
}

static void cpu_fetch(struct backend *be, int slot, void *host, const void *from, size_t bytes) {
    (void)slot;
    cpu_download(be, host, from, bytes);
}

/* Transfers are complete when they return. */
static void cpu_arrived(struct backend *be, int slot) {
    (void)be;
    (void)slot;
}

static void cpu_copy(struct backend *be, struct copy_slot slot, void *to, const void *from,
                     size_t bytes) {
    (void)slot;
    cpu_upload(be, to, from, bytes);
}

static void cpu_copied(struct backend *be, struct copy_slot slot) {
    (void)be;
    (void)slot;
}

static void cpu_snapshot(struct backend *be, const struct transfer *transfers, int count) {
    (void)be;
    for (int i = 0; i < count; i++)
        host_memory_copy(transfers[i].host, transfers[i].from, transfers[i].bytes);
}

static void cpu_snapshot_guard(struct backend *be) {
    (void)be;
}

static bool cpu_snapshot_ready(struct backend *be, bool wait) {
    (void)be, (void)wait;
    return true;
}

static const char *cpu_fallback(const struct backend *be, int index) {
    return cpu_products_fallback(be->state, index);
}

static size_t cpu_peak_bytes(struct backend *be) {
    struct rusage usage;
    (void)be;
    getrusage(RUSAGE_SELF, &usage);
    return (size_t)usage.ru_maxrss * 1024; /* Linux counts in KiB */
}

static void cpu_close(struct backend *be) {
    cpu_products_close(be->state);
}

static void cpu_graph(struct backend *be, int which, const void *owner, void (*work)(void *),
                      void *argument) {
    (void)be, (void)which, (void)owner;
    work(argument);
}

static const struct device_functions cpu_functions = {
    .allocate = cpu_allocate,
    .available = cpu_available,
    .release = cpu_release,
    .upload = cpu_upload,
    .download = cpu_download,
    .host_allocate = cpu_allocate,
    .host_release = cpu_release,
    .send = cpu_send,
    .sent = cpu_arrived,
    .fetch = cpu_fetch,
    .fetched = cpu_arrived,
    .copy = cpu_copy,
    .copied = cpu_copied,
    .snapshot = cpu_snapshot,
    .snapshot_guard = cpu_snapshot_guard,
    .snapshot_ready = cpu_snapshot_ready,
    .graph = cpu_graph,
    .peak_bytes = cpu_peak_bytes,
    .fallback = cpu_fallback,
    .close = cpu_close,
};

int cpu_backend_open(struct backend *be, const struct backend_options *options,
                     struct error *error) {
    bool forced;
    const struct cpu_level *level = cpu_level_choose(&forced, error);
    if (!level) return -1;
    if (options->threads > 0) omp_set_num_threads(options->threads);
    int threads = options->threads > 0 ? options->threads : omp_get_max_threads();
    int64_t share = level->operations->square_share;
    *be = (struct backend){
        .op = &level->operations->run,
        .run = &level->operations->run,
        .plan = &level->operations->plan,
        .functions = &cpu_functions,
        .device =
            {
                .kind = BACKEND_CPU,
                .host_memory = true,
                .name = "cpu",
                .threads = threads,
                .computes = {[DTYPE_F32] = true, [DTYPE_F16] = true, [DTYPE_BF16] = true},
                .delta_rule = true,
                .stored_rows = {[DTYPE_BF16] = FEW_ROWS},
                .square_share = {[DTYPE_F32] = share, [DTYPE_F16] = share, [DTYPE_BF16] = share},
                .gelu_of_stored = true,
                .chunk_bytes = (size_t)64 << 20,
            },
    };
    struct backend_description *device = &be->device;
    cpu_describe(device->description, sizeof device->description);
    snprintf(device->use, sizeof device->use, "%s, %d thread%s", level->full_name, threads,
             PLURAL(threads));
    if (cpu_products_open(be, level, forced, options, error)) return -1;
    if (level->number >= 3) device->stored_rows[DTYPE_F16] = FEW_ROWS;
    device->attention_bf16 =
        level->number == 4 && device->native[DTYPE_BF16] && !cpu_bf16_at_half_rate();
    return 0;
}
