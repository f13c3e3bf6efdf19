#include "model/task/reward.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stb/stb_ds.h>

#include "data/corpus/prompts.h"
#include "data/util/json.h"
#include "data/util/progress.h"

enum { ANSWER_BYTES_MAX = 1 << 20, WAIT_MS = 100 };

extern char **environ;

/* Reads reward.weights. */
static int read_weights(struct reward *reward, struct error *error) {
    int used = 0;
    for (const char *text = reward->config->reward.weights; *text;
         text += used + (text[used] == ',')) {
        struct reward_weight *weight = &reward->weights[reward->weight_count];
        if (reward->weight_count++ == REWARD_WEIGHTS_MAX ||
            sscanf(text, "%63[^=,]=%lf%n", weight->name, &weight->value, &used) != 2 ||
            !isfinite(weight->value) || (text[used] && text[used] != ','))
            return fail(
                error,
                "reward.weights \"%.200s\": write name=number,name=number, at most %d of them",
                reward->config->reward.weights, REWARD_WEIGHTS_MAX);
    }
    return 0;
}

/* Connects descriptors 0 and 1 of the program to two pipes, and starts it. */
static int start(struct reward *reward, const int input[2], const int output[2]) {
    char *const arguments[] = {"sh", "-c", (char *)reward->config->reward.command, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t defaults;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    int status = posix_spawn_file_actions_init(&actions);
    if (status) return status;
    status = posix_spawnattr_init(&attributes);
    if (status == 0) {
        /* Ctrl-C on a terminal reaches the run alone, which ends after its step. */
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF);
        posix_spawnattr_setpgroup(&attributes, 0);
        posix_spawnattr_setsigdefault(&attributes, &defaults);
        posix_spawn_file_actions_adddup2(&actions, input[0], STDIN_FILENO);
        posix_spawn_file_actions_adddup2(&actions, output[1], STDOUT_FILENO);
        status =
            posix_spawn(&reward->process, "/bin/sh", &actions, &attributes, arguments, environ);
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&actions);
    if (status) reward->process = 0;
    return status;
}

static int open_command(struct reward *reward, struct error *error) {
    int input[2], output[2];
    if (pipe2(input, O_CLOEXEC)) return fail(error, "reward.command: %s", strerror(errno));
    if (pipe2(output, O_CLOEXEC)) {
        fail(error, "reward.command: %s", strerror(errno));
        close(input[0]), close(input[1]);
        return -1;
    }
    const int status = start(reward, input, output);
    close(input[0]), close(output[1]);
    reward->to = input[1], reward->from = output[0];
    fcntl(reward->to, F_SETFL, O_NONBLOCK);
    return status ? fail(error, "reward.command: cannot start sh: %s", strerror(status)) : 0;
}

int reward_open(struct reward *reward, const struct config *config, struct error *error) {
    *reward = (struct reward){.config = config, .to = -1, .from = -1};
    if (read_weights(reward, error)) return -1;
    if (config->reward.command[0]) return open_command(reward, error);
    if (!config->reward.pattern[0]) return 0;
    const int status = regcomp(&reward->pattern, config->reward.pattern, REG_EXTENDED);
    reward->has_pattern = status == 0;
    if (status == 0 && reward->pattern.re_nsub >= 1) return 0;
    char text[200] = "it has no group ( ) around the answer";
    if (status) regerror(status, &reward->pattern, text, sizeof text);
    return fail(error, "reward.pattern \"%.200s\": %s", config->reward.pattern, text);
}

/* Waits up to a second for the end of the program. Returns false if it is still running. */
static bool has_ended(const struct reward *reward, int *status) {
    pid_t ended = 0;
    for (int i = 0; i < 40 && ended == 0; i++) {
        if (i > 0) usleep(25000);
        ended = waitpid(reward->process, status, WNOHANG);
    }
    return ended != 0;
}

/* The end of its input asks the program to end. What is left of its group is killed. */
void reward_close(struct reward *reward) {
    int ignored;
    if (reward->has_pattern) regfree(&reward->pattern);
    if (reward->to >= 0) close(reward->to), close(reward->from);
    if (reward->process > 0) {
        const bool ended = has_ended(reward, &ignored);
        kill(-reward->process, SIGKILL);
        if (!ended) waitpid(reward->process, NULL, 0);
    }
    arrfree(reward->input);
    *reward = (struct reward){.to = -1, .from = -1};
}

