#include "data/corpus/grammar.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/random.h"

static int find_rule(const struct grammar_rule *rules, int count, const char *name, size_t length) {
    for (int i = 0; i < count; i++)
        if (strlen(rules[i].name) == length && memcmp(rules[i].name, name, length) == 0) return i;
    return -1;
}

static int find_variable(const struct grammar *grammar, const char *name, size_t length) {
    for (int i = 0; i < grammar->variable_count; i++) {
        const char *known = grammar->variable_names[i];
        if (strlen(known) == length && memcmp(known, name, length) == 0) return i;
    }
    return -1;
}

static int find_field(const char *fields, const char *name, size_t length) {
    int index = 0;
    while (fields && *fields) {
        size_t width = strcspn(fields, " ");
        if (width == length && memcmp(fields, name, length) == 0) return index;
        fields += width + strspn(fields + width, " ");
        index++;
    }
    return -1;
}

/* Enters a {name:rule}. All names are entered before any {name.field} is resolved, because a rule
 * may precede the one that remembers its names. */
static int enter_variable(struct grammar *grammar, const char *name, size_t length, int rule,
                          struct error *error) {
    int variable = find_variable(grammar, name, length);
    if (variable < 0) {
        if (grammar->variable_count == GRAMMAR_VARIABLES_MAX ||
            length >= sizeof grammar->variable_names[0])
            return fail(error, "grammar: too many names, or too long a name: \"%.*s\"", (int)length,
                        name);
        variable = grammar->variable_count++;
        memcpy(grammar->variable_names[variable], name, length);
        grammar->variable_rules[variable] = rule;
    }
    if (grammar->variable_rules[variable] != rule)
        return fail(error, "grammar: \"%.*s\" is remembered from two rules", (int)length, name);
    return 0;
}

/* Parses the text between two braces. */
static int read_braces(struct grammar *grammar, const struct grammar_rule *rules, int count,
                       const char *inside, size_t length, struct grammar_item *item,
                       struct error *error) {
    *item = (struct grammar_item){.variable = -1};
    if (length && *inside == '^') {
        item->is_capital = 1;
        inside++;
        length--;
    }
    const char *dot = memchr(inside, '.', length), *colon = memchr(inside, ':', length);
    if (dot) {
        size_t name_length = (size_t)(dot - inside);
        item->kind = GRAMMAR_FIELD;
        item->variable = find_variable(grammar, inside, name_length);
        if (item->variable < 0)
            return fail(error, "grammar: nothing is remembered as \"{%.*s}\"", (int)length, inside);
        const char *fields = rules[grammar->variable_rules[item->variable]].fields;
        item->field = find_field(fields, dot + 1, length - name_length - 1);
        if (item->field < 0)
            return fail(error, "grammar: no field \"{%.*s}\"", (int)length, inside);
        return 0;
    }
    const char *name = colon ? colon + 1 : inside;
    item->kind = GRAMMAR_RULE;
    item->rule = find_rule(rules, count, name, length - (size_t)(name - inside));
    if (item->rule < 0) return fail(error, "grammar: no rule \"{%.*s}\"", (int)length, inside);
    if (!colon) return 0;
    if (enter_variable(grammar, inside, (size_t)(colon - inside), item->rule, error)) return -1;
    item->variable = find_variable(grammar, inside, (size_t)(colon - inside));
    return 0;
}

static void append_letters(struct grammar_alternative *alternative, const char *letters,
                           size_t length) {
    struct grammar_item item = {.letters = letters, .length = (int)length, .variable = -1};
    arrput(alternative->items, item);
}

static int read_fields(struct grammar_alternative *alternative, const struct grammar_rule *rule,
                       const char *text, struct error *error) {
    const char *whole = text, *start = text;
    for (;; text++) {
        if (*text != '|' && *text) continue;
        append_letters(alternative, start, (size_t)(text - start));
        if (!*text) break;
        start = text + 1;
    }
    size_t expected = 1;
    for (const char *space = strchr(rule->fields, ' '); space; space = strchr(space + 1, ' '))
        expected++;
    if ((size_t)arrlen(alternative->items) != expected || expected > GRAMMAR_FIELDS_MAX)
        return fail(error, "grammar: rule %s: \"%s\" does not have %zu fields", rule->name, whole,
                    expected);
    return 0;
}

/* Reads an optional leading weight such as "3:". */
static const char *read_weight(const char *text, int *weight) {
    char *after = NULL;
    *weight = 1;
    if (!isdigit((unsigned char)*text)) return text;
    long value = strtol(text, &after, 10);
    if (*after != ':' || value < 1 || value > 1000000) return text;
    *weight = (int)value;
    return after + 1;
}

