#include "model/cli/validation.h"

#include <inttypes.h>
#include <math.h>

#include "model/io/checkpoint.h"

bool validation_record(struct best_validation *best, int64_t step, double loss) {
    bool lowest = isfinite(loss) && (best->step == 0 || loss < best->loss);
    if (lowest) *best = (struct best_validation){.loss = loss, .step = step};
    else best->since++;
    best->last = step;
    return lowest;
}

bool validation_stops_early(const struct config *config, const struct best_validation *best) {
    return config->train.patience > 0 && best->since >= config->train.patience;
}

void validation_report(FILE *out, const struct config *config, const struct best_validation *best,
                       const char *run_directory) {
    char path[FILE_PATH_MAX];
    if (best->step == 0 || !(config->checkpoint.keep_best || config->train.patience > 0)) return;
    fprintf(out, "lowest validation loss: %.4f at step %" PRId64, best->loss, best->step);
    if (config->checkpoint.keep_best && checkpoint_directory_find(path, run_directory, best->step))
        fprintf(out, ", in %s", path);
    fputc('\n', out);
}
