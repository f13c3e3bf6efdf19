/* main() of ./compare: compares runs with a reference run and judges the differences. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/error.h"
#include "data/util/note.h"
#include "data/util/program.h"
#include "data/util/files.h"
#include "data/util/program_names.h"
#include "data/util/table.h"
#include "model/lab/compare/comparison_report.h"

struct options {
    const char **paths; /* stb_ds array of run directories */
    char **labels;      /* stb_ds array, one per path; NULL: no label given */
    const char *out;
    struct comparison_options report;
    bool help;
};

enum flag {
    FLAG_OUT,
    FLAG_REFERENCE,
    FLAG_LIMIT_LOSS,
    FLAG_LIMIT_CURVE,
    FLAG_LIMIT_NORM,
    FLAG_LIMIT_CORRELATION,
    FLAG_LIMIT_SKIPPED,
    FLAG_PARTIAL,
    FLAG_MADE_BY,
    FLAG_HELP,
    FLAGS
};

static const struct flag_row flags[FLAGS] = {
    [FLAG_OUT] = {"--out", "DIR", "write report.json there, for scripts/report.py"},
    [FLAG_REFERENCE] = {"--reference", "LABEL", "what to measure against; default the first run"},
    [FLAG_LIMIT_LOSS] = {"--limit-loss", "PERCENT",
                         "final losses; default 0.5; 8 bits 2 x, 4 bits 4 x"},
    [FLAG_LIMIT_CURVE] = {"--limit-curve", "PERCENT", "smoothed training loss; default 2"},
    [FLAG_LIMIT_NORM] = {"--limit-norm", "PERCENT", "median ratio of gradient norms; default 5"},
    [FLAG_LIMIT_CORRELATION] = {"--limit-correlation", "R",
                                "of smoothed gradient norms; default 0.9"},
    [FLAG_LIMIT_SKIPPED] = {"--limit-skipped", "PERCENT",
                            "skipped steps after the first 20; default 1"},
    [FLAG_PARTIAL] = {"--partial", NULL, "runs that have not finished pass too"},
    [FLAG_MADE_BY] = {"--made-by", "TEXT", "the command that made the runs, for the report"},
    [FLAG_HELP] = {"--help", NULL, "this text"},
};

static void print_help(void) {
    help_print(stdout,
               "./compare RUN RUN ... [--out DIR]: how runs differ from the first of them\n\n"
               "  RUN is a run directory, such as runs/NAME, or LABEL=DIRECTORY. Runs that\n"
               "  differ only in seed are grouped to estimate noise. Runs with another optimizer\n"
               "  or learning rate are ranked by loss, without limits of loss and norms.\n\n"
               "  ./compare runs/fp32 runs/bf16 --out runs/report\n"
               "  ./compare before=runs/a after=runs/b\n\n");
    flags_print(stdout, flags, FLAGS, 30);
    printf("\nExit status: 0 all pass, 1 some do not, or trouble, 2 wrong usage.\n");
}

/* ---- the command line */

static int read_limit(double *limit, double lowest, const char *name, const char *text,
                      struct error *error) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value) || value < lowest)
        return fail(error, "%s: \"%s\" is not a number from %g up", name, text, lowest);
    *limit = value;
    return 0;
}

static int take_flag(struct options *options, enum flag flag, const char *value,
                     struct error *error) {
    struct limits *limits = &options->report.limits;
    double *const numbers[FLAGS] = {
        [FLAG_LIMIT_LOSS] = &limits->loss,       [FLAG_LIMIT_CURVE] = &limits->curve,
        [FLAG_LIMIT_NORM] = &limits->norm,       [FLAG_LIMIT_CORRELATION] = &limits->correlation,
        [FLAG_LIMIT_SKIPPED] = &limits->skipped,
    };
    if (numbers[flag])
        return read_limit(numbers[flag], flag == FLAG_LIMIT_CORRELATION ? -1 : 0, flags[flag].name,
                          value, error);
    if (flag == FLAG_OUT) options->out = value;
    if (flag == FLAG_REFERENCE) options->report.reference = value;
    if (flag == FLAG_MADE_BY) options->report.made_by = value;
    limits->partial |= flag == FLAG_PARTIAL;
    options->help |= flag == FLAG_HELP;
    return 0;
}

