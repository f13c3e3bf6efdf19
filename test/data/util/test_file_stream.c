/* Streams that continue a call after a signal. */
#include "data/util/file_stream.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <stdbool.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(file_stream);

static void on_alarm(int number) {
    (void)number;
}

/* The reader waits, so that the pipe is full when signals interrupt the writer's calls. */
Test(file_stream, signals_lose_no_bytes, .timeout = 30) {
    enum { BYTES = 1 << 20 };
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    pid_t reader = fork();
    if (reader == 0) {
        static char text[4096];
        size_t total = 0;
        bool right = true;
        close(ends[1]);
        for (ssize_t got; (got = read(ends[0], text, sizeof text)) > 0; usleep(500))
            for (ssize_t i = 0; i < got; i++, total++) right &= text[i] == (char)('a' + total % 26);
        _exit(right && total == BYTES ? 0 : 1);
    }
    close(ends[0]);
    const struct sigaction action = {.sa_handler = on_alarm}; /* without SA_RESTART */
    cr_assert_eq(sigaction(SIGALRM, &action, NULL), 0);
    cr_assert_eq(setitimer(ITIMER_REAL, &(struct itimerval){{0, 300}, {0, 300}}, NULL), 0);
    FILE *stream = file_stream_open(ends[1]);
    for (int i = 0; i < BYTES; i++) fputc('a' + i % 26, stream);
    cr_expect_eq(fflush(stream), 0);
    cr_expect_not(ferror(stream));
    cr_expect_eq(fclose(stream), 0);
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    int status;
    while (waitpid(reader, &status, 0) < 0) continue;
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
