/* The parser of data/tokenize/split_pattern.h. */
#include "data/tokenize/split_pattern.h"

#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/utf8.h"
#include "data/tokenize/unicode.h"

enum { PART_SHOWN = 24, DEPTH_MAX = 16, REPEAT_MAX = 1000 };

#define NO_LETTER 0

struct parser {
    struct split_pattern *pattern;
    enum split_dialect dialect;
    const char *text, *at;
    bool folds;    /* inside (?i:...) */
    char previous; /* the previous letter, inside (?i:...) */
    int depth;
    struct error *error;
};

/* One element of a sequence, from its first node to its last. */
struct item {
    int first, last;
};

static int refuse(struct parser *parser, const char *part, const char *reason) {
    size_t length = strlen(part);
    if (length > PART_SHOWN)
        for (length = PART_SHOWN; (part[length] & 0xc0) == 0x80;) length--;
    return fail(parser->error, "the pattern that cuts text, at \"%.*s\": %s", (int)length, part,
                reason);
}

static int add_node(struct parser *parser, enum split_kind kind) {
    const struct split_node node = {.kind = kind, .minimum = 1, .maximum = 1};
    arrput(parser->pattern->nodes, node);
    return (int)arrlen(parser->pattern->nodes) - 1;
}

static struct split_node *node_at(struct parser *parser, int index) {
    return &parser->pattern->nodes[index];
}

static bool starts(const struct parser *parser, const char *word) {
    return strncmp(parser->at, word, strlen(word)) == 0;
}

/* ---- characters */

static int read_hex(struct parser *parser, uint32_t *code, const char *begin) {
    const bool braces = *parser->at == '{';
    const size_t most = braces ? 6 : begin[1] == 'x' ? 2 : 4;
    const char *digits = parser->at + braces;
    const size_t count = strspn(digits, "0123456789abcdefABCDEF");
    if (count == 0 || (braces && (count > most || digits[count] != '}')) ||
        (!braces && count < most))
        return refuse(parser, begin, "this is not a valid code point");
    char number[8] = "";
    memcpy(number, digits, braces ? count : most);
    *code = (uint32_t)strtoul(number, NULL, 16);
    parser->at = digits + (braces ? count + 1 : most);
    if (*code >= UNICODE_CODES || (*code >= 0xd800 && *code <= 0xdfff) ||
        (!braces && *code > 127 && most == 2))
        return refuse(parser, begin, "this is not a valid code point");
    return 0;
}

/* Reads a category such as \p{L} as a mask of atoms. */
static int read_category(struct parser *parser, uint32_t *mask, const char *begin) {
    static const struct {
        const char *name;
        uint32_t mask;
    } rows[] = {{"L", UNICODE_SET_L},
                {"Lu", UNICODE_SET(UNICODE_LU)},
                {"Ll", UNICODE_SET(UNICODE_LL)},
                {"Lt", UNICODE_SET(UNICODE_LT)},
                {"Lm", UNICODE_SET(UNICODE_LM)},
                {"Lo", UNICODE_SET(UNICODE_LO)},
                {"M", UNICODE_SET(UNICODE_M)},
                {"N", UNICODE_SET_N},
                {"Nd", UNICODE_SET(UNICODE_ND)},
                {"P", UNICODE_SET_P},
                {"S", UNICODE_SET_S}};
    const char *end = *parser->at == '{' ? strchr(parser->at, '}') : NULL;
    for (size_t i = 0; end && i < sizeof rows / sizeof *rows; i++) {
        const size_t length = strlen(rows[i].name);
        if ((size_t)(end - parser->at - 1) != length ||
            memcmp(parser->at + 1, rows[i].name, length) != 0)
            continue;
        *mask = begin[1] == 'P' ? UNICODE_ALL & ~rows[i].mask : rows[i].mask;
        parser->at = end + 1;
        return 0;
    }
    return refuse(parser, begin, "this class of characters is not supported");
}

