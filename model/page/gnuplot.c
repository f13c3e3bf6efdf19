#include "model/page/gnuplot.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COMMAND_NOT_FOUND = 127 }; /* exit status of a shell */

/* Runs gnuplot on a script. Returns its exit status and sets *picture, which is to be freed. */
static int run_gnuplot(char **picture, const char *script) {
    int file = memfd_create("script", 0), status = EXIT_FAILURE;
    size_t length = strlen(script), room = 0;
    char command[80];
    *picture = NULL;
    snprintf(command, sizeof command, "exec gnuplot --default-settings /dev/fd/%d 2>/dev/null",
             file);
    if (file >= 0 && write(file, script, length) == (ssize_t)length) {
        FILE *output = popen(command, "r");
        bool drawn = output && getdelim(picture, &room, '\0', output) > 0;
        if (output) status = pclose(output);
        status = WIFEXITED(status) && (drawn || WEXITSTATUS(status)) ? WEXITSTATUS(status)
                                                                     : EXIT_FAILURE;
    }
    if (file >= 0) close(file);
    return status;
}

char *gnuplot_draw(const char *script) {
    char *picture;
    if (run_gnuplot(&picture, script) == 0) return picture;
    free(picture);
    return NULL;
}

const char *gnuplot_problem(void) {
    static int status = -1;
    char *picture = NULL;
    if (status < 0) status = run_gnuplot(&picture, "set terminal svg\nplot 0\n");
    free(picture);
    return status == 0                   ? NULL
           : status == COMMAND_NOT_FOUND ? "There are no charts because gnuplot is not installed "
                                           "(package gnuplot-nox or gnuplot)."
                                         : "There are no charts because gnuplot failed.";
}