static int read_alternative(struct grammar *grammar, const struct grammar_rule *rules, int count,
                            int rule, const char *text, struct error *error) {
    struct grammar_compiled_rule *compiled = &grammar->rules[rule];
    struct grammar_alternative blank = {0};
    text = read_weight(text, &blank.weight);
    compiled->weight += blank.weight;
    arrput(compiled->alternatives, blank);
    struct grammar_alternative *alternative = &arrlast(compiled->alternatives);
    if (rules[rule].fields) return read_fields(alternative, &rules[rule], text, error);
    while (*text) {
        size_t plain = strcspn(text, "{");
        if (plain) append_letters(alternative, text, plain);
        text += plain;
        if (!*text) break;
        const char *end = strchr(text, '}');
        if (!end) return fail(error, "grammar: rule %s: no closing brace", rules[rule].name);
        struct grammar_item item;
        if (read_braces(grammar, rules, count, text + 1, (size_t)(end - text - 1), &item, error))
            return -1;
        arrput(alternative->items, item);
        text = end + 1;
    }
    return 0;
}

static int enter_all_variables(struct grammar *grammar, const struct grammar_rule *rules, int count,
                               struct error *error) {
    for (int rule = 0; rule < count; rule++) {
        if (rules[rule].fields) continue;
        for (int i = 0; rules[rule].alternatives[i]; i++) {
            const char *text = rules[rule].alternatives[i];
            while ((text = strchr(text, '{'))) {
                text += 1 + (text[1] == '^');
                size_t name = strcspn(text, ":.}");
                if (text[name] != ':') continue;
                size_t target = strcspn(text + name + 1, "}");
                int found = find_rule(rules, count, text + name + 1, target);
                if (found < 0)
                    return fail(error, "grammar: no rule \"%.*s\"", (int)target, text + name + 1);
                if (enter_variable(grammar, text, name, found, error)) return -1;
            }
        }
    }
    return 0;
}

/* Depth-first search for a cycle. state: 0 = unvisited, 1 = in progress, 2 = done. */
static int contains_itself(const struct grammar *grammar, int rule, char *state) {
    if (state[rule]) return state[rule] == 1;
    state[rule] = 1;
    const struct grammar_compiled_rule *compiled = &grammar->rules[rule];
    for (int i = 0; i < (int)arrlen(compiled->alternatives); i++) {
        const struct grammar_alternative *alternative = &compiled->alternatives[i];
        for (int j = 0; j < (int)arrlen(alternative->items); j++)
            if (alternative->items[j].kind == GRAMMAR_RULE &&
                contains_itself(grammar, alternative->items[j].rule, state))
                return 1;
    }
    state[rule] = 2;
    return 0;
}

static int compile(struct grammar *grammar, const struct grammar_rule *rules, int count,
                   struct error *error) {
    if (enter_all_variables(grammar, rules, count, error)) return -1;
    for (int rule = 0; rule < count; rule++) {
        struct grammar_compiled_rule blank = {.has_fields = rules[rule].fields != NULL};
        arrput(grammar->rules, blank);
        if (!rules[rule].alternatives[0])
            return fail(error, "grammar: rule %s is empty", rules[rule].name);
        for (int i = 0; rules[rule].alternatives[i]; i++)
            if (read_alternative(grammar, rules, count, rule, rules[rule].alternatives[i], error))
                return -1;
    }
    char *state = NULL;
    arrsetlen(state, (size_t)count);
    memset(state, 0, (size_t)count);
    int is_recursive = 0;
    for (int rule = 0; rule < count; rule++) is_recursive |= contains_itself(grammar, rule, state);
    arrfree(state);
    return is_recursive ? fail(error, "grammar: a rule contains itself") : 0;
}

int grammar_compile(struct grammar *grammar, const struct grammar_rule *rules, int count,
                    struct error *error) {
    assert(count > 0);
    memset(grammar, 0, sizeof *grammar);
    if (compile(grammar, rules, count, error) == 0) return 0;
    grammar_free(grammar);
    return -1;
}

void grammar_free(struct grammar *grammar) {
    for (int i = 0; i < (int)arrlen(grammar->rules); i++) {
        struct grammar_alternative *alternatives = grammar->rules[i].alternatives;
        for (int j = 0; j < (int)arrlen(alternatives); j++) arrfree(alternatives[j].items);
        arrfree(grammar->rules[i].alternatives);
    }
    arrfree(grammar->rules);
}

/* State of expanding one text: the next random number and the remembered choices. */
struct expansion {
    const struct grammar *grammar;
    struct grammar_text *text;
    uint64_t seed, number, counter;
    int remembered[GRAMMAR_VARIABLES_MAX]; /* -1: nothing yet */
};

