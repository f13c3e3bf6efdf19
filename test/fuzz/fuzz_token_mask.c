/* Any bytes as the mask of a shard: either rejected with a message that names it, or a mask of
 * the shard's size with the bits of the file. */
#include "data/corpus/token_mask.h"
#include "test/fuzz/fuzz.h"

/* Three quarters of the inputs get a valid header, half of those a valid number of tokens. */
static size_t build(uint8_t *image, const uint8_t *bytes, size_t size, uint64_t tokens) {
    if (size == 0 || bytes[0] % 4 == 0) {
        memcpy(image, bytes, size);
        return size;
    }
    const uint32_t version = 1 + bytes[0] / 8 % TOKEN_MASK_VERSION_PAIRS;
    memset(image, 0, TOKEN_MASK_HEADER_BYTES);
    memcpy(image, "MASK", 4);
    memcpy(image + 4, &version, sizeof version);
    image[8] = bytes[0];
    if (bytes[0] & 4) memcpy(image + 8, &tokens, sizeof tokens);
    memcpy(image + TOKEN_MASK_HEADER_BYTES, bytes + 1, size - 1);
    return TOKEN_MASK_HEADER_BYTES + size - 1;
}

static char folder[] = "/tmp/fuzz_token_mask_XXXXXX", shard[64], name[64];

static void remove_folder(void) {
    unlink(name);
    rmdir(folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    if (!*shard) {
        require(mkdtemp(folder) != NULL && atexit(remove_folder) == 0);
        snprintf(shard, sizeof shard, "%s/x.bin", folder);
        snprintf(name, sizeof name, "%s/x.mask", folder);
    }
    char path[64];
    struct token_mask mask;
    struct error error = {0};
    /* Chosen so that the rest of the input often has the length of a mask of its version. */
    const uint64_t bytes_held = size > 1 ? (size - 1) >> (bytes[0] / 8 % 3) : 0;
    const uint64_t tokens = bytes_held > 1 ? 8 * bytes_held - bytes[1] % 9 : 0;
    uint8_t *image = malloc(size + TOKEN_MASK_HEADER_BYTES);
    require(image != NULL);
    const size_t image_bytes = build(image, bytes, size, tokens);
    const int fd = fuzz_file(path, image, image_bytes);
    unlink(name);
    require(symlink(path, name) == 0);
    if (token_mask_open(&mask, shard, tokens, false, &error) == 0) {
        uint64_t counted = 0;
        const size_t version = image[4], planes = version == 3 ? 4 : version;
        bool in_pair = false;
        const uint8_t *bits = image + TOKEN_MASK_HEADER_BYTES;
        require(image_bytes == TOKEN_MASK_HEADER_BYTES + planes * ((tokens + 7) / 8));
        require(token_mask_has_starts(&mask) == (version >= 2 && tokens > 0));
        require(token_mask_has_pairs(&mask) == (version == 3 && tokens > 0));
        for (uint64_t i = 0; i < tokens; i++) {
            bool marks[4] = {false};
            for (size_t plane = 0; plane < planes; plane++)
                marks[plane] = bits[i / 8 * planes + plane] >> i % 8 & 1;
            require(token_mask_in_loss(&mask, i) == marks[0]);
            require(token_mask_begins(&mask, i) == marks[1]);
            require(token_mask_is_rejected(&mask, i) == marks[2]);
            require(token_mask_has_label(&mask, i) == marks[3]);
            require(marks[1] || (!marks[2] && !marks[3]));
            if (version == 3 && marks[1]) require(marks[2] == in_pair), in_pair = !in_pair;
            counted += marks[0];
        }
        require(!in_pair);
        require(token_mask_counted(&mask, 0, tokens) == counted);
        token_mask_close(&mask);
    } else {
        require(strstr(error.text, name) != NULL && mask.file == NULL);
    }
    close(fd);
    free(image);
    return 0;
}
