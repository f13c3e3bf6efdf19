#include "data/util/files.h"
#include "data/corpus/splitter.h"

#include <criterion/criterion.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/random.h"
#include "test/scratch.h"

TestSuite(splitter, .init = make_folder, .fini = remove_folder);

struct split {
    struct tokenizer tokenizer;
    struct progress progress;
    struct splitter splitter;
};

static void open_split(struct split *split, enum tokenizer_kind kind, double fraction,
                       size_t block_bytes) {
    *split = (struct split){0};
    cr_assert_eq(tokenizer_open(&split->tokenizer, kind, "test/golden/tokenizer/small", &error), 0,
                 "%s", error.text);
    cr_assert_eq(splitter_open(&split->splitter, &split->tokenizer, fraction, in_folder("train"),
                               in_folder("val"), 1 << 30, &split->progress, &error),
                 0, "%s", error.text);
    split->splitter.block_bytes = block_bytes;
}

static void put(struct split *split, const char *text, size_t size, bool begins, bool is_row) {
    const struct document_piece piece = {text, size,          begins, is_row,
                                         true, DOCUMENT_TEXT, 0,      !is_row};
    cr_assert_eq(splitter_put(&split->splitter, &piece, &error), 0, "%s", error.text);
}

static void close_split(struct split *split) {
    cr_assert_eq(splitter_finish(&split->splitter, &error), 0, "%s", error.text);
    cr_assert_eq(splitter_publish(&split->splitter, &error), 0, "%s", error.text);
    splitter_close(&split->splitter);
    splitter_close(&split->splitter);
    tokenizer_close(&split->tokenizer);
}

/* Returns all tokens of a side, an stb_ds array. */
static int32_t *tokens_of(const char *side) {
    struct tokens tokens;
    int32_t *all = NULL;
    if (!file_exists(in_folder("%s_000000.bin", side))) return NULL;
    cr_assert_eq(tokens_open(&tokens, in_folder("%s_*.bin", side), &error), 0, "%s", error.text);
    cr_assert_eq(arrlen(tokens.shards), 1);
    cr_assert_eq(
        token_shard_read(&tokens.shards[0], arraddnptr(all, tokens.count), 0, tokens.count, &error),
        0);
    tokens_close(&tokens);
    return all;
}

static void expect_text(const char *side, const char *expected) {
    int32_t *tokens = tokens_of(side);
    char *text = NULL;
    for (size_t i = 0; i < arrlenu(tokens); i++) arrput(text, (char)tokens[i]);
    arrput(text, '\0');
    cr_expect_str_eq(text, expected, "%s: \"%s\", expected \"%s\"", side, text, expected);
    arrfree(tokens);
    arrfree(text);
}

#define ROW(text)   put(&split, text, sizeof(text) - 1, true, true)
#define FILE_(text) put(&split, text, sizeof(text) - 1, true, false)

Test(splitter, bytes_are_joined_and_rows_are_separated) {
    struct split split;
    open_split(&split, TOKENIZER_BYTES, 0, 1000);
    FILE_("file ");
    put(&split, "goes on ", 8, false, false);
    FILE_("file");
    ROW("row");
    ROW("");
    ROW("row");
    FILE_("");
    FILE_("file");
    cr_assert_eq(split.splitter.documents, 5, "empty ones do not count");
    close_split(&split);
    expect_text("train", "file goes on file\n\nrow\n\nrow\n\nfile");
    expect_text("val", "");
}

