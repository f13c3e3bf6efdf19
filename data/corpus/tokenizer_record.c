#include "data/corpus/tokenizer_record.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/util/json.h"
#include "data/util/json_escape.h"
#include "data/util/printed.h"

enum { FORMAT = 1, RECORD_BYTES_MAX = 64 << 10, NAME_SHOWN = 400 };

static const char ENDING[] = "_tokenizer.json";

static int record_path(const char *prefix, const char *suffix, char path[FILE_PATH_MAX],
                       struct error *error) {
    if (snprintf(path, FILE_PATH_MAX, "%s%s%s", prefix, ENDING, suffix) >= FILE_PATH_MAX)
        return fail(error, "the prefix %.60s... is too long\nchoose a shorter one", prefix);
    return 0;
}

/* Makes the path of a folder absolute. */
static int absolute_path(const char *directory, char path[FILE_PATH_MAX], struct error *error) {
    if (realpath(directory, path)) return 0;
    return fail(error, "cannot find %.*s: %s\ncheck the folder of the tokenizer", NAME_SHOWN,
                directory, strerror(errno));
}

static void print_record(FILE *out, const struct tokenizer *tokenizer, const char *directory) {
    const bool is_bytes = tokenizer->kind == TOKENIZER_BYTES;
    fprintf(out, "{\n  \"format\": %d,\n  \"kind\": \"%s\",\n  \"vocab_size\": %d,\n", FORMAT,
            tokenizer_kind_name(tokenizer->kind), tokenizer->vocab_size);
    if (is_bytes) fputs("  \"sha256\": null,\n", out);
    else fprintf(out, "  \"sha256\": \"%s\",\n", tokenizer->sha256);
    fputs("  \"directory\": ", out);
    if (is_bytes) fputs("null", out);
    else json_print_string(out, directory);
    fputs(",\n  \"files\": {", out);
    for (int i = 0; !is_bytes && i < tokenizer->file_count; i++) {
        const struct tokenizer_file *file = &tokenizer->files[i];
        fprintf(out, "%s\n    \"%s\": {\"bytes\": %zu, \"sha256\": \"%s\"}", i ? "," : "",
                file->name, file->size, file->sha256);
    }
    fputs(is_bytes ? "}\n}\n" : "\n  }\n}\n", out);
}

int tokenizer_record_stage(const char *prefix, const struct tokenizer *tokenizer,
                           const char *directory, struct error *error) {
    char part[FILE_PATH_MAX], absolute[FILE_PATH_MAX] = "";
    struct printed printed;
    if (record_path(prefix, ".part", part, error)) return -1;
    if (tokenizer->kind != TOKENIZER_BYTES && absolute_path(directory, absolute, error)) return -1;
    if (printed_open(&printed)) return fail_memory(error, "%.*s", NAME_SHOWN, part);
    print_record(printed.out, tokenizer, absolute);
    return printed_write(&printed, part, NULL, error);
}

int tokenizer_record_remove(const char *prefix, struct error *error) {
    char path[FILE_PATH_MAX];
    if (record_path(prefix, "", path, error)) return -1;
    if (unlink(path) == 0) return directory_sync_above(path, error);
    if (errno == ENOENT) return 0;
    return fail(error, "cannot remove the old %.*s: %s\nremove it by hand", NAME_SHOWN, path,
                strerror(errno));
}

int tokenizer_record_publish(const char *prefix, struct error *error) {
    char part[FILE_PATH_MAX], path[FILE_PATH_MAX];
    if (record_path(prefix, ".part", part, error) || record_path(prefix, "", path, error))
        return -1;
    if (rename(part, path))
        return fail(error, "cannot rename %.*s: %s\nmake the shards again with --force", NAME_SHOWN,
                    part, strerror(errno));
    return directory_sync_above(path, error);
}

void tokenizer_record_unstage(const char *prefix) {
    char part[FILE_PATH_MAX];
    struct error error;
    if (record_path(prefix, ".part", part, &error) == 0) unlink(part);
}

/* Finds the prefix of a shard PREFIX_train_NNNNNN.bin or PREFIX_val_NNNNNN.bin. Returns false for
 * other names. */
static bool prefix_of_shard(const char *path, char prefix[FILE_PATH_MAX]) {
    static const char *const parts[] = {"_train_", "_val_"};
    const size_t length = strlen(path);
    if (length >= FILE_PATH_MAX || length < 4 || strcmp(path + length - 4, ".bin") != 0)
        return false;
    size_t at = length - 4, digits = 0;
    for (; at > 0 && isdigit((unsigned char)path[at - 1]); at--) digits++;
    for (int i = 0; i < 2 && digits >= 6; i++) {
        const size_t part = strlen(parts[i]);
        if (at <= part || path[at - part - 1] == '/' ||
            strncmp(path + at - part, parts[i], part) != 0)
            continue;
        snprintf(prefix, FILE_PATH_MAX, "%.*s", (int)(at - part), path);
        return true;
    }
    return false;
}

static int fail_malformed(const struct tokenizer_record *record, const char *what,
                          struct error *error) {
    return fail(error, "%.*s: %s\nmake the shards again with ./prepare, or remove this file",
                NAME_SHOWN, record->path, what);
}

static bool is_sha256(const char *text) {
    return strlen(text) == SHA256_HEX_MAX - 1 &&
           strspn(text, "0123456789abcdef") == SHA256_HEX_MAX - 1;
}

