/* ./prepare turns text into token shards. This file holds the command line and the order of
 * steps. */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <stb/stb_ds.h>

#include "data/corpus/chat_file.h"
#include "data/corpus/documents.h"
#include "data/corpus/inputs.h"
#include "data/corpus/splitter.h"
#include "data/corpus/tokenizer_record.h"
#include "data/corpus/tokens.h"
#include "data/tokenize/tokenizer.h"
#include "data/util/error.h"
#include "data/util/files.h"
#include "data/util/json.h"
#include "data/util/min_max.h"
#include "data/util/note.h"
#include "data/util/printed.h"
#include "data/util/program.h"
#include "data/util/program_names.h"
#include "data/util/progress.h"
#include "data/util/signals.h"
#include "data/util/utf8.h"

enum flag {
    TOKENIZER,
    OUT,
    VAL_FRACTION,
    SHARD_TOKENS,
    FORCE,
    FIELD,
    JSONL,
    SKIP_BAD_ROWS,
    SPECIAL_AS_TEXT,
    VERSION,
    HELP,
    FLAGS
};

static const struct flag_row FLAG_ROWS[FLAGS] = {
    [TOKENIZER] = {"--tokenizer", "KIND",
                   "bytes: one token for each byte (vocabulary 256); or\n"
                   "DIR: GPT-2's tokenizer or another one, from the files in\n"
                   "DIR: vocab.json and merges.txt, tokenizer.json, or\n"
                   "tiktoken.json and ranks.tiktoken; or gpt2:DIR, files:DIR"},
    [OUT] = {"--out", "PREFIX", "path prefix of the shards; missing folders are created"},
    [VAL_FRACTION] = {"--val-fraction", "F", "part for validation, 0 to below 1 (default 0.05)"},
    [SHARD_TOKENS] = {"--shard-tokens", "N",
                      "tokens in a shard, or to a row's end (default 100000000)"},
    [FORCE] = {"--force", NULL, "replace existing shards of PREFIX, all of them"},
    [FIELD] = {"--field", "NAMES",
               "members of rows to read: TEXT; INSTRUCTION,INPUT,OUTPUT;\n"
               "PROMPT,COMPLETION, of which only the completion counts;\n"
               "or prompt=NAME,chosen=NAME,rejected=NAME"},
    [JSONL] = {"--jsonl", NULL, "read every input as rows, whatever its name"},
    [SKIP_BAD_ROWS] = {"--skip-bad-rows", NULL,
                       "skip rows without such members instead of stopping"},
    [SPECIAL_AS_TEXT] = {"--special-as-text", NULL, "keep names of special tokens in rows as text"},
    [VERSION] = {"--version", NULL, "print the version"},
    [HELP] = {"--help", NULL, "print this help"},
};

static const char HELP_BEFORE[] =
    "Usage: ./prepare --tokenizer KIND --out PREFIX [OPTION]... INPUT...\n"
    "\n"
    "Turns text into token shards for ./train: PREFIX_train_000000.bin ... and\n"
    "PREFIX_val_000000.bin ..., and PREFIX_tokenizer.json, which names the tokenizer.\n"
    "\n"
    "  ./prepare --tokenizer bytes --out datasets/text my_text.txt notes/\n"
    "\n";
static const char HELP_AFTER[] =
    "\n"
    "INPUT is a file, a folder, a pattern in quotes ('more/*.log'), or - for the\n"
    "standard input. A folder stands for its files, at any depth, that end in .txt\n"
    ".text .md .markdown .rst .jsonl or .ndjson. Files that end in .jsonl .ndjson or\n"
    ".json hold rows, as JSON Lines or one list; others are text. Pipe what is packed\n"
    "(gzip -dc x.gz | ./prepare -), and tables (scripts/rows.py x.parquet | ...).\n"
    "\n"
    "A text file is one document, and so is each row of JSON Lines. <|endoftext|>, or\n"
    "the tokenizer's own token, is put before each document. The characters\n"
    "<|endoftext|> separate documents in a text file. With bytes, files are joined\n"
    "unchanged, and rows are separated by two line feeds.\n"
    "\n"
    "The first row decides for all: \"instruction\", \"input\" and \"output\" (Alpaca),\n"
    "\"text\", \"messages\", \"conversations\" (ShareGPT), \"segments\", \"prompt\" and\n"
    "\"completion\" (and \"label\"), or \"prompt\", \"chosen\" and \"rejected\". Files .mask\n"
    "mark the tokens that count. Chats have ChatML, Llama 3's, Mistral's, Gemma's,\n"
    "OLMo 2's or EXAONE 4's template; for others, use scripts/render_chat.py.\n"
    "\n"
    "Validation gets the end of the text, or the end of every 16 MiB, cut between\n"
    "documents where possible. data/corpus/README.md has all rules.\n"
    "\n"
    "The same inputs give the same shards, with any number of threads.\n";

