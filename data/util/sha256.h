/* SHA-256 of byte streams (FIPS 180-4).
 *
 * Adding bytes in one call or in many gives the same digest. Where the processor has the x86 SHA
 * extensions they do the work (well above 1 GB/s), with the same bits as the portable code. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"

enum { SHA256_BYTES = 32, SHA256_BLOCK_BYTES = 64, SHA256_HEX_MAX = 65 };

/* The compression function over `count` consecutive blocks. */
typedef void sha256_compression(uint32_t state[8], const uint8_t *blocks, size_t count);

struct sha256 {
    sha256_compression *compress;
    uint32_t state[8];
    uint64_t size;                     /* bytes added so far */
    uint8_t block[SHA256_BLOCK_BYTES]; /* the size % 64 bytes that no full block has taken yet */
};

void sha256_begin(struct sha256 *hash);
void sha256_add(struct sha256 *hash, const void *bytes, size_t size);

/* Pads and writes the digest; the stream has to begin again before it is used again. */
void sha256_end(struct sha256 *hash, uint8_t digest[SHA256_BYTES]);

/* The digest as 64 lower-case hexadecimal digits and a NUL. */
void sha256_hex(char hex[SHA256_HEX_MAX], const uint8_t digest[SHA256_BYTES]);

/* Hashes `size` bytes. */
void sha256_of(char hex[SHA256_HEX_MAX], const void *bytes, size_t size);

/* Hashes a whole file. Also stores its size in bytes where size is not NULL. Fails when the file
 * cannot be opened or read. */
int sha256_file(char hex[SHA256_HEX_MAX], uint64_t *size, const char *path, struct error *error);

/* The one that this processor does fastest, and the one that any processor does. */
sha256_compression *sha256_fastest(void);
sha256_compression sha256_portable;
