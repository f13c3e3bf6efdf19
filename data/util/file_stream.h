/* Streams of stdio that continue a call which a signal interrupts. stdio itself gives up with EINTR
 * and loses what it had buffered. */
#pragma once

#include <stdio.h>

/* Returns a buffered stream that reads and writes fd, and closes it with the stream. fileno() does
 * not work on it. Returns NULL with errno, and fd still open, if out of memory. */
FILE *file_stream_open(int fd);
