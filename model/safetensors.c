#include "model/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "data/error.h"

/* JSON numbers pass through doubles: from 2^53 on neighbors fall together. */
#define COUNT_LIMIT ((uint64_t)1 << 53)

enum { LENGTH_BYTES = 8 };

static const char metadata_key[] = "__metadata__";

static const struct {
    const char *name;
    int bits;
} dtypes[SAFETENSORS_DTYPES] = {
    [SAFETENSORS_BOOL] = {"BOOL", 8},       [SAFETENSORS_F4] = {"F4", 4},
    [SAFETENSORS_F6_E2M3] = {"F6_E2M3", 6}, [SAFETENSORS_F6_E3M2] = {"F6_E3M2", 6},
    [SAFETENSORS_U8] = {"U8", 8},           [SAFETENSORS_I8] = {"I8", 8},
    [SAFETENSORS_F8_E5M2] = {"F8_E5M2", 8}, [SAFETENSORS_F8_E4M3] = {"F8_E4M3", 8},
    [SAFETENSORS_F8_E8M0] = {"F8_E8M0", 8}, [SAFETENSORS_I16] = {"I16", 16},
    [SAFETENSORS_U16] = {"U16", 16},        [SAFETENSORS_F16] = {"F16", 16},
    [SAFETENSORS_BF16] = {"BF16", 16},      [SAFETENSORS_I32] = {"I32", 32},
    [SAFETENSORS_U32] = {"U32", 32},        [SAFETENSORS_F32] = {"F32", 32},
    [SAFETENSORS_C64] = {"C64", 64},        [SAFETENSORS_F64] = {"F64", 64},
    [SAFETENSORS_I64] = {"I64", 64},        [SAFETENSORS_U64] = {"U64", 64},
};

const char *safetensors_dtype_name(enum safetensors_dtype dtype) {
    return dtypes[dtype].name;
}

int safetensors_dtype_bits(enum safetensors_dtype dtype) {
    return dtypes[dtype].bits;
}

/* Stores the size of the entry's data. Returns false when it overflows or ends inside a byte. */
static bool entry_bytes(uint64_t *bytes, const struct safetensors_entry *entry) {
    uint64_t bits = 1;
    for (int i = 0; i < entry->rank; i++) {
        if (__builtin_mul_overflow(bits, entry->shape[i], &bits)) return false;
    }
    if (__builtin_mul_overflow(bits, (uint64_t)dtypes[entry->dtype].bits, &bits)) return false;
    *bytes = bits / 8;
    return bits % 8 == 0;
}

/* Well-formed UTF-8: The Unicode Standard, table 3-7. */
static bool is_utf8(const char *text, size_t size) {
    const uint8_t *bytes = (const uint8_t *)text;
    for (size_t i = 0; i < size;) {
        const uint8_t lead = bytes[i++];
        if (lead < 0x80) continue;
        if (lead < 0xc2 || lead > 0xf4) return false;
        const size_t following = lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
        if (size - i < following) return false;
        const uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
        const uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
        if (bytes[i] < low || bytes[i] > high) return false;
        for (size_t k = 1; k < following; k++) {
            if ((bytes[i + k] & 0xc0) != 0x80) return false;
        }
        i += following;
    }
    return true;
}

/* Fails with a reason about the file. Names in it come from the file: what a terminal would obey is
 * masked. */
__attribute__((format(printf, 3, 4))) static int damaged(char *error, const char *path,
                                                         const char *format, ...) {
    char reason[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof(reason), format, arguments);
    va_end(arguments);
    for (char *c = reason; *c; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    }
    return fail(error,
                "%.480s: %s\nit is damaged, cut short or not a safetensors file: copy or download "
                "it again, or use another one",
                path, reason);
}

static int out_of_memory(char *error, const char *path) {
    return fail(error, "out of memory for the header of %.480s\nfree memory and try again", path);
}

static bool read_count(uint64_t *count, const cJSON *item) {
    if (!cJSON_IsNumber(item)) return false;
    const double value = item->valuedouble;
    if (!(value >= 0 && value < (double)COUNT_LIMIT)) return false;
    *count = (uint64_t)value;
    return (double)*count == value;
}

/* The member of that name, or NULL when there is none or more than one. */
static const cJSON *only_member(const cJSON *object, const char *key) {
    const cJSON *found = NULL, *member;
    cJSON_ArrayForEach(member, object) {
        if (strcmp(member->string, key) != 0) continue;
        if (found) return NULL;
        found = member;
    }
    return found;
}

