#include "model/run/metrics.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "data/base/files.h"

/* Finds how much of the file belongs to steps up to `step`: whole lines only. */
static long kept_length(struct metrics *metrics, int64_t step) {
    char line[1024];
    long kept = 0;
    int64_t found;
    while (fgets(line, sizeof line, metrics->file)) {
        bool whole = strchr(line, '\n') != NULL;
        if (!whole || sscanf(line, "{\"step\": %" SCNd64, &found) != 1 || found > step) break;
        if (strstr(line, "\"val_loss\"")) metrics->last_validation = found;
        kept = ftell(metrics->file);
    }
    return kept;
}

int metrics_open(struct metrics *metrics, const char *run_directory, int64_t step,
                 struct error *error) {
    char path[FILE_PATH_MAX];
    snprintf(path, sizeof path, "%s/metrics.jsonl", run_directory);
    metrics->last_validation = -1;
    int descriptor = file_open_own(path, error);
    if (descriptor < 0) return -1;
    metrics->file = fdopen(descriptor, "r+");
    if (!metrics->file) {
        close(descriptor);
        return fail(error, "%s: %s", path, strerror(errno));
    }
    long kept = step > 0 ? kept_length(metrics, step) : 0;
    if (fseek(metrics->file, kept, SEEK_SET) || ftruncate(fileno(metrics->file), kept))
        return fail(error, "%s: cannot continue it: %s", path, strerror(errno));
    return 0;
}

static int finish_line(struct metrics *metrics, struct error *error) {
    if (fflush(metrics->file) == 0 && !ferror(metrics->file)) return 0;
    return fail(error,
                "metrics.jsonl: %s\nfree space, or choose another run_dir, or switch it off with "
                "--set log.metrics=false",
                strerror(errno));
}

static void print_number(FILE *file, const char *key, double value, int digits) {
    if (isfinite(value)) fprintf(file, ", \"%s\": %.*g", key, digits, value);
    else fprintf(file, ", \"%s\": null", key);
}

int metrics_step(struct metrics *metrics, const struct step_report *report, double step_ms,
                 double tokens_per_s, uint64_t memory_bytes, struct error *error) {
    FILE *file = metrics->file;
    if (!file) return 0;
    fprintf(file, "{\"step\": %" PRId64 ", \"tokens\": %" PRId64, report->step, report->tokens);
    print_number(file, "loss", report->loss, 9);
    print_number(file, "lr", report->lr, 9);
    print_number(file, "grad_norm", report->gradient_norm, 9);
    print_number(file, "loss_scale", report->loss_scale, 9);
    fprintf(file, ", \"skipped\": %s", report->skipped ? "true" : "false");
    print_number(file, "step_ms", step_ms, 6);
    print_number(file, "tokens_per_s", tokens_per_s, 6);
    if (report->fp8)
        fprintf(file, ", \"fp8_not_finite\": %" PRId32 ", \"fp8_zero\": %" PRId32,
                report->fp8_not_finite, report->fp8_zero);
    fprintf(file, ", \"memory_bytes\": %" PRIu64 "}\n", memory_bytes);
    return finish_line(metrics, error);
}

int metrics_validation(struct metrics *metrics, int64_t step, double val_loss,
                       struct error *error) {
    FILE *file = metrics->file;
    metrics->last_validation = step;
    if (!file) return 0;
    fprintf(file, "{\"step\": %" PRId64, step);
    print_number(file, "val_loss", val_loss, 9);
    fprintf(file, "}\n");
    return finish_line(metrics, error);
}

int metrics_close(struct metrics *metrics, struct error *error) {
    FILE *file = metrics->file;
    metrics->file = NULL;
    if (file && fclose(file)) return fail(error, "metrics.jsonl: %s", strerror(errno));
    return 0;
}
