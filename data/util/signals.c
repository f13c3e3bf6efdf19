#include "data/util/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

/* The first signal caught, or 0. */
static volatile sig_atomic_t caught;

/* Text of signals_explain. */
static const char *volatile explanation;

/* A pipe that a handler in any thread makes readable, to wake signals_wait. */
static int wake[2] = {-1, -1};

/* Keeps the first signal, since a closed terminal often causes others after it. */
static void on_signal(int number) {
    const int number_before = errno;
    if (!caught && number == SIGINT && explanation &&
        write(STDERR_FILENO, explanation, strlen(explanation)) < 0)
        errno = number_before;
    if (!caught) caught = number;
    if (wake[1] >= 0 && write(wake[1], "", 1) < 0) errno = number_before;
}

/* Matmuls of oneDNN before 3.12 keep the stack pointer inside a heap buffer while they run (issue
 * 4845). A handler's frame on that stack would overwrite the data below, so handlers get their own
 * stack. It serves the calling thread, which the kernel prefers for signals to the process. */
static void set_handler_stack(void) {
    static char memory[64 * 1024]; /* the frame takes 11 KiB on CPUs with AMX */
    stack_t current, stack = {.ss_sp = memory, .ss_size = sizeof memory};
    if (sigaltstack(NULL, &current) == 0 && current.ss_flags & SS_DISABLE)
        sigaltstack(&stack, NULL);
}

/* A second SIGINT or SIGTERM has the default action, which ends the program at once. SIGHUP may
 * come several times, from the kernel and from the shell, and SIGPIPE with every write. They never
 * end the program, and stay ignored if the parent ignores them (nohup). */
static void catch_signal(int number) {
    struct sigaction before, action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    bool repeats = number == SIGHUP || number == SIGPIPE;
    if (!repeats) action.sa_flags |= (int)SA_RESETHAND;
    if (repeats && sigaction(number, NULL, &before) == 0 && before.sa_handler == SIG_IGN) return;
    sigaction(number, &action, NULL);
}

const volatile sig_atomic_t *signals_catch(void) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGPIPE};
    set_handler_stack();
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) catch_signal(numbers[i]);
    return &caught;
}

const volatile sig_atomic_t *signals_catch_waiting(void) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    if (pipe2(wake, O_CLOEXEC | O_NONBLOCK)) wake[0] = wake[1] = -1;
    for (int i = 0; i < 4; i++) catch_signal(numbers[i]);
    return &caught;
}

void signals_explain(const char *text) {
    explanation = text;
}

void signals_resume(void) {
    const int number = caught;
    if (!number) return;
    caught = 0;
    catch_signal(number);
}

int signals_wait(int fd) {
    struct pollfd inputs[] = {{.fd = fd, .events = POLLIN}, {.fd = wake[0], .events = POLLIN}};
    if (!caught && fd >= 0) poll(inputs, 2, -1);
    return caught;
}

const char *signal_text(int number) {
    switch (number) {
    case SIGINT: return "Ctrl-C (SIGINT)";
    case SIGHUP: return "a closed terminal (SIGHUP)";
    case SIGPIPE: return "a closed output (SIGPIPE)";
    case SIGTERM: return "SIGTERM";
    case SIGUSR1: return "SIGUSR1";
    default: return "a signal";
    }
}

int signals_start_thread(pthread_t *thread, void *(*work)(void *), void *argument) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int number = pthread_create(thread, NULL, work, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return number;
}