Test(splitter, validation_begins_with_a_document_if_one_is_near) {
    struct split split;
    open_split(&split, TOKENIZER_BYTES, 0.25, 1000);
    for (int i = 0; i < 10; i++) put(&split, &"abcdefghij"[i], 1, true, true);
    close_split(&split);
    expect_text("train", "a\n\nb\n\nc\n\nd\n\ne\n\nf\n\ng");
    expect_text("val", "h\n\ni\n\nj");

    /* wanted: at 15 of 20; a document may begin at 10 .. 17 */
    open_split(&split, TOKENIZER_BYTES, 0.25, 1000);
    ROW("abcdefghij");
    ROW("klmnopqrst");
    close_split(&split);
    expect_text("train", "abcdefghij");
    expect_text("val", "klmnopqrst");
    open_split(&split, TOKENIZER_BYTES, 0.25, 1000);
    ROW("abcdefghi");
    ROW("jklmnopqr");
    ROW("st");
    close_split(&split);
    expect_text("train", "abcdefghi\n\njklmno");
    expect_text("val", "pqr\n\nst");
    open_split(&split, TOKENIZER_BYTES, 0.25, 1000);
    ROW("abcdefghijklm");
    ROW("nopq");
    ROW("rst");
    close_split(&split);
    expect_text("train", "abcdefghijklm");
    expect_text("val", "nopq\n\nrst");
}

Test(splitter, a_block_ends_with_a_document_if_one_ends_in_its_second_half) {
    struct split split;
    open_split(&split, TOKENIZER_BYTES, 0.25, 20);
    ROW("abcdefgh");
    ROW("ijkl");
    ROW("mnopqrstuvwxyz"); /* from 12: a block of 12, then 14 + 6 */
    ROW("012345");
    ROW("6");
    close_split(&split);
    expect_text("train", "abcdefgh\n\nmnopqrstuvwxyz\n\n6");
    expect_text("val", "ijkl\n\n012345");

    open_split(&split, TOKENIZER_BYTES, 0.25, 20);
    ROW("abcdefghi");
    ROW("jklmnopqrstuvwxyz"); /* from 9: torn at 20, and for validation at 15 and 24 */
    close_split(&split);
    expect_text("train", "abcdefghi\n\njklmnouvwx");
    expect_text("val", "pqrstyz");
}

Test(splitter, a_row_split_at_the_end_of_validation_is_separated_from_a_file) {
    struct split split;
    open_split(&split, TOKENIZER_BYTES, 0.5, 8);
    ROW("abcdefgh");
    FILE_("ijkl");
    close_split(&split);
    expect_text("train", "abcd\n\nij");
    expect_text("val", "efghkl");
}

static char *random_text(size_t size, uint64_t seed) {
    static const char *const words[] = {
        "the ",  "cat", "  ",   "sat\n", "on ", "mat.", "\xc3\xa9t\xc3\xa9 ",
        "don't", " 42", "\n\n", "x",     "Zz "};
    char *text = malloc(size + 8);
    size_t filled = 0;
    for (uint64_t i = 0; filled < size; i++) {
        const char *word = words[random_bits(seed, 0, i) % (sizeof words / sizeof *words)];
        for (; *word && filled < size; word++) text[filled++] = *word;
    }
    /* Only complete characters. */
    while (filled > 0 && (uint8_t)text[filled - 1] >= 0x80) text[--filled] = '.';
    for (; filled < size; filled++) text[filled] = '.';
    return text;
}

/* Encodes documents at once, without blocks. */
static int32_t *plain_tokens(const struct tokenizer *tokenizer, const char *text,
                             const size_t *ends, size_t count) {
    struct tokenizer_encoder *encoder = tokenizer_encoder_open(tokenizer);
    int32_t *tokens = NULL;
    size_t at = 0;
    for (size_t i = 0; i < count; at = ends[i++]) {
        arrput(tokens, tokenizer->end_of_text);
        tokenizer_encode(encoder, &tokens, text + at, ends[i] - at, false, &error);
    }
    tokenizer_encoder_close(encoder);
    return tokens;
}

static void expect_same_tokens(const int32_t *a, const int32_t *b, const char *what) {
    cr_assert_eq(arrlenu(a), arrlenu(b), "%s: %zu and %zu", what, arrlenu(a), arrlenu(b));
    cr_assert(arrlenu(a) == 0 || memcmp(a, b, arrlenu(a) * sizeof *a) == 0, "%s", what);
}

