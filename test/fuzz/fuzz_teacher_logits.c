/* Any bytes as a teacher's logits: either rejected with a message that names the file, or records
 * whose tokens ascend within the vocabulary, so that no kernel writes outside of its logits. */
#include "data/corpus/teacher_logits.h"
#include "test/fuzz/fuzz.h"

enum { TOKENS = 9, SEQ_LEN = 4 };

static char folder[] = "/tmp/fuzz_teacher_logits_XXXXXX", name[64];

static void remove_folder(void) {
    unlink(name);
    rmdir(folder);
}

/* Most inputs get a valid header, with a k and a vocabulary that they choose, and as many bytes as
 * it says. */
static size_t build(uint8_t *image, const uint8_t *bytes, size_t size,
                    const struct token_shard *shard, int64_t vocab_size) {
    struct teacher_header header;
    struct error error;
    if (size < 3 || bytes[0] % 8 == 0) {
        memcpy(image, bytes, size);
        return size;
    }
    require(teacher_describe(&header, shard, 1 + bytes[1] % 8, vocab_size, SEQ_LEN, false,
                             &error) == 0);
    if (bytes[0] % 8 == 1) ((uint8_t *)&header)[bytes[1] % 128] ^= bytes[2];
    const size_t needed = (TOKENS - 1) * teacher_record_bytes(&header) % (1 << 16);
    memset(image, 0, sizeof header + needed);
    memcpy(image, &header, sizeof header);
    memcpy(image + sizeof header, bytes + 3, size - 3 < needed ? size - 3 : needed);
    return sizeof header + needed;
}

static void read_all(const struct teacher_logits *teacher, int64_t vocab_size) {
    struct error error = {0};
    const size_t top = teacher->header.top;
    int32_t *tokens = malloc((TOKENS - 1) * top * sizeof *tokens);
    uint16_t *logits = malloc((TOKENS - 1) * top * sizeof *logits);
    require(tokens && logits);
    const int status = teacher_read(teacher, 0, 0, TOKENS - 1, tokens, logits, &error);
    if (status) require_message(&error, name);
    for (size_t i = 0; status == 0 && i < (TOKENS - 1) * top; i++) {
        require(tokens[i] >= 0 && tokens[i] < vocab_size);
        require(i % top == 0 || tokens[i] > tokens[i - 1]);
        require((logits[i] & 0x7fff) <= 0x7c00);
    }
    free(tokens);
    free(logits);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    struct tokens text;
    struct teacher_logits teacher;
    struct error error = {0};
    char path[64];
    if (!*name) {
        require(mkdtemp(folder) != NULL && atexit(remove_folder) == 0);
        snprintf(name, sizeof name, "%s/x.logits", folder);
    }
    const int64_t vocab_size = size > 1 && bytes[1] & 8 ? VOCABULARY_16_BITS + 5 : 50;
    int32_t *owned = calloc(TOKENS, sizeof *owned);
    uint8_t *image = malloc(size + (1 << 17));
    require(owned && image && tokens_from_memory(&text, owned, TOKENS, "x.bin", &error) == 0);
    const size_t image_bytes = build(image, bytes, size, &text.shards[0], vocab_size);
    const int fd = fuzz_file(path, image, image_bytes);
    unlink(name);
    require(symlink(path, name) == 0);
    if (teacher_open(&teacher, folder, &text, vocab_size, SEQ_LEN, false, &error) == 0) {
        read_all(&teacher, vocab_size);
        teacher_close(&teacher);
    } else {
        require_message(&error, "x.logits");
    }
    close(fd);
    free(image);
    tokens_close(&text);
    return 0;
}
