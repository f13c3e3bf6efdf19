/* Runs the tests that plain_criterion/criterion/criterion.h declares.
 *
 * Forked workers take tests, each with a time limit, so that a crash or a hang costs one test. A
 * worker ends after one test; with --share it goes on until one fails, since a process takes up to
 * a second to open a GPU. The runner itself starts no thread and never calls CUDA, whose state does
 * not survive a fork. What a test did comes back through pages that all share; an exit status
 * alone could lie. */
#include <errno.h>
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

enum { JOBS_MAX = 64, TIMEOUT_DEFAULT = 300 /* seconds */ };

enum outcome { UNFINISHED, PASSED, FAILED, SKIPPED };

/* Shared between the runner and a worker: its current test, or the last one, which the runner
 * counts when the worker has ended. */
struct account {
    const struct plain_test *test; /* NULL: none yet */
    enum outcome outcome;
    int failures;
    double start, deadline;
};

/* Shared by all. */
struct board {
    int next; /* index of the next test to take */
    struct {
        int tested, passing, failing, crashing, skipped;
    } totals;
    struct account accounts[JOBS_MAX];
};

struct job {
    pid_t process; /* 0: free */
    bool timed_out;
};

static struct plain_test *tests;
static struct plain_suite *suites;
static struct board *board;
static struct account *account; /* in a worker: its own */
static jmp_buf leave;           /* in a test: where a fatal failure goes */

static struct {
    const char *filter;
    int jobs;
    double timeout;
    bool verbose, list, here, share;
} settings = {"*", 1, TIMEOUT_DEFAULT, false, false, false, false};

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
    char text[8192];
    int used = snprintf(text, sizeof text, "%s", head);
    if (used > (int)sizeof text - 2) used = sizeof text - 2;
    int more = vsnprintf(text + used, sizeof text - (size_t)used - 1, format, arguments);
    used = more < (int)sizeof text - 2 - used ? used + more : (int)sizeof text - 2;
    text[used++] = '\n';
    fflush(stdout);
    if (write(STDERR_FILENO, text, (size_t)used) < 0) _exit(3);
}

void plain_failed(bool fatal, const char *file, int line, const char *condition,
                  const char *message, ...) {
    char head[2048];
    snprintf(head, sizeof head, "[----] %s:%d: Assertion failed: %s\n[----]  ", file, line,
             condition);
    va_list arguments;
    va_start(arguments, message);
    say(head, message, arguments);
    va_end(arguments);
    account->failures++;
    account->outcome = FAILED;
    if (fatal) longjmp(leave, 1);
}

void plain_skip(const char *message, ...) {
    va_list arguments;
    va_start(arguments, message);
    say("[SKIP]", message, arguments);
    va_end(arguments);
    if (!account->failures) account->outcome = SKIPPED;
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

/* Cleaning up runs whatever came before; the body only if the preparations went well. */
static void run_body(const struct plain_test *test) {
    const struct plain_options *suite = suite_options(test->suite);
    guarded(suite->init);
    if (!account->failures) guarded(test->options.init);
    if (!account->failures && account->outcome != SKIPPED) guarded(test->body);
    guarded(test->options.fini);
    guarded(suite->fini);
    if (account->outcome == UNFINISHED) account->outcome = PASSED;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void add(int *total, bool one) {
    __atomic_add_fetch(total, one, __ATOMIC_RELAXED);
}

/* Counts the test of an account. status: of the worker that has ended, 0 if it goes on. */
static void count(const struct account *of, int status, bool timed_out) {
    const struct plain_test *test = of->test;
    const char *verdict = NULL;
    char reason[128] = "";
    if (timed_out) {
        verdict = "CRASH";
        snprintf(reason, sizeof reason, ": no end after %.0f s", of->deadline - of->start);
    } else if (WIFSIGNALED(status)) {
        verdict = "CRASH";
        snprintf(reason, sizeof reason, ": %s", strsignal(WTERMSIG(status)));
    } else if (of->outcome == UNFINISHED || (of->outcome != FAILED && WEXITSTATUS(status) != 0)) {
        verdict = "CRASH"; /* a test that called exit, or a sanitizer's report at the end */
        snprintf(reason, sizeof reason, ": exit status %d", WEXITSTATUS(status));
    } else if (of->outcome == FAILED) {
        verdict = "FAIL";
    }
    add(&board->totals.skipped, of->outcome == SKIPPED && !verdict);
    add(&board->totals.tested, true);
    add(&board->totals.crashing, verdict && *verdict == 'C');
    add(&board->totals.failing, verdict && *verdict == 'F');
    add(&board->totals.passing, !verdict);
    if (!verdict && settings.verbose) verdict = "PASS";
    if (verdict)
        fprintf(stderr, "[%s] %s::%s (%s:%d)%s: (%.2fs)\n", verdict, test->suite, test->name,
                test->file, test->line, reason, now() - of->start);
}

static void begin(struct account *own, const struct plain_test *test) {
    double limit = test->options.timeout;
    if (limit <= 0) limit = suite_options(test->suite)->timeout;
    if (limit <= 0) limit = settings.timeout;
    own->outcome = UNFINISHED, own->failures = 0;
    own->start = now(), own->deadline = own->start + limit;
    own->test = test;
    fflush(NULL);
}

/* A hash of the environment (FNV-1a), which tests may change for themselves alone. */
static uint64_t hash_of_environment(void) {
    uint64_t hash = 0xcbf29ce484222325u;
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
        if (account->test) count(account, 0, false);
        begin(account, selected[taken]);
        run_body(selected[taken]);
        bool alone = !settings.share || hash_of_environment() != environment;
        if (account->outcome == FAILED || alone) exit(account->outcome == FAILED);
    }
}

/* ---- in the runner */

static void start(struct job *job, struct account *own, struct plain_test *const *selected,
                  int selected_count) {
    own->test = NULL;
    fflush(NULL);
    pid_t runner = getpid(), process = fork();
    if (process < 0) {
        perror("tests: fork");
        exit(2);
    }
    if (process == 0) {
        /* A group of its own dies as a whole on a timeout; and nobody outlives the runner. */
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != runner) _exit(3);
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        account = own;
        work(selected, selected_count);
    }
    setpgid(process, process);
    *job = (struct job){process, false};
}

