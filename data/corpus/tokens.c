#include "data/corpus/tokens.h"

#include <assert.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <stb/stb_ds.h>
#include "data/util/min_max.h"
#include "data/util/printed.h"
#include "data/util/utf8.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "shards are read as they are");

enum { HEADER_WORDS = SHARD_HEADER_BYTES / 4, HEADER_MASKED = 4, NAME_SHOWN = 600 };

/* Endings of the two kinds of files in a set. */
static const char SHARD_ENDING[] = ".bin", MASK_ENDING[] = ".mask";

#define MAKE   "make shards with: ./prepare --tokenizer DIR (or bytes) --out PREFIX FILE"
#define REMEDY "write it again with ./prepare, or copy it again if it was copied"

static int fail_no_shard(const char *path, uint64_t bytes, struct error *error) {
    if (bytes == 0)
        return fail(error, "%.*s is not a token shard: it is empty\n" MAKE, NAME_SHOWN, path);
    if (!text_ends(path, SHARD_ENDING))
        return fail(error,
                    "%.*s is not a token shard: it has no header, and only files named .bin are "
                    "read without one\n" MAKE,
                    NAME_SHOWN, path);
    return fail(error,
                "%.*s is not a token shard: it has no header, and its %" PRIu64 " byte%s, an odd "
                "number, cannot be 16-bit tokens\n" MAKE,
                NAME_SHOWN, path, bytes, PLURAL(bytes));
}

/* Checks the header of a file that begins with the number of a format. */
static int check_header(const char *path, const uint32_t *header, uint64_t file_bytes,
                        uint64_t *count, struct error *error) {
    const bool is_wide = header[0] == SHARD_MAGIC_32;
    const uint32_t version = is_wide ? SHARD_VERSION_32 : SHARD_VERSION_16;
    const uint64_t token_bytes = is_wide ? 4 : 2;
    if (file_bytes < SHARD_HEADER_BYTES)
        return fail(error,
                    "%.*s: truncated: a token shard of %" PRIu64 " bytes, but the header alone "
                    "has %d\n" REMEDY,
                    NAME_SHOWN, path, file_bytes, SHARD_HEADER_BYTES);
    if (header[1] != version)
        return fail(error,
                    "%.*s: token shard of %d bits, version %" PRIu32 "; only version %" PRIu32
                    " is known\n" REMEDY,
                    NAME_SHOWN, path, is_wide ? 32 : 16, header[1], version);
    *count = header[2] | (uint64_t)header[3] << 32;
    uint64_t held = (file_bytes - SHARD_HEADER_BYTES) / token_bytes;
    if (held < *count)
        return fail(error,
                    "%.*s: truncated: the header says %" PRIu64 " token%s, the file ends after "
                    "%" PRIu64 "\n" REMEDY,
                    NAME_SHOWN, path, *count, PLURAL(*count), held);
    uint64_t extra = file_bytes - SHARD_HEADER_BYTES - token_bytes * *count;
    if (extra > 0)
        return fail(error,
                    "%.*s: too long: the header says %" PRIu64 " token%s, followed by %" PRIu64
                    " byte%s\n" REMEDY,
                    NAME_SHOWN, path, *count, PLURAL(*count), extra, PLURAL(extra));
    return 0;
}

/* Finds the tokens in an open file of any supported format. */
static int read_format(struct token_shard *shard, struct error *error) {
    const uint64_t bytes = shard->file.bytes;
    uint32_t header[HEADER_WORDS] = {0};
    if (file_reader_get(&shard->file, header, 0, bytes < sizeof header ? bytes : sizeof header,
                        error))
        return -1;
    const bool is_wide = header[0] == SHARD_MAGIC_32;
    shard->token_bytes = is_wide ? 4 : 2;
    if (is_wide || header[0] == SHARD_MAGIC_16) {
        shard->first_byte = SHARD_HEADER_BYTES;
        shard->is_masked = header[HEADER_MASKED] != 0;
        return check_header(shard->name, header, bytes, &shard->count, error);
    }
    if (!text_ends(shard->name, SHARD_ENDING) || bytes == 0 || bytes % 2 != 0)
        return fail_no_shard(shard->name, bytes, error);
    shard->raw = true;
    shard->count = bytes / 2;
    return 0;
}

