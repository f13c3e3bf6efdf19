/* Encodings in the way of tiktoken: a list of tokens whose number is their rank, which says what
 * merges would say: of all neighbouring tokens whose bytes together are a token, those become one
 * whose rank is the lowest; a piece that is a token is that.
 *
 * Ranks are lines of the token's bytes in base64, a space, and the rank. The pattern that cuts text
 * and the special tokens are not among them; tiktoken.json beside has them:
 *
 *     {"pattern": "...", "special_tokens": {"<|endoftext|>": 50256}, "begin": "<|endoftext|>"}
 *
 * where "begin", which may be missing, is the token that the model expects before a text. The
 * pattern is written as for tiktoken (data/tokenize/split_pattern.h). */
#pragma once

#include "data/tokenize/json_reader.h"
#include "data/tokenize/subwords.h"

/* json is tiktoken.json, ranks the list. Fails with the path of the one that is wrong; then
 * *subwords is empty. */
int subwords_read_ranks(struct subwords *subwords, const struct json_reader *json,
                        const struct json_reader *ranks);
