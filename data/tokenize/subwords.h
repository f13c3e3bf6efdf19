/* Tokenizers of byte-pair encoding in general, as tokenizer.json of Hugging Face describes them.
 *
 * A text goes through these steps:
 *     1. Added tokens are found, and divide it into sections.
 *     2. A section is brought into its normal form: NFC, something prepended, something replaced.
 *     3. Added tokens that are defined by the normal form are found.
 *     4. What is left is cut into pieces: by patterns (byte-level kinds), or at the marks U+2581
 *        that stand for spaces (kinds made of characters, as SentencePiece makes them).
 *     5. A piece that is a token as it is may be that (ignore_merges). Else its bytes, or its
 *        characters, become tokens, which are merged by rank. A character that is no token becomes
 *        the tokens of its bytes (byte_fallback) or the unknown token.
 *
 * Files to make it from: data/tokenize/subwords_json.h and data/tokenize/tiktoken_vocab.h. Read-only once made, and
 * may be shared by threads; each thread encodes with an encoder of its own. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"
#include "data/tokenize/added_tokens.h"
#include "data/tokenize/byte_tokens.h"
#include "data/tokenize/cutter.h"
#include "data/tokenize/merges.h"
#include "data/tokenize/nfc.h"
#include "data/tokenize/piece_cache.h"
#include "data/tokenize/vocabulary.h"

#define SUBWORDS_END_OF_TEXT "<|endoftext|>"

/* U+2581, which stands for a space. */
#define SUBWORDS_SPACE "\xe2\x96\x81"

enum { SUBWORDS_STEPS_MAX = 8, SUBWORDS_TEMPLATE_MAX = 8 };

enum subwords_form { SUBWORDS_NFC, SUBWORDS_PREPEND, SUBWORDS_REPLACE };

/* Of the normal form. */
struct subwords_step {
    enum subwords_form form;
    char *from, *to; /* by malloc; from: NULL but for replacing */
};

enum subwords_prepend { SUBWORDS_NEVER, SUBWORDS_FIRST, SUBWORDS_ALWAYS };

/* Texts by token; a token that there is not has none. */
struct subwords_texts {
    uint8_t *bytes;   /* stb_ds */
    uint32_t *starts; /* stb_ds [vocab_size + 1] */
};

struct subwords {
    int vocab_size; /* tokens are 0 .. vocab_size - 1, with holes; at most VOCABULARY_MAX */
    bool byte_level;
    /* GPT-2's kind: byte-level with GPT-2's pattern, or with none, when all of a text is one piece;
     * tokens without holes; none added but <|endoftext|>; nothing else that changes tokens. */
    bool is_gpt2;
    bool ignore_merges;
    bool fuse_unknown;
    int32_t unknown; /* token, or -1: what is not known leaves nothing */
    struct byte_tokens bytes;
    struct subwords_texts names;  /* what a token is in a piece */
    struct subwords_texts spoken; /* what it is in a text: spaces, bytes; none for byte-level */
    uint32_t *slots;              /* stb_ds: hash table of the names that pieces may have */
    struct merges merges;

    struct subwords_step steps[SUBWORDS_STEPS_MAX];
    int step_count;
    struct nfc nfc;
    uint8_t *atoms; /* of data/tokenize/unicode.h */

    struct cutter_rule rules[CUTTER_LEVELS_MAX]; /* byte-level */
    int rule_count;
    bool adds_space; /* byte-level: before a section that begins without one */

    enum subwords_prepend prepend; /* characters: U+2581 before a section */
    bool marks_spaces;             /* characters: spaces become U+2581 after step 3 */
    bool cuts_at_marks;            /* characters: each U+2581 begins a piece */
    bool cuts_at_words;            /* the same but behind another: no merge goes across */
    bool strips_space;             /* characters: the text of tokens loses its first space */

    struct added_token *added; /* stb_ds */
    struct added_tree raw, normalized;

    int32_t begins[SUBWORDS_TEMPLATE_MAX]; /* what the model expects before a text and behind it */
    int32_t ends[SUBWORDS_TEMPLATE_MAX];
    int begin_count, end_count;
};

/* Releases everything; harmless on a struct of zeros. */
void subwords_free(struct subwords *subwords);

/* Once, when names and merges are there: the table of names [vocab_size] that pieces may have, and
 * what follows from them. `is_name` says which. */
void subwords_index(struct subwords *subwords, const bool *is_name);

/* The token of a name among those of pieces, or -1. */
int32_t subwords_find(const struct subwords *subwords, const uint8_t *name, size_t size);
int32_t subwords_find_piece(const struct subwords *subwords, const struct piece *piece);

/* Has the processor fetch what subwords_find_piece looks at first. */
void subwords_fetch(const struct subwords *subwords, const struct piece *piece);

/* Brings a text into its normal form: *text and *size become one of the stb_ds arrays in forms, or
 * stay as they are. Fails where the form is out of proportion to the text. */
int subwords_normalize(const struct subwords *subwords, uint8_t *forms[2], const uint8_t **text,
                       size_t *size, struct error *error);

/* The bytes of one token in a text; *size is 0 for what is no token. They belong to subwords. */
const uint8_t *subwords_bytes(const struct subwords *subwords, int32_t token, size_t *size);

/* Whether a text may be cut before `space`, a character of white space, behind one that is none,
 * without a change of its tokens. */
bool subwords_cuts_before(const struct subwords *subwords, char space);

/* NULL when memory is short. */
struct subwords_encoder *subwords_encoder_open(const struct subwords *subwords);
void subwords_encoder_close(struct subwords_encoder *encoder);

/* Appends the tokens of text to *tokens, an stb_ds array. Without `special` the texts of special
 * tokens are text like any other. begins and ends are not put there. Fails, with a part of the
 * tokens, where a pattern or the normalizer takes time or memory out of proportion to the text.
 * Memory shortage ends the program. */
int subwords_encode(struct subwords_encoder *encoder, int32_t **tokens, const void *text,
                    size_t size, bool special, struct error *error);
