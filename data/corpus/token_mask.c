#include "data/corpus/token_mask.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/file_reader.h"
#include "data/util/utf8.h"

enum { NAME_SHOWN = 600, PUT_BYTES = 4096 };

static const char MAGIC[4] = "MASK", SHARD_ENDING[] = ".bin", MASK_ENDING[] = ".mask";

/* The header of the file. */
struct header {
    char magic[4];
    uint32_t version;
    uint64_t tokens;
};
_Static_assert(sizeof(struct header) == TOKEN_MASK_HEADER_BYTES, "the header is read as it is");

bool token_mask_is_named(const char *path) {
    return text_ends(path, MASK_ENDING);
}

bool token_mask_path(char path[FILE_PATH_MAX], const char *shard_path) {
    const size_t base = strlen(shard_path) - (sizeof SHARD_ENDING - 1);
    if (!text_ends(shard_path, SHARD_ENDING) || base + sizeof MASK_ENDING > FILE_PATH_MAX)
        return false;
    memcpy(path, shard_path, base);
    strcpy(path + base, MASK_ENDING);
    return true;
}

/* Returns the bytes of one kind of bits. */
static size_t bytes_for(uint64_t tokens) {
    return (size_t)(tokens / 8 + (tokens % 8 != 0));
}

static uint64_t file_bytes_for(uint32_t version, uint64_t tokens) {
    return TOKEN_MASK_HEADER_BYTES + (uint64_t)version * bytes_for(tokens);
}

static const char remedy[] =
    "write both again with ./prepare, or copy them again if they were copied";

/* Checks the file as read. */
static int check(const struct token_mask *mask, const char *path, uint64_t tokens,
                 struct error *error) {
    struct header header = {0};
    if (mask->file_bytes == 0)
        return fail(error, "%.*s: not the mask of a token shard: it is empty\n%s", NAME_SHOWN, path,
                    remedy);
    memcpy(&header, mask->file,
           mask->file_bytes < sizeof header ? mask->file_bytes : sizeof header);
    if (mask->file_bytes < sizeof header || memcmp(header.magic, MAGIC, sizeof MAGIC) != 0)
        return fail(error, "%.*s: not the mask of a token shard: it does not begin with MASK\n%s",
                    NAME_SHOWN, path, remedy);
    if (header.version < 1 || header.version > TOKEN_MASK_VERSION)
        return fail(error,
                    "%.*s: a mask of version %" PRIu32 "; only versions 1 to %d are known\n%s",
                    NAME_SHOWN, path, header.version, TOKEN_MASK_VERSION, remedy);
    if (header.tokens != tokens)
        return fail(error,
                    "%.*s: the mask of %" PRIu64 " tokens, but the shard beside it has %" PRIu64
                    "\n%s",
                    NAME_SHOWN, path, header.tokens, tokens, remedy);
    const uint64_t wanted = file_bytes_for(header.version, tokens);
    if (mask->file_bytes != wanted)
        return fail(error,
                    "%.*s: damaged: a mask of %" PRIu64 " tokens has %" PRIu64
                    " bytes, the file has %zu\n%s",
                    NAME_SHOWN, path, tokens, wanted, mask->file_bytes, remedy);
    for (uint32_t i = 1; tokens % 8 != 0 && i <= header.version; i++)
        if (mask->file[mask->file_bytes - i] >> tokens % 8 != 0)
            return fail(error, "%.*s: damaged: it has bits behind the last token\n%s", NAME_SHOWN,
                        path, remedy);
    return 0;
}

/* Finds the bits in a good file. Those of version 2 are copied apart. */
static int find_bits(struct token_mask *mask, uint64_t tokens, struct error *error) {
    const size_t bytes = bytes_for(tokens);
    if (mask->file_bytes == file_bytes_for(1, tokens)) {
        mask->bits = mask->file + TOKEN_MASK_HEADER_BYTES;
        return 0;
    }
    uint8_t *apart = malloc(2 * bytes);
    if (!apart) return fail(error, "out of memory for a mask (%zu bytes)", 2 * bytes);
    for (size_t i = 0; i < bytes; i++) {
        apart[i] = mask->file[TOKEN_MASK_HEADER_BYTES + 2 * i];
        apart[bytes + i] = mask->file[TOKEN_MASK_HEADER_BYTES + 2 * i + 1];
    }
    free(mask->file);
    mask->file = apart;
    mask->bits = apart;
    mask->starts = apart + bytes;
    return 0;
}

