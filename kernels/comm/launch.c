#include "kernels/comm/launch.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <omp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "data/util/files.h"
#include "data/util/note.h"
#include "data/util/program_names.h"
#include "kernels/comm/mpi.h"

static int number_in(const char *name) {
    const char *value = getenv(name);
    return value ? atoi(value) : 0;
}

/* Slurm's own variables are set in every process of an allocation, also in those that are not one
 * of several tasks. PMIx's are set only if srun starts an MPI program. */
int ranks_launched(void) {
    int count = number_in("OMPI_COMM_WORLD_SIZE");
    if (!count) count = number_in("PMI_SIZE");
    if (!count && getenv("PMIX_RANK")) count = number_in("SLURM_STEP_NUM_TASKS");
    return count > 0 ? count : 1;
}

int ranks_launched_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i])) return number_in(names[i]);
    return 0;
}

static int without_module(const char *what, struct error *error) {
    return fail(error,
                "%s, but this program was built without MPI\ninstall libopenmpi-dev and "
                "openmpi-bin (Debian, Ubuntu), or another MPI with its mpicc, and run make again",
                what);
}

/* Sets the path of the module, which lies beside the program. */
static int module_path(char path[FILE_PATH_MAX], const char *what, struct error *error) {
    if (program_folder(path)) return fail(error, "cannot read /proc/self/exe: %s", strerror(errno));
    snprintf(path + strlen(path), FILE_PATH_MAX - strlen(path), "train_mpi.so");
    return access(path, R_OK) ? without_module(what, error) : 0;
}

static const struct mpi_module *load_module(int count, struct error *error) {
    char path[FILE_PATH_MAX], what[64];
    snprintf(what, sizeof what, "%d processes were started", count);
    if (module_path(path, what, error)) return NULL;
    /* Open MPI's plugins resolve its symbols globally. */
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    const struct mpi_module *module = library ? dlsym(library, "mpi_module") : NULL;
    if (module && module->version == MPI_MODULE_VERSION) return module;
    fail(error,
         "%s, but %.400s\ninstall the MPI that this program was built with, or run make again",
         what, module ? "train_mpi.so is of another version" : dlerror());
    return NULL;
}

int ranks_open(struct ranks *ranks, struct error *error) {
    int count = ranks_launched();
    *ranks = ranks_alone;
    if (count == 1) return 0;
    const struct mpi_module *module = load_module(count, error);
    if (!module || mpi_open(ranks, module, 0, error)) return -1;
    if (ranks->size == count) return 0;
    return fail(error,
                "%d processes were started, but %s sees %d\nuse the mpirun of the MPI that this "
                "program was built with, or run make again",
                count, ranks->description, ranks->size);
}

/* Open MPI refuses more processes than cores, binds each to a core, although ranks have threads,
 * and refuses to run as root. All ranks run on this machine, where they need no network. A rank
 * that fails prints its reason, which mpirun's own report would bury. Other launchers ignore the
 * settings. */
static void set_environment(void) {
    static const char *const settings[][2] = {
        {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
        {"OMPI_MCA_hwloc_base_binding_policy", "none"},
        {"OMPI_MCA_btl", "^tcp"},
        {"OMPI_MCA_orte_execute_quiet", "1"},
        {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"}, /* Open MPI 5's names */
        {"PRTE_MCA_hwloc_default_binding_policy", "none"},
    };
    static const char *const of_root[] = {"OMPI_ALLOW_RUN_AS_ROOT",
                                          "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        setenv(settings[i][0], settings[i][1], 0);
    for (size_t i = 0; geteuid() == 0 && i < 2; i++) setenv(of_root[i], "1", 0);
    /* mpirun gives rank 0 a terminal of its own, even if its output is none. */
    if (!isatty(STDOUT_FILENO)) setenv("TERM", "dumb", 1);
}

/* Blocks the signals of a terminal or a user, and mpirun's SIGCHLD, so that signalfd can read them.
 * A SIGHUP that nohup ignores is left out: once blocked, it would still be delivered. Threads of
 * OpenMP, which reading a model starts, would not block them and would receive them instead. */
static void block_signals(sigset_t *blocked, sigset_t *before) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD};
    struct sigaction action;
    omp_pause_resource_all(omp_pause_hard);
    sigemptyset(blocked);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i] != SIGHUP || sigaction(SIGHUP, NULL, &action) ||
            action.sa_handler != SIG_IGN)
            sigaddset(blocked, numbers[i]);
    sigprocmask(SIG_BLOCK, blocked, before);
}

