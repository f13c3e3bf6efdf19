/* Reader of tiktoken's encodings: a list of tokens whose ranks are their numbers. There is no list
 * of merges. Of all neighbouring tokens whose bytes together form a token, the pair that forms the
 * lowest rank is merged first. A piece that is itself a token becomes that token.
 *
 * Each line holds a token's bytes in base64, a space, and the rank. The pattern that cuts text and
 * the special tokens come from tiktoken.json beside the list:
 *
 *     {"pattern": "...", "special_tokens": {"<|endoftext|>": 50256}, "begin": "<|endoftext|>"}
 *
 * "begin" is optional: the token that the model expects before a text. The pattern follows
 * tiktoken's rules (data/tokenize/split_pattern.h). */
#pragma once

#include "data/tokenize/json_reader.h"
#include "data/tokenize/subwords.h"

/* Reads both files: json is tiktoken.json, ranks the list. Fails with the path of the file at
 * fault; then *subwords is empty. */
int subwords_read_tiktoken(struct subwords *subwords, const struct json_reader *json,
                           const struct json_reader *ranks);
