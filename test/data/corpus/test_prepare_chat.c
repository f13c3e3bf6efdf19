/* Runs the program itself: conversations and rendered segments. */
#include "data/tokenize/tokenizer.h"
#include "data/util/random.h"
#include "test/data/corpus/chat_tokenizer.h"
#include "test/data/corpus/prepare_fixture.h"

#include "data/corpus/chat_file.h"

TestSuite(prepare_chat, .init = make_folder, .fini = remove_folder);

/* expected: tokens below 256 as characters, 300 as N and others as letters from A (256) on. { and }
 * enclose tokens that count, and ^ is before a token that begins a document. */
static void expect(const char *pattern, const char *expected) {
    struct tokens tokens;
    char *text = NULL;
    cr_assert_eq(tokens_open(&tokens, in_folder("%s", pattern), &error), 0, "%s", error.text);
    cr_assert_eq(arrlen(tokens.shards), 1);
    const struct token_shard *shard = &tokens.shards[0];
    for (uint64_t i = 0; i < shard->count; i++) {
        const int32_t token = token_at(shard, i);
        const bool counts = token_mask_in_loss(&shard->mask, i);
        if (counts && (i == 0 || !token_mask_in_loss(&shard->mask, i - 1))) arrput(text, '{');
        if (token_mask_begins(&shard->mask, i)) arrput(text, '^');
        arrput(text, (char)(token == 300 ? 'N' : token < 256 ? token : 'A' + token - 256));
        if (counts && (i == shard->count - 1 || !token_mask_in_loss(&shard->mask, i + 1)))
            arrput(text, '}');
    }
    arrput(text, '\0');
    cr_expect_str_eq(text, expected, "\"%s\", expected \"%s\"", text, expected);
    arrfree(text);
    tokens_close(&tokens);
}

static void prepare(const char *rows) {
    write_text("a.jsonl", rows);
    cr_assert_eq(run("--tokenizer chat --val-fraction 0 --force --out set a.jsonl"), 0, "%s",
                 error_text);
}

Test(prepare_chat, chatml) {
    write_tokenizer(CHATML);
    prepare("{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},"
            "{\"content\":\"an\",\"role\":\"assistant\"}],\"id\":1}\n"
            "{\"messages\":[{\"role\":\"system\",\"content\":\"\"},"
            "{\"role\":\"assistant\",\"content\":\"b\",\"weight\":1}]}\n");
    expect("set_train_*.bin", "^Euser\nqF\nEassistant\n{anF}\n^Esystem\nF\nEassistant\n{bF}\n");
    cr_expect_not_null(strstr(out_text, "2 documents"), "%s", out_text);
}

Test(prepare_chat, rows_of_sharegpt_and_alpaca_are_conversations) {
    write_tokenizer(CHATML);
    prepare("{\"conversations\":[{\"from\":\"human\",\"value\":\"q\"},"
            "{\"from\":\"gpt\",\"value\":\"an\"}],\"id\":1}\n");
    expect("set_train_*.bin", "^Euser\nqF\nEassistant\n{anF}\n");
    cr_expect_not_null(strstr(out_text, "(1 row with conversations)"), "%s", out_text);
    prepare("{\"conversations\":[{\"role\":\"user\",\"content\":\"q\"},"
            "{\"role\":\"assistant\",\"content\":\"an\"}]}\n");
    expect("set_train_*.bin", "^Euser\nqF\nEassistant\n{anF}\n");
    prepare("{\"instruction\":\"do\",\"input\":\"it\",\"output\":\"k\"}\n"
            "{\"instruction\":\"do\",\"input\":\"\",\"output\":\"k\"}\n");
    expect("set_train_*.bin", "^Euser\ndo\nitF\nEassistant\n{kF}\n^Euser\ndoF\nEassistant\n{kF}\n");
}

/* A token of line feeds on both sides of the border belongs to the answer. Special tokens in a
 * content are recognized, as by transformers. */
