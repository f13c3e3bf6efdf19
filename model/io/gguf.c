#include "model/io/gguf.h"

#include <assert.h>
#include <string.h>
#include <sys/stat.h>

#include <stb/stb_ds.h>

enum { VERSION = 3 };

static void append(uint8_t **bytes, const void *value, size_t size) {
    if (size > 0) memcpy(arraddnptr(*bytes, size), value, size);
}

static void append_text(uint8_t **bytes, const void *text, size_t size) {
    uint64_t length = size;
    append(bytes, &length, sizeof length);
    append(bytes, text, size);
}

static void append_uint32(uint8_t **bytes, uint32_t value) {
    append(bytes, &value, sizeof value);
}

static void append_uint64(uint8_t **bytes, uint64_t value) {
    append(bytes, &value, sizeof value);
}

static void begin_pair(struct gguf_writer *writer, const char *key, enum gguf_value type) {
    append_text(&writer->pairs, key, strlen(key));
    append_uint32(&writer->pairs, type);
    writer->pair_count++;
}

void gguf_add_number(struct gguf_writer *writer, enum gguf_value type, double value) {
    const float real = (float)value;
    const int32_t whole = (int32_t)value;
    const uint8_t flag = value != 0;
    if (type == GGUF_FLOAT32) append(&writer->pairs, &real, sizeof real);
    else if (type == GGUF_INT32) append(&writer->pairs, &whole, sizeof whole);
    else if (type == GGUF_BOOL) append(&writer->pairs, &flag, sizeof flag);
    else append_uint32(&writer->pairs, (uint32_t)value);
}

void gguf_put_number(struct gguf_writer *writer, const char *key, enum gguf_value type,
                     double value) {
    begin_pair(writer, key, type);
    gguf_add_number(writer, type, value);
}

void gguf_put_string(struct gguf_writer *writer, const char *key, const char *text) {
    begin_pair(writer, key, GGUF_STRING);
    append_text(&writer->pairs, text, strlen(text));
}

void gguf_put_array(struct gguf_writer *writer, const char *key, enum gguf_value type,
                    uint64_t count) {
    begin_pair(writer, key, GGUF_ARRAY);
    append_uint32(&writer->pairs, type);
    append_uint64(&writer->pairs, count);
}

void gguf_add_text(struct gguf_writer *writer, const void *text, size_t size) {
    append_text(&writer->pairs, text, size);
}

static uint64_t aligned(uint64_t bytes) {
    return (bytes + GGUF_ALIGNMENT - 1) / GGUF_ALIGNMENT * GGUF_ALIGNMENT;
}

void gguf_add_tensor(struct gguf_writer *writer, const char *name, enum gguf_type type,
                     uint64_t rows, uint64_t columns) {
    const struct gguf_type_info *info = &gguf_types[type];
    uint64_t blocks = columns / (uint64_t)info->block * (rows ? rows : 1);
    assert(columns % (uint64_t)info->block == 0);
    append_text(&writer->infos, name, strlen(name));
    append_uint32(&writer->infos, rows ? 2 : 1);
    append_uint64(&writer->infos, columns);
    if (rows) append_uint64(&writer->infos, rows);
    append_uint32(&writer->infos, info->number);
    append_uint64(&writer->infos, writer->announced);
    writer->announced += aligned(blocks * info->block_bytes);
    writer->tensor_count++;
}

int gguf_refuse_existing(const char *path, struct error *error) {
    struct stat status;
    if (lstat(path, &status) != 0) return 0;
    return fail(error, "%.400s already exists\nexport to another file, or remove it first", path);
}

int gguf_write_begin(struct gguf_writer *writer, const char *path, struct error *error) {
    uint8_t *begin = NULL;
    append(&begin, "GGUF", 4);
    append_uint32(&begin, VERSION);
    append_uint64(&begin, writer->tensor_count);
    append_uint64(&begin, writer->pair_count);
    /* Another export may have ended before this one locked the file. */
    int status = file_writer_open(&writer->file, path, error) ||
                         gguf_refuse_existing(path, error) ||
                         gguf_write_data(writer, begin, arrlenu(begin), error) ||
                         gguf_write_data(writer, writer->pairs, arrlenu(writer->pairs), error) ||
                         gguf_write_data(writer, writer->infos, arrlenu(writer->infos), error) ||
                         gguf_write_end_tensor(writer, error)
                     ? -1
                     : 0;
    arrfree(begin);
    writer->data_start = writer->file.size;
    return status;
}

int gguf_write_data(struct gguf_writer *writer, const void *bytes, size_t size,
                    struct error *error) {
    return size > 0 ? file_writer_put(&writer->file, bytes, size, error) : 0;
}

int gguf_write_end_tensor(struct gguf_writer *writer, struct error *error) {
    static const uint8_t zeros[GGUF_ALIGNMENT];
    uint64_t size = writer->file.size;
    return file_writer_put(&writer->file, zeros, aligned(size) - size, error);
}

int gguf_write_end(struct gguf_writer *writer, struct error *error) {
    assert(writer->file.size == writer->data_start + writer->announced);
    return file_writer_commit(&writer->file, error);
}

void gguf_writer_close(struct gguf_writer *writer) {
    file_writer_abandon(&writer->file);
    arrfree(writer->pairs);
    arrfree(writer->infos);
    *writer = (struct gguf_writer){0};
}