/* Returns the '=' after the label, or NULL for a directory without a label. Label and directory may
 * both contain more '='. */
static const char *label_end(const char *argument) {
    const char *first = strchr(argument, '='), *at = first;
    if (file_exists(argument)) return NULL;
    while (at && !file_exists(at + 1)) at = strchr(at + 1, '=');
    return at ? at : first;
}

static int add_run(struct options *options, const char *argument, struct error *error) {
    const char *equals = label_end(argument);
    char *label = NULL;
    if (equals) {
        if (equals == argument) return fail(error, "%s: the label is empty", argument);
        label = strndup(argument, (size_t)(equals - argument));
        if (!label) return fail_memory(error, "the label of a run");
        argument = equals + 1;
    }
    arrput(options->paths, argument);
    arrput(options->labels, label);
    return 0;
}

static int parse(struct options *options, int argc, char **argv, struct error *error) {
    for (int i = 1; i < argc; i++) {
        char *value;
        if (strncmp(argv[i], "--", 2) != 0 && strcmp(argv[i], "-h") != 0) {
            if (add_run(options, argv[i], error)) return -1;
            continue;
        }
        int flag = flags_read(flags, FLAGS, argc, argv, &i, &value, error);
        if (flag == FLAG_WRONG) return -1;
        if (flag == FLAG_UNKNOWN) return flags_refuse(flags, FLAGS, argv[i], error);
        if (take_flag(options, (enum flag)flag, value, error)) return -1;
    }
    if (!options->help && arrlen(options->paths) < 2)
        return fail(error, "give two runs or more, such as runs/fp32 runs/bf16; see --help");
    return 0;
}

/* ---- the report */

static int compare(const struct run_record *runs, const struct options *options,
                   struct error *error) {
    int count = (int)arrlen(options->paths), status = EXIT_FAILED;
    cJSON *report = comparison_report(runs, options->labels, count, &options->report, error);
    if (report && report_publish(comparison_print, report, options->out, "report", error) == 0) {
        status = cJSON_IsTrue(json_at(report, "pass")) ? EXIT_DONE : EXIT_FAILED;
        if (options->out) printf("\nwritten: %s/report.json\n", options->out);
    }
    cJSON_Delete(report);
    return status;
}

static int read_and_compare(const struct options *options, struct error *error) {
    struct run_record *runs = NULL;
    int status = EXIT_DONE;
    /* Fail before the comparison if the output directory cannot be created. */
    if (options->out && report_folder(options->out, error)) return EXIT_FAILED;
    for (int i = 0; i < arrlen(options->paths) && status == EXIT_DONE; i++) {
        struct run_record run;
        if (run_record_read(&run, options->paths[i], error)) status = EXIT_FAILED;
        else arrput(runs, run);
    }
    if (status == EXIT_DONE) status = compare(runs, options, error);
    for (int i = 0; i < arrlen(runs); i++) run_record_close(&runs[i]);
    arrfree(runs);
    return status;
}

int main(int argc, char **argv) {
    struct options options = {.report = {.limits = LIMITS_DEFAULT}};
    struct error error = {0};
    signal(SIGXFSZ, SIG_IGN); /* a write beyond the file size limit returns an error instead */
    int status = EXIT_USAGE;
    if (parse(&options, argc, argv, &error) == 0) {
        status = EXIT_DONE;
        if (options.help) print_help();
        else status = read_and_compare(&options, &error);
    }
    if ((fflush(stdout) || ferror(stdout)) && status == EXIT_DONE) {
        fail(&error, "standard output could not be written in full");
        status = EXIT_FAILED;
    }
    if (error.text[0]) note_error(stderr, "compare", &error);
    for (int i = 0; i < arrlen(options.labels); i++) free(options.labels[i]);
    arrfree(options.labels);
    arrfree(options.paths);
    return status;
}