/* Cuts do not change the tokens, for any blocks and threads. */
Test(splitter, blocks_and_threads_do_not_change_the_tokens) {
    enum { SIZE = 700000 };
    char *text = random_text(SIZE, 1);
    const size_t ends[] = {1, 5000, 5001, 300000, SIZE};
    const size_t blocks[] = {200, 999, 50000, 1 << 20};
    for (int b = 0; b < 4; b++)
        for (int threads = 1; threads <= 4; threads += 3) {
            struct split split;
            omp_set_num_threads(threads);
            open_split(&split, TOKENIZER_GPT2, 0, blocks[b]);
            int32_t *expected = plain_tokens(&split.tokenizer, text, ends, 5);
            for (size_t i = 0, at = 0; i < 5; at = ends[i++])
                for (size_t part = at; part < ends[i];) {
                    size_t size = 1 + random_bits(2, (uint64_t)b, part) % 3000;
                    if (size > ends[i] - part) size = ends[i] - part;
                    put(&split, text + part, size, part == at, false);
                    part += size;
                }
            close_split(&split);
            int32_t *tokens = tokens_of("train");
            expect_same_tokens(tokens, expected, "train");
            arrfree(tokens);
            arrfree(expected);
        }
    free(text);
}

Test(splitter, text_without_any_cut_is_split_between_characters) {
    struct split split;
    char text[1001];
    for (int i = 0; i < 500; i++) memcpy(text + 2 * i, "\xc3\xa9", 2);
    open_split(&split, TOKENIZER_GPT2, 0.1, 101);
    put(&split, text, 1000, true, false);
    close_split(&split);
    const char *sides[] = {"train", "val"};
    size_t bytes = 0;
    open_split(&split, TOKENIZER_GPT2, 0, 1000);
    for (int s = 0; s < 2; s++) {
        int32_t *tokens = tokens_of(sides[s]);
        for (size_t i = 0; i < arrlenu(tokens); i++) {
            size_t size;
            const uint8_t *token = tokenizer_bytes(&split.tokenizer, tokens[i], &size);
            if (tokens[i] == split.tokenizer.end_of_text) continue;
            cr_assert(size % 2 == 0 || size == 1);
            cr_assert(size != 1 || token[0] == (bytes % 2 ? 0xa9 : 0xc3), "a torn character");
            bytes += size;
        }
        cr_expect_eq(bytes % 2, 0);
        arrfree(tokens);
    }
    cr_assert_eq(bytes, 1000);
    splitter_close(&split.splitter);
    tokenizer_close(&split.tokenizer);
}

/* Rows of up to `longest` bytes: each is in one side as a whole, and validation has its share. */
Test(splitter, many_documents_are_never_split) {
    enum { ROWS = 3000, LONGEST = 60, BLOCK = 2000 };
    const double fraction = 0.1;
    static char rows[ROWS][LONGEST + 1];
    struct split split;
    open_split(&split, TOKENIZER_BYTES, fraction, BLOCK);
    for (int i = 0; i < ROWS; i++) {
        const size_t size = 5 + random_bits(3, 0, (uint64_t)i) % (LONGEST - 4);
        memset(rows[i], 'x', size);
        snprintf(rows[i], 6, "%04u", (unsigned)i % 10000);
        rows[i][4] = 'x';
        put(&split, rows[i], size, true, true);
    }
    cr_assert_eq(split.splitter.documents, ROWS);
    close_split(&split);
    const char *sides[] = {"train", "val"};
    static int seen[ROWS];
    size_t bytes[2] = {0};
    for (int s = 0; s < 2; s++) {
        int32_t *tokens = tokens_of(sides[s]);
        int last = -1;
        for (size_t i = 0; i < arrlenu(tokens); i += 2) {
            char row[LONGEST + 1] = "";
            size_t size = 0;
            for (; i < arrlenu(tokens) && tokens[i] != '\n'; i++) row[size++] = (char)tokens[i];
            const int number = atoi(row);
            cr_assert_str_eq(row, rows[number]);
            cr_assert_gt(number, last, "out of order");
            last = number;
            seen[number]++;
            bytes[s] += size;
        }
        arrfree(tokens);
    }
    for (int i = 0; i < ROWS; i++) cr_assert_eq(seen[i], 1, "row %d", i);
    const double share = (double)bytes[1] / (double)(bytes[0] + bytes[1]);
    cr_assert(share > 0.08 && share < 0.12, "%g", share);
}

