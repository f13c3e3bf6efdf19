/* Runs the program itself: rows of pairs and of labelled answers. */
#include "test/data/corpus/chat_tokenizer.h"
#include "test/data/corpus/prepare_fixture.h"

TestSuite(prepare_pairs, .init = make_folder, .fini = remove_folder);

/* Returns the documents of a set as text, one a line, with two letters before each: + for the first
 * document of a pair and - for the second; u or k if it has the label, else a space. Answers are
 * between braces; line feeds are /, two of them as one token N, and special tokens letters from A
 * (256) on. */
static char *documents_text(const char *pattern) {
    struct tokens tokens;
    char *text = NULL;
    cr_assert_eq(tokens_open(&tokens, in_folder("%s", pattern), &error), 0, "%s", error.text);
    for (int s = 0; s < (int)arrlen(tokens.shards); s++) {
        const struct token_mask *mask = &tokens.shards[s].mask;
        bool counted = false;
        cr_assert(token_mask_has_pairs(mask));
        for (uint64_t i = 0; i <= tokens.shards[s].count; i++) {
            const bool is_end = i == tokens.shards[s].count;
            const bool counts = !is_end && token_mask_in_loss(mask, i);
            if (counted && !counts) arrput(text, '}');
            if (is_end || (i > 0 && token_mask_begins(mask, i))) arrput(text, '\n');
            if (is_end) break;
            if (token_mask_begins(mask, i)) {
                const bool is_second = token_mask_is_rejected(mask, i);
                arrput(text, is_second ? '-' : '+');
                arrput(text, !token_mask_has_label(mask, i) ? ' ' : is_second ? 'k' : 'u');
            }
            if (counts && !counted) arrput(text, '{');
            const int32_t token = token_at(&tokens.shards[s], i);
            arrput(text, (char)(token == '\n'  ? '/'
                                : token == 300 ? 'N'
                                : token < 256  ? token
                                               : 'A' + token - 256));
            counted = counts;
        }
    }
    arrput(text, '\0');
    tokens_close(&tokens);
    return text;
}

static void expect(const char *pattern, const char *expected) {
    char *text = documents_text(pattern);
    cr_expect_str_eq(text, expected, "%s:\n%s", pattern, text);
    arrfree(text);
}

static void prepare(const char *tokenizer, const char *options, const char *rows) {
    char arguments[500];
    snprintf(arguments, sizeof arguments,
             "--tokenizer %s --val-fraction 0 --force %s --out set "
             "a.jsonl",
             tokenizer, options);
    write_text("a.jsonl", rows);
    cr_assert_eq(run(arguments), 0, "%s\n%s", rows, error_text);
}

Test(prepare_pairs, two_answers_become_two_documents) {
    prepare("bytes", "",
            "{\"prompt\":\"2+2?\",\"chosen\":\" 4\",\"rejected\":\" 5\"}\n"
            "{\"rejected\":\"No.\",\"id\":7,\"prompt\":\"Hm\\n\",\"chosen\":\"\\u00e9\"}\n");
    expect("set_train_*.bin", "+ 2+2?{ 4//}\n- 2+2?{ 5//}\n+ Hm/{\xc3\xa9//}\n- Hm/{No.//}\n");
    cr_expect_not_null(
        strstr(out_text, "4 documents, 2 pairs (2 rows with prompt, chosen, rejected)"), "%s",
        out_text);
    cr_expect_not_null(strstr(out_text, "next: ./train --config dpo.json --set name=mine \\\n"),
                       "%s", out_text);
    cr_expect_null(strstr(out_text, "seq_len"), "%s", out_text);
    cr_expect_null(strstr(out_text, "kto"), "%s", out_text);
}

