#include "model/cli/metrics_csv.h"

#include <inttypes.h>
#include <string.h>

#include "model/cli/metrics.h"

static const char name[] = "metrics.csv";
static const char header[] = "step,tokens,loss,lr,grad_norm,loss_scale,skipped,step_ms,"
                             "tokens_per_s,memory_bytes,fp8_not_finite,fp8_zero,val_loss\n";

static bool keep_row(const char *row, int64_t step, void *context) {
    int64_t found;
    (void)context;
    return strcmp(row, header) == 0 || (sscanf(row, "%" SCNd64 ",", &found) == 1 && found <= step);
}

static int finish_row(const struct metrics_csv *csv, struct error *error) {
    return metrics_flush(csv->file, name, "log.csv", error);
}

int metrics_csv_open(struct metrics_csv *csv, const char *run_directory, int64_t step,
                     struct error *error) {
    csv->file = metrics_open_file(run_directory, name, step, keep_row, NULL, error);
    if (!csv->file) return -1;
    if (ftell(csv->file) == 0) fputs(header, csv->file);
    return finish_row(csv, error);
}

void metrics_csv_close(struct metrics_csv *csv) {
    if (csv->file) fclose(csv->file); /* every row was flushed */
    csv->file = NULL;
}

int metrics_csv_step(struct metrics_csv *csv, const struct step_report *report, double step_ms,
                     double tokens_per_s, uint64_t memory_bytes, struct error *error) {
    if (!csv->file) return 0;
    fprintf(csv->file, "%" PRId64 ",%" PRId64 ",%.9g,%.9g,%.9g,%.9g,%d,%.6g,%.6g,%" PRIu64,
            report->step, report->tokens, (double)report->loss, report->lr,
            (double)report->gradient_norm, (double)report->loss_scale, report->skipped, step_ms,
            tokens_per_s, memory_bytes);
    if (report->fp8)
        fprintf(csv->file, ",%" PRId32 ",%" PRId32 ",\n", report->fp8_not_finite, report->fp8_zero);
    else fputs(",,,\n", csv->file);
    return finish_row(csv, error);
}

int metrics_csv_validation(struct metrics_csv *csv, int64_t step, double val_loss,
                           struct error *error) {
    if (!csv->file) return 0;
    fprintf(csv->file, "%" PRId64 ",,,,,,,,,,,,%.9g\n", step, val_loss);
    return finish_row(csv, error);
}
