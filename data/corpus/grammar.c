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
    struct error *error;
    int variable_count;
    struct {
        const char *name; /* [length] */
        size_t length;
        int rule; /* the rule that the name is remembered from; -1 until it is known */
    } variables[GRAMMAR_VARIABLES_MAX];
};

static bool is_name(const char *name, size_t length, const char *known, size_t known_length) {
    return known_length == length && memcmp(known, name, length) == 0;
}

/* Returns the names of a rule's fields, or NULL. */
static const char *fields_of(const struct grammar_rule *rule) {
    const char *colon = strchr(rule->name, ':');
    return colon ? colon + 2 : NULL;
}

static int find_rule(const struct table *table, const char *name, size_t length) {
    for (int i = 0; i < table->count; i++)
        if (is_name(name, length, table->rules[i].name, strcspn(table->rules[i].name, ":")))
            return i;
    return -1;
}

/* Returns the index of a field and sets *count to the number of fields; -1 if there is no such
 * field. */
static int find_field(const char *fields, const char *name, size_t length, int *count) {
    int found = -1;
    *count = 0;
    for (size_t width; fields && *fields; fields += width + (fields[width] == ' ')) {
        width = strcspn(fields, " ");
        if (is_name(name, length, fields, width)) found = *count;
        ++*count;
    }
    return found;
}

/* Finds a variable, or adds it. Returns -1 if there are too many. */
static int find_variable(struct table *table, const char *name, size_t length) {
    int i = 0;
    for (; i < table->variable_count; i++)
        if (is_name(name, length, table->variables[i].name, table->variables[i].length)) return i;
    if (i == GRAMMAR_VARIABLES_MAX) return -1;
    table->variables[i].name = name;
    table->variables[i].length = length;
    table->variables[i].rule = -1;
    return table->variable_count++;
}

/* Parses the text between two braces. The field of an item is resolved later, since its variable
 * may be set by a rule that comes after. */
static int read_braces(struct table *table, const char *inside, size_t length,
                       struct grammar_item *item) {
    *item = (struct grammar_item){.kind = GRAMMAR_RULE, .is_capital = *inside == '^'};
    inside += item->is_capital;
    length -= item->is_capital;
    const char *dot = memchr(inside, '.', length), *colon = memchr(inside, ':', length);
    const char *after = dot ? dot : colon, *end = inside + length,
               *last = after ? after + 1 : inside;
    item->variable = after ? find_variable(table, inside, (size_t)(after - inside)) : -1;
    if (after && item->variable < 0)
        return fail(table->error, "grammar: too many names: \"{%.*s}\"", (int)length, inside);
    if (dot) {
        item->kind = GRAMMAR_FIELD;
        item->letters = last;
        item->length = (int)(end - last);
        return 0;
    }
    item->rule = find_rule(table, last, (size_t)(end - last));
    if (item->rule < 0)
        return fail(table->error, "grammar: no rule \"{%.*s}\"", (int)length, inside);
    if (!colon) return 0;
    int *rule = &table->variables[item->variable].rule;
    if (*rule >= 0 && *rule != item->rule)
        return fail(table->error, "grammar: \"{%.*s}\" is remembered from two rules", (int)length,
                    inside);
    *rule = item->rule;
    return 0;
}

static struct grammar_item letters_of(const char *letters, const char *end) {
    return (struct grammar_item){
        .letters = letters, .length = (int)(end - letters), .variable = -1};
}

static int read_fields(struct grammar_item **items, const struct table *table,
                       const struct grammar_rule *rule, const char *text, const char *end) {
    int fields;
    find_field(fields_of(rule), "", 0, &fields);
    for (const char *comma; text <= end; text = comma + 1) {
        comma = memchr(text, ',', (size_t)(end - text));
        if (!comma) comma = end;
        arrput(*items, letters_of(text, comma));
    }
    if ((int)arrlen(*items) == fields) return 0;
    return fail(table->error, "grammar: rule %s: an alternative does not have %d fields",
                rule->name, fields);
}

static int read_items(struct grammar_item **items, struct table *table,
                      const struct grammar_rule *rule, const char *text, const char *end) {
    while (text < end) {
        const char *brace = memchr(text, '{', (size_t)(end - text));
        if (!brace) brace = end;
        if (brace > text) arrput(*items, letters_of(text, brace));
        if (brace == end) break;
        text = memchr(brace, '}', (size_t)(end - brace));
        if (!text) return fail(table->error, "grammar: rule %s: no closing brace", rule->name);
        struct grammar_item item;
        if (read_braces(table, brace + 1, (size_t)(text++ - brace) - 1, &item)) return -1;
        arrput(*items, item);
    }
    return 0;
}

static int read_rule(struct grammar *grammar, struct table *table,
                     const struct grammar_rule *rule) {
    struct grammar_compiled_rule compiled = {.has_fields = fields_of(rule) != NULL};
    int weight = 1, status = 0;
    if (!*rule->alternatives) return fail(table->error, "grammar: rule %s is empty", rule->name);
    for (const char *text = rule->alternatives, *end; *text && !status;
         text = end + (*end == '|')) {
        const size_t digits = strspn(text, "0123456789");
        end = text + strcspn(text, "|");
        if (digits > 0 && text[digits] == ':') {
            weight = atoi(text);
            text += digits + 1;
        }
        struct grammar_item *items = NULL;
        status = compiled.has_fields ? read_fields(&items, table, rule, text, end)
                                     : read_items(&items, table, rule, text, end);
        compiled.weight += weight;
        arrput(compiled.alternatives, ((struct grammar_alternative){weight, items}));
    }
    arrput(grammar->rules, compiled);
    return status;
}

/* Resolves the field of an item of rule `index`, and checks the order of rules. */
static int resolve_item(const struct table *table, int index, struct grammar_item *item) {
    int fields;
    if (item->kind == GRAMMAR_RULE && item->rule <= index)
        return fail(table->error, "grammar: rule %s contains rule %s, which does not come after it",
                    table->rules[index].name, table->rules[item->rule].name);
    if (item->kind != GRAMMAR_FIELD) return 0;
    const int rule = item->rule = table->variables[item->variable].rule;
    item->field = rule < 0 ? -1
                           : find_field(fields_of(&table->rules[rule]), item->letters,
                                        (size_t)item->length, &fields);
    if (item->field >= 0) return 0;
    return fail(table->error, "grammar: rule %s: nothing is remembered with a field \"%.*s\"",
                table->rules[index].name, item->length, item->letters);
}

static int compile(struct grammar *grammar, struct table *table) {
    for (int i = 0; i < table->count; i++)
        if (read_rule(grammar, table, &table->rules[i])) return -1;
    for (int i = 0; i < table->count; i++)
        for (int j = 0; j < (int)arrlen(grammar->rules[i].alternatives); j++) {
            struct grammar_item *items = grammar->rules[i].alternatives[j].items;
            for (int k = 0; k < (int)arrlen(items); k++)
                if (resolve_item(table, i, &items[k])) return -1;
        }
    return 0;
}

int grammar_compile(struct grammar *grammar, const struct grammar_rule *rules, int count,
                    struct error *error) {
    assert(count > 0);
    *grammar = (struct grammar){0};
    if (compile(grammar, &(struct table){.rules = rules, .count = count, .error = error}) == 0)
        return 0;
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
