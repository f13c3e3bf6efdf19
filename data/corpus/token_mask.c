#include "data/corpus/token_mask.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/file_reader.h"
#include "data/util/printed.h"
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

/* Returns the bytes of a version for each 8 tokens. */
static int planes_of(uint32_t version) {
    return version == TOKEN_MASK_VERSION_PAIRS ? TOKEN_MASK_PLANES : (int)version;
}

static uint64_t file_bytes_for(uint32_t version, uint64_t tokens) {
    return TOKEN_MASK_HEADER_BYTES + (uint64_t)planes_of(version) * bytes_for(tokens);
}

#define REMEDY "write both again with ./prepare, or copy them again if they were copied"

/* Checks the file as read. */
static int check(const struct token_mask *mask, const char *path, uint64_t tokens,
                 struct error *error) {
    struct header header = {0};
    if (mask->file_bytes == 0)
        return fail(error, "%.*s: not the mask of a token shard: it is empty\n" REMEDY, NAME_SHOWN,
                    path);
    memcpy(&header, mask->file,
           mask->file_bytes < sizeof header ? mask->file_bytes : sizeof header);
    if (mask->file_bytes < sizeof header || memcmp(header.magic, MAGIC, sizeof MAGIC) != 0)
        return fail(error,
                    "%.*s: not the mask of a token shard: it does not begin with MASK\n" REMEDY,
                    NAME_SHOWN, path);
    if (header.version < 1 || header.version > TOKEN_MASK_VERSION_PAIRS)
        return fail(error,
                    "%.*s: a mask of version %" PRIu32 "; only versions 1 to %d are known\n" REMEDY,
                    NAME_SHOWN, path, header.version, TOKEN_MASK_VERSION_PAIRS);
    if (header.tokens != tokens)
        return fail(error,
                    "%.*s: the mask of %" PRIu64 " token%s, but the shard beside it has %" PRIu64
                    "\n" REMEDY,
                    NAME_SHOWN, path, header.tokens, PLURAL(header.tokens), tokens);
    const uint64_t wanted = file_bytes_for(header.version, tokens);
    if (mask->file_bytes != wanted)
        return fail(error,
                    "%.*s: damaged: a mask of %" PRIu64 " token%s has %" PRIu64
                    " bytes, the file has %zu\n" REMEDY,
                    NAME_SHOWN, path, tokens, PLURAL(tokens), wanted, mask->file_bytes);
    for (int i = 1; tokens % 8 != 0 && i <= planes_of(header.version); i++)
        if (mask->file[mask->file_bytes - (size_t)i] >> tokens % 8 != 0)
            return fail(error, "%.*s: damaged: it has bits behind the last token\n" REMEDY,
                        NAME_SHOWN, path);
    return 0;
}

/* Copies the planes apart, from 8 tokens after 8 tokens. */
static int take_planes(struct token_mask *mask, const uint8_t *bytes, int planes, uint64_t tokens,
                       struct error *error) {
    const size_t size = bytes_for(tokens);
    uint8_t *apart = malloc((size_t)planes * size + 1);
    if (!apart) return fail_memory(error, "a mask (%zu bytes)", (size_t)planes * size);
    for (size_t i = 0; i < size; i++)
        for (int plane = 0; plane < planes; plane++) apart[(size_t)plane * size + i] = *bytes++;
    free(mask->file);
    mask->file = apart;
    mask->bits = apart;
    mask->starts = apart + size;
    if (planes < TOKEN_MASK_PLANES) return 0;
    mask->rejected = apart + 2 * size;
    mask->labels = apart + 3 * size;
    return 0;
}

/* Checks that the documents are pairs, of which only first tokens have more marks. */
static int check_pairs(const struct token_mask *mask, const char *path, uint64_t tokens,
                       struct error *error) {
    bool second = true; /* the last document is the second one of its pair */
    for (uint64_t i = 0; i < tokens; i++) {
        const bool begins = token_mask_begins(mask, i), rejected = token_mask_is_rejected(mask, i);
        const bool good =
            begins ? rejected != second : i > 0 && !rejected && !token_mask_has_label(mask, i);
        if (!good)
            return fail(error,
                        "%.*s: damaged: by its marks token %" PRIu64 " is not of a pair\n" REMEDY,
                        NAME_SHOWN, path, i);
        second ^= begins;
    }
    return second ? 0
                  : fail(error, "%.*s: damaged: the last pair has one document\n" REMEDY,
                         NAME_SHOWN, path);
}

/* Finds the bits in a good file. Those of version 2 and 3 are copied apart. */
static int find_bits(struct token_mask *mask, const char *path, uint64_t tokens,
                     struct error *error) {
    uint8_t *const bytes = mask->file + TOKEN_MASK_HEADER_BYTES;
    if (mask->file_bytes == file_bytes_for(1, tokens)) {
        mask->bits = bytes;
        return 0;
    }
    const bool has_pairs = mask->file_bytes == file_bytes_for(TOKEN_MASK_VERSION_PAIRS, tokens);
    const int planes = planes_of(has_pairs ? TOKEN_MASK_VERSION_PAIRS : TOKEN_MASK_VERSION);
    if (take_planes(mask, bytes, planes, tokens, error)) return -1;
    return has_pairs ? check_pairs(mask, path, tokens, error) : 0;
}

