#include "model/io/gguf_tokenizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/tokenize/byte_alphabet.h"
#include "data/tokenize/subwords.h"

/* Types of tokens, with their numbers in the file. */
enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 };

enum { RULES_MAX = 2 };

/* A tokenizer while it is added to a file. */
struct job {
    struct gguf_writer *writer;
    const struct tokenizer *tokenizer;
    const struct subwords *subwords;
    int32_t vocab_size;
    int32_t *types;     /* [vocab_size] */
    const char **added; /* [vocab_size]: text of an added token, or NULL */
    struct byte_alphabet alphabet;
    char *text; /* stb_ds array: scratch memory for a text */
    struct error *error;
};

static int refuse(const struct job *job, const char *reason) {
    return fail(job->error,
                "%.400s: llama.cpp has no such tokenizer: %s\nexport to a folder instead, without "
                ".gguf",
                job->tokenizer->directory, reason);
}

/* ---- names of patterns */

#define GPT2_PIECES \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LETTERS     "[^\\r\\n\\p{L}\\p{N}]?"
#define UPPER       "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER       "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define ENDINGS     "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES      "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define REST        "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES
#define CASED(ends) LETTERS UPPER "*" LOWER "+" ends "|" LETTERS UPPER "+" LOWER "*" ends
#define CASED_REST  "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SPACES

/* Names that llama.cpp has for patterns. Where several have the same pattern, the name also decides
 * whether a piece that is a token is merged no further. */
static const struct pattern {
    const char *name;
    const char *rules[RULES_MAX]; /* one after the other */
    bool ignore_merges;
} patterns[] = {
    {"gpt-2", {GPT2_PIECES}, false},
    {"smollm", {"\\p{N}", GPT2_PIECES}, false},
    {"llama-bpe", {ENDINGS "|" LETTERS "\\p{L}+|\\p{N}{1,3}" REST}, true},
    {"smaug-bpe", {ENDINGS "|" LETTERS "\\p{L}+|\\p{N}{1,3}" REST}, false},
    {"qwen2", {ENDINGS "|" LETTERS "\\p{L}+|\\p{N}" REST}, false},
    {"tekken", {CASED("") "|\\p{N}" CASED_REST}, true},
    {"gpt-4o", {CASED(ENDINGS "?") "|\\p{N}{1,3}" CASED_REST}, false},
};

static bool has_pattern(const struct subwords *subwords, const struct pattern *pattern) {
    bool same = subwords->ignore_merges == pattern->ignore_merges;
    for (int i = 0; i < RULES_MAX && same; i++) {
        const char *rule = pattern->rules[i];
        same = !rule == (i >= subwords->rule_count) &&
               (!rule || (!subwords->rules[i].drops_gaps &&
                          strcmp(split_pattern_text(subwords->rules[i].pattern), rule) == 0));
    }
    return same && subwords->rule_count <= RULES_MAX;
}

/* Returns the name of the pattern, or NULL. If no pieces become longer tokens, every pattern gives
 * the same tokens. */
static const char *pattern_name(const struct subwords *subwords) {
    if (subwords->merges.count == 0 && !subwords->ignore_merges) return patterns[0].name;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        if (has_pattern(subwords, &patterns[i])) return patterns[i].name;
    return NULL;
}

/* ---- tokens */

static const uint8_t *name_of(const struct subwords *subwords, int32_t token, size_t *size) {
    const uint32_t *starts = subwords->names.starts;
    *size = token < subwords->vocab_size ? starts[token + 1] - starts[token] : 0;
    return *size > 0 ? subwords->names.bytes + starts[token] : NULL;
}

static void find_types(struct job *job) {
    const struct subwords *subwords = job->subwords;
    size_t size;
    for (int32_t token = 0; token < job->vocab_size; token++)
        job->types[token] = name_of(subwords, token, &size) ? NORMAL : UNUSED;
    for (int byte = 0; byte < 256 && !subwords->byte_level; byte++)
        if (subwords->bytes.tokens[byte] >= 0) job->types[subwords->bytes.tokens[byte]] = BYTE;
    for (size_t i = 0; i < arrlenu(subwords->added); i++) {
        const struct added_token *added = &subwords->added[i];
        job->types[added->token] = added->special ? CONTROL : USER_DEFINED;
        job->added[added->token] = added->text;
    }
    if (subwords->unknown >= 0) job->types[subwords->unknown] = UNKNOWN;
}

static void append(struct job *job, const void *text, size_t size) {
    if (size > 0) memcpy(arraddnptr(job->text, size), text, size);
}

/* Appends a token as the files of its kind write it: byte-level ones by letters. llama.cpp matches
 * user-defined tokens before it marks spaces, so those of characters have spaces instead. */
static void append_token(struct job *job, int32_t token) {
    char letter[BYTE_ALPHABET_TEXT_MAX];
    size_t size;
    const uint8_t *name = name_of(job->subwords, token, &size);
    if (!job->subwords->byte_level && job->types[token] == USER_DEFINED) {
        name = subwords_bytes(job->subwords, token, &size);
        append(job, name, size);
    } else if (job->added[token]) {
        append(job, job->added[token], strlen(job->added[token]));
    } else if (!job->subwords->byte_level) {
        append(job, name, size);
    } else {
        for (size_t i = 0; i < size; i++) {
            byte_alphabet_write(&job->alphabet, letter, name[i]);
            append(job, letter, strlen(letter));
        }
    }
}

