/* Text to tokens and back: bytes, or byte-pair encodings, of GPT-2 and others.
 *
 * bytes: one token for each byte, vocabulary 256, no special token.
 * gpt2: the pattern of GPT-2 cuts text into pieces, each piece is merged by rank (Sennrich et al.
 * 2016; Radford et al. 2019), bytes are the alphabet, so any bytes can be encoded, valid UTF-8 or
 * not, and decoding gives them back. Vocabulary and merges come from a directory that holds
 * vocab.json and merges.txt, or one tokenizer.json of Hugging Face. A tokenizer.json of another
 * kind (data/tokenize/subwords_json.h), or tiktoken.json with ranks (data/tokenize/tiktoken_vocab.h), makes its own
 * tokens: its kind is files.
 *
 * A tokenizer is read-only once open and may be shared by threads; each thread encodes with an
 * encoder of its own. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"
#include "data/util/sha256.h"
#include "data/tokenize/vocabulary.h"

/* GPT2: byte pairs as GPT-2 has them, of any vocabulary. FILES: what else files can say. */
enum tokenizer_kind { TOKENIZER_BYTES, TOKENIZER_GPT2, TOKENIZER_FILES };

enum { TOKENIZER_FILES_MAX = 3 };

/* A file that defines the tokenizer, kept in memory so that it can be given along with a model. */
struct tokenizer_file {
    const char *name; /* "vocab.json", "merges.txt", "tokenizer.json" */
    char *bytes;      /* [size] */
    size_t size;
    char sha256[SHA256_HEX_MAX];
};

struct subwords; /* data/tokenize/subwords.h */

struct tokenizer {
    enum tokenizer_kind kind;
    int vocab_size;  /* tokens are 0 .. vocab_size - 1, at most VOCABULARY_MAX */
    int end_of_text; /* the token <|endoftext|>, or what another kind has before a text, or -1 */
    int stop; /* the token that ends an answer: end_of_text, or what another kind has behind a
               * text; or -1 */
    struct tokenizer_file files[TOKENIZER_FILES_MAX];
    int file_count;
    char sha256[SHA256_HEX_MAX]; /* of tokens and merges, in whatever files they were; "" for bytes
                                  */
    struct subwords *subwords;   /* NULL for bytes */
    char cuts_before[5];         /* white space before which a text may be cut (data/tokenize/cuts.h) */
};

/* Opens a tokenizer: of bytes, or that of a directory, whose files say which of the other kinds it
 * is. For bytes, directory is ignored, and the one file is a tokenizer.json made in
 * memory that gives Hugging Face's tokenizers the same tokens. For the others, vocab.json and
 * merges.txt are used where both are there, else tokenizer.json (vocab.json without merges.txt is
 * then left aside, and the other way round). Where all three are there, they have to say the same;
 * but a tokenizer.json of another kind than GPT-2's (is_gpt2 in data/tokenize/subwords.h) counts alone,
 * since the other two do not say how text is cut. Where there is none of these,
 * tiktoken.json and ranks.tiktoken are used. What was read is kept in files. Fails, naming the file
 * and what is wrong with it, when they are missing, longer than 64 MiB, malformed, contradict each
 * other, have more than VOCABULARY_MAX tokens, or say what is not known. On failure nothing is
 * left to close, though closing is harmless. */
int tokenizer_open(struct tokenizer *tokenizer, enum tokenizer_kind kind, const char *directory,
                   struct error *error);
void tokenizer_close(struct tokenizer *tokenizer);

/* Whether a directory holds files that tokenizer_open would read. */
bool tokenizer_in_directory(const char *directory);

/* "bytes", "gpt2", "files". */
const char *tokenizer_kind_name(enum tokenizer_kind kind);

/* What one thread needs to encode. The tokenizer must outlive it. NULL when memory is short. */
struct tokenizer_encoder;
struct tokenizer_encoder *tokenizer_encoder_open(const struct tokenizer *tokenizer);
void tokenizer_encoder_close(struct tokenizer_encoder *encoder);

/* Appends the tokens of text to *tokens, an stb_ds array. With `special`, the characters
 * <|endoftext|> in the text mean that token, as in Hugging Face's tokenizers; without, they are
 * text like any other, as in tiktoken's encode_ordinary; so it is with all special tokens of other
 * kinds. Takes time in proportion to size (times
 * the logarithm of the longest piece), whatever the text. Fails, with a part of the tokens, where a
 * pattern or the normalizer of the kind files would take more. Memory shortage ends the program. */
int tokenizer_encode(struct tokenizer_encoder *encoder, int32_t **tokens, const void *text,
                     size_t size, bool special, struct error *error);

/* The bytes of one token; *size is 0 for what is no token of the vocabulary. The special token
 * gives its name, <|endoftext|>. They belong to the tokenizer. */
const uint8_t *tokenizer_bytes(const struct tokenizer *tokenizer, int token, size_t *size);
