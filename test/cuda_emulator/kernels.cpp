/* Limits of a kernel that its code does not show: its maximum threads and its shared memory.
 *
 * __launch_bounds__ becomes the same number of no-op instructions before the kernel's first one,
 * where they never run. It is the only construct the compiler accepts there that takes any
 * constant, template arguments included. The compiler lists where such instructions begin.
 *
 * Static shared memory is measured by the variables that were written, as listed in the
 * program's symbols. The kernel of a variable is the one whose block wrote to it. */
#include <map>
#include <vector>

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/cuda_emulator/fibers.h"
#include "test/cuda_emulator/limits.h"

extern "C" char __start_emu_shared[] __attribute__((weak));
extern "C" char __stop_emu_shared[] __attribute__((weak));
extern "C" const uintptr_t __start___patchable_function_entries[] __attribute__((weak));
extern "C" const uintptr_t __stop___patchable_function_entries[] __attribute__((weak));

namespace emu {

/* ---- launch bounds */

#ifdef __x86_64__
typedef unsigned char instruction;
static const instruction NOTHING = 0x90;
#elif defined(__aarch64__)
typedef uint32_t instruction;
static const instruction NOTHING = 0xd503201f;
#else
#error "how does an instruction that does nothing look on this processor?"
#endif

static int find_bounds(const void *kernel) {
    const instruction *entry = (const instruction *)kernel, *begin = NULL;
    for (const uintptr_t *at = __start___patchable_function_entries;
         at < __stop___patchable_function_entries; at++) {
        const instruction *place = (const instruction *)*at;
        if (place < entry && place > begin) begin = place;
    }
    if (!begin || entry - begin > MAX_THREADS) return MAX_THREADS;
    for (const instruction *p = begin; p < entry; p++)
        if (*p != NOTHING)
            return MAX_THREADS; /* not this kernel's: another kernel's instructions */
    return (int)(entry - begin);
}

int launch_bounds(const void *kernel) {
    static std::map<const void *, int> known;
    std::map<const void *, int>::iterator at = known.find(kernel);
    if (at == known.end()) at = known.insert({kernel, find_bounds(kernel)}).first;
    return at->second;
}

/* ---- shared memory */

struct shared_variable {
    const char *first;
    size_t bytes;
};

/* Scanning all variables takes longer than a small launch. */
enum { LOOKS = 3 };

struct shared_use {
    std::vector<bool> used; /* indexed by variable */
    size_t bytes;
    int looks;
};

static std::map<const void *, size_t> limits; /* dynamic memory by kernel */

/* Never destroyed: streams write to it, and ThreadSanitizer sees no stream that the end of the
 * program waits for. */
static std::map<const void *, shared_use> &uses = *new std::map<const void *, shared_use>;

static std::vector<char> read_program() {
    std::vector<char> bytes, part(1 << 16); /* not on the stack, which belongs to the host */
    FILE *file = fopen("/proc/self/exe", "rb");
    for (size_t n; file && (n = fread(part.data(), 1, part.size(), file)) > 0;)
        bytes.insert(bytes.end(), part.data(), part.data() + n);
    if (file) fclose(file);
    return bytes;
}

/* Read from the symbol table; a stripped program has none. */
static std::vector<shared_variable> find_variables() {
    std::vector<shared_variable> found;
    std::vector<char> program = read_program();
    if (program.size() < sizeof(Elf64_Ehdr) || !__start_emu_shared) return found;
    const Elf64_Ehdr *head = (const Elf64_Ehdr *)program.data();
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(program.data() + head->e_shoff);
    const char *names = program.data() + sections[head->e_shstrndx].sh_offset;
    int shared = 0, symbols = 0;
    for (int i = 1; i < head->e_shnum; i++) {
        if (!strcmp(names + sections[i].sh_name, "emu_shared")) shared = i;
        if (sections[i].sh_type == SHT_SYMTAB) symbols = i;
    }
    if (!shared || !symbols) return found;
    const Elf64_Sym *all = (const Elf64_Sym *)(program.data() + sections[symbols].sh_offset);
    for (size_t i = 0; i < sections[symbols].sh_size / sizeof *all; i++)
        if (all[i].st_shndx == shared && ELF64_ST_TYPE(all[i].st_info) == STT_OBJECT)
            found.push_back({__start_emu_shared + (all[i].st_value - sections[shared].sh_addr),
                             all[i].st_size});
    return found;
}

static bool written(const shared_variable &variable) {
    for (size_t i = 0; i < variable.bytes; i++)
        if (variable.first[i] != (char)0xff) return true;
    return false;
}

size_t static_shared(const void *kernel) {
    static const std::vector<shared_variable> variables = find_variables();
    shared_use &use = uses[kernel];
    use.used.resize(variables.size());
    if (use.looks++ >= LOOKS) return use.bytes;
    for (size_t i = 0; i < variables.size(); i++) {
        if (use.used[i] || !written(variables[i])) continue;
        use.used[i] = true;
        use.bytes += variables[i].bytes;
    }
    return use.bytes;
}

/* CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". */
static bool is_small() {
    int sm = capability();
    return sm == 86 || sm == 89 || sm / 10 == 12;
}

int threads_per_multiprocessor() {
    return is_small() ? 1536 : 2048;
}

size_t shared_per_multiprocessor() {
    return is_small() ? 100 << 10 : capability() < 90 ? 164 << 10 : SHARED_MOST;
}

size_t shared_per_block() {
    return shared_per_multiprocessor() - SHARED_RESERVED;
}

static size_t known_static(const void *kernel) {
    std::map<const void *, shared_use>::const_iterator at = uses.find(kernel);
    return at == uses.end() ? 0 : at->second.bytes;
}

int blocks_held(const void *kernel, int threads, size_t shared_bytes) {
    size_t bytes = known_static(kernel) + shared_bytes + SHARED_RESERVED;
    int by_threads = threads_per_multiprocessor() / ((threads + LANES - 1) / LANES * LANES);
    int by_memory = (int)(shared_per_multiprocessor() / bytes);
    int held = by_threads < by_memory ? by_threads : by_memory;
    return held < BLOCKS_PER_MULTIPROCESSOR ? held : BLOCKS_PER_MULTIPROCESSOR;
}

size_t shared_limit(const void *kernel) {
    std::map<const void *, size_t>::const_iterator at = limits.find(kernel);
    size_t known = known_static(kernel), of_block = shared_per_block();
    size_t most = known < of_block ? of_block - known : 0;
    if (at != limits.end()) return at->second < most ? at->second : most;
    return known < SHARED_DEFAULT ? SHARED_DEFAULT - known : 0;
}

} // namespace emu