/* Reads a character or a class; *mask is 0 for a character. */
static int read_character(struct parser *parser, uint32_t *code, uint32_t *mask) {
    static const char names[] = "nrtfv", values[] = "\n\r\t\f\v";
    const char *begin = parser->at, *name;
    *mask = 0;
    if (*begin != '\\') {
        const size_t count = utf8_character(begin, strlen(begin));
        if (count == 0) return refuse(parser, "", "this is not UTF-8");
        *code = utf8_code(begin, count);
        parser->at += count;
        return 0;
    }
    const char letter = begin[1];
    parser->at += letter ? 2 : 1;
    if (letter == 's' || letter == 'S') {
        const uint32_t space = UNICODE_SET(UNICODE_SPACE);
        *mask = letter == 's' ? space : UNICODE_ALL & ~space;
        return 0;
    }
    if (letter == 'p' || letter == 'P') return read_category(parser, mask, begin);
    if (letter == 'x' || letter == 'u') return read_hex(parser, code, begin);
    if (letter && (name = strchr(names, letter))) {
        *code = (uint8_t)values[name - names];
        return 0;
    }
    if (!letter || (uint8_t)letter >= 0x80 || strchr("0123456789", letter) ||
        (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z'))
        return refuse(parser, begin, "this escape is not supported");
    *code = (uint8_t)letter;
    return 0;
}

/* Adds the characters first to last; inside (?i:...) in both cases. */
static int add_characters(struct parser *parser, struct split_set *set, uint32_t first,
                          uint32_t last, const char *begin) {
    if (first > last) return refuse(parser, begin, "this range of characters is empty");
    if (parser->folds && last > 127)
        return refuse(parser, begin, "letters beyond ASCII in (?i:...) are not supported");
    bool has_room = parser->folds || split_set_add_range(set, first, last);
    for (; parser->folds && first <= last; first++) has_room = split_set_add_folded(set, first);
    return has_room ? 0 : refuse(parser, begin, "there are too many ranges");
}

/* Reads a member of [...]: a character, a range or a class. */
static int read_member(struct parser *parser, struct split_set *set) {
    const char *begin = parser->at;
    uint32_t first, last, mask;
    if (*begin == '[') return refuse(parser, begin, "a set within a set is not supported");
    if (starts(parser, "&&")) return refuse(parser, begin, "&& in a set is not supported");
    if (read_character(parser, &first, &mask)) return -1;
    const bool is_range = *parser->at == '-' && parser->at[1] != ']';
    if (mask && (is_range || parser->folds))
        return refuse(parser, begin, "a class of characters is not allowed here");
    if (mask) {
        split_set_add_atoms(set, parser->pattern->atoms, mask);
        return 0;
    }
    last = first;
    if (is_range) {
        parser->at++;
        if (*parser->at == '[' || read_character(parser, &last, &mask) || mask)
            return refuse(parser, begin, "this is not a range of characters");
    }
    return add_characters(parser, set, first, last, begin);
}

static int read_set(struct parser *parser, struct split_set *set) {
    const char *begin = parser->at++;
    const bool negated = *parser->at == '^';
    parser->at += negated;
    if (*parser->at == ']') return refuse(parser, begin, "this set is empty");
    if (negated && parser->folds)
        return refuse(parser, begin, "[^...] in (?i:...) is not supported");
    while (*parser->at && *parser->at != ']')
        if (read_member(parser, set)) return -1;
    if (!*parser->at) return refuse(parser, begin, "this set is not closed");
    parser->at++;
    if (negated) split_set_negate(set);
    return 0;
}

/* Refuses two letters that together fold to one character (ss to U+00DF). Sets of characters cannot
 * express that. */
static int check_fold(struct parser *parser, uint32_t code, const char *begin) {
    static const char *const pairs[] = {"ss", "st", "ff", "fi", "fl"};
    const char letter = code >= 'A' && code <= 'Z' ? (char)(code + 32) : (char)code;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (parser->previous == pairs[i][0] && letter == pairs[i][1])
            return refuse(parser, begin, "these letters in (?i:...) are not supported");
    parser->previous = letter;
    return 0;
}

static int read_one(struct parser *parser, struct split_set *set) {
    const char *begin = parser->at;
    uint32_t code = 0, mask;
    if (*begin == '[') {
        parser->previous = NO_LETTER;
        return read_set(parser, set);
    }
    if (read_character(parser, &code, &mask)) return -1;
    if (mask && parser->folds)
        return refuse(parser, begin, "a class of characters in (?i:...) is not supported");
    if (mask) {
        split_set_add_atoms(set, parser->pattern->atoms, mask);
        return 0;
    }
    if (parser->folds && check_fold(parser, code, begin)) return -1;
    return add_characters(parser, set, code, code, begin);
}

/* ---- quantifiers */

/* Reads {n}, {m,n} or {m,}. */
static int read_counts(struct parser *parser, struct split_node *node) {
    const char *begin = parser->at++;
    char *end;
    if (*parser->at < '0' || *parser->at > '9')
        return refuse(parser, begin, "this quantifier is not supported");
    unsigned long least = strtoul(parser->at, &end, 10), most = least;
    if (*end == ',' && end[1] == '}') {
        most = UINT32_MAX;
        end++;
    } else if (*end == ',' && end[1] >= '0' && end[1] <= '9') {
        most = strtoul(end + 1, &end, 10);
    }
    if (*end != '}' || least > REPEAT_MAX || most < least || most == 0 ||
        (most > REPEAT_MAX && most != UINT32_MAX))
        return refuse(parser, begin, "this quantifier is not supported");
    parser->at = end + 1;
    node->minimum = (uint32_t)least;
    node->maximum = (uint32_t)most;
    return 0;
}

static int read_quantifier(struct parser *parser, struct split_node *node) {
    const char *begin = parser->at;
    const bool counts = *begin == '{';
    if (!*begin || !strchr("?*+{", *begin)) return 0;
    if (counts) {
        if (read_counts(parser, node)) return -1;
    } else {
        parser->at++;
        node->minimum = *begin == '+';
        node->maximum = *begin == '?' ? 1 : UINT32_MAX;
    }
    const char next = *parser->at;
    /* Oniguruma reads {m,n}+ as a quantifier of a quantifier. */
    if (next == '+' && (!counts || parser->dialect == SPLIT_TIKTOKEN)) {
        node->possessive = true;
        parser->at++;
    } else if (next && strchr("?*+{", next)) {
        return refuse(parser, begin, "this quantifier is not supported");
    }
    return 0;
}

/* ---- sequences and alternatives */

static int read_choice(struct parser *parser, int *start, int join);

/* Reads a group up to its closing parenthesis. */
static int read_group(struct parser *parser, struct item *item) {
    static const char *const openings[] = {"(?:", "(?i:", "(?=", "(?!"};
    const char *begin = parser->at;
    const bool folds = parser->folds;
    int kind = -1, start;
    for (int i = 0; i < 4; i++)
        if (starts(parser, openings[i])) kind = i;
    if (kind < 0 && begin[1] == '?')
        return refuse(parser, begin, "this kind of group is not supported");
    if (parser->depth == DEPTH_MAX) return refuse(parser, begin, "groups are nested too deep");
    parser->at += kind < 0 ? 1 : strlen(openings[kind]);
    parser->folds = kind == 1 || (folds && kind < 2);
    parser->previous = NO_LETTER;
    const bool is_ahead = kind >= 2;
    item->first = add_node(parser, is_ahead ? SPLIT_AHEAD : SPLIT_JOIN);
    item->last = is_ahead ? item->first : add_node(parser, SPLIT_JOIN);
    parser->depth++;
    if (read_choice(parser, &start, is_ahead ? 0 : item->last)) return -1;
    parser->depth--;
    if (*parser->at != ')') return refuse(parser, begin, "this group is not closed");
    parser->at++;
    parser->folds = folds;
    parser->previous = NO_LETTER;
    struct split_node *node = node_at(parser, item->first);
    const bool is_optional = !is_ahead && *parser->at == '?';
    if (is_ahead || is_optional) arrput(node->branches, start);
    else node->next = start;
    node->negative = kind == 3;
    if (is_optional) {
        node->kind = SPLIT_CHOOSE;
        arrput(node->branches, item->last);
        parser->at++;
    }
    node->branch_count = (int)arrlen(node->branches);
    if (*parser->at && strchr("?*+{", *parser->at))
        return refuse(parser, begin, "a group with such a quantifier is not supported");
    return 0;
}

static int read_item(struct parser *parser, struct item *item) {
    const char *begin = parser->at;
    if (arrlen(parser->pattern->nodes) >= SPLIT_NODES_MAX)
        return refuse(parser, begin, "the pattern is too long");
    if (*begin == '(') return read_group(parser, item);
    if (*begin == '$' && parser->dialect == SPLIT_TIKTOKEN) {
        parser->at++;
        item->first = item->last = add_node(parser, SPLIT_END);
        return 0;
    }
    if (strchr(".^$", *begin)) return refuse(parser, begin, "this sign is not supported");
    if (strchr("?*+{", *begin)) return refuse(parser, begin, "there is nothing to repeat");
    item->first = item->last = add_node(parser, SPLIT_TAKE);
    struct split_node *node = node_at(parser, item->first);
    return read_one(parser, &node->set) || read_quantifier(parser, node) ? -1 : 0;
}

static int read_sequence(struct parser *parser, int *start, int join) {
    int last = -1;
    *start = join;
    parser->previous = NO_LETTER;
    while (*parser->at && *parser->at != '|' && *parser->at != ')') {
        struct item item = {0};
        if (read_item(parser, &item)) return -1;
        if (last < 0) *start = item.first;
        else node_at(parser, last)->next = item.first;
        last = item.last;
    }
    if (last >= 0) node_at(parser, last)->next = join;
    return 0;
}

static int read_choice(struct parser *parser, int *start, int join) {
    const char *begin = parser->at;
    const int choice = *start = add_node(parser, SPLIT_CHOOSE);
    for (;;) {
        int branch;
        if (read_sequence(parser, &branch, join)) return -1;
        struct split_node *node = node_at(parser, choice);
        arrput(node->branches, branch);
        if (++node->branch_count > SPLIT_BRANCHES_MAX)
            return refuse(parser, begin, "there are too many alternatives");
        if (*parser->at != '|') return 0;
        parser->at++;
    }
}

int split_parse(struct split_pattern *pattern, const char *text, enum split_dialect dialect,
                struct error *error) {
    struct parser parser = {
        .pattern = pattern, .dialect = dialect, .text = text, .at = text, .error = error};
    const int accept = add_node(&parser, SPLIT_ACCEPT);
    if (read_choice(&parser, &pattern->start, accept)) return -1;
    return *parser.at ? refuse(&parser, parser.at, "this parenthesis has no opening one") : 0;
}
