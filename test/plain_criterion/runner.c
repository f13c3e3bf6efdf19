/* Runs the tests that plain_criterion/criterion/criterion.h declares.
 *
 * Each test is a forked process with a time limit, so that a crash or a hang costs one test. The
 * runner itself starts no thread and never calls CUDA, whose state does not survive a fork. What a
 * test did comes back through a page that both share; its exit status alone could lie. */
#include <errno.h>
#include <fnmatch.h>
#include <getopt.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
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

/* Shared between the runner and one test. */
struct account {
    enum outcome outcome;
    int failures;
};

struct job {
    const struct plain_test *test; /* NULL: free */
    pid_t process;
    double start, deadline;
    bool timed_out;
};

static struct plain_test *tests;
static struct plain_suite *suites;
static struct account *accounts; /* one per job */
static struct account *account;  /* in a test: its own */
static jmp_buf leave;            /* in a test: where a fatal failure goes */

static struct {
    const char *filter;
    int jobs;
    double timeout;
    bool verbose, list, here;
} settings = {"*", 1, TIMEOUT_DEFAULT, false, false, false};

static struct { int tested, passing, failing, crashing, skipped; } totals;

void plain_register_test(struct plain_test *test) {
    test->next = tests;
    tests = test;
}

void plain_register_suite(struct plain_suite *suite) {
    suite->next = suites;
    suites = suite;
}

/* ---- in a test's process */

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

/* ---- in the runner */

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void start(struct job *job, struct account *shared, const struct plain_test *test) {
    double limit = test->options.timeout;
    if (limit <= 0) limit = suite_options(test->suite)->timeout;
    if (limit <= 0) limit = settings.timeout;
    *shared = (struct account){UNFINISHED, 0};
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
        account = shared;
        run_body(test);
        exit(account->outcome == FAILED);
    }
    setpgid(process, process);
    *job = (struct job){test, process, now(), now() + limit, false};
}

static void count(const struct job *job, const struct account *shared, int status) {
    const struct plain_test *test = job->test;
    const char *verdict = NULL;
    char reason[128] = "";
    if (job->timed_out) {
        verdict = "CRASH";
        snprintf(reason, sizeof reason, ": no end after %.0f s", job->deadline - job->start);
    } else if (WIFSIGNALED(status)) {
        verdict = "CRASH";
        snprintf(reason, sizeof reason, ": %s", strsignal(WTERMSIG(status)));
    } else if (shared->outcome == UNFINISHED ||
               (shared->outcome != FAILED && WEXITSTATUS(status) != 0)) {
        verdict = "CRASH"; /* a test that called exit, or a sanitizer's report at the end */
        snprintf(reason, sizeof reason, ": exit status %d", WEXITSTATUS(status));
    } else if (shared->outcome == FAILED) {
        verdict = "FAIL";
    }
    totals.skipped += shared->outcome == SKIPPED && !verdict;
    totals.tested++;
    totals.crashing += verdict && *verdict == 'C';
    totals.failing += verdict && *verdict == 'F';
    totals.passing += !verdict;
    if (!verdict && settings.verbose) verdict = "PASS";
    if (verdict)
        fprintf(stderr, "[%s] %s::%s (%s:%d)%s: (%.2fs)\n", verdict, test->suite, test->name,
                test->file, test->line, reason, now() - job->start);
}

/* Waits for a child to end or the next deadline to pass; SIGCHLD is blocked, so none is lost. */
static void wait_for_any(struct job jobs[]) {
    double next = now() + 3600;
    for (int i = 0; i < settings.jobs; i++)
        if (jobs[i].test && !jobs[i].timed_out && jobs[i].deadline < next) next = jobs[i].deadline;
    double rest = next - now();
    if (rest < 0) rest = 0;
    struct timespec time = {(time_t)rest, (long)(1e9 * (rest - (double)(time_t)rest))};
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigtimedwait(&child, NULL, &time);
    int status;
    for (int i = 0; i < settings.jobs; i++) {
        struct job *job = &jobs[i];
        if (!job->test) continue;
        if (waitpid(job->process, &status, WNOHANG) == job->process) {
            count(job, &accounts[i], status);
            kill(-job->process, SIGKILL); /* processes that the test left running */
            job->test = NULL;
        } else if (!job->timed_out && now() >= job->deadline) {
            job->timed_out = true;
            kill(-job->process, SIGKILL);
        }
    }
}

static int busy(const struct job jobs[]) {
    int busy_jobs = 0;
    for (int i = 0; i < settings.jobs; i++) busy_jobs += jobs[i].test != NULL;
    return busy_jobs;
}

static void run_all(struct plain_test *const *selected, int selected_count) {
    struct job jobs[JOBS_MAX] = {0};
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    for (int next = 0; next < selected_count || busy(jobs);) {
        for (int i = 0; i < settings.jobs && next < selected_count; i++)
            if (!jobs[i].test) start(&jobs[i], &accounts[i], selected[next++]);
        wait_for_any(jobs);
    }
}

/* For debuggers and compute-sanitizer: all in this process, one after the other. */
static void run_here(struct plain_test *const *selected, int selected_count) {
    account = &accounts[0];
    for (int i = 0; i < selected_count; i++) {
        struct job job = {.test = selected[i], .start = now()};
        *account = (struct account){UNFINISHED, 0};
        run_body(selected[i]);
        count(&job, account, 0);
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
                 "[--list] [--no-fork]\n"
                 "PATTERN matches suite/name: * ? [a-z] @(this|that)\n");
}

static bool read_options(int argc, char **argv) {
    static const struct option options[] = {
        {"filter", required_argument, NULL, 'f'},  {"jobs", required_argument, NULL, 'j'},
        {"timeout", required_argument, NULL, 't'}, {"verbose", optional_argument, NULL, 'v'},
        {"list", no_argument, NULL, 'l'},          {"help", no_argument, NULL, 'h'},
        {"no-fork", no_argument, NULL, 'n'},       {NULL, 0, NULL, 0}};
    for (int option; (option = getopt_long(argc, argv, "f:j:t:vlh", options, NULL)) != -1;) {
        switch (option) {
        case 'f': settings.filter = optarg; break;
        case 'j': settings.jobs = atoi(optarg); break;
        case 't': settings.timeout = atof(optarg); break;
        case 'v': settings.verbose = true; break;
        case 'l': settings.list = true; break;
        case 'n': settings.here = true; break;
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
    accounts = mmap(NULL, JOBS_MAX * sizeof *accounts, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!selected || accounts == MAP_FAILED) {
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
            totals.tested, totals.passing, totals.failing, totals.crashing);
    if (totals.skipped) fprintf(stderr, "[====] %d of them skipped themselves\n", totals.skipped);
    free(selected);
    return selected_count == 0 || totals.failing || totals.crashing;
}
