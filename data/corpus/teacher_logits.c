#include "data/corpus/teacher_logits.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/min_max.h"
#include "data/util/printed.h"
#include "data/util/utf8.h"

_Static_assert(sizeof(struct teacher_header) == TEACHER_HEADER_BYTES, "read as it is");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "records are read as they are");

enum { NAME_SHOWN = 400, CHUNK_TOKENS = 1 << 16, CHUNK_BYTES = 32 << 10, F16_INFINITY = 0x7c00 };

static const char MAGIC[4] = "TOPK", ENDING[] = ".logits", SHARD_ENDING[] = ".bin";
#define AGAIN "write the logits again with ./train --logits DIR --from TEACHER"

/* Hashes what a model sees of a shard. */
static int hash_tokens(char hex[SHA256_HEX_MAX], const struct token_shard *shard, uint32_t context,
                       struct error *error) {
    struct sha256 hash;
    int32_t *tokens = malloc(CHUNK_TOKENS * sizeof *tokens);
    if (!tokens) return fail_memory(error, "the tokens of a shard");
    int status = 0;
    sha256_begin(&hash);
    for (uint64_t at = 0; status == 0 && at < shard->count; at += CHUNK_TOKENS) {
        const uint64_t left = shard->count - at;
        const size_t count = (size_t)MIN(left, (uint64_t)CHUNK_TOKENS);
        status = token_shard_read(shard, tokens, at, count, error);
        if (status == 0) sha256_add(&hash, tokens, count * sizeof *tokens);
    }
    if (context && shard->mask.starts)
        sha256_add(&hash, shard->mask.starts, (size_t)((shard->count + 7) / 8));
    sha256_end(hex, &hash);
    free(tokens);
    return status;
}

int teacher_describe(struct teacher_header *header, const struct token_shard *shard, int64_t top,
                     int64_t vocab_size, int64_t seq_len, uint32_t context, struct error *error) {
    *header = (struct teacher_header){
        .version = TEACHER_VERSION,
        .top = (uint32_t)top,
        .vocab_size = (uint32_t)vocab_size,
        .seq_len = (uint32_t)seq_len,
        .context = context,
        .records = shard->count > 0 ? shard->count - 1 : 0,
    };
    memcpy(header->magic, MAGIC, sizeof MAGIC);
    return hash_tokens(header->tokens, shard, context, error);
}

/* Returns the name of a shard without its folder. */
static const char *name_of(const struct token_shard *shard) {
    const char *slash = strrchr(shard->name, '/');
    return slash ? slash + 1 : shard->name;
}

int teacher_check_names(const struct tokens *tokens, struct error *error) {
    const struct token_shard *shards = tokens->shards;
    for (size_t i = 0; i < arrlenu(shards); i++)
        for (size_t k = 0; k < i; k++)
            if (strcmp(name_of(&shards[i]), name_of(&shards[k])) == 0)
                return fail(error,
                            "%.*s and %.*s would have one file of logits, by their name\nrename "
                            "one of them, or prepare them with one --out",
                            NAME_SHOWN, shards[k].name, NAME_SHOWN, shards[i].name);
    return 0;
}

int teacher_path(char path[FILE_PATH_MAX], const char *folder, const struct token_shard *shard,
                 struct error *error) {
    const char *name = name_of(shard);
    const int length = (int)(strlen(name) - (text_ends(name, SHARD_ENDING) ? 4 : 0));
    char file[FILE_PATH_MAX];
    if (snprintf(file, sizeof file, "%.*s%s", length, name, ENDING) >= FILE_PATH_MAX)
        return fail(error, "the name %.60s... is too long", name);
    return file_path_join(path, folder, file, error);
}

/* Returns the bytes of a token id. */
static size_t token_bytes(const struct teacher_header *header) {
    return header->vocab_size > VOCABULARY_16_BITS ? sizeof(int32_t) : sizeof(uint16_t);
}

size_t teacher_record_bytes(const struct teacher_header *header) {
    return header->top * (token_bytes(header) + sizeof(uint16_t));
}