/* Waits for a worker to end or a moment to pass, after which deadlines are looked at again; SIGCHLD
 * is blocked, so none is lost. */
static void wait_for_any(struct job jobs[]) {
    const struct timespec moment = {0, 100000000};
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigtimedwait(&child, NULL, &moment);
    int status;
    for (int i = 0; i < settings.jobs; i++) {
        struct job *job = &jobs[i];
        const struct account *of = &board->accounts[i];
        if (!job->process) continue;
        if (waitpid(job->process, &status, WNOHANG) == job->process) {
            if (of->test) count(of, status, job->timed_out);
            kill(-job->process, SIGKILL); /* processes that the test left running */
            job->process = 0;
        } else if (!job->timed_out && of->test && now() >= of->deadline) {
            job->timed_out = true;
            kill(-job->process, SIGKILL);
        }
    }
}

static int busy(const struct job jobs[]) {
    int busy_jobs = 0;
    for (int i = 0; i < settings.jobs; i++) busy_jobs += jobs[i].process != 0;
    return busy_jobs;
}

static void run_all(struct plain_test *const *selected, int selected_count) {
    struct job jobs[JOBS_MAX] = {0};
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    for (;;) {
        bool left = __atomic_load_n(&board->next, __ATOMIC_RELAXED) < selected_count;
        for (int i = 0; i < settings.jobs && left; i++)
            if (!jobs[i].process) start(&jobs[i], &board->accounts[i], selected, selected_count);
        if (!busy(jobs)) break;
        wait_for_any(jobs);
    }
}

/* For debuggers and compute-sanitizer: all in this process, one after the other. */
static void run_here(struct plain_test *const *selected, int selected_count) {
    account = &board->accounts[0];
    for (int i = 0; i < selected_count; i++) {
        begin(account, selected[i]);
        run_body(selected[i]);
        count(account, 0, false);
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

static void usage(FILE *out) {
    fprintf(out, "usage: tests [--filter PATTERN] [--jobs N] [--timeout SECONDS] [--verbose] "
                 "[--list] [--share] [--no-fork]\n"
                 "--share: a process runs test after test, until one fails\n"
                 "PATTERN matches suite/name: * ? [a-z] @(this|that)\n");
}

static bool read_options(int argc, char **argv) {
    static const struct option options[] = {{"filter", required_argument, NULL, 'f'},
                                            {"jobs", required_argument, NULL, 'j'},
                                            {"timeout", required_argument, NULL, 't'},
                                            {"verbose", optional_argument, NULL, 'v'},
                                            {"list", no_argument, NULL, 'l'},
                                            {"help", no_argument, NULL, 'h'},
                                            {"no-fork", no_argument, NULL, 'n'},
                                            {"share", no_argument, NULL, 's'},
                                            {NULL, 0, NULL, 0}};
    for (int option; (option = getopt_long(argc, argv, "f:j:t:vlh", options, NULL)) != -1;) {
        switch (option) {
        case 'f': settings.filter = optarg; break;
        case 'j': settings.jobs = atoi(optarg); break;
        case 't': settings.timeout = atof(optarg); break;
        case 'v': settings.verbose = true; break;
        case 'l': settings.list = true; break;
        case 'n': settings.here = true; break;
        case 's': settings.share = true; break;
        case 'h': usage(stdout); exit(0);
        default: return false;
        }
    }
    return optind == argc && settings.jobs >= 1 && settings.timeout > 0;
}

int main(int argc, char **argv) {
    if (!read_options(argc, argv)) {
        usage(stderr);
        return 2;
    }
    if (settings.jobs > JOBS_MAX) settings.jobs = JOBS_MAX;
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
            board->totals.tested, board->totals.passing, board->totals.failing,
            board->totals.crashing);
    if (board->totals.skipped)
        fprintf(stderr, "[====] %d of them skipped themselves\n", board->totals.skipped);
    free(selected);
    return selected_count == 0 || board->totals.failing || board->totals.crashing;
}
