#include "model/cli/metrics.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "data/util/files.h"

/* Returns the length in bytes of the leading lines that are complete and that `keep` accepts. */
static long kept_length(FILE *file, int64_t step, metrics_keep *keep, void *context) {
    char line[1024];
    long kept = 0;
    while (fgets(line, sizeof line, file) && strchr(line, '\n') && keep(line, step, context))
        kept = ftell(file);
    return kept;
}

FILE *metrics_open_file(const char *run_directory, const char *name, int64_t step,
                        metrics_keep *keep, void *context, struct error *error) {
    char path[FILE_PATH_MAX];
    if (file_path_join(path, run_directory, name, error)) return NULL;
    int descriptor = file_open_own(path, error);
    if (descriptor < 0) return NULL;
    FILE *file = fdopen(descriptor, "r+");
    if (!file) {
        fail(error, "%s: %s", path, strerror(errno));
        close(descriptor);
        return NULL;
    }
    long kept = step > 0 ? kept_length(file, step, keep, context) : 0;
    if (fseek(file, kept, SEEK_SET) == 0 && ftruncate(descriptor, kept) == 0) return file;
    fail(error, "%s: cannot continue it: %s", path, strerror(errno));
    fclose(file);
    return NULL;
}

int metrics_flush(FILE *file, const char *name, const char *key, struct error *error) {
    if (fflush(file) == 0 && !ferror(file)) return 0;
    return fail(error,
                "%s: %s\nfree space, or choose another run_dir, or switch it off with "
                "--set %s=false",
                name, strerror(errno), key);
}

static bool keep_line(const char *line, int64_t step, void *context) {
    struct metrics *metrics = context;
    int64_t found;
    if (sscanf(line, "{\"step\": %" SCNd64, &found) != 1 || found > step) return false;
    if (strstr(line, "\"val_loss\"")) metrics->last_validation = found;
    return true;
}

int metrics_open(struct metrics *metrics, const char *run_directory, int64_t step,
                 struct error *error) {
    metrics->last_validation = -1;
    metrics->file =
        metrics_open_file(run_directory, "metrics.jsonl", step, keep_line, metrics, error);
    return metrics->file ? 0 : -1;
}

static int finish_line(struct metrics *metrics, struct error *error) {
    return metrics_flush(metrics->file, "metrics.jsonl", "log.metrics", error);
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