void teacher_pack(const struct teacher_header *header, void *record, const int32_t *tokens,
                  const uint16_t *logits) {
    const size_t size = token_bytes(header);
    for (size_t k = 0; k < header->top; k++) /* little-endian: the first bytes are the lowest */
        memcpy((char *)record + k * size, &tokens[k], size);
    memcpy((char *)record + header->top * size, logits, header->top * sizeof *logits);
}

int teacher_read_header(struct teacher_header *header, const struct file_reader *file,
                        struct error *error) {
    if (file->bytes < sizeof *header)
        return fail(error,
                    "%.*s: truncated: %" PRIu64 " bytes, and the header alone has %d\n" AGAIN,
                    NAME_SHOWN, file->path, file->bytes, TEACHER_HEADER_BYTES);
    if (file_reader_get(file, header, 0, sizeof *header, error)) return -1;
    if (memcmp(header->magic, MAGIC, sizeof MAGIC) != 0 || header->version != TEACHER_VERSION)
        return fail(error, "%.*s: not the logits of a teacher, version %d\n" AGAIN, NAME_SHOWN,
                    file->path, TEACHER_VERSION);
    if (header->top < 1 || header->top > TEACHER_TOP_MAX || header->top > header->vocab_size)
        return fail(error,
                    "%.*s: damaged: %" PRIu32 " logits of a vocabulary of %" PRIu32 "\n" AGAIN,
                    NAME_SHOWN, file->path, header->top, header->vocab_size);
    const uint64_t bytes = file->bytes - sizeof *header, record = teacher_record_bytes(header);
    if (bytes / record != header->records || bytes % record != 0)
        return fail(error,
                    "%.*s: truncated or damaged: the header says %" PRIu64 " record%s of %" PRIu64
                    " bytes, and %" PRIu64 " byte%s follow it\n" AGAIN,
                    NAME_SHOWN, file->path, header->records, PLURAL(header->records), record, bytes,
                    PLURAL(bytes));
    return 0;
}

/* Fails unless the file was written for what `wanted` describes. */
static int compare(const char *path, const struct teacher_header *found,
                   const struct teacher_header *wanted, struct error *error) {
    if (found->vocab_size != wanted->vocab_size)
        return fail(error,
                    "%.*s: the teacher has a vocabulary of %" PRIu32 " tokens, the student of "
                    "%" PRIu32 "\nthe two need the same tokenizer and model.vocab_size",
                    NAME_SHOWN, path, found->vocab_size, wanted->vocab_size);
    if (found->seq_len != wanted->seq_len)
        return fail(error,
                    "%.*s: written for sequences of %" PRIu32 " tokens, but data.seq_len is "
                    "%" PRIu32 "\n" AGAIN " --set data.seq_len=%" PRIu32 ", or change data.seq_len",
                    NAME_SHOWN, path, found->seq_len, wanted->seq_len, wanted->seq_len);
    static const char *const isolates[] = {"false", "true"}, *const packs[] = {"cut", "whole"};
    const uint32_t before = found->context, now = wanted->context;
    if (before != now)
        return fail(error,
                    "%.*s: written with data.isolate %s and data.pack %s, but now it is %s and "
                    "%s\n" AGAIN ", or change what differs",
                    NAME_SHOWN, path, isolates[before & 1], packs[before >> 1 & 1],
                    isolates[now & 1], packs[now >> 1 & 1]);
    if (found->top != wanted->top)
        return fail(error,
                    "%.*s: it has %" PRIu32 " logits for each token, the other files have "
                    "%" PRIu32 "\n" AGAIN,
                    NAME_SHOWN, path, found->top, wanted->top);
    if (found->records != wanted->records || strcmp(found->tokens, wanted->tokens) != 0)
        return fail(error, "%.*s: written for other tokens than those of its shard\n" AGAIN,
                    NAME_SHOWN, path);
    return 0;
}

