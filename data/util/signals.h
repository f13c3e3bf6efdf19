/* Signals that request the end of a program, as a flag to poll, so that the program can clean
 * up. */
#pragma once

#include <pthread.h>
#include <signal.h>

/* Installs handlers: SIGINT, SIGTERM, SIGUSR1, SIGHUP (closed terminal) and SIGPIPE (closed output)
 * set the returned flag to the number of the first signal. A second SIGINT, SIGTERM or SIGUSR1 ends
 * the program. SIGHUP and SIGPIPE stay ignored if the parent ignores them. Batch systems send
 * SIGUSR1, and mpirun forwards it. Call this in the main thread. */
const volatile sig_atomic_t *signals_catch(void);

/* The same for SIGINT, SIGTERM, SIGHUP and SIGPIPE, for a program that waits for input with
 * signals_wait. */
const volatile sig_atomic_t *signals_catch_waiting(void);

/* Sets a text for stderr when SIGINT is the first signal caught: what follows, and what a second
 * one loses. It must stay valid. NULL: none. */
void signals_explain(const char *text);

/* Forgets the signal that was caught, so that the program continues, and catches it again. */
void signals_resume(void);

/* Waits until fd is readable or a signal arrives; with fd -1 it does not wait. Returns the signal,
 * or 0. */
int signals_wait(int fd);

/* Returns the name of a caught signal, for a message: "Ctrl-C (SIGINT)". */
const char *signal_text(int number);

/* Calls pthread_create with all signals blocked in the new thread, so that the calling thread
 * handles them. */
int signals_start_thread(pthread_t *thread, void *(*work)(void *), void *argument);