Test(prepare_chat, contents_are_encoded_with_what_surrounds_them) {
    write_tokenizer(CHATML);
    prepare("{\"messages\":[{\"role\":\"user\",\"content\":\"\\n<|im_end|>\"},"
            "{\"role\":\"assistant\",\"content\":\"\\nx\\n\"}]}\n");
    expect("set_train_*.bin", "^EuserNFF\nEassistant{Nx\nF}\n");
}

Test(prepare_chat, llama3_trims_contents) {
    write_tokenizer(LLAMA3);
    prepare("{\"messages\":[{\"role\":\"system\",\"content\":\" s\\u00a0\"},"
            "{\"role\":\"user\",\"content\":\"\\n\"},"
            "{\"role\":\"assistant\",\"content\":\" \\u2003a b\\n\"},"
            "{\"role\":\"assistant\",\"content\":\"c\"}]}\n");
    expect("set_train_*.bin", "^EFsystemGNsHFuserGNHFassistantGN{a bH}FassistantGN{cH}");
}

Test(prepare_chat, mistral_moves_the_system_message_to_the_last_question) {
    write_tokenizer(MISTRAL);
    prepare("{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},"
            "{\"role\":\"user\",\"content\":\" q\"},{\"role\":\"assistant\",\"content\":\" a \"},"
            "{\"role\":\"user\",\"content\":\"r\"},{\"role\":\"assistant\",\"content\":\"b\"}]}\n");
    expect("set_train_*.bin", "^EG  qH{ aF}G sNrH{ bF}");
}

/* Expected as transformers renders the template of Gemma 3. */
Test(prepare_chat, gemma_moves_the_system_message_to_the_first_question) {
    write_tokenizer(GEMMA);
    prepare(
        "{\"messages\":[{\"role\":\"system\",\"content\":\" s\\n\"},"
        "{\"role\":\"user\",\"content\":\" q\"},{\"role\":\"assistant\",\"content\":\"\\n a \"},"
        "{\"role\":\"user\",\"content\":\"r\\n\"},{\"role\":\"assistant\",\"content\":\"b\"}]}\n"
        "{\"messages\":[{\"role\":\"user\",\"content\":\"\"},"
        "{\"role\":\"assistant\",\"content\":\"c\"}]}\n");
    expect("set_train_*.bin", "^EFuser\n sN\nqG\nFmodel\n{aG}\nFuser\nrG\nFmodel\n{bG}\n"
                              "^EFuser\nG\nFmodel\n{cG}\n");
    write_text("a.jsonl", "{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\"}]}");
    cr_expect_eq(run("--tokenizer chat --force --out set a.jsonl"), 1);
    cr_expect_not_null(strstr(error_text, "chat template needs user"), "%s", error_text);
}

