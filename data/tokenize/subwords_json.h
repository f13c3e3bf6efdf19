/* Readers of Hugging Face's tokenizer.json, and of GPT-2's vocab.json and merges.txt, for
 * data/tokenize/subwords.h. Supported are:
 *
 *     model          BPE, without dropout, prefix or suffix; ignore_merges, byte_fallback,
 *                    unk_token and fuse_unk
 *     pre_tokenizer  byte-level: Split (Regex or String; Isolated, or Removed and inverted),
 *                    Digits and, last, ByteLevel, in a Sequence or alone.
 *                    Characters: none, or Metaspace; a Split at spaces if the normalizer
 *                    leaves none
 *     normalizer     none, NFC, Prepend, Replace (of a String), a Sequence of them
 *     decoder        byte-level: ByteLevel. Characters: Metaspace, or the Sequence of Replace,
 *                    ByteFallback, Fuse and Strip that SentencePiece's models have
 *     post_processor none, ByteLevel, TemplateProcessing, a Sequence of them
 *     added_tokens   with all their flags. Their numbers are those that tokenizers gives them: of
 *                    the same name in the vocabulary, or else the next number, whatever the file
 *                    says
 *     truncation, padding, version
 *                    ignored, as by transformers, which sets the first two for each text
 *
 * Everything else is refused with a message that names it, including unknown members of the objects
 * above.
 *
 * vocab.json is an object of tokens and their numbers, 0, 1, 2 ... without holes. merges.txt has
 * one merge per line: two tokens with a space between, the lowest rank first. Lines that begin with
 * "#version" are skipped, lines end with LF or CR LF, and empty lines may follow the last merge.
 * Together the two files are equivalent to a tokenizer.json of GPT-2, or of another class that the
 * settings beside them name. */
#pragma once

#include "data/tokenize/json_reader.h"
#include "data/tokenize/subwords.h"
#include "data/tokenize/tokenizer_settings.h"

/* Both fail with the path of the file at fault and what is wrong or unsupported; then *subwords is
 * empty. settings: those beside the files. If they change what the files say, *text is the
 * tokenizer.json of the result, to be freed, and NULL otherwise, also on failure. settings may be
 * NULL, and then text, too. */
int subwords_read_json(struct subwords *subwords, char **text,
                       const struct tokenizer_settings *settings, const struct json_reader *reader);
int subwords_read_gpt2(struct subwords *subwords, char **text,
                       const struct tokenizer_settings *settings, const struct json_reader *vocab,
                       const struct json_reader *merges);
