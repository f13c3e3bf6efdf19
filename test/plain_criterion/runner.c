/* Runs the tests that plain_criterion/criterion/criterion.h declares.
 *
 * A worker is a forked process with a time limit for each test, so that a crash or a hang costs one
 * test. It ends after one test; with --share it continues until one fails, since a process takes up
 * to a second to open a GPU. The runner itself never calls CUDA, whose state does not survive a
 * fork. Results come back through shared memory, since a test may call exit. */
#include <fnmatch.h>
#include <getopt.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <criterion/criterion.h>

enum { JOBS_MAX = 64 };

enum outcome { UNFINISHED, PASSED, FAILED, SKIPPED };

/* A worker and its current test. Shared between both, except the process. */
struct worker {
    const struct plain_test *test; /* NULL: none yet */
    enum outcome outcome;
    double start, deadline;
    pid_t process; /* 0: none */
    bool timed_out;
};

/* Memory that all processes share. */
struct board {
    int next; /* index of the next test to take */
    int tested, passing, failing, crashing, skipped;
    struct worker workers[JOBS_MAX];
};

static struct plain_test *tests;
static struct plain_suite *suites;
static struct board *board;
static struct worker *self; /* in a worker */
static jmp_buf leave;       /* where a fatal failure of a test continues */

static struct {
    const char *filter;
    int jobs;
    double timeout; /* seconds */
    bool list, here, share;
} settings = {"*", 1, 300, false, false, false};

void plain_register_test(struct plain_test *test) {
    test->next = tests;
    tests = test;
}

void plain_register_suite(struct plain_suite *suite) {
    suite->next = suites;
    suites = suite;
}

/* ---- in a worker */

/* One write per message, so that tests side by side do not mix their lines. */
static void say(const char *head, const char *format, va_list arguments) {
    char text[8192], message[6144];
    vsnprintf(message, sizeof message, format, arguments);
    int length = snprintf(text, sizeof text, "%.1900s%s\n", head, message);
    fflush(stdout);
    if (write(STDERR_FILENO, text, (size_t)length) < 0) _exit(3);
}

void plain_failed(bool fatal, const char *file, int line, const char *condition,
                  const char *message, ...) {
    char head[2048];
    snprintf(head, sizeof head, "[----] %s:%d: Assertion failed: %.1500s\n[----]  ", file, line,
             condition);
    va_list arguments;
    va_start(arguments, message);
    say(head, message, arguments);
    va_end(arguments);
    self->outcome = FAILED;
    if (fatal) longjmp(leave, 1);
}

void plain_skip(const char *message, ...) {
    va_list arguments;
    va_start(arguments, message);
    say("[SKIP]", message, arguments);
    va_end(arguments);
    if (self->outcome != FAILED) self->outcome = SKIPPED;
    longjmp(leave, 1);
}

static const struct plain_options *suite_options(const char *name) {
    static const struct plain_options none;
    for (const struct plain_suite *suite = suites; suite; suite = suite->next)
        if (strcmp(suite->name, name) == 0) return &suite->options;
    return &none;
}

static void guarded(void (*function)(void)) {
    if (function && setjmp(leave) == 0) function();
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* The body runs only after its preparations went well; cleaning up runs always. */
static void run_test(const struct plain_test *test) {
    const struct plain_options *suite = suite_options(test->suite);
    double limit = test->options.timeout > 0 ? test->options.timeout
                   : suite->timeout > 0      ? suite->timeout
                                             : settings.timeout;
    self->outcome = UNFINISHED;
    self->start = now(), self->deadline = self->start + limit;
    self->test = test;
    guarded(suite->init);
    if (self->outcome == UNFINISHED) guarded(test->options.init);
    if (self->outcome == UNFINISHED) guarded(test->body);
    guarded(test->options.fini);
    guarded(suite->fini);
    if (self->outcome == UNFINISHED) self->outcome = PASSED;
}

static void add_one(int *total) {
    __atomic_add_fetch(total, 1, __ATOMIC_RELAXED);
}

/* Counts a worker's test, where status is that of the worker, or 0 while it continues. A test that
 * called exit, and a sanitizer's report at the end, are crashes. */
static void count(const struct worker *of, int status) {
    const char *verdict = NULL, *reason = "";
    if (of->timed_out) verdict = "CRASH", reason = ": its time is over";
    else if (WIFSIGNALED(status)) verdict = "CRASH", reason = strsignal(WTERMSIG(status));
    else if (of->outcome == FAILED) verdict = "FAIL";
    else if (of->outcome == UNFINISHED || status) verdict = "CRASH", reason = ": it called exit";
    add_one(&board->tested);
    if (of->outcome == SKIPPED && !verdict) add_one(&board->skipped);
    add_one(!verdict ? &board->passing : *verdict == 'C' ? &board->crashing : &board->failing);
    if (verdict)
        fprintf(stderr, "[%s] %s::%s (%s:%d)%s%s: (%.2fs)\n", verdict, of->test->suite,
                of->test->name, of->test->file, of->test->line, *reason == ':' ? "" : ": ", reason,
                now() - of->start);
}

static uint64_t hash_of_environment(void) {
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (char **variable = environ; *variable; variable++)
        for (const char *c = *variable; *c; c++) hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    return hash;
}

/* Takes tests until there are none, or one has failed or changed the environment. */
static void work(struct plain_test *const *selected, int selected_count) {
    const uint64_t environment = hash_of_environment();
    for (;;) {
        int taken = __atomic_fetch_add(&board->next, 1, __ATOMIC_RELAXED);
        if (taken >= selected_count) exit(0);
        if (self->test) count(self, 0);
        run_test(selected[taken]);
        bool changed = hash_of_environment() != environment;
        if (self->outcome == FAILED || changed || !settings.share) exit(self->outcome == FAILED);
    }
}

/* ---- in the runner */

static void start(struct worker *worker, struct plain_test *const *selected, int selected_count) {
    *worker = (struct worker){0};
    fflush(NULL);
    pid_t runner = getpid(), process = fork();
    if (process < 0) {
        perror("tests: fork");
        exit(2);
    }
    if (process == 0) {
        /* The group dies as a whole on a timeout, and with the runner. */
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != runner) _exit(3);
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        self = worker;
        work(selected, selected_count);
    }
    setpgid(process, process);
    worker->process = process;
}

