/* Console output of a run, on a pipe and on terminals of several widths. */
#include "model/config/config_keys.h"
#include "test/model/trainer_fixture.h"

#include <pty.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "model/cli/report.h"
#include "test/match.h"

enum { SCREEN_MAX = 1 << 16 };

/* A pipe or terminal to print to, and the text read from it. */
static struct {
    FILE *out;
    int reader;
    char text[SCREEN_MAX];
} screen;

static void open_terminal(int columns) {
    struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    struct termios raw = {0};
    int slave;
    setenv("TERM", "xterm", 1);
    cfmakeraw(&raw);
    if (openpty(&screen.reader, &slave, NULL, &raw, &size))
        cr_skip_test("no pseudo terminal here: is /dev/pts mounted?");
    screen.out = fdopen(slave, "w");
}

static void open_pipe(void) {
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    screen.reader = ends[0];
    screen.out = fdopen(ends[1], "w");
}

/* Closes the output and collects its text. */
static const char *finish(void) {
    size_t length = 0;
    ssize_t got;
    fclose(screen.out);
    while ((got = read(screen.reader, screen.text + length, SCREEN_MAX - 1 - length)) > 0)
        length += (size_t)got; /* a terminal ends with EIO, a pipe with 0 */
    screen.text[length] = 0;
    close(screen.reader);
    return screen.text;
}

static struct rig rig;
static struct report report;

static void set_up(void) {
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
}

static void tear_down(void) {
    if (rig.be.functions) rig_close(&rig); /* a test may open no backend */
}

TestSuite(report, .init = set_up, .fini = tear_down);

/* A planned trainer without allocated memory, which suffices for a banner. */
static void open_plan(void) {
    rig_open_data(&rig);
    rig_open_backend(&rig, test_device(), 1);
    cr_assert_eq(trainer_open(&rig.trainer, &rig.config, &rig.precision, &rig.be, TRAINER_PLANNED,
                              &rig.error),
                 0, "%s", rig.error.text);
}

/* Begins with another rig in the same test. */
static void begin_again(enum config_precision precision) {
    tear_down();
    rig = (struct rig){0};
    rig_config(&rig.config, precision);
}

static void open_report(void) {
    report_open(&report, screen.out, &rig.trainer, progress_clock(), 0);
}

static void print_to_pipe(void) {
    open_plan();
    open_pipe();
    open_report();
}

static void print_to_terminal(int columns) {
    open_plan();
    open_terminal(columns);
    open_report();
}

static struct step_report report_of(int64_t step) {
    return (struct step_report){.step = step,
                                .tokens = step * 128,
                                .loss = 3.14159f,
                                .gradient_norm = 0.987654f,
                                .loss_scale = 65536,
                                .lr = 1.25e-3};
}

static void show_step(int64_t step) {
    struct step_report now = report_of(step);
    report_step(&report, &now, 12.345, 12345.6);
}

/* The longest piece between line breaks and carriage returns, in columns, without the code that
 * clears the rest of a line. */
static int widest(const char *text) {
    int columns = 0, most = 0;
    for (; *text; text++) {
        if (strncmp(text, "\033[K", 3) == 0) {
            text += 2;
            continue;
        }
        columns = *text == '\r' || *text == '\n' ? 0 : columns + 1;
        most = columns > most ? columns : most;
    }
    return most;
}

/* Returns the last state of the bar. */
static const char *last_drawn(const char *text) {
    const char *at = strrchr(text, '\r');
    cr_assert_not_null(at, "no bar in: %s", text);
    return at + 1;
}

Test(report, lines_on_a_pipe) {
    print_to_pipe();
    cr_expect_not(report.terminal);
    for (int step = 1; step <= 20; step++) show_step(step);
    const char *text = finish();
    int lines = 0;
    for (const char *at = text; *at; at++) lines += *at == '\n';
    cr_expect_eq(lines, 20);
    expect_match(text, "^step   1/20 \\| loss 3\\.1416 \\| lr 1\\.25e-03 \\| norm 0\\.988 \\| "
                       "12\\.3 k tok/s \\| 12\\.3 ms\n");
    expect_match(text, "\nstep  20/20 \\| [^\n]*\n$");
    cr_expect_null(strpbrk(text, "\r\033"), "a bar on a pipe: %s", text);
    cr_expect_leq(widest(text), 80);
    cr_expect_null(strstr(text, "scale"));
}