static const char THREE_TURNS[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\" q\"},"
    "{\"role\":\"assistant\",\"content\":\"a \"},{\"role\":\"user\",\"content\":\"r\"},"
    "{\"role\":\"assistant\",\"content\":\"b\"}]}\n";

/* Expected as transformers renders the template of OLMo-2-1124-13B-Instruct, whose tokenizer also
 * has ChatML's tokens. */
Test(prepare_chat, olmo_2_has_no_line_feed_after_the_last_answer) {
    write_tokenizer(OLMO);
    write_text("chat/chat_template.jinja", "{{ '<|user|>\n' }}{{ '<|assistant|>\n' }}");
    prepare(THREE_TURNS);
    expect("set_train_*.bin", "^A<|system|>\ns\n<|user|>\n q\n<|assistant|>\n{a A}\n<|user|>\nr\n"
                              "<|assistant|>\n{bA}");
    write_text("chat/chat_template.jinja", "{{ '<|im_start|>' }}"); /* OLMo 3's */
    prepare(THREE_TURNS);
    expect("set_train_*.bin", "^Fsystem\nsG\nFuser\n qG\nFassistant\n{a G}\nFuser\nrG\nFassistant\n"
                              "{bG}\n");
}

/* Expected as transformers renders the template of EXAONE-4.0-1.2B. */
Test(prepare_chat, exaone_4_answers_without_thoughts) {
    write_tokenizer(EXAONE4);
    prepare(THREE_TURNS);
    expect("set_train_*.bin",
           "^E\nsI\nF\n qI\nG\n<think>N</think>N{a I}\nF\nrI\nG\n<think>N</think>N{bI}\n");
}

/* A folder's own template that does without the special tokens of a built-in one is another. */
Test(prepare_chat, templates_of_families_that_are_not_built_in_are_refused) {
    static const struct {
        const char *tokens, *own;
    } families[] = {
        {", \"<|start_of_role|>\": 260, \"<|end_of_role|>\": 261",
         "<|start_of_role|>"},                                                        /* Granite */
        {", \"[gMASK]\": 260, \"<sop>\": 261, \"<|user|>\": 262", "[gMASK]<sop>"},    /* GLM-4 */
        {", \"<|user|>\": 260, \"<|assistant|>\": 261, \"<|end|>\": 262", "<|end|>"}, /* Phi-3 */
        {", \"<seed:bos>\": 260, \"<seed:eos>\": 261", "<seed:bos>"},                 /* Seed-OSS */
        {", \"<s>\": 260, \"</s>\": 261, \"[INST]\": 262, \"[/INST]\": 263, \"[SYSTEM_PROMPT]\": "
         "264",
         "[INST]"}, /* Ministral 3 */
        {CHATML, "<|another|>"},
    };
    write_text("a.jsonl", THREE_TURNS);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        write_tokenizer(families[i].tokens);
        write_text("chat/chat_template.jinja", families[i].own);
        cr_expect_eq(run("--tokenizer chat --force --out set a.jsonl"), 1, "%zu", i);
        cr_expect(strstr(error_text, "no known chat template") &&
                      strstr(error_text, "scripts/render_chat.py"),
                  "%s", error_text);
    }
}

#define USER(text)      "{\"role\":\"user\",\"content\":\"" text "\"}"
#define ASSISTANT(text) "{\"role\":\"assistant\",\"content\":\"" text "\"}"

/* Only the completion counts, not the assistant's messages within the prompt. */
Test(prepare_chat, prompts_and_completions_may_be_messages) {
    write_tokenizer(CHATML);
    prepare("{\"prompt\":[" USER("q") "],\"completion\":[" ASSISTANT(
        "an") "]}\n"
              "{\"id\":1,\"completion\":[" ASSISTANT("y") "," USER("s") "," ASSISTANT(
                  "z") "],"
                       "\"prompt\":[" USER("q") "," ASSISTANT("o") "," USER(
                           "r") "]}\n"
                                "{\"prompt\":[],\"completion\":[{\"from\":\"gpt\",\"value\":\"b\"}]"
                                "}\n"
                                "{\"prompt\":\"p\",\"completion\":\"c\"}\n"
                                "{\"prompt\":[" USER("t") "],\"completion\":[" ASSISTANT(
                                    "u") "]}\n");
    expect("set_train_*.bin", "^Euser\nqF\nEassistant\n{anF}\n"
                              "^Euser\nqF\nEassistant\noF\nEuser\nrF\nEassistant\n{yF}\n"
                              "Euser\nsF\nEassistant\n{zF}\n"
                              "^Eassistant\n{bF}\n"
                              "^Ap{c^A}"
                              "^Euser\ntF\nEassistant\n{uF}\n");
    cr_expect_not_null(strstr(out_text, "5 documents (5 rows with prompt, completion)"), "%s",
                       out_text);
    write_tokenizer(LLAMA3);
    prepare("{\"prompt\":[{\"role\":\"system\",\"content\":\"s\"}," USER(
        "q") "],\"completion\":[" ASSISTANT(" an\\n") "]}\n");
    expect("set_train_*.bin", "^EFsystemGNsHFuserGNqHFassistantGN{anH}");
    write_text("a.jsonl", "{\"q\":[" USER("q") "],\"a\":[" ASSISTANT("b") "]}\n");
    cr_assert_eq(run("--tokenizer chat --val-fraction 0 --force --field q,a --out set a.jsonl"), 0,
                 "%s", error_text);
    expect("set_train_*.bin", "^EFuserGNqHFassistantGN{bH}");
}

