/* Any bytes are either rejected with a message or give a shard whose tokens can all be read. */
#include "data/corpus/tokens.h"
#include "test/fuzz/fuzz.h"

/* Two thirds of the inputs are a header's four numbers and tokens of 16 or 32 bits; half of
 * those have a correct count. The rest of the header and the other inputs are used as they are. */
static size_t build(uint8_t *image, const uint8_t *bytes, size_t size) {
    if (size < 17 || bytes[0] % 3 == 0) {
        memcpy(image, bytes, size);
        return size;
    }
    uint32_t header[SHARD_HEADER_BYTES / 4] = {0};
    memcpy(header, bytes + 1, 16);
    const bool is_wide = bytes[0] & 4;
    header[0] = is_wide ? SHARD_MAGIC_32 : SHARD_MAGIC_16;
    if (bytes[0] % 2) header[1] = is_wide ? SHARD_VERSION_32 : SHARD_VERSION_16;
    if (bytes[0] % 3 == 1) header[2] = (uint32_t)(size - 17) / (is_wide ? 4 : 2), header[3] = 0;
    memcpy(image, header, sizeof header);
    memcpy(image + sizeof header, bytes + 17, size - 17);
    return sizeof header + size - 17;
}

static void check(const char *path, bool is_named_bin, const uint8_t *image, size_t size) {
    struct error error = {0};
    struct tokens tokens;
    if (tokens_open(&tokens, path, &error)) {
        require(strstr(error.text, path) != NULL);
        return;
    }
    const struct token_shard *shard = &tokens.shards[0];
    const size_t header_bytes = shard->raw ? 0 : SHARD_HEADER_BYTES;
    require(is_named_bin || !shard->raw);
    require(tokens.count == shard->count && tokens.count <= size);
    const size_t token_bytes = (size_t)shard->token_bytes;
    require(token_bytes == 2 || (token_bytes == 4 && !shard->raw));
    require(size == header_bytes + token_bytes * tokens.count);
    for (uint64_t i = 0; i < tokens.count; i++) {
        int32_t token, expected = 0;
        require(token_shard_read(shard, &token, i, 1, &error) == 0);
        memcpy(&expected, image + header_bytes + token_bytes * i, token_bytes);
        require(token == expected);
    }
    tokens_close(&tokens);
}

static char folder[] = "/tmp/fuzz_tokens_XXXXXX", name[64];

static void remove_link(void) {
    unlink(name);
    rmdir(folder);
}

/* Returns a name that raw files have for path: a link in a folder, made once. */
static const char *bin_name(const char *path) {
    static char target[64];
    if (!*target) require(mkdtemp(folder) != NULL && atexit(remove_link) == 0);
    if (strcmp(target, path) == 0) return name;
    snprintf(name, sizeof name, "%s/train.bin", folder);
    unlink(name);
    require(symlink(path, name) == 0);
    strcpy(target, path);
    return name;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    char path[64];
    uint8_t *image = malloc(size + SHARD_HEADER_BYTES);
    require(image != NULL);
    const size_t image_bytes = build(image, bytes, size);
    const int fd = fuzz_file(path, image, image_bytes);
    check(path, false, image, image_bytes);
    check(bin_name(path), true, image, image_bytes);
    close(fd);
    free(image);
    return 0;
}
