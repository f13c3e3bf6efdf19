/* Signals that ask a program to end, as a flag to look at, so that it can tidy up. */
#ifndef DATA_BASE_SIGNALS_H
#define DATA_BASE_SIGNALS_H

#include <signal.h>

/* From now on SIGINT and SIGTERM set the flag that is returned to their number; a second one ends
 * the program. */
const volatile sig_atomic_t *signals_catch(void);

/* For a program that waits for input: from now on these two and SIGHUP are held back, in threads
 * made later too, and set the flag in signals_wait only. */
void signals_hold(void);

/* Waits until fd can be read or a signal has come; fd -1: only looks. Returns the signal, or 0. */
int signals_wait(int fd);

#endif