/* Segments are encoded as one text, of which the prompt's do not count. */
Test(prepare_chat, prompts_and_completions_may_be_segments) {
    write_tokenizer("");
    prepare("{\"prompt\":[{\"text\":\"<|endoftext|>q\\n\",\"train\":true}],\"completion\":["
            "{\"text\":\"\\ny\",\"train\":true},{\"text\":\"z\",\"train\":false}]}\n"
            "{\"prompt\":[],\"completion\":[{\"text\":\"x\",\"train\":true}]}\n");
    expect("set_train_*.bin", "^Aq{Ny}z{^x}");
}

Test(prepare_chat, bad_prompts_and_completions_are_named_by_line) {
    static const struct {
        const char *row, *what;
    } cases[] = {
        {"{\"prompt\":[" USER("q") "],\"completion\":\"a\"}",
         "line 2, column 56: \"prompt\" is a list of messages, but \"completion\" is a "
         "string\neach "
         "line must be a JSON object with \"prompt\" and \"completion\", both strings or both "
         "lists "
         "of messages"},
        {"{\"prompt\":\"q\",\"completion\":[" ASSISTANT("a") "]}",
         "line 2, column 28: \"prompt\" is a string, but \"completion\" is a list of messages"},
        {"{\"prompt\":[" USER("q") "],\"completion\":[{\"text\":\"a\",\"train\":true}]}",
         "\"prompt\" is a list of messages, but \"completion\" is a list of segments"},
        {"{\"prompt\":[" USER("q") "],\"completion\":[]}",
         "line 2, column 56: \"completion\" is empty"},
        {"{\"prompt\":[" USER("q") "],\"completion\":[" USER("a") "]}",
         "\"completion\" must begin and end with a message of the assistant"},
        {"{\"prompt\":[" USER("q") "],\"completion\":[" ASSISTANT(" ") "]}",
         "line 2, column 56: message 2: the assistant's content is empty"},
        {"{\"prompt\":[],\"completion\":[" ASSISTANT("a") "]}",
         "message 1: the role is assistant where the tokenizer's chat template needs user"},
    };
    write_tokenizer(MISTRAL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char rows[1000];
        snprintf(rows, sizeof rows,
                 "{\"prompt\":[" USER("q") "],\"completion\":[" ASSISTANT("a") "]}\n%s\n",
                 cases[i].row);
        write_text("a.jsonl", rows);
        cr_expect_eq(run("--tokenizer chat --out set a.jsonl"), 1);
        cr_expect_not_null(strstr(error_text, cases[i].what), "%s\n%s", cases[i].what, error_text);
        cr_expect_not(exists("set_train_000000.bin"));
        cr_expect_eq(run("--tokenizer chat --val-fraction 0 --force --skip-bad-rows --out skip "
                         "a.jsonl"),
                     0, "%s", error_text);
        expect("skip_train_*.bin", "^EG qH{ aF}");
    }
    write_tokenizer("");
    cr_expect_eq(run("--tokenizer chat --out set a.jsonl"), 1);
    cr_expect_not_null(strstr(error_text, "line 1: the row has \"messages\", but the tokenizer"),
                       "%s", error_text);
}

Test(prepare_chat, other_tokenizers_are_refused) {
    const char *const others[] = {
        "", ", \"<|im_start|>\": 260",
        /* Tokenizers of other templates with the same tokens. */
        ", \"<|im_start|>\": 260, \"<|im_end|>\": 261, \"<|im_sep|>\": 262",
        ", \"<s>\": 260, \"</s>\": 261, \"[INST]\": 262, \"[/INST]\": 263, \"[PREFIX]\": 264"};
    write_text("a.jsonl", "{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\"}]}");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        write_tokenizer(others[i]);
        cr_expect_eq(run("--tokenizer chat --skip-bad-rows --out set a.jsonl"), 1);
        cr_expect_not_null(strstr(error_text, "a.jsonl, line 1: "), "%s", error_text);
        cr_expect_not_null(strstr(error_text, "scripts/render_chat.py"), "%s", error_text);
    }
    cr_expect_eq(run("--tokenizer bytes --out set a.jsonl"), 1);
    cr_expect_not_null(strstr(error_text, "no known chat template"), "%s", error_text);
}

