#include "model/io/adapter_targets.h"

#include <ctype.h>
#include <regex.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include <cjson/cJSON.h>

#include "model/architecture/adapters.h"

enum {
    MODULE_MAX = 128,
    EXPRESSION_MAX = 8192, /* bytes of a translated expression */
    REPEATS_MAX = 1000,    /* product of all {m,n}, which regcomp expands in memory */
};

/* A regular expression of Python while it is translated into a POSIX extended one. */
struct translation {
    const char *from;
    char *to;
    size_t length;
    int repeats;
};

static bool append(struct translation *t, const char *text, size_t count) {
    if (t->length + count + sizeof ")$" > EXPRESSION_MAX) return false;
    memcpy(t->to + t->length, text, count);
    t->length += count;
    return true;
}

static bool append_text(struct translation *t, const char *text) {
    return append(t, text, strlen(text));
}

/* Translates \d, \w and escaped punctuation; in a class, without the brackets around it. */
static bool translate_escape(struct translation *t, bool in_class) {
    char c = *t->from++, literal[] = {'\\', c};
    if (c == 'd') return append_text(t, in_class ? "0-9" : "[0-9]");
    if (c == 'w') return append_text(t, in_class ? "0-9A-Za-z_" : "[0-9A-Za-z_]");
    if (!ispunct((unsigned char)c)) return false;
    if (in_class) return !strchr("]^-[\\", c) && append(t, &c, 1);
    return strchr(".[]()*+?{}|^$\\", c) ? append(t, literal, 2) : append(t, &c, 1);
}

static bool translate_class(struct translation *t) {
    if (!append(t, "[", 1)) return false;
    if (*t->from == '^' && !append(t, t->from++, 1)) return false;
    if (*t->from == ']' && !append(t, t->from++, 1)) return false;
    while (*t->from && *t->from != ']') {
        if (*t->from == '[') return false; /* POSIX has classes of its own there */
        bool escaped = *t->from == '\\';
        t->from += escaped;
        if (!(escaped ? translate_escape(t, true) : append(t, t->from++, 1))) return false;
    }
    return *t->from && append(t, t->from++, 1);
}

/* Translates {m}, {m,} or {m,n}. */
static bool translate_repeats(struct translation *t) {
    int least = -1, most, end = 0;
    const char *begin = t->from;
    size_t length = strspn(begin, "0123456789,");
    if (begin[length] != '}' || length > sizeof "999,999" - 1) return false;
    if (sscanf(begin, "%d%n", &least, &end) != 1) return false;
    most = least;
    if (begin[end] == ',' && sscanf(begin + end + 1, "%d", &most) != 1) most = least + 1;
    t->repeats *= most > 1 ? most : 1;
    t->from += length + 1;
    return t->repeats <= REPEATS_MAX && append(t, "{", 1) && append(t, begin, length + 1);
}

/* Translates the part of an expression that follows. What matches as a whole does not depend on
 * whether repetitions are lazy or groups are captured. */
static bool translate_part(struct translation *t) {
    char c = *t->from++;
    if (c == '\\') return translate_escape(t, false);
    if (c == '[') return translate_class(t);
    if (c == '(') {
        if (t->from[0] == '?' && t->from[1] == ':') t->from += 2;
        return *t->from != '?' && *t->from != '*' && append(t, "(", 1);
    }
    if (!strchr("*+?{", c)) return append(t, &c, 1);
    if (!(c == '{' ? translate_repeats(t) : append(t, &c, 1))) return false;
    if (*t->from == '?') t->from++;
    return !*t->from || !strchr("*+?{", *t->from);
}

/* Compiles a regular expression of Python that must match a whole name. False if it cannot. */
static bool compile(regex_t *regex, const char *pattern) {
    char text[EXPRESSION_MAX];
    struct translation t = {.from = pattern, .to = text, .repeats = 1};
    bool done = append_text(&t, "^(");
    while (done && *t.from) done = translate_part(&t);
    if (!done) return false;
    memcpy(text + t.length, ")$", sizeof ")$");
    return regcomp(regex, text, REG_EXTENDED | REG_NOSUB) == 0;
}

/* regex: compiled from `modules`, or NULL for a list. */
static bool selects(const cJSON *modules, const regex_t *regex, const char *module) {
    const cJSON *name;
    if (regex) return regexec(regex, module, 0, NULL, 0) == 0;
    cJSON_ArrayForEach(name, modules) {
        size_t length = strlen(name->valuestring), whole = strlen(module);
        if (length > whole || strcmp(module + whole - length, name->valuestring) != 0) continue;
        if (length == whole || module[whole - length - 1] == '.') return true;
    }
    return false;
}

/* Sets the target's bit if it is selected in all layers that have it. Fails if it is in some. */
static int match_target(unsigned *targets, enum adapter_target target, const cJSON *modules,
                        const regex_t *regex, const struct model_shape *shape,
                        struct error *error) {
    char module[MODULE_MAX];
    bool first = false, begun = false;
    for (int64_t layer = 0; layer < shape->n_layer; layer++) {
        struct model_shape own = shape_of_layer(shape, layer);
        own.adapter_targets = 1u << target;
        if (!shape_has_target(&own, target)) continue;
        snprintf(module, sizeof module,
                 shape->llama_names ? "model.layers.%d.%s" : "transformer.h.%d.%s", (int)layer,
                 adapter_target_layer(shape, target));
        bool selected = selects(modules, regex, module);
        if (!begun) first = selected, begun = true;
        if (selected != first)
            return fail(error, "selects %.60s in some layers only (%s layer %d)",
                        adapter_target_layer(shape, target), selected ? "from" : "not in",
                        (int)layer);
    }
    if (first) *targets |= 1u << target;
    return 0;
}

static int match_all(unsigned *targets, const cJSON *modules, const regex_t *regex,
                     const struct model_shape *shape, struct error *error) {
    static const char *const others[2][3] = {
        {"lm_head", "transformer.wte", "transformer.wpe"},
        {"lm_head", "model.embed_tokens", "model.norm"},
    };
    const unsigned all = adapter_targets_named(shape, "all-linear");
    *targets = 0;
    for (enum adapter_target i = 0; i < ADAPTER_TARGET_COUNT; i++)
        if (all >> i & 1 && match_target(targets, i, modules, regex, shape, error)) return -1;
    for (int i = 0; i < 3; i++)
        if (selects(modules, regex, others[shape->llama_names][i]))
            return fail(error, "selects %s, which has no adapter here",
                        others[shape->llama_names][i]);
    return *targets ? 0 : fail(error, "selects no linear layer of this model");
}

int adapter_targets_match(unsigned *targets, const cJSON *modules, const struct model_shape *shape,
                          struct error *error) {
    const cJSON *name;
    regex_t regex;
    if (cJSON_IsString(modules) && strcasecmp(modules->valuestring, "all-linear") == 0) {
        *targets = adapter_targets_named(shape, "all-linear");
        return 0;
    }
    if (cJSON_IsString(modules)) {
        if (!compile(&regex, modules->valuestring))
            return fail(error, "is a regular expression with a construct that is not supported");
        int status = match_all(targets, modules, &regex, shape, error);
        regfree(&regex);
        return status;
    }
    if (!cJSON_IsArray(modules)) return fail(error, "is neither a list nor a string");
    cJSON_ArrayForEach(name, modules) {
        if (!cJSON_IsString(name)) return fail(error, "has an entry that is no name");
    }
    return match_all(targets, modules, NULL, shape, error);
}
