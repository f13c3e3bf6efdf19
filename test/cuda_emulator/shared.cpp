/* Dynamic shared memory, and the alignment of accesses to any memory: the device fails where an x86
 * processor only takes longer.
 *
 * Shared memory is aligned to what a kernel declares and to no more, so that an access that needs
 * more always fails. Kernels are compiled with -fsanitize=alignment, which calls a function of
 * GCC's libubsan before an access at an address that is not a multiple of what its type needs (16
 * bytes for float4). This file has that function, so that the mistake ends the launch like any
 * other. Builds with AddressSanitizer have the library's, which ends the program. */
#include <stdio.h>
#include <stdlib.h>

#include "test/cuda_emulator/fibers.h"

namespace emu {

static char *block_memory, *dynamic_memory; /* dynamic_memory: NULL until declared */
static size_t dynamic_bytes;
static unsigned dynamic_alignment;

void shared_block_begins(char *memory, size_t bytes) {
    block_memory = memory;
    dynamic_memory = NULL;
    dynamic_bytes = bytes;
    dynamic_alignment = 0;
}

void *dynamic_shared(unsigned alignment) {
    if (!dynamic_memory) {
        unsigned period = 2 * alignment, beyond = (unsigned)((uintptr_t)block_memory % period);
        dynamic_memory = block_memory + (alignment + period - beyond) % period;
        dynamic_alignment = alignment;
        ASAN_UNPOISON_MEMORY_REGION(dynamic_memory, dynamic_bytes);
        poison(dynamic_memory, dynamic_bytes);
    }
    if (alignment != dynamic_alignment)
        fail(self->at, "dynamic shared memory is declared with an alignment of %u and of %u",
             dynamic_alignment, alignment);
    return dynamic_memory;
}

/* The first byte is not at 0: static variables and the system's own memory come before it. */
unsigned shared_begin() {
    return dynamic_alignment;
}

unsigned shared_end() {
    return dynamic_alignment + (unsigned)dynamic_bytes;
}

char *at_shared(unsigned offset) {
    return dynamic_memory - dynamic_alignment + offset;
}

unsigned shared_offset(const void *p) {
    return (unsigned)((const char *)p - at_shared(0));
}

void check_aligned(const char *what, const void *p, unsigned bytes, site at) {
    unsigned beyond = (unsigned)((uintptr_t)p % bytes);
    if (beyond)
        fail(at, "%s: address %p is %u bytes beyond a multiple of %u", what, p, beyond, bytes);
}

} // namespace emu

#ifndef __SANITIZE_ADDRESS__

/* The layout that GCC and Clang use. */
struct ubsan_type {
    uint16_t kind, info;
    char name[1];
};
struct ubsan_mismatch {
    const char *file;
    uint32_t line, column;
    const ubsan_type *type;
    unsigned char log_alignment, kind;
};

extern "C" void __ubsan_handle_type_mismatch_v1(const ubsan_mismatch *access, const void *p) {
    char what[128];
    emu::site at = {access->file, (int)access->line};
    snprintf(what, sizeof what, "an access to %s", access->type->name);
    if (emu::self) emu::check_aligned(what, p, 1u << access->log_alignment, at);
    fprintf(stderr, "%s:%d: %s on the host: %p is not aligned\n", at.file, at.line, what, p);
    abort();
}

#endif
