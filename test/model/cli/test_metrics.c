/* metrics.jsonl: exact lines, truncation at a resume, and a full disk. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "data/util/random.h"
#include "model/cli/metrics.h"
#include "test/scratch.h"

static char path[100];
static const struct config config = {.log = {.metrics = true}};

static void set_up(void) {
    make_folder();
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
}

TestSuite(metrics, .init = set_up, .fini = remove_folder);

static struct metrics begin(int64_t step) {
    struct metrics metrics;
    cr_assert_eq(metrics_open(&metrics, folder, &config, step, &error), 0, "%s", error.text);
    return metrics;
}

static void end(struct metrics *metrics) {
    metrics_close(metrics);
    cr_expect_null(metrics->file);
}

static struct step_report report_of(int64_t step) {
    return (struct step_report){.step = step,
                                .tokens = step * 64,
                                .loss = 5.25f,
                                .gradient_norm = 0.75f,
                                .loss_scale = 1024,
                                .lr = 0.001,
                                .skipped = step % 2};
}

static void put_step(struct metrics *metrics, int64_t step) {
    struct step_report report = report_of(step);
    cr_assert_eq(metrics_step(metrics, &report, 12.5, 5120, 1 << 20, &error), 0, "%s", error.text);
}

static void put_validation(struct metrics *metrics, int64_t step) {
    cr_assert_eq(metrics_validation(metrics, step, 2.5, NULL, &error), 0, "%s", error.text);
}

static char *content(void) {
    char *text;
    size_t size;
    cr_assert_eq(file_read_all(&text, &size, path, 1 << 20, &error), 0, "%s", error.text);
    cr_assert_eq(strlen(text), size, "a NUL in the file");
    return text;
}

/* Removes the times at the ends of lines, which must be those of now. */
static void remove_times(char *text) {
    static const char key[] = ", \"time\": ";
    for (char *at; (at = strstr(text, key));) {
        char *end;
        double passed = (double)time(NULL) - strtod(at + strlen(key), &end);
        cr_expect(passed > -2 && passed < 60, "written %g s ago", passed);
        cr_expect_eq(*end, '}');
        memmove(at, end, strlen(end) + 1);
    }
}

static void expect_content(const char *expected) {
    char *text = content();
    remove_times(text);
    cr_expect_str_eq(text, expected);
    free(text);
}

static void set_content(const char *text) {
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    fputs(text, file);
    cr_assert_eq(fclose(file), 0);
}

#define LINE(step, tokens, skipped)                                                              \
    "{\"step\": " step ", \"tokens\": " tokens ", \"loss\": 5.25, \"lr\": 0.001, \"grad_norm\":" \
    " 0.75, \"loss_scale\": 1024, \"skipped\": " skipped ", \"step_ms\": 12.5, "                 \
    "\"tokens_per_s\": 5120, \"memory_bytes\": 1048576}\n"
#define LINE_1       LINE("1", "64", "true")
#define LINE_2       LINE("2", "128", "false")
#define LINE_3       LINE("3", "192", "true")
#define VALIDATION_2 "{\"step\": 2, \"val_loss\": 2.5}\n"
#define VALIDATION_3 "{\"step\": 3, \"val_loss\": 2.5}\n"

static void write_three(void) {
    struct metrics metrics = begin(0);
    put_step(&metrics, 1);
    put_step(&metrics, 2);
    put_validation(&metrics, 2);
    put_step(&metrics, 3);
    put_validation(&metrics, 3);
    end(&metrics);
}

#define THREE LINE_1 LINE_2 VALIDATION_2 LINE_3 VALIDATION_3

Test(metrics, lines) {
    write_three();
    expect_content(THREE);
}

Test(metrics, a_line_is_on_disk_when_the_call_returns) {
    struct metrics metrics = begin(0);
    put_step(&metrics, 1);
    expect_content(LINE_1);
    put_validation(&metrics, 3);
    expect_content(LINE_1 VALIDATION_3);
    end(&metrics);
}

Test(metrics, step_0_starts_an_empty_file) {
    write_three();
    struct metrics metrics = begin(0);
    end(&metrics);
    expect_content("");
}

Test(metrics, resume_removes_later_steps) {
    static const char *const kept[] = {NULL,  LINE_1, LINE_1 LINE_2 VALIDATION_2,
                                       THREE, THREE,  THREE};
    for (int64_t step = 1; step < 6; step++) {
        write_three();
        struct metrics metrics = begin(step);
        end(&metrics);
        expect_content(kept[step]);
    }
}

Test(metrics, resume_removes_a_partial_line) {
    char *text = strdup(THREE);
    size_t kept = strlen(LINE_1 LINE_2);
    for (size_t length = kept; length < kept + strlen(VALIDATION_2); length++) {
        char *half = strndup(text, length);
        set_content(half);
        free(half);
        struct metrics metrics = begin(3);
        put_step(&metrics, 3);
        end(&metrics);
        expect_content(LINE_1 LINE_2 LINE_3);
    }
    free(text);
}

Test(metrics, resume_removes_unknown_lines) {
    static const char *const strange[] = {"\n", "hello\n", "{\"loss\": 3}\n", "{\"step\": }\n",
                                          "[]\n"};
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
        char text[2000];
        snprintf(text, sizeof text, "%s%s%s", LINE_1, strange[i], LINE_2);
        set_content(text);
        struct metrics metrics = begin(2);
        end(&metrics);
        expect_content(LINE_1);
    }
}