static int open_file(struct token_shard *shard, struct error *error) {
    struct error reason;
    int status = file_reader_open(&shard->file, shard->name, &reason);
    if (status == RESULT_NONE)
        return fail(error, "%s\nname the shards in it, for instance %.*s/*_train_*.bin",
                    reason.text, NAME_SHOWN / 2, shard->name);
    return status ? fail(error, "%s", reason.text) : read_format(shard, error);
}

static int open_shard(struct tokens *tokens, const char *path, struct error *error) {
    struct token_shard *shard = arraddnptr(tokens->shards, 1);
    *shard = (struct token_shard){.name = strdup(path)};
    if (!shard->name) return fail_memory(error, "%.*s", NAME_SHOWN, path);
    if (open_file(shard, error)) return -1;
    if (token_mask_open(&shard->mask, path, shard->count, shard->is_masked, error)) return -1;
    tokens->count += shard->count;
    tokens->counted += token_mask_counted(&shard->mask, 0, shard->count);
    return 0;
}

static int open_matches(struct tokens *tokens, const char *pattern, struct error *error) {
    glob_t matches = {0};
    int status = glob(pattern, GLOB_TILDE, NULL, &matches);
    if (status == GLOB_NOMATCH) {
        bool is_plain = !strpbrk(pattern, "*?[");
        status =
            fail(error,
                 is_plain ? "no such token shard: %.*s\nmake shards with ./prepare, or check "
                            "the path (it is relative to the current folder)"
                          : "no token shard matches %.*s\nmake shards with ./prepare, or check "
                            "the pattern (it is relative to the current folder)",
                 NAME_SHOWN, pattern);
    } else if (status) {
        status = fail(error, "cannot search for token shards %.*s: out of memory, or unreadable",
                      NAME_SHOWN, pattern);
    }
    for (size_t i = 0; status == 0 && i < matches.gl_pathc; i++)
        if (!token_mask_is_named(matches.gl_pathv[i]))
            status = open_shard(tokens, matches.gl_pathv[i], error);
    if (status == 0 && arrlenu(tokens->shards) == 0)
        status = fail(error, "%.*s: only masks, no token shards\nname the shards (*.bin)",
                      NAME_SHOWN, pattern);
    globfree(&matches);
    return status;
}

int tokens_open(struct tokens *tokens, const char *pattern, struct error *error) {
    memset(tokens, 0, sizeof *tokens);
    if (!*pattern) return fail(error, "the name of the token shards is empty\ngive a path or glob");
    int status = file_exists(pattern) ? open_shard(tokens, pattern, error)
                                      : open_matches(tokens, pattern, error);
    if (status == 0 && tokens->count > 0 && tokens->counted == 0)
        status = fail(error,
                      "%.*s: by its masks no token counts in the loss\nwrite it again with "
                      "./prepare, from rows with completions",
                      NAME_SHOWN, pattern);
    if (status) tokens_close(tokens);
    return status;
}

int tokens_from_memory(struct tokens *tokens, int32_t *owned, uint64_t count, const char *name,
                       struct error *error) {
    memset(tokens, 0, sizeof *tokens);
    struct token_shard shard = {
        .name = strdup(name), .count = count, .token_bytes = sizeof *owned, .owned = owned};
    if (!shard.name) {
        free(owned);
        return fail_memory(error, "the tokens of %.*s", NAME_SHOWN, name);
    }
    arrput(tokens->shards, shard);
    tokens->count = tokens->counted = count;
    return 0;
}

int tokens_from_memory_marked(struct tokens *tokens, int32_t *owned, const uint8_t *marks,
                              uint64_t count, const char *name, struct error *error) {
    if (tokens_from_memory(tokens, owned, count, name, error)) return -1;
    struct token_mask *mask = &tokens->shards[0].mask;
    int status = token_mask_from_marks(mask, marks, count, name, error);
    if (status == 0) tokens->counted = token_mask_counted(mask, 0, count);
    if (status == 0 && tokens->counted == 0)
        status = fail(error, "%.*s: no token counts in the loss", NAME_SHOWN, name);
    if (status) tokens_close(tokens);
    return status;
}

