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

static void catch_signal(int number) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(number, &action, NULL);
}

const volatile sig_atomic_t *signals_catch(void) {
    catch_signal(SIGINT);
    catch_signal(SIGTERM);
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