Test(splitter, the_number_of_documents_in_a_block_has_a_limit) {
    struct split split;
    open_split(&split, TOKENIZER_GPT2, 0, SPLITTER_BLOCK_BYTES);
    for (int i = 0; i < SPLITTER_MARKS_MAX + 10; i++) put(&split, "a", 1, true, true);
    cr_assert_eq(arrlen(split.splitter.marks), 10);
    close_split(&split);
    int32_t *tokens = tokens_of("train");
    cr_assert_eq(arrlen(tokens), 2 * (SPLITTER_MARKS_MAX + 10));
    for (int i = 0; i < arrlen(tokens); i++) cr_assert_eq(tokens[i] == 1199, i % 2 == 0, "%d", i);
    arrfree(tokens);
}

Test(splitter, closing_removes_unpublished_files) {
    struct split split;
    open_split(&split, TOKENIZER_BYTES, 0.5, 10);
    FILE_("some text that is longer than two blocks");
    cr_assert(file_exists(in_folder("train_000000.bin.part.tmp")));
    splitter_close(&split.splitter);
    tokenizer_close(&split.tokenizer);
    cr_assert_not(file_exists(in_folder("train_000000.bin.part.tmp")));
    cr_assert_not(file_exists(in_folder("val_000000.bin.part.tmp")));
}

static void put_pair(struct split *split, const char *prompt, const char *completion) {
    const struct document_piece pieces[] = {
        {prompt, strlen(prompt), true, true, false, DOCUMENT_ANSWER, 0, false},
        {completion, strlen(completion), false, true, true, DOCUMENT_ANSWER, 0, false}};
    for (int i = 0; i < 2; i++)
        cr_assert_eq(splitter_put(&split->splitter, &pieces[i], &error), 0, "%s", error.text);
}

/* expected: 1 or I for each token that counts, else 0 or O; I and O begin a document. */
static void expect_mask(const char *side, const char *expected) {
    struct tokens tokens;
    cr_assert_eq(tokens_open(&tokens, in_folder("%s_*.bin", side), &error), 0, "%s", error.text);
    cr_assert_eq(tokens.count, strlen(expected));
    for (uint64_t i = 0; i < tokens.count; i++) {
        cr_expect_eq(token_mask_in_loss(&tokens.shards[0].mask, i), strchr("1I", expected[i]) != 0,
                     "%s: token %d of %s", side, (int)i, expected);
        cr_expect_eq(token_mask_begins(&tokens.shards[0].mask, i), strchr("OI", expected[i]) != 0,
                     "%s: beginning %d of %s", side, (int)i, expected);
    }
    tokens_close(&tokens);
}

Test(splitter, completions_and_their_ends_count) {
    struct split split;
    open_split(&split, TOKENIZER_BYTES, 0, 1000);
    put_pair(&split, "ask", "yes");
    put_pair(&split, "", "all");
    put_pair(&split, "", "");
    put_pair(&split, "only", "");
    cr_expect_eq(split.splitter.documents, 3);
    close_split(&split);
    expect_text("train", "askyes\n\nall\n\nonly\n\n");
    expect_mask("train", "O0011111I1111O00011");
}

/* Text counts everywhere, and is separated as usual. Its documents are marked, too. */
Test(splitter, pairs_and_text_may_be_mixed) {
    struct split split;
    open_split(&split, TOKENIZER_BYTES, 0, 1000);
    FILE_("file");
    put_pair(&split, "a", "b");
    ROW("row");
    FILE_("");
    FILE_("f");
    put_pair(&split, "c", "d");
    FILE_("e");
    close_split(&split);
    expect_text("train", "file\n\nab\n\nrow\n\nf\n\ncd\n\ne");
    expect_mask("train", "I11100O111I1111I00O111I");
}

