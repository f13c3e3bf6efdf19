#include "model/cli/metrics.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "data/util/file_stream.h"
#include "data/util/files.h"

static const char line_start[] = "{\"step\": ";

/* Returns the length in bytes of the leading lines that are complete and not of a step after
 * `step`. */
static long kept_length(struct metrics *metrics, int64_t step) {
    char line[1024];
    long kept = 0;
    for (; fgets(line, sizeof line, metrics->file) && strchr(line, '\n');
         kept = ftell(metrics->file)) {
        int64_t found;
        if (strncmp(line, line_start, strlen(line_start)) != 0 ||
            sscanf(line + strlen(line_start), "%" SCNd64, &found) != 1 || found > step)
            break;
        if (strstr(line, "\"val_loss\"")) metrics->last_validation = found;
    }
    return kept;
}

/* Ends the file at `bytes`. */
static int cut(struct metrics *metrics, long bytes) {
    metrics->bytes = bytes;
    return fseek(metrics->file, bytes, SEEK_SET) || ftruncate(metrics->descriptor, bytes) ? -1 : 0;
}

int metrics_open(struct metrics *metrics, const char *run_directory, const struct config *config,
                 int64_t step, struct error *error) {
    char path[FILE_PATH_MAX];
    *metrics = (struct metrics){.last_validation = -1, .figures = objective_of(config)->figures};
    if (!config->log.metrics) return 0;
    if (file_path_join(path, run_directory, "metrics.jsonl", error)) return -1;
    metrics->descriptor = file_open_own(path, error);
    if (metrics->descriptor < 0) return -1;
    metrics->file = file_stream_open(metrics->descriptor);
    if (!metrics->file) {
        fail(error, "%s: %s", path, strerror(errno));
        close(metrics->descriptor);
        return -1;
    }
    if (cut(metrics, step > 0 ? kept_length(metrics, step) : 0) == 0) return 0;
    return fail(error, "%s: cannot continue it: %s", path, strerror(errno));
}

/* If it fails, the file's error remains, so nothing follows the damaged line, which a resume
 * removes. */
void metrics_repair(struct metrics *metrics) {
    if (metrics->file && cut(metrics, metrics->bytes) == 0) clearerr(metrics->file);
}

static int end_line(struct metrics *metrics, struct error *error) {
    if (fflush(metrics->file) || ferror(metrics->file))
        return fail(error,
                    "metrics.jsonl: %s\nfree space, or choose another run_dir, or switch it off "
                    "with --set log.metrics=false",
                    strerror(errno));
    metrics->bytes = ftell(metrics->file);
    return 0;
}

static void print_number(FILE *file, const char *key, double value, int digits) {
    if (isfinite(value)) fprintf(file, ", \"%s\": %.*g", key, digits, value);
    else fprintf(file, ", \"%s\": null", key);
}

static void print_figures(const struct metrics *metrics, const char *prefix,
                          const struct step_sums *sums) {
    for (const struct objective_figure *f = metrics->figures; f && f->name; f++) {
        char key[48];
        snprintf(key, sizeof key, "%s%s", prefix, f->name);
        print_number(metrics->file, key, objective_value(f, sums, 1), 9);
    }
}

int metrics_step(struct metrics *metrics, const struct step_report *report, double step_ms,
                 double tokens_per_s, uint64_t memory_bytes, struct error *error) {
    FILE *file = metrics->file;
    struct timespec now;
    if (!file) return 0;
    clock_gettime(CLOCK_REALTIME, &now);
    fprintf(file, "%s%" PRId64 ", \"tokens\": %" PRId64, line_start, report->step, report->tokens);
    print_number(file, "loss", report->loss, 9);
    print_figures(metrics, "", &report->sums);
    print_number(file, "lr", report->lr, 9);
    print_number(file, "grad_norm", report->gradient_norm, 9);
    print_number(file, "loss_scale", report->loss_scale, 9);
    fprintf(file, ", \"skipped\": %s", report->skipped ? "true" : "false");
    print_number(file, "step_ms", step_ms, 6);
    print_number(file, "tokens_per_s", tokens_per_s, 6);
    if (report->quantizes)
        fprintf(file, ", \"fp8_not_finite\": %" PRId32 ", \"fp8_zero\": %" PRId32,
                report->quantized_not_finite, report->quantized_zero);
    fprintf(file, ", \"memory_bytes\": %" PRIu64 ", \"time\": %lld.%03ld}\n", memory_bytes,
            (long long)now.tv_sec, now.tv_nsec / 1000000);
    return end_line(metrics, error);
}

int metrics_validation(struct metrics *metrics, int64_t step, double val_loss,
                       const struct step_sums *sums, struct error *error) {
    metrics->last_validation = step;
    if (!metrics->file) return 0;
    fprintf(metrics->file, "%s%" PRId64, line_start, step);
    print_number(metrics->file, "val_loss", val_loss, 9);
    print_figures(metrics, "val_", sums);
    fputs("}\n", metrics->file);
    return end_line(metrics, error);
}

int metrics_accuracy(struct metrics *metrics, int64_t step, const struct accuracy *accuracy,
                     struct error *error) {
    if (!metrics->file) return 0;
    fprintf(metrics->file, "%s%" PRId64, line_start, step);
    print_number(metrics->file, "choices_acc", accuracy->acc, 9);
    print_number(metrics->file, "choices_acc_norm", accuracy->norm, 9);
    fputs("}\n", metrics->file);
    return end_line(metrics, error);
}

void metrics_close(struct metrics *metrics) {
    if (metrics->file) fclose(metrics->file); /* every line was flushed */
    *metrics = (struct metrics){.last_validation = -1};
}
