#include "model/config/config_nearest.h"

#include "data/util/min_max.h"
#include "data/util/nearest.h"
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "model/config/config_keys.h"

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
    char word[NEAREST_NAME_MAX + 1];
    for (size_t i = 0; i < sizeof synonyms / sizeof *synonyms; i++) {
        const bool is_sentence = strchr(synonyms[i].answer, ' ') != NULL;
        const char *quote = is_sentence ? "" : "`", *words = synonyms[i].words;
        fprintf(out, "| %s%s%s |", quote, synonyms[i].answer, quote);
        for (int used; sscanf(words, "%64s%n", word, &used) == 1; words += used)
            fprintf(out, " `%s`", word);
        fputs(" |\n", out);
    }
}

/* Returns the smallest edit distance of a name to one of the words, or NEAREST_NONE above 2. Words
 * of others are many, so fewer mistakes are allowed than in a key. */
static int distance_to_words(const char *name, const char *words) {
    char word[NEAREST_NAME_MAX + 1];
    int best = NEAREST_NONE;
    for (int used; sscanf(words, "%64s%n", word, &used) == 1; words += used) {
        int distance = nearest_edits(name, (int)strlen(name), word, (int)strlen(word));
        if (distance == 0 || (distance <= 2 && strlen(word) >= 8)) best = MIN(best, distance);
    }
    return best;
}

/* Copies a name in lower case, with _ for -. */
static void simplify(char text[NEAREST_NAME_MAX + 1], const char *name, size_t length) {
    for (size_t i = 0; i < length; i++)
        text[i] = name[i] == '-' ? '_' : (char)tolower((unsigned char)name[i]);
    text[length] = '\0';
}

const char *config_suggest(const char *name, size_t length, int block, bool *exact) {
    char part[NEAREST_NAME_MAX + 1];
    const char *best = NULL;
    *exact = false;
    size_t begin = last_part(name, length);
    if (begin == length || length - begin > NEAREST_NAME_MAX) return NULL;
    simplify(part, name + begin, length - begin);
    int best_score = 2 * NEAREST_NONE;
    for (int i = 0; i < config_option_count; i++) {
        const struct config_option *option = &config_options[i];
        int whole = nearest_distance(name, length, option->key);
        int last = nearest_distance(part, length - begin, config_option_name(option));
        int distance = MIN(whole, last);
        /* On a tie the row in the given block wins. */
        int score = 2 * distance + (config_option_block(option) != block);
        if (distance >= NEAREST_NONE || score >= best_score) continue;
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
    return nearest_text(names, config_block_count, name, length);
}
