#include "model/io/safetensors.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "data/util/json.h"
#include "data/util/json_escape.h"
#include "data/util/printed.h"
#include "data/util/utf8.h"

static const char metadata_key[] = "__metadata__";
enum { LENGTH_BYTES = sizeof(uint64_t) };

/* JSON numbers are read as doubles, which are exact for integers up to 2^53. */
static const uint64_t count_limit = (uint64_t)1 << 53;

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

static int out_of_memory(const char *path, struct error *error) {
    return fail_memory(error, "the header of %.480s", path);
}

/* ---- reading */

/* Fails with a message that the file is damaged, and the reason. */
__attribute__((format(printf, 3, 4))) static int
damaged(const struct safetensors *file, struct error *error, const char *format, ...) {
    char reason[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    return fail(error,
                "%.480s: %s\nit is damaged, cut short or not a safetensors file: copy or download "
                "it again, or use another one",
                file->reader.path, reason);
}

static uint64_t data_bytes(const struct safetensors *file) {
    return file->reader.bytes - file->data_start;
}

static bool read_count(uint64_t *count, const cJSON *item) {
    if (!cJSON_IsNumber(item)) return false;
    const double value = item->valuedouble;
    if (!(value >= 0 && value < (double)count_limit)) return false;
    *count = (uint64_t)value;
    return (double)*count == value;
}

static int read_dtype(struct safetensors_entry *entry, const cJSON *item,
                      const struct safetensors *file, struct error *error) {
    if (!cJSON_IsString(item))
        return damaged(file, error, "tensor %.150s needs one \"dtype\", a string", entry->name);
    for (int i = 0; i < SAFETENSORS_DTYPE_COUNT; i++) {
        if (strcmp(dtypes[i].name, item->valuestring) != 0) continue;
        entry->dtype = (enum safetensors_dtype)i;
        return 0;
    }
    return damaged(file, error, "tensor %.150s has the unknown dtype \"%.50s\"", entry->name,
                   item->valuestring);
}

static int read_shape(struct safetensors_entry *entry, const cJSON *item,
                      const struct safetensors *file, struct error *error) {
    if (!cJSON_IsArray(item))
        return damaged(file, error, "tensor %.150s needs one \"shape\", a list", entry->name);
    const cJSON *dimension;
    cJSON_ArrayForEach(dimension, item) {
        if (entry->rank == SAFETENSORS_RANK_MAX)
            return damaged(file, error, "tensor %.150s has more than %d dimensions", entry->name,
                           SAFETENSORS_RANK_MAX);
        if (!read_count(&entry->shape[entry->rank++], dimension))
            return damaged(file, error,
                           "tensor %.150s: dimension %d of its shape is not a whole number from 0 "
                           "to 2^53 - 1",
                           entry->name, entry->rank - 1);
    }
    return 0;
}

static int read_offsets(struct safetensors_entry *entry, const cJSON *item,
                        const struct safetensors *file, struct error *error) {
    uint64_t end = 0, expected = 0;
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2 ||
        !read_count(&entry->offset, item->child) || !read_count(&end, item->child->next))
        return damaged(file, error,
                       "tensor %.150s needs one \"data_offsets\", two whole numbers below 2^53",
                       entry->name);
    if (entry->offset > end || end > data_bytes(file))
        return damaged(file, error,
                       "tensor %.150s begins at byte %" PRIu64 " but ends at byte %" PRIu64
                       " of the data, of which the file holds %" PRIu64 " bytes",
                       entry->name, entry->offset, end, data_bytes(file));
    entry->bytes = end - entry->offset;
    if (!safetensors_entry_bytes(&expected, entry))
        return damaged(file, error, "tensor %.150s has a shape whose size is not representable",
                       entry->name);
    if (expected == entry->bytes) return 0;
    return damaged(file, error,
                   "tensor %.150s needs %" PRIu64
                   " bytes by shape and dtype, but its offsets span %" PRIu64,
                   entry->name, expected, entry->bytes);
}

static int read_entry(struct safetensors_entry *entry, const cJSON *item,
                      const struct safetensors *file, struct error *error) {
    *entry = (struct safetensors_entry){.name = item->string};
    if (!cJSON_IsObject(item))
        return damaged(file, error, "tensor %.150s is not described by an object", entry->name);
    return read_dtype(entry, json_member(item, "dtype"), file, error) ||
                   read_shape(entry, json_member(item, "shape"), file, error) ||
                   read_offsets(entry, json_member(item, "data_offsets"), file, error)
               ? -1
               : 0;
}

static int compare_entries(const void *a, const void *b) {
    const struct safetensors_entry *left = a, *right = b;
    if (left->offset != right->offset) return left->offset < right->offset ? -1 : 1;
    if (left->bytes != right->bytes) return left->bytes < right->bytes ? -1 : 1;
    return strcmp(left->name, right->name);
}

