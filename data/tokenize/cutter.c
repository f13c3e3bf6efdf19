#include "data/tokenize/cutter.h"

#include <assert.h>

#include "data/util/utf8.h"
#include "data/tokenize/unicode.h"

/* Limits of the steps that each pattern may take on a text (data/tokenize/split_pattern.h). The
 * patterns of GPT-2, Llama 3, Qwen and o200k take at most 16 per byte on any text. */
enum { STEPS_PER_BYTE = 128, STEPS_MIN = 1 << 16, STEPS_OF_CHECK = 1 << 24 };

void cutter_begin(struct cutter *cutter, const struct cutter_rule *rules, int rule_count,
                  const void *text, size_t size) {
    assert(rule_count <= CUTTER_LEVELS_MAX);
    *cutter = (struct cutter){.rules = rules, .rule_count = rule_count, .text = text, .size = size};
    cutter->steps = (uint64_t)rule_count * (STEPS_MIN + STEPS_PER_BYTE * (uint64_t)size);
}

/* Finds the first match at or after level->at. Without one, the match is empty and at the end. */
static void find(struct cutter *cutter, const struct cutter_rule *rule,
                 struct cutter_level *level) {
    size_t at = level->at;
    for (; at < level->end; at += utf8_character(cutter->text + at, level->end - at)) {
        level->behind =
            split_pattern_match(rule->pattern, cutter->text, level->end, at, &cutter->steps);
        if (level->behind != SIZE_MAX) break;
        if (cutter->steps == 0) {
            if (!cutter->failed) cutter->failed = rule->pattern;
            at = level->end;
            break;
        }
    }
    level->match = at;
    if (at == level->end) level->behind = at;
}

/* Finds the next piece of a level. Level -1 is empty; cutter_next feeds level 0. */
static bool next_of(struct cutter *cutter, int index, size_t *begin, size_t *end) {
    if (index < 0) return false;
    struct cutter_level *level = &cutter->levels[index];
    const struct cutter_rule *rule = &cutter->rules[index];
    for (;;) {
        if (level->at == level->end) {
            if (!next_of(cutter, index - 1, &level->at, &level->end)) return false;
            find(cutter, rule, level);
        } else if (level->match < level->at) {
            find(cutter, rule, level);
        }
        const bool is_gap = level->at < level->match;
        *begin = level->at;
        level->at = *end = is_gap ? level->match : level->behind;
        if (!is_gap || !rule->drops_gaps) return true;
    }
}

bool cutter_next(struct cutter *cutter, size_t *begin, size_t *end) {
    for (;;) {
        const bool found = next_of(cutter, cutter->rule_count - 1, begin, end);
        if (cutter->failed) return false;
        if (found) return true;
        if (cutter->at == cutter->size) return false;
        *begin = cutter->at;
        *end = utf8_skip_characters(cutter->text, cutter->size, *begin);
        if (*end == *begin) {
            cutter->at = *end = utf8_skip_others(cutter->text, cutter->size, *begin);
            return true;
        }
        cutter->at = *end;
        if (cutter->rule_count == 0) return true;
        cutter->levels[0].at = *begin;
        cutter->levels[0].end = *end;
        find(cutter, &cutter->rules[0], &cutter->levels[0]);
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
bool cutter_cuts_before(const struct cutter_rule *rules, int rule_count, const uint8_t *atoms,
                        char space) {
    for (int i = 0; i < rule_count; i++)
        if (!split_pattern_ends_before(rules[i].pattern, space)) return false;
    return rule_count > 0 && matches_all(rules[rule_count - 1].pattern, atoms);
}