static int read_dtype(struct safetensors_entry *entry, const cJSON *item, const char *path,
                      char *error) {
    if (!cJSON_IsString(item))
        return damaged(error, path, "tensor %.150s needs one \"dtype\", a string", entry->name);
    for (int i = 0; i < SAFETENSORS_DTYPES; i++) {
        if (strcmp(dtypes[i].name, item->valuestring) != 0) continue;
        entry->dtype = (enum safetensors_dtype)i;
        return 0;
    }
    return damaged(error, path, "tensor %.150s has the unknown dtype \"%.50s\"", entry->name,
                   item->valuestring);
}

static int read_shape(struct safetensors_entry *entry, const cJSON *item, const char *path,
                      char *error) {
    if (!cJSON_IsArray(item))
        return damaged(error, path, "tensor %.150s needs one \"shape\", a list", entry->name);
    const cJSON *dimension;
    cJSON_ArrayForEach(dimension, item) {
        if (entry->rank == SAFETENSORS_RANK_MAX)
            return damaged(error, path, "tensor %.150s has more than %d dimensions", entry->name,
                           SAFETENSORS_RANK_MAX);
        if (!read_count(&entry->shape[entry->rank++], dimension))
            return damaged(error, path,
                           "tensor %.150s: dimension %d of its shape is not a whole number from 0 "
                           "to 2^53 - 1",
                           entry->name, entry->rank - 1);
    }
    return 0;
}

static int read_offsets(struct safetensors_entry *entry, const cJSON *item, uint64_t data_bytes,
                        const char *path, char *error) {
    uint64_t begin = 0, end = 0, expected = 0;
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2 || !read_count(&begin, item->child) ||
        !read_count(&end, item->child->next))
        return damaged(error, path,
                       "tensor %.150s needs one \"data_offsets\", two whole numbers below 2^53",
                       entry->name);
    if (begin > end)
        return damaged(error, path,
                       "tensor %.150s begins at byte %" PRIu64 " but ends at byte %" PRIu64,
                       entry->name, begin, end);
    if (end > data_bytes)
        return damaged(error, path,
                       "tensor %.150s ends at byte %" PRIu64
                       " of the data, of which the file holds %" PRIu64 " bytes",
                       entry->name, end, data_bytes);
    if (!entry_bytes(&expected, entry))
        return damaged(error, path, "tensor %.150s has a shape whose size is not representable",
                       entry->name);
    if (expected != end - begin)
        return damaged(error, path,
                       "tensor %.150s needs %" PRIu64
                       " bytes by shape and dtype, but its offsets span %" PRIu64,
                       entry->name, expected, end - begin);
    entry->offset = begin;
    entry->bytes = end - begin;
    return 0;
}

static int read_entry(struct safetensors_entry *entry, const cJSON *item, uint64_t data_bytes,
                      const char *path, char *error) {
    *entry = (struct safetensors_entry){.name = item->string};
    if (!cJSON_IsObject(item))
        return damaged(error, path, "tensor %.150s is not described by an object", entry->name);
    if (read_dtype(entry, only_member(item, "dtype"), path, error) != 0) return -1;
    if (read_shape(entry, only_member(item, "shape"), path, error) != 0) return -1;
    return read_offsets(entry, only_member(item, "data_offsets"), data_bytes, path, error);
}

static int compare_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int compare_name(const void *a, const void *b) {
    return strcmp((*(const struct safetensors_entry *const *)a)->name,
                  (*(const struct safetensors_entry *const *)b)->name);
}

static int compare_place(const void *a, const void *b) {
    const struct safetensors_entry *left = a, *right = b;
    if (left->offset != right->offset) return left->offset < right->offset ? -1 : 1;
    if (left->bytes != right->bytes) return left->bytes < right->bytes ? -1 : 1;
    return strcmp(left->name, right->name);
}

/* Returns a text that occurs twice, or NULL. Sorts the list. */
static const char *repeated(const char **texts, size_t count) {
    if (count > 1) qsort(texts, count, sizeof(*texts), compare_text);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(texts[i - 1], texts[i]) == 0) return texts[i];
    }
    return NULL;
}

static int check_metadata(const cJSON *metadata, const char *path, char *error) {
    if (!cJSON_IsObject(metadata))
        return damaged(error, path, "its \"%s\" is not an object", metadata_key);
    const size_t count = (size_t)cJSON_GetArraySize(metadata);
    const char **keys = malloc((count + 1) * sizeof(*keys));
    if (!keys) return out_of_memory(error, path);
    int result = 0;
    size_t known = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, metadata) {
        keys[known++] = item->string;
        if (result == 0 && !cJSON_IsString(item))
            result = damaged(error, path, "the value of metadata key \"%.150s\" is not a string",
                             item->string);
    }
    const char *twice = result == 0 ? repeated(keys, count) : NULL;
    if (twice) result = damaged(error, path, "metadata key \"%.150s\" is given twice", twice);
    free(keys);
    return result;
}