void tokens_close(struct tokens *tokens) {
    for (size_t i = 0; i < arrlenu(tokens->shards); i++) {
        struct token_shard *shard = &tokens->shards[i];
        file_reader_close(&shard->file);
        token_mask_close(&shard->mask);
        free(shard->owned);
        free(shard->name);
    }
    arrfree(tokens->shards);
    tokens->count = tokens->counted = 0;
}

int token_shard_read(const struct token_shard *shard, int32_t *tokens, uint64_t first, size_t count,
                     struct error *error) {
    assert(first <= shard->count && count <= shard->count - first);
    if (shard->owned) {
        memcpy(tokens, shard->owned + first, count * sizeof *tokens);
        return 0;
    }
    const size_t size = (size_t)shard->token_bytes;
    /* Packed tokens are read to the end of the output array and widened in place. */
    char *packed = (char *)tokens + count * (sizeof *tokens - size);
    if (file_reader_get(&shard->file, packed, shard->first_byte + first * size, count * size,
                        error))
        return -1;
    for (size_t i = 0; size == 2 && i < count; i++) {
        uint16_t token;
        memcpy(&token, packed + i * size, sizeof token);
        tokens[i] = token;
    }
    return 0;
}

/* Splits a prefix into its directory and the beginning of the file names. */
static int split_prefix(const char *prefix, char directory[FILE_PATH_MAX], const char **base,
                        struct error *error) {
    const char *slash = strrchr(prefix, '/');
    *base = slash ? slash + 1 : prefix;
    if (!**base)
        return fail(error,
                    "\"%.*s\" is not the beginning of a file name\nadd one, for instance %.*sdata",
                    NAME_SHOWN, prefix, NAME_SHOWN / 2, prefix);
    size_t length = slash ? (size_t)(slash - prefix) + 1 : 2;
    if (strlen(prefix) + 32 > FILE_PATH_MAX || strlen(*base) > 200)
        return fail(error, "the prefix %.*s... is too long\nchoose a shorter one", 60, prefix);
    memcpy(directory, slash ? prefix : "./", length);
    directory[length] = '\0';
    return 0;
}

/* Returns the rest of a name after BASE_NNNNNN and the ending, or NULL if the name is different. */
static const char *after_name(const char *name, const char *base, const char *ending) {
    size_t length = strlen(base);
    if (strncmp(name, base, length) != 0 || name[length] != '_') return NULL;
    const char *digits = name + length + 1, *end = digits;
    while (isdigit((unsigned char)*end)) end++;
    const size_t size = strlen(ending);
    return end - digits >= 6 && strncmp(end, ending, size) == 0 ? end + size : NULL;
}

/* REMOVE_PARTS removes the .part files of an unpublished writer instead of the published ones. */
enum visit { COUNT, REMOVE, REMOVE_PARTS };

/* Counts the files BASE_NNNNNN of this ending, and removes them unless action is COUNT. */
static int visit_files(const char *prefix, const char *ending, enum visit action, uint64_t *count,
                       struct error *error) {
    char directory[FILE_PATH_MAX];
    const char *base;
    *count = 0;
    if (split_prefix(prefix, directory, &base, error)) return -1;
    DIR *entries = opendir(directory);
    if (!entries && errno == ENOENT) return 0;
    if (!entries)
        return fail(error, "cannot list %.*s: %s\ncheck its permissions", NAME_SHOWN, directory,
                    strerror(errno));
    int status = 0;
    for (struct dirent *entry; status == 0 && (entry = readdir(entries));) {
        const char *rest = after_name(entry->d_name, base, ending);
        if (!rest) continue;
        bool is_part = strcmp(rest, ".part") == 0 || strcmp(rest, ".part.tmp") == 0;
        if (action == REMOVE_PARTS ? !is_part : *rest != '\0') continue;
        ++*count;
        if (action != COUNT && unlinkat(dirfd(entries), entry->d_name, 0) && errno != ENOENT)
            status = fail(error,
                          "cannot remove %.*s%s, of an older set: %s\nremove it by hand, and then "
                          "begin again",
                          NAME_SHOWN, directory, entry->d_name, strerror(errno));
    }
    closedir(entries);
    return status;
}

int shards_existing(const char *prefix, uint64_t *count, struct error *error) {
    return visit_files(prefix, SHARD_ENDING, COUNT, count, error);
}