static int check_metadata(const cJSON *metadata, const struct safetensors *file,
                          struct error *error) {
    if (!cJSON_IsObject(metadata))
        return damaged(file, error, "its \"%s\" is not an object", metadata_key);
    const cJSON *item;
    cJSON_ArrayForEach(item, metadata) {
        if (!cJSON_IsString(item))
            return damaged(file, error, "the value of metadata key \"%.150s\" is not a string",
                           item->string);
    }
    return 0;
}

/* Checks that the entries, sorted by offset, fill the data section. */
static int check_offsets(const struct safetensors *file, struct error *error) {
    uint64_t end = 0;
    for (int i = 0; i < file->count; i++) {
        const struct safetensors_entry *entry = &file->entries[i];
        if (entry->offset > end)
            return damaged(file, error, "a hole of %" PRIu64 " byte%s lies before tensor %.150s",
                           entry->offset - end, PLURAL(entry->offset - end), entry->name);
        if (entry->offset < end)
            return damaged(file, error, "tensor %.150s overlaps tensor %.150s", entry->name,
                           file->entries[i - 1].name);
        end += entry->bytes;
    }
    if (end == data_bytes(file)) return 0;
    return damaged(file, error, "%" PRIu64 " byte%s after the last tensor", data_bytes(file) - end,
                   PLURAL(data_bytes(file) - end));
}

static int read_entries(struct safetensors *file, struct error *error) {
    const size_t members = (size_t)cJSON_GetArraySize(file->header);
    file->entries = malloc((members + 1) * sizeof *file->entries);
    if (!file->entries) return out_of_memory(file->reader.path, error);
    const cJSON *item;
    cJSON_ArrayForEach(item, file->header) {
        const bool is_metadata = strcmp(item->string, metadata_key) == 0;
        if (is_metadata ? check_metadata(item, file, error)
                        : read_entry(&file->entries[file->count], item, file, error))
            return -1;
        file->count += !is_metadata;
    }
    if (file->count > 1)
        qsort(file->entries, (size_t)file->count, sizeof *file->entries, compare_entries);
    return check_offsets(file, error);
}

/* Parses `size` bytes of header text, which a NUL follows. */
static int parse_header(struct safetensors *file, const char *text, size_t size,
                        struct error *error) {
    struct error reason;
    if (text[0] != '{') return damaged(file, error, "its header does not begin with '{'");
    if (json_parse_limited(&file->header, text, size, SAFETENSORS_VALUES_MAX, "its header",
                           &reason) == 0)
        return 0;
    return damaged(file, error, "%s", reason.text);
}

/* Fails if the file begins like a pointer of Git LFS, which stands in a clone for a large file. */
static int refuse_pointer(const struct file_reader *from, struct error *error) {
    static const char beginning[] = "version https://git-lfs";
    char text[sizeof beginning - 1];
    if (from->bytes < sizeof text) return 0;
    if (file_reader_get(from, text, 0, sizeof text, error)) return -1;
    if (memcmp(text, beginning, sizeof text) != 0) return 0;
    return fail(error,
                "%.480s is a Git LFS pointer, not the weights\nrun `git lfs pull` in its folder",
                from->path);
}

static int read_header(struct safetensors *file, struct error *error) {
    const struct file_reader *from = &file->reader;
    uint64_t header_bytes;
    if (refuse_pointer(from, error)) return -1;
    if (from->bytes < LENGTH_BYTES)
        return damaged(file, error, "a file of %" PRIu64 " byte%s is too short for a header",
                       from->bytes, PLURAL(from->bytes));
    if (file_reader_get(from, &header_bytes, 0, LENGTH_BYTES, error)) return -1;
    if (header_bytes == 0 || header_bytes > SAFETENSORS_HEADER_MAX_BYTES)
        return damaged(file, error, "its header claims %" PRIu64 " bytes (allowed: 1 to %d)",
                       header_bytes, SAFETENSORS_HEADER_MAX_BYTES);
    if (header_bytes > from->bytes - LENGTH_BYTES)
        return damaged(file, error,
                       "its header claims %" PRIu64 " bytes, but the file has %" PRIu64,
                       header_bytes, from->bytes);
    file->data_start = LENGTH_BYTES + header_bytes;
    char *text = malloc(header_bytes + 1);
    if (!text) return out_of_memory(from->path, error);
    text[header_bytes] = '\0';
    int result = file_reader_get(from, text, LENGTH_BYTES, header_bytes, error);
    if (result == 0) result = parse_header(file, text, header_bytes, error);
    free(text);
    return result ? -1 : read_entries(file, error);
}

int safetensors_open(struct safetensors *file, const char *path, struct error *error) {
    struct error reason;
    *file = (struct safetensors){0};
    int status = file_reader_open(&file->reader, path, &reason);
    if (status == RESULT_NONE) return fail(error, "%s\nname a safetensors file", reason.text);
    if (status) return fail(error, "%s", reason.text);
    if (read_header(file, error) == 0) return 0;
    safetensors_close(file);
    return -1;
}