/* The expected parts are those of TRL's extract_prompt. */
Test(prepare_pairs, the_common_beginning_is_the_prompt) {
    static const struct {
        const char *chosen, *rejected, *expected;
    } cases[] = {
        {"Q: hi A: yes", "Q: hi A: no", "+ Q: hi A:{ yes//}\n- Q: hi A:{ no//}\n"},
        {"a b c", "a b d e", "+ a b{ c//}\n- a b{ d e//}\n"},
        {"long answer here", "long answer", "+ long answe{r here//}\n- long answe{r//}\n"},
        {"ab", "abc", "+ a{b//}\n- a{bc//}\n"},
        {"a\xc3\xa9", "a\xc3\xa8", "+ a{\xc3\xa9//}\n- a{\xc3\xa8//}\n"},
        {"\xc3\xa9 \xc3\xbc", "\xc3\xa9 \xc3\xb6",
         "+ \xc3\xa9{ \xc3\xbc//}\n- \xc3\xa9{ \xc3\xb6//}\n"},
        {"q \xc3\xa9",
         "q \xc3\xa9"
         "a",
         "+ q {\xc3\xa9//}\n- q {\xc3\xa9"
         "a//}\n"},
        {"q  a", "q  b", "+ q { a//}\n- q { b//}\n"},
        {"A: a", "A:  a", "+ A:{ a//}\n- A:{  a//}\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char row[200];
        snprintf(row, sizeof row, "{\"chosen\":\"%s\",\"rejected\":\"%s\"}", cases[i].chosen,
                 cases[i].rejected);
        prepare("bytes", "", row);
        expect("set_train_*.bin", cases[i].expected);
        cr_expect_not_null(strstr(out_text, "1 pair (1 row with chosen, rejected)"), "%s",
                           out_text);
    }
}

/* The second document has the answer of the row before; the first row has that of the second. */
Test(prepare_pairs, labelled_answers_are_followed_by_those_of_others) {
    prepare("bytes", "",
            "{\"prompt\":\"p\",\"completion\":\"a\",\"label\":true}\n"
            "{\"prompt\":\"q\",\"completion\":\"bb\",\"label\":false}\n\n"
            "{\"label\":true,\"prompt\":\"r\",\"completion\":\"ccc\"}\n"
            "{\"prompt\":\"s\",\"completion\":\"bb\",\"label\":false}\n");
    expect("set_train_*.bin", "+ p{a//}\n-kp{bb//}\n+uq{bb//}\n-kq{a//}\n+ r{ccc//}\n-kr{bb//}\n"
                              "+us{bb//}\n-ks{ccc//}\n");
    cr_expect_not_null(strstr(out_text, "8 documents, 4 labelled answers, of which 2 are "
                                        "undesirable (4 rows with prompt, completion, label)"),
                       "%s", out_text);
    cr_expect_not_null(strstr(out_text, "next: ./train --config dpo.json --set name=mine "
                                        "--set train.objective=kto \\\n"),
                       "%s", out_text);
}

Test(prepare_pairs, members_may_have_other_names) {
    prepare("bytes", "--field chosen=best,prompt=q,rejected=worst",
            "{\"worst\":\"x\",\"best\":\"y\",\"q\":\"z\",\"chosen\":1,\"text\":\"t\"}");
    expect("set_train_*.bin", "+ z{y//}\n- z{x//}\n");
    cr_expect_not_null(strstr(out_text, "(1 row with q, best, worst)"), "%s", out_text);
    prepare("bytes", "--field chosen,rejected=worst",
            "{\"worst\":\"ax\",\"chosen\":\"ay\",\"prompt\":\"z\"}");
    expect("set_train_*.bin", "+ a{y//}\n- a{x//}\n");
    prepare("bytes", "--field prompt=q,completion=a,label=good",
            "{\"q\":\"a\",\"a\":\"b\",\"good\":true}\n{\"q\":\"c\",\"a\":\"d\",\"good\":false}");
    expect("set_train_*.bin", "+ a{b//}\n-ka{d//}\n+uc{d//}\n-kc{b//}\n");
    static const char *const bad[] = {"chosen=,rejected", "chosen=a,rejected=a", "chosen,chosen"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char arguments[100];
        snprintf(arguments, sizeof arguments, "--tokenizer bytes --out x --field %s a.jsonl",
                 bad[i]);
        cr_expect_eq(run(arguments), 1);
        cr_expect_not_null(strstr(error_text, "prompt=NAME,chosen=NAME,rejected=NAME"), "%s",
                           error_text);
    }
}

struct bad_row {
    const char *row, *what;
};

/* Puts each bad row after a good one, and then before it and with --skip-bad-rows. */
static void expect_bad_rows(const char *tokenizer, const char *good, const char *documents,
                            const struct bad_row *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        char rows[2000], arguments[200];
        snprintf(rows, sizeof rows, "%s\n%s\n%s\n", good, cases[i].row, good);
        snprintf(arguments, sizeof arguments, "--tokenizer %s --out bad a.jsonl", tokenizer);
        write_text("a.jsonl", rows);
        cr_expect_eq(run(arguments), 1);
        cr_expect_not_null(strstr(error_text, cases[i].what), "%s\n%s\n%s", cases[i].row,
                           cases[i].what, error_text);
        cr_expect_not(exists("bad_train_000000.bin"));
        prepare(tokenizer, "--skip-bad-rows", rows);
        expect("set_train_*.bin", documents);
        cr_expect_not_null(strstr(error_text, "1 bad row was left out, the first: a.jsonl, line 2"),
                           "%s", error_text);
        cr_expect_not_null(strstr(out_text, "4 documents"), "%s", out_text);
    }
}

