#include "data/corpus/grammar.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/random.h"

/* The table that is compiled, and the names that texts remember. */
struct table {
    const struct grammar_rule *rules;
    int count;
    struct {
        const char *name; /* [length] */
        size_t length;
        int rule; /* the rule that the name is remembered from; -1 until it is known */
    } variables[GRAMMAR_VARIABLES_MAX];
};

static bool is_name(const char *name, size_t length, const char *known, size_t known_length) {
    return known_length == length && memcmp(known, name, length) == 0;
}

/* Returns the names of a rule's fields, separated by spaces; "" if it has none. */
static const char *fields_of(const struct grammar_rule *rule) {
    const char *colon = strchr(rule->name, ':');
    return colon ? colon + 2 : "";
}

static int find_rule(const struct table *table, const char *name, size_t length) {
    int i = 0;
    while (i < table->count &&
           !is_name(name, length, table->rules[i].name, strcspn(table->rules[i].name, ":")))
        i++;
    assert(i < table->count && "a rule is missing");
    return i;
}

/* Returns the index of a field. */
static int find_field(const char *fields, const char *name, size_t length) {
    int i = 0;
    for (size_t width; !is_name(name, length, fields, width = strcspn(fields, " ")); i++) {
        assert(fields[width] == ' ' && "a field is missing");
        fields += width + 1;
    }
    return i;
}

static int field_count(const char *fields) {
    int count = *fields != '\0';
    for (; *fields; fields++) count += *fields == ' ';
    return count;
}

/* Finds a variable, or adds it. */
static int find_variable(struct table *table, const char *name, size_t length) {
    int i = 0;
    for (; i < GRAMMAR_VARIABLES_MAX && table->variables[i].name; i++)
        if (is_name(name, length, table->variables[i].name, table->variables[i].length)) return i;
    assert(i < GRAMMAR_VARIABLES_MAX && "too many names");
    table->variables[i].name = name;
    table->variables[i].length = length;
    table->variables[i].rule = -1;
    return i;
}

static struct grammar_item letters_of(const char *letters, size_t length) {
    return (struct grammar_item){.letters = letters, .length = (int)length, .variable = -1};
}

/* Parses the text between two braces. The field of an item is resolved later, since its variable
 * may be set by a rule that comes after. */
static struct grammar_item read_braces(struct table *table, const char *text, const char *end) {
    const bool is_capital = *text == '^';
    const char *name = text + is_capital, *mark = name + strcspn(name, ".:}");
    const char *after = *mark == '}' ? name : mark + 1;
    struct grammar_item item = letters_of(after, (size_t)(end - after));
    item.kind = *mark == '.' ? GRAMMAR_FIELD : GRAMMAR_RULE;
    item.is_capital = is_capital;
    if (*mark != '}') item.variable = find_variable(table, name, (size_t)(mark - name));
    if (item.kind == GRAMMAR_RULE) item.rule = find_rule(table, after, (size_t)(end - after));
    if (*mark == ':') {
        int *rule = &table->variables[item.variable].rule;
        assert((*rule < 0 || *rule == item.rule) && "a name is remembered from two rules");
        *rule = item.rule;
    }
    return item;
}

/* Parses an alternative: its fields, or letters and braces in turn. */
static struct grammar_item *read_items(struct table *table, bool has_fields, const char *text,
                                       const char *end) {
    struct grammar_item *items = NULL;
    for (const char *next; text < end; text = next) {
        size_t length = strcspn(text, has_fields ? ",|" : "{|");
        next = text + length + has_fields;
        if (length > 0 || has_fields) arrput(items, letters_of(text, length));
        if (has_fields || next == end) continue;
        const char *close = strchr(next, '}');
        assert(close && "a brace is not closed");
        arrput(items, read_braces(table, next + 1, close));
        next = close + 1;
    }
    return items;
}

static struct grammar_compiled_rule read_rule(struct table *table,
                                              const struct grammar_rule *rule) {
    const int fields = field_count(fields_of(rule));
    struct grammar_compiled_rule compiled = {.has_fields = fields > 0};
    int weight = 1;
    assert(*rule->alternatives && "a rule is empty");
    for (const char *text = rule->alternatives, *end; *text; text = end + (*end == '|')) {
        const size_t digits = strspn(text, "0123456789");
        end = text + strcspn(text, "|");
        if (digits > 0 && text[digits] == ':') {
            weight = atoi(text);
            text += digits + 1;
        }
        const struct grammar_alternative alternative = {
            weight, read_items(table, compiled.has_fields, text, end)};
        assert((fields == 0 || fields == (int)arrlen(alternative.items)) && "a field is missing");
        compiled.weight += weight;
        arrput(compiled.alternatives, alternative);
    }
    return compiled;
}

/* Resolves the fields of rule `index`, and checks the order of rules. */
static void resolve_rule(const struct table *table, const struct grammar *grammar, int index) {
    for (int i = 0; i < (int)arrlen(grammar->rules[index].alternatives); i++) {
        struct grammar_item *items = grammar->rules[index].alternatives[i].items;
        for (int j = 0; j < (int)arrlen(items); j++) {
            struct grammar_item *item = &items[j];
            assert((item->kind != GRAMMAR_RULE || item->rule > index) &&
                   "a rule contains one that does not come after it");
            if (item->kind != GRAMMAR_FIELD) continue;
            item->rule = table->variables[item->variable].rule;
            assert(item->rule >= 0 && "a name is remembered nowhere");
            item->field = find_field(fields_of(&table->rules[item->rule]), item->letters,
                                     (size_t)item->length);
        }
    }
}

struct grammar grammar_compile(const struct grammar_rule *rules, int count) {
    struct grammar grammar = {0};
    struct table table = {.rules = rules, .count = count};
    for (int i = 0; i < count; i++) arrput(grammar.rules, read_rule(&table, &rules[i]));
    for (int i = 0; i < count; i++) resolve_rule(&table, &grammar, i);
    return grammar;
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
    const size_t length = (size_t)letters->length;
    memcpy(arraddnptr(e->text->bytes, length), letters->letters, length);
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
        emit(e, &e->grammar->rules[item->rule].alternatives[chosen].items[item->field]);
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

/* known: the measures of all rules after this one. */
static struct grammar_measure measure_rule(const struct grammar *grammar,
                                           const struct grammar_compiled_rule *rule,
                                           const struct grammar_measure *known) {
    struct grammar_measure sum = {0};
    for (int i = 0; i < (int)arrlen(rule->alternatives); i++) {
        const struct grammar_alternative *alternative = &rule->alternatives[i];
        double probability = (double)alternative->weight / rule->weight;
        int count = rule->has_fields ? 1 : (int)arrlen(alternative->items);
        sum.bits -= probability * log2(probability);
        for (int j = 0; j < count; j++) {
            const struct grammar_item *item = &alternative->items[j];
            struct grammar_measure part = {.bytes = item->length};
            if (item->kind == GRAMMAR_RULE) part = known[item->rule];
            if (item->kind == GRAMMAR_FIELD)
                part.bytes = mean_field_bytes(&grammar->rules[item->rule], item->field);
            sum.bits += probability * part.bits;
            sum.bytes += probability * part.bytes;
        }
    }
    return sum;
}

struct grammar_measure grammar_expect(const struct grammar *grammar) {
    struct grammar_measure *known = NULL;
    arrsetlen(known, arrlenu(grammar->rules));
    for (int i = (int)arrlen(grammar->rules) - 1; i >= 0; i--)
        known[i] = measure_rule(grammar, &grammar->rules[i], known);
    struct grammar_measure measure = known[0];
    arrfree(known);
    return measure;
}