static void set_path(const struct shard_writer *writer, uint64_t number, const char *ending,
                     const char *suffix, char path[FILE_PATH_MAX]) {
    int length = snprintf(path, FILE_PATH_MAX, "%s_%06" PRIu64 "%s%s", writer->prefix, number,
                          ending, suffix);
    assert(length > 0 && length < FILE_PATH_MAX);
    (void)length;
}

int shard_writer_open(struct shard_writer *writer, const char *prefix, int vocab_size,
                      uint64_t shard_tokens, struct error *error) {
    assert(vocab_size >= 1 && vocab_size <= VOCABULARY_MAX);
    assert(shard_tokens >= 1 && shard_tokens <= SHARD_TOKENS_MAX);
    memset(writer, 0, sizeof *writer);
    uint64_t leftovers;
    if (visit_files(prefix, SHARD_ENDING, REMOVE_PARTS, &leftovers, error) ||
        visit_files(prefix, MASK_ENDING, REMOVE_PARTS, &leftovers, error))
        return -1;
    writer->prefix = strdup(prefix);
    if (!writer->prefix) return fail_memory(error, "%.*s", NAME_SHOWN, prefix);
    writer->vocab_size = vocab_size;
    writer->shard_tokens = shard_tokens;
    return 0;
}

size_t shard_writer_token_bytes(const struct shard_writer *writer) {
    return writer->vocab_size > VOCABULARY_16_BITS ? sizeof(int32_t) : sizeof(uint16_t);
}

static int begin_shard(struct shard_writer *writer, struct error *error) {
    char path[FILE_PATH_MAX];
    set_path(writer, writer->shards, SHARD_ENDING, ".part", path);
    if (file_writer_open(&writer->file, path, error)) return -1;
    /* Most shards are full; only the last one has its count corrected. */
    const bool is_wide = shard_writer_token_bytes(writer) == sizeof(int32_t);
    uint32_t header[HEADER_WORDS] = {is_wide ? SHARD_MAGIC_32 : SHARD_MAGIC_16,
                                     is_wide ? SHARD_VERSION_32 : SHARD_VERSION_16,
                                     (uint32_t)writer->shard_tokens};
    return file_writer_put(&writer->file, header, sizeof header, error);
}

static int end_shard(struct shard_writer *writer, struct error *error) {
    uint32_t count = (uint32_t)writer->tokens_in_shard;
    writer->tokens_in_shard = 0;
    const uint32_t masked = mask_writer_is_open(&writer->mask);
    if (masked && mask_writer_commit(&writer->mask, error)) return -1;
    if (masked && file_writer_patch(&writer->file, HEADER_MASKED * sizeof masked, &masked,
                                    sizeof masked, error))
        return -1;
    if (count != writer->shard_tokens &&
        file_writer_patch(&writer->file, 2 * sizeof count, &count, sizeof count, error))
        return -1;
    /* Count the shard before the commit, whose last step may fail after the file has its name. */
    writer->shards++;
    return file_writer_commit(&writer->file, error);
}

void shard_writer_pack(const struct shard_writer *writer, void *packed, const int32_t *tokens,
                       size_t count) {
    if (shard_writer_token_bytes(writer) == sizeof *tokens) {
        if (count > 0) memcpy(packed, tokens, count * sizeof *tokens);
        return;
    }
    uint16_t *narrow = packed;
    int32_t bits = 0; /* union of the bits of all tokens */
    for (size_t i = 0; i < count; i++) {
        narrow[i] = (uint16_t)tokens[i];
        bits |= tokens[i];
    }
    assert(bits >= 0 && bits < VOCABULARY_16_BITS);
}

/* Writes the mask, which is opened at the first token that needs one. */
static int put_mask(struct shard_writer *writer, const uint8_t *marks, uint64_t count,
                    struct error *error) {
    char path[FILE_PATH_MAX];
    bool is_plain = true;
    for (uint64_t i = 0; marks && i < count; i++) {
        writer->ignored += !(marks[i] & TOKEN_COUNTS);
        is_plain &= marks[i] == TOKEN_COUNTS;
    }
    if (!mask_writer_is_open(&writer->mask)) {
        if (is_plain) return 0;
        set_path(writer, writer->shards, MASK_ENDING, ".part", path);
        if (mask_writer_open(&writer->mask, path, writer->has_pairs, writer->tokens_in_shard,
                             error))
            return -1;
    }
    return mask_writer_put(&writer->mask, marks, count, error);
}