static void emit(struct expansion *e, const struct grammar_item *letters) {
    if (letters->length == 0) return;
    char *place = arraddnptr(e->text->bytes, (size_t)letters->length);
    memcpy(place, letters->letters, (size_t)letters->length);
}

static int choose(struct expansion *e, const struct grammar_compiled_rule *rule) {
    if (arrlen(rule->alternatives) == 1) return 0;
    /* Integer arithmetic gives the same text on every machine. */
    uint64_t bits = random_bits(e->seed, e->number, e->counter++);
    int left = (int)((bits >> 32) * (uint64_t)rule->weight >> 32), chosen = 0;
    while (left >= rule->alternatives[chosen].weight) left -= rule->alternatives[chosen++].weight;
    e->text->bits -= log2((double)rule->alternatives[chosen].weight / rule->weight);
    return chosen;
}

static void expand_rule(struct expansion *e, const struct grammar_item *reference);

static void expand_item(struct expansion *e, const struct grammar_item *item) {
    size_t start = (size_t)arrlen(e->text->bytes);
    if (item->kind == GRAMMAR_LETTERS) {
        emit(e, item);
    } else if (item->kind == GRAMMAR_RULE) {
        expand_rule(e, item);
    } else {
        int chosen = e->remembered[item->variable];
        assert(chosen >= 0 && "a field is used before its name is remembered");
        int rule = e->grammar->variable_rules[item->variable];
        emit(e, &e->grammar->rules[rule].alternatives[chosen].items[item->field]);
    }
    if (item->is_capital && start < (size_t)arrlen(e->text->bytes))
        e->text->bytes[start] = (char)toupper((unsigned char)e->text->bytes[start]);
}

static void expand_rule(struct expansion *e, const struct grammar_item *reference) {
    const struct grammar_compiled_rule *rule = &e->grammar->rules[reference->rule];
    int chosen = choose(e, rule);
    if (reference->variable >= 0) e->remembered[reference->variable] = chosen;
    const struct grammar_item *items = rule->alternatives[chosen].items;
    int count = rule->has_fields ? 1 : (int)arrlen(items);
    for (int i = 0; i < count; i++) expand_item(e, &items[i]);
}

void grammar_expand(const struct grammar *grammar, uint64_t seed, uint64_t number,
                    struct grammar_text *text) {
    struct expansion e = {.grammar = grammar, .text = text, .seed = seed, .number = number};
    for (int i = 0; i < GRAMMAR_VARIABLES_MAX; i++) e.remembered[i] = -1;
    struct grammar_item start = {.kind = GRAMMAR_RULE, .rule = 0, .variable = -1};
    expand_rule(&e, &start);
}

static double mean_field_bytes(const struct grammar_compiled_rule *rule, int field) {
    double bytes = 0;
    for (int i = 0; i < (int)arrlen(rule->alternatives); i++)
        bytes += (double)rule->alternatives[i].weight * rule->alternatives[i].items[field].length;
    return bytes / rule->weight;
}

/* known[rule].bytes is negative until the rule has been measured. */
static struct grammar_measure measure_rule(const struct grammar *grammar, int index,
                                           struct grammar_measure *known) {
    if (known[index].bytes >= 0) return known[index];
    const struct grammar_compiled_rule *rule = &grammar->rules[index];
    struct grammar_measure sum = {0};
    for (int i = 0; i < (int)arrlen(rule->alternatives); i++) {
        const struct grammar_alternative *alternative = &rule->alternatives[i];
        double probability = (double)alternative->weight / rule->weight;
        int count = rule->has_fields ? 1 : (int)arrlen(alternative->items);
        sum.bits -= probability * log2(probability);
        for (int j = 0; j < count; j++) {
            const struct grammar_item *item = &alternative->items[j];
            struct grammar_measure part = {.bytes = item->length};
            if (item->kind == GRAMMAR_RULE) part = measure_rule(grammar, item->rule, known);
            if (item->kind == GRAMMAR_FIELD)
                part.bytes = mean_field_bytes(
                    &grammar->rules[grammar->variable_rules[item->variable]], item->field);
            sum.bits += probability * part.bits;
            sum.bytes += probability * part.bytes;
        }
    }
    return known[index] = sum;
}

struct grammar_measure grammar_expect(const struct grammar *grammar) {
    struct grammar_measure *known = NULL;
    arrsetlen(known, (size_t)arrlen(grammar->rules));
    for (int i = 0; i < (int)arrlen(grammar->rules); i++)
        known[i] = (struct grammar_measure){.bytes = -1};
    struct grammar_measure measure = measure_rule(grammar, 0, known);
    arrfree(known);
    return measure;
}