Test(prepare_chat, bad_conversations_are_named_by_line) {
    static const struct {
        const char *row, *what;
    } cases[] = {
        {"{\"messages\":{}}", "line 2, column 13: the member is not a list"},
        {"{\"messages\":[]}", "line 2, column 13: there is no message of the assistant"},
        {"{\"messages\":[1]}", "line 2, column 14: the list has an item that is not an object"},
        {"{\"messages\":[{\"role\":\"user\"}]}",
         "line 2, column 14: there is no member \"content\" (there is \"role\")"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":null}]}",
         "line 2, column 39: the member is not a string"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{}]}]}",
         "line 2, column 39: the member is not a string"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}",
         "line 2, column 13: there is no message of the assistant to train on"},
        {"{\"messages\":[{\"role\":\"tool\",\"content\":\"q\"}]}",
         "line 2, column 13: message 1: unknown role \"tool\""},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},"
         "{\"role\":\"assistant\",\"content\":\" \\n\"}]}",
         "message 2: the assistant's content is empty"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},"
         "{\"role\":\"user\",\"content\":\"r\"},{\"role\":\"assistant\",\"content\":\"a\"}]}",
         "message 2: the role is user where the tokenizer's chat template needs assistant"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"q\"}]}",
         "message 1: the role is assistant where the tokenizer's chat template needs user"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
         "\"content\":\"a\"},{\"role\":\"system\",\"content\":\"s\"}]}",
         "message 3: the role is system where the tokenizer's chat template needs user"},
        {"{\"prompt\":\"a\",\"completion\":\"b\"}",
         "line 2, column 1: there is no member \"messages\" (there is \"prompt\", \"completion\")"},
    };
    const char good[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},"
                        "{\"role\":\"assistant\",\"content\":\"a\"}]}";
    write_tokenizer(MISTRAL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char rows[1000];
        snprintf(rows, sizeof rows, "%s\n%s\n", good, cases[i].row);
        write_text("a.jsonl", rows);
        cr_expect_eq(run("--tokenizer chat --out set a.jsonl"), 1);
        cr_expect_not_null(strstr(error_text, cases[i].what), "%s\n%s", cases[i].what, error_text);
        cr_expect_not_null(strstr(error_text, "\"role\" and \"content\""), "%s", error_text);
        cr_expect_not(exists("set_train_000000.bin"));
        snprintf(rows, sizeof rows, "%s\n%s\n", cases[i].row, good);
        if (i == sizeof cases / sizeof *cases - 1) continue; /* it would decide for pairs */
        write_text("a.jsonl", rows);
        cr_expect_eq(run("--tokenizer chat --val-fraction 0 --force --skip-bad-rows --out skip "
                         "a.jsonl"),
                     0, "%s", error_text);
        expect("skip_train_*.bin", "^EG qH{ aF}");
    }
}

Test(prepare_chat, segments_hold_their_special_tokens) {
    write_tokenizer(MISTRAL);
    prepare(
        "{\"segments\":[{\"text\":\"<s>[IN\",\"train\":false},{\"text\":\"ST]q\\n\",\"train\":"
        "false},{\"train\":true,\"text\":\"\\na</s>\",\"w\":1},{\"text\":\"!\",\"train\":false},"
        "{\"text\":\"\",\"train\":false},{\"text\":\"?\",\"train\":true}]}\n"
        "{\"segments\":[{\"text\":\"b\",\"train\":true}]}");
    expect("set_train_*.bin", "^EGq{NaF}!{?^b}");
    cr_expect_not_null(strstr(out_text, "2 documents"), "%s", out_text);
    write_text("b.txt", "t");
    cr_assert_eq(run("--tokenizer chat --val-fraction 0 --force --out set b.txt a.jsonl b.txt"), 0,
                 "%s", error_text);
    expect("set_train_*.bin", "{^At}^EGq{NaF}!{?^b^At}");
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0 --force --out set a.jsonl b.txt"), 0, "%s",
                 error_text);
    expect("set_train_*.bin", "^<s>[INST]q\n{\na</s>}!{?^b^t}");
}

