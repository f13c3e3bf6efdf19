#include "model/config/config_nearest.h"

#include "data/util/min_max.h"
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "model/config/config_keys.h"

enum { NAME_LIMIT = 64 /* longer names are not typing mistakes */, NOT_CLOSE = 1000 };

/* True if the letters are equal but for their case. */
static bool same(char a, char b) {
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* Optimal string alignment: insertions, deletions, replacements and swaps of neighbors, without
 * regard to case. distance[i][j] is that of the first i and j bytes. */
static int edit_distance(const char *a, int a_length, const char *b, int b_length) {
    int distance[NAME_LIMIT + 1][NAME_LIMIT + 1];
    for (int i = 0; i <= a_length; i++)
        for (int j = 0; j <= b_length; j++) {
            distance[i][j] = i + j;
            if (i == 0 || j == 0) continue;
            int replaced = distance[i - 1][j - 1] + !same(a[i - 1], b[j - 1]);
            int changed = MIN(distance[i][j - 1], distance[i - 1][j]) + 1;
            if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
                changed = MIN(changed, distance[i - 2][j - 2] + 1);
            distance[i][j] = MIN(replaced, changed);
        }
    return distance[a_length][b_length];
}

static bool contains(const char *text, int text_length, const char *part, int part_length) {
    if (part_length < 4 || part_length >= text_length) return false;
    for (int i = 0; i + part_length <= text_length; i++)
        if (strncasecmp(text + i, part, (size_t)part_length) == 0) return true;
    return false;
}

/* Returns the edit distance of two names, or NOT_CLOSE if it is too large for a typing mistake. A
 * name contained in the other one counts as close: "batch_size" for "micro_batch_size". */
static int distance_if_close(const char *name, size_t name_length, const char *text) {
    int length = (int)strlen(text);
    if (name_length > NAME_LIMIT || length > NAME_LIMIT || length == 0) return NOT_CLOSE;
    int given = (int)name_length;
    int allowed = MIN(given, length) <= 3 ? 1 : 1 + MIN(given, length) / 4;
    int distance = edit_distance(name, given, text, length);
    if (distance <= allowed) return distance;
    if (contains(text, length, name, given) || contains(name, given, text, length)) return allowed;
    return NOT_CLOSE;
}

/* Offset of the part after the last dot. */
static size_t last_part(const char *name, size_t length) {
    while (length > 0 && name[length - 1] != '.') length--;
    return length;
}

/* Answer to words of other trainers, which are separated by spaces. */
struct synonyms {
    const char *answer, *words;
};

static const struct synonyms synonyms[] = {
#include "model/config/config_synonyms.inc"
};

void config_print_synonyms(FILE *out) {
    char word[NAME_LIMIT + 1];
    for (size_t i = 0; i < sizeof synonyms / sizeof *synonyms; i++) {
        const bool is_sentence = strchr(synonyms[i].answer, ' ') != NULL;
        const char *quote = is_sentence ? "" : "`", *words = synonyms[i].words;
        fprintf(out, "| %s%s%s |", quote, synonyms[i].answer, quote);
        for (int used; sscanf(words, "%64s%n", word, &used) == 1; words += used)
            fprintf(out, " `%s`", word);
        fputs(" |\n", out);
    }
}

/* Returns the smallest edit distance of a name to one of the words, or NOT_CLOSE above 2. Words of
 * others are many, so fewer mistakes are allowed than in a key. */
static int distance_to_words(const char *name, const char *words) {
    char word[NAME_LIMIT + 1];
    int best = NOT_CLOSE;
    for (int used; sscanf(words, "%64s%n", word, &used) == 1; words += used) {
        int distance = edit_distance(name, (int)strlen(name), word, (int)strlen(word));
        if (distance == 0 || (distance <= 2 && strlen(word) >= 8)) best = MIN(best, distance);
    }
    return best;
}

/* Copies a name in lower case, with _ for -. */
static void simplify(char text[NAME_LIMIT + 1], const char *name, size_t length) {
    for (size_t i = 0; i < length; i++)
        text[i] = name[i] == '-' ? '_' : (char)tolower((unsigned char)name[i]);
    text[length] = '\0';
}

const char *config_suggest(const char *name, size_t length, int block, bool *exact) {
    char part[NAME_LIMIT + 1];
    const char *best = NULL;
    *exact = false;
    size_t begin = last_part(name, length);
    if (begin == length || length - begin > NAME_LIMIT) return NULL;
    simplify(part, name + begin, length - begin);
    int best_score = 2 * NOT_CLOSE;
    for (int i = 0; i < config_option_count; i++) {
        const struct config_option *option = &config_options[i];
        int whole = distance_if_close(name, length, option->key);
        int last = distance_if_close(part, length - begin, config_option_name(option));
        int distance = MIN(whole, last);
        /* On a tie the row in the given block wins. */
        int score = 2 * distance + (config_option_block(option) != block);
        if (distance >= NOT_CLOSE || score >= best_score) continue;
        best = option->key;
        best_score = score;
    }
    for (size_t i = 0; i < sizeof synonyms / sizeof *synonyms; i++) {
        int distance = distance_to_words(part, synonyms[i].words);
        if (2 * distance >= best_score && distance > 0) continue;
        best = synonyms[i].answer;
        best_score = 2 * distance;
        if (distance == 0) break;
    }
    *exact = best && best_score <= 1;
    return best;
}

int config_nearest_block(const char *name, size_t length) {
    const char *names[CONFIG_OPTION_LIMIT];
    for (int i = 0; i < config_block_count; i++) names[i] = config_blocks[i].name;
    return config_nearest_text(names, config_block_count, name, length);
}

int config_nearest_text(const char *const *texts, int count, const char *name, size_t length) {
    int best = -1, best_distance = NOT_CLOSE;
    for (int i = 0; i < count; i++) {
        int distance = distance_if_close(name, length, texts[i]);
        if (distance < best_distance) {
            best = i;
            best_distance = distance;
        }
    }
    return best;
}