/* Fails with a message about a row. detail: the text that caused it, or "". */
static int fail_row(const struct reward_request *request, const char *what, const char *detail,
                    struct error *error) {
    char reason[400];
    snprintf(reason, sizeof reason, "%.300s%s%s", what, *detail ? ": " : "",
             json_text_shown(detail).text);
    return prompts_fail(request->loader, request->sample, reason, error);
}

/* Names how the program has ended. */
static int fail_ended(struct reward *reward, const struct reward_request *request,
                      struct error *error) {
    int status = 0;
    char text[96] = "closed its output before it answered";
    const bool ended = has_ended(reward, &status);
    if (ended && WIFSIGNALED(status))
        snprintf(text, sizeof text, "was ended by signal %d before it answered", WTERMSIG(status));
    else if (ended)
        snprintf(text, sizeof text, "ended with status %d before it answered", WEXITSTATUS(status));
    char what[160];
    snprintf(what, sizeof what, "reward.command %s", text);
    return fail_row(request, what, "", error);
}

/* Returns the weighted sum of named rewards; NAN if one has no weight or the reverse, and if none
 * is a number. null adds nothing, as TRL's None. */
static double weighted_sum(const struct reward *reward, const struct cJSON *named) {
    const struct cJSON *item;
    double sum = 0;
    int found = 0, numbers = 0;
    cJSON_ArrayForEach(item, named) {
        double weight = reward->weight_count ? NAN : 1;
        for (int i = 0; i < reward->weight_count; i++)
            if (strcmp(reward->weights[i].name, item->string) == 0)
                weight = reward->weights[i].value, found++;
        numbers += cJSON_IsNumber(item);
        if (!cJSON_IsNull(item) || isnan(weight))
            sum += cJSON_IsNumber(item) ? weight * item->valuedouble : NAN;
    }
    return numbers > 0 && found == reward->weight_count ? sum : NAN;
}

/* Reads {"reward": number or {name: number}}. */
static int read_answer(const struct reward *reward, const struct reward_request *request,
                       const char *line, double *value, struct error *error) {
    struct cJSON *root;
    struct error reason;
    size_t column;
    *value = NAN;
    if (json_parse_row(&root, line, strlen(line), &column, &reason) == 0) {
        const struct cJSON *member = json_member(root, "reward");
        if (cJSON_IsNumber(member) && reward->weight_count == 0) *value = member->valuedouble;
        if (cJSON_IsObject(member)) *value = weighted_sum(reward, member);
    }
    cJSON_Delete(root);
    if (isfinite((float)*value)) return 0;
    return fail_row(request,
                    reward->weight_count
                        ? "reward.command must answer {\"reward\": {name: number}}, with all names "
                          "of reward.weights and no others, but wrote"
                        : "reward.command must answer {\"reward\": number}, or {\"reward\": {name: "
                          "number}}, but wrote",
                    line, error);
}

/* Removes the first line of the input. Returns it, for the caller to free with arrfree, or NULL if
 * none is complete. */
static char *take_line(struct reward *reward) {
    const size_t size = arrlenu(reward->input);
    const char *end = size ? memchr(reward->input, '\n', size) : NULL;
    char *line = NULL;
    if (!end) return NULL;
    const size_t length = (size_t)(end - reward->input);
    arrsetlen(line, length + 1);
    memcpy(line, reward->input, length);
    line[length] = '\0';
    arrdeln(reward->input, 0, length + 1);
    return line;
}

/* Writes without a SIGPIPE, which would look like a closed terminal. */
static ssize_t write_quietly(int descriptor, const char *bytes, size_t size) {
    sigset_t broken, before;
    sigemptyset(&broken);
    sigaddset(&broken, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken, &before);
    const ssize_t put = write(descriptor, bytes, size);
    const int failure = errno;
    if (put < 0 && failure == EPIPE) sigtimedwait(&broken, NULL, &(struct timespec){0});
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = failure;
    return put;
}

/* Waits until the program reads or writes, and passes bytes of `requests` from *sent on to it.
 * Returns RESULT_NONE if it has closed its output. */