/* The tokens of a row with many segments are those of its whole text; each counts as the last
 * segment says that changed it or an earlier token. Here each beginning of the row is encoded that
 * ends with a segment, or with several in a row that count alike. */
Test(prepare_chat, many_segments_count_as_if_each_beginning_was_encoded) {
    static const char *const words[] = {"he", "l", "lo ", " x", "1", "234", "\n", "\xc3\xa9", "o"};
    enum { SEGMENTS = 2500, WORDS = sizeof words / sizeof *words };
    char small[FILE_PATH_MAX], command[2 * FILE_PATH_MAX];
    char *text = NULL, *counts = NULL;
    int32_t *before = NULL, *now = NULL;
    struct tokenizer tokenizer;
    struct tokens tokens;
    cr_assert_not_null(realpath("test/golden/tokenizer/small", small));
    cr_assert_eq(tokenizer_open(&tokenizer, TOKENIZER_FILES, small, &error), 0, "%s", error.text);
    struct tokenizer_encoder *encoder = tokenizer_encoder_open(&tokenizer);
    FILE *out = fopen(in_folder("a.jsonl"), "w");
    for (int i = 0; i < SEGMENTS; i++) {
        const char *word = words[random_bits(5, 0, (uint64_t)i) % WORDS];
        const bool in_loss = random_bits(6, 0, (uint64_t)i) % 2;
        fprintf(out, "%s{\"text\":\"%s\",\"train\":%s}", i ? "," : "{\"segments\":[",
                *word == '\n'           ? "\\n"
                : (uint8_t)*word > 0x7f ? "\\u00e9"
                                        : word,
                in_loss ? "true" : "false");
        memcpy(arraddnptr(text, strlen(word)), word, strlen(word));
        if (i + 1 < SEGMENTS && random_bits(6, 0, (uint64_t)i + 1) % 2 == in_loss) continue;
        arrsetlen(now, 0);
        cr_assert_eq(tokenizer_encode(encoder, &now, text, arrlenu(text), true, &error), 0);
        size_t same = 0;
        while (same < arrlenu(before) && same < arrlenu(now) && before[same] == now[same]) same++;
        arrsetlen(counts, arrlenu(now));
        memset(counts + same, in_loss, arrlenu(now) - same);
        int32_t *other = before;
        before = now, now = other;
    }
    fputs("]}\n", out);
    cr_assert_eq(fclose(out), 0);
    snprintf(command, sizeof command, "--tokenizer %s --val-fraction 0 --out set a.jsonl", small);
    cr_assert_eq(run(command), 0, "%s", error_text);
    cr_assert_eq(tokens_open(&tokens, in_folder("set_train_*.bin"), &error), 0, "%s", error.text);
    cr_assert_eq(tokens.shards[0].count, arrlenu(before));
    for (size_t i = 0; i < arrlenu(before); i++) {
        cr_assert_eq(token_at(&tokens.shards[0], i), before[i], "token %zu", i);
        cr_assert_eq(token_mask_in_loss(&tokens.shards[0].mask, i), counts[i], "token %zu", i);
    }
    tokens_close(&tokens);
    tokenizer_encoder_close(encoder);
    tokenizer_close(&tokenizer);
    arrfree(text);
    arrfree(counts);
    arrfree(before);
    arrfree(now);
}

