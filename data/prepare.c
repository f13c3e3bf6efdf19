/* ./prepare: text in, token shards out.
 *
 * The text is handled in blocks, so that memory does not depend on its length, and the length need
 * not be known: each block gives its end to validation and the rest to training. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/error.h"
#include "data/files.h"
#include "data/tokens.h"

enum { BLOCK_BYTES = 16 << 20, EXIT_USAGE = 2, VOCABULARY = 256 };

static const char HELP[] =
    "Usage: ./prepare --tokenizer bytes --out PREFIX [OPTION]... FILE...\n"
    "\n"
    "Turns text into token shards for ./train: PREFIX_train_000000.bin ... and\n"
    "PREFIX_val_000000.bin ... Several files are joined in the order given; - is the\n"
    "standard input. The shards appear all together at the end, or not at all.\n"
    "\n"
    "  --tokenizer bytes   one token for each byte (vocabulary 256)\n"
    "  --out PREFIX        where the shards go; missing folders are made\n"
    "  --val-fraction F    the part of the text kept for validation, from 0 up to less\n"
    "                      than 1 (default 0.05): the end of the text, and of a text\n"
    "                      longer than 16 MiB the end of each 16 MiB of it\n"
    "  --shard-tokens N    most tokens in one shard (default 100000000)\n"
    "  --force             replace existing shards of PREFIX, all of them\n"
    "  --help              print this\n";

struct options {
    const char *prefix;
    double val_fraction;
    uint64_t shard_tokens;
    bool force;
    bool help;
    char **files;
    int file_count;
};

struct splitter {
    uint8_t *block; /* [BLOCK_BYTES] */
    size_t filled;
    double val_fraction;
    struct shard_writer train, val;
    int signals; /* a signalfd */
    int caught;  /* the signal that ended the run, or 0 */
};

static int read_tokenizer(const char *name, char *error) {
    if (strcmp(name, "bytes") == 0) return 0;
    if (strncmp(name, "gpt2", 4) == 0)
        return fail(error,
                    "--tokenizer %.200s: the GPT-2 tokenizer is not available in this version\n"
                    "use --tokenizer bytes",
                    name);
    return fail(error, "--tokenizer %.200s: unknown; allowed: bytes", name);
}

static int read_fraction(const char *text, double *fraction, char *error) {
    char *end;
    *fraction = strtod(text, &end);
    if (end == text || *end || !(*fraction >= 0 && *fraction < 1))
        return fail(error, "--val-fraction %.200s: allowed is a number from 0 to less than 1",
                    text);
    return 0;
}

static int read_shard_tokens(const char *text, uint64_t *tokens, char *error) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < 1 || value > SHARD_TOKENS_MAX)
        return fail(error, "--shard-tokens %.200s: allowed is a whole number from 1 to %d", text,
                    SHARD_TOKENS_MAX);
    *tokens = (uint64_t)value;
    return 0;
}

static int check_options(const struct options *options, const char *tokenizer, char *error) {
    if (!tokenizer) return fail(error, "--tokenizer is missing: add --tokenizer bytes");
    if (read_tokenizer(tokenizer, error)) return -1;
    if (!options->prefix) return fail(error, "--out is missing: add --out PREFIX");
    size_t length = strlen(options->prefix);
    if (length == 0 || options->prefix[length - 1] == '/')
        return fail(error,
                    "--out \"%.200s\": not the beginning of a file name\n"
                    "add one, for instance --out %.200stext",
                    options->prefix, options->prefix);
    if (options->file_count == 0)
        return fail(error, "no text named: add one or more files, or - for the standard input");
    int inputs = 0;
    for (int i = 0; i < options->file_count; i++) inputs += strcmp(options->files[i], "-") == 0;
    if (inputs > 1) return fail(error, "- (the standard input) is named %d times", inputs);
    return 0;
}