static int read_file(struct token_mask *mask, const struct file_reader *file, struct error *error) {
    mask->file_bytes = (size_t)file->bytes;
    mask->file = malloc(mask->file_bytes + 1);
    if (!mask->file)
        return fail(error, "out of memory for the mask %.*s (%zu bytes)", NAME_SHOWN, file->path,
                    mask->file_bytes);
    return file_reader_get(file, mask->file, 0, mask->file_bytes, error);
}

static int fail_missing(const char *shard_path, struct error *error) {
    return fail(error,
                "%.*s: the mask that belongs to this token shard, which says what counts in the "
                "loss, is not beside it\ncopy the .mask file too (the shard's name ends in .bin), "
                "or write both again with ./prepare",
                NAME_SHOWN, shard_path);
}

int token_mask_open(struct token_mask *mask, const char *shard_path, uint64_t tokens, bool wanted,
                    struct error *error) {
    char path[FILE_PATH_MAX];
    memset(mask, 0, sizeof *mask);
    if (!token_mask_path(path, shard_path) || !file_exists(path))
        return wanted ? fail_missing(shard_path, error) : 0;
    struct file_reader file;
    struct error reason;
    int status = file_reader_open(&file, path, &reason);
    if (status == RESULT_NONE) return fail(error, "%s\n%s", reason.text, remedy);
    if (status) return fail(error, "%s", reason.text);
    status = read_file(mask, &file, error);
    file_reader_close(&file);
    if (status == 0) status = check(mask, path, tokens, error);
    if (status == 0) status = find_bits(mask, tokens, error);
    if (status) token_mask_close(mask);
    return status;
}

void token_mask_close(struct token_mask *mask) {
    free(mask->file);
    memset(mask, 0, sizeof *mask);
}

/* Returns how many of the bits first .. first + count - 1 are set. */
static uint64_t count_bits(const uint8_t *bits, uint64_t first, uint64_t count) {
    const uint64_t end = first + count;
    uint64_t counted = 0;
    for (; first < end && first % 8 != 0; first++) counted += bits[first / 8] >> first % 8 & 1;
    for (; first + 8 <= end; first += 8) counted += (uint64_t)__builtin_popcount(bits[first / 8]);
    for (; first < end; first++) counted += bits[first / 8] >> first % 8 & 1;
    return counted;
}

uint64_t token_mask_counted(const struct token_mask *mask, uint64_t first, uint64_t count) {
    return mask->bits ? count_bits(mask->bits, first, count) : count;
}

uint64_t token_mask_begun(const struct token_mask *mask, uint64_t first, uint64_t count) {
    return mask->starts ? count_bits(mask->starts, first, count) : 0;
}

int mask_writer_open(struct mask_writer *writer, const char *path, uint64_t tokens,
                     struct error *error) {
    /* mask_writer_commit writes the number of tokens, which is not known yet. */
    struct header header = {.version = TOKEN_MASK_VERSION};
    memcpy(header.magic, MAGIC, sizeof MAGIC);
    memset(writer, 0, sizeof *writer);
    if (file_writer_open(&writer->file, path, error)) return -1;
    if (file_writer_put(&writer->file, &header, sizeof header, error)) return -1;
    return mask_writer_put(writer, NULL, tokens, error);
}

int mask_writer_put(struct mask_writer *writer, const uint8_t *marks, uint64_t count,
                    struct error *error) {
    uint8_t bytes[PUT_BYTES];
    size_t filled = 0;
    assert(mask_writer_is_open(writer));
    for (uint64_t i = 0; i < count; i++) {
        const int mark = marks ? marks[i] : TOKEN_COUNTS, place = (int)(writer->tokens % 8);
        writer->bits |= (uint8_t)((mark & TOKEN_COUNTS) << place);
        writer->starts |= (uint8_t)(mark / TOKEN_BEGINS << place);
        if (++writer->tokens % 8 != 0) continue;
        bytes[filled++] = writer->bits;
        bytes[filled++] = writer->starts;
        writer->bits = writer->starts = 0;
        if (filled < sizeof bytes) continue;
        if (file_writer_put(&writer->file, bytes, filled, error)) return -1;
        filled = 0;
    }
    return filled > 0 ? file_writer_put(&writer->file, bytes, filled, error) : 0;
}

int mask_writer_commit(struct mask_writer *writer, struct error *error) {
    assert(mask_writer_is_open(writer));
    const uint8_t last[] = {writer->bits, writer->starts};
    if (writer->tokens % 8 != 0 && file_writer_put(&writer->file, last, sizeof last, error))
        return -1;
    if (file_writer_patch(&writer->file, offsetof(struct header, tokens), &writer->tokens,
                          sizeof writer->tokens, error))
        return -1;
    return file_writer_commit(&writer->file, error);
}

void mask_writer_abandon(struct mask_writer *writer) {
    file_writer_abandon(&writer->file);
}