Test(prepare_chat, bad_segments_are_named_by_line) {
    static const struct {
        const char *row, *what;
    } cases[] = {
        {"{\"segments\":\"a\"}", "line 2, column 13: the member is not a list"},
        {"{\"segments\":[]}", "line 2, column 13: there is no text to train on"},
        {"{\"segments\":[{\"text\":\"a\",\"train\":false}]}", "there is no text to train on"},
        {"{\"segments\":[{\"text\":\"\",\"train\":true}]}", "there is no text to train on"},
        {"{\"segments\":[{\"text\":\"a\",\"train\":1}]}",
         "line 2, column 34: the member is not true or false"},
        {"{\"segments\":[{\"text\":\"a\",\"train\":tru}]}", "line 2, column"},
        {"{\"segments\":[{\"text\":\"a\"}]}", "there is no member \"train\" (there is \"text\")"},
        {"{\"segments\":[{\"text\":\"a\",\"train\":true},]}", "line 2, column 39"},
        {"{\"segments\":[{\"text\":\"a\",\"train\":true}", "a comma or ]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char rows[500];
        snprintf(rows, sizeof rows, "{\"segments\":[{\"text\":\"a\",\"train\":true}]}\n%s\n",
                 cases[i].row);
        write_text("a.jsonl", rows);
        cr_expect_eq(run("--tokenizer bytes --out set a.jsonl"), 1);
        cr_expect_not_null(strstr(error_text, cases[i].what), "%s\n%s", cases[i].what, error_text);
    }
}

/* Answers of many lengths in blocks of 16 MiB and parts of 128 KiB, by several threads. */
Test(prepare_chat, long_conversations_have_the_mask_of_each) {
    enum { ROWS = 4000, TURNS = 10 };
    uint64_t expected = 0, all = 0;
    write_tokenizer(CHATML);
    FILE *file = fopen(in_folder("a.jsonl"), "w");
    for (int i = 0; i < ROWS; i++) {
        fprintf(file, "{\"messages\":[");
        for (int turn = 0; turn < TURNS; turn++) {
            const int question = 1 + (i * 7 + turn) % 300, answer = 1 + (i * 13 + turn * 31) % 500;
            fprintf(file,
                    "%s{\"role\":\"user\",\"content\":\"%0*d\"},"
                    "{\"role\":\"assistant\",\"content\":\"%0*d\"}",
                    turn ? "," : "", question, 1, answer, 2);
            expected += (uint64_t)answer + 1;
            all += (uint64_t)(question + answer + 21);
        }
        fprintf(file, "]}\n");
    }
    cr_assert_eq(fclose(file), 0);
    cr_assert_eq(run("--tokenizer chat --val-fraction 0.1 --out set a.jsonl"), 0, "%s", error_text);
    uint64_t counted = 0, count = 0, begins = 0;
    const char *const sides[] = {"set_train_*.bin", "set_val_*.bin"};
    for (int i = 0; i < 2; i++) {
        struct tokens tokens;
        cr_assert_eq(tokens_open(&tokens, in_folder("%s", sides[i]), &error), 0, "%s", error.text);
        bool is_answer = false, is_next = false;
        const struct token_shard *shard = &tokens.shards[0];
        for (uint64_t t = 0; t < shard->count; t++) {
            const int32_t token = token_at(shard, t);
            begins += token_mask_begins(&shard->mask, t);
            if (token_mask_in_loss(&shard->mask, t) != is_answer)
                cr_assert_fail("%s: token %d", sides[i], (int)t);
            if (token == 't') is_next = true; /* the last letter of assistant */
            if (token == '\n') is_answer = is_next;
            if (token == 261) is_answer = is_next = false;
        }
        counted += tokens.counted;
        count += tokens.count;
        tokens_close(&tokens);
    }
    cr_expect_eq(counted, expected);
    cr_expect_eq(count, all);
    cr_expect_eq(begins, ROWS);
}

/* A note, unless the folder has no template of its own, or the text of the built-in one. */
Test(prepare_chat, another_template_is_noted) {
    static const char row[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},"
                              "{\"content\":\"an\",\"role\":\"assistant\"}]}\n";
    struct tokenizer tokenizer;
    write_tokenizer(CHATML);
    prepare(row);
    cr_expect_null(strstr(error_text, "note"), "%s", error_text);
    cr_assert_eq(tokenizer_open(&tokenizer, TOKENIZER_FILES, in_folder("chat"), &error), 0);
    write_text("chat/chat_template.jinja", chat_template_text(chat_template_of(&tokenizer)));
    tokenizer_close(&tokenizer);
    prepare(row);
    cr_expect_null(strstr(error_text, "note"), "%s", error_text);
    write_text("chat/chat_template.jinja", "{{ '<|im_start|>' }}{{ messages }}");
    prepare(row);
    cr_expect_not_null(strstr(error_text, "note: chat has a chat template of its own"));
    cr_expect_not_null(strstr(error_text, "the built-in one of ChatML"));
    cr_expect_not_null(strstr(error_text, "scripts/render_chat.py"), "%s", error_text);
    prepare("{\"prompt\":\"q\",\"completion\":\"an\"}\n");
    cr_expect_null(strstr(error_text, "note"), "no template is used: %s", error_text);
    /* SmolLM2's template is the second one. Chats with a message of the system have its tokens. */
#define LOOP "{% for message in messages %}"
#define ADDS                                                     \
    "{% if loop.first and messages[0]['role'] != 'system' %}{{ " \
    "'<|im_start|>system\nS<|im_end|>\n' }}{% endif %}"
#define REST                                                                                  \
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\\n'}}" \
    "{% endfor %}{% if add_generation_prompt %}\n{{ \"<|im_start|>assistant\n\" }}{%endif%}\n"
    static const char with_system[] =
        "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},"
        "{\"role\":\"user\",\"content\":\"q\"},{\"content\":\"an\",\"role\":\"assistant\"}]}\n";
    static const struct {
        const char *template, *rows;
        bool noted;
    } own[] = {{LOOP REST, row, false},
               {LOOP ADDS REST, with_system, false},
               {LOOP ADDS REST, row, true},
               {LOOP "x" REST, row, true},
               {LOOP ADDS "x" REST, with_system, true}};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        write_text("chat/chat_template.jinja", own[i].template);
        prepare(own[i].rows);
        cr_expect_eq(strstr(error_text, "template of its own") != NULL, own[i].noted, "%zu: %s", i,
                     error_text);
    }
    unlink(in_folder("chat/chat_template.jinja"));
    static const char *const configs[] = {
        "{\"chat_template\": \"{{ '<|im_start|>' }}\"}",
        "{\"chat_template\": [{\"name\": \"tools\", \"template\": \"{{ x }}\"}, "
        "{\"name\": \"default\", \"template\": \"{{ '<|im_start|>' }}\"}]}",
        "{\"chat_template\": null, \"eos_token\": \"x\"}"};
    for (int i = 0; i < 3; i++) {
        write_text("chat/tokenizer_config.json", configs[i]);
        prepare(row);
        cr_expect_eq(strstr(error_text, "render_chat.py") != NULL, i < 2, "%s", error_text);
    }
}