/* Checks that the entries, sorted by offset, fill the data section. */
static int check_places(const struct safetensors *file, uint64_t data_bytes, const char *path,
                        char *error) {
    uint64_t end = 0;
    for (int i = 0; i < file->count; i++) {
        const struct safetensors_entry *entry = &file->entries[i];
        if (entry->offset > end)
            return damaged(error, path, "a hole of %" PRIu64 " bytes lies before tensor %.150s",
                           entry->offset - end, entry->name);
        if (entry->offset < end)
            return damaged(error, path, "tensor %.150s overlaps tensor %.150s", entry->name,
                           file->entries[i - 1].name);
        end += entry->bytes;
    }
    if (end != data_bytes)
        return damaged(error, path, "%" PRIu64 " bytes that belong to no tensor follow the last",
                       data_bytes - end);
    return 0;
}

static int index_names(struct safetensors *file, const char *path, char *error) {
    for (int i = 0; i < file->count; i++) file->by_name[i] = &file->entries[i];
    if (file->count > 1)
        qsort(file->by_name, (size_t)file->count, sizeof(*file->by_name), compare_name);
    for (int i = 1; i < file->count; i++) {
        if (strcmp(file->by_name[i - 1]->name, file->by_name[i]->name) == 0)
            return damaged(error, path, "tensor %.150s is described twice", file->by_name[i]->name);
    }
    return 0;
}

static int read_entries(struct safetensors *file, const uint8_t *data, uint64_t data_bytes,
                        const char *path, char *error) {
    const size_t members = (size_t)cJSON_GetArraySize(file->header);
    file->entries = malloc((members + 1) * sizeof(*file->entries));
    file->by_name = malloc((members + 1) * sizeof(*file->by_name));
    if (!file->entries || !file->by_name) return out_of_memory(error, path);
    const cJSON *item;
    cJSON_ArrayForEach(item, file->header) {
        if (strcmp(item->string, metadata_key) == 0) {
            if (file->metadata) return damaged(error, path, "\"%s\" is given twice", metadata_key);
            if (check_metadata(item, path, error) != 0) return -1;
            file->metadata = item;
            continue;
        }
        struct safetensors_entry *entry = &file->entries[file->count];
        if (read_entry(entry, item, data_bytes, path, error) != 0) return -1;
        entry->data = data + entry->offset;
        file->count++;
    }
    if (file->count > 1)
        qsort(file->entries, (size_t)file->count, sizeof(*file->entries), compare_place);
    if (index_names(file, path, error) != 0) return -1;
    return check_places(file, data_bytes, path, error);
}

/* Parses `size` bytes of header text, which a NUL follows. */
static int parse_header(struct safetensors *file, const char *text, size_t size, const char *path,
                        char *error) {
    if (text[0] != '{') return damaged(error, path, "its header does not begin with '{'");
    if (!is_utf8(text, size)) return damaged(error, path, "its header is not UTF-8 text");
    for (size_t i = 0; i < size; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c < 0x20 && c != '\t' && c != '\n' && c != '\r')
            return damaged(error, path, "byte %zu of its header is a control character", i);
    }
    /* The parser would cut a name there, and two names could become one. */
    if (strstr(text, "\\u0000")) return damaged(error, path, "a name in its header holds a NUL");

    const char *end = NULL;
    file->header = cJSON_ParseWithLengthOpts(text, size + 1, &end, false);
    if (!file->header)
        return damaged(error, path, "its header is not valid JSON near byte %td of it",
                       end ? end - text : 0);
    end += strspn(end, " \t\r\n");
    if (*end) return damaged(error, path, "text follows the JSON of its header");
    return 0;
}

