/* The implementation of stb_ds, its growing arrays and hash maps, compiled once. They cannot report
 * an error, so running out of memory there ends the program with a message. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *grow_or_end(void *block, size_t size) {
    void *grown = realloc(block, size);
    if (grown) return grown;
    fprintf(stderr, "out of memory: a list of %zu MiB does not fit\nfree memory and try again\n",
            size >> 20);
    _exit(EXIT_FAILURE);
}

#define STBDS_REALLOC(context, block, size) grow_or_end(block, size)
#define STBDS_FREE(context, block)          free(block)
#define STB_DS_IMPLEMENTATION
#include <stb/stb_ds.h>
