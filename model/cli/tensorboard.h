/* Event files of TensorBoard, RUN/events.out.tfevents.SECONDS.HOST.PID: a file for each start of a
 * run. Records are as TensorFlow writes them (a length, its CRC, the bytes, their CRC; both masked
 * CRC-32C), each an Event of tensorflow/core/util/event.proto.
 *
 * A start says that events of later steps, which a killed run may have left in earlier files, are
 * void. */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "data/util/error.h"

struct tensorboard {
    FILE *file; /* NULL: nothing is written */
};

/* Begins a file for the steps after `step`. */
int tensorboard_open(struct tensorboard *board, const char *run_directory, int64_t step,
                     struct error *error);
int tensorboard_close(struct tensorboard *board, struct error *error);

struct scalar {
    const char *tag; /* "train/loss" */
    double value;    /* stored in fp32 */
};

/* Scalars of a step, at most 16, as one event that is flushed. */
int tensorboard_write(struct tensorboard *board, int64_t step, const struct scalar *scalars,
                      int count, struct error *error);

/* CRC-32C (Castagnoli), as in RFC 3720. */
uint32_t crc32c(const void *bytes, size_t size);