int safetensors_read(void *to, const struct safetensors *file,
                     const struct safetensors_entry *entry, uint64_t first, size_t size,
                     struct error *error) {
    assert(first <= entry->bytes && size <= entry->bytes - first);
    return file_reader_get(&file->reader, to, file->data_start + entry->offset + first, size,
                           error);
}

void safetensors_close(struct safetensors *file) {
    file_reader_close(&file->reader);
    cJSON_Delete(file->header);
    free(file->entries);
    *file = (struct safetensors){0};
}

/* ---- writing */

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int check_names(const struct safetensors_entry *entries, size_t count, const char *path,
                       struct error *error) {
    const char **names = malloc((count + 1) * sizeof *names), *wrong = NULL;
    if (!names) return out_of_memory(path, error);
    for (size_t i = 0; i < count; i++) names[i] = entries[i].name;
    if (count > 1) qsort(names, count, sizeof *names, compare_names);
    for (size_t i = 0; i < count; i++)
        if (!utf8_valid(names[i], strlen(names[i])) || strcmp(names[i], metadata_key) == 0 ||
            (i > 0 && strcmp(names[i - 1], names[i]) == 0))
            wrong = names[i];
    free(names);
    if (!wrong) return 0;
    return fail(error,
                "cannot write %.480s: the name \"%.150s\" is reserved or used twice, or is not "
                "UTF-8\nchoose another one",
                path, wrong);
}

/* Prints the header with its length. Stores the size of all data. */
static int print_header(FILE *out, uint64_t *total, const struct safetensors_entry *entries,
                        int count, const char *path, struct error *error) {
    fprintf(out, "%*s{\"%s\":{\"format\":\"pt\"}", LENGTH_BYTES, "", metadata_key);
    *total = 0;
    for (int i = 0; i < count; i++) {
        const struct safetensors_entry *entry = &entries[i];
        uint64_t begin = *total, bytes = 0;
        if (!safetensors_entry_bytes(&bytes, entry) || bytes >= count_limit - begin)
            return fail(error,
                        "cannot write %.480s: tensor %.150s is too large or does not end at a "
                        "whole byte",
                        path, entry->name);
        *total += bytes;
        fputc(',', out);
        json_print_string(out, entry->name);
        fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", dtypes[entry->dtype].name);
        for (int k = 0; k < entry->rank; k++)
            fprintf(out, "%s%" PRIu64, k > 0 ? "," : "", entry->shape[k]);
        fprintf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin, *total);
    }
    fputc('}', out);
    for (long spaces = (8 - ftell(out) % 8) % 8; spaces > 0; spaces--) fputc(' ', out);
    return 0;
}

static int write_header(struct safetensors_writer *writer, char *header, size_t size,
                        const char *path, struct error *error) {
    const uint64_t length = size - LENGTH_BYTES;
    if (length > SAFETENSORS_HEADER_MAX_BYTES)
        return fail(error,
                    "cannot write %.480s: its header needs %" PRIu64
                    " bytes (allowed: %d)\nuse fewer or shorter names",
                    path, length, SAFETENSORS_HEADER_MAX_BYTES);
    memcpy(header, &length, LENGTH_BYTES);
    if (file_writer_open(&writer->file, path, error) != 0) return -1;
    return file_writer_put(&writer->file, header, size, error);
}

int safetensors_write_begin(struct safetensors_writer *writer, const char *path,
                            const struct safetensors_entry *entries, int count,
                            struct error *error) {
    struct printed header;
    *writer = (struct safetensors_writer){0};
    if (check_names(entries, (size_t)count, path, error) != 0) return -1;
    if (printed_open(&header)) return out_of_memory(path, error);
    int result = print_header(header.out, &writer->announced, entries, count, path, error);
    if (printed_close(&header) && result == 0) result = out_of_memory(path, error);
    if (result == 0) result = write_header(writer, header.text, header.size, path, error);
    free(header.text);
    return result;
}

/* Removes the unfinished file, because it would not have the data that its header announces. */
static int refuse_data(struct safetensors_writer *writer, const char *amount, struct error *error) {
    safetensors_write_abandon(writer);
    return fail(error,
                "cannot write %.480s: %s data came than the %" PRIu64
                " bytes that its header announces",
                writer->file.path, amount, writer->announced);
}

int safetensors_write_data(struct safetensors_writer *writer, const void *bytes, size_t size,
                           struct error *error) {
    if (size > writer->announced - writer->received) return refuse_data(writer, "more", error);
    writer->received += size;
    return file_writer_put(&writer->file, bytes, size, error);
}

int safetensors_write_end(struct safetensors_writer *writer, struct error *error) {
    if (writer->received != writer->announced) return refuse_data(writer, "less", error);
    return file_writer_commit(&writer->file, error);
}

void safetensors_write_abandon(struct safetensors_writer *writer) {
    file_writer_abandon(&writer->file);
}
