/* The vectors are those of NIST: FIPS 180-4 examples and the SHA-256 byte vectors of CAVP. */
#include "data/util/sha256.h"

#include <criterion/criterion.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/util/error.h"

static void hash_hex(char hex[SHA256_HEX_MAX], const void *bytes, size_t size) {
    struct sha256 hash;
    sha256_begin(&hash);
    sha256_add(&hash, bytes, size);
    sha256_end(hex, &hash);
}

Test(sha256, published_vectors) {
    static const struct {
        const char *text, *hex;
    } vectors[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrl"
         "m"
         "nopqrsmnopqrstnopqrstu",
         "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
        {"\xbd", "68325720aabd7c82f30f554b313d0570c95accbb7dc4b5aae11204c08ffe732b"},
        {"\xc9\x8c\x8e\x55", "7abc22c0ae5af26ce93dbb94433a0e0b2e119d014f8e7f65bd56c61ccccd9504"},
    };
    for (size_t i = 0; i < sizeof(vectors) / sizeof(*vectors); i++) {
        char hex[SHA256_HEX_MAX];
        hash_hex(hex, vectors[i].text, strlen(vectors[i].text));
        cr_expect_str_eq(hex, vectors[i].hex, "vector %zu: %s", i, hex);
    }
}

Test(sha256, a_million_letters_in_pieces_of_every_size) {
    enum { COUNT = 1000000 };
    char *letters = malloc(COUNT);
    cr_assert_not_null(letters);
    memset(letters, 'a', COUNT);
    static const size_t pieces[] = {1, 3, 55, 56, 57, 63, 64, 65, 127, 128, 1000, 65537, COUNT};
    for (size_t p = 0; p < sizeof(pieces) / sizeof(*pieces); p++) {
        struct sha256 hash;
        char hex[SHA256_HEX_MAX];
        sha256_begin(&hash);
        for (size_t done = 0; done < COUNT;) {
            const size_t rest = COUNT - done, size = pieces[p] < rest ? pieces[p] : rest;
            sha256_add(&hash, letters + done, size);
            sha256_add(&hash, letters, 0);
            done += size;
        }
        sha256_end(hex, &hash);
        cr_expect_str_eq(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
                         "pieces of %zu", pieces[p]);
    }
    free(letters);
}

/* Hashes the digests of 1..130 bytes 0xa7 once more together, which covers every padding. */
Test(sha256, every_length_around_a_block) {
    uint8_t bytes[130];
    char hex[SHA256_HEX_MAX];
    memset(bytes, 0xa7, sizeof(bytes));
    struct sha256 all;
    sha256_begin(&all);
    for (size_t size = 1; size <= sizeof(bytes); size++) {
        struct sha256 hash;
        sha256_begin(&hash);
        sha256_add(&hash, bytes, size);
        sha256_end(hex, &hash);
        sha256_add(&all, hex, strlen(hex));
    }
    sha256_end(hex, &all);
    cr_expect_str_eq(hex, "d31b7d199c4d2f7325d77b86c3e8e516ba0d933fc0c28338337dd52f65e31221");
}

Test(sha256, portable_path_gives_the_same_state) {
    enum { BLOCKS = 37 };
    uint8_t bytes[BLOCKS * SHA256_BLOCK_BYTES];
    uint32_t value = 1;
    for (size_t i = 0; i < sizeof(bytes); i++) {
        value = value * 1664525u + 1013904223u;
        bytes[i] = (uint8_t)(value >> 24);
    }
    struct sha256 fast, portable;
    sha256_begin(&fast);
    sha256_begin(&portable);
    fast.compress(fast.state, bytes, BLOCKS);
    sha256_portable(portable.state, bytes, BLOCKS);
    cr_expect_arr_eq(fast.state, portable.state, sizeof(fast.state));

    static const uint32_t abc[8] = {0xba7816bf, 0x8f01cfea, 0x414140de, 0x5dae2223,
                                    0xb00361a3, 0x96177a9c, 0xb410ff61, 0xf20015ad};
    const uint8_t block[SHA256_BLOCK_BYTES] = {'a', 'b', 'c', 0x80, [63] = 24};
    sha256_begin(&portable);
    sha256_portable(portable.state, block, 1);
    cr_expect_arr_eq(portable.state, abc, sizeof(abc));
}

Test(sha256, file) {
    char path[] = "/tmp/sha256_XXXXXX", hex[SHA256_HEX_MAX];
    struct error error = {0};
    const int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, "abc", 3), 3);
    close(fd);
    uint64_t size = 0;
    cr_expect_eq(sha256_file(hex, &size, path, &error), 0, "%s", error.text);
    cr_expect_str_eq(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    cr_expect_eq(size, 3);
    cr_expect_eq(sha256_file(hex, NULL, path, &error), 0);
    unlink(path);
    cr_expect_eq(sha256_file(hex, &size, path, &error), -1);
    cr_expect_not_null(strstr(error.text, path), "%s", error.text);
    cr_expect_eq(sha256_file(hex, &size, "/tmp", &error), -1);
    cr_expect_not_null(strstr(error.text, "directory"), "%s", error.text);
}
