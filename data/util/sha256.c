#include "data/util/sha256.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/file_reader.h"
#include "data/util/min_max.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

/* FIPS 180-4, 4.2.2: the first 32 bits of the fractional parts of the cube roots of the first 64
 * primes. */
static const uint32_t round_constants[64] __attribute__((aligned(16))) = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate_right(uint32_t x, int bits) {
    return x >> bits | x << (32 - bits);
}

static uint32_t load_big_endian(const uint8_t *bytes) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static void expand_message(uint32_t w[64], const uint8_t *block) {
    for (int t = 0; t < 16; t++) w[t] = load_big_endian(block + 4 * t);
    for (int t = 16; t < 64; t++) {
        const uint32_t early = w[t - 15], late = w[t - 2];
        const uint32_t sigma0 = rotate_right(early, 7) ^ rotate_right(early, 18) ^ early >> 3;
        const uint32_t sigma1 = rotate_right(late, 17) ^ rotate_right(late, 19) ^ late >> 10;
        w[t] = sigma1 + w[t - 7] + sigma0 + w[t - 16];
    }
}

void sha256_portable(uint32_t state[8], const uint8_t *blocks, size_t count) {
    for (; count > 0; count--, blocks += SHA256_BLOCK_BYTES) {
        uint32_t w[64];
        expand_message(w, blocks);
        uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
        uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
        for (int t = 0; t < 64; t++) {
            const uint32_t sum1 = rotate_right(e, 6) ^ rotate_right(e, 11) ^ rotate_right(e, 25);
            const uint32_t choice = (e & f) ^ (~e & g);
            const uint32_t t1 = h + sum1 + choice + round_constants[t] + w[t];
            const uint32_t sum0 = rotate_right(a, 2) ^ rotate_right(a, 13) ^ rotate_right(a, 22);
            const uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
            h = g, g = f, f = e, e = d + t1;
            d = c, c = b, b = a, a = t1 + sum0 + majority;
        }
        state[0] += a, state[1] += b, state[2] += c, state[3] += d;
        state[4] += e, state[5] += f, state[6] += g, state[7] += h;
    }
}

#ifdef __x86_64__

/* The SHA instructions keep the eight state words in two registers, in the order of their pair
 * names (highest first). Each instruction does two rounds. One iteration does four rounds, and so
 * uses one vector of the message. */
__attribute__((target("sha,sse4.1"))) static void
sha256_instructions(uint32_t state[8], const uint8_t *blocks, size_t count) {
    const __m128i byte_swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    const __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xb1);
    const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1b);
    __m128i abef = _mm_alignr_epi8(cdab, efgh, 8);
    __m128i cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
    for (; count > 0; count--, blocks += SHA256_BLOCK_BYTES) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i w[16];
        for (int i = 0; i < 4; i++) {
            const __m128i raw = _mm_loadu_si128((const __m128i *)(blocks + 16 * i));
            w[i] = _mm_shuffle_epi8(raw, byte_swap);
        }
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            if (i >= 4) {
                const __m128i middle = _mm_alignr_epi8(w[i - 1], w[i - 2], 4);
                const __m128i partial = _mm_sha256msg1_epu32(w[i - 4], w[i - 3]);
                w[i] = _mm_sha256msg2_epu32(_mm_add_epi32(partial, middle), w[i - 1]);
            }
            const __m128i constants = _mm_load_si128((const __m128i *)(round_constants + 4 * i));
            const __m128i sum = _mm_add_epi32(w[i], constants);
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    const __m128i feba = _mm_shuffle_epi32(abef, 0x1b);
    const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

/* SHA-NI is independent of AVX2: Goldmont has it without AVX2, Ice Lake and Zen have both. */
sha256_compression *sha256_fastest(void) {
    unsigned a, b, c, d;
    bool sse = __get_cpuid(1, &a, &b, &c, &d) && c & bit_SSE4_1;
    bool sha = __get_cpuid_count(7, 0, &a, &b, &c, &d) && b & bit_SHA;
    return sse && sha ? sha256_instructions : sha256_portable;
}

#else

sha256_compression *sha256_fastest(void) {
    return sha256_portable;
}

#endif

void sha256_begin(struct sha256 *hash) {
    /* FIPS 180-4, 5.3.3: the first 32 bits of the fractional parts of the square roots of the first
     * eight primes. */
    static const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memset(hash, 0, sizeof(*hash));
    memcpy(hash->state, initial, sizeof(initial));
    hash->compress = sha256_fastest();
}

void sha256_add(struct sha256 *hash, const void *bytes, size_t size) {
    const uint8_t *next = bytes;
    const size_t held = hash->size % SHA256_BLOCK_BYTES;
    hash->size += size;
    if (held > 0) {
        const size_t room = SHA256_BLOCK_BYTES - held;
        const size_t taken = MIN(size, room);
        if (taken > 0) memcpy(hash->block + held, next, taken);
        if (taken < room) return;
        hash->compress(hash->state, hash->block, 1);
        next += taken;
        size -= taken;
    }
    const size_t blocks = size / SHA256_BLOCK_BYTES;
    if (blocks > 0) hash->compress(hash->state, next, blocks);
    const size_t rest = size % SHA256_BLOCK_BYTES;
    if (rest > 0) memcpy(hash->block, next + size - rest, rest);
}

void sha256_end(char hex[SHA256_HEX_MAX], struct sha256 *hash) {
    static const uint8_t padding[SHA256_BLOCK_BYTES] = {0x80};
    const uint64_t bits = hash->size * 8;
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
    const size_t held = hash->size % SHA256_BLOCK_BYTES;
    sha256_add(hash, padding, held < 56 ? 56 - held : 120 - held);
    sha256_add(hash, length, sizeof(length));
    for (int i = 0; i < 8; i++) snprintf(hex + 8 * i, 9, "%08" PRIx32, hash->state[i]);
}

void sha256_of(char hex[SHA256_HEX_MAX], const void *bytes, size_t size) {
    struct sha256 hash;
    sha256_begin(&hash);
    sha256_add(&hash, bytes, size);
    sha256_end(hex, &hash);
}

int sha256_file(char hex[SHA256_HEX_MAX], uint64_t *size, const char *path, struct error *error) {
    enum { CHUNK_BYTES = 1 << 20 };
    struct file_reader reader;
    struct sha256 hash;
    if (file_reader_open(&reader, path, error)) return -1;
    uint8_t *chunk = malloc(CHUNK_BYTES);
    int status = chunk ? 0 : fail_memory(error, "%.600s", path);
    sha256_begin(&hash);
    while (status == 0 && hash.size < reader.bytes) {
        const uint64_t left = reader.bytes - hash.size;
        const size_t count = left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES;
        status = file_reader_get(&reader, chunk, hash.size, count, error);
        if (status == 0) sha256_add(&hash, chunk, count);
    }
    free(chunk);
    file_reader_close(&reader);
    if (size) *size = hash.size;
    sha256_end(hex, &hash);
    return status;
}