static int read_header(struct safetensors *file, const char *path, char *error) {
    const uint8_t *bytes = file->map;
    uint64_t header_bytes = 0;
    for (int i = 0; i < LENGTH_BYTES; i++) header_bytes |= (uint64_t)bytes[i] << (8 * i);
    if (header_bytes == 0 || header_bytes > SAFETENSORS_HEADER_MAX_BYTES)
        return damaged(error, path, "its header claims %" PRIu64 " bytes (allowed: 1 to %d)",
                       header_bytes, SAFETENSORS_HEADER_MAX_BYTES);
    if (header_bytes > file->map_bytes - LENGTH_BYTES)
        return damaged(error, path,
                       "its header claims %" PRIu64 " bytes, but the file has %" PRIu64,
                       header_bytes, file->map_bytes);
    /* A copy that ends in NUL: some releases of the parser look one byte past the length. */
    char *text = malloc(header_bytes + 1);
    if (!text) return out_of_memory(error, path);
    memcpy(text, bytes + LENGTH_BYTES, header_bytes);
    text[header_bytes] = '\0';
    const int result = parse_header(file, text, header_bytes, path, error);
    free(text);
    if (result != 0) return -1;
    const uint64_t data_start = LENGTH_BYTES + header_bytes;
    return read_entries(file, bytes + data_start, file->map_bytes - data_start, path, error);
}

