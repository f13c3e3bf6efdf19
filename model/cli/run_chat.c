#include "model/cli/run_chat.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <stb/stb_ds.h>

#include "data/corpus/chat.h"
#include "data/util/program.h"
#include "data/util/signals.h"
#include "model/cli/run_sample.h"
#include "model/cli/text_stream.h"
#include "model/io/run_setup.h"
#include "model/io/sample_model.h"

struct conversation {
    const struct chat_template *chat;
    const struct tokenizer *tokenizer;
    const char *system;
    struct sampler sampler;
    struct text_stream stream;
    const volatile sig_atomic_t *stop;
    bool first;    /* no turn has been read */
    bool unread;   /* the last token of the answer before is not in the context yet */
    bool terminal; /* standard input is a terminal: prompts are printed */
};

/* Reads a line without its end into *text (getline). False at the end of the input or after a
 * signal other than SIGINT, which only asks again. */
static bool read_line(struct conversation *talk, char **text, size_t *capacity) {
    for (;;) {
        if (talk->terminal) fputs("> ", stdout);
        fflush(stdout);
        errno = 0;
        ssize_t size = getline(text, capacity, stdin);
        if (size > 0 && (*text)[size - 1] == '\n') (*text)[--size] = 0;
        if (size >= 0 && *talk->stop != SIGTERM) return true;
        if (*talk->stop != SIGINT || errno != EINTR) return false;
        fputs("\nCtrl-D ends the conversation.\n", stdout);
        clearerr(stdin);
        signals_resume();
    }
}

/* Reads a turn of the user and prints the answer. */
static int answer(struct conversation *talk, const char *user, struct error *error) {
    struct sample_options *options = &talk->sampler.options;
    struct sample_result result;
    int32_t *tokens = NULL;
    char *text = NULL;
    uint64_t before = talk->sampler.position;
    talk->stream.tokens = 0;
    if (talk->unread) arrput(tokens, talk->stream.last);
    chat_turn(talk->chat, talk->system, user, talk->first, &text);
    arrput(text, 0);
    int status = sample_encode(&tokens, talk->tokenizer, text, error);
    if (status == 0) {
        if (talk->sampler.length + arrlen(tokens) > talk->sampler.window)
            fprintf(stderr,
                    "note: the conversation is longer than %" PRId64
                    " tokens; its beginning is dropped\n",
                    talk->sampler.window);
        options->prompt = tokens;
        options->prompt_length = arrlen(tokens);
        status = sampler_generate(&talk->sampler, &result, error);
        before += (uint64_t)arrlen(tokens);
        talk->unread = talk->sampler.position - before < (uint64_t)talk->stream.tokens;
        text_stream_end(&talk->stream);
        fputc('\n', stdout);
        if (status == 0 && talk->terminal) sample_print_speed(stderr, &result, 1);
    }
    talk->first = false;
    arrfree(tokens);
    arrfree(text);
    return status;
}

static int converse(struct conversation *talk, struct error *error) {
    char *line = NULL;
    size_t capacity = 0;
    int status = 0;
    while (status == 0 && !ferror(stdout) && read_line(talk, &line, &capacity)) {
        if (!line[0]) continue;
        status = answer(talk, line, error);
        if (*talk->stop && *talk->stop != SIGINT) break;
        signals_resume();
    }
    if (talk->terminal) fputc('\n', stdout);
    free(line);
    if (status) return EXIT_FAILED;
    return *talk->stop ? EXIT_SIGNAL + *talk->stop : EXIT_DONE;
}

static int open_and_converse(struct conversation *talk, const struct config *config,
                             const char *from, const struct command_line *line,
                             struct error *error) {
    struct sample_options options = sample_options_of(config, line);
    struct sample_model model;
    struct config fitted = *config;
    fitted.data.seq_len = sample_model_context(config);
    fitted.samples = 1;
    if (sample_model_open(&model, &fitted, from, error)) return EXIT_FAILED;
    talk->stop = options.stop = signals_catch();
    talk->stream =
        (struct text_stream){.out = stdout, .tokenizer = talk->tokenizer, .stops = line->stops};
    options.vocabulary = talk->tokenizer->vocab_size;
    options.ends[0] = talk->tokenizer->end_of_text;
    options.ends[1] = chat_end_token(talk->chat, talk->tokenizer);
    options.emit = text_stream_token;
    options.context = &talk->stream;
    int status = EXIT_FAILED;
    if (sampler_open(&talk->sampler, &model.gpt, &options, error) == 0) {
        status = converse(talk, error);
        sampler_close(&talk->sampler);
    }
    sample_model_close(&model);
    return status;
}

int run_chat(const struct config *config, const char *from, const struct command_line *line,
             struct error *error) {
    struct tokenizer tokenizer;
    if (setup_tokenizer(&tokenizer, config, from, NULL, 0, error)) return EXIT_FAILED;
    struct conversation talk = {.chat = chat_template_of(&tokenizer),
                                .tokenizer = &tokenizer,
                                .system = line->system,
                                .first = true,
                                .terminal = isatty(STDIN_FILENO)};
    int status = EXIT_FAILED;
    if (talk.chat) status = open_and_converse(&talk, config, from, line, error);
    else
        fail(error,
             "%s: its tokenizer has the special tokens of no known chat template (ChatML, "
             "Llama 3, Mistral)\n./train --sample TEXT continues a text instead",
             from);
    tokenizer_close(&tokenizer);
    return status;
}