Test(metrics, non_finite_values_are_null) {
    struct metrics metrics = begin(0);
    struct step_report report = report_of(2);
    report.loss = NAN;
    report.gradient_norm = INFINITY;
    report.loss_scale = -INFINITY;
    report.lr = (double)NAN;
    cr_expect_eq(metrics_step(&metrics, &report, (double)INFINITY, (double)NAN, 5, &error), 0);
    cr_expect_eq(metrics_validation(&metrics, 2, (double)-INFINITY, NULL, &error), 0);
    end(&metrics);
    expect_content("{\"step\": 2, \"tokens\": 128, \"loss\": null, \"lr\": null, \"grad_norm\": "
                   "null, \"loss_scale\": null, \"skipped\": false, \"step_ms\": null, "
                   "\"tokens_per_s\": null, \"memory_bytes\": 5}\n"
                   "{\"step\": 2, \"val_loss\": null}\n");
}

static float random_float(uint64_t stream, uint64_t counter) {
    for (uint64_t try = 0;; try++) {
        uint32_t bits = (uint32_t)random_bits(stream, try, counter);
        float value;
        memcpy(&value, &bits, sizeof value);
        if (isfinite(value)) return value;
    }
}

static double number(const cJSON *line, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(line, key);
    cr_assert(cJSON_IsNumber(item), "%s is no number", key);
    return item->valuedouble;
}

Test(metrics, digits_tell_any_two_floats_apart) {
    for (uint64_t i = 0; i < 300; i++) {
        struct metrics metrics = begin(0);
        struct step_report report = report_of(2);
        report.step = INT64_C(1) << 52;
        report.tokens = (INT64_C(1) << 53) - 1;
        report.loss = random_float(1, i);
        report.gradient_norm = random_float(2, i);
        report.loss_scale = ldexpf(1, (int)(i % 48) - 16);
        cr_assert_eq(metrics_step(&metrics, &report, 1e9, 1e-9, UINT64_MAX >> 12, &error), 0);
        end(&metrics);
        char *text = content();
        cJSON *line = cJSON_Parse(text);
        cr_assert_not_null(line, "not JSON: %s", text);
        cr_expect_eq((float)number(line, "loss"), report.loss);
        cr_expect_eq((float)number(line, "grad_norm"), report.gradient_norm);
        cr_expect_eq((float)number(line, "loss_scale"), report.loss_scale);
        cr_expect_eq(number(line, "step"), (double)report.step);
        cr_expect_eq(number(line, "tokens"), (double)report.tokens);
        cJSON_Delete(line);
        free(text);
    }
}

Test(metrics, switched_off_writes_nothing) {
    struct metrics metrics = {0};
    struct step_report report = report_of(1);
    cr_expect_eq(metrics_step(&metrics, &report, 1, 1, 1, &error), 0);
    cr_expect_eq(metrics_validation(&metrics, 1, 1, NULL, &error), 0);
    metrics_close(&metrics);
    cr_expect_neq(access(path, F_OK), 0);
}

static void expect_remedy(const char *reason) {
    cr_expect_not_null(strstr(error.text, "metrics.jsonl"), "%s", error.text);
    cr_expect_not_null(strstr(error.text, reason), "%s", error.text);
    cr_expect_not_null(strstr(error.text, "log.metrics"), "%s", error.text);
}

Test(metrics, a_link_is_not_written_through) {
    struct metrics metrics;
    FILE *file = fopen(in_folder("other"), "w");
    fputs("kept", file);
    cr_assert_eq(fclose(file), 0);
    cr_assert_eq(symlink("other", path), 0);
    for (int64_t step = 0; step < 2; step++) {
        cr_expect_eq(metrics_open(&metrics, folder, &config, step, &error), -1);
        cr_expect_not_null(strstr(error.text, "a symbolic link"), "%s", error.text);
    }
    struct stat status;
    cr_expect(stat(in_folder("other"), &status) == 0 && status.st_size == 4);
}

Test(metrics, full_disk) {
    struct metrics metrics = begin(0);
    int full = open("/dev/full", O_WRONLY);
    cr_assert(full >= 0 && dup2(full, metrics.descriptor) >= 0);
    close(full);
    struct step_report report = report_of(1);
    cr_expect_eq(metrics_step(&metrics, &report, 1, 1, 1, &error), -1);
    expect_remedy("No space left");
    error.text[0] = 0;
    cr_expect_eq(metrics_validation(&metrics, 1, 1, NULL, &error), -1);
    expect_remedy("No space left");
    metrics_close(&metrics);
}

/* Lets the line of step 2 fail after 20 bytes, with room for it afterwards. */
static struct metrics begin_with_partial_line(void) {
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {strlen(LINE_1) + 20, RLIM_INFINITY};
    struct metrics metrics = begin(0);
    put_step(&metrics, 1);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    struct step_report report = report_of(2);
    cr_expect_eq(metrics_step(&metrics, &report, 12.5, 5120, 1 << 20, &error), -1);
    expect_remedy("File too large");
    limit.rlim_cur = RLIM_INFINITY;
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    return metrics;
}

/* The partial line that still fitted is removed when the run resumes. */
Test(metrics, file_size_limit) {
    struct metrics metrics = begin_with_partial_line();
    metrics_close(&metrics);
    metrics = begin(1);
    put_step(&metrics, 2);
    end(&metrics);
    expect_content(LINE_1 LINE_2);
}

/* A line that failed is written once more, whole, when there is space again. */
Test(metrics, repaired_after_a_failure) {
    struct metrics metrics = begin_with_partial_line();
    metrics_repair(&metrics);
    put_step(&metrics, 2);
    end(&metrics);
    expect_content(LINE_1 LINE_2);
}

Test(metrics, no_directory) {
    struct metrics metrics;
    const char *missing = in_folder("none");
    for (int64_t step = 0; step < 2; step++) {
        cr_expect_eq(metrics_open(&metrics, missing, &config, step, &error), -1);
        cr_expect_not_null(strstr(error.text, missing), "%s", error.text);
    }
}