static int exit_status(int status) {
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Waits for a signal. Returns SIGPIPE, once, when the reader of standard output has gone: mpirun
 * gets it too, and after a few more writes ends all ranks. Returns SIGCHLD without a signal. */
static int next_signal(int signals, bool *watches_output) {
    struct signalfd_siginfo info;
    struct pollfd polled[] = {{.fd = signals, .events = POLLIN},
                              {.fd = *watches_output ? STDOUT_FILENO : -1}};
    poll(polled, 2, -1);
    if (polled[1].revents) *watches_output = false;
    if (polled[1].revents & POLLERR) return SIGPIPE;
    return read(signals, &info, sizeof info) == sizeof info ? (int)info.ssi_signo : SIGCHLD;
}

/* Reports a rank that was killed or crashed: it has printed nothing itself, and set_environment
 * silences mpirun. Signals that stop a run in order are reported by the ranks. */
static void report_end(int status) {
    int number = status - 128;
    if (number <= 0 || number == SIGINT || number == SIGTERM || number == SIGUSR1) return;
    note(stderr, "train",
         "--ranks: a rank was ended by signal %d (%s), and so were the others\n%s; continue with "
         "--resume",
         number, strsignal(number),
         number == SIGKILL ? "if nobody killed it, the system was out of memory (see dmesg)"
                           : "this is a bug if its messages name no reason");
}

/* Turns the first signal into SIGUSR1, which mpirun passes on to the ranks: they save a checkpoint
 * and end. After SIGTERM mpirun would kill them within two seconds. A second signal ends mpirun,
 * except SIGHUP and SIGPIPE, which arrive several times when a terminal or a reader goes. */
static int wait_for_mpirun(pid_t mpirun, int signals) {
    int status = 0, times = 0, first = 0;
    bool watches_output = true;
    while (waitpid(mpirun, &status, WNOHANG) != mpirun) {
        int number = next_signal(signals, &watches_output);
        if (number == SIGCHLD || (times > 0 && (number == SIGHUP || number == SIGPIPE))) continue;
        if (times == 0) first = number;
        kill(mpirun, times++ == 0 ? SIGUSR1 : SIGTERM);
    }
    bool stopped = first && (times > 1 || exit_status(status) == 128 + SIGUSR1);
    if (!first) report_end(exit_status(status));
    return stopped ? 128 + first : exit_status(status);
}

/* Runs mpirun in a process group of its own, which the terminal's Ctrl-C does not reach, and so
 * without input. */
static void execute_mpirun(char **command, const sigset_t *signals) {
    int null_device = open("/dev/null", O_RDONLY);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* ends mpirun if this process dies */
    sigprocmask(SIG_SETMASK, signals, NULL);
    if (null_device >= 0) dup2(null_device, STDIN_FILENO);
    execvp(command[0], command);
    note(stderr, "train",
         "--ranks: cannot start mpirun: %s\ninstall openmpi-bin (Debian, Ubuntu), or put the "
         "mpirun of the MPI that this program was built with on the PATH",
         strerror(errno));
    _exit(EXIT_FAILURE);
}

int ranks_launch(int64_t count, char **argv, struct error *error) {
    char path[FILE_PATH_MAX], number[24], what[48];
    size_t arguments = 0;
    snprintf(what, sizeof what, "--ranks %" PRId64, count);
    if (module_path(path, what, error)) return -1;
    program_path(path);
    while (argv[arguments]) arguments++;
    char **command = calloc(arguments + 4, sizeof *command);
    if (!command) return fail_memory(error, "%s", what);
    snprintf(number, sizeof number, "%" PRId64, count);
    command[0] = "mpirun";
    command[1] = "-n";
    command[2] = number;
    command[3] = path;
    memcpy(command + 4, argv + 1, arguments * sizeof *command); /* including the NULL */
    set_environment();
    sigset_t blocked, before;
    block_signals(&blocked, &before);
    int signals = signalfd(-1, &blocked, SFD_CLOEXEC | SFD_NONBLOCK);
    pid_t mpirun = signals >= 0 ? fork() : -1;
    if (mpirun == 0) execute_mpirun(command, &before);
    int status =
        mpirun > 0 ? wait_for_mpirun(mpirun, signals) : fail(error, "%s: cannot fork", what);
    if (signals >= 0) close(signals);
    free(command);
    return status;
}
