/* Runs the program itself: rows of prompts and completions. */
#include "test/data/corpus/prepare_fixture.h"

TestSuite(prepare_rows, .init = make_folder, .fini = remove_folder);

/* expected: 1 or I for each token that counts, else 0 or O; I and O begin a document. */
static void expect_mask(const char *pattern, const char *expected) {
    struct tokens tokens;
    char *mask = NULL;
    cr_assert_eq(tokens_open(&tokens, in_folder("%s", pattern), &error), 0, "%s", error.text);
    for (int s = 0; s < (int)arrlen(tokens.shards); s++)
        for (uint64_t i = 0; i < tokens.shards[s].count; i++) {
            const bool counts = token_mask_in_loss(&tokens.shards[s].mask, i);
            const bool begins = token_mask_begins(&tokens.shards[s].mask, i);
            arrput(mask, begins ? (counts ? 'I' : 'O') : (counts ? '1' : '0'));
        }
    arrput(mask, '\0');
    cr_expect_str_eq(mask, expected, "%s: %s", pattern, mask);
    arrfree(mask);
    tokens_close(&tokens);
}

static const char PAIRS[] = "{\"prompt\":\"2+2?\",\"completion\":\" 4\"}\n"
                            "{\"completion\":\"\\u00e9\",\"prompt\":\"\",\"id\":7}\n"
                            "{\"prompt\":\"Hm\\n\",\"completion\":\"!\"}\n";

Test(prepare_rows, the_mask_is_beside_the_shard) {
    write_text("a.jsonl", PAIRS);
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0 --shard-tokens 6 --out set a.jsonl"), 0,
                 "%s", error_text);
    expect_tokens("set_train_*.bin", "2+2? 4\n\n\xc3\xa9\n\nHm\n!\n\n");
    expect_mask("set_train_*.bin", "O0001111I111O00111");
    cr_expect(exists("set_train_000000.mask") && exists("set_train_000001.mask"));
    cr_expect_not_null(strstr(out_text, "3 documents"), "%s", out_text);
    cr_expect_not_null(strstr(out_text, "18 training tokens (11 count in the loss) in 2 shards"),
                       "%s", out_text);
}

Test(prepare_rows, members_may_have_other_names) {
    write_text("a.jsonl", "{\"instruction\":\"do\",\"output\":\"done\",\"text\":\"x\"}");
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0 --field instruction,output --out set "
                     "a.jsonl"),
                 0, "%s", error_text);
    expect_tokens("set_train_*.bin", "dodone\n\n");
    expect_mask("set_train_*.bin", "O0111111");
}

/* Alpaca's rows, as Stanford's train.py writes their prompts. */
Test(prepare_rows, instructions_are_alpacas_prompts) {
    write_text("a.json",
               "[{\"instruction\":\"Add.\",\"input\":\"1 2\",\"output\":\"3\",\"text\":\"x\"},\n"
               " {\"instruction\":\"Go\",\"input\":\"\",\"output\":\"ok\"},\n"
               " {\"output\":\"y\",\"instruction\":\"N\",\"input\":null}]");
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0 --out set a.json"), 0, "%s", error_text);
    expect_tokens(
        "set_train_*.bin",
        "Below is an instruction that describes a task, paired with an input that provides further "
        "context. Write a response that appropriately completes the request.\n\n### Instruction:\n"
        "Add.\n\n### Input:\n1 2\n\n### Response:\n3\n\n"
        "Below is an instruction that describes a task. Write a response that appropriately "
        "completes the request.\n\n### Instruction:\nGo\n\n### Response:\nok\n\n"
        "Below is an instruction that describes a task. Write a response that appropriately "
        "completes the request.\n\n### Instruction:\nN\n\n### Response:\ny\n\n");
    cr_expect_not_null(strstr(out_text, "(10 count in the loss)"), "%s", out_text);
    cr_expect_not_null(strstr(out_text, "3 documents (3 rows with instruction, input, output)"),
                       "%s", out_text);
    write_text("b.jsonl", "{\"q\":\"Go\",\"c\":\"\",\"a\":\"ok\"}");
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0 --field q,c,a --out named b.jsonl"), 0,
                 "%s", error_text);
    cr_expect_not_null(strstr(out_text, "(1 row with q, c, a)"), "%s", out_text);
    write_text("c.jsonl", "{\"instruction\":\"Go\",\"output\":\"\"}");
    cr_assert_eq(run("--tokenizer bytes --out bad c.jsonl"), 1);
    cr_expect_not_null(strstr(error_text, "c.jsonl, line 1, column 1: the output is empty"), "%s",
                       error_text);
}

