/* Files of a teacher's logits, written by a test. */
#pragma once

#include <stdlib.h>

#include "data/corpus/teacher_logits.h"
#include "test/scratch.h"

/* Writes the file of a shard to the test's folder. tokens and logits: [records, k]. */
static inline void write_teacher(const struct token_shard *shard, int64_t top, int64_t vocab_size,
                                 int64_t seq_len, bool isolated, const int32_t *tokens,
                                 const uint16_t *logits) {
    struct teacher_header header;
    struct file_writer file;
    char path[FILE_PATH_MAX];
    SUCCEEDS(teacher_describe(&header, shard, top, vocab_size, seq_len, isolated, &error));
    SUCCEEDS(teacher_path(path, folder, shard, &error));
    void *record = malloc(teacher_record_bytes(&header));
    SUCCEEDS(file_writer_open(&file, path, &error));
    SUCCEEDS(file_writer_put(&file, &header, sizeof header, &error));
    for (uint64_t i = 0; i < header.records; i++) {
        teacher_pack(&header, record, tokens + i * header.top, logits + i * header.top);
        SUCCEEDS(file_writer_put(&file, record, teacher_record_bytes(&header), &error));
    }
    SUCCEEDS(file_writer_commit(&file, &error));
    free(record);
}