/* Waits for a worker to end or a tenth of a second, then ends workers whose time is over. */
static void wait_for_any(const sigset_t *child) {
    sigtimedwait(child, NULL, &(const struct timespec){0, 100000000});
    for (int i = 0; i < settings.jobs; i++) {
        struct worker *worker = &board->workers[i];
        int status;
        if (!worker->process) continue;
        if (waitpid(worker->process, &status, WNOHANG) == worker->process) {
            if (worker->test) count(worker, status);
            kill(-worker->process, SIGKILL); /* processes that the test left running */
            worker->process = 0;
        } else if (!worker->timed_out && worker->test && now() >= worker->deadline) {
            worker->timed_out = true;
            kill(-worker->process, SIGKILL);
        }
    }
}

static void run_all(struct plain_test *const *selected, int selected_count) {
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    for (bool busy = true; busy;) {
        busy = false;
        for (int i = 0; i < settings.jobs; i++) {
            struct worker *worker = &board->workers[i];
            bool left = __atomic_load_n(&board->next, __ATOMIC_RELAXED) < selected_count;
            if (!worker->process && left) start(worker, selected, selected_count);
            busy |= worker->process != 0;
        }
        if (busy) wait_for_any(&child);
    }
}

/* Runs all tests in this process, for debuggers and compute-sanitizer. */
static void run_here(struct plain_test *const *selected, int selected_count) {
    self = &board->workers[0];
    for (int i = 0; i < selected_count; i++) {
        run_test(selected[i]);
        count(self, 0);
    }
}

static int by_name(const void *a, const void *b) {
    const struct plain_test *x = *(struct plain_test *const *)a;
    const struct plain_test *y = *(struct plain_test *const *)b;
    int order = strcmp(x->suite, y->suite);
    return order ? order : x->line - y->line;
}

static bool is_selected(const struct plain_test *test) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", test->suite, test->name);
    return !test->options.disabled && !suite_options(test->suite)->disabled &&
           fnmatch(settings.filter, path, FNM_EXTMATCH) == 0;
}

static bool read_options(int argc, char **argv) {
    static const struct option options[] = {{"filter", required_argument, NULL, 'f'},
                                            {"jobs", required_argument, NULL, 'j'},
                                            {"timeout", required_argument, NULL, 't'},
                                            {"list", no_argument, NULL, 'l'},
                                            {"no-fork", no_argument, NULL, 'n'},
                                            {"share", no_argument, NULL, 's'},
                                            {NULL, 0, NULL, 0}};
    for (int option; (option = getopt_long(argc, argv, "f:j:t:l", options, NULL)) != -1;) {
        switch (option) {
        case 'f': settings.filter = optarg; break;
        case 'j': settings.jobs = atoi(optarg); break;
        case 't': settings.timeout = atof(optarg); break;
        case 'l': settings.list = true; break;
        case 'n': settings.here = true; break;
        case 's': settings.share = true; break;
        default: return false;
        }
    }
    if (settings.jobs > JOBS_MAX) settings.jobs = JOBS_MAX;
    return optind == argc && settings.jobs >= 1 && settings.timeout > 0;
}

int main(int argc, char **argv) {
    if (!read_options(argc, argv)) {
        fprintf(stderr, "usage: tests [--filter PATTERN] [--jobs N] [--timeout SECONDS] [--list] "
                        "[--share] [--no-fork]\n"
                        "--share: a process runs test after test, until one fails\n"
                        "PATTERN matches suite/name: * ? [a-z] @(this|that)\n");
        return 2;
    }
    int known = 0, selected_count = 0;
    for (const struct plain_test *test = tests; test; test = test->next) known++;
    struct plain_test **selected = calloc((size_t)known + 1, sizeof(void *));
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!selected || board == MAP_FAILED) {
        fprintf(stderr, "tests: out of memory\n");
        return 2;
    }
    for (struct plain_test *test = tests; test; test = test->next)
        if (is_selected(test)) selected[selected_count++] = test;
    qsort(selected, (size_t)selected_count, sizeof *selected, by_name);
    if (settings.list) {
        for (int i = 0; i < selected_count; i++)
            printf("%s/%s\n", selected[i]->suite, selected[i]->name);
        free(selected);
        return 0;
    }
    if (settings.here) run_here(selected, selected_count);
    else run_all(selected, selected_count);
    if (selected_count == 0) fprintf(stderr, "no test matches %s\n", settings.filter);
    fprintf(stderr, "[====] Synthesis: Tested: %d | Passing: %d | Failing: %d | Crashing: %d\n",
            board->tested, board->passing, board->failing, board->crashing);
    if (board->skipped) fprintf(stderr, "[====] %d of them were skipped\n", board->skipped);
    free(selected);
    return selected_count == 0 || board->failing || board->crashing;
}