Test(prepare_rows, rows_that_are_read_as_text_are_noted) {
    write_text("a.txt", " [\n {\"text\": \"one\"}]");
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0 --out set a.txt"), 0, "%s", error_text);
    cr_expect_not_null(strstr(error_text, "a.txt begins like JSON, and was read as text; --jsonl"),
                       "%s", error_text);
    write_text("a.txt", "prompt,\"completion\"\r\nGo,ok\r\n");
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0 --force --out set a.txt"), 0);
    cr_expect_not_null(strstr(error_text, "a.txt begins like a table, and was read as text; "),
                       "%s", error_text);
    write_text("a.txt", "Yes, it is\n");
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0 --force --out set a.txt"), 0);
    cr_expect_str_empty(error_text);
    write_text("a.txt", "[{x}]");
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0 --force --out set a.txt"), 0);
    cr_expect_str_empty(error_text);
}

/* A file that is named may be of any bytes; the standard input has no name that says what it is. */
Test(prepare_rows, packed_standard_input_is_refused) {
    static const struct {
        const char *bytes, *message;
    } cases[] = {{"\x1f\x8b\x08", "the standard input is compressed\nunpack it before: gzip -dc"},
                 {"PAR1\x15", "the standard input is a table\nturn its file into rows: "
                              "scripts/rows.py FILE.parquet | ./prepare"}};
    for (int i = 0; i < 2; i++) {
        write_text("packed", cases[i].bytes);
        const int input = open(in_folder("packed"), O_RDONLY | O_CLOEXEC);
        const pid_t child = start("--tokenizer bytes --force --out set -", input, RLIM_INFINITY);
        close(input);
        cr_expect_eq(finish(child), 1);
        cr_expect_not_null(strstr(error_text, cases[i].message), "%s", error_text);
        cr_expect_eq(run("--tokenizer bytes --val-fraction 0 --force --out set packed"), 0, "%s",
                     error_text);
    }
}

Test(prepare_rows, replacing_pairs_by_text_removes_the_mask) {
    write_text("a.jsonl", PAIRS);
    write_text("b.txt", "text");
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0.3 --out set a.jsonl"), 0, "%s",
                 error_text);
    cr_expect(exists("set_train_000000.mask") && exists("set_val_000000.mask"));
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0.3 --force --out set b.txt"), 0, "%s",
                 error_text);
    cr_expect_not(exists("set_train_000000.mask") || exists("set_val_000000.mask"));
}

Test(prepare_rows, bad_rows_are_named_by_line) {
    static const struct {
        const char *row, *what;
    } cases[] = {
        {"{\"prompt\":\"a\"}", "line 4, column 1: there is no member \"completion\""},
        {"{\"text\":\"a\"}", "line 4, column 1: there is no member \"prompt\" (there is \"text\")"},
        {"{\"prompt\":[\"a\"],\"completion\":\"b\"}",
         "line 4, column 12: the list has an item that is not an object"},
        {"{\"prompt\":[{\"text\":\"a\",\"train\":true}],\"completion\":\"b\"}",
         "line 4, column 52: \"prompt\" is a list of segments, but \"completion\" is a string\n"
         "each line must be a JSON object with \"prompt\" and \"completion\", both strings or both "
         "lists of messages; --field names others"},
        {"{\"prompt\":\"a\",\"completion\":\"\"}", "line 4, column 28: \"completion\" is empty"},
        {"{\"prompt\":\"a\",\"completion\":null}",
         "line 4, column 28: the member is neither a string nor a list"},
        {"{\"prompt\":\"a\",\"completion\":\"\\x\"}", "line 4, column 29: a backslash in a string"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char rows[500];
        snprintf(rows, sizeof rows, "%s%s\n", PAIRS, cases[i].row);
        write_text("a.jsonl", rows);
        cr_expect_eq(run("--tokenizer bytes --out set a.jsonl"), 1);
        cr_expect_not_null(strstr(error_text, cases[i].what), "%s", error_text);
        cr_expect_not(exists("set_train_000000.bin") || exists("set_train_000000.mask"));
        cr_expect_eq(run("--tokenizer bytes --val-fraction 0 --force --skip-bad-rows --out skip "
                         "a.jsonl"),
                     0, "%s", error_text);
        expect_mask("skip_train_*.bin", "O0001111I111O00111");
    }
    cr_expect_eq(run("--tokenizer bytes --field a, --out set a.jsonl"), 1);
    cr_expect_not_null(strstr(error_text, "--field a,: allowed is"), "%s", error_text);
}

/* Writes a tokenizer of bytes with token 300 before a text and 301 after it. */
static void write_ranks(void) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    cr_assert_eq(mkdir(in_folder("ranks"), 0755), 0);
    write_text("ranks/tiktoken.json",
               "{\"pattern\": \"\\\\s|\\\\S\", \"special_tokens\": {\"<|begin|>\": "
               "300, \"<|end_of_text|>\": 301}, \"begin\": \"<|begin|>\"}");
    FILE *file = fopen(in_folder("ranks/ranks.tiktoken"), "w");
    for (int byte = 0; byte < 256; byte++)
        fprintf(file, "%c%c== %d\n", digits[byte >> 2], digits[(byte & 3) << 4], byte);
    cr_assert_eq(fclose(file), 0);
}