#define BAD_ROWS(tokenizer, good, documents, cases) \
    expect_bad_rows(tokenizer, good, documents, cases, sizeof(cases) / sizeof *(cases))

Test(prepare_pairs, bad_pairs_are_named_by_line) {
    static const struct bad_row cases[] = {
        {"{\"prompt\":\"a\",\"chosen\":\"b\"}",
         "line 2, column 1: there is no member \"rejected\" (there is \"prompt\", "
         "\"chosen\")\neach "
         "line must be a JSON object with \"chosen\" and \"rejected\", after a prompt, all strings "
         "or all lists of messages; --field names others"},
        {"{\"chosen\":\"b\",\"rejected\":\"c\"}",
         "line 2, column 1: there is no member \"prompt\""},
        {"{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":\"b\"}",
         "line 2, column 39: \"chosen\" and \"rejected\" are equal"},
        {"{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":\"\"}",
         "line 2, column 39: \"rejected\" is empty"},
        {"{\"prompt\":\"\\n\\u00e9\",\"chosen\":\"\",\"rejected\":\"b\"}",
         "line 2, column 31: \"chosen\" is empty"},
        {"{\"prompt\":\"\",\"chosen\":\"b\",\"rejected\":\"c\"}",
         "line 2, column 11: \"prompt\" is empty"},
        {"{\"prompt\":1,\"chosen\":\"b\",\"rejected\":\"c\"}",
         "line 2, column 11: the member is neither a string nor a list"},
        {"{\"prompt\":[],\"chosen\":\"b\",\"rejected\":\"c\"}",
         "line 2, column 11: the prompt and the answers must be strings, or lists of one kind"},
        {"{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":[]}",
         "line 2, column 39: the prompt and the answers must be strings, or lists of one kind"},
    };
    BAD_ROWS("bytes", "{\"prompt\":\"p\",\"chosen\":\"y\",\"rejected\":\"n\"}",
             "+ p{y//}\n- p{n//}\n+ p{y//}\n- p{n//}\n", cases);
    static const struct bad_row implicit[] = {
        {"{\"chosen\":\"a\",\"rejected\":\"b\"}",
         "line 2, column 11: the answers have no common beginning as their prompt\neach line must "
         "be "
         "a JSON object with \"chosen\" and \"rejected\", strings or lists of messages that begin "
         "with the same prompt"},
        {"{\"chosen\":\"a b\",\"rejected\":\"a b\"}",
         "line 2, column 28: \"chosen\" and \"rejected\" are equal"},
        {"{\"chosen\":\" a\",\"rejected\":\" b\"}", "line 2, column 11: the answers have no"},
        {"{\"chosen\":\"\",\"rejected\":\"b\"}", "line 2, column 11: \"chosen\" is empty"},
        {"{\"chosen\":\"a\",\"rejected\":[]}", "line 2, column 26: the prompt and the answers"},
    };
    BAD_ROWS("bytes", "{\"chosen\":\"p y\",\"rejected\":\"p n\"}",
             "+ p{ y//}\n- p{ n//}\n+ p{ y//}\n- p{ n//}\n", implicit);
}

