/* Signals that ask a program to end, as a flag to look at, so that it can tidy up. */
#pragma once

#include <signal.h>

/* From now on SIGINT, SIGTERM, SIGUSR1, SIGHUP (a closed terminal) and SIGPIPE (a closed output)
 * set the returned flag to the number of the first. A second one of the first three ends the
 * program; SIGHUP and SIGPIPE stay ignored if the parent ignores them. SIGUSR1 is what batch
 * systems send, and what mpirun passes on. To be called in the main thread. */
const volatile sig_atomic_t *signals_catch(void);

/* For a program that waits for input: from now on all of these but SIGUSR1 are held back, in
 * threads made later too, and set the flag that is returned in signals_wait only. */
const volatile sig_atomic_t *signals_hold(void);

/* Waits until fd can be read or a signal has come; fd -1: only looks. Returns the signal, or 0;
 * once there was one, at once, and a second one stays held back. */
int signals_wait(int fd);

/* Returns the name of a signal that these functions catch, for a message: "Ctrl-C (SIGINT)". */
const char *signal_text(int number);
