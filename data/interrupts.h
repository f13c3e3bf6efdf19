/* SIGINT, SIGTERM and SIGHUP as something that is asked for, so that a program can tidy up: they
 * are noticed while it waits for input, and nowhere else. */
#ifndef DATA_INTERRUPTS_H
#define DATA_INTERRUPTS_H

struct interrupts {
    int fd;     /* a signalfd */
    int caught; /* the signal that was noticed, or 0 */
};

/* From now on the signals wait, in threads made later too. Also turns "file too large" (SIGXFSZ)
 * into an error of writing. */
int interrupts_open(struct interrupts *interrupts, char *error);
void interrupts_close(struct interrupts *interrupts);

/* Waits until fd can be read, or fails when one of the signals has come. fd -1: only looks. */
int interrupts_wait(struct interrupts *interrupts, int fd, char *error);

#endif
