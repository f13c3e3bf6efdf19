/* model/config: the resolved dump, the schema, the help, the reference, and the shipped files. */
#include "test/model/config/config_fixture.h"

#include "data/util/random.h"
#include "model/config/config_check.h"
#include "model/config/config_keys.h"
#include "model/config/config_print.h"
#include "model/io/config_file.h"

#include <cjson/cJSON.h>
#include <math.h>

Test(config_print, dump_loads_to_the_same_values) {
    static const char *const texts[] = {
        "{}",
        "{\"precision\": \"bf16\", \"model\": {\"preset\": \"gpt2-large\"}}",
        "{\"precision\": \"fp32\", \"loss_scale\": {\"init_scale\": 3}}",
        "{\"name\": \"q\\\"\\\\\\u20ac\\ud83d\\ude00\", \"seed\": 9007199254740991,\n"
        " \"sample\": {\"prompt\": \"tab\\t line\\n return\\r bell\\u0007 del\\u007f / \"},\n"
        " \"autocast\": {\"float32\": [\"lm_head\", \"qkv\", \"gelu\", \"mlp_fc\", \"attention\",\n"
        " \"mlp_projection\", \"attention_projection\"]},\n"
        " \"data\": {\"train\": \"x\"}, \"optimizer\": {\"beta1\": 0, \"min_lr\": -0.0}}",
        "{\"train\": {\"objective\": \"dpo\"}}",
        "{\"train\": {\"objective\": \"kto\"}}",
    };
    struct fixture fixture;
    struct config first, second;
    struct notes notes;
    fixture_open(&fixture);
    for (size_t i = 0; i < COUNT(texts); i++) {
        load_well(&fixture, &first, texts[i], NULL);
        char *text = dump(&first);
        load_well(&fixture, &second, text, NULL);
        config_warnings(&first, notes_open(&notes));
        const int count = notes_close(&notes);
        config_warnings(&second, notes_open(&notes));
        cr_assert_eq(notes_close(&notes), count, "%s", notes.text);
        memset(first.sources, 0, sizeof first.sources);
        memset(second.sources, 0, sizeof second.sources);
        cr_assert_eq(memcmp(&first, &second, sizeof first), 0, "%s", text);
        free(text);
    }
    fixture_close(&fixture);
}

Test(config_print, doubles_keep_every_bit) {
    for (uint64_t i = 0; i < 20000; i++) {
        char text[CONFIG_NUMBER_MAX];
        uint64_t bits = random_bits(7, 0, i);
        double value;
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value)) continue;
        cr_assert_eq(strtod(config_format_number(text, value), NULL), value, "%s", text);
        cr_assert_lt(strlen(text), (size_t)CONFIG_NUMBER_MAX);
    }
    char text[CONFIG_NUMBER_MAX];
    cr_assert_str_eq(config_format_number(text, 0.1), "0.1");
    cr_assert_str_eq(config_format_number(text, 1000000), "1000000");
    cr_assert_str_eq(config_format_number(text, 1e-5), "1e-05");
}

