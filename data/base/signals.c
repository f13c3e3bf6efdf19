#include "data/base/signals.h"

#include <poll.h>
#include <stddef.h>
#include <time.h>

/* The one thing a signal handler can reach. */
static volatile sig_atomic_t caught;

/* A second signal finds the default action: it ends the program at once. */
static void on_signal(int number) {
    caught = number;
}

/* Products of oneDNN before 3.12 keep the stack pointer in the middle of a buffer on the heap while
 * they run (its issue 4845): a handler's frame there would overwrite what lies below, so handlers
 * get a stack of their own. It serves the calling thread, the one that the kernel prefers to give a
 * process's signals to. */
static void give_handlers_a_stack(void) {
    static char memory[64 * 1024]; /* the frame takes 11 KiB where the processor has AMX */
    stack_t there, stack = {.ss_sp = memory, .ss_size = sizeof memory};
    if (sigaltstack(NULL, &there) == 0 && there.ss_flags & SS_DISABLE) sigaltstack(&stack, NULL);
}

static void catch_signal(int number) {
    struct sigaction action = {.sa_handler = on_signal,
                               .sa_flags = (int)(SA_RESETHAND | SA_ONSTACK)};
    sigaction(number, &action, NULL);
}

const volatile sig_atomic_t *signals_catch(void) {
    give_handlers_a_stack();
    catch_signal(SIGINT);
    catch_signal(SIGTERM);
    catch_signal(SIGUSR1);
    return &caught;
}

const volatile sig_atomic_t *signals_hold(void) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < 3; i++) {
        sigaddset(&set, numbers[i]);
        catch_signal(numbers[i]);
    }
    sigprocmask(SIG_BLOCK, &set, NULL);
    return &caught;
}

/* A poll lets signals in while it lasts; input that is there already would keep them out, so the
 * first one is without it. */
int signals_wait(int fd) {
    struct pollfd input = {.fd = fd, .events = POLLIN};
    struct timespec none = {0};
    sigset_t set;
    sigprocmask(SIG_BLOCK, NULL, &set);
    sigdelset(&set, SIGINT);
    sigdelset(&set, SIGTERM);
    sigdelset(&set, SIGHUP);
    if (!caught) ppoll(NULL, 0, &none, &set);
    if (!caught && fd >= 0) ppoll(&input, 1, NULL, &set);
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