/* <|endoftext|> precedes the first document and ends each completion, and so begins what follows.
 */
Test(splitter, the_token_between_pairs_ends_the_one_before) {
    struct split split;
    open_split(&split, TOKENIZER_GPT2, 0, 1000);
    const int end = split.tokenizer.end_of_text;
    cr_assert_eq(split.tokenizer.eos, end);
    put_pair(&split, "<|endoftext|>&", "!<|endoftext|>"); /* the names are no further tokens */
    put_pair(&split, "\"", "#");
    ROW("<|endoftext|>$");
    ROW("&<|endoftext|>");
    put_pair(&split, "%", "");
    close_split(&split);
    int32_t *tokens = tokens_of("train");
    const size_t count = arrlenu(tokens);
    char kinds[20] = "";
    cr_assert_eq(count, 13);
    for (size_t i = 0; i < count; i++) kinds[i] = tokens[i] == end ? 'E' : '.';
    cr_expect_str_eq(kinds, "E..E..E.E.E.E", "%s", kinds);
    expect_mask("train", "O01I01I1I1I0I");
    arrfree(tokens);
}

/* Validation begins with a pair or not at all: a completion is never separated from its prompt. */
Test(splitter, validation_has_whole_pairs) {
    struct split split;
    open_split(&split, TOKENIZER_BYTES, 0.05, 1000);
    put_pair(&split, "question", "a long answer");
    close_split(&split);
    expect_text("train", "questiona long answer\n\n");
    expect_text("val", "");
    open_split(&split, TOKENIZER_BYTES, 0.05, 1000);
    put_pair(&split, "question", "a long answer");
    put_pair(&split, "another", "one");
    close_split(&split);
    expect_text("train", "questiona long answer\n\n");
    expect_text("val", "anotherone\n\n");
    expect_mask("val", "O00000011111");
}

/* Blocks and parts end anywhere: within prompts and completions, and between them. */
Test(splitter, pairs_of_any_length_in_blocks_of_any_size) {
    enum { PAIRS = 40 };
    for (size_t block = 2; block < 60; block++) {
        struct split split;
        char *text = NULL, *mask = NULL;
        open_split(&split, TOKENIZER_BYTES, 0, block);
        for (int i = 0; i < PAIRS; i++) {
            char prompt[40] = "", completion[40] = "";
            memset(prompt, 'a' + i % 26, (size_t)(i * 7 % 31));
            memset(completion, 'A' + i % 26, (size_t)(i * 5 % 23));
            put_pair(&split, prompt, completion);
            if (!*prompt && !*completion) continue;
            for (const char *c = prompt; *c; c++) arrput(text, *c), arrput(mask, '0');
            for (const char *c = completion; *c; c++) arrput(text, *c), arrput(mask, '1');
            const size_t begin = arrlenu(mask) - strlen(prompt) - strlen(completion);
            mask[begin] = *prompt ? 'O' : 'I';
            for (int j = 0; j < 2; j++) arrput(text, '\n'), arrput(mask, '1');
        }
        arrput(text, '\0');
        arrput(mask, '\0');
        close_split(&split);
        expect_text("train", text);
        expect_mask("train", mask);
        arrfree(text);
        arrfree(mask);
    }
}

/* Blocks that were written before the first row have no starts, and text alone has no mask. */
Test(splitter, documents_before_the_first_row_may_be_unmarked) {
    struct split split;
    struct tokens tokens;
    open_split(&split, TOKENIZER_BYTES, 0, 8);
    FILE_("abcd");
    FILE_("efgh"); /* the block ends here */
    FILE_("kl");
    put_pair(&split, "m", "n");
    close_split(&split);
    expect_text("train", "abcdefghkl\n\nmn\n\n");
    expect_mask("train", "11111111I100O111");
    open_split(&split, TOKENIZER_BYTES, 0, 1000);
    FILE_("abcd");
    ROW("ef");
    close_split(&split);
    cr_assert_eq(tokens_open(&tokens, in_folder("train_*.bin"), &error), 0, "%s", error.text);
    cr_expect_null(tokens.shards[0].mask.file);
    tokens_close(&tokens);
}

