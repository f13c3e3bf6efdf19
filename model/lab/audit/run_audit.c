#include "model/lab/audit/run_audit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "data/base/program.h"
#include "data/base/files.h"
#include "data/base/printed.h"
#include "data/base/signals.h"
#include "model/lab/audit/audit_8_bit.h"
#include "model/lab/audit/audit_print.h"
#include "model/run/report.h"

/* Says what is being done once it takes longer than people like to wait in silence. */
struct spoken_progress {
    struct audit_progress progress; /* first, so that it is found behind one */
    double last;
};

static void say(struct audit_progress *progress, const char *what) {
    enum { SILENCE_SECONDS = 4 };
    struct spoken_progress *spoken = (struct spoken_progress *)progress;
    double now = progress_clock();
    if (now - spoken->last < SILENCE_SECONDS) return;
    fprintf(stderr, "audit: %s ...\n", what);
    spoken->last = now;
}

/* What there would hardly be memory for. */
enum { REPETITIONS_MAX = 1000 };

/* It was named, or it is the config's precision and nothing was. */
static bool wants_fp8(const struct command_line *line, const struct config *config) {
    if (line->precision_count == 0) return config->precision == CONFIG_PRECISION_FP8;
    for (int i = 0; i < line->precision_count; i++)
        if (line->precisions[i] == CONFIG_PRECISION_FP8) return true;
    return false;
}

static int choose_formats(bool wanted[AUDIT_FORMATS], const struct command_line *line,
                          const struct config *config, struct error *error) {
    if (line->repetitions > REPETITIONS_MAX)
        return fail(error, "--repetitions: at most %d for --audit", REPETITIONS_MAX);
    for (int i = 0; i < AUDIT_FORMATS; i++) wanted[i] = line->precision_count == 0;
    for (int i = 0; i < line->precision_count; i++) {
        if (line->precisions[i] == CONFIG_PRECISION_BF16) wanted[AUDIT_BF16] = true;
        if (line->precisions[i] == CONFIG_PRECISION_FP16) wanted[AUDIT_FP16] = true;
    }
    if (wanted[AUDIT_BF16] || wanted[AUDIT_FP16] || wants_fp8(line, config)) return 0;
    return fail(error, "--audit --precision fp32: there is nothing to compare; fp32 is always the "
                       "reference,\nname bf16, fp16 or fp8, or leave --precision out");
}

/* What cannot be written to is said before the work, which takes long. */
static int make_folder(const char *folder, struct error *error) {
    if (directory_create(folder, error)) return -1;
    if (access(folder, W_OK | X_OK) == 0) return 0;
    return fail(error, "cannot write to the directory %.500s: %s\nname another one with --out",
                folder, strerror(errno));
}

/* Collects what is printed for the file `name` of the folder, whose path it sets. */
static int open_file(struct printed *printed, char path[FILE_PATH_MAX], const char *folder,
                     const char *name, struct error *error) {
    if (file_path_join(path, folder, name, error)) return -1;
    if (printed_open(printed) == 0) return 0;
    return fail(error, "out of memory while writing %.400s", path);
}

static int write_file(const char *folder, const char *name,
                      void (*print)(FILE *, const struct audit *, const struct advice *),
                      const struct audit *audit, const struct advice *advice, struct error *error) {
    char path[FILE_PATH_MAX];
    struct printed printed;
    if (open_file(&printed, path, folder, name, error)) return -1;
    print(printed.out, audit, advice);
    return printed_write(&printed, path, NULL, error);
}

static int write_8_bit(const char *folder, const char *name,
                       void (*print)(FILE *, const struct eight_bit_audit *),
                       const struct eight_bit_audit *audit, struct error *error) {
    char path[FILE_PATH_MAX];
    struct printed printed;
    if (open_file(&printed, path, folder, name, error)) return -1;
    print(printed.out, audit);
    return printed_write(&printed, path, NULL, error);
}

static int report(const struct audit *audit, const char *folder, struct error *error) {
    struct advice advice;
    advice_make(&advice, audit);
    audit_print_text(stdout, audit, &advice);
    int status = 0;
    if (folder && (write_file(folder, "audit.json", audit_print_json, audit, &advice, error) ||
                   write_file(folder, "audit.html", audit_print_html, audit, &advice, error)))
        status = -1;
    advice_free(&advice);
    return status;
}

int run_audit(const struct config *config, const char *from, const struct command_line *line,
              struct error *error) {
    bool wanted[AUDIT_FORMATS];
    struct audit audit;
    struct spoken_progress spoken = {{say}, progress_clock()};
    const volatile sig_atomic_t *stop = signals_catch();
    if (choose_formats(wanted, line, config, error)) return EXIT_USAGE;
    if (line->out && make_folder(line->out, error)) return EXIT_FAILED;
    int repetitions = line->repetitions > 0 ? (int)line->repetitions : SUBJECT_REPETITIONS;
    int status = 0;
    if (wanted[AUDIT_BF16] || wanted[AUDIT_FP16]) {
        status =
            audit_run(&audit, config, from, wanted, repetitions, stop, &spoken.progress, error);
        if (status == 0) status = report(&audit, line->out, error);
        audit_free(&audit);
    }
    if (status == 0 && wants_fp8(line, config)) {
        struct eight_bit_audit fp8;
        status = eight_bit_audit_run(&fp8, config, from, repetitions, stop, error);
        if (status == 0) eight_bit_audit_print(stdout, &fp8);
        if (status == 0 && line->out &&
            (write_8_bit(line->out, "audit_fp8.json", eight_bit_audit_print_json, &fp8, error) ||
             write_8_bit(line->out, "audit_fp8.html", eight_bit_audit_print_html, &fp8, error)))
            status = -1;
    }
    if (status == RESULT_STOPPED) {
        fprintf(stderr, "stopped by %s\n", signal_text(*stop));
        return EXIT_SIGNAL + *stop;
    }
    return status ? EXIT_FAILED : EXIT_DONE;
}
