#include "model/io/safetensors.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "data/util/json.h"

static const struct {
    const char *name;
    int bits;
} dtypes[] = {
#define X(NAME, bits) {#NAME, bits},
    SAFETENSORS_DTYPES(X)
#undef X
};

const char *safetensors_dtype_name(enum safetensors_dtype dtype) {
    return dtypes[dtype].name;
}

bool safetensors_entry_bytes(uint64_t *bytes, const struct safetensors_entry *entry) {
    uint64_t bits = 1;
    for (int i = 0; i < entry->rank; i++) {
        if (__builtin_mul_overflow(bits, entry->shape[i], &bits)) return false;
    }
    if (__builtin_mul_overflow(bits, (uint64_t)dtypes[entry->dtype].bits, &bits)) return false;
    *bytes = bits / 8;
    return bits % 8 == 0;
}

int safetensors_out_of_memory(struct error *error, const char *path) {
    return fail(error, "out of memory for the header of %.480s\nfree memory and try again", path);
}

static int compare_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

const char *safetensors_repeated(const char **texts, size_t count) {
    if (count > 1) qsort(texts, count, sizeof(*texts), compare_text);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(texts[i - 1], texts[i]) == 0) return texts[i];
    }
    return NULL;
}

/* A file being read, for messages. */
struct reader {
    const char *path;
    struct error *error;
};

/* Fails with a message that the file is damaged, and the reason. */
__attribute__((format(printf, 2, 3))) static int damaged(const struct reader *reader,
                                                         const char *format, ...) {
    char reason[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof(reason), format, arguments);
    va_end(arguments);
    return fail(reader->error,
                "%.480s: %s\nit is damaged, cut short or not a safetensors file: copy or download "
                "it again, or use another one",
                reader->path, reason);
}

static bool read_count(uint64_t *count, const cJSON *item) {
    if (!cJSON_IsNumber(item)) return false;
    const double value = item->valuedouble;
    if (!(value >= 0 && value < (double)SAFETENSORS_COUNT_LIMIT)) return false;
    *count = (uint64_t)value;
    return (double)*count == value;
}

static int read_dtype(struct safetensors_entry *entry, const cJSON *item,
                      const struct reader *reader) {
    if (!cJSON_IsString(item))
        return damaged(reader, "tensor %.150s needs one \"dtype\", a string", entry->name);
    for (int i = 0; i < SAFETENSORS_DTYPE_COUNT; i++) {
        if (strcmp(safetensors_dtype_name((enum safetensors_dtype)i), item->valuestring) != 0)
            continue;
        entry->dtype = (enum safetensors_dtype)i;
        return 0;
    }
    return damaged(reader, "tensor %.150s has the unknown dtype \"%.50s\"", entry->name,
                   item->valuestring);
}

static int read_shape(struct safetensors_entry *entry, const cJSON *item,
                      const struct reader *reader) {
    if (!cJSON_IsArray(item))
        return damaged(reader, "tensor %.150s needs one \"shape\", a list", entry->name);
    const cJSON *dimension;
    cJSON_ArrayForEach(dimension, item) {
        if (entry->rank == SAFETENSORS_RANK_MAX)
            return damaged(reader, "tensor %.150s has more than %d dimensions", entry->name,
                           SAFETENSORS_RANK_MAX);
        if (!read_count(&entry->shape[entry->rank++], dimension))
            return damaged(reader,
                           "tensor %.150s: dimension %d of its shape is not a whole number from 0 "
                           "to 2^53 - 1",
                           entry->name, entry->rank - 1);
    }
    return 0;
}

static int read_offsets(struct safetensors_entry *entry, const cJSON *item, uint64_t data_bytes,
                        const struct reader *reader) {
    uint64_t begin = 0, end = 0, expected = 0;
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2 || !read_count(&begin, item->child) ||
        !read_count(&end, item->child->next))
        return damaged(reader,
                       "tensor %.150s needs one \"data_offsets\", two whole numbers below 2^53",
                       entry->name);
    if (begin > end)
        return damaged(reader, "tensor %.150s begins at byte %" PRIu64 " but ends at byte %" PRIu64,
                       entry->name, begin, end);
    if (end > data_bytes)
        return damaged(reader,
                       "tensor %.150s ends at byte %" PRIu64
                       " of the data, of which the file holds %" PRIu64 " bytes",
                       entry->name, end, data_bytes);
    if (!safetensors_entry_bytes(&expected, entry))
        return damaged(reader, "tensor %.150s has a shape whose size is not representable",
                       entry->name);
    if (expected != end - begin)
        return damaged(reader,
                       "tensor %.150s needs %" PRIu64
                       " bytes by shape and dtype, but its offsets span %" PRIu64,
                       entry->name, expected, end - begin);
    entry->offset = begin;
    entry->bytes = end - begin;
    return 0;
}

static int read_entry(struct safetensors_entry *entry, const cJSON *item, uint64_t data_bytes,
                      const struct reader *reader) {
    *entry = (struct safetensors_entry){.name = item->string};
    if (!cJSON_IsObject(item))
        return damaged(reader, "tensor %.150s is not described by an object", entry->name);
    if (read_dtype(entry, json_member(item, "dtype"), reader) != 0) return -1;
    if (read_shape(entry, json_member(item, "shape"), reader) != 0) return -1;
    return read_offsets(entry, json_member(item, "data_offsets"), data_bytes, reader);
}

