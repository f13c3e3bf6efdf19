/* SHA-256 of byte streams (FIPS 180-4).
 *
 * Adding bytes in one call or in many gives the same digest. CPUs with the x86 SHA extensions use
 * them (well above 1 GB/s), with the same result as the portable code. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"

enum { SHA256_BLOCK_BYTES = 64, SHA256_HEX_MAX = 65 };

/* The compression function over `count` consecutive blocks. */
typedef void sha256_compression(uint32_t state[8], const uint8_t *blocks, size_t count);

struct sha256 {
    sha256_compression *compress;
    uint32_t state[8];
    uint64_t size;                     /* bytes added so far */
    uint8_t block[SHA256_BLOCK_BYTES]; /* the last size % 64 bytes, which do not fill a block yet */
};

void sha256_begin(struct sha256 *hash);
void sha256_add(struct sha256 *hash, const void *bytes, size_t size);

/* Pads, and writes the digest as 64 lower-case hexadecimal digits and a NUL. Call sha256_begin
 * before reusing the stream. */
void sha256_end(char hex[SHA256_HEX_MAX], struct sha256 *hash);

/* Hashes `size` bytes. */
void sha256_of(char hex[SHA256_HEX_MAX], const void *bytes, size_t size);

/* Hashes a whole file. Also stores its size in bytes if size is not NULL. Fails if the file cannot
 * be opened or read. */
int sha256_file(char hex[SHA256_HEX_MAX], uint64_t *size, const char *path, struct error *error);

/* The fastest compression function on this CPU, and the portable one. */
sha256_compression *sha256_fastest(void);
sha256_compression sha256_portable;