Test(prepare_pairs, bad_labelled_answers_are_named_by_line) {
    static const struct bad_row cases[] = {
        {"{\"prompt\":\"a\",\"completion\":\"b\"}",
         "line 2, column 1: there is no member \"label\" (there is \"prompt\", "
         "\"completion\")\neach "
         "line must be a JSON object with \"prompt\" and \"completion\", strings or lists of "
         "messages, and \"label\", true or false"},
        {"{\"prompt\":\"a\",\"completion\":\"b\",\"label\":1}",
         "line 2, column 40: the member is not true or false"},
        {"{\"prompt\":\"a\",\"completion\":\"b\",\"label\":\"true\"}",
         "line 2, column 40: the member is not true or false"},
        {"{\"prompt\":\"a\",\"completion\":\"\",\"label\":true}",
         "line 2, column 28: \"completion\" is empty"},
        {"{\"prompt\":\"\",\"completion\":\"b\",\"label\":true}",
         "line 2, column 11: \"prompt\" is empty"},
        {"{\"prompt\":[],\"completion\":\"b\",\"label\":true}",
         "line 2, column 11: \"prompt\" is empty"},
    };
    BAD_ROWS("bytes", "{\"prompt\":\"p\",\"completion\":\"y\",\"label\":false}",
             "+up{y//}\n-kp{y//}\n+up{y//}\n-kp{y//}\n", cases);
    write_text("a.jsonl", "{\"prompt\":\"p\",\"completion\":\"y\",\"label\":false}");
    cr_expect_eq(run("--tokenizer bytes --out bad a.jsonl"), 1);
    cr_expect_not_null(strstr(error_text, "there is one row with a label; at least two are needed"),
                       "%s", error_text);
}

/* A row of a list may have several lines; the texts before the bad member have others. */
Test(prepare_pairs, bad_rows_of_a_list_are_named_by_their_line) {
    write_text("a.json", "[{\"prompt\": \"\\n\\n\\n\",\n  \"chosen\": \"\\n\\n\\n\",\n"
                         "  \"rejected\": \"\"}]");
    cr_expect_eq(run("--tokenizer bytes --out bad a.json"), 1);
    cr_expect_not_null(strstr(error_text, "a.json, line 3, column 15: \"rejected\" is empty"), "%s",
                       error_text);
}

Test(prepare_pairs, other_text_is_refused) {
    write_text("a.jsonl", "{\"prompt\":\"p\",\"chosen\":\"y\",\"rejected\":\"n\"}");
    write_text("b.txt", "text");
    write_text("empty.txt", "");
    cr_expect_eq(run("--tokenizer bytes --out set a.jsonl b.txt"), 1);
    cr_expect_not_null(strstr(error_text, "prepare them apart, with another --out"), "%s",
                       error_text);
    cr_expect_eq(run("--tokenizer bytes --out set b.txt a.jsonl"), 1);
    cr_expect_not_null(strstr(error_text, "prepare them apart"), "%s", error_text);
    cr_expect_eq(run("--tokenizer bytes --val-fraction 0 --out set empty.txt a.jsonl empty.txt"), 0,
                 "%s", error_text);
    expect("set_train_*.bin", "+ p{y//}\n- p{n//}\n");
}

