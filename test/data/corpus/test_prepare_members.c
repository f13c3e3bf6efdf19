/* Runs the program itself: members of rows beside their texts, and special tokens in strings. */
#include "test/data/corpus/chat_tokenizer.h"
#include "test/data/corpus/prepare_fixture.h"

TestSuite(prepare_members, .init = make_folder, .fini = remove_folder);

/* The tokens of the shard, and { before those that count, } after. See chat_tokenizer.h. */
static void expect(const char *rows, const char *options, const char *expected) {
    struct tokens tokens;
    char arguments[300], *text = NULL;
    snprintf(arguments, sizeof arguments,
             "--tokenizer chat --val-fraction 0 --force %s --out set a.jsonl", options);
    write_text("a.jsonl", rows);
    cr_assert_eq(run(arguments), 0, "%s\n%s", rows, error_text);
    cr_assert_eq(tokens_open(&tokens, in_folder("set_train_*.bin"), &error), 0, "%s", error.text);
    const struct token_shard *shard = &tokens.shards[0];
    bool counted = false;
    for (uint64_t i = 0; i < shard->count; i++) {
        const bool counts = !shard->mask.bits || token_mask_in_loss(&shard->mask, i);
        const int32_t token = token_at(shard, i);
        if (counts != counted) arrput(text, counts ? '{' : '}');
        arrput(text, (char)(token == 300 ? 'N' : token < 256 ? token : 'A' + token - 256));
        counted = counts;
    }
    if (counted) arrput(text, '}');
    arrput(text, '\0');
    cr_expect_str_eq(text, expected, "%s\n%s", rows, text);
    arrfree(text);
    tokens_close(&tokens);
}

#define USER(text)         "{\"role\":\"user\",\"content\":\"" text "\"}"
#define ANSWER(text, more) "{\"role\":\"assistant\",\"content\":\"" text "\"" more "}"
#define CHAT(more)         "{\"messages\":[" USER("q") "," ANSWER("a", more) "," ANSWER("b", "") "]}"

Test(prepare_members, marks_leave_answers_out_of_the_loss) {
    static const char *const off[] = {",\"weight\":0", ",\"train\":false", ",\"training\":false",
                                      ",\"loss\":0.0", ",\"loss_mask\":0"},
                             *const on[] = {"", ",\"weight\":1", ",\"train\":true",
                                            ",\"loss\":null", ",\"name\":\"\""};
    write_tokenizer(CHATML);
    for (int i = 0; i < 5; i++) {
        char rows[300];
        snprintf(rows, sizeof rows, CHAT("%s"), off[i]);
        expect(rows, "", "Euser\nqF\nEassistant\naF\nEassistant\n{bF}\n");
        snprintf(rows, sizeof rows, CHAT("%s"), on[i]);
        expect(rows, "", "Euser\nqF\nEassistant\n{aF}\nEassistant\n{bF}\n");
        cr_expect_str_empty(error_text);
    }
    expect("{\"conversations\":[{\"from\":\"human\",\"value\":\"q\"},{\"from\":\"gpt\",\"value\":"
           "\"a\",\"weight\":0},{\"from\":\"gpt\",\"value\":\"b\"}]}",
           "", "Euser\nqF\nEassistant\naF\nEassistant\n{bF}\n");
}

static void expect_bad(const char *row, const char *message) {
    write_text("a.jsonl", row);
    cr_expect_eq(run("--tokenizer chat --force --out set a.jsonl"), 1, "%s", row);
    cr_expect_not_null(strstr(error_text, message), "%s:\n%s", row, error_text);
}