Test(prepare_rows, rows_have_separate_begin_and_end_tokens) {
    const int32_t expected[] = {300, 'q', 'a', 301, 300, 'b', 301, 300, 'c', 'd', 301};
    struct tokens tokens;
    write_ranks();
    write_text("a.jsonl", "{\"prompt\":\"q\",\"completion\":\"a\"}\n"
                          "{\"prompt\":\"\",\"completion\":\"b\"}\n"
                          "{\"prompt\":\"c\",\"completion\":\"d\"}\n");
    cr_assert_eq(run("--tokenizer gpt2:ranks --val-fraction 0 --out set a.jsonl"), 0, "%s",
                 error_text);
    expect_mask("set_train_*.bin", "O011O11O011");
    cr_assert_eq(tokens_open(&tokens, in_folder("set_train_*.bin"), &error), 0, "%s", error.text);
    for (uint64_t i = 0; i < tokens.count; i++)
        cr_expect_eq(token_at(&tokens.shards[0], i), expected[i], "%d", (int)i);
    tokens_close(&tokens);
}

/* With such a tokenizer texts have both tokens as well, and all of them count. */
Test(prepare_rows, texts_begin_and_end_as_rows_do) {
    const int32_t expected[] = {300, 'a', 'b', 301, 300, 'c', 301, 300, 'd', 301, 300, 'e', 301};
    struct tokens tokens;
    write_ranks();
    write_text("a.txt", "ab<|endoftext|>c");
    write_text("b.jsonl", "{\"text\":\"d\"}\n{\"text\":\"\"}\n{\"text\":\"e\"}\n");
    cr_assert_eq(run("--tokenizer files:ranks --val-fraction 0 --out set a.txt b.jsonl"), 0, "%s",
                 error_text);
    cr_expect_not(exists("set_train_000000.mask"));
    cr_assert_eq(tokens_open(&tokens, in_folder("set_train_*.bin"), &error), 0, "%s", error.text);
    cr_assert_eq(tokens.count, sizeof expected / sizeof *expected);
    for (uint64_t i = 0; i < tokens.count; i++)
        cr_expect_eq(token_at(&tokens.shards[0], i), expected[i], "%d", (int)i);
    tokens_close(&tokens);
}

/* A pattern whose matches take too many steps for the size of the text; the error comes from a
 * thread. */
Test(prepare_rows, a_pattern_that_takes_too_long_is_an_error) {
    char text[1001];
    write_ranks();
    write_text("ranks/tiktoken.json",
               "{\"pattern\": \"a*a*a*b\", \"special_tokens\": {\"<|endoftext|>\": 300}}");
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    write_text("a.txt", text);
    cr_expect_eq(run("--tokenizer files:ranks --out set a.txt"), 1);
    cr_expect_not_null(strstr(error_text, "pattern \"a*a*a*b\" takes too long"), "%s", error_text);
    cr_expect_not(exists("set_train_000000.bin"));
}

/* Blocks of 16 MiB by several threads: the mask follows the tokens. */
Test(prepare_rows, many_rows_have_the_mask_of_each) {
    enum { ROWS = 90000, PROMPT = 150, COMPLETION = 90 };
    FILE *file = fopen(in_folder("a.jsonl"), "w");
    for (int i = 0; i < ROWS; i++)
        fprintf(file, "{\"prompt\":\"%0*d\",\"completion\":\"%0*d\"}\n", PROMPT, i, COMPLETION, i);
    cr_assert_eq(fclose(file), 0);
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0.1 --shard-tokens 9999991 --out set "
                     "a.jsonl"),
                 0, "%s", error_text);
    const char *const sides[] = {"set_train_*.bin", "set_val_*.bin"};
    const uint64_t row = PROMPT + COMPLETION + 2;
    uint64_t rows = 0;
    for (int i = 0; i < 2; i++) {
        struct tokens tokens;
        cr_assert_eq(tokens_open(&tokens, in_folder("%s", sides[i]), &error), 0, "%s", error.text);
        for (int s = 0; s < (int)arrlen(tokens.shards); s++)
            cr_expect_eq(tokens.shards[s].count % row, 0, "no row is divided between shards");
        cr_assert_eq(tokens.counted, tokens.count / row * (COMPLETION + 2));
        rows += tokens.count / row;
        uint64_t at = 0;
        for (int s = 0; s < (int)arrlen(tokens.shards); s++)
            for (uint64_t t = 0; t < tokens.shards[s].count; t++, at++)
                if (token_mask_in_loss(&tokens.shards[s].mask, t) != (at % row >= PROMPT))
                    cr_assert_fail("%s: token %d", sides[i], (int)at);
        tokens_close(&tokens);
    }
    cr_expect_eq(rows, ROWS);
}
