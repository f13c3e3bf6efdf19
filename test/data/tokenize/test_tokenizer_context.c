/* Tokens that a text begins with. */
#include <criterion/criterion.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/tokenize/tokenizer.h"
#include "test/bos_tokenizer.h"

/* Tokens of a prompt: those of tokenizers' encode, but <s> only once. Other tokenizers put nothing
 * before a text. */
Test(tokenizer_context, a_context_begins_as_the_template_says) {
    static const struct {
        const char *text;
        int count;
        int32_t tokens[6];
    } cases[] = {
        {"a b", 4, {1, 263, 259, 261}},
        {"<s>a b", 4, {1, 263, 259, 261}},
        {"", 1, {1}},
        {"<s>", 1, {1}},
        {"<s><s>a", 3, {1, 1, 263}},
        {"</s>a", 3, {1, 2, 263}},
        {"c<s>", 4, {1, 259, 262, 1}},
    };
    struct tokenizer tokenizer;
    struct error error;
    open_bos_tokenizer(&tokenizer);
    struct tokenizer_encoder *encoder = tokenizer_encoder_open(&tokenizer);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t *tokens = NULL;
        arrput(tokens, 7); /* tokens before it stay */
        cr_assert_eq(tokenizer_encode_context(encoder, &tokenizer, &tokens, cases[i].text,
                                              strlen(cases[i].text), &error),
                     0);
        cr_assert_eq(arrlen(tokens), 1 + cases[i].count, "%s", cases[i].text);
        cr_expect_eq(tokens[0], 7);
        cr_expect_arr_eq(tokens + 1, cases[i].tokens, (size_t)cases[i].count * sizeof *tokens);
        arrfree(tokens);
    }
    tokenizer_encoder_close(encoder);
    tokenizer_close(&tokenizer);
}