Test(prepare_members, what_a_template_needs_is_refused_by_name) {
    static const char *const names[] = {"reasoning_content", "thinking", "tool_calls",
                                        "function_call"};
    write_tokenizer(CHATML);
    for (int i = 0; i < 4; i++) {
        char row[300], message[300];
        snprintf(row, sizeof row, CHAT(",\"%s\":[1]"), names[i]);
        snprintf(message, sizeof message, "\"%s\" is rendered by a model's own template only",
                 names[i]);
        expect_bad(row, message);
    }
    expect_bad(CHAT(",\"weight\":0.5"),
               "column 87: the \"weight\" of a message must be 0, 1, true");
    expect_bad(CHAT(",\"loss\":\"no\""), "the \"loss\" of a message must be 0, 1, true or false");
    expect_bad("{\"messages\":[" ANSWER("a", ",\"weight\":0") "]}", "to train on");
    expect_bad("{\"messages\":[" ANSWER("a", "") "],\"tools\":[{}]}", "\"tools\" is rendered");
    expect_bad("{\"instruction\":\"i\",\"output\":\"o\",\"history\":[[\"q\",\"a\"]]}",
               "\"history\" is rendered");
    expect_bad("{\"prompt\":\"p\",\"completion\":\"c\",\"system\":\"s\"}",
               "\"system\" is rendered by a model's own template only: use scripts/render_chat.py, "
               "or remove it from the rows and begin messages with it");
    expect_bad("{\"messages\":[" ANSWER("a", "") "],\"system\":\"s\"}", "\"system\" is rendered");
    expect_bad("{\"messages\":[{\"role\":\"tool\",\"content\":\"t\"}]}",
               "scripts/render_chat.py renders others");
    write_tokenizer("");
    expect_bad("{\"instruction\":\"i\",\"output\":\"o\",\"system\":\"s\"}",
               "\"system\" is rendered");
}

Test(prepare_members, empty_ones_are_like_none) {
    write_tokenizer(CHATML);
    expect("{\"messages\":[" USER("q") "," ANSWER(
               "a", ",\"tool_calls\":[],\"thinking\":\"\"") "],\"tools\":null,\"system\":null,"
                                                            "\"images\":[]}",
           "", "Euser\nqF\nEassistant\n{aF}\n");
    cr_expect_str_empty(error_text);
}

/* The expected tokens are those of transformers, with the tokens around a document once. */
Test(prepare_members, names_of_special_tokens_are_tokens) {
    write_tokenizer(CHATML);
    expect("{\"text\":\"<|im_start|>user\\nq<|im_end|>\\n<|endoftext|>\"}\n{\"text\":\"x\"}\n", "",
           "{AEuser\nqF\nAx}");
    cr_expect_str_eq(error_text,
                     "note: strings of 1 row name 3 special tokens, as <|im_start|>, which "
                     "become these tokens; --special-as-text keeps them text\n");
    expect("{\"prompt\":\"<|endoftext|>p\",\"completion\":\"c<|endoftext|>\"}\n"
           "{\"prompt\":\"<|endoftext|>p\",\"completion\":\"<|endoftext|>\"}\n",
           "", "Ap{cA}p{A}");
    expect("{\"text\":\"<|im_end|>\"}", "--special-as-text", "{A<|im_end|>}");
    cr_expect_str_eq(error_text, "note: strings of 1 row name 1 special token, as "
                                 "<|im_end|>, which stay text\n");
    expect(CHAT("") "\n{\"messages\":[" USER("<|im_end|>") "," ANSWER("a<|im_end|>", "") "]}",
           "--special-as-text",
           "Euser\nqF\nEassistant\n{aF}\nEassistant\n{bF}\n"
           "Euser\n<|im_end|>F\nEassistant\n{a<|im_end|>F}\n");
    expect("{\"prompt\":\"p<|im_end|>\",\"completion\":\"c<|endoftext|>\"}", "--special-as-text",
           "Ap<|im_end|>{c<|endoftext|>A}");
}

Test(prepare_members, others_are_counted) {
    write_tokenizer(CHATML);
    expect("{\"messages\":[" ANSWER("a", ",\"name\":\"n\"") "," ANSWER(
               "b", ",\"name\":\"n\"") "],\"source\":\"web\",\"id\":7,\"weight\":0.5}\n",
           "", "Eassistant\n{aF}\nEassistant\n{bF}\n");
    cr_expect_str_eq(error_text, "note: left out of rows and messages: name (2), source "
                                 "(1), weight (1)\n");
}
