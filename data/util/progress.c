#include "data/util/progress.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static const double SECONDS_BETWEEN = 0.2;

double progress_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

bool progress_terminal(FILE *out) {
    const char *kind = getenv("TERM");
    return isatty(fileno(out)) && kind && strcmp(kind, "dumb") != 0;
}

int progress_columns(FILE *out) {
    struct winsize size;
    return ioctl(fileno(out), TIOCGWINSZ, &size) || size.ws_col < 20 ? 80 : size.ws_col;
}

void progress_open(struct progress *progress, FILE *out, uint64_t total) {
    const double now = progress_clock();
    *progress = (struct progress){
        .out = progress_terminal(out) ? out : NULL, .total = total, .started = now, .drawn = now};
}

const char *progress_bytes(char text[16], double bytes) {
    static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB"};
    int unit = 0;
    for (; unit < 4 && bytes >= 999.5; unit++) bytes /= 1000;
    snprintf(text, 16, unit > 0 && bytes < 9.95 ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
    return text;
}

void progress_duration(char text[32], double seconds) {
    const long total = (long)(seconds + 0.5);
    if (total >= 86400) snprintf(text, 32, "%ldd %02ldh", total / 86400, total / 3600 % 24);
    else if (total >= 3600) snprintf(text, 32, "%ldh %02ldm", total / 3600, total / 60 % 60);
    else if (total >= 60) snprintf(text, 32, "%ldm %02lds", total / 60, total % 60);
    else snprintf(text, 32, "%lds", total);
}

int progress_bar(char *line, int width, int width_max, double done, double total) {
    if (width < PROGRESS_BAR_MIN) return 0;
    if (width > width_max) width = width_max;
    for (int i = 0; i < width; i++) line[i] = i < (int)(width * done / total) ? '#' : '-';
    line[width] = ' ';
    return width + 1;
}

void progress_line(char line[PROGRESS_LINE_MAX], int width, uint64_t done, uint64_t total,
                   double seconds) {
    char figures[PROGRESS_LINE_MAX], of_all[16], all[16], speed[16], left[32];
    if (width >= PROGRESS_LINE_MAX) width = PROGRESS_LINE_MAX - 1;
    const double rate = seconds > 0 ? (double)done / seconds : 0;
    progress_bytes(of_all, (double)done);
    progress_bytes(speed, rate);
    if (total == 0) {
        snprintf(line, (size_t)width + 1, "%s | %s/s", of_all, speed);
        return;
    }
    /* A file may grow while it is read. */
    if (done > total) done = total;
    const double part = (double)done / (double)total;
    const double seconds_left = rate > 0 ? (double)(total - done) / rate : 0;
    progress_duration(left, seconds_left < 1e7 ? seconds_left : 9999999);
    const int length =
        snprintf(figures, sizeof figures, "%.0f %% | %s of %s | %s/s | %s left", 100 * part, of_all,
                 progress_bytes(all, (double)total), speed, left);
    int used = progress_bar(line, width - length - 1, 20, (double)done, (double)total);
    snprintf(line + used, (size_t)(width - used) + 1, "%s", figures);
}

void progress_show(struct progress *progress, double part) {
    if (!progress->out) return;
    const double now = progress_clock();
    if (now - progress->drawn < SECONDS_BETWEEN) return;
    char line[PROGRESS_LINE_MAX];
    const double in_work = (double)(progress->read - progress->finished);
    progress_line(line, progress_columns(progress->out) - 1,
                  progress->finished + (uint64_t)(part * in_work), progress->total,
                  now - progress->started);
    fprintf(progress->out, "\r%s\033[K", line);
    fflush(progress->out);
    progress->drawn = now;
    progress->visible = true;
}

void progress_erase(struct progress *progress) {
    if (progress->visible) fputs("\r\033[K", progress->out);
    if (progress->visible) fflush(progress->out);
    progress->visible = false;
}