/* The least that ./train can use: a token to read and one to predict. */
enum { TOKENS_MIN = 2 };

struct options {
    const char *tokenizer; /* as given */
    enum tokenizer_kind kind;
    const char *tokenizer_directory; /* NULL for bytes */
    const char *prefix;
    double val_fraction;
    uint64_t shard_tokens;
    const char *field; /* NULL if not given */
    bool jsonl;
    bool skip_bad_rows;
    bool special_as_text;
    bool force;
    bool help, version;
    char **names;
    int name_count;
};

/* A corpus that is prepared: everything that is open while its text is read. */
struct corpus {
    struct tokenizer tokenizer;
    struct inputs inputs;
    struct documents documents;
    struct splitter splitter;
    struct progress progress;
    const volatile sig_atomic_t *stop; /* NULL: signals end the program */
    char train[FILE_PATH_MAX], val[FILE_PATH_MAX];
    char lock_path[FILE_PATH_MAX];
    int lock; /* descriptor of the file at lock_path, or -1 */
};

static int read_tokenizer(struct options *options, const char *name, struct error *error) {
    if (strcmp(name, "bytes") == 0) return 0;
    const int length = (int)strcspn(name, ":");
    const bool is_kind = (length == 4 && strncmp(name, "gpt2", 4) == 0) ||
                         (length == 5 && strncmp(name, "files", 5) == 0);
    options->kind = TOKENIZER_FILES;
    options->tokenizer_directory = is_kind && name[length] ? name + length + 1 : name;
    if (options->tokenizer_directory == name && file_exists(name)) return 0;
    if (!is_kind)
        return fail(error,
                    "--tokenizer %.200s: there is no such directory\n"
                    "allowed: bytes, DIR (also gpt2:DIR, files:DIR)",
                    name);
    if (name[length] && name[length + 1]) return 0;
    return fail(error,
                "--tokenizer %s: the folder of its vocab.json and merges.txt is missing\n"
                "add it: --tokenizer %.*s:DIR",
                name, length, name);
}

static int read_fraction(const char *text, double *fraction, struct error *error) {
    char *end;
    *fraction = strtod(text, &end);
    if (end == text || *end || !(*fraction >= 0 && *fraction < 1))
        return fail(error, "--val-fraction %.200s: allowed is a number from 0 to less than 1",
                    text);
    return 0;
}

static int read_shard_tokens(const char *text, uint64_t *tokens, struct error *error) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < 1 || value > SHARD_TOKENS_MAX)
        return fail(error, "--shard-tokens %.200s: allowed is a whole number from 1 to %d", text,
                    SHARD_TOKENS_MAX);
    *tokens = (uint64_t)value;
    return 0;
}

static int check_options(struct options *options, struct error *error) {
    if (!options->tokenizer)
        return fail(error, "--tokenizer is missing: add --tokenizer bytes or --tokenizer DIR");
    if (read_tokenizer(options, options->tokenizer, error)) return -1;
    if (!options->prefix) return fail(error, "--out is missing: add --out PREFIX");
    size_t length = strlen(options->prefix);
    if (length == 0 || options->prefix[length - 1] == '/')
        return fail(error,
                    "--out \"%.200s\": not the beginning of a file name\n"
                    "add one, for instance --out %.200stext",
                    options->prefix, options->prefix);
    if (length + 64 > FILE_PATH_MAX) return fail(error, "--out is too long");
    if (options->name_count == 0)
        return fail(error, "no text named: add one or more files, or - for the standard input");
    int inputs = 0;
    for (int i = 0; i < options->name_count; i++) inputs += strcmp(options->names[i], "-") == 0;
    if (inputs > 1) return fail(error, "- (the standard input) is named %d times", inputs);
    return 0;
}

