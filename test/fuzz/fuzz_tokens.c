/* Any bytes are either refused with a message or give a shard whose tokens can all be read. */
#include "data/tokens.h"
#include "test/fuzz/fuzz.h"

/* Two thirds of the inputs are a header's four numbers and tokens, half of those with a count that
 * is right; the rest of the header and the other inputs are as they come. */
static size_t build(uint8_t *image, const uint8_t *bytes, size_t size) {
    if (size < 17 || bytes[0] % 3 == 0) {
        memcpy(image, bytes, size);
        return size;
    }
    uint32_t header[SHARD_HEADER_BYTES / 4] = {0};
    memcpy(header, bytes + 1, 16);
    header[0] = SHARD_MAGIC;
    if (bytes[0] % 2) header[1] = SHARD_VERSION;
    if (bytes[0] % 3 == 1) header[2] = (uint32_t)(size - 17) / 2, header[3] = 0;
    memcpy(image, header, sizeof header);
    memcpy(image + sizeof header, bytes + 17, size - 17);
    return sizeof header + size - 17;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    char path[64], error[ERROR_MAX] = "";
    uint8_t *image = malloc(size + SHARD_HEADER_BYTES);
    require(image != NULL);
    const size_t image_bytes = build(image, bytes, size);
    const int fd = fuzz_file(path, image, image_bytes);
    struct tokens tokens;
    if (tokens_open(&tokens, path, error) == 0) {
        require(tokens.count == tokens.shards[0].count);
        require(image_bytes == SHARD_HEADER_BYTES + 2 * tokens.count);
        const volatile uint16_t *values = tokens.shards[0].tokens;
        for (uint64_t i = 0; i < tokens.count; i++) (void)values[i];
        tokens_close(&tokens);
    } else {
        require(strstr(error, path) != NULL);
    }
    close(fd);
    free(image);
    return 0;
}