#define USER(text)      "{\"role\":\"user\",\"content\":\"" text "\"}"
#define ASSISTANT(text) "{\"role\":\"assistant\",\"content\":\"" text "\"}"

/* Only the answers count, not what the assistant says in the prompt. */
Test(prepare_pairs, conversations_become_the_text_of_the_template) {
    write_tokenizer(CHATML);
    prepare("chat", "",
            "{\"prompt\":[" USER("q") "],\"chosen\":[" ASSISTANT("y") "],\"rejected\":[" ASSISTANT(
                "n") "]}\n"
                     "{\"prompt\":[" USER("q") "," ASSISTANT("o") "," USER(
                         "r") "],\"chosen\":[" ASSISTANT("y") "],\"rejected\":"
                                                              "[" ASSISTANT("n") "," USER(
                                                                  "s") "," ASSISTANT("m") "]}\n");
    expect("set_train_*.bin", "+ Euser/qF/Eassistant/{yF}/\n"
                              "- Euser/qF/Eassistant/{nF}/\n"
                              "+ Euser/qF/Eassistant/oF/Euser/rF/Eassistant/{yF}/\n"
                              "- Euser/qF/Eassistant/oF/Euser/rF/Eassistant/{nF}/Euser/sF/"
                              "Eassistant/{mF}/\n");
    /* The prompt is the messages that both begin with, also beside it as a string. */
    prepare("chat", "",
            "{\"prompt\":\"q\",\"chosen\":[" USER("q") "," ASSISTANT("y") "],\"rejected\":[" USER(
                "q") "," ASSISTANT("n") "]}\n"
                                        "{\"prompt\":\"q\",\"chosen\":\"y\",\"rejected\":\"n\"}");
    expect("set_train_*.bin", "+ Euser/qF/Eassistant/{yF}/\n"
                              "- Euser/qF/Eassistant/{nF}/\n"
                              "+ Aq{yA}\n"
                              "- Aq{nA}\n");
    prepare("chat", "",
            "{\"chosen\":[{\"from\":\"human\",\"value\":\"q\"},{\"from\":\"gpt\",\"value\":\"y\"}],"
            "\"rejected\":[{\"from\":\"human\",\"value\":\"q\"},{\"from\":\"gpt\",\"value\":\"n\"}"
            "]}");
    expect("set_train_*.bin", "+ Euser/qF/Eassistant/{yF}/\n- Euser/qF/Eassistant/{nF}/\n");
    prepare("chat", "",
            "{\"prompt\":[" USER("q") "],\"completion\":[" ASSISTANT(
                "a") "],\"label\":true}\n"
                     "{\"prompt\":[" USER("r") "],\"completion\":[" ASSISTANT(
                         "b") "],\"label\":false}\n");
    expect("set_train_*.bin", "+ Euser/qF/Eassistant/{aF}/\n-kEuser/qF/Eassistant/{bF}/\n"
                              "+uEuser/rF/Eassistant/{bF}/\n-kEuser/rF/Eassistant/{aF}/\n");
}