/* A small validator for the subset of JSON Schema that we use. */
static bool schema_allows(const cJSON *schema, const cJSON *value) {
    const char *type = cJSON_GetStringValue(cJSON_GetObjectItem(schema, "type"));
    double number = cJSON_IsNumber(value) ? value->valuedouble : 0;
    const cJSON *item, *words = cJSON_GetObjectItem(schema, "enum");
    const cJSON *kinds = cJSON_GetObjectItem(schema, "anyOf"), *kind;
    bool any = !kinds;
    cJSON_ArrayForEach(kind, kinds) any = any || schema_allows(kind, value);
    if (!any || kinds) return any;
    if (type && strcmp(type, "string") == 0 && !cJSON_IsString(value)) return false;
    if (type && strcmp(type, "number") == 0 && !cJSON_IsNumber(value)) return false;
    if (type && strcmp(type, "boolean") == 0 && !cJSON_IsBool(value)) return false;
    if (type && strcmp(type, "array") == 0 && !cJSON_IsArray(value)) return false;
    if (type && strcmp(type, "object") == 0 && !cJSON_IsObject(value)) return false;
    if (type && strcmp(type, "integer") == 0 && (!cJSON_IsNumber(value) || number != floor(number)))
        return false;
    cJSON_ArrayForEach(item, schema) {
        double limit = cJSON_IsNumber(item) ? item->valuedouble : 0;
        if (strcmp(item->string, "minimum") == 0 && number < limit) return false;
        if (strcmp(item->string, "maximum") == 0 && number > limit) return false;
        if (strcmp(item->string, "exclusiveMinimum") == 0 && number <= limit) return false;
        if (strcmp(item->string, "exclusiveMaximum") == 0 && number >= limit) return false;
        if (strcmp(item->string, "minLength") == 0 && (double)strlen(value->valuestring) < limit)
            return false;
        if (strcmp(item->string, "maxLength") == 0 && (double)strlen(value->valuestring) > limit)
            return false;
    }
    bool known = !words;
    cJSON_ArrayForEach(item, words) known = known || cJSON_Compare(item, value, true);
    if (cJSON_IsArray(value)) {
        cJSON_ArrayForEach(item, value) {
            if (!schema_allows(cJSON_GetObjectItem(schema, "items"), item)) return false;
            for (const cJSON *other = item->next; other; other = other->next)
                if (cJSON_Compare(item, other, true)) return false;
        }
    }
    if (cJSON_IsObject(value)) {
        cJSON_ArrayForEach(item, value) {
            const cJSON *properties = cJSON_GetObjectItem(schema, "properties");
            const cJSON *property = cJSON_GetObjectItemCaseSensitive(properties, item->string);
            if (!property || !schema_allows(property, item)) return false;
        }
    }
    return known;
}

/* Checks one value of one key both ways, without the rules between keys. */
static void expect_agreement(const cJSON *schema, const struct config_option *option,
                             const char *value) {
    char text[512];
    struct error error = {0};
    const char *dot = strchr(option->key, '.');
    snprintf(text, sizeof text, dot ? "{\"%.*s\": {\"%s\": %s}}" : "{\"%.*s%s\": %s}",
             dot ? (int)(dot - option->key) : 0, option->key, config_option_name(option), value);
    struct config_origins origins = {.path = "text"};
    struct config config;
    config_defaults(&config);
    cJSON *json = cJSON_Parse(text);
    cr_assert_not_null(json, "%s", text);
    bool accepted = config_read_text(&config, &origins, text, strlen(text), &error) == 0;
    cr_expect_eq(accepted, schema_allows(schema, json), "the schema disagrees on %s %s", text,
                 error.text);
    cJSON_Delete(json);
}

Test(config_print, schema_and_parser_agree_on_every_key) {
    static const char *const values[] = {
        "0",
        "1",
        "-1",
        "1.5",
        "0.5",
        "1e-9",
        "65536",
        "65537",
        "1e6",
        "\"\"",
        "\"x\"",
        "\"auto\"",
        "\"on\"",
        "\"true\"",
        "\"float32\"",
        "\"gelu\"",
        "true",
        "null",
        "[]",
        "{}",
        "1e300",
        "[\"x\"]",
        "[\"gelu\"]",
        "[\"gelu\", \"gelu\"]",
        "[\"gelu\", \"qkv\"]",
        "[1]",
        "\"gpt2\"",
    };
    char *text = printed(config_print_schema);
    cJSON *schema = cJSON_Parse(text);
    cr_assert_not_null(schema);
    for (int i = 0; i < config_option_count; i++) {
        const struct config_option *option = &config_options[i];

        for (size_t v = 0; v < COUNT(values); v++) expect_agreement(schema, option, values[v]);
        if (option->type != CONFIG_INTEGER && option->type != CONFIG_NUMBER) continue;
        const double limits[] = {option->minimum, option->maximum};
        for (int side = 0; side < 2; side++)
            for (int step = -1; step <= 1; step++) {
                char number[CONFIG_NUMBER_MAX];
                double by = option->type == CONFIG_INTEGER ? 1 : fabs(limits[side]) / 1e6;
                expect_agreement(schema, option,
                                 config_format_number(number, limits[side] + step * by));
            }
    }
    cJSON_Delete(schema);
    free(text);
}

