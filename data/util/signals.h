/* Signals that ask a program to end, as a flag to look at, so that it can tidy up. */
#pragma once

#include <pthread.h>
#include <signal.h>

/* From now on SIGINT, SIGTERM, SIGUSR1, SIGHUP (a closed terminal) and SIGPIPE (a closed output)
 * set the returned flag to the number of the first. A second one of the first three ends the
 * program; SIGHUP and SIGPIPE stay ignored if the parent ignores them. SIGUSR1 is what batch
 * systems send, and what mpirun passes on. To be called in the main thread. */
const volatile sig_atomic_t *signals_catch(void);

/* The same for SIGINT, SIGTERM, SIGHUP and SIGPIPE, for a program that waits for input with
 * signals_wait. */
const volatile sig_atomic_t *signals_hold(void);

/* Waits until fd can be read or a signal has come; fd -1: does not wait. Returns the signal, or 0.
 */
int signals_wait(int fd);

/* Returns the name of a signal that these functions catch, for a message: "Ctrl-C (SIGINT)". */
const char *signal_text(int number);

/* pthread_create for a thread that handles no signals: they are for the calling thread. */
int signals_start_thread(pthread_t *thread, void *(*work)(void *), void *argument);
