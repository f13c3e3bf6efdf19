/* The files that define a byte-pair encoding: vocab.json and merges.txt of GPT-2, or one
 * tokenizer.json of Hugging Face.
 *
 * vocab.json is an object of tokens and their numbers. merges.txt has one merge in a line, two
 * tokens and a space between, the lowest rank first; lines that begin with "#version" are no
 * merges; CR LF ends lines as well as LF, and empty lines may follow the last merge.
 *
 * Of tokenizer.json only GPT-2's kind is taken: a model of type BPE (or without a type, as in old
 * files) without dropout, prefix, suffix, byte_fallback and ignore_merges; no normalizer; the
 * pre-tokenizer ByteLevel without add_prefix_space (with use_regex false, the text is one piece),
 * alone or as a Sequence of one; the decoder ByteLevel; the post-processor none, ByteLevel or a
 * template that adds nothing; no added token but <|endoftext|>, which takes no neighbouring space
 * with it.
 *
 * Strict: numbers are 0, 1, 2 ... without holes, every byte is a token, what merges name is in the
 * vocabulary, nothing stands there twice. <|endoftext|> may be missing. */
#pragma once

#include "data/base/error.h"
#include "data/text/bpe.h"

enum { BPE_FILE_MAX_BYTES = 64 << 20 };

/* A file in memory; a NUL follows its last byte. */
struct bpe_file {
    const char *path; /* for messages */
    const char *bytes;
    size_t size;
};

/* Both fail with the file's path, the line or token and what is wrong; then *bpe is empty. */
int bpe_read_vocab_and_merges(struct bpe *bpe, const struct bpe_file *vocab,
                              const struct bpe_file *merges, struct error *error);
int bpe_read_tokenizer(struct bpe *bpe, const struct bpe_file *tokenizer, struct error *error);
