#include "model/io/safetensors_write.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/json_escape.h"
#include "data/util/printed.h"
#include "data/util/utf8.h"

static void print_entry(FILE *out, const struct safetensors_entry *entry, uint64_t begin,
                        uint64_t end) {
    json_print_string(out, entry->name);
    fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", safetensors_dtype_name(entry->dtype));
    for (int i = 0; i < entry->rank; i++)
        fprintf(out, "%s%" PRIu64, i > 0 ? "," : "", entry->shape[i]);
    fprintf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin, end);
}

/* Fails if a name is not UTF-8, is reserved, or repeats. */
static int check_names(const struct safetensors_entry *entries, int count, const char *path,
                       struct error *error) {
    const char *wrong = NULL;
    for (int i = 0; i < count; i++) {
        if (!utf8_valid(entries[i].name, strlen(entries[i].name)))
            return fail(error,
                        "cannot write %.480s: the name of a tensor or metadata key is not "
                        "UTF-8 text\nchoose other names",
                        path);
        if (strcmp(entries[i].name, SAFETENSORS_METADATA_KEY) == 0) wrong = entries[i].name;
    }
    const char **names = malloc(((size_t)count + 1) * sizeof(*names));
    if (!names) return safetensors_out_of_memory(error, path);
    for (int i = 0; i < count; i++) names[i] = entries[i].name;
    if (!wrong) wrong = safetensors_repeated(names, (size_t)count);
    free(names);
    if (!wrong) return 0;
    return fail(error,
                "cannot write %.480s: the name \"%.150s\" is reserved or used twice\nchoose "
                "another one",
                path, wrong);
}

/* Prints the header with its length. Stores the size of all data. */
static int print_header(FILE *out, uint64_t *data_bytes, const struct safetensors_entry *entries,
                        int count, const char *path, struct error *error) {
    fprintf(out, "%*s{\"%s\":{\"format\":\"pt\"}", SAFETENSORS_LENGTH_BYTES, "",
            SAFETENSORS_METADATA_KEY);
    uint64_t begin = 0;
    for (int i = 0; i < count; i++) {
        uint64_t bytes = 0;
        if (!safetensors_entry_bytes(&bytes, &entries[i]) ||
            bytes >= SAFETENSORS_COUNT_LIMIT - begin)
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
                        const char *path, struct error *error) {
    const uint64_t length = size - SAFETENSORS_LENGTH_BYTES;
    if (length > SAFETENSORS_HEADER_MAX_BYTES)
        return fail(error,
                    "cannot write %.480s: its header needs %" PRIu64
                    " bytes (allowed: %d)\nuse fewer or shorter names",
                    path, length, SAFETENSORS_HEADER_MAX_BYTES);
    for (int i = 0; i < SAFETENSORS_LENGTH_BYTES; i++) header[i] = (char)(length >> (8 * i));
    if (file_writer_open(&writer->file, path, error) != 0) return -1;
    return file_writer_put(&writer->file, header, size, error);
}

int safetensors_write_begin(struct safetensors_writer *writer, const char *path,
                            const struct safetensors_entry *entries, int count,
                            struct error *error) {
    memset(writer, 0, sizeof(*writer));
    if (check_names(entries, count, path, error) != 0) return -1;
    struct printed header;
    if (printed_open(&header)) return safetensors_out_of_memory(error, path);
    int result = print_header(header.out, &writer->announced, entries, count, path, error);
    if (printed_close(&header) && result == 0) result = safetensors_out_of_memory(error, path);
    if (result == 0) result = write_header(writer, header.text, header.size, path, error);
    free(header.text);
    return result;
}

int safetensors_write_data(struct safetensors_writer *writer, const void *bytes, size_t size,
                           struct error *error) {
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

int safetensors_write_end(struct safetensors_writer *writer, struct error *error) {
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