/* Puts a pair, whose documents are of the form, in pieces of up to 7 bytes. */
static void put_answers(struct split *split, const char *prompt, const char *const answers[2],
                        enum document_form form) {
    for (int i = 0; i < 2; i++) {
        const char *const texts[] = {prompt, answers[i]};
        for (int part = 0; part < 2; part++)
            for (size_t at = 0, size; at < strlen(texts[part]); at += size) {
                size = strnlen(texts[part] + at, 7);
                const bool begins = part == 0 && at == 0;
                const int marks = begins ? TOKEN_BEGINS | (i ? TOKEN_REJECTED : 0) : 0;
                const struct document_piece piece = {texts[part] + at, size, begins,         true,
                                                     part == 1,        form, (uint8_t)marks, false};
                cr_assert_eq(splitter_put(&split->splitter, &piece, &error), 0, "%s", error.text);
            }
    }
}

/* Appends the tokens and marks that the documents of a pair must have, as TRL's DPOTrainer makes
 * them: the answers are what follows the tokens common to the prompt and to both texts. */
static void plain_pair(const struct split *split, const char *prompt, const char *const answers[2],
                       int32_t **tokens, uint8_t **marks) {
    const struct tokenizer *tokenizer = &split->tokenizer;
    const bool is_bytes = tokenizer->kind == TOKENIZER_BYTES;
    struct tokenizer_encoder *encoder = tokenizer_encoder_open(tokenizer);
    int32_t *alone = NULL, *texts[2] = {0};
    char both[200];
    tokenizer_encode(encoder, &alone, prompt, strlen(prompt), true, &error);
    size_t same = arrlenu(alone);
    for (int i = 0; i < 2; i++) {
        snprintf(both, sizeof both, "%s%s%s", prompt, answers[i], is_bytes ? "\n\n" : "");
        tokenizer_encode(encoder, &texts[i], both, strlen(both), true, &error);
        size_t equal = 0;
        while (equal < same && equal < arrlenu(texts[i]) && texts[i][equal] == alone[equal])
            equal++;
        same = equal;
    }
    for (int i = 0; i < 2; i++) {
        const size_t begin = arrlenu(*tokens);
        if (!is_bytes) arrput(*tokens, tokenizer->end_of_text);
        for (size_t t = 0; t < arrlenu(texts[i]); t++) arrput(*tokens, texts[i][t]);
        if (!is_bytes) arrput(*tokens, tokenizer->eos);
        for (size_t t = 0; t < arrlenu(*tokens) - begin; t++)
            arrput(*marks, (uint8_t)(t < same + !is_bytes ? 0 : TOKEN_COUNTS));
        (*marks)[begin] |= (uint8_t)(TOKEN_BEGINS | (i ? TOKEN_REJECTED : 0));
        arrfree(texts[i]);
    }
    arrfree(alone);
    tokenizer_encoder_close(encoder);
}

static uint8_t mark_of(const struct token_mask *mask, uint64_t token) {
    return (uint8_t)(token_mask_in_loss(mask, token) * TOKEN_COUNTS |
                     token_mask_begins(mask, token) * TOKEN_BEGINS |
                     token_mask_is_rejected(mask, token) * TOKEN_REJECTED |
                     token_mask_has_label(mask, token) * TOKEN_LABEL);
}

/* Blocks of any size and threads: both sides hold whole pairs, which are those of the input in
 * order once each, with the tokens and marks of their documents alone. */
