#include "model/cli/metrics.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "data/util/file_stream.h"
#include "data/util/files.h"

static const char json_start[] = "{\"step\": ";
static const char csv_header[] = "step,tokens,loss,lr,grad_norm,loss_scale,skipped,step_ms,"
                                 "tokens_per_s,memory_bytes,fp8_not_finite,fp8_zero,val_loss";

/* Returns the length in bytes of the leading lines that are complete and not of a step after
 * `step`. A line other than the header begins with `start` and its step. */
static long kept_length(struct metrics *metrics, FILE *file, const char *start, int64_t step) {
    char line[1024];
    long kept = 0;
    for (; fgets(line, sizeof line, file) && strchr(line, '\n'); kept = ftell(file)) {
        int64_t found;
        if (strncmp(line, csv_header, strlen(csv_header)) == 0) continue;
        if (strncmp(line, start, strlen(start)) != 0 ||
            sscanf(line + strlen(start), "%" SCNd64, &found) != 1 || found > step)
            break;
        if (strstr(line, "\"val_loss\"")) metrics->last_validation = found;
    }
    return kept;
}

/* Opens RUN/NAME to append, after removing the lines that kept_length leaves out; at step 0 all
 * lines. */
static FILE *open_file(struct metrics *metrics, int *opened, const char *run_directory,
                       const char *name, const char *start, int64_t step, struct error *error) {
    char path[FILE_PATH_MAX];
    if (file_path_join(path, run_directory, name, error)) return NULL;
    int descriptor = *opened = file_open_own(path, error);
    if (descriptor < 0) return NULL;
    FILE *file = file_stream_open(descriptor);
    if (!file) {
        fail(error, "%s: %s", path, strerror(errno));
        close(descriptor);
        return NULL;
    }
    long kept = step > 0 ? kept_length(metrics, file, start, step) : 0;
    if (fseek(file, kept, SEEK_SET) == 0 && ftruncate(descriptor, kept) == 0) return file;
    fail(error, "%s: cannot continue it: %s", path, strerror(errno));
    fclose(file);
    return NULL;
}

/* Fails with the name of the file and the config key that switches it off. */
static int flush(FILE *file, const char *name, const char *key, struct error *error) {
    if (!file || (fflush(file) == 0 && !ferror(file))) return 0;
    return fail(error,
                "%s: %s\nfree space, or choose another run_dir, or switch it off with "
                "--set log.%s=false",
                name, strerror(errno), key);
}

/* Ends a record: flushes its lines and writes its scalars to TensorBoard's file. */
static int end_record(struct metrics *metrics, int64_t step, const struct scalar *scalars,
                      int count, struct error *error) {
    if (flush(metrics->json, "metrics.jsonl", "metrics", error) ||
        flush(metrics->csv, "metrics.csv", "csv", error) ||
        (count > 0 && tensorboard_write(&metrics->board, step, scalars, count, error)))
        return -1;
    if (metrics->json) metrics->json_bytes = ftell(metrics->json);
    if (metrics->csv) metrics->csv_bytes = ftell(metrics->csv);
    return 0;
}

/* Ends the file at `bytes`. If that fails, the file's error remains, so nothing follows the damaged
 * line, which a resume removes. */
static void cut(FILE *file, int descriptor, long bytes) {
    if (file && fseek(file, bytes, SEEK_SET) == 0 && ftruncate(descriptor, bytes) == 0)
        clearerr(file);
}

void metrics_repair(struct metrics *metrics) {
    cut(metrics->json, metrics->json_descriptor, metrics->json_bytes);
    cut(metrics->csv, metrics->csv_descriptor, metrics->csv_bytes);
}

int metrics_open(struct metrics *metrics, const char *run_directory, const struct config *config,
                 int64_t step, struct error *error) {
    bool choices = config->eval.choices[0] != '\0';
    *metrics = (struct metrics){.last_validation = -1, .csv_end = choices ? ",,\n" : "\n"};
    if (config->log.csv) {
        metrics->csv = open_file(metrics, &metrics->csv_descriptor, run_directory, "metrics.csv",
                                 "", step, error);
        if (!metrics->csv) return -1;
        if (ftell(metrics->csv) == 0)
            fprintf(metrics->csv, "%s%s\n", csv_header,
                    choices ? ",choices_acc,choices_acc_norm" : "");
    }
    if (config->log.tensorboard && tensorboard_open(&metrics->board, run_directory, step, error))
        return -1;
    if (config->log.metrics) {
        metrics->json = open_file(metrics, &metrics->json_descriptor, run_directory,
                                  "metrics.jsonl", json_start, step, error);
        if (!metrics->json) return -1;
    }
    return end_record(metrics, step, NULL, 0, error);
}