/* Lines of long runs, with all that a line can say, and slow or diverging steps. */
Test(report, lines_fit_in_80_columns) {
    static const int64_t steps[] = {20, 1320, 9999, 12345, 1000000};
    rig_config(&rig.config, CONFIG_PRECISION_FP16);
    open_plan();
    for (int i = 0; i < 5 * 8; i++) {
        struct step_report now = report_of(steps[i / 8] - 1);
        rig.config.train.steps = steps[i / 8];
        rig.config.log.every = 1;
        open_pipe();
        open_report();
        report.scale_loss = i & 1;
        now.skipped = i & 2;
        if (i & 4) now.loss = 1234.5f, now.gradient_norm = 3e30f;
        report_step(&report, &now, i & 4 ? 123456.7 : 40.5, i & 4 ? 1 : 25300);
        const char *text = finish();
        cr_expect_leq(widest(text), 80, "%s", text);
        expect_match(text, "^step +[0-9]+/[0-9]+ \\| loss [0-9.]+ .*\\| norm [0-9.e+]+");
        cr_expect_eq(strstr(text, "scale 2^16") != NULL, i & 1, "%s", text);
        cr_expect_eq(strstr(text, "skipped") != NULL, (i & 2) > 0, "%s", text);
    }
}

/* Returns how many lines a run of so many steps prints by default. */
static int64_t lines_of(int64_t steps) {
    rig.config.train.steps = steps;
    open_pipe();
    open_report();
    finish();
    return (steps + report.every - 1) / report.every;
}

Test(report, about_60_lines_by_default) {
    rig.config.log.every = 0;
    open_plan();
    for (int64_t steps = 1; steps <= 60; steps++) cr_expect_eq(lines_of(steps), steps);
    for (int64_t steps = 61; steps < 2000000; steps += 1 + steps / 7) {
        int64_t lines = lines_of(steps);
        cr_expect(lines >= 24 && lines <= 60, "%d of %d", (int)lines, (int)steps);
    }
    open_pipe();
    open_report();
    show_step(1);
    expect_match(finish(), "^step +1/[^\n]*\n$");
    cr_expect_eq(lines_of(600), 60);
    cr_expect_eq(report.every, 10);
}

Test(report, every_so_many_steps_and_the_last) {
    rig.config.log.every = 7;
    print_to_pipe();
    for (int step = 1; step <= 20; step++) show_step(step);
    expect_match(finish(), "^step   7[^\n]*\nstep  14[^\n]*\nstep  20[^\n]*\n$");
}

Test(report, loss_scale_and_skips) {
    struct step_report skipped = report_of(2);
    skipped.skipped = true;
    skipped.gradient_norm = INFINITY;
    skipped.loss = -NAN;
    rig_config(&rig.config, CONFIG_PRECISION_FP16);
    print_to_pipe();
    show_step(1);
    report_step(&report, &skipped, 1, 1);
    report.scale_loss = false;
    report_step(&report, &skipped, 1, 1);
    expect_match(finish(), "^[^\n]*\\| scale 2\\^16 \\| 12\\.3 k tok/s[^\n]*\n"
                           "[^\n]*loss nan [^\n]*norm inf \\| scale 2\\^16 \\| skipped "
                           "[^\n]*\n[^\n]*norm inf \\| skipped \\|[^\n]*\n$");
}

Test(report, validation_and_the_floor) {
    print_to_pipe();
    report_validation(&report, 5, 1.5, NULL);
    report.floor = 0.9;
    report_validation(&report, 10, 1.5, NULL);
    report_validation(&report, 15, -(double)NAN, NULL);
    expect_match(finish(), "^step 5: validation loss 1\\.5000\n"
                           "step 10: validation loss 1\\.5000, 0\\.6000 above the floor "
                           "0\\.9000\nstep 15: validation loss nan\n$");
}

Test(report, a_dumb_terminal_is_a_pipe) {
    open_plan();
    open_terminal(80);
    setenv("TERM", "dumb", 1);
    open_report();
    cr_expect_not(report.terminal);
    unsetenv("TERM");
    open_report();
    cr_expect_not(report.terminal);
    setenv("TERM", "xterm", 1);
    open_report();
    cr_expect(report.terminal);
    finish();
}

/* Draws every step of a run and checks that no state of the bar reaches the last column, where
 * terminals break lines. */
static void check_bar(enum config_precision precision, int columns, int64_t steps) {
    begin_again(precision);
    rig.config.train.steps = steps;
    rig.config.log.every = 2 * steps;
    print_to_terminal(columns);
    cr_assert(report.terminal);
    for (int64_t step = 1; step <= 5; step++) {
        struct step_report now = report_of(steps / 6 * step + 1);
        now.skipped = step == 3;
        now.gradient_norm = step == 4 ? 12345.678f : 0.1f;
        report.started -= 1e4;
        report_step(&report, &now, 1, 123456);
    }
    const char *text = finish();
    cr_expect_lt(widest(text), columns, "%s, %d columns: %s", config_precision_name(precision),
                 columns, text);
    cr_expect_null(strchr(text, '\n'), "the bar is not redrawn in place");
    if (columns >= 40) expect_match(last_drawn(text), "[0-9]+/[0-9]+ \\| loss [0-9.]+ \\|");
    if (columns >= 80 && steps < 1000)
        expect_match(last_drawn(text), " tok/s \\| [0-9dhms ]+ left\033\\[K$");
    if (columns >= 120) expect_match(last_drawn(text), "^##+-+ ");
}

