#include "data/corpus/question_text.h"

#include <stdint.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/utf8.h"

char *question_strip(char *text) {
    const size_t size = utf8_trim_end(text, strlen(text)), from = utf8_skip_space(text, size);
    memmove(text, text + from, size - from);
    text[size - from] = '\0';
    return text;
}

/* Replaces each occurrence of `old`, from left to right, by a text that is not longer. */
static void replace(char *text, const char *old, const char *by) {
    const size_t old_size = strlen(old), by_size = strlen(by);
    char *to = text;
    const char *from = text;
    while (*from) {
        const bool found = strncmp(from, old, old_size) == 0;
        if (found) memcpy(to, by, by_size);
        else *to = *from;
        to += found ? by_size : 1;
        from += found ? old_size : 1;
    }
    *to = '\0';
}

/* Removes each [ with the text up to the next ] of its line. */
static void remove_brackets(char *text) {
    char *to = text;
    for (const char *from = text; *from;) {
        const size_t size = *from == '[' ? strcspn(from, "]\n") : 1;
        if (*from == '[' && from[size] == ']') {
            from += size + 1;
            continue;
        }
        memmove(to, from, size); /* no [ in it is closed */
        to += size;
        from += size;
    }
    *to = '\0';
}

char *question_clean(char *text) {
    question_strip(text);
    replace(text, " [title]", ". ");
    remove_brackets(text);
    replace(text, "  ", " ");
    return text;
}

/* Capitals from first to last, every `step`th code, and the distance of their small letters. */
static const struct {
    uint16_t first, last, step;
    int16_t distance;
} CAPITALS[] = {
    {'A', 'Z', 1, 32},      {0xc0, 0xd6, 1, 32},    {0xd8, 0xde, 1, 32},   {0x100, 0x12e, 2, 1},
    {0x132, 0x136, 2, 1},   {0x139, 0x147, 2, 1},   {0x14a, 0x176, 2, 1},  {0x178, 0x178, 1, -121},
    {0x179, 0x17d, 2, 1},   {0x386, 0x386, 1, 38},  {0x388, 0x38a, 1, 37}, {0x38c, 0x38c, 1, 64},
    {0x38e, 0x38f, 1, 63},  {0x391, 0x3a1, 1, 32},  {0x3a3, 0x3ab, 1, 32}, {0x400, 0x40f, 1, 80},
    {0x410, 0x42f, 1, 32},  {0x460, 0x480, 2, 1},   {0x48a, 0x4be, 2, 1},  {0x4d0, 0x52e, 2, 1},
    {0x1e00, 0x1e94, 2, 1}, {0x1ea0, 0x1efe, 2, 1},
};

static uint32_t change_case(uint32_t code, bool to_capital) {
    for (size_t i = 0; i < sizeof CAPITALS / sizeof *CAPITALS; i++) {
        const uint32_t distance = (uint32_t)CAPITALS[i].distance;
        const uint32_t capital = to_capital ? code - distance : code;
        if (capital >= CAPITALS[i].first && capital <= CAPITALS[i].last &&
            (capital - CAPITALS[i].first) % CAPITALS[i].step == 0)
            return to_capital ? capital : code + distance;
    }
    return code;
}

char *question_capitalize(const char *text) {
    char *copy = NULL;
    for (size_t left = strlen(text); left > 0;) {
        const size_t count = utf8_character(text, left);
        char character[4];
        const uint32_t code = change_case(utf8_code(text, count), arrlenu(copy) == 0);
        const size_t size = utf8_write(character, code);
        memcpy(arraddnptr(copy, size), character, size);
        text += count;
        left -= count;
    }
    arrput(copy, '\0');
    return copy;
}
