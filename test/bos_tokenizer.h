/* A tokenizer.json like Llama 2's for tests: characters with U+2581 for spaces, byte_fallback, and
 * a post-processor that puts <s> before a text. Tokens: <unk> 0, <s> 1, </s> 2, bytes from 3 on,
 * U+2581 259, a b c 260 to 262, then U+2581 a, ab, b U+2581 a, bc. */
#pragma once

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/tokenize/tokenizer.h"
#include "data/util/files.h"

static inline void print_bos_tokenizer(FILE *out) {
    fputs("{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [",
          out);
    static const char *const names[] = {"<unk>", "<s>", "</s>"};
    for (int i = 0; i < 3; i++)
        fprintf(out,
                "%s{\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, "
                "\"rstrip\": false, \"normalized\": false, \"special\": true}",
                i ? ", " : "", i, names[i]);
    fputs("], \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", "
          "\"prepend\": \"\\u2581\"}, {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, "
          "\"content\": \"\\u2581\"}]}, \"pre_tokenizer\": null, \"post_processor\": {\"type\": "
          "\"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": "
          "0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], \"pair\": [{\"Sequence\": "
          "{\"id\": \"A\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"B\", \"type_id\": 1}}], "
          "\"special_tokens\": {\"<s>\": {\"id\": \"<s>\", \"ids\": [1], \"tokens\": "
          "[\"<s>\"]}}}, \"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": "
          "\"Replace\", \"pattern\": {\"String\": \"\\u2581\"}, \"content\": \" \"}, {\"type\": "
          "\"ByteFallback\"}, {\"type\": \"Fuse\"}, {\"type\": \"Strip\", \"content\": \" \", "
          "\"start\": 1, \"stop\": 0}]}, \"model\": {\"type\": \"BPE\", \"dropout\": null, "
          "\"unk_token\": \"<unk>\", \"continuing_subword_prefix\": null, "
          "\"end_of_word_suffix\": null, \"fuse_unk\": true, \"byte_fallback\": true, "
          "\"ignore_merges\": false, \"vocab\": {\"<unk>\": 0, \"<s>\": 1, \"</s>\": 2",
          out);
    for (int byte = 0; byte < 256; byte++)
        fprintf(out, ", \"<0x%02X>\": %d", (unsigned)byte, byte + 3);
    fputs(", \"\\u2581\": 259, \"a\": 260, \"b\": 261, \"c\": 262, \"\\u2581a\": 263, \"ab\": 264, "
          "\"b\\u2581a\": 265, \"bc\": 266}, \"merges\": [[\"\\u2581\", \"a\"], [\"a\", \"b\"], "
          "[\"b\", \"\\u2581a\"], [\"b\", \"c\"]]}}\n",
          out);
}

/* Opens it from a folder of its own, which it does not need any more. */
static inline void open_bos_tokenizer(struct tokenizer *tokenizer) {
    char directory[] = "/tmp/mantissa-bos-XXXXXX", path[64];
    struct error reason;
    cr_assert_not_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/tokenizer.json", directory);
    FILE *out = fopen(path, "w");
    cr_assert_not_null(out);
    print_bos_tokenizer(out);
    cr_assert_eq(fclose(out), 0);
    cr_assert_eq(tokenizer_open(tokenizer, TOKENIZER_FILES, directory, &reason), 0, "%s",
                 reason.text);
    cr_assert_eq(directory_remove(directory, &reason), 0);
}