static int read_files(struct tokenizer_record *record, const cJSON *files, struct error *error) {
    const cJSON *item;
    if (!cJSON_IsObject(files)) return fail_malformed(record, "\"files\" is not an object", error);
    cJSON_ArrayForEach(item, files) {
        int64_t bytes;
        const char *hash = cJSON_GetStringValue(json_member(item, "sha256"));
        if (record->file_count == TOKENIZER_FILES_MAX ||
            strlen(item->string) >= sizeof record->files->name ||
            !json_whole(&bytes, item, "bytes", 0, INT64_C(1) << 53) || !hash || !is_sha256(hash))
            return fail_malformed(record, "\"files\" has a wrong member", error);
        const int i = record->file_count++;
        strcpy(record->files[i].name, item->string);
        record->files[i].bytes = (uint64_t)bytes;
        strcpy(record->files[i].sha256, hash);
    }
    return 0;
}

static int read_members(struct tokenizer_record *record, const cJSON *root, struct error *error) {
    int64_t format, vocab_size;
    const char *kind = cJSON_GetStringValue(json_member(root, "kind"));
    const cJSON *directory = json_member(root, "directory");
    if (!cJSON_IsObject(root)) return fail_malformed(record, "no JSON object", error);
    if (!json_whole(&format, root, "format", 0, INT32_MAX))
        return fail_malformed(record, "\"format\" is missing or not a whole number", error);
    if (format != FORMAT)
        return fail_malformed(record, "its format is not known to this version", error);
    if (!kind || !json_whole(&vocab_size, root, "vocab_size", 1, VOCABULARY_MAX))
        return fail_malformed(record, "\"kind\" or \"vocab_size\" is missing or wrong", error);
    record->kind = TOKENIZER_BYTES;
    while (record->kind < TOKENIZER_FILES && strcmp(kind, tokenizer_kind_name(record->kind)) != 0)
        record->kind++;
    if (strcmp(kind, tokenizer_kind_name(record->kind)) != 0)
        return fail_malformed(record, "its \"kind\" is not one of bytes, gpt2 and files", error);
    record->vocab_size = (int)vocab_size;
    if (cJSON_IsString(directory) && strlen(directory->valuestring) < FILE_PATH_MAX)
        strcpy(record->directory, directory->valuestring);
    else if (!cJSON_IsNull(directory))
        return fail_malformed(record, "\"directory\" is neither a path nor null", error);
    const char *hash = cJSON_GetStringValue(json_member(root, "sha256"));
    if (record->kind != TOKENIZER_BYTES && (!hash || !is_sha256(hash)))
        return fail_malformed(record, "\"sha256\" is missing or not a hash", error);
    if (record->kind != TOKENIZER_BYTES) strcpy(record->sha256, hash);
    return read_files(record, json_member(root, "files"), error);
}

int tokenizer_record_of_shard(struct tokenizer_record *record, const char *shard_path,
                              struct error *error) {
    char prefix[FILE_PATH_MAX], *text;
    size_t size;
    memset(record, 0, sizeof *record);
    if (!prefix_of_shard(shard_path, prefix)) return RESULT_NONE;
    if (record_path(prefix, "", record->path, error)) return -1;
    if (!file_exists(record->path)) return RESULT_NONE;
    if (file_read_all(&text, &size, record->path, RECORD_BYTES_MAX, error)) return -1;
    cJSON *root;
    struct error reason;
    int status = json_parse(&root, text, size, "no valid JSON", &reason);
    status =
        status ? fail_malformed(record, reason.text, error) : read_members(record, root, error);
    free(text);
    cJSON_Delete(root);
    return status;
}

#define REMEDY "use the tokenizer of the shards, or make them again with ./prepare"

int tokenizer_record_check(const struct tokenizer_record *record, const struct tokenizer *tokenizer,
                           struct error *error) {
    /* Older records use the kind gpt2 for all tokenizers from files. */
    if ((record->kind == TOKENIZER_BYTES) != (tokenizer->kind == TOKENIZER_BYTES))
        return fail(error, "the shards of %.*s were made with tokenizer %s, not %s\n" REMEDY,
                    NAME_SHOWN, record->path, tokenizer_kind_name(record->kind),
                    tokenizer_kind_name(tokenizer->kind));
    if (record->vocab_size != tokenizer->vocab_size + tokenizer->left_out)
        return fail(error,
                    "the shards of %.*s were made with a vocabulary of %d tokens, not %d\n" REMEDY,
                    NAME_SHOWN, record->path, record->vocab_size, tokenizer->vocab_size);
    if (strcmp(record->sha256, tokenizer->sha256) == 0) return 0;
    const char *name = "tokens or merges";
    for (int i = 0; i < record->file_count; i++)
        for (int j = 0; j < tokenizer->file_count; j++)
            if (strcmp(record->files[i].name, tokenizer->files[j].name) == 0 &&
                strcmp(record->files[i].sha256, tokenizer->files[j].sha256) != 0)
                name = record->files[i].name;
    return fail(error,
                "the shards of %.*s were made with another tokenizer: its %s differ, which came "
                "from %.*s\n" REMEDY,
                NAME_SHOWN / 2, record->path, name, NAME_SHOWN / 2, record->directory);
}
