#include "data/interrupts.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "data/error.h"

int interrupts_open(struct interrupts *interrupts, char *error) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    signal(SIGXFSZ, SIG_IGN);
    sigprocmask(SIG_BLOCK, &set, NULL);
    interrupts->caught = 0;
    interrupts->fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (interrupts->fd < 0) return fail(error, "cannot wait for signals: %s", strerror(errno));
    return 0;
}

void interrupts_close(struct interrupts *interrupts) {
    if (interrupts->fd >= 0) close(interrupts->fd);
    interrupts->fd = -1;
}

int interrupts_wait(struct interrupts *interrupts, int fd, char *error) {
    struct pollfd polls[2] = {{.fd = interrupts->fd, .events = POLLIN},
                              {.fd = fd, .events = POLLIN}};
    poll(polls, 2, fd < 0 ? 0 : -1);
    struct signalfd_siginfo signal_read;
    if (!(polls[0].revents & POLLIN) ||
        read(interrupts->fd, &signal_read, sizeof signal_read) != sizeof signal_read)
        return 0;
    interrupts->caught = (int)signal_read.ssi_signo;
    return fail(error, "interrupted: no shard was written or replaced");
}