using namespace emu;

extern "C" {

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value) {
    if (emu::must_fail("cudaFuncSetAttribute"))
        return emu::runtime_error(cudaErrorInvalidValue, "cudaFuncSetAttribute was told to fail");
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || (size_t)value + known_static(kernel) > shared_per_block())
        return runtime_error(cudaErrorInvalidValue,
                             "cudaFuncSetAttribute: more shared memory than a block can have");
    limits[kernel] = (size_t)value;
    return cudaSuccess;
}

/* The number of registers is unknown without nvcc. */
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *kernel) {
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = launch_bounds(kernel);
    attributes->maxDynamicSharedSizeBytes = (int)shared_limit(kernel);
    attributes->sharedSizeBytes = known_static(kernel);
    attributes->numRegs = 32;
    attributes->binaryVersion = attributes->ptxVersion = 90;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel,
                                                          int threads, size_t shared_bytes) {
    if (threads <= 0 || threads > MAX_THREADS)
        return runtime_error(cudaErrorInvalidValue, "cudaOccupancy: the size of a block");
    *blocks = blocks_held(kernel, threads, shared_bytes);
    if (shared_bytes > shared_limit(kernel) || threads > launch_bounds(kernel)) *blocks = 0;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel,
                                                                   int threads, size_t shared_bytes,
                                                                   unsigned) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads, shared_bytes);
}

} // extern "C"
