#include "model/cli/rank_output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "data/util/files.h"

/* Redirects standard output and standard error, and closes the descriptor. */
static void redirect_output(int descriptor) {
    fflush(stdout);
    dup2(descriptor, STDOUT_FILENO);
    dup2(descriptor, STDERR_FILENO);
    close(descriptor);
}

int rank_output_quiet(const struct ranks *ranks) {
    int before = dup(STDERR_FILENO);
    int null = ranks->rank > 0 ? open("/dev/null", O_WRONLY | O_CLOEXEC) : -1;
    if (null >= 0) redirect_output(null);
    return before;
}

int rank_output_log(const struct ranks *ranks, const struct config *config, struct error *error) {
    /* The path fits: name and run_dir have at most CONFIG_STRING_MAX bytes each. */
    char path[FILE_PATH_MAX], directory[2 * CONFIG_STRING_MAX + 16];
    if (ranks->rank == 0) return 0;
    snprintf(directory, sizeof directory, "%s/%s/ranks", config->run_dir, config->name);
    if (directory_refuse_link(directory, error) || directory_create(directory, error)) return -1;
    snprintf(path, sizeof path, "%s/rank-%05d.txt", directory, ranks->rank);
    int file = file_open_own(path, error);
    if (file < 0) return -1;
    if (fcntl(file, F_SETFL, O_APPEND))
        return fail(error, "cannot write %.400s: %s", path, strerror(errno));
    redirect_output(file);
    return 0;
}

double rank_output_delay(const struct ranks *ranks) {
    if (ranks->rank == 0) return 0;
    return 4 + 0.25 * (ranks->rank < 40 ? ranks->rank : 40);
}