/* Rows of UltraFeedback binarized are chats, too. One note says how they become pairs. */
Test(prepare_pairs, chats_that_hold_pairs_are_noted) {
    static const char row[] =
        "{\"prompt\":\"q\",\"messages\":[" USER("q") "," ASSISTANT("y") "],\"chosen\":[" USER(
            "q") "," ASSISTANT("y") "],\"rejected\":[" USER("q") "," ASSISTANT("n") "]}\n";
    static const char note[] = "note: left out of rows and messages: prompt (2), chosen "
                               "(2), rejected (2); --field "
                               "prompt,chosen,rejected prepares preference pairs\n";
    char rows[1000];
    snprintf(rows, sizeof rows, "%s%s", row, row);
    write_tokenizer(CHATML);
    prepare("chat", "", rows);
    cr_expect_str_eq(error_text, note);
    cr_expect_not_null(strstr(out_text, "2 documents (2 rows with messages)"), "%s", out_text);
    prepare("chat", "--field messages", rows);
    cr_expect_str_empty(error_text);
    prepare("chat", "--field prompt,chosen,rejected", rows);
    cr_expect_str_empty(error_text);
    expect("set_train_*.bin", "+ Euser/qF/Eassistant/{yF}/\n- Euser/qF/Eassistant/{nF}/\n"
                              "+ Euser/qF/Eassistant/{yF}/\n- Euser/qF/Eassistant/{nF}/\n");
    prepare("bytes", "", "{\"text\":\"ttt\",\"chosen\":\"y\",\"rejected\":\"n\"}");
    cr_expect_not_null(
        strstr(error_text, "chosen (1), rejected (1); --field chosen,rejected prepares"), "%s",
        error_text);
    prepare("bytes", "", "{\"text\":\"ttt\",\"prompt\":\"q\",\"chosen\":\"y\",\"images\":[]}");
    cr_expect_str_eq(error_text, "note: left out of rows and messages: prompt (1), chosen (1)\n");
    /* The first good row decides, not a bad one before it. */
    prepare("bytes", "--skip-bad-rows",
            "{\"text\":1,\"chosen\":\"y\",\"rejected\":\"n\"}\n{\"text\":\"ttt\"}\n");
    cr_expect_null(strstr(error_text, "preference pairs"), "%s", error_text);
}

/* The buffer for rows is overwritten between them: a row keeps the answer of the one before. */
Test(prepare_pairs, answers_of_long_rows_are_kept) {
    write_tokenizer(CHATML);
    FILE *file = fopen(in_folder("a.jsonl"), "w");
    for (int i = 0; i < 4; i++)
        fprintf(file,
                "{\"pad\":\"%0900000d\",\"prompt\":[" USER("%c") "],\"completion\":[" ASSISTANT(
                    "%c") "],\"label\":true}\n",
                i, 'p' + i, 'a' + i);
    cr_assert_eq(fclose(file), 0);
    cr_assert_eq(run("--tokenizer chat --val-fraction 0 --out set a.jsonl"), 0, "%s", error_text);
    char expected[1000] = "";
    for (int i = 0; i < 4; i++)
        snprintf(expected + strlen(expected), sizeof expected - strlen(expected),
                 "+ Euser/%cF/Eassistant/{%cF}/\n-kEuser/%cF/Eassistant/{%cF}/\n", 'p' + i, 'a' + i,
                 'p' + i, i == 0 ? 'b' : 'a' + i - 1);
    expect("set_train_*.bin", expected);
}

