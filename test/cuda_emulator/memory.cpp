/* Device memory and pinned host memory. New allocations read as NaN (all bits set) until they
 * are written. Under AddressSanitizer only kernels and copies may touch device memory. */
#include <map>
#include <set>

#include <stdlib.h>
#include <string.h>

#include "test/cuda_emulator/fibers.h"
#include "test/cuda_emulator/graphs.h"
#include "test/cuda_emulator/limits.h"

namespace emu {

enum { ALIGNMENT = 256 };

typedef std::map<uintptr_t, size_t> ranges; /* bytes by address */
static ranges device, pinned;
static size_t allocated, total = DEVICE_MEMORY;

static size_t padded(size_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static bool in(const ranges &memory, const void *p, size_t bytes) {
    ranges::const_iterator at = memory.upper_bound((uintptr_t)p);
    if (at == memory.begin()) return false;
    --at;
    size_t offset = (uintptr_t)p - at->first;
    return offset <= at->second && bytes <= at->second - offset;
}

bool device_range(const void *p, size_t bytes) {
    return in(device, p, bytes);
}

bool pinned_range(const void *p, size_t bytes) {
    return in(pinned, p, bytes);
}

bool pinned_together(const void *a, const void *b) {
    ranges::const_iterator at = pinned.upper_bound((uintptr_t)a);
    return pinned_range(a, 1) && pinned_range(b, 1) && at == pinned.upper_bound((uintptr_t)b);
}

static void open_bytes(void *p, size_t bytes, bool on) {
    if (on) ASAN_UNPOISON_MEMORY_REGION(p, bytes);
    else ASAN_POISON_MEMORY_REGION(p, bytes);
}

/* The padding of an allocation stays inaccessible. */
void device_open(bool on) {
    for (const ranges::value_type &range : device)
        open_bytes((void *)range.first, on ? range.second : padded(range.second), on);
}

/* AddressSanitizer works in units of 8 bytes. */
void device_open_range(const void *p, size_t bytes, bool on) {
    uintptr_t first = (uintptr_t)p / 8 * 8, end = ((uintptr_t)p + bytes + 7) / 8 * 8;
    open_bytes((void *)first, end - first, on);
}

bool take_memory(size_t bytes) {
    if (bytes > total - allocated) return false;
    allocated += bytes;
    return true;
}

void give_memory(size_t bytes) {
    allocated -= bytes;
}

bool take_lazily(const void *what) {
    static const char *const wanted = getenv("CUDA_EMULATOR_LAZY");
    static std::set<const void *> taken;
    size_t bytes = wanted ? strtoull(wanted, NULL, 10) : 0;
    if (!bytes || taken.count(what)) return true;
    if (!take_memory(bytes)) return false;
    taken.insert(what);
    return true;
}

} // namespace emu

using namespace emu;

void cuda_emulator_memory(size_t bytes) {
    total = allocated + bytes;
}

extern "C" {

cudaError_t cudaMalloc(void **p, size_t bytes) {
    if (emu::must_fail("cudaMalloc"))
        return emu::runtime_error(cudaErrorMemoryAllocation, "cudaMalloc was told to fail");
    *p = NULL;
    if (bytes > total - allocated || padded(bytes) > total - allocated) {
        last_error = cudaErrorMemoryAllocation;
        return last_error;
    }
    if (bytes == 0) return cudaSuccess;
    void *memory = aligned_alloc(ALIGNMENT, padded(bytes));
    if (!memory) return runtime_error(cudaErrorMemoryAllocation, "cudaMalloc: the host is full");
    memset(memory, 0xff, bytes);
    open_bytes(memory, padded(bytes), false);
    device[(uintptr_t)memory] = bytes;
    allocated += padded(bytes);
    *p = memory;
    return cudaSuccess;
}

/* Finishes queued work first, like a device. */
cudaError_t cudaFree(void *p) {
    if (!p) return cudaSuccess;
    ranges::iterator at = device.find((uintptr_t)p);
    if (at == device.end())
        return runtime_error(cudaErrorInvalidValue, "cudaFree of what cudaMalloc did not give");
    streams_finish();
    graphs_lose_memory(p, at->second);
    open_bytes(p, padded(at->second), true);
    allocated -= padded(at->second);
    device.erase(at);
    free(p);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned) {
    if (emu::must_fail("cudaHostAlloc"))
        return emu::runtime_error(cudaErrorMemoryAllocation, "cudaHostAlloc was told to fail");
    const size_t FILLED = (size_t)1 << 28; /* the rest of a huge one takes no memory */
    const size_t most =
        (size_t)1 << 40; /* a larger request would end the program under a sanitizer */
    *p = bytes > 0 && bytes <= most ? malloc(bytes) : NULL;
    if (bytes && !*p) return runtime_error(cudaErrorMemoryAllocation, "cudaMallocHost");
    if (!*p) return cudaSuccess;
    memset(*p, 0xff, bytes < FILLED ? bytes : FILLED);
    pinned[(uintptr_t)*p] = bytes;
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **p, size_t bytes) {
    return cudaHostAlloc(p, bytes, 0);
}

cudaError_t cudaFreeHost(void *p) {
    if (!p) return cudaSuccess;
    ranges::iterator at = pinned.find((uintptr_t)p);
    if (at == pinned.end())
        return runtime_error(cudaErrorInvalidValue,
                             "cudaFreeHost of what cudaMallocHost did not give");
    streams_finish();
    graphs_lose_memory(p, at->second);
    pinned.erase(at);
    free(p);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    if (emu::must_fail("cudaMemGetInfo"))
        return emu::runtime_error(cudaErrorUnknown, "cudaMemGetInfo was told to fail");
    *free_bytes = total - allocated;
    *total_bytes = total;
    return cudaSuccess;
}

} // extern "C"