static void check_pairs(enum tokenizer_kind kind, size_t block, double fraction) {
    enum { PAIRS = 60 };
    struct split split;
    int32_t *pairs[PAIRS] = {0}, *sides[2];
    uint8_t *marks[PAIRS] = {0};
    open_split(&split, kind, fraction, block);
    for (int i = 0; i < PAIRS; i++) {
        char *texts[3];
        for (int t = 0; t < 3; t++)
            texts[t] = random_text(1 + random_bits(4, (uint64_t)t, (uint64_t)i) % 50,
                                   (uint64_t)(3 * i + t));
        texts[2][0] = '!'; /* no answer of 1 byte may equal the other */
        const char *const answers[] = {texts[1], texts[2]};
        for (int t = 0; t < 3; t++) texts[t][1 + random_bits(4, (uint64_t)t, (uint64_t)i) % 50] = 0;
        put_answers(&split, texts[0], answers, DOCUMENT_ANSWER);
        plain_pair(&split, texts[0], answers, &pairs[i], &marks[i]);
        for (int t = 0; t < 3; t++) free(texts[t]);
    }
    cr_expect_eq(split.splitter.documents, 2 * PAIRS);
    close_split(&split);
    const char *const names[] = {"train", "val"};
    size_t at[2] = {0};
    struct tokens sets[2] = {0};
    for (int side = 0; side < 2; side++) {
        sides[side] = tokens_of(names[side]);
        if (sides[side])
            cr_assert_eq(tokens_open(&sets[side], in_folder("%s_*.bin", names[side]), &error), 0);
    }
    for (int i = 0; i < PAIRS; i++) {
        const size_t count = arrlenu(pairs[i]), bytes = count * sizeof(int32_t);
        int side = 0;
        while (side < 2 && (at[side] + count > arrlenu(sides[side]) ||
                            memcmp(sides[side] + at[side], pairs[i], bytes) != 0))
            side++;
        cr_assert_lt(side, 2, "block %zu: pair %d is in neither side", block, i);
        for (size_t t = 0; t < count; t++)
            cr_assert_eq(mark_of(&sets[side].shards[0].mask, at[side] + t), marks[i][t],
                         "block %zu: pair %d, token %zu", block, i, t);
        at[side] += count;
        arrfree(pairs[i]);
        arrfree(marks[i]);
    }
    for (int side = 0; side < 2; side++) {
        cr_assert_eq(at[side], arrlenu(sides[side]));
        arrfree(sides[side]);
        tokens_close(&sets[side]);
    }
    cr_expect_eq(at[1] > 0, fraction > 0, "block %zu", block);
}

Test(splitter, no_pair_of_answers_is_divided) {
    for (int threads = 1; threads <= 4; threads += 3) {
        omp_set_num_threads(threads);
        for (size_t block = 2; block < 3000; block += 1 + block / 9) {
            check_pairs(TOKENIZER_BYTES, block, 0.3);
            check_pairs(TOKENIZER_GPT2, block, 0.3);
        }
        check_pairs(TOKENIZER_GPT2, 500, 0);
    }
}

Test(splitter, pairs_of_answers_and_text_cannot_be_mixed) {
    for (int pairs_first = 0; pairs_first < 2; pairs_first++) {
        struct split split;
        const char *const answers[] = {"yes", "no"};
        const struct document_piece text = {"text", 4, true, false, true, DOCUMENT_TEXT, 0, true},
                                    pair = {"ask",        3,    true, true, false, DOCUMENT_ANSWER,
                                            TOKEN_BEGINS, false};
        open_split(&split, TOKENIZER_BYTES, 0, 1000);
        if (pairs_first) put_answers(&split, "ask", answers, DOCUMENT_ANSWER);
        else put(&split, "file", 4, true, false);
        cr_expect_eq(splitter_put(&split.splitter, pairs_first ? &text : &pair, &error), -1);
        cr_expect_not_null(strstr(error.text, "prepare them apart"), "%s", error.text);
        splitter_close(&split.splitter);
        tokenizer_close(&split.tokenizer);
    }
}