static void put_tokens(struct job *job) {
    char unused[24];
    gguf_put_array(job->writer, "tokenizer.ggml.tokens", GGUF_STRING, (uint64_t)job->vocab_size);
    for (int32_t token = 0; token < job->vocab_size; token++) {
        arrsetlen(job->text, 0);
        if (job->types[token] == UNUSED)
            append(job, unused, (size_t)sprintf(unused, "[PAD%" PRId32 "]", token));
        else append_token(job, token);
        gguf_add_text(job->writer, job->text, arrlenu(job->text));
    }
    gguf_put_array(job->writer, "tokenizer.ggml.token_type", GGUF_INT32, (uint64_t)job->vocab_size);
    for (int32_t token = 0; token < job->vocab_size; token++)
        gguf_add_number(job->writer, GGUF_INT32, job->types[token]);
}

/* ---- byte-level tokenizers */

static int check_byte_level(const struct job *job) {
    const struct subwords *subwords = job->subwords;
    for (int i = 0; i < subwords->normalizer_count; i++)
        if (subwords->normalizers[i].kind != SUBWORDS_NFC)
            return refuse(job, "the normalizer replaces characters");
    if (subwords->adds_space) return refuse(job, "a space is put before each text");
    if (!pattern_name(subwords)) return refuse(job, "it does not know the pattern that cuts text");
    if (arrlenu(subwords->merges.results) > subwords->merges.count)
        return refuse(job, "ranks of tokens take the place of merges; save it with transformers as "
                           "tokenizer.json");
    return 0;
}

/* Adds the merges. llama.cpp needs one at least: for bytes, of a letter outside their alphabet. */
static void put_merges(struct job *job) {
    static const char none[] = "\xd0\x80 \xd0\x80"; /* U+0400 */
    const struct merges *merges = &job->subwords->merges;
    struct merge *list = merges_list(merges);
    gguf_put_array(job->writer, "tokenizer.ggml.merges", GGUF_STRING,
                   merges->count ? merges->count : 1);
    if (merges->count == 0) gguf_add_text(job->writer, none, strlen(none));
    for (size_t i = 0; i < merges->count; i++) {
        arrsetlen(job->text, 0);
        append_token(job, list[i].left);
        append(job, " ", 1);
        append_token(job, list[i].right);
        gguf_add_text(job->writer, job->text, arrlenu(job->text));
    }
    arrfree(list);
}

/* ---- SentencePiece's tokenizers */

/* ignore_merges matters to texts that are one token as a whole, for which the merges of
 * SentencePiece's tokenizers give the same. */
static int check_characters(const struct job *job) {
    const struct subwords *subwords = job->subwords;
    bool marks = subwords->marks_spaces;
    for (int i = 0; i < subwords->normalizer_count; i++) {
        const struct subwords_normalizer *part = &subwords->normalizers[i];
        bool replaces = part->kind == SUBWORDS_REPLACE && strcmp(part->from, " ") == 0;
        if (part->kind == SUBWORDS_NFC || strcmp(part->to, SUBWORDS_SPACE) != 0 ||
            (part->kind == SUBWORDS_REPLACE && !replaces))
            return refuse(job, "the normalizer changes more than spaces");
        marks |= replaces;
    }
    for (int byte = 0; byte < 256; byte++) {
        const uint8_t character = (uint8_t)byte; /* llama.cpp uses its token instead */
        if (subwords->bytes.tokens[byte] < 0 && subwords_find(subwords, &character, 1) < 0)
            return refuse(job, "some bytes have no token");
    }
    if (!marks || subwords->cuts_at_marks)
        return refuse(job, "spaces are not marked as by SentencePiece");
    return 0;
}

static bool puts_space_first(const struct subwords *subwords) {
    bool puts = subwords->prepend != SUBWORDS_NEVER;
    for (int i = 0; i < subwords->normalizer_count; i++)
        puts |= subwords->normalizers[i].kind == SUBWORDS_PREPEND;
    return puts;
}

/* Returns the number of pairs of tokens whose texts together are that of the token. */
static int32_t count_pairs(const struct subwords *subwords, int32_t token) {
    size_t size;
    const uint8_t *name = name_of(subwords, token, &size);
    int32_t count = 0;
    for (size_t cut = 1; cut < size; cut++)
        count += subwords_find(subwords, name, cut) >= 0 &&
                 subwords_find(subwords, name + cut, size - cut) >= 0;
    return count;
}

/* Derives scores from ranks. All merges of a token have the same score, so they must follow each
 * other; and llama.cpp merges every pair that gives a token, so there must be a merge for each. */