/* Returns how many of the next tokens are written to the current shard. */
static uint64_t part_of_shard(const struct shard_writer *writer, const uint8_t *marks,
                              uint64_t count) {
    const uint64_t room = writer->shard_tokens - MIN(writer->shard_tokens, writer->tokens_in_shard);
    uint64_t part = MIN(count, room);
    if (!marks) return writer->has_pairs ? count : part;
    while (part < count && (marks[part] & (TOKEN_BEGINS | TOKEN_REJECTED)) != TOKEN_BEGINS) part++;
    return MIN(part, SHARD_TOKENS_MAX - writer->tokens_in_shard);
}

int shard_writer_put_packed(struct shard_writer *writer, const void *packed, const uint8_t *marks,
                            uint64_t count, struct error *error) {
    const size_t token_bytes = shard_writer_token_bytes(writer);
    const uint8_t *bytes = packed;
    while (count > 0) {
        if (writer->tokens_in_shard == 0 && begin_shard(writer, error)) return -1;
        const uint64_t part = part_of_shard(writer, marks, count);
        if (file_writer_put(&writer->file, bytes, part * token_bytes, error) ||
            put_mask(writer, marks, part, error))
            return -1;
        writer->tokens_in_shard += part;
        writer->tokens += part;
        bytes += part * token_bytes;
        if (marks) marks += part;
        count -= part;
        if (count > 0 && end_shard(writer, error)) return -1;
    }
    return 0;
}

int shard_writer_finish(struct shard_writer *writer, struct error *error) {
    return writer->tokens_in_shard > 0 ? end_shard(writer, error) : 0;
}

/* Gives the files of one ending their final names; a shard may have no mask. */
static int rename_parts(const struct shard_writer *writer, const char *ending,
                        struct error *error) {
    char part[FILE_PATH_MAX], path[FILE_PATH_MAX];
    for (uint64_t number = 0; number < writer->shards; number++) {
        set_path(writer, number, ending, ".part", part);
        set_path(writer, number, ending, "", path);
        if (rename(part, path) && !(errno == ENOENT && ending == MASK_ENDING))
            return fail(error, "cannot rename %.*s: %s\nrename the .part files by hand", NAME_SHOWN,
                        part, strerror(errno));
    }
    return directory_sync_above(writer->prefix, error);
}

int shard_writer_publish(struct shard_writer *writer, struct error *error) {
    assert(writer->prefix && writer->tokens_in_shard == 0);
    uint64_t removed, masks;
    if (visit_files(writer->prefix, SHARD_ENDING, REMOVE, &removed, error)) return -1;
    /* A shard never exists without its mask: shards are removed before masks and published after
     * them. */
    int status = visit_files(writer->prefix, MASK_ENDING, COUNT, &masks, error);
    if (status == 0 && removed > 0) status = directory_sync_above(writer->prefix, error);
    if (status == 0 && masks > 0)
        status = visit_files(writer->prefix, MASK_ENDING, REMOVE, &masks, error);
    if (status == 0) status = rename_parts(writer, MASK_ENDING, error);
    if (status == 0) status = rename_parts(writer, SHARD_ENDING, error);
    /* Close the writer on failure, too: the old shards are gone, and abandoning would remove the
     * new ones. */
    free(writer->prefix);
    writer->prefix = NULL;
    return status;
}

void shard_writer_abandon(struct shard_writer *writer) {
    if (!writer->prefix) return;
    file_writer_abandon(&writer->file);
    mask_writer_abandon(&writer->mask);
    /* The shard at index writer->shards may be incomplete; its mask may already be complete. */
    for (uint64_t number = 0; number <= writer->shards; number++) {
        char path[FILE_PATH_MAX];
        set_path(writer, number, SHARD_ENDING, ".part", path);
        unlink(path);
        set_path(writer, number, MASK_ENDING, ".part", path);
        unlink(path);
    }
    free(writer->prefix);
    writer->prefix = NULL;
}
