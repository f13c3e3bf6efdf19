/* Byte-pair encoding tokenizers, as Hugging Face's tokenizer.json describes them.
 *
 * Encoding a text takes these steps:
 *
 *     1. Added tokens are matched; they divide the text into sections.
 *     2. Each section is normalized: NFC, a prepended string, replaced strings.
 *     3. Added tokens that are defined on normalized text are matched.
 *     4. The remaining text is cut into pieces: by patterns (byte-level kinds), or at the marks
 *        U+2581 that stand for spaces (kinds made of characters, like SentencePiece's).
 *     5. A piece becomes its bytes or its characters as tokens, which are merged by rank. With
 *        ignore_merges, a piece that is itself a token becomes that token. A byte or character
 *        without a token becomes the tokens of its spelling (byte_fallback), or else the unknown
 *        token, or else nothing.
 *
 * data/tokenize/subwords_json.h and data/tokenize/tiktoken_vocab.h read the files. A tokenizer is
 * read-only once built and may be shared by threads; each thread needs its own encoder. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"
#include "data/tokenize/added_tokens.h"
#include "data/tokenize/pretokenizer.h"
#include "data/tokenize/merges.h"
#include "data/tokenize/nfc.h"
#include "data/tokenize/piece_cache.h"
#include "data/tokenize/vocabulary.h"

#define SUBWORDS_END_OF_TEXT "<|endoftext|>"

/* U+2581, which stands for a space. */
#define SUBWORDS_SPACE "\xe2\x96\x81"

enum { SUBWORDS_NORMALIZERS_MAX = 8, SUBWORDS_TEMPLATE_MAX = 8 };

enum subwords_normalizer_kind { SUBWORDS_NFC, SUBWORDS_PREPEND, SUBWORDS_REPLACE };

/* One part of the normalizer. */
struct subwords_normalizer {
    enum subwords_normalizer_kind kind;
    char *from, *to; /* by malloc; from: "" unless it replaces */
};

/* A character without a token produces none, or is an error since the file's unk_token is none. */
enum { SUBWORDS_UNKNOWN_VANISHES = -1, SUBWORDS_UNKNOWN_FAILS = -2 };

enum subwords_prepend { SUBWORDS_NEVER, SUBWORDS_FIRST, SUBWORDS_ALWAYS };

/* One text for each token, "" if the token does not exist. */
struct subwords_texts {
    uint8_t *bytes;   /* stb_ds */
    uint32_t *starts; /* stb_ds [vocab_size + 1] */
};

struct subwords {
    int vocab_size; /* at most VOCABULARY_MAX; some of 0 .. vocab_size - 1 may be unused */
    bool byte_level;
    /* True for GPT-2's kind: byte-level with GPT-2's pattern or none (then a whole text is one
     * piece), no unused token, no added token but <|endoftext|>, and nothing else that changes
     * tokens. */
    bool is_gpt2;
    bool ignore_merges;
    bool fuse_unknown;
    int32_t unknown;   /* token, or SUBWORDS_UNKNOWN_VANISHES, SUBWORDS_UNKNOWN_FAILS */
    bool lacks_bytes;  /* byte-level: some bytes have no token of their own, */
    bool lacking[256]; /* and these no spelling either */
    struct byte_tokens bytes;
    /* byte_fallback: the one or two tokens that spell a byte; -1 for none. */
    int32_t spelled[256][2];
    struct subwords_texts names;   /* each token as it appears in a piece */
    struct subwords_texts decoded; /* each token as it appears in text; empty for byte-level */
    uint32_t *slots;               /* stb_ds: hash table of the names that a piece may become */
    struct merges merges;

    struct subwords_normalizer normalizers[SUBWORDS_NORMALIZERS_MAX];
    int normalizer_count;
    struct nfc nfc;
    uint8_t *atoms; /* the table of data/tokenize/unicode.h */

    struct pretokenizer_rule rules[PRETOKENIZER_LEVELS_MAX]; /* byte-level */
    int rule_count;
    bool adds_space; /* byte-level: prepends a space to a section without one */

    enum subwords_prepend prepend; /* characters: when to prepend U+2581 to a section */
    bool marks_spaces;             /* characters: spaces become U+2581 after step 3 */
    bool cuts_at_marks;            /* characters: each U+2581 begins a piece */
    bool cuts_at_words; /* the same, except after another U+2581; safe as no merge crosses it */
    bool strips_space;  /* characters: decoding removes the first space of a text */

    struct added_token *added; /* stb_ds */
    struct added_tree raw, normalized;

    /* Tokens that the model expects before a text and after it. */
    int32_t begins[SUBWORDS_TEMPLATE_MAX];
    int32_t ends[SUBWORDS_TEMPLATE_MAX];
    int begin_count, end_count;
};

/* Releases everything. Harmless on a zero-initialized struct. */
void subwords_free(struct subwords *subwords);

/* Builds the hash table of names and everything derived from it. Call it once, when the names are
 * set. is_name [vocab_size]: true for a name that a piece may become. */
void subwords_index(struct subwords *subwords, const bool *is_name);

/* Returns the token of a name that a piece may become, or -1. */
int32_t subwords_find(const struct subwords *subwords, const uint8_t *name, size_t size);
int32_t subwords_find_piece(const struct subwords *subwords, const struct piece *piece);

/* Prefetches the memory that subwords_find_piece reads first. */
void subwords_fetch(const struct subwords *subwords, const struct piece *piece);

/* Leaves out the added tokens from number vocab_size on, so that their texts are ordinary text, and
 * returns how many. Returns 0, without a change, if there are none or if other tokens have such
 * numbers, too, or a text begins or ends with one. */
int subwords_leave_out(struct subwords *subwords, int64_t vocab_size);

/* Normalizes a text: *text and *size become one of the stb_ds arrays in forms, or stay unchanged.
 * Fails if the normal form is too long for the size of the text. */
int subwords_normalize(const struct subwords *subwords, uint8_t *forms[2], const uint8_t **text,
                       size_t *size, struct error *error);

/* Returns the bytes that a token stands for in text; *size is 0 if there is no such token. They
 * belong to subwords. */
const uint8_t *subwords_bytes(const struct subwords *subwords, int32_t token, size_t *size);

/* True if a text may be cut before `space`, a white-space character that follows one that is not
 * white space, without changing its tokens. */
bool subwords_cuts_before(const struct subwords *subwords, char space);

/* Returns an encoder for one thread, or NULL if out of memory. */
struct subwords_encoder *subwords_encoder_open(const struct subwords *subwords);
void subwords_encoder_close(struct subwords_encoder *encoder);

/* Appends the tokens of text to *tokens, an stb_ds array, without begins and ends. If `special` is
 * false, the texts of special tokens are ordinary text. Fails, with part of the tokens appended, if
 * a pattern or the normalizer takes too much time or memory for the size of the text, and for a
 * character of SUBWORDS_UNKNOWN_FAILS. Running out of memory ends the program. */
int subwords_encode(struct subwords_encoder *encoder, int32_t **tokens, const void *text,
                    size_t size, bool special, struct error *error);
