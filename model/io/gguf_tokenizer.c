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

/* A vocabulary while it is added to a file. */
struct vocab {
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

static int refuse(const struct vocab *vocab, const char *reason) {
    return fail(vocab->error,
                "%.400s: llama.cpp has no such tokenizer: %s\nexport to a folder instead, without "
                ".gguf",
                vocab->tokenizer->directory, reason);
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

static void find_types(struct vocab *vocab) {
    const struct subwords *subwords = vocab->subwords;
    size_t size;
    for (int32_t token = 0; token < vocab->vocab_size; token++)
        vocab->types[token] = name_of(subwords, token, &size) ? NORMAL : UNUSED;
    for (int byte = 0; byte < 256 && !subwords->byte_level; byte++)
        if (subwords->bytes.tokens[byte] >= 0) vocab->types[subwords->bytes.tokens[byte]] = BYTE;
    for (size_t i = 0; i < arrlenu(subwords->added); i++) {
        const struct added_token *added = &subwords->added[i];
        vocab->types[added->token] = added->special ? CONTROL : USER_DEFINED;
        vocab->added[added->token] = added->text;
    }
    if (subwords->unknown >= 0 && !subwords->byte_level) vocab->types[subwords->unknown] = UNKNOWN;
}

static void append(struct vocab *vocab, const void *text, size_t size) {
    if (size > 0) memcpy(arraddnptr(vocab->text, size), text, size);
}

/* Appends a token as the files of its kind write it: byte-level ones by letters. llama.cpp matches
 * user-defined tokens before it marks spaces, so those of characters have spaces instead. */
static void append_token(struct vocab *vocab, int32_t token) {
    char letter[BYTE_ALPHABET_TEXT_MAX];
    size_t size;
    const uint8_t *name = name_of(vocab->subwords, token, &size);
    if (!vocab->subwords->byte_level && vocab->types[token] == USER_DEFINED) {
        name = subwords_bytes(vocab->subwords, token, &size);
        append(vocab, name, size);
    } else if (vocab->added[token]) {
        append(vocab, vocab->added[token], strlen(vocab->added[token]));
    } else if (!vocab->subwords->byte_level) {
        append(vocab, name, size);
    } else {
        for (size_t i = 0; i < size; i++) {
            byte_alphabet_write(&vocab->alphabet, letter, name[i]);
            append(vocab, letter, strlen(letter));
        }
    }
}

static void put_tokens(struct vocab *vocab) {
    char unused[24];
    gguf_put_array(vocab->writer, "tokenizer.ggml.tokens", GGUF_STRING,
                   (uint64_t)vocab->vocab_size);
    for (int32_t token = 0; token < vocab->vocab_size; token++) {
        arrsetlen(vocab->text, 0);
        if (vocab->types[token] == UNUSED)
            append(vocab, unused, (size_t)sprintf(unused, "[PAD%" PRId32 "]", token));
        else append_token(vocab, token);
        gguf_add_text(vocab->writer, vocab->text, arrlenu(vocab->text));
    }
    gguf_put_array(vocab->writer, "tokenizer.ggml.token_type", GGUF_INT32,
                   (uint64_t)vocab->vocab_size);
    for (int32_t token = 0; token < vocab->vocab_size; token++)
        gguf_add_number(vocab->writer, GGUF_INT32, vocab->types[token]);
}

/* ---- byte-level tokenizers */

static int check_byte_level(const struct vocab *vocab) {
    const struct subwords *subwords = vocab->subwords;
    for (int i = 0; i < subwords->normalizer_count; i++)
        if (subwords->normalizers[i].kind != SUBWORDS_NFC)
            return refuse(vocab, "the normalizer replaces characters");
    if (subwords->adds_space) return refuse(vocab, "a space is put before each text");
    if (!pattern_name(subwords))
        return refuse(vocab, "it does not know the pattern that cuts text");
    if (arrlenu(subwords->merges.results) > subwords->merges.count)
        return refuse(vocab,
                      "ranks of tokens take the place of merges; save it with transformers as "
                      "tokenizer.json");
    return 0;
}

/* Adds the merges: of bytes none, but llama.cpp needs the array. */
static void put_merges(struct vocab *vocab) {
    const struct merges *merges = &vocab->subwords->merges;
    struct merge *list = merges_list(merges);
    gguf_put_array(vocab->writer, "tokenizer.ggml.merges", GGUF_STRING, merges->count);
    for (size_t i = 0; i < merges->count; i++) {
        arrsetlen(vocab->text, 0);
        append_token(vocab, list[i].left);
        append(vocab, " ", 1);
        append_token(vocab, list[i].right);
        gguf_add_text(vocab->writer, vocab->text, arrlenu(vocab->text));
    }
    arrfree(list);
}

/* ---- SentencePiece's tokenizers */

/* ignore_merges matters to texts that are one token as a whole, for which the merges of
 * SentencePiece's tokenizers give the same. */
static int check_characters(const struct vocab *vocab) {
    const struct subwords *subwords = vocab->subwords;
    bool marks = subwords->marks_spaces;
    for (int i = 0; i < subwords->normalizer_count; i++) {
        const struct subwords_normalizer *part = &subwords->normalizers[i];
        bool replaces = part->kind == SUBWORDS_REPLACE && strcmp(part->from, " ") == 0;
        if (part->kind == SUBWORDS_NFC || strcmp(part->to, SUBWORDS_SPACE) != 0 ||
            (part->kind == SUBWORDS_REPLACE && !replaces))
            return refuse(vocab, "the normalizer changes more than spaces");
        marks |= replaces;
    }
    for (int byte = 0; byte < 256; byte++) {
        const uint8_t character = (uint8_t)byte; /* llama.cpp uses its token instead */
        if (subwords->bytes.tokens[byte] < 0 && subwords_find(subwords, &character, 1) < 0)
            return refuse(vocab, "some bytes have no token");
    }
    if (!marks || subwords->cuts_at_marks)
        return refuse(vocab, "spaces are not marked as by SentencePiece");
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
static int find_scores(const struct vocab *vocab, float *scores, int32_t *counts) {
    struct merge *list = merges_list(&vocab->subwords->merges);
    bool fits = true;
    for (size_t i = 0; i < arrlenu(list); i++) {
        int32_t token = list[i].token;
        if (counts[token]++ == 0) scores[token] = -1.0f - (float)i;
        else fits &= list[i - 1].token == token;
    }
    for (int32_t token = 0; token < vocab->vocab_size && fits; token++)
        if (vocab->types[token] == NORMAL)
            fits = counts[token] == count_pairs(vocab->subwords, token);
    arrfree(list);
    return fits ? 0 : refuse(vocab, "scores of tokens cannot express the merges");
}

static int put_scores(const struct vocab *vocab) {
    size_t count = (size_t)vocab->vocab_size;
    float *scores = calloc(count, sizeof *scores);
    int32_t *counts = calloc(count, sizeof *counts);
    int status = scores && counts ? find_scores(vocab, scores, counts)
                                  : fail_memory(vocab->error, "the scores of tokens");
    gguf_put_array(vocab->writer, "tokenizer.ggml.scores", GGUF_FLOAT32, count);
    for (size_t i = 0; i < count && status == 0; i++)
        gguf_add_number(vocab->writer, GGUF_FLOAT32, (double)scores[i]);
    free(scores);
    free(counts);
    return status;
}

/* ---- everything */

/* Adds the special tokens. llama.cpp has one token that ends a text, and one each that ends a turn
 * and a message, at all of which it stops; that is where other ends go. */
static void put_special(struct vocab *vocab, const struct huggingface_tokens *tokens) {
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    static const char *const roles[TOKENIZER_ROLES] = {
        [ROLE_BOS] = "tokenizer.ggml.bos_token_id",
        [ROLE_UNK] = "tokenizer.ggml.unknown_token_id",
        [ROLE_SEP] = "tokenizer.ggml.seperator_token_id", /* as gguf spells it */
        [ROLE_PAD] = "tokenizer.ggml.padding_token_id",
        [ROLE_CLS] = "tokenizer.ggml.cls_token_id",
        [ROLE_MASK] = "tokenizer.ggml.mask_token_id"};
    const struct subwords *subwords = vocab->subwords;
    int64_t of_roles[TOKENIZER_ROLES];
    struct huggingface_tokens all = {0};
    if (subwords->end_count > 0) huggingface_add_end(&all, subwords->ends[subwords->end_count - 1]);
    for (int i = 0; i < tokens->end_count; i++) huggingface_add_end(&all, tokens->ends[i]);
    for (int i = 0; i < all.end_count && i < (int)(sizeof ends / sizeof *ends); i++)
        gguf_put_number(vocab->writer, ends[i], GGUF_UINT32, all.ends[i]);
    for (int role = 0; role < TOKENIZER_ROLES; role++)
        of_roles[role] = vocab->tokenizer->roles[role];
    if (of_roles[ROLE_BOS] < 0) of_roles[ROLE_BOS] = tokens->begin;
    if (of_roles[ROLE_PAD] < 0) of_roles[ROLE_PAD] = tokens->pad;
    if (subwords->begin_count > 0) of_roles[ROLE_BOS] = subwords->begins[0];
    for (int role = 0; role < TOKENIZER_ROLES; role++)
        if (of_roles[role] >= 0 && of_roles[role] < vocab->vocab_size)
            gguf_put_number(vocab->writer, roles[role], GGUF_UINT32, (double)of_roles[role]);
    gguf_put_number(vocab->writer, "tokenizer.ggml.add_bos_token", GGUF_BOOL,
                    subwords->begin_count > 0);
    gguf_put_number(vocab->writer, "tokenizer.ggml.add_eos_token", GGUF_BOOL,
                    subwords->end_count > 0);
}

static int put_all(struct vocab *vocab, const struct huggingface_tokens *tokens) {
    const struct subwords *subwords = vocab->subwords;
    bool byte_level = subwords->byte_level;
    if (subwords->begin_count > 1 || subwords->end_count > 1)
        return refuse(vocab, "several tokens begin or end each text");
    if (byte_level ? check_byte_level(vocab) : check_characters(vocab)) return -1;
    find_types(vocab);
    byte_alphabet_fill(&vocab->alphabet);
    gguf_put_string(vocab->writer, "tokenizer.ggml.model", byte_level ? "gpt2" : "llama");
    gguf_put_string(vocab->writer, "tokenizer.ggml.pre",
                    byte_level ? pattern_name(subwords) : "default");
    put_tokens(vocab);
    put_special(vocab, tokens);
    if (!byte_level) {
        gguf_put_number(vocab->writer, "tokenizer.ggml.add_space_prefix", GGUF_BOOL,
                        puts_space_first(subwords));
        return put_scores(vocab);
    }
    put_merges(vocab);
    return 0;
}

int gguf_put_tokenizer(struct gguf_writer *writer, const struct tokenizer *tokenizer,
                       const struct huggingface_tokens *tokens, const char *chat_template,
                       int64_t vocab_size, struct error *error) {
    struct vocab vocab = {.writer = writer,
                          .tokenizer = tokenizer,
                          .vocab_size = (int32_t)vocab_size,
                          .error = error};
    if (!tokenizer) {
        gguf_put_string(writer, "tokenizer.ggml.model", "none");
        return 0;
    }
    vocab.subwords = tokenizer->subwords;
    if (tokenizer->vocab_size > vocab_size)
        return fail(error,
                    "%.400s has %d tokens, but the model has %" PRId64
                    "\nput the model's own tokenizer there",
                    tokenizer->directory, tokenizer->vocab_size, vocab_size);
    vocab.types = calloc((size_t)vocab_size, sizeof *vocab.types);
    vocab.added = calloc((size_t)vocab_size, sizeof *vocab.added);
    int status =
        vocab.types && vocab.added ? put_all(&vocab, tokens) : fail_memory(error, "the tokenizer");
    if (status == 0 && chat_template)
        gguf_put_string(writer, "tokenizer.chat_template", chat_template);
    free(vocab.types);
    free(vocab.added);
    arrfree(vocab.text);
    return status;
}
