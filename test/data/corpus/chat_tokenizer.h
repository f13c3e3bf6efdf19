/* Tokenizers in the folder chat that have the special tokens of a chat template. */
#pragma once

#include "test/data/corpus/prepare_fixture.h"

/* Writes a tokenizer of bytes with special tokens from 256 on: "NAME": TOKEN, ... The pattern makes
 * pieces of letters and of line feeds, and "\n\n" is the token 10 twice unless it is merged. */
static inline void write_tokenizer(const char *special) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char json[1000];
    mkdir(in_folder("chat"), 0755);
    snprintf(json, sizeof json,
             "{\"pattern\": \"\\\\n+|[^\\\\n]\", \"special_tokens\": {\"<|endoftext|>\": 256%s}}",
             special);
    write_text("chat/tiktoken.json", json);
    FILE *file = fopen(in_folder("chat/ranks.tiktoken"), "w");
    for (int byte = 0; byte < 256; byte++)
        fprintf(file, "%c%c== %d\n", digits[byte >> 2], digits[(byte & 3) << 4], byte);
    fprintf(file, "Cgo= 300\n"); /* two line feeds */
    cr_assert_eq(fclose(file), 0);
}

static const char CHATML[] = ", \"<|im_start|>\": 260, \"<|im_end|>\": 261";
static const char LLAMA3[] = ", \"<|begin_of_text|>\": 260, \"<|start_header_id|>\": 261, "
                             "\"<|end_header_id|>\": 262, \"<|eot_id|>\": 263";
static const char GEMMA[] = ", \"<bos>\": 260, \"<start_of_turn>\": 261, \"<end_of_turn>\": 262";
static const char OLMO[] = ", \"<|endofprompt|>\": 260, \"<|im_start|>\": 261, \"<|im_end|>\": 262";
static const char EXAONE4[] = ", \"[|system|]\": 260, \"[|user|]\": 261, \"[|assistant|]\": 262, "
                              "\"[|tool|]\": 263, \"[|endofturn|]\": 264";
static const char MISTRAL[] = ", \"<s>\": 260, \"</s>\": 261, \"[INST]\": 262, \"[/INST]\": 263";