static int compare_place(const void *a, const void *b) {
    const struct safetensors_entry *left = a, *right = b;
    if (left->offset != right->offset) return left->offset < right->offset ? -1 : 1;
    if (left->bytes != right->bytes) return left->bytes < right->bytes ? -1 : 1;
    return strcmp(left->name, right->name);
}

static int check_metadata(const cJSON *metadata, const struct reader *reader) {
    if (!cJSON_IsObject(metadata))
        return damaged(reader, "its \"%s\" is not an object", SAFETENSORS_METADATA_KEY);
    const cJSON *item;
    cJSON_ArrayForEach(item, metadata) {
        if (!cJSON_IsString(item))
            return damaged(reader, "the value of metadata key \"%.150s\" is not a string",
                           item->string);
    }
    return 0;
}

/* Checks that the entries, sorted by offset, fill the data section. */
static int check_places(const struct safetensors *file, uint64_t data_bytes,
                        const struct reader *reader) {
    uint64_t end = 0;
    for (int i = 0; i < file->count; i++) {
        const struct safetensors_entry *entry = &file->entries[i];
        if (entry->offset > end)
            return damaged(reader, "a hole of %" PRIu64 " bytes lies before tensor %.150s",
                           entry->offset - end, entry->name);
        if (entry->offset < end)
            return damaged(reader, "tensor %.150s overlaps tensor %.150s", entry->name,
                           file->entries[i - 1].name);
        end += entry->bytes;
    }
    if (end != data_bytes)
        return damaged(reader, "%" PRIu64 " bytes that belong to no tensor follow the last",
                       data_bytes - end);
    return 0;
}

static int read_entries(struct safetensors *file, uint64_t data_bytes,
                        const struct reader *reader) {
    const size_t members = (size_t)cJSON_GetArraySize(file->header);
    file->entries = malloc((members + 1) * sizeof(*file->entries));
    if (!file->entries) return safetensors_out_of_memory(reader->error, reader->path);
    const cJSON *item;
    cJSON_ArrayForEach(item, file->header) {
        if (strcmp(item->string, SAFETENSORS_METADATA_KEY) == 0) {
            if (check_metadata(item, reader) != 0) return -1;
            continue;
        }
        struct safetensors_entry *entry = &file->entries[file->count];
        if (read_entry(entry, item, data_bytes, reader) != 0) return -1;
        file->count++;
    }
    if (file->count > 1)
        qsort(file->entries, (size_t)file->count, sizeof(*file->entries), compare_place);
    return check_places(file, data_bytes, reader);
}

/* Parses `size` bytes of header text, which a NUL follows. */
static int parse_header(struct safetensors *file, const char *text, size_t size,
                        const struct reader *reader) {
    struct error reason;
    if (text[0] != '{') return damaged(reader, "its header does not begin with '{'");
    if (json_parse(&file->header, text, size, "its header", &reason) == 0) return 0;
    return damaged(reader, "%s", reason.text);
}

static int read_header(struct safetensors *file, const struct reader *reader) {
    const struct file_reader *from = &file->from;
    uint8_t bytes[SAFETENSORS_LENGTH_BYTES];
    uint64_t header_bytes = 0;
    if (from->bytes < sizeof bytes)
        return damaged(reader, "its %" PRIu64 " bytes are too few for a header", from->bytes);
    if (file_reader_get(from, bytes, 0, sizeof bytes, reader->error)) return -1;
    for (int i = 0; i < SAFETENSORS_LENGTH_BYTES; i++)
        header_bytes |= (uint64_t)bytes[i] << (8 * i);
    if (header_bytes == 0 || header_bytes > SAFETENSORS_HEADER_MAX_BYTES)
        return damaged(reader, "its header claims %" PRIu64 " bytes (allowed: 1 to %d)",
                       header_bytes, SAFETENSORS_HEADER_MAX_BYTES);
    if (header_bytes > from->bytes - sizeof bytes)
        return damaged(reader, "its header claims %" PRIu64 " bytes, but the file has %" PRIu64,
                       header_bytes, from->bytes);
    char *text = malloc(header_bytes + 1);
    if (!text) return safetensors_out_of_memory(reader->error, reader->path);
    text[header_bytes] = '\0';
    int result = file_reader_get(from, text, sizeof bytes, header_bytes, reader->error);
    if (result == 0) result = parse_header(file, text, header_bytes, reader);
    free(text);
    if (result != 0) return -1;
    file->data_start = sizeof bytes + header_bytes;
    return read_entries(file, from->bytes - file->data_start, reader);
}

int safetensors_open(struct safetensors *file, const char *path, struct error *error) {
    const struct reader reader = {path, error};
    struct error reason;
    *file = (struct safetensors){0};
    int status = file_reader_open(&file->from, path, &reason);
    if (status == RESULT_NONE) return fail(error, "%s\nname a safetensors file", reason.text);
    if (status) return fail(error, "%s", reason.text);
    if (read_header(file, &reader) == 0) return 0;
    safetensors_close(file);
    return -1;
}

int safetensors_read(void *to, const struct safetensors *file,
                     const struct safetensors_entry *entry, uint64_t first, size_t size,
                     struct error *error) {
    assert(first <= entry->bytes && size <= entry->bytes - first);
    return file_reader_get(&file->from, to, file->data_start + entry->offset + first, size, error);
}

void safetensors_close(struct safetensors *file) {
    file_reader_close(&file->from);
    cJSON_Delete(file->header);
    free(file->entries);
    memset(file, 0, sizeof(*file));
}
