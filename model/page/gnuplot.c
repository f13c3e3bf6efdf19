#include "model/page/gnuplot.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs gnuplot with two files as its standard input and output. Returns its exit status, or -1 with
 * errno set if it could not be started. */
static int run_gnuplot(int in, int out) {
    char *command[] = {"gnuplot", "--default-settings", NULL};
    posix_spawn_file_actions_t actions;
    pid_t process;
    int status = 0;
    if (posix_spawn_file_actions_init(&actions)) return -1;
    posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    errno = posix_spawnp(&process, command[0], &actions, NULL, command, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (errno) return -1;
    while (waitpid(process, &status, 0) < 0)
        if (errno != EINTR) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE;
}

char *gnuplot_draw(const char *script) {
    int in = memfd_create("script", MFD_CLOEXEC), out = memfd_create("picture", MFD_CLOEXEC);
    size_t length = strlen(script);
    char *picture = NULL;
    if (in >= 0 && out >= 0 && write(in, script, length) == (ssize_t)length &&
        lseek(in, 0, SEEK_SET) == 0) {
        int status = run_gnuplot(in, out);
        off_t size = status == 0 ? lseek(out, 0, SEEK_END) : -1;
        if (status > 0) errno = 0;
        if (size > 0) picture = calloc(1, (size_t)size + 1);
        if (picture && pread(out, picture, (size_t)size, 0) != size) picture[0] = 0;
    }
    if (in >= 0) close(in);
    if (out >= 0) close(out);
    return picture;
}

const char *gnuplot_problem(void) {
    static const char *problem;
    static bool tried;
    if (tried) return problem;
    tried = true;
    char *picture = gnuplot_draw("set terminal svg\nplot 0\n");
    if (!picture)
        problem = errno == ENOENT ? "There are no charts because gnuplot is not installed "
                                    "(package gnuplot-nox or gnuplot)."
                                  : "There are no charts because gnuplot failed.";
    free(picture);
    return problem;
}