static int take_flag(struct options *options, enum flag flag, const char *value,
                     struct error *error) {
    switch (flag) {
    case TOKENIZER: options->tokenizer = value; return 0;
    case OUT: options->prefix = value; return 0;
    case VAL_FRACTION: return read_fraction(value, &options->val_fraction, error);
    case SHARD_TOKENS: return read_shard_tokens(value, &options->shard_tokens, error);
    case FORCE: options->force = true; return 0;
    case FIELD: options->field = value; return 0;
    case JSONL: options->jsonl = true; return 0;
    case SKIP_BAD_ROWS: options->skip_bad_rows = true; return 0;
    case SPECIAL_AS_TEXT: options->special_as_text = true; return 0;
    case VERSION: options->version = true; return 0;
    case HELP: options->help = true; return 0;
    case FLAGS: break;
    }
    return 0;
}

/* Moves the names of inputs to the front of argv. */
static int read_options(struct options *options, int argc, char **argv, struct error *error) {
    bool only_names = false; /* after -- */
    *options = (struct options){
        .val_fraction = 0.05, .shard_tokens = SHARD_TOKENS_DEFAULT, .names = argv + 1};
    for (int i = 1; i < argc; i++) {
        char *value;
        if (only_names || argv[i][0] != '-' || strcmp(argv[i], "-") == 0) {
            options->names[options->name_count++] = argv[i];
        } else if (strcmp(argv[i], "--") == 0) {
            only_names = true;
        } else {
            const int flag = flags_read(FLAG_ROWS, FLAGS, argc, argv, &i, &value, error);
            if (flag == FLAG_WRONG) return -1;
            if (flag == FLAG_UNKNOWN) return flags_refuse(FLAG_ROWS, FLAGS, argv[i], error);
            if (take_flag(options, (enum flag)flag, value, error)) return -1;
            if (options->help || options->version) return 0;
        }
    }
    return check_options(options, error);
}

static void print_help(void) {
    help_print(stdout, HELP_BEFORE);
    flags_print(stdout, FLAG_ROWS, FLAGS, 24);
    help_print(stdout, HELP_AFTER);
}

static int check_existing(const struct corpus *corpus, const struct options *options,
                          struct error *error) {
    uint64_t train, val;
    if (shards_existing(corpus->train, &train, error) || shards_existing(corpus->val, &val, error))
        return -1;
    if (options->force || train + val == 0) return 0;
    return fail(error,
                "%" PRIu64
                " shard%s of %.600s exist%s already\nadd --force to replace all of them, "
                "or choose another --out",
                train + val, PLURAL(train + val), options->prefix, train + val == 1 ? "s" : "");
}