static void print_number(FILE *file, const char *key, double value, int digits) {
    if (isfinite(value)) fprintf(file, ", \"%s\": %.*g", key, digits, value);
    else fprintf(file, ", \"%s\": null", key);
}

static void print_json(FILE *file, const struct step_report *report, double step_ms,
                       double tokens_per_s, uint64_t memory_bytes) {
    fprintf(file, "%s%" PRId64 ", \"tokens\": %" PRId64, json_start, report->step, report->tokens);
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
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    fprintf(file, ", \"memory_bytes\": %" PRIu64 ", \"time\": %lld.%03ld}\n", memory_bytes,
            (long long)now.tv_sec, now.tv_nsec / 1000000);
}

static void print_csv(FILE *file, const struct step_report *report, double step_ms,
                      double tokens_per_s, uint64_t memory_bytes) {
    fprintf(file, "%" PRId64 ",%" PRId64 ",%.9g,%.9g,%.9g,%.9g,%d,%.6g,%.6g,%" PRIu64, report->step,
            report->tokens, (double)report->loss, report->lr, (double)report->gradient_norm,
            (double)report->loss_scale, report->skipped, step_ms, tokens_per_s, memory_bytes);
    if (report->fp8)
        fprintf(file, ",%" PRId32 ",%" PRId32 ",", report->fp8_not_finite, report->fp8_zero);
    else fputs(",,,", file);
}

int metrics_step(struct metrics *metrics, const struct step_report *report, double step_ms,
                 double tokens_per_s, uint64_t memory_bytes, struct error *error) {
    const struct scalar scalars[] = {
        {"train/loss", report->loss},
        {"train/lr", report->lr},
        {"train/grad_norm", report->gradient_norm},
        {"train/loss_scale", report->loss_scale},
        {"speed/step_ms", step_ms},
        {"speed/tokens_per_s", tokens_per_s},
        {"memory/peak_mib", (double)memory_bytes / 0x1p20},
    };
    if (metrics->json) print_json(metrics->json, report, step_ms, tokens_per_s, memory_bytes);
    if (metrics->csv) {
        print_csv(metrics->csv, report, step_ms, tokens_per_s, memory_bytes);
        fputs(metrics->csv_end, metrics->csv);
    }
    return end_record(metrics, report->step, scalars, sizeof scalars / sizeof *scalars, error);
}

int metrics_validation(struct metrics *metrics, int64_t step, double val_loss,
                       struct error *error) {
    metrics->last_validation = step;
    if (metrics->json) {
        fprintf(metrics->json, "%s%" PRId64, json_start, step);
        print_number(metrics->json, "val_loss", val_loss, 9);
        fputs("}\n", metrics->json);
    }
    if (metrics->csv)
        fprintf(metrics->csv, "%" PRId64 ",,,,,,,,,,,,%.9g%s", step, val_loss, metrics->csv_end);
    return end_record(metrics, step, &(struct scalar){"validation/loss", val_loss}, 1, error);
}

int metrics_accuracy(struct metrics *metrics, int64_t step, const struct accuracy *accuracy,
                     struct error *error) {
    const struct scalar scalars[] = {{"choices/acc", accuracy->acc},
                                     {"choices/acc_norm", accuracy->norm}};
    if (metrics->json) {
        fprintf(metrics->json, "%s%" PRId64, json_start, step);
        print_number(metrics->json, "choices_acc", accuracy->acc, 9);
        print_number(metrics->json, "choices_acc_norm", accuracy->norm, 9);
        fputs("}\n", metrics->json);
    }
    if (metrics->csv)
        fprintf(metrics->csv, "%" PRId64 ",,,,,,,,,,,,,%.9g,%.9g\n", step, accuracy->acc,
                accuracy->norm);
    return end_record(metrics, step, scalars, 2, error);
}

void metrics_close(struct metrics *metrics) {
    if (metrics->json) fclose(metrics->json); /* every line was flushed */
    if (metrics->csv) fclose(metrics->csv);
    tensorboard_close(&metrics->board);
    *metrics = (struct metrics){.last_validation = -1};
}