static int read_options(struct options *options, int argc, char **argv, char *error) {
    enum { TOKENIZER = 1, OUT, VAL_FRACTION, SHARD_TOKENS, FORCE, HELP_ASKED };
    static const struct option known[] = {
        {"tokenizer", required_argument, NULL, TOKENIZER},
        {"out", required_argument, NULL, OUT},
        {"val-fraction", required_argument, NULL, VAL_FRACTION},
        {"shard-tokens", required_argument, NULL, SHARD_TOKENS},
        {"force", no_argument, NULL, FORCE},
        {"help", no_argument, NULL, HELP_ASKED},
        {NULL, 0, NULL, 0},
    };
    *options = (struct options){.val_fraction = 0.05, .shard_tokens = SHARD_TOKENS_DEFAULT};
    const char *tokenizer = NULL;
    int status = 0;
    opterr = 0;
    for (int found; status == 0 && (found = getopt_long(argc, argv, ":", known, NULL)) != -1;) {
        switch (found) {
        case TOKENIZER: tokenizer = optarg; break;
        case OUT: options->prefix = optarg; break;
        case VAL_FRACTION: status = read_fraction(optarg, &options->val_fraction, error); break;
        case SHARD_TOKENS: status = read_shard_tokens(optarg, &options->shard_tokens, error); break;
        case FORCE: options->force = true; break;
        case HELP_ASKED: options->help = true; return 0;
        case ':': return fail(error, "%.200s needs a value", argv[optind - 1]);
        default:
            if (optopt > HELP_ASKED) return fail(error, "unknown option -%c", optopt);
            return fail(error, "unknown option %.200s", argv[optind - 1]);
        }
    }
    if (status) return -1;
    options->files = argv + optind;
    options->file_count = argc - optind;
    return check_options(options, tokenizer, error);
}

static int put_bytes(struct shard_writer *writer, const uint8_t *bytes, size_t count, char *error) {
    uint16_t tokens[8192];
    while (count > 0) {
        size_t part = count < 8192 ? count : 8192;
        for (size_t i = 0; i < part; i++) tokens[i] = bytes[i];
        if (shard_writer_put(writer, tokens, part, error)) return -1;
        bytes += part;
        count -= part;
    }
    return 0;
}

static int put_block(struct splitter *splitter, char *error) {
    size_t val = (size_t)((double)splitter->filled * splitter->val_fraction + 0.5);
    /* Rounding up may not leave training with nothing. */
    if (val > 0 && val >= splitter->filled) val = splitter->filled - 1;
    size_t train = splitter->filled - val;
    splitter->filled = 0;
    if (put_bytes(&splitter->train, splitter->block, train, error)) return -1;
    return put_bytes(&splitter->val, splitter->block + train, val, error);
}

/* Waits until fd can be read or a signal has come; timeout 0 only looks. */
static int wait_for_input(struct splitter *splitter, int fd, int timeout, char *error) {
    struct pollfd polls[2] = {{.fd = splitter->signals, .events = POLLIN},
                              {.fd = fd, .events = POLLIN}};
    poll(polls, 2, timeout);
    struct signalfd_siginfo signal_read;
    if (!(polls[0].revents & POLLIN) ||
        read(splitter->signals, &signal_read, sizeof signal_read) != sizeof signal_read)
        return 0;
    splitter->caught = (int)signal_read.ssi_signo;
    return fail(error, "interrupted: no shard was written or replaced");
}

static int put_file(struct splitter *splitter, int fd, const char *name, char *error) {
    for (;;) {
        if (wait_for_input(splitter, fd, -1, error)) return -1;
        ssize_t got = read(fd, splitter->block + splitter->filled, BLOCK_BYTES - splitter->filled);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (got < 0)
            return fail(error, "cannot read %.600s: %s\ncheck the file", name, strerror(errno));
        if (got == 0) return 0;
        splitter->filled += (size_t)got;
        if (splitter->filled == BLOCK_BYTES && put_block(splitter, error)) return -1;
    }
}

static int put_all(struct splitter *splitter, const struct options *options, char *error) {
    for (int i = 0; i < options->file_count; i++) {
        const char *name = options->files[i];
        bool is_input = strcmp(name, "-") == 0;
        /* Without O_NONBLOCK, opening a named pipe would wait where no signal is seen. */
        int fd = is_input ? STDIN_FILENO : open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0) return fail(error, "cannot open %.600s: %s", name, strerror(errno));
        int status = put_file(splitter, fd, is_input ? "the standard input" : name, error);
        if (!is_input) close(fd);
        if (status) return -1;
    }
    if (put_block(splitter, error)) return -1;
    if (splitter->train.tokens == 0)
        return fail(error, "there is no text: %.600s%s empty\nno shard was written",
                    options->files[0], options->file_count > 1 ? " and the others are" : " is");
    if (shard_writer_finish(&splitter->train, error) || shard_writer_finish(&splitter->val, error))
        return -1;
    return wait_for_input(splitter, -1, 0, error);
}

