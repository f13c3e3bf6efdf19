/* Signals that ask a program to end, as a flag to look at, so that it can tidy up. */
#pragma once

#include <signal.h>

/* From now on SIGINT, SIGTERM and SIGUSR1 set the flag that is returned to their number; a second
 * one ends the program. SIGUSR1 is what batch systems send, and what mpirun passes on. To be called
 * in the main thread. */
const volatile sig_atomic_t *signals_catch(void);

/* The same for SIGINT, SIGTERM and SIGHUP, for a program that waits for input with signals_wait. */
const volatile sig_atomic_t *signals_hold(void);

/* Waits until fd can be read or a signal has come; fd -1: does not wait. Returns the signal, or 0.
 */
int signals_wait(int fd);
