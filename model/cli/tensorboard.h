/* TensorBoard event files, RUN/events.out.tfevents.SECONDS.HOST.PID: one file per start of a run.
 * A record is a length, its CRC, the bytes of an Event (tensorflow/core/util/event.proto) and their
 * CRC; both are masked CRC-32C, as in TensorFlow's TFRecord.
 *
 * Each start writes a session event. With it TensorBoard discards events of later steps, which a
 * killed run may have left in earlier files. */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "data/util/error.h"

struct tensorboard {
    FILE *file; /* NULL: nothing is written */
};

/* Creates a file for the steps after `step`. */
int tensorboard_open(struct tensorboard *board, const char *run_directory, int64_t step,
                     struct error *error);
void tensorboard_close(struct tensorboard *board);

struct scalar {
    const char *tag; /* "train/loss" */
    double value;    /* stored in fp32 */
};

/* Writes up to 16 scalars of a step as one event, and flushes, unless board->file is NULL. */
int tensorboard_write(struct tensorboard *board, int64_t step, const struct scalar *scalars,
                      int count, struct error *error);

/* Returns the CRC-32C (Castagnoli) of RFC 3720. */
uint32_t crc32c(const void *bytes, size_t size);