/* A misspelled name should not cost an hour of reading the files before it. */
static int check_files(const struct options *options, char *error) {
    for (int i = 0; i < options->file_count; i++) {
        const char *name = options->files[i];
        struct stat status;
        if (strcmp(name, "-") == 0) continue;
        if (stat(name, &status) || access(name, R_OK))
            return fail(error, "cannot read %.600s: %s\ncheck the path", name, strerror(errno));
        if (S_ISDIR(status.st_mode))
            return fail(error, "%.600s is a folder\nname the text files in it", name);
    }
    return 0;
}

static int check_existing(const struct options *options, const char *train, const char *val,
                          char *error) {
    uint64_t train_shards, val_shards;
    if (shards_existing(train, &train_shards, error) || shards_existing(val, &val_shards, error))
        return -1;
    if (options->force || train_shards + val_shards == 0) return 0;
    return fail(error,
                "%" PRIu64 " shards of %.600s exist already\nadd --force to replace all of them, "
                "or choose another --out",
                train_shards + val_shards, options->prefix);
}

static int create_folder_of(const char *path, char *error) {
    char folder[FILE_PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (!slash || slash == path) return 0;
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
    return directory_create(folder, error);
}

static int open_signals(char *error) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    /* A file size limit is an error like a full disk, to be cleaned up after. */
    signal(SIGXFSZ, SIG_IGN);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return fd >= 0 ? fd : fail(error, "cannot wait for signals: %s", strerror(errno));
}

static void print_summary(const struct splitter *splitter, const char *train, const char *val) {
    const struct shard_writer *t = &splitter->train, *v = &splitter->val;
    if (splitter->val_fraction > 0 && v->tokens == 0)
        fprintf(stderr, "prepare: note: the text is too short for a validation part\n");
    printf("%" PRIu64 " training tokens in %" PRIu64 " shard%s: %s_*.bin; ", t->tokens, t->shards,
           t->shards == 1 ? "" : "s", train);
    if (v->tokens == 0) printf("no validation tokens");
    else
        printf("%" PRIu64 " validation tokens in %" PRIu64 " shard%s: %s_*.bin", v->tokens,
               v->shards, v->shards == 1 ? "" : "s", val);
    printf("; vocabulary %d\n", VOCABULARY);
}

static int prepare(struct splitter *splitter, const struct options *options, const char *train,
                   const char *val, char *error) {
    if (check_files(options, error) || check_existing(options, train, val, error) ||
        create_folder_of(options->prefix, error))
        return -1;
    splitter->signals = open_signals(error);
    if (splitter->signals < 0) return -1;
    splitter->block = malloc(BLOCK_BYTES);
    if (!splitter->block) return fail(error, "out of memory: no room for one block of text");
    if (shard_writer_open(&splitter->train, train, options->shard_tokens, error) ||
        shard_writer_open(&splitter->val, val, options->shard_tokens, error) ||
        put_all(splitter, options, error))
        return -1;
    return shard_writer_publish(&splitter->train, error) ||
                   shard_writer_publish(&splitter->val, error)
               ? -1
               : 0;
}

int main(int argc, char **argv) {
    char error[ERROR_MAX], train[FILE_PATH_MAX], val[FILE_PATH_MAX];
    struct options options;
    if (read_options(&options, argc, argv, error)) {
        fprintf(stderr, "prepare: %s\n./prepare --help shows the options\n", error);
        return EXIT_USAGE;
    }
    if (options.help) {
        fputs(HELP, stdout);
        return EXIT_SUCCESS;
    }
    if (strlen(options.prefix) + 64 > FILE_PATH_MAX) {
        fprintf(stderr, "prepare: --out is too long\n");
        return EXIT_USAGE;
    }
    snprintf(train, sizeof train, "%s_train", options.prefix);
    snprintf(val, sizeof val, "%s_val", options.prefix);
    struct splitter splitter = {.val_fraction = options.val_fraction};
    int status = prepare(&splitter, &options, train, val, error);
    if (status) {
        fprintf(stderr, "prepare: %s\n", error);
        shard_writer_abandon(&splitter.train);
        shard_writer_abandon(&splitter.val);
    } else {
        print_summary(&splitter, train, val);
    }
    free(splitter.block);
    if (splitter.caught) return 128 + splitter.caught;
    return status || fflush(stdout) ? EXIT_FAILURE : EXIT_SUCCESS;
}
