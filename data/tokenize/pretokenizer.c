#include "data/tokenize/pretokenizer.h"

#include <assert.h>

#include "data/util/utf8.h"
#include "data/tokenize/unicode.h"

/* Limits of the steps that each pattern may take on a text (data/tokenize/split_pattern.h). The
 * patterns of GPT-2, Llama 3, Qwen and o200k take at most 16 per byte on any text. */
enum { STEPS_PER_BYTE = 128, STEPS_MIN = 1 << 16, STEPS_OF_CHECK = 1 << 24 };

void pretokenizer_begin(struct pretokenizer *pretokenizer, const struct pretokenizer_rule *rules,
                        int rule_count, const void *text, size_t size) {
    assert(rule_count <= PRETOKENIZER_LEVELS_MAX);
    *pretokenizer =
        (struct pretokenizer){.rules = rules, .rule_count = rule_count, .text = text, .size = size};
    pretokenizer->steps = (uint64_t)rule_count * (STEPS_MIN + STEPS_PER_BYTE * (uint64_t)size);
}

/* Finds the first match at or after level->at. Without one, the match is empty and at the end. */
static void find(struct pretokenizer *pretokenizer, const struct pretokenizer_rule *rule,
                 struct pretokenizer_level *level) {
    size_t at = level->at;
    for (; at < level->end; at += utf8_character(pretokenizer->text + at, level->end - at)) {
        level->match_end = split_pattern_match(rule->pattern, pretokenizer->text, level->end, at,
                                               &pretokenizer->steps);
        if (level->match_end != SIZE_MAX) break;
        if (pretokenizer->steps == 0) {
            if (!pretokenizer->failed) pretokenizer->failed = rule->pattern;
            at = level->end;
            break;
        }
    }
    level->match_begin = at;
    if (at == level->end) level->match_end = at;
}

/* Finds the next piece of a level. Level -1 is empty; pretokenizer_next feeds level 0. */
static bool next_of(struct pretokenizer *pretokenizer, int index, size_t *begin, size_t *end) {
    if (index < 0) return false;
    struct pretokenizer_level *level = &pretokenizer->levels[index];
    const struct pretokenizer_rule *rule = &pretokenizer->rules[index];
    for (;;) {
        if (level->at == level->end) {
            if (!next_of(pretokenizer, index - 1, &level->at, &level->end)) return false;
            find(pretokenizer, rule, level);
        } else if (level->match_begin < level->at) {
            find(pretokenizer, rule, level);
        }
        const bool is_gap = level->at < level->match_begin;
        *begin = level->at;
        level->at = *end = is_gap ? level->match_begin : level->match_end;
        if (!is_gap || !rule->drops_gaps) return true;
    }
}

bool pretokenizer_next(struct pretokenizer *pretokenizer, size_t *begin, size_t *end) {
    for (;;) {
        const bool found = next_of(pretokenizer, pretokenizer->rule_count - 1, begin, end);
        if (pretokenizer->failed) return false;
        if (found) return true;
        if (pretokenizer->at == pretokenizer->size) return false;
        *begin = pretokenizer->at;
        *end = utf8_skip_characters(pretokenizer->text, pretokenizer->size, *begin);
        if (*end == *begin) {
            pretokenizer->at = *end =
                utf8_skip_invalid(pretokenizer->text, pretokenizer->size, *begin);
            return true;
        }
        pretokenizer->at = *end;
        if (pretokenizer->rule_count == 0) return true;
        pretokenizer->levels[0].at = *begin;
        pretokenizer->levels[0].end = *end;
        find(pretokenizer, &pretokenizer->rules[0], &pretokenizer->levels[0]);
    }
}

/* Collects sample characters: all of ASCII, and one beyond it for each atom in the table. */
static size_t samples_of(const uint8_t *atoms, uint32_t samples[128 + UNICODE_ATOMS]) {
    size_t count = 0;
    uint32_t seen = 0;
    for (; count < 128; count++) samples[count] = (uint32_t)count;
    for (uint32_t code = 128; code < 0x10000; code++) {
        if (seen >> atoms[code] & 1) continue;
        seen |= 1u << atoms[code];
        samples[count++] = code;
    }
    return count;
}

/* True if matches leave no gap, whatever text follows; false if proving it takes too many steps. */
static bool matches_all(const struct split_pattern *pattern, const uint8_t *atoms) {
    uint32_t samples[128 + UNICODE_ATOMS];
    const size_t count = samples_of(atoms, samples);
    uint64_t steps = STEPS_OF_CHECK;
    uint8_t text[8];
    for (size_t i = 0; i < count; i++) {
        const size_t length = utf8_write(text, samples[i]);
        if (split_pattern_match(pattern, text, length, 0, &steps) == SIZE_MAX) return false;
        for (size_t j = 0; j < count; j++) {
            const size_t size = length + utf8_write(text + length, samples[j]);
            if (split_pattern_match(pattern, text, size, 0, &steps) == SIZE_MAX) return false;
        }
    }
    return true;
}

/* Gaps of the last pattern must be ruled out as well, because a cut inside a gap would split it. */
bool pretokenizer_cuts_before(const struct pretokenizer_rule *rules, int rule_count,
                              const uint8_t *atoms, char space) {
    for (int i = 0; i < rule_count; i++)
        if (!split_pattern_ends_before(rules[i].pattern, space)) return false;
    return rule_count > 0 && matches_all(rules[rule_count - 1].pattern, atoms);
}