Test(report, bar_fits_in_40_80_and_200_columns) {
    static const int columns[] = {20, 21, 40, 60, 79, 80, 81, 100, 120, 200, 500};
    for (size_t i = 0; i < COUNT(columns); i++)
        for (size_t p = 0; p < COUNT(rig_precisions); p += 2) {
            check_bar(rig_precisions[p], columns[i], 600);
            check_bar(rig_precisions[p], columns[i], 600000);
        }
}

/* The terminal of a batch job may report 0 columns: the bar must not divide by them or wrap. */
Test(report, bar_without_a_width) {
    print_to_terminal(0);
    show_step(1);
    cr_expect_lt(widest(finish()), 80);
}

static void check_eta(int64_t first, int64_t step, int64_t steps, double seconds,
                      const char *expected) {
    rig.config.train.steps = steps;
    rig.trainer.state.step = first;
    open_terminal(200);
    open_report();
    report.started -= seconds;
    show_step(step);
    expect_match(last_drawn(finish()), expected);
}

Test(report, time_left) {
    open_plan();
    check_eta(0, 10, 20, 100, "\\| 1m 40s left");
    check_eta(0, 1, 601, 1, "\\| 10m 0[0-9]s left"); /* 600 times the time since */
    check_eta(0, 1, 3601, 1.01, "\\| 1h 00m left");
    check_eta(0, 10, 20, 5, "\\| 5s left");
    check_eta(0, 1, 1000001, 1.01, "\\| 11d 1[67]h left");
    /* After a resume only the steps of this process count. */
    check_eta(500, 510, 520, 100, "\\| 1m 40s left");
    rig.config.train.minutes = 1.5; /* counted from now, since these runs began earlier */
    check_eta(0, 10, 20, 100, "\\| 1m 30s left");
    check_eta(0, 10, 20, 5, "\\| 5s left");
}

Test(report, lines_scroll_above_the_bar) {
    rig.config.log.every = 2;
    print_to_terminal(80);
    for (int step = 1; step <= 3; step++) show_step(step);
    show_step(20);
    expect_match(finish(),
                 "^\r[#-]* 1/20 [^\n]*left\033\\[K\r\033\\[Kstep   2/20 \\| loss 3\\.1416 \\| lr "
                 "1\\.25e-03 \\| [^\n]* ms\n\r[#-]* 2/20 [^\n]*\r[#-]* 3/20 [^\n]*"
                 "\r\033\\[Kstep  20/20 [^\n]*\n$");
}

/* Output between two steps takes the place of the bar. */
Test(report, pause_erases_the_bar) {
    rig.config.log.every = 100;
    print_to_terminal(80);
    report_pause(&report);
    show_step(1);
    report_pause(&report);
    report_pause(&report);
    show_step(2);
    report_validation(&report, 2, 1.5, NULL);
    show_step(20);
    expect_match(finish(), "^\r[#-]* 1/20 [^\n]*left\033\\[K\r\033\\[K\r[#-]* 2/20 [^\n]*left"
                           "\033\\[K\r\033\\[Kstep 2: validation loss 1\\.5000\n"
                           "step  20/20 [^\n]*\n$");
}

static const char *banner(double floor) {
    open_pipe();
    report_open(&report, screen.out, &rig.trainer, progress_clock(), floor);
    report_banner(&report, &rig.trainer, &rig.loader, &rig.loader, "runs/rig");
    return finish();
}

/* CPU names as the kernel writes them in /proc/cpuinfo. */
static const char *const processors[] = {
    "AMD EPYC", "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz",
    "AMD Ryzen Threadripper PRO 7995WX 96-Cores", "13th Gen Intel(R) Core(TM) i9-13900KF"};