/* TRL ends a completion with eos_token, and PEFT's generate stops at it. Other texts keep their own
 * separator. */
Test(prepare_chat, completions_end_with_eos_token) {
    static const char *const configs[] = {"{\"eos_token\": \"<|im_end|>\"}",
                                          "{\"eos_token\": {\"content\": \"<|im_end|>\"}}"};
    write_tokenizer(CHATML);
    prepare("{\"prompt\":\"q\",\"completion\":\"an\"}\n{\"prompt\":\"r\",\"completion\":\"b\"}\n");
    expect("set_train_*.bin", "^Aq{an^A}r{b^A}");
    for (int i = 0; i < 2; i++) {
        write_text("chat/tokenizer_config.json", configs[i]);
        prepare("{\"prompt\":\"q\",\"completion\":\"an\"}\n"
                "{\"prompt\":\"r\",\"completion\":\"b\"}\n");
        expect("set_train_*.bin", "^Aq{anF}^Ar{bF}");
        prepare("{\"text\":\"q\"}\n{\"text\":\"r\"}\n");
        expect("set_train_*.bin", "{AqAr}");
        prepare("{\"prompt\":\"q\",\"chosen\":\"a\",\"rejected\":\"b\"}\n");
        expect("set_train_*.bin", "^Aq{aF}^Aq{bF}");
    }
    write_text("chat/tokenizer_config.json", "{\"eos_token\": null}");
    write_text("chat/special_tokens_map.json", configs[1]);
    prepare("{\"prompt\":\"q\",\"completion\":\"an\"}\n");
    expect("set_train_*.bin", "^Aq{anF}");
}