Test(prepare_pairs, bad_conversations_are_named_by_line) {
    static const struct bad_row cases[] = {
        {"{\"prompt\":[" USER("q") "],\"chosen\":[" USER("y") "],\"rejected\":[" ASSISTANT(
             "n") "]}",
         "line 2, column 52: \"chosen\" must begin and end with a message of the assistant"},
        {"{\"prompt\":[" USER("q") "],\"chosen\":[" ASSISTANT("y") "],\"rejected\":[" ASSISTANT(
             "n") "," USER("r") "]}",
         "\"rejected\" must begin and end with a message of the assistant"},
        {"{\"prompt\":[" USER("q") "],\"chosen\":[],\"rejected\":[" ASSISTANT("n") "]}",
         "line 2, column 52: \"chosen\" is empty"},
        {"{\"prompt\":[],\"chosen\":[" ASSISTANT("y") "],\"rejected\":[" ASSISTANT("n") "]}",
         "line 2, column 11: \"prompt\" is empty"},
        {"{\"prompt\":[" USER("q") "],\"chosen\":[" ASSISTANT("y") "],\"rejected\":[" ASSISTANT(
             " ") "]}",
         "message 2: the assistant's content is empty"},
        {"{\"prompt\":[" USER("q") "],\"chosen\":[" ASSISTANT("y") "],\"rejected\":[" ASSISTANT(
             "y ") "]}",
         "\"chosen\" and \"rejected\" are equal"}, /* the template trims them */
        {"{\"prompt\":[{\"role\":\"tool\",\"content\":\"q\"}],\"chosen\":[" ASSISTANT(
             "y") "],\"rejected\":[" ASSISTANT("n") "]}",
         "message 1: unknown role \"tool\""},
        {"{\"prompt\":[" USER("q") "],\"chosen\":[" ASSISTANT("y") "],\"rejected\":[7]}",
         "the list has an item that is not an object"},
    };
    write_tokenizer(LLAMA3);
    BAD_ROWS("chat",
             "{\"prompt\":[" USER("q") "],\"chosen\":[" ASSISTANT("y") "],\"rejected\":[" ASSISTANT(
                 "n") "]}",
             "+ EFuserGNqHFassistantGN{yH}\n- EFuserGNqHFassistantGN{nH}\n"
             "+ EFuserGNqHFassistantGN{yH}\n- EFuserGNqHFassistantGN{nH}\n",
             cases);
    write_tokenizer("");
    write_text("a.jsonl", "{\"chosen\":[" USER("q") "],\"rejected\":[" USER("q") "]}");
    cr_expect_eq(run("--tokenizer chat --skip-bad-rows --out bad a.jsonl"), 1);
    cr_expect_not_null(strstr(error_text, "line 1: the row has \"messages\", but the tokenizer"),
                       "%s", error_text);
}

/* Parts of a rendered text, as scripts/render_chat.py writes them. */
Test(prepare_pairs, parts_are_encoded_as_one_text) {
    write_tokenizer("");
    prepare("chat", "",
            "{\"prompt\":[{\"text\":\"<|endoftext|>q\\n\",\"train\":true}],"
            "\"chosen\":[{\"text\":\"\\ny\",\"train\":true},{\"text\":\"z\",\"train\":false}],"
            "\"rejected\":[{\"text\":\"n\",\"train\":true}]}\n");
    /* The token of both line feeds begins one answer, so the other begins there, too, as in TRL. */
    expect("set_train_*.bin", "+ Aq{Ny}z\n- Aq{/n}\n");
    static const struct bad_row cases[] = {
        {"{\"prompt\":[{\"text\":\"q\",\"train\":false}],\"chosen\":[{\"text\":\"y\",\"train\":"
         "false}],"
         "\"rejected\":[{\"text\":\"n\",\"train\":true}]}",
         "\"chosen\" is empty"},
        {"{\"prompt\":[{\"text\":\"\",\"train\":false}],\"chosen\":[{\"text\":\"y\",\"train\":true}"
         "],"
         "\"rejected\":[{\"text\":\"n\",\"train\":true}]}",
         "line 2, column 11: \"prompt\" is empty"},
    };
    /* An empty part begins no document of its own. */
    BAD_ROWS("chat",
             "{\"prompt\":[{\"text\":\"\",\"train\":false},{\"text\":\"q\",\"train\":false}],"
             "\"chosen\":[{\"text\":\"y\",\"train\":true}],\"rejected\":[{\"text\":\"n\",\"train\":"
             "true}]}",
             "+ q{y}\n- q{n}\n+ q{y}\n- q{n}\n", cases);
}

