/* Text to tokens and back, by bytes or by byte-pair encodings of GPT-2 and other models.
 *
 * bytes: one token for each byte, vocabulary 256, no special token.
 *
 * gpt2: GPT-2's pattern cuts text into pieces, and each piece is merged by rank (Sennrich et al.
 * 2016; Radford et al. 2019). It is byte-level: any bytes that have a token can be encoded, valid
 * UTF-8 or not, and decoding restores them. Vocabulary and merges come from vocab.json and
 * merges.txt in a directory, or from a tokenizer.json of Hugging Face.
 *
 * files: any other tokenizer.json (data/tokenize/subwords_json.h), or tiktoken.json with ranks
 * (data/tokenize/tiktoken_vocab.h).
 *
 * A tokenizer is read-only once open and may be shared by threads; each thread needs its own
 * encoder. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "data/util/error.h"
#include "data/util/sha256.h"
#include "data/tokenize/vocabulary.h"

/* GPT2: GPT-2's byte-pair encoding with any vocabulary. FILES: every other tokenizer from files. */
enum tokenizer_kind { TOKENIZER_BYTES, TOKENIZER_GPT2, TOKENIZER_FILES };

enum { TOKENIZER_FILES_MAX = 3 };

/* Special tokens that the settings name, apart from eos_token. */
enum tokenizer_role {
    ROLE_BOS,
    ROLE_UNK,
    ROLE_SEP,
    ROLE_PAD,
    ROLE_CLS,
    ROLE_MASK,
    TOKENIZER_ROLES
};
extern const char *const tokenizer_roles[TOKENIZER_ROLES]; /* "bos_token", ... */

/* A file that defines the tokenizer, kept in memory so that it can be saved with a model. */
struct tokenizer_file {
    const char *name; /* "vocab.json", "merges.txt", "tokenizer.json" */
    char *bytes;      /* [size] */
    size_t size;
    char sha256[SHA256_HEX_MAX];
};

struct subwords; /* data/tokenize/subwords.h */

struct tokenizer {
    enum tokenizer_kind kind;
    int vocab_size; /* tokens are 0 .. vocab_size - 1, at most VOCABULARY_MAX */
    int left_out;   /* further tokens that tokenizer_leave_out took away */
    /* The token <|endoftext|>, or another tokenizer's token before a text, or -1. */
    int end_of_text;
    int stop; /* the token that ends a text: end_of_text, or another tokenizer's, or -1 */
    int eos;  /* eos_token of the settings, which ends the completion of a row, or else `stop` */
    int roles[TOKENIZER_ROLES]; /* or -1 */
    char *directory;            /* the folder of the files; NULL for bytes */
    struct tokenizer_file files[TOKENIZER_FILES_MAX];
    int file_count;
    /* Hash of tokens and merges (gpt2) or of the files (files); "" for bytes. */
    char sha256[SHA256_HEX_MAX];
    struct subwords *subwords; /* NULL for bytes */
    uint8_t bytes[256];        /* all values, the texts of the tokens of the kind bytes */
    char cuts_before[5];       /* white space before which text may be cut (data/tokenize/cuts.h) */
};

/* Opens the tokenizer of bytes, or the one in a directory, whose files decide the kind. For bytes,
 * directory is ignored, and `files` holds one tokenizer.json made in memory that gives the same
 * tokens in Hugging Face's tokenizers.
 *
 * In a directory, vocab.json and merges.txt are used if both exist, else tokenizer.json; one of the
 * two alone is ignored. If all three exist they must agree. But a tokenizer.json that is not of
 * GPT-2's kind (is_gpt2 in data/tokenize/subwords.h) is used alone, since the other two do not
 * define how text is cut. Without any of these, tiktoken.json and ranks.tiktoken are used. The
 * files read are kept in `files`. If the settings beside them change the tokenizer
 * (data/tokenize/tokenizer_settings.h), `files` is the tokenizer.json of the result instead.
 *
 * Fails, with the file and the reason, if files are missing, longer than 64 MiB, malformed,
 * contradictory or unsupported, or have more than VOCABULARY_MAX tokens. On failure nothing is left
 * to close, though closing is harmless. */