static int exchange(struct reward *reward, const char *requests, size_t *sent, int wait_ms) {
    struct pollfd wait[2] = {
        {.fd = reward->from, .events = POLLIN},
        {.fd = *sent < arrlenu(requests) ? reward->to : -1, .events = POLLOUT}};
    char bytes[4096];
    if (poll(wait, 2, wait_ms) <= 0) return 0;
    if (wait[1].revents) {
        const ssize_t put = write_quietly(reward->to, requests + *sent, arrlenu(requests) - *sent);
        if (put > 0) *sent += (size_t)put;
        if (put < 0 && errno != EAGAIN && errno != EINTR) *sent = arrlenu(requests);
    }
    if (!wait[0].revents) return 0;
    const ssize_t got = read(reward->from, bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) return 0;
    if (got <= 0) return RESULT_NONE;
    memcpy(arraddnptr(reward->input, (size_t)got), bytes, (size_t)got);
    return 0;
}

/* Gets the next answer. *sent bytes of the requests have been passed on. The time limit is that of
 * a whole answer, since the one before it. */
static int next_answer(struct reward *reward, const struct reward_request *request,
                       const char *requests, size_t *sent, double *value, struct error *error) {
    const double limit = reward->config->reward.timeout, began = progress_clock();
    char *line;
    while (!(line = take_line(reward))) {
        char what[96];
        if (arrlenu(reward->input) > ANSWER_BYTES_MAX)
            return fail_row(request, "reward.command wrote no line feed in 1 MiB", "", error);
        if (exchange(reward, requests, sent, WAIT_MS) == RESULT_NONE)
            return fail_ended(reward, request, error);
        if (progress_clock() - began < limit) continue;
        snprintf(what, sizeof what, "reward.command did not answer in %g s (reward.timeout)",
                 limit);
        return fail_row(request, what, "", error);
    }
    const int status = read_answer(reward, request, line, value, error);
    arrfree(line);
    return status;
}

/* Rates one completion by the member reward.match of its row. */
static int match(const struct reward *reward, const struct reward_request *request, double *value,
                 struct error *error) {
    const char *name = reward->config->reward.match, *found = request->completion;
    size_t size = request->size, column;
    struct cJSON *root;
    struct error reason;
    if (json_parse_row(&root, request->json, strlen(request->json), &column, &reason))
        return fail_row(request, reason.text, "", error);
    const char *answer = json_text(root, name);
    if (reward->has_pattern) {
        regmatch_t groups[2];
        char *text = strndup(found, size);
        const bool matches = text && regexec(&reward->pattern, text, 2, groups, 0) == 0;
        free(text);
        size = 0;
        if (matches && groups[1].rm_so >= 0) {
            found += groups[1].rm_so;
            size = (size_t)(groups[1].rm_eo - groups[1].rm_so);
        }
    }
    while (size > 0 && strchr(" \t\r\n", *found)) found++, size--;
    while (size > 0 && strchr(" \t\r\n", found[size - 1])) size--;
    *value = answer && strlen(answer) == size && memcmp(answer, found, size) == 0;
    const int status =
        answer
            ? 0
            : fail_row(request, "the row has no string with the name of reward.match", name, error);
    cJSON_Delete(root);
    return status;
}

int reward_rate(struct reward *reward, const struct reward_request *requests, int64_t count,
                int (*take)(void *context, int64_t index, double value, struct error *error),
                void *context, struct error *error) {
    char *lines = NULL; /* stb_ds array */
    size_t sent = 0;
    int status = 0;
    if (reward->process > 0 && count > 0) exchange(reward, NULL, &sent, 0);
    if (arrlenu(reward->input) > 0)
        return fail_row(&requests[0],
                        "reward.command wrote more answers than the requests before this one", "",
                        error);
    for (int64_t i = 0; reward->process > 0 && i < count; i++) {
        const size_t size = strlen(requests[i].json);
        memcpy(arraddnptr(lines, size), requests[i].json, size);
    }
    for (int64_t i = 0; status == 0 && i < count; i++) {
        double value;
        status = reward->process > 0
                     ? next_answer(reward, &requests[i], lines, &sent, &value, error)
                     : match(reward, &requests[i], &value, error);
        if (status == 0) status = take(context, i, value, error);
    }
    arrfree(lines);
    return status;
}