Test(config_print, schema_file_is_the_printed_schema) {
    char *expected = printed(config_print_schema), *found = read_whole("configs/schema.json");
    cr_assert_str_eq(found, expected, "configs/schema.json is out of date: generate it again");
    free(expected);
    free(found);
}

Test(config_print, shipped_configs_load) {
    static const char *const names[] = {"quickstart", "fp32",      "fp16",
                                        "bf16",       "gpt2-124m", "gpt2-1.5b"};
    char *schema_text = printed(config_print_schema);
    cJSON *schema = cJSON_Parse(schema_text);
    for (size_t i = 0; i < COUNT(names); i++) {
        char path[128];
        struct notes notes;
        struct error error = {0};
        struct config config;
        snprintf(path, sizeof path, "configs/%s.json", names[i]);
        cr_assert_eq(config_load(&config, path, NULL, 0, &error), 0, "%s", error.text);
        cr_assert_str_eq(config.name, names[i]);
        notes_open(&notes);
        config_warnings(&config, notes.out);
        config_dimension_notes(&config, notes.out);
        cr_assert_eq(notes_close(&notes), 0, "%s: %s", path, notes.text);
        char *text = read_whole(path), *resolved = dump(&config);
        cJSON *json = cJSON_Parse(text), *full = cJSON_Parse(resolved);
        cr_assert(schema_allows(schema, json), "%s against the schema", path);
        cr_assert(schema_allows(schema, full), "the dump of %s against the schema", path);
        cr_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(json, "$schema")),
                         "./schema.json");
        cJSON_Delete(json);
        cJSON_Delete(full);
        free(text);
        free(resolved);
    }
    cJSON_Delete(schema);
    free(schema_text);
}

Test(config_print, the_three_precisions_differ_in_name_and_precision_only) {
    static const char *const names[] = {"fp32", "fp16", "bf16"};
    cJSON *trees[3];
    for (int i = 0; i < 3; i++) {
        char path[64];
        snprintf(path, sizeof path, "configs/%s.json", names[i]);
        char *text = read_whole(path);
        trees[i] = cJSON_Parse(text);
        free(text);
        cr_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(trees[i], "name")), names[i]);
        cr_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(trees[i], "precision")),
                         names[i]);
        cJSON_DeleteItemFromObject(trees[i], "name");
        cJSON_DeleteItemFromObject(trees[i], "precision");
    }
    cr_assert(cJSON_Compare(trees[0], trees[1], true));
    cr_assert(cJSON_Compare(trees[0], trees[2], true));
    for (int i = 0; i < 3; i++) cJSON_Delete(trees[i]);
}

static void print_all_help(FILE *out) {
    config_print_help(out, NULL);
}

Test(config_print, help_and_reference_name_every_key) {
    char *help = printed(print_all_help), *reference = printed(config_print_reference);
    for (int i = 0; i < config_option_count; i++) {
        char line[128];
        snprintf(line, sizeof line, "  %s\n", config_options[i].key);
        cr_assert_not_null(strstr(help, line), "%s", line);
        snprintf(line, sizeof line, "| `%s` | ", config_options[i].key);
        cr_assert_not_null(strstr(reference, line), "%s", line);
    }
    for (const char *line = help; *line; line += strcspn(line, "\n") + 1)
        cr_assert_leq(strcspn(line, "\n"), 80u, "%.100s", line);
    char *others = strstr(reference, "\n## Words of other tools");
    cr_assert_not_null(others);
    cr_expect_not_null(strstr(others, "\n| `train.recompute` | `gradient_checkpointing` `"));
    *others = '\0';
    for (const char *row = strstr(reference, "\n| `"); row; row = strstr(row + 1, "\n| `")) {
        int bars = 0;
        for (const char *c = row + 1; *c != '\n'; c++) bars += *c == '|';
        cr_assert_eq(bars, 5, "%.200s", row + 1);
    }
    free(help);
    free(reference);
}
