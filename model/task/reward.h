/* Rewards of completions: a program of the user, or the match of an answer.
 *
 * The program is started once, by sh -c in a process group of its own, and reads requests on its
 * standard input: JSON Lines, each a row of the data with a member "completion". It answers each
 * with a line {"reward": number} or {"reward": {name: number or null, ...}}, whose sum, weighted by
 * reward.weights, is the reward, in the order of the requests. It may read ahead, and must flush
 * its output. What it writes to standard error is not redirected. Its standard input ends with the
 * run. */
#pragma once

#include <regex.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "data/util/error.h"
#include "model/config/config.h"

struct loader;

enum { REWARD_WEIGHTS_MAX = 16 };

struct reward {
    const struct config *config;
    struct reward_weight {
        char name[64];
        double value;
    } weights[REWARD_WEIGHTS_MAX]; /* of reward.weights */
    int weight_count;
    regex_t pattern;
    bool has_pattern;
    pid_t process; /* 0: none */
    int to, from;  /* descriptors of its standard input and output */
    char *input;   /* stb_ds array: output of the program that has not been read as answers */
};

/* A completion to rate. */
struct reward_request {
    char *json;             /* the line for the program, with its line feed */
    const char *completion; /* [size] */
    size_t size;
    const struct loader *loader; /* of prompts */
    uint64_t sample;             /* the prompt's */
};

int reward_open(struct reward *reward, const struct config *config, struct error *error);
void reward_close(struct reward *reward);

/* Rates `count` completions and passes each value on, in order, as soon as it is known. Fails, with
 * a message that names the row, if the program ends, does not answer in reward.timeout seconds, or
 * answers anything but a finite reward or more than it was asked, if a row lacks the member
 * reward.match, and if `take` does. */
int reward_rate(struct reward *reward, const struct reward_request *requests, int64_t count,
                int (*take)(void *context, int64_t index, double value, struct error *error),
                void *context, struct error *error);