/* A token before and after each document, also if a tokenizer uses one token for both. */
Test(prepare_pairs, documents_share_no_tokens) {
    write_tokenizer("");
    prepare("chat", "",
            "{\"prompt\":\"q\",\"chosen\":\"y\",\"rejected\":\"n\"}\n"
            "{\"prompt\":\"r\",\"chosen\":\"s\",\"rejected\":\"t\"}\n");
    expect("set_train_*.bin", "+ Aq{yA}\n- Aq{nA}\n+ Ar{sA}\n- Ar{tA}\n");
    cr_expect_not_null(strstr(out_text, "--set data.tokenizer=files --set model.vocab_size="), "%s",
                       out_text);
    write_text("chat/config.json", "{}");
    write_text("chat/model.safetensors", "");
    prepare("chat", "",
            "{\"prompt\":\"q\",\"completion\":\"y\",\"label\":true}\n"
            "{\"prompt\":\"r\",\"completion\":\"s\",\"label\":true}\n");
    expect("set_train_*.bin", "+ Aq{yA}\n-kAq{sA}\n+ Ar{sA}\n-kAr{yA}\n");
    cr_expect_not_null(
        strstr(out_text, "next: ./train --config dpo.json --set name=mine "
                         "--set train.objective=kto \\\n    --set 'model.init_from=chat' \\\n"),
        "%s", out_text);
}

/* Shards, blocks of 16 MiB and validation are divided between pairs. A pair longer than a block is
 * kept whole. */
Test(prepare_pairs, no_pair_is_divided) {
    enum { PAIRS = 30000, LONG = 17000000, SHARD = 5000003 };
    FILE *file = fopen(in_folder("a.jsonl"), "w");
    for (int i = 0; i < PAIRS; i++) {
        const int prompt = i == 9000 ? LONG : 300 + i % 97, chosen = 100 + i % 31,
                  rejected = 100 + i % 89;
        fprintf(file, "{\"prompt\":\"p%0*d\",\"chosen\":\"c%0*d\",\"rejected\":\"r%0*d\"}\n",
                prompt, i, chosen, i, rejected, i);
    }
    cr_assert_eq(fclose(file), 0);
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0.1 --shard-tokens 5000003 --out set "
                     "a.jsonl"),
                 0, "%s", error_text);
    const char *const sides[] = {"set_train_*.bin", "set_val_*.bin"};
    uint64_t pairs = 0, bytes[2];
    for (int side = 0; side < 2; side++) {
        struct tokens tokens;
        cr_assert_eq(tokens_open(&tokens, in_folder("%s", sides[side]), &error), 0, "%s",
                     error.text);
        bytes[side] = tokens.count;
        for (ptrdiff_t s = 0; s < arrlen(tokens.shards); s++) {
            const struct token_shard *shard = &tokens.shards[s];
            if (s + 1 < arrlen(tokens.shards))
                cr_expect(shard->count >= SHARD &&
                              (shard->count < SHARD + 1200 || shard->count > SHARD + LONG / 2),
                          "%d tokens", (int)shard->count);
            int32_t *all = malloc(shard->count * sizeof *all);
            cr_assert_eq(token_shard_read(shard, all, 0, shard->count, &error), 0);
            int number[2] = {0};
            for (uint64_t i = 0; i < shard->count; i++) {
                const bool begins = token_mask_begins(&shard->mask, i);
                cr_assert_eq(begins, all[i] == 'p', "%s: token %d", sides[side], (int)i);
                if (!begins) continue;
                const int document = token_mask_is_rejected(&shard->mask, i);
                uint64_t answer = i + 1;
                while (!token_mask_in_loss(&shard->mask, answer)) answer++;
                cr_assert_eq(all[answer], document ? 'r' : 'c');
                number[document] = 0;
                for (uint64_t t = answer - 8; t < answer; t++)
                    number[document] = 10 * number[document] + all[t] - '0';
                if (document) cr_assert_eq(number[0], number[1]);
                pairs += document;
            }
            free(all);
        }
        tokens_close(&tokens);
    }
    cr_expect_eq(pairs, PAIRS);
    const double share = (double)bytes[1] / (double)(bytes[0] + bytes[1]);
    cr_expect(share > 0.08 && share < 0.12, "%.3f are for validation", share);
}
