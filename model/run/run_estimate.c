#include "model/run/run_estimate.h"

#include "data/base/program.h"
#include "model/lab/ranks/rank_text.h"
#include "model/precision.h"
#include "model/run/run_setup.h"

int run_estimate(const struct config *config, const struct command_line *line,
                 struct error *error) {
    char note[PRECISION_NOTE_MAX];
    struct precision precision;
    struct config resolved = *config;
    struct backend be;
    if (setup_backend(&be, config, NULL, NULL, error)) return EXIT_FAILED;
    int status = precision_resolve(&precision, note, config, &be, error);
    if (status == 0) {
        struct rank_question question = {
            .config = &resolved,
            .be = &be,
            .ranks = (int)line->ranks,
            .flops = line->tflops > 0 ? 1e12 * line->tflops : 0,
            .link = line->link_gbs > 0 ? 1e9 * line->link_gbs : 0,
        };
        resolved.precision = precision_setting(&precision, config);
        status = rank_print(stdout, &question, error);
    }
    backend_close(&be);
    return status ? EXIT_FAILED : EXIT_DONE;
}
