/* How far a long reading of input is: one line on a terminal, redrawn at most five times a second,
 *
 *     ##----- 34 % | 1.2 GB of 3.5 GB | 41 MB/s | 2m 10s left
 *
 * or, when the length of the input is not known, 1.2 GB | 41 MB/s. Nothing where there is no
 * terminal. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { PROGRESS_LINE_MAX = 81 };

struct progress {
    FILE *out; /* NULL: draw nothing */
    bool visible;
    uint64_t total;        /* bytes of all input, 0 if that is not known */
    uint64_t finished;     /* bytes of input that are dealt with for good */
    uint64_t read;         /* bytes read; those beyond `finished` are in work */
    double started, drawn; /* seconds of progress_clock */
};

/* Seconds of a clock that never goes back. */
double progress_clock(void);

/* True if out is a terminal on which a line can be redrawn; its width in columns, 80 if that is not
 * known. */
bool progress_terminal(FILE *out);
int progress_columns(FILE *out);

/* Draws on out if that is a terminal. */
void progress_open(struct progress *progress, FILE *out, uint64_t total);

/* A part of what was read but is not finished, 0 .. 1, is done. */
void progress_show(struct progress *progress, double part);

/* Takes the line away. */
void progress_erase(struct progress *progress);

/* The line itself, at most `width` columns and less than PROGRESS_LINE_MAX. */
void progress_line(char line[PROGRESS_LINE_MAX], int width, uint64_t done, uint64_t total,
                   double seconds);

/* "2m 10s", "3d 04h". */
void progress_duration(char text[32], double seconds);

/* "41 MB", "3.5 GB". */
const char *progress_bytes(char text[16], double bytes);