static int find_scores(const struct job *job, float *scores, int32_t *counts) {
    struct merge *list = merges_list(&job->subwords->merges);
    bool fits = true;
    for (size_t i = 0; i < arrlenu(list); i++) {
        int32_t token = list[i].token;
        if (counts[token]++ == 0) scores[token] = -1.0f - (float)i;
        else fits &= list[i - 1].token == token;
    }
    for (int32_t token = 0; token < job->vocab_size && fits; token++)
        if (job->types[token] == NORMAL) fits = counts[token] == count_pairs(job->subwords, token);
    arrfree(list);
    return fits ? 0 : refuse(job, "scores of tokens cannot express the merges");
}

static int put_scores(const struct job *job) {
    size_t count = (size_t)job->vocab_size;
    float *scores = calloc(count, sizeof *scores);
    int32_t *counts = calloc(count, sizeof *counts);
    int status = scores && counts ? find_scores(job, scores, counts)
                                  : fail(job->error, "out of memory for the scores of tokens");
    gguf_put_array(job->writer, "tokenizer.ggml.scores", GGUF_FLOAT32, count);
    for (size_t i = 0; i < count && status == 0; i++)
        gguf_add_number(job->writer, GGUF_FLOAT32, (double)scores[i]);
    free(scores);
    free(counts);
    return status;
}

/* ---- everything */

/* Adds the special tokens. llama.cpp has one token that ends a text, and one each that ends a turn
 * and a message, at all of which it stops; that is where other ends go. */
static void put_special(struct job *job, const struct huggingface_tokens *tokens) {
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    const struct subwords *subwords = job->subwords;
    struct huggingface_tokens all = {.pad = tokens->pad, .begin = tokens->begin};
    if (subwords->begin_count > 0) all.begin = subwords->begins[0];
    if (subwords->end_count > 0) huggingface_add_end(&all, subwords->ends[subwords->end_count - 1]);
    for (int i = 0; i < tokens->end_count; i++) huggingface_add_end(&all, tokens->ends[i]);
    if (all.begin >= 0)
        gguf_put_number(job->writer, "tokenizer.ggml.bos_token_id", GGUF_UINT32, all.begin);
    for (int i = 0; i < all.end_count && i < (int)(sizeof ends / sizeof *ends); i++)
        gguf_put_number(job->writer, ends[i], GGUF_UINT32, all.ends[i]);
    if (all.pad >= 0)
        gguf_put_number(job->writer, "tokenizer.ggml.padding_token_id", GGUF_UINT32, all.pad);
    if (subwords->unknown >= 0)
        gguf_put_number(job->writer, "tokenizer.ggml.unknown_token_id", GGUF_UINT32,
                        subwords->unknown);
    gguf_put_number(job->writer, "tokenizer.ggml.add_bos_token", GGUF_BOOL,
                    subwords->begin_count > 0);
    gguf_put_number(job->writer, "tokenizer.ggml.add_eos_token", GGUF_BOOL,
                    subwords->end_count > 0);
}

static int put_all(struct job *job, const struct huggingface_tokens *tokens) {
    const struct subwords *subwords = job->subwords;
    bool byte_level = subwords->byte_level;
    if (subwords->begin_count > 1 || subwords->end_count > 1)
        return refuse(job, "several tokens begin or end each text");
    if (byte_level ? check_byte_level(job) : check_characters(job)) return -1;
    find_types(job);
    byte_alphabet_fill(&job->alphabet);
    gguf_put_string(job->writer, "tokenizer.ggml.model", byte_level ? "gpt2" : "llama");
    gguf_put_string(job->writer, "tokenizer.ggml.pre",
                    byte_level ? pattern_name(subwords) : "default");
    put_tokens(job);
    put_special(job, tokens);
    if (!byte_level) {
        gguf_put_number(job->writer, "tokenizer.ggml.add_space_prefix", GGUF_BOOL,
                        puts_space_first(subwords));
        return put_scores(job);
    }
    put_merges(job);
    return 0;
}

int gguf_put_tokenizer(struct gguf_writer *writer, const struct tokenizer *tokenizer,
                       const struct huggingface_tokens *tokens, const char *chat_template,
                       int64_t vocab_size, struct error *error) {
    struct job job = {.writer = writer,
                      .tokenizer = tokenizer,
                      .vocab_size = (int32_t)vocab_size,
                      .error = error};
    if (!tokenizer) {
        gguf_put_string(writer, "tokenizer.ggml.model", "none");
        return 0;
    }
    job.subwords = tokenizer->subwords;
    if (tokenizer->vocab_size > vocab_size)
        return fail(error,
                    "%.400s has %d tokens, but the model has %" PRId64
                    "\nput the model's own tokenizer there",
                    tokenizer->directory, tokenizer->vocab_size, vocab_size);
    job.types = calloc((size_t)vocab_size, sizeof *job.types);
    job.added = calloc((size_t)vocab_size, sizeof *job.added);
    int status = job.types && job.added ? put_all(&job, tokens)
                                        : fail(error, "out of memory for the tokenizer");
    if (status == 0 && chat_template)
        gguf_put_string(writer, "tokenizer.chat_template", chat_template);
    free(job.types);
    free(job.added);
    arrfree(job.text);
    return status;
}