int tokenizer_open(struct tokenizer *tokenizer, enum tokenizer_kind kind, const char *directory,
                   struct error *error);
void tokenizer_close(struct tokenizer *tokenizer);

/* Leaves out the added tokens that a model of vocab_size tokens lacks, like Gemma 3's
 * <image_soft_token>: their texts become ordinary text. Returns how many. Returns 0, without a
 * change, if the model lacks none, or other tokens, too. */
int tokenizer_leave_out(struct tokenizer *tokenizer, int64_t vocab_size);

/* True if a directory holds files that tokenizer_open would read. */
bool tokenizer_in_directory(const char *directory);

/* Returns the special token of this name, or -1. */
int tokenizer_special(const struct tokenizer *tokenizer, const void *name, size_t size);

/* Returns the number of special tokens whose names stand in a text. If there are any, *first
 * becomes one of them. */
size_t tokenizer_count_special(const struct tokenizer *tokenizer, const void *text, size_t size,
                               int *first);

/* Prints a tokenizer.json equivalent to vocab.json and merges.txt; the tokenizer must be of GPT-2's
 * kind and opened from these two files. */
void tokenizer_print_json(FILE *out, const struct tokenizer *tokenizer);

/* Returns "bytes", "gpt2" or "files". */
const char *tokenizer_kind_name(enum tokenizer_kind kind);

/* The encoder of one thread, or NULL if out of memory. The tokenizer must outlive it. */
struct tokenizer_encoder;
struct tokenizer_encoder *tokenizer_encoder_open(const struct tokenizer *tokenizer);
void tokenizer_encoder_close(struct tokenizer_encoder *encoder);

/* Appends the tokens of text to *tokens, an stb_ds array. With `special`, the characters
 * <|endoftext|> in the text become that token, as in Hugging Face's tokenizers. Without, they are
 * ordinary text, as in tiktoken's encode_ordinary. The same holds for all special tokens of other
 * kinds.
 *
 * Time is linear in size (times the logarithm of the longest piece) for any text. Fails, with part
 * of the tokens appended, if a pattern or the normalizer of the kind files would take more. Running
 * out of memory ends the program. */
int tokenizer_encode(struct tokenizer_encoder *encoder, int32_t **tokens, const void *text,
                     size_t size, bool special, struct error *error);

/* Appends the tokens that a text without a context begins with: those that the post-processor of
 * tokenizer.json puts before a text, or else end_of_text, or else those of a line break. */
int tokenizer_encode_beginning(struct tokenizer_encoder *encoder, const struct tokenizer *tokenizer,
                               int32_t **tokens, struct error *error);

/* Appends the tokens of a text that a model continues, special tokens included. Those that the
 * post-processor puts before a text come first, once: a text that begins with them gets no others.
 * An empty text has those of tokenizer_encode_beginning. */
int tokenizer_encode_context(struct tokenizer_encoder *encoder, const struct tokenizer *tokenizer,
                             int32_t **tokens, const void *text, size_t size, struct error *error);

/* Returns [256], true for each byte that has no token and becomes the unknown token or nothing, or
 * NULL if there is none. Only byte-level vocabularies may lack some. */
const bool *tokenizer_lacking(const struct tokenizer *tokenizer);

/* True if the token is a byte of a character without a token (byte_fallback). */
bool tokenizer_falls_back(const struct tokenizer *tokenizer, int token);

/* Returns the bytes of a token; *size is 0 if the vocabulary has no such token. A special token
 * gives its name, such as <|endoftext|>. The bytes belong to the tokenizer. */
const uint8_t *tokenizer_bytes(const struct tokenizer *tokenizer, int token, size_t *size);