Test(report, banner_fits_in_80_columns) {
    for (int i = 0; i < 8; i++) {
        begin_again(i & 1 ? CONFIG_PRECISION_FP16 : CONFIG_PRECISION_BF16);
        if (i & 2) rig.config.autocast.residual = rig.config.gradients.dtype = CONFIG_DTYPE_LOWER;
        if (i & 4) {
            rig.config.data.seq_len = rig.config.model.n_positions = 1024;
            rig.config.model.vocab_size = 50257;
            rig.config.train.steps = 600000;
            rig.config.train.grad_accum_steps = 40;
        }
        open_plan();
        snprintf(rig.be.device.description, sizeof rig.be.device.description, "%s",
                 processors[i / 2]);
        strcpy(rig.be.device.use, "x86-64-v4, 128 threads");
        const char *text = banner(1.2345);
        cr_expect_leq(widest(text), 80, "%d columns in\n%s", widest(text), text);
        cr_expect_eq(strstr(text, "50257 (inside 50304)") != NULL, (i & 4) > 0, "%s", text);
    }
}

/* Settings that follow from the data, or from a model of Hugging Face, are shown. */
Test(report, banner_shows_isolation_and_window) {
    static const uint8_t starts[RIG_MASK_BYTES] = {1};
    begin_again(CONFIG_PRECISION_FP32);
    rig.config.data.isolate = true;
    rig.config.model.window = 9;
    open_plan();
    const char *text = banner(0);
    cr_expect_null(strstr(text, "isolated"), "%s", text);
    cr_expect_not_null(strstr(text, "attention window of 9 tokens\n"), "%s", text);
    rig.trainer.model.capacity.window_pattern = 2;
    text = banner(0);
    cr_expect_not_null(strstr(text, "window of 9 tokens in 1 of the layers\n"), "%s", text);
    rig.tokens.shards[0].mask.starts = starts;
    text = banner(0);
    cr_expect_not_null(strstr(text, ";\n             documents isolated"), "%s", text);
}

Test(report, banner_says_what_matters) {
    rig_config(&rig.config, CONFIG_PRECISION_FP16);
    strcpy(rig.config.data.train, "some/train_*.bin");
    strcpy(rig.config.data.val, "some/val_*.bin");
    open_plan();
    const char *text = banner(1.2345);
    static const char *const parts[] = {
        "rig",
        "2 layers, 2 heads, 32 wide",
        "vocabulary +61 \\(inside 128\\)",
        "fp16: qkv",
        "fp32: embedding",
        "loss scale +1024",
        "cpu: ",
        "1 thread",
        "weights",
        "16-bit copy",
        "gradients",
        "moments",
        "activations",
        "some/train_\\*\\.bin: 4\\.0 k tokens, 125 sequences;\\s+the last 31 tokens padded",
        "some/val_\\*\\.bin",
        "20 steps \\(0\\.64 epochs\\) of 2 x 2 x 32 tokens",
        "cosine lr 0\\.003 to 0",
        "runs/rig",
        "1\\.2345"};
    for (size_t i = 0; i < COUNT(parts); i++) expect_match(text, parts[i]);
    cr_expect_null(strstr(text, "raw"));
    rig.config.loss_scale.growth_interval = 1;
    struct model_shape *shape = &rig.trainer.model.capacity;
    const struct model_shape shape_before = *shape;
    shape->n_layer = shape->n_head = shape->n_kv_head = 1;
    expect_match(banner(0), "1 layer, 1 head, 32 wide");
    expect_match(banner(0), "after 1 good step, x");
    *shape = shape_before;
    rig.trainer.state.step = 10;
    rig.trainer.state.next_sample = 100; /* a larger batch: 10 more steps take 40 samples */
    expect_match(banner(0), "20 steps \\(1\\.12 epochs\\)");
    rig.trainer.state = (struct training_state){0};
    rig.tokens.shards[0].raw = true;
    expect_match(banner(0),
                 "4\\.0 k tokens, 125 sequences, raw uint16;\\s+the last 31 tokens padded\n");
}

/* Below 20 steps the banner names the keys that make them more. */
Test(report, banner_says_that_steps_are_few) {
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    open_plan();
    cr_expect_null(strstr(banner(0), "few steps"));
    rig.config.train.steps = 19;
    expect_match(banner(0), "19 steps .*few steps to learn in: raise train\\.steps\n");
    rig.config.train.epochs = 1;
    expect_match(banner(0),
                 "few steps to learn in: raise train\\.epochs, or take smaller batches\n");
    cr_expect_leq(widest(banner(0)), 80);
}

/* The printed parts add up to the total; those of 0 bytes are left out. */
Test(report, memory_adds_up) {
    struct memory_plan plan = {.master = 1 << 20,
                               .gradients = 4 << 20,
                               .moments = 8 << 20,
                               .activations = 16 << 20,
                               .batches = 32 << 20,
                               .workspace = 64 << 20};
    open_pipe();
    report_memory(screen.out, &plan);
    const char *text = finish();
    cr_expect_str_eq(text, "125.0 MiB: weights 1.0, gradients 4.0, moments 8.0,\n"
                           "              activations 16.0, batches 32.0, workspace 64.0");
}
