/* Progress of reading long input: one line on a terminal, redrawn at most five times a second,
 *
 *     ##----- 34 % | 1.2 GB of 3.5 GB | 41 MB/s | 2m 10s left
 *
 * or, if the length of the input is unknown, 1.2 GB | 41 MB/s. Nothing is drawn without a
 * terminal. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { PROGRESS_LINE_MAX = 81 };

struct progress {
    FILE *out; /* NULL: draw nothing */
    bool visible;
    uint64_t total;        /* bytes of all input, 0 if unknown */
    uint64_t finished;     /* bytes of input that are fully processed */
    uint64_t read;         /* bytes read; the rest after `finished` is being processed */
    double started, drawn; /* seconds of progress_clock */
};

/* Returns seconds of a monotonic clock. */
double progress_clock(void);

/* True if out is a terminal on which a line can be redrawn. */
bool progress_terminal(FILE *out);

/* Returns the width of the terminal in columns, 80 if it is unknown. */
int progress_columns(FILE *out);

/* Opens a progress line, which is drawn if out is a terminal. */
void progress_open(struct progress *progress, FILE *out, uint64_t total);

/* Redraws the line. part: the processed share, 0 .. 1, of the bytes read but not finished. */
void progress_show(struct progress *progress, double part);

/* Erases the line. */
void progress_erase(struct progress *progress);

/* Formats the line, at most `width` columns and less than PROGRESS_LINE_MAX. */
void progress_line(char line[PROGRESS_LINE_MAX], int width, uint64_t done, uint64_t total,
                   double seconds);

/* Writes a bar of at most width and width_max columns and a space, without a NUL. Returns their
 * bytes: 0 if the width is less than the least one. */
enum { PROGRESS_BAR_MIN = 5 };
int progress_bar(char *line, int width, int width_max, double done, double total);

/* Formats a duration: "2m 10s", "3d 04h". */
void progress_duration(char text[32], double seconds);

/* Formats a size: "41 MB", "3.5 GB". Returns text. */
const char *progress_bytes(char text[16], double bytes);
