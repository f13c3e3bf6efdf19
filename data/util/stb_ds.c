/* The implementation of stb_ds, its growing arrays and hash maps, compiled once. They cannot report
 * an error, so running out of memory there ends the program with a message. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

#include "data/util/hash.h"
#include "data/util/note.h"

static void *grow_or_end(void *block, size_t size) {
    void *grown = realloc(block, size);
    if (grown) return grown;
    note(stderr, "out of memory", "a list of %zu MiB does not fit\nfree memory and try again",
         size >> 20);
    _exit(EXIT_FAILURE);
}

#define STBDS_REALLOC(context, block, size) grow_or_end(block, size)
#define STBDS_FREE(context, block)          free(block)
#define STB_DS_IMPLEMENTATION
#include <stb/stb_ds.h>

uint64_t hash_multiplier = UINT64_C(0x9e3779b97f4a7c15);

/* Keeps the fixed seeds if the system has no random bytes yet. */
__attribute__((constructor)) static void seed_hashes(void) {
    uint64_t random;
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random) return;
    hash_multiplier = random | 1;
    stbds_rand_seed(random);
}