static int create_folder_of(const char *path, struct error *error) {
    char folder[FILE_PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (!slash || slash == path) return 0;
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
    return directory_create(folder, error);
}

/* Locks PREFIX.lock, a file that exists while a process writes shards of the prefix. */
static int lock_prefix(struct corpus *corpus, const struct options *options, struct error *error) {
    snprintf(corpus->lock_path, sizeof corpus->lock_path, "%s.lock", options->prefix);
    const int status = file_open_locked(&corpus->lock, corpus->lock_path, error);
    if (status != RESULT_NONE) return status;
    return fail(error,
                "another process is writing shards of %.600s\nwait for it, or choose another --out",
                options->prefix);
}

static int open_tokenizer(struct corpus *corpus, const struct options *options,
                          struct error *error) {
    if (tokenizer_open(&corpus->tokenizer, options->kind, options->tokenizer_directory, error))
        return -1;
    if (options->kind == TOKENIZER_BYTES || corpus->tokenizer.end_of_text >= 0) return 0;
    return fail(error,
                "%.600s: a vocabulary without <|endoftext|>, which stands before each document\n"
                "add it to the tokenizer, or use another",
                options->tokenizer_directory);
}

/* Checks as much as possible at the start, since reading may take an hour. */
static int open_corpus(struct corpus *corpus, const struct options *options, struct error *error) {
    if (inputs_open(&corpus->inputs, options->names, options->name_count, options->jsonl, error))
        return -1;
    bool any_jsonl = false;
    for (size_t i = 0; i < arrlenu(corpus->inputs.list); i++)
        any_jsonl |= corpus->inputs.list[i].is_jsonl;
    if (!any_jsonl && (options->field || options->skip_bad_rows || options->special_as_text))
        return fail(error,
                    "%s is for rows, but no input ends in .jsonl, .ndjson or .json\nadd --jsonl if "
                    "that is what they hold, or leave it out",
                    options->field           ? "--field"
                    : options->skip_bad_rows ? "--skip-bad-rows"
                                             : "--special-as-text");
    if (check_existing(corpus, options, error) || open_tokenizer(corpus, options, error) ||
        create_folder_of(options->prefix, error) || lock_prefix(corpus, options, error) ||
        check_existing(corpus, options, error)) /* another process may have made some meanwhile */
        return -1;
    corpus->stop = signals_catch_waiting();
    if (documents_open(&corpus->documents, &corpus->inputs, options->field, &corpus->tokenizer,
                       error))
        return -1;
    corpus->documents.split_documents = options->kind != TOKENIZER_BYTES;
    corpus->documents.skip_bad_rows = options->skip_bad_rows;
    corpus->documents.rows.special_as_text = options->special_as_text;
    progress_open(&corpus->progress, stderr, corpus->inputs.bytes_known ? corpus->inputs.bytes : 0);
    return splitter_open(&corpus->splitter, &corpus->tokenizer, options->val_fraction,
                         corpus->train, corpus->val, options->shard_tokens, &corpus->progress,
                         error);
}

static int put_documents(struct corpus *corpus, const struct options *options,
                         struct error *error) {
    struct document_piece piece;
    int status;
    while ((status = documents_next(&corpus->documents, &piece, error)) == 0) {
        corpus->progress.read = corpus->documents.bytes_read;
        progress_show(&corpus->progress, 0);
        if (splitter_put(&corpus->splitter, &piece, error)) return -1;
    }
    if (status < 0 || splitter_finish(&corpus->splitter, error)) return -1;
    const bool several = arrlenu(corpus->inputs.list) > 1;
    if (corpus->splitter.train.writer.tokens >= TOKENS_MIN)
        return signals_wait(-1) ? documents_interrupted(error) : 0;
    if (corpus->splitter.train.writer.tokens > 0)
        return fail(error, "there is too little text to train on: %.600s%s\nadd more text",
                    options->names[0], several ? " and the others" : "");
    return fail(error, "there is no text: %.600s%s empty\nno shard was written", options->names[0],
                several ? " and the others are" : " is");
}

/* The order keeps record and shards consistent even if the program is interrupted. */
static int publish(struct corpus *corpus, const struct options *options, struct error *error) {
    return tokenizer_record_stage(options->prefix, &corpus->tokenizer, options->tokenizer_directory,
                                  error) ||
                   tokenizer_record_remove(options->prefix, error) ||
                   splitter_publish(&corpus->splitter, error) ||
                   tokenizer_record_publish(options->prefix, error)
               ? -1
               : 0;
}

/* True if the folder of the tokenizer also holds a model of Hugging Face. */
static bool has_weights(const char *directory) {
    return directory && file_exists_in(directory, "config.json") &&
           (file_exists_in(directory, "model.safetensors") ||
            file_exists_in(directory, "model.safetensors.index.json"));
}

/* The config that `next:` names for documents that are no pairs is finetune-lora.json or text.json;
 * returns its data.seq_len. */
static uint64_t seq_len_of_config(const struct options *options) {
    return has_weights(options->tokenizer_directory) ? 1024 : 128;
}

/* Returns the number of positions of the model that `next:` begins with, by the keys that
 * model.init_from reads; UINT64_MAX if there is no model, or its config.json has no such key. */
static uint64_t positions_of_model(const struct options *options) {
    static const char *const keys[] = {"max_position_embeddings", "n_positions", "n_ctx"};
    struct json_file file;
    struct error ignored;
    int64_t positions = 0;
    if (!has_weights(options->tokenizer_directory) ||
        json_file_open_in(&file, options->tokenizer_directory, "config.json", &ignored))
        return UINT64_MAX;
    for (size_t i = 0; positions == 0 && i < sizeof keys / sizeof *keys; i++)
        json_whole(&positions, file.root, keys[i], 1, INT32_MAX);
    json_file_close(&file);
    return positions > 0 ? (uint64_t)positions : UINT64_MAX;
}

/* Returns the data.seq_len for `next:`: the config's, or fewer for a model with fewer positions, or
 * for text the largest power of two of which each part has a whole sequence. */
static uint64_t next_seq_len(const struct corpus *corpus, const struct options *options) {
    const uint64_t train = corpus->splitter.train.writer.tokens,
                   val = corpus->splitter.val.writer.tokens;
    const uint64_t shortest = val >= TOKENS_MIN ? MIN(train, val) : train;
    const uint64_t longest = MIN(seq_len_of_config(options), positions_of_model(options));
    uint64_t seq_len = 1;
    if (shortest > longest || corpus->splitter.any_masked) return longest;
    while (2 * seq_len < shortest) seq_len *= 2;
    return seq_len;
}

static void print_special(const struct corpus *corpus) {
    const struct rows *rows = &corpus->documents.rows;
    size_t size;
    const uint8_t *name = tokenizer_bytes(&corpus->tokenizer, rows->special_token, &size);
    note(stderr, "note",
         "strings of %" PRIu64 " row%s name %" PRIu64 " special token%s, as %.*s, which %s",
         rows->special_rows, PLURAL(rows->special_rows), rows->special_count,
         PLURAL(rows->special_count), (int)size, name,
         rows->special_as_text ? "stay text"
                               : "become these tokens; --special-as-text keeps them text");
}

static void print_notes(const struct corpus *corpus, const struct options *options) {
    const struct documents *documents = &corpus->documents;
    if (documents->bad_rows > 0)
        note(stderr, "note", "%" PRIu64 " bad row%s left out, the first: %s", documents->bad_rows,
             documents->bad_rows == 1 ? " was" : "s were",
             documents->first_bad_row ? documents->first_bad_row : "");
    if (documents->lacking_count > 0)
        note(stderr, "note",
             "%" PRIu64 " byte%s no token in this vocabulary, and %s lost as in Hugging Face's "
             "tokenizers; the first: %s",
             documents->lacking_count, documents->lacking_count == 1 ? " has" : "s have",
             documents->lacking_count == 1 ? "is" : "are", documents->first_lacking);
    if (documents->binary > 0)
        note(stderr, "note",
             "%" PRIu64 " file%s not UTF-8 text; the bytes are kept as they are: %s%s",
             documents->binary, documents->binary == 1 ? " is" : "s are", documents->first_binary,
             documents->binary == 1 ? "" : " ...");
    if (documents->misread)
        note(stderr, "note",
             documents->misread_as_json
                 ? "%s begins like JSON, and was read as text; --jsonl reads it as rows"
                 : "%s begins like a table, and was read as text; scripts/rows.py FILE | ./prepare "
                   "... --jsonl - reads its rows",
             documents->misread);
    if (documents->rows.special_count > 0) print_special(corpus);
    if (!options->field) row_members_note(stderr, &documents->rows.members);
    const uint64_t skipped = corpus->inputs.skipped;
    if (skipped > 0)
        note(stderr, "note", "in folders, %" PRIu64 " file%s skipped because of %s: %s%s", skipped,
             skipped == 1 ? " was" : "s were", skipped == 1 ? "its extension" : "their extensions",
             corpus->inputs.skipped_example ? corpus->inputs.skipped_example : "",
             skipped == 1 ? "" : " ...");
    if (documents->rows.chat &&
        chat_file_note(stderr, corpus->tokenizer.directory, documents->rows.chat,
                       documents->rows.without_system))
        note(stderr, "note",
             "if they differ, prepare the chats with scripts/render_chat.py, which uses the "
             "model's own");
    if (options->val_fraction > 0 && corpus->splitter.val.writer.tokens < TOKENS_MIN)
        note(stderr, "note", "the text is too short for a validation part");
}

/* Prints for example: 12 training tokens (5 count in the loss) in 1 shard: text_train_*.bin */
static void print_side(const struct shard_writer *writer, const char *what, const char *prefix) {
    printf("%" PRIu64 " %s token%s", writer->tokens, what, PLURAL(writer->tokens));
    const uint64_t counted = writer->tokens - writer->ignored;
    if (writer->ignored > 0)
        printf(" (%" PRIu64 " count%s in the loss)", counted, counted == 1 ? "s" : "");
    printf(" in %" PRIu64 " shard%s: %s_*.bin", writer->shards, PLURAL(writer->shards), prefix);
}

static void print_summary(const struct corpus *corpus) {
    const double seconds = progress_clock() - corpus->progress.started;
    const double bytes = (double)corpus->documents.bytes_read;
    char size[16], speed[16];
    print_side(&corpus->splitter.train.writer, "training", corpus->train);
    printf("; ");
    if (corpus->splitter.val.writer.tokens == 0) printf("no validation tokens");
    else print_side(&corpus->splitter.val.writer, "validation", corpus->val);
    printf("; vocabulary %d\n", corpus->tokenizer.vocab_size);
    printf("read %s, %" PRIu64 " document%s", progress_bytes(size, bytes),
           corpus->splitter.documents, PLURAL(corpus->splitter.documents));
    if (corpus->documents.row_count > 0) {
        const struct rows *rows = &corpus->documents.rows;
        char names[300];
        rows_names(rows, names, sizeof names);
        if (rows_are_labelled(rows))
            printf(", %" PRIu64 " labelled answer%s, of which %" PRIu64 " %s undesirable",
                   rows->pairs.labelled, PLURAL(rows->pairs.labelled), rows->pairs.undesirable,
                   rows->pairs.undesirable == 1 ? "is" : "are");
        else if (rows_are_pairs(rows))
            printf(", %" PRIu64 " pair%s", corpus->documents.row_count,
                   PLURAL(corpus->documents.row_count));
        printf(" (%" PRIu64 " row%s with %s)", corpus->documents.row_count,
               PLURAL(corpus->documents.row_count), utf8_mask(names));
    }
    printf(", in %.1f s: %s/s\n", seconds, progress_bytes(speed, bytes / seconds));
}

/* Prints a config setting on a line of its own, quoted for the shell. */
static void print_setting(FILE *out, const char *key, const char *value, const char *ending) {
    fprintf(out, " \\\n    --set '%s=", key);
    for (; *value; value++)
        if (*value == '\'') fputs("'\\''", out);
        else fputc(*value, out);
    fprintf(out, "%s'", ending);
}

/* Prints smaller batches than those of finetune-lora.json (3 passes, 2 x 8 sequences) or dpo.json
 * (1 pass, 4 sequences of 512 tokens) if the run would have fewer than 20 steps. */
static void print_batch(FILE *out, const struct corpus *corpus, const struct options *options) {
    const bool has_pairs = corpus->splitter.has_pairs;
    const uint64_t micro = has_pairs ? 4 : 2, accumulated = has_pairs ? 1 : 8;
    const uint64_t seq_len = has_pairs ? 512 : next_seq_len(corpus, options);
    const uint64_t passed = (has_pairs ? 1 : 3) * corpus->splitter.train.writer.tokens / seq_len;
    const uint64_t most = passed / 20, batch = MAX(most, 1); /* sequences of a step */
    if (batch >= micro * accumulated) return;
    if (batch < micro) fprintf(out, " \\\n    --set train.micro_batch_size=%" PRIu64, batch);
    if (!has_pairs)
        fprintf(out, " \\\n    --set train.grad_accum_steps=%" PRIu64, MAX(batch / micro, 1));
}

/* Prints the command that trains on these shards, from the model of the tokenizer if there is
 * one. */
static void print_next(const struct corpus *corpus, const struct options *options) {
    const struct tokenizer *tokenizer = &corpus->tokenizer;
    const bool finetunes = has_weights(options->tokenizer_directory),
               has_pairs = corpus->splitter.has_pairs;
    struct printed next;
    if (printed_open(&next)) end_out_of_memory();
    help_print(next.out, "next: ./train --config ");
    fprintf(next.out, "%s.json --set name=mine",
            has_pairs   ? "dpo"
            : finetunes ? "finetune-lora"
                        : "text");
    if (has_pairs && rows_are_labelled(&corpus->documents.rows))
        fputs(" --set train.objective=kto", next.out);
    if (finetunes) print_setting(next.out, "model.init_from", options->tokenizer_directory, "");
    else if (tokenizer->kind != TOKENIZER_BYTES)
        fprintf(next.out, " \\\n    --set data.tokenizer=%s --set model.vocab_size=%d",
                tokenizer_kind_name(tokenizer->kind), tokenizer->vocab_size);
    print_setting(next.out, "data.train", corpus->train, "_*.bin");
    if (corpus->splitter.val.writer.tokens >= TOKENS_MIN)
        print_setting(next.out, "data.val", corpus->val, "_*.bin");
    else
        fputs(" --set data.val= --set eval.every=0 \\\n    --set checkpoint.keep_best=false",
              next.out);
    /* Sequences of pairs are filled up, so they may be longer than the shards. */
    if (!has_pairs && next_seq_len(corpus, options) < seq_len_of_config(options))
        fprintf(next.out, " \\\n    --set data.seq_len=%" PRIu64, next_seq_len(corpus, options));
    if (finetunes || has_pairs) print_batch(next.out, corpus, options);
    fputc('\n', next.out);
    if (printed_close(&next)) end_out_of_memory();
    fputs(utf8_mask(next.text), stdout);
    free(next.text);
}

static void close_corpus(struct corpus *corpus, const struct options *options) {
    if (corpus->splitter.block) tokenizer_record_unstage(options->prefix);
    splitter_close(&corpus->splitter);
    documents_close(&corpus->documents);
    inputs_close(&corpus->inputs);
    tokenizer_close(&corpus->tokenizer);
    if (corpus->lock < 0) return;
    unlink(corpus->lock_path);
    close(corpus->lock);
}

int main(int argc, char **argv) {
    struct error error;
    struct options options;
    static struct corpus corpus = {.lock = -1};
    if (read_options(&options, argc, argv, &error)) {
        note(stderr, "prepare", "%s\n./prepare --help shows the options", error.text);
        return EXIT_USAGE;
    }
    if (options.help) print_help();
    if (options.version) printf("mantissa %s\n", MANTISSA_VERSION);
    if (options.help || options.version) return EXIT_DONE;
    signal(SIGXFSZ, SIG_IGN); /* makes a file size limit an error, not a fatal signal */
    snprintf(corpus.train, sizeof corpus.train, "%s_train", options.prefix);
    snprintf(corpus.val, sizeof corpus.val, "%s_val", options.prefix);
    int status = open_corpus(&corpus, &options, &error);
    if (status == 0) status = put_documents(&corpus, &options, &error);
    const int caught = status && corpus.stop ? *corpus.stop : 0; /* later signals are ignored */
    progress_erase(&corpus.progress);
    if (status == 0) status = publish(&corpus, &options, &error);
    if (status) note_error(stderr, "prepare", &error);
    else {
        print_notes(&corpus, &options);
        print_summary(&corpus);
        print_next(&corpus, &options);
    }
    close_corpus(&corpus, &options);
    if (caught) return EXIT_SIGNAL + caught;
    return status || fflush(stdout) ? EXIT_FAILED : EXIT_DONE;
}
