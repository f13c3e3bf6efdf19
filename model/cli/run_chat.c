#include "model/cli/run_chat.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <stb/stb_ds.h>

#include "data/corpus/chat.h"
#include "data/corpus/chat_file.h"
#include "data/util/note.h"
#include "data/util/program.h"
#include "data/util/signals.h"
#include "model/cli/run_sample.h"
#include "model/cli/text_stream.h"
#include "model/session/setup.h"
#include "model/session/sample_model.h"

struct conversation {
    const struct chat_template *template;
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
 * signal, except after SIGINT on a terminal, which it reads again. */
static bool read_line(struct conversation *chat, char **text, size_t *capacity) {
    for (;;) {
        if (chat->terminal) fputs("> ", stdout);
        fflush(stdout);
        errno = 0;
        ssize_t size = getline(text, capacity, stdin);
        if (size > 0 && (*text)[size - 1] == '\n') (*text)[--size] = 0;
        if (size >= 0 && *chat->stop != SIGTERM) return true;
        if (*chat->stop != SIGINT || errno != EINTR || !chat->terminal) return false;
        fputs("\nCtrl-D ends the conversation.\n", stdout);
        clearerr(stdin);
        signals_resume();
    }
}

/* Reads a turn of the user and prints the answer. */
static int answer(struct conversation *chat, const char *user, struct error *error) {
    struct sample_options *options = &chat->sampler.options;
    struct sample_result result;
    int32_t *tokens = NULL;
    char *text = NULL;
    uint64_t before = chat->sampler.position;
    chat->stream.tokens = 0;
    if (chat->unread) arrput(tokens, chat->stream.last);
    chat_turn(chat->template, chat->system, user, chat->first, &text);
    arrput(text, 0);
    int status = sample_encode(&tokens, chat->tokenizer, text, false, error);
    if (status == 0) {
        if (chat->sampler.length + arrlen(tokens) > chat->sampler.window)
            note(stderr, "note",
                 "the conversation is longer than %" PRId64 " tokens; its beginning is dropped",
                 chat->sampler.window);
        options->prompt = tokens;
        options->prompt_length = arrlen(tokens);
        status = sampler_generate(&chat->sampler, &result, error);
        before += (uint64_t)arrlen(tokens);
        chat->unread = chat->sampler.position - before < (uint64_t)chat->stream.tokens;
        text_stream_end(&chat->stream);
        fputc('\n', stdout);
        if (status == 0 && chat->terminal) sample_print_speed(stderr, &result, 1);
    }
    chat->first = false;
    arrfree(tokens);
    arrfree(text);
    return status;
}

/* Begins a new conversation: the model forgets the one before. */
static void reset(struct conversation *chat) {
    sampler_begin(&chat->sampler);
    chat->first = true;
    chat->unread = false;
}

static int converse(struct conversation *chat, struct error *error) {
    char *line = NULL;
    size_t capacity = 0;
    int status = 0;
    if (chat->terminal) puts("/reset begins a new conversation, /exit or Ctrl-D ends.");
    while (status == 0 && !ferror(stdout) && read_line(chat, &line, &capacity)) {
        if (!line[0]) continue;
        if (strcmp(line, "/exit") == 0) break;
        if (strcmp(line, "/reset") == 0) {
            reset(chat);
            continue;
        }
        status = answer(chat, line, error);
        if (*chat->stop && *chat->stop != SIGINT) break;
        signals_resume();
    }
    if (chat->terminal) fputc('\n', stdout);
    free(line);
    if (status) return EXIT_FAILED;
    return *chat->stop ? EXIT_SIGNAL + *chat->stop : EXIT_DONE;
}

static int open_and_converse(struct conversation *chat, const struct config *config,
                             const char *from, const struct command_line *line,
                             struct error *error) {
    struct sample_options options = sample_options_of(config);
    struct sample_model sampled;
    struct config fitted = *config;
    if (sample_find_ends(&options, config, chat->tokenizer, from, error)) return EXIT_FAILED;
    options.ends[options.end_count++] = chat_end_token(chat->template, chat->tokenizer);
    fitted.data.seq_len = sample_model_context(config);
    fitted.samples = 1;
    if (sample_model_open(&sampled, &fitted, from, error)) return EXIT_FAILED;
    chat->stop = options.stop = signals_catch();
    chat->stream = (struct text_stream){.out = stdout,
                                        .tokenizer = chat->tokenizer,
                                        .stops = line->stops,
                                        .keeps_controls = !isatty(STDOUT_FILENO)};
    options.vocabulary = chat->tokenizer->vocab_size;
    options.emit = text_stream_token;
    options.context = &chat->stream;
    int status = EXIT_FAILED;
    if (sampler_open(&chat->sampler, &sampled.model, &options, error) == 0) {
        status = converse(chat, error);
        sampler_close(&chat->sampler);
    }
    sample_model_close(&sampled);
    return status;
}

int run_chat(const struct config *config, const char *from, const struct command_line *line,
             struct error *error) {
    struct tokenizer tokenizer;
    if (setup_tokenizer(&tokenizer, config, from, NULL, 0, error)) return EXIT_FAILED;
    struct conversation chat = {.template = chat_template_of(&tokenizer),
                                .tokenizer = &tokenizer,
                                .system = line->system,
                                .first = true,
                                .terminal = isatty(STDIN_FILENO)};
    int status = EXIT_FAILED;
    if (chat.template) chat_file_note(stderr, tokenizer.directory, chat.template, !chat.system);
    if (chat.template) status = open_and_converse(&chat, config, from, line, error);
    else
        fail(error,
             "%s: its tokenizer is for no known chat template (ChatML, Llama 3, Mistral, "
             "Gemma, OLMo 2, EXAONE 4)\n./train --sample TEXT continues a text instead",
             from);
    tokenizer_close(&tokenizer);
    return status;
}
