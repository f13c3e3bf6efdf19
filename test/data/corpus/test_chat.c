/* The turns of --chat are the text that ./prepare makes of the same conversation. */
#include "data/corpus/chat.h"

#include <criterion/criterion.h>
#include <string.h>

#include <stb/stb_ds.h>

enum { CHATML, LLAMA3, MISTRAL, GEMMA, OLMO2, EXAONE4, TEMPLATES };

static struct jsonl_member member(const char *text) {
    return (struct jsonl_member){.text = (char *)text, .size = strlen(text)};
}

static void put(char **text, const char *more) {
    memcpy(arraddnptr(*text, strlen(more)), more, strlen(more));
}

/* Returns the text of a conversation without the end of its last answer; NULL: no system. */
static char *rendered(int template, const char *system, const char *const *contents, int count) {
    struct jsonl_member *values = NULL;
    struct segment *segments = NULL;
    struct error error = {0};
    char *text = NULL;
    if (system) {
        arrput(values, member("system"));
        arrput(values, member(system));
    }
    for (int i = 0; i < count; i++) {
        arrput(values, member(i % 2 ? "assistant" : "user"));
        arrput(values, member(contents[i]));
    }
    cr_assert_eq(
        chat_render(chat_template_at(template), values, arrlenu(values) / 2, &segments, &error), 0,
        "%s", error.text);
    for (ptrdiff_t i = 0; i < arrlen(segments); i++)
        if (segments[i].size > 0)
            memcpy(arraddnptr(text, segments[i].size), segments[i].text, segments[i].size);
    arrput(text, 0);
    arrfree(segments);
    arrfree(values);
    return text;
}

/* The same by turns. A model of Mistral's begins its answers with a space. */
static char *by_turns(int template, const char *system, const char *const *contents, int count) {
    char *text = NULL;
    for (int i = 0; i < count; i += 2) {
        chat_turn(chat_template_at(template), system, contents[i], i == 0, &text);
        if (template == MISTRAL) put(&text, " ");
        put(&text, contents[i + 1]);
    }
    arrput(text, 0);
    return text;
}

static void expect_same(int template, const char *system, int count) {
    static const char *const contents[] = {"  What is\n two? ", "It is 2.", "And\tthree?", "3", "!",
                                           "So it is."};
    char *whole = rendered(template, system, contents, count);
    char *turns = by_turns(template, system, contents, count);
    cr_expect_eq(strncmp(whole, turns, strlen(turns)), 0, "template %d: \"%s\", rendered \"%s\"",
                 template, turns, whole);
    cr_expect_leq(strlen(whole) - strlen(turns), strlen("<end_of_turn>\n"), "%s", whole);
    arrfree(whole);
    arrfree(turns);
}

Test(chat, turns_are_the_rendered_conversation) {
    for (int template = 0; template <TEMPLATES; template ++)
        for (int count = 2; count <= 6; count += 2) {
            expect_same(template, NULL, count);
            if (template != MISTRAL || count == 2) expect_same(template, " Be brief. ", count);
        }
}

/* Mistral's template moves the system message to the last turn, which a cache cannot follow. */
Test(chat, mistrals_system_message_stays_in_the_first_turn) {
    char *text = NULL;
    chat_turn(chat_template_at(MISTRAL), "S", "q", true, &text);
    put(&text, " a");
    chat_turn(chat_template_at(MISTRAL), "S", "r", false, &text);
    arrput(text, 0);
    cr_expect_str_eq(text, "<s>[INST] S\n\nq[/INST] a</s>[INST] r[/INST]");
    arrfree(text);
}
