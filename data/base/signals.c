#include "data/base/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <unistd.h>

/* The signal that came, or 0. */
static volatile sig_atomic_t caught;

/* A pipe that a handler in any thread makes readable, for signals_wait. */
static int wake[2] = {-1, -1};

/* A second signal finds the default action: it ends the program at once. */
static void on_signal(int number) {
    const int number_before = errno;
    caught = number;
    if (wake[1] >= 0 && write(wake[1], "", 1) < 0) errno = number_before;
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
    if (pipe2(wake, O_CLOEXEC | O_NONBLOCK)) wake[0] = wake[1] = -1;
    for (int i = 0; i < 3; i++) catch_signal(numbers[i]);
    return &caught;
}

int signals_wait(int fd) {
    struct pollfd inputs[] = {{.fd = fd, .events = POLLIN}, {.fd = wake[0], .events = POLLIN}};
    if (!caught && fd >= 0) poll(inputs, 2, -1);
    return caught;
}