static int open_shard(struct teacher_logits *teacher, const char *folder,
                      const struct token_shard *shard, const struct teacher_header *like,
                      struct error *error) {
    char path[FILE_PATH_MAX];
    struct teacher_header found, wanted;
    struct file_reader *file = arraddnptr(teacher->files, 1);
    *file = (struct file_reader){0};
    if (teacher_path(path, folder, shard, error)) return -1;
    if (!file_exists(path))
        return fail(error, "there is no %.*s, the teacher's logits for %.*s\n" AGAIN,
                    NAME_SHOWN / 2, path, NAME_SHOWN / 2, shard->name);
    if (file_reader_open(file, path, error) || teacher_read_header(&found, file, error)) return -1;
    /* whatever a damaged file holds */
    found.tokens[SHA256_HEX_MAX - 1] = found.teacher[SHA256_HEX_MAX - 1] = '\0';
    if (arrlen(teacher->files) == 1) teacher->header = found;
    if (teacher_describe(&wanted, shard, teacher->header.top, like->vocab_size, like->seq_len,
                         like->context, error))
        return -1;
    return compare(path, &found, &wanted, error);
}

int teacher_open(struct teacher_logits *teacher, const char *folder, const struct tokens *tokens,
                 int64_t vocab_size, int64_t seq_len, uint32_t context, struct error *error) {
    const struct teacher_header like = {
        .vocab_size = (uint32_t)vocab_size, .seq_len = (uint32_t)seq_len, .context = context};
    *teacher = (struct teacher_logits){0};
    int status = teacher_check_names(tokens, error);
    for (size_t i = 0; status == 0 && i < arrlenu(tokens->shards); i++)
        status = open_shard(teacher, folder, &tokens->shards[i], &like, error);
    if (status) teacher_close(teacher);
    return status;
}

void teacher_close(struct teacher_logits *teacher) {
    for (ptrdiff_t i = 0; i < arrlen(teacher->files); i++) file_reader_close(&teacher->files[i]);
    arrfree(teacher->files);
}

/* Unpacks a record. Returns false if it is damaged: tokens that do not ascend could write outside
 * of the logits, or two of a GPU's threads to the same one. */
static bool unpack(const struct teacher_header *header, const char *record, int32_t *tokens,
                   uint16_t *logits) {
    const size_t size = token_bytes(header), top = header->top;
    int64_t last = -1;
    bool good = true, has_largest = false;
    memcpy(logits, record + top * size, top * sizeof *logits);
    for (size_t k = 0; k < top; k++) {
        tokens[k] = 0;
        memcpy(&tokens[k], record + k * size, size);
        good = good && tokens[k] > last && (logits[k] == 0 || logits[k] >> 15) &&
               (logits[k] & 0x7fff) <= F16_INFINITY;
        has_largest = has_largest || logits[k] == 0;
        last = tokens[k];
    }
    return good && has_largest && last < (int64_t)header->vocab_size;
}

int teacher_read(const struct teacher_logits *teacher, size_t shard, uint64_t first, size_t count,
                 int32_t *tokens, uint16_t *logits, struct error *error) {
    const struct teacher_header *header = &teacher->header;
    const struct file_reader *file = &teacher->files[shard];
    const size_t bytes = teacher_record_bytes(header), top = header->top;
    char buffer[CHUNK_BYTES];
    const size_t chunk = sizeof buffer / bytes;
    for (size_t at = 0; at < count; at += chunk) {
        const size_t left = count - at, records = MIN(left, chunk);
        const uint64_t offset = TEACHER_HEADER_BYTES + (first + at) * bytes;
        if (file_reader_get(file, buffer, offset, records * bytes, error)) return -1;
        for (size_t i = 0; i < records; i++)
            if (!unpack(header, buffer + i * bytes, tokens + (at + i) * top,
                        logits + (at + i) * top))
                return fail(error, "%.*s: damaged at token %" PRIu64 "\n" AGAIN, NAME_SHOWN,
                            file->path, first + at + i);
    }
    return 0;
}