static int read_file(struct token_mask *mask, const struct file_reader *file, struct error *error) {
    mask->file_bytes = (size_t)file->bytes;
    mask->file = malloc(mask->file_bytes + 1);
    if (!mask->file)
        return fail_memory(error, "the mask %.*s (%zu bytes)", NAME_SHOWN, file->path,
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
    if (status == RESULT_NONE) return fail(error, "%s\n" REMEDY, reason.text);
    if (status) return fail(error, "%s", reason.text);
    status = read_file(mask, &file, error);
    file_reader_close(&file);
    if (status == 0) status = check(mask, path, tokens, error);
    if (status == 0) status = find_bits(mask, path, tokens, error);
    if (status) token_mask_close(mask);
    return status;
}

void token_mask_close(struct token_mask *mask) {
    free(mask->file);
    memset(mask, 0, sizeof *mask);
}

uint64_t token_mask_counted(const struct token_mask *mask, uint64_t first, uint64_t count) {
    const uint8_t *bits = mask->bits;
    const uint64_t end = first + count;
    uint64_t counted = 0;
    if (!bits) return count;
    for (; first < end && first % 8 != 0; first++) counted += bits[first / 8] >> first % 8 & 1;
    for (; first + 8 <= end; first += 8) counted += (uint64_t)__builtin_popcount(bits[first / 8]);
    for (; first < end; first++) counted += bits[first / 8] >> first % 8 & 1;
    return counted;
}

/* Returns the first set bit from `first` on, or `end`. */
static uint64_t next_bit(const uint8_t *bits, uint64_t first, uint64_t end) {
    for (; first < end; first++)
        if (bits[first / 8] >> first % 8 & 1) return first;
        else if (first % 8 == 0 && bits[first / 8] == 0) first += 7;
    return end;
}

uint64_t token_mask_next_begin(const struct token_mask *mask, uint64_t first, uint64_t end) {
    return mask->starts ? next_bit(mask->starts, first, end) : end;
}

uint64_t token_mask_next_counted(const struct token_mask *mask, uint64_t first, uint64_t end) {
    return mask->bits ? next_bit(mask->bits, first, end) : first;
}

/* Adds a token's marks to the bytes of its 8 tokens. */
static void add_marks(uint8_t *bytes, int planes, int mark, uint64_t token) {
    for (int plane = 0; plane < planes; plane++)
        bytes[plane] |= (uint8_t)((mark >> plane & 1) << token % 8);
}

int token_mask_from_marks(struct token_mask *mask, const uint8_t *marks, uint64_t count,
                          const char *name, struct error *error) {
    int planes = planes_of(TOKEN_MASK_VERSION);
    for (uint64_t i = 0; i < count; i++)
        if (marks[i] & TOKEN_REJECTED) planes = TOKEN_MASK_PLANES;
    memset(mask, 0, sizeof *mask);
    uint8_t *bytes = calloc(bytes_for(count) + 1, (size_t)planes);
    if (!bytes) return fail_memory(error, "a mask (%" PRIu64 " tokens)", count);
    for (uint64_t i = 0; i < count; i++)
        add_marks(bytes + i / 8 * (uint64_t)planes, planes, marks[i], i);
    int status = take_planes(mask, bytes, planes, count, error);
    free(bytes);
    if (status == 0 && token_mask_has_pairs(mask)) status = check_pairs(mask, name, count, error);
    if (status) token_mask_close(mask);
    return status;
}

int mask_writer_open(struct mask_writer *writer, const char *path, bool has_pairs, uint64_t tokens,
                     struct error *error) {
    /* mask_writer_commit writes the number of tokens, which is not known yet. */
    struct header header = {.version = has_pairs ? TOKEN_MASK_VERSION_PAIRS : TOKEN_MASK_VERSION};
    memcpy(header.magic, MAGIC, sizeof MAGIC);
    memset(writer, 0, sizeof *writer);
    writer->planes = planes_of(header.version);
    if (file_writer_open(&writer->file, path, error)) return -1;
    if (file_writer_put(&writer->file, &header, sizeof header, error)) return -1;
    return mask_writer_put(writer, NULL, tokens, error);
}

int mask_writer_put(struct mask_writer *writer, const uint8_t *marks, uint64_t count,
                    struct error *error) {
    uint8_t bytes[PUT_BYTES];
    const size_t planes = (size_t)writer->planes;
    size_t filled = 0;
    assert(mask_writer_is_open(writer));
    for (uint64_t i = 0; i < count; i++) {
        add_marks(writer->bytes, writer->planes, marks ? marks[i] : TOKEN_COUNTS, writer->tokens);
        if (++writer->tokens % 8 != 0) continue;
        memcpy(bytes + filled, writer->bytes, planes);
        memset(writer->bytes, 0, planes);
        filled += planes;
        if (filled < sizeof bytes) continue;
        if (file_writer_put(&writer->file, bytes, filled, error)) return -1;
        filled = 0;
    }
    return filled > 0 ? file_writer_put(&writer->file, bytes, filled, error) : 0;
}

int mask_writer_commit(struct mask_writer *writer, struct error *error) {
    assert(mask_writer_is_open(writer));
    if (writer->tokens % 8 != 0 &&
        file_writer_put(&writer->file, writer->bytes, (size_t)writer->planes, error))
        return -1;
    if (file_writer_patch(&writer->file, offsetof(struct header, tokens), &writer->tokens,
                          sizeof writer->tokens, error))
        return -1;
    return file_writer_commit(&writer->file, error);
}

void mask_writer_abandon(struct mask_writer *writer) {
    file_writer_abandon(&writer->file);
}