static int map_file(struct safetensors *file, const char *path, char *error) {
    /* O_NONBLOCK: opening a pipe that nobody writes to must not hang. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return fail(error, "cannot open %.480s: %s\ncheck the path and its permissions", path,
                    strerror(errno));
    struct stat status;
    int result = 0;
    if (fstat(fd, &status) != 0)
        result = fail(error, "cannot read %.480s: %s\ncheck the path and the disk it is on", path,
                      strerror(errno));
    else if (!S_ISREG(status.st_mode))
        result = fail(
            error, "cannot read %.480s: it is not a regular file\nname a safetensors file", path);
    else if (status.st_size < LENGTH_BYTES)
        result = damaged(error, path, "its %lld bytes are too few for a header",
                         (long long)status.st_size);
    if (result == 0) {
        void *map = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED) {
            result = fail(error,
                          "cannot map %.480s into memory: %s\nfree memory, or raise its limit "
                          "(ulimit -v)",
                          path, strerror(errno));
        } else {
            file->map = map;
            file->map_bytes = (uint64_t)status.st_size;
        }
    }
    close(fd);
    return result;
}

int safetensors_open(struct safetensors *file, const char *path, char *error) {
    memset(file, 0, sizeof(*file));
    if (map_file(file, path, error) != 0) return -1;
    if (read_header(file, path, error) == 0) return 0;
    safetensors_close(file);
    return -1;
}

const struct safetensors_entry *safetensors_find(const struct safetensors *file, const char *name) {
    if (file->count == 0) return NULL;
    const struct safetensors_entry wanted = {.name = name}, *key = &wanted;
    const struct safetensors_entry *const *found =
        bsearch(&key, file->by_name, (size_t)file->count, sizeof(*file->by_name), compare_name);
    return found ? *found : NULL;
}

const char *safetensors_metadata(const struct safetensors *file, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(file->metadata, key);
    return item ? item->valuestring : NULL;
}

void safetensors_close(struct safetensors *file) {
    if (file->map) munmap(file->map, file->map_bytes);
    cJSON_Delete(file->header);
    free(file->entries);
    free(file->by_name);
    memset(file, 0, sizeof(*file));
}

static void print_string(FILE *out, const char *text) {
    fputc('"', out);
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') fprintf(out, "\\%c", c);
        else if (c < 0x20) fprintf(out, "\\u%04x", c);
        else fputc(c, out);
    }
    fputc('"', out);
}

static void print_entry(FILE *out, const struct safetensors_entry *entry, uint64_t begin,
                        uint64_t end) {
    print_string(out, entry->name);
    fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", dtypes[entry->dtype].name);
    for (int i = 0; i < entry->rank; i++)
        fprintf(out, "%s%" PRIu64, i > 0 ? "," : "", entry->shape[i]);
    fprintf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin, end);
}

/* Fails when one of the texts is not UTF-8, is `reserved`, or repeats. */
static int check_texts(const char **texts, size_t count, const char *reserved, const char *path,
                       char *error) {
    const char *wrong = NULL;
    for (size_t i = 0; i < count; i++) {
        if (!is_utf8(texts[i], strlen(texts[i])))
            return fail(error,
                        "cannot write %.480s: the name of a tensor or metadata key is not "
                        "UTF-8 text\nchoose other names",
                        path);
        if (strcmp(texts[i], reserved) == 0) wrong = texts[i];
    }
    if (!wrong) wrong = repeated(texts, count);
    if (!wrong) return 0;
    return fail(error,
                "cannot write %.480s: the name \"%.150s\" is reserved or used twice\nchoose "
                "another one",
                path, wrong);
}

static int check_request(const struct safetensors_entry *entries, size_t count,
                         const struct safetensors_pair *pairs, size_t pair_count, const char *path,
                         char *error) {
    const char **texts = malloc((count + pair_count + 1) * sizeof(*texts));
    if (!texts) return out_of_memory(error, path);
    for (size_t i = 0; i < count; i++) texts[i] = entries[i].name;
    int result = check_texts(texts, count, metadata_key, path, error);
    for (size_t i = 0; i < pair_count; i++) texts[i] = pairs[i].key;
    if (result == 0) result = check_texts(texts, pair_count, "format", path, error);
    for (size_t i = 0; i < pair_count && result == 0; i++) {
        if (!is_utf8(pairs[i].value, strlen(pairs[i].value)))
            result = fail(error, "cannot write %.480s: the metadata \"%.150s\" are not UTF-8 text",
                          path, pairs[i].key);
    }
    free(texts);
    return result;
}

/* Prints length and header. Stores the size of all data. */
static int print_header(FILE *out, uint64_t *data_bytes, const struct safetensors_entry *entries,
                        int count, const struct safetensors_pair *pairs, int pair_count,
                        const char *path, char *error) {
    fprintf(out, "%*s{\"%s\":{\"format\":\"pt\"", LENGTH_BYTES, "", metadata_key);
    for (int i = 0; i < pair_count; i++) {
        fputc(',', out);
        print_string(out, pairs[i].key);
        fputc(':', out);
        print_string(out, pairs[i].value);
    }
    fputc('}', out);
    uint64_t begin = 0;
    for (int i = 0; i < count; i++) {
        uint64_t bytes = 0;
        if (!entry_bytes(&bytes, &entries[i]) || bytes >= COUNT_LIMIT - begin)
            return fail(error,
                        "cannot write %.480s: tensor %.150s is too large or does not end at a "
                        "whole byte",
                        path, entries[i].name);
        fputc(',', out);
        print_entry(out, &entries[i], begin, begin + bytes);
        begin += bytes;
    }
    fputc('}', out);
    for (long spaces = (8 - ftell(out) % 8) % 8; spaces > 0; spaces--) fputc(' ', out);
    *data_bytes = begin;
    return 0;
}

static int write_header(struct safetensors_writer *writer, char *header, size_t size,
                        const char *path, char *error) {
    const uint64_t length = size - LENGTH_BYTES;
    if (length > SAFETENSORS_HEADER_MAX_BYTES)
        return fail(error,
                    "cannot write %.480s: its header needs %" PRIu64
                    " bytes (allowed: %d)\nuse fewer or shorter names",
                    path, length, SAFETENSORS_HEADER_MAX_BYTES);
    for (int i = 0; i < LENGTH_BYTES; i++) header[i] = (char)(length >> (8 * i));
    if (file_writer_open(&writer->file, path, error) != 0) return -1;
    return file_writer_put(&writer->file, header, size, error);
}

int safetensors_write_begin(struct safetensors_writer *writer, const char *path,
                            const struct safetensors_entry *entries, int count,
                            const struct safetensors_pair *pairs, int pair_count, char *error) {
    memset(writer, 0, sizeof(*writer));
    if (check_request(entries, (size_t)count, pairs, (size_t)pair_count, path, error) != 0)
        return -1;
    char *header = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&header, &size);
    if (!out) return out_of_memory(error, path);
    int result =
        print_header(out, &writer->announced, entries, count, pairs, pair_count, path, error);
    const bool incomplete = ferror(out) != 0;
    if ((fclose(out) != 0 || incomplete) && result == 0) result = out_of_memory(error, path);
    if (result == 0) result = write_header(writer, header, size, path, error);
    free(header);
    return result;
}

int safetensors_write_data(struct safetensors_writer *writer, const void *bytes, size_t size,
                           char *error) {
    if (size > writer->announced - writer->received) {
        safetensors_write_abandon(writer);
        return fail(error,
                    "cannot write %.480s: more data came than the %" PRIu64
                    " bytes that its header announces",
                    writer->file.path, writer->announced);
    }
    writer->received += size;
    return file_writer_put(&writer->file, bytes, size, error);
}

int safetensors_write_end(struct safetensors_writer *writer, char *error) {
    if (writer->received != writer->announced) {
        safetensors_write_abandon(writer);
        return fail(error,
                    "cannot write %.480s: %" PRIu64 " bytes of data came, its header announces "
                    "%" PRIu64,
                    writer->file.path, writer->received, writer->announced);
    }
    return file_writer_commit(&writer->file, error);
}

void safetensors_write_abandon(struct safetensors_writer *writer) {
    file_writer_abandon(&writer->file);
}
