/* vocab.json and merges.txt of GPT-2, and tokenizer.json of Hugging Face's tokenizers, as
 * data/tokenize/subwords.h takes it:
 *
 *     model          BPE, without dropout, prefix and suffix; ignore_merges, byte_fallback,
 *                    unk_token and fuse_unk as they are
 *     pre_tokenizer  byte-level: Split (Regex or String; Isolated, or Removed and inverted),
 *                    Digits and, last, ByteLevel, in a Sequence or alone
 *                    characters: none, or Metaspace; a Split at spaces where none are left
 *     normalizer     none, NFC, Prepend, Replace (of a String), a Sequence of them
 *     decoder        byte-level: ByteLevel; characters: Metaspace, or the Sequence of Replace,
 *                    ByteFallback, Fuse and Strip that SentencePiece's models have
 *     post_processor none, ByteLevel, TemplateProcessing, a Sequence of them
 *     added_tokens   with all their flags
 *
 * All else is refused by name, also a member of any of these that is not known.
 *
 * vocab.json is an object of tokens and their numbers, 0, 1, 2 ... without holes. merges.txt has
 * one merge in a line, two tokens and a space between, the lowest rank first; lines that begin with
 * "#version" are no merges; CR LF ends lines as well as LF, and empty lines may follow the last
 * merge. Both together say what a tokenizer.json of GPT-2 does. */
#pragma once

#include "data/tokenize/json_reader.h"
#include "data/tokenize/subwords.h"

/* Both fail with the path of the file that is wrong, and what is wrong or not known; then *subwords
 * is empty. */
int subwords_read_json(struct subwords *subwords, const struct json_reader *reader);
int subwords_read_gpt2(struct subwords *subwords, const struct json_reader *vocab,
                       const struct json_reader *merges);
