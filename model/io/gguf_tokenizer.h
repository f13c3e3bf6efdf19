/* The tokenizer of a model in a GGUF file, as llama.cpp reads it (src/llama-vocab.cpp):
 *
 *   "gpt2"   byte-level: tokens in the alphabet of data/tokenize/byte_alphabet.h, merges, and the
 *            name of a pattern that cuts text, all of which llama.cpp has in a table of its own
 *   "llama"  SentencePiece's: tokens with scores instead of merges; of all neighbours whose texts
 *            together are a token, those of the highest score are merged first
 *   "none"   a file without a tokenizer
 */
#pragma once

#include "data/tokenize/tokenizer.h"
#include "model/io/gguf.h"
#include "model/io/huggingface.h"

/* Adds the pairs tokenizer.ggml.* and, unless it is NULL, the chat template. tokenizer may be NULL.
 * There are vocab_size tokens, of which the last need not have a text. Fails, with what to do, if
 * llama.cpp has no such tokenizer: a pattern it has no name for, merges that scores cannot express,
 * another normalizer. NFC, which llama.cpp lacks, is left out, as its own converter does. */
int gguf_put_tokenizer(struct gguf_writer *writer, const struct tokenizer *tokenizer,
                       const struct huggingface_tokens *tokens, const char *chat_template,
                       int64_t vocab_size, struct error *error);
