#include "model/config/config_print.h"

#include <inttypes.h>
#include <string.h>

#include "data/util/json_escape.h"
#include "data/util/printed.h"
#include "model/config/config_keys.h"

static void print_words(FILE *out, const char *const *words, int count) {
    fputc('[', out);
    for (int i = 0; i < count; i++) {
        if (i) fputs(", ", out);
        json_print_string(out, words[i]);
    }
    fputc(']', out);
}

static void print_number(FILE *out, double value) {
    char text[CONFIG_NUMBER_MAX];
    fputs(config_format_number(text, value), out);
}

void config_print_value(FILE *out, const struct config *config,
                        const struct config_option *option) {
    const char *field = (const char *)config + option->offset;
    struct config_words list;
    unsigned word;
    int64_t whole;
    double number;
    switch (option->type) {
    case CONFIG_STRING: json_print_string(out, field); break;
    case CONFIG_ENUM:
        memcpy(&word, field, sizeof word);
        json_print_string(out, option->words[word]);
        break;
    case CONFIG_INTEGER:
        memcpy(&whole, field, sizeof whole);
        fprintf(out, "%" PRId64, whole);
        break;
    case CONFIG_NUMBER:
        memcpy(&number, field, sizeof number);
        print_number(out, number);
        break;
    case CONFIG_BOOLEAN: fputs(*(const bool *)field ? "true" : "false", out); break;
    case CONFIG_LIST:
        memcpy(&list, field, sizeof list);
        print_words(out, list.items, list.count);
        break;
    }
}

/* True for a block of another precision that was not given. */
static bool left_out(const struct config *config, int block) {
    bool scaled =
        config->precision == CONFIG_PRECISION_FP16 || config->precision == CONFIG_PRECISION_AUTO;
    bool rounded = config->precision == CONFIG_PRECISION_FP8;
    return (block == config_block_index("loss_scale", 10) && !scaled &&
            !config_given(config, "loss_scale")) ||
           (block == config_block_index("fp8", 3) && !rounded && !config_given(config, "fp8"));
}

void config_print_json(FILE *out, const struct config *config) {
    int open = -1;
    fputs("{", out);
    for (int i = 0; i < config_option_count; i++) {
        const struct config_option *option = &config_options[i];
        int block = config_option_block(option);
        if (block >= 0 && left_out(config, block)) continue;
        if (block != open) {
            if (open >= 0) fputs("\n  }", out);
            fprintf(out, ",\n  \"%s\": {", config_blocks[block].name);
        } else if (i > 0) {
            fputc(',', out);
        }
        fprintf(out, "\n%*s\"%s\": ", block < 0 ? 2 : 4, "", config_option_name(option));
        config_print_value(out, config, option);
        open = block;
    }
    fputs("\n  }\n}\n", out);
}

char *config_json_text(const struct config *config, size_t *size) {
    struct printed printed;
    if (printed_open(&printed)) return NULL;
    config_print_json(printed.out, config);
    if (printed_close(&printed)) return NULL;
    if (size) *size = printed.size;
    return printed.text;
}

/* Prints the default as JSON. */
static void print_default(FILE *out, const struct config_option *option) {
    struct config config;
    config_defaults(&config);
    config_print_value(out, &config, option);
}

/* Writes a default as text. The rule of a computed default follows it, or replaces an empty
 * text. */
static void describe_default(const struct config_option *option, char *text, size_t size) {
    FILE *out = fmemopen(text, size, "w");
    text[0] = '\0';
    if (!out) return;
    print_default(out, option);
    fclose(out);
    if (!option->computed) return;
    size_t length = strcmp(text, "\"\"") == 0 ? 0 : strlen(text);
    snprintf(text + length, size - length, "%s%s", length ? ", " : "", option->computed);
}

/* Prints the constraints of a property's values. */
static void print_constraints(FILE *out, const struct config_option *option, int indent) {
    if (option->type == CONFIG_STRING) {
        if (option->minimum > 0)
            fprintf(out, "%*s\"minLength\": %.0f,\n", indent, "", option->minimum);
        fprintf(out, "%*s\"maxLength\": %.0f,\n", indent, "", option->maximum);
    } else if (option->type == CONFIG_ENUM) {
        fprintf(out, "%*s\"enum\": ", indent, "");
        print_words(out, option->words, config_word_count(option));
        fputs(",\n", out);
    } else if (option->type == CONFIG_LIST) {
        fprintf(out, "%*s\"items\": {\"enum\": ", indent, "");
        print_words(out, option->words, config_word_count(option));
        fprintf(out, "},\n%*s\"uniqueItems\": true,\n", indent, "");
    } else if (option->type != CONFIG_BOOLEAN) {
        fprintf(out, "%*s\"minimum\": ", indent, "");
        print_number(out, option->minimum);
        fprintf(out, ",\n%*s\"%s\": ", indent, "",
                option->below_maximum ? "exclusiveMaximum" : "maximum");
        print_number(out, option->maximum);
        fputs(",\n", out);
    }
}

/* Prints one property of the schema, indented by `indent` spaces, without a final line break. */
static void print_property(FILE *out, const struct config_option *option, int indent) {
    static const char *const types[] = {
        [CONFIG_STRING] = "string", [CONFIG_ENUM] = "string",     [CONFIG_INTEGER] = "integer",
        [CONFIG_NUMBER] = "number", [CONFIG_BOOLEAN] = "boolean", [CONFIG_LIST] = "array",
    };
    fprintf(out, "%*s\"%s\": {\n", indent, "", config_option_name(option));
    indent += 2;
    fprintf(out, "%*s\"description\": ", indent, "");
    char help[512], initial[160];
    describe_default(option, initial, sizeof initial);
    snprintf(help, sizeof help, "%s%s%s%s", option->help, option->computed ? " Default: " : "",
             option->computed ? initial : "", option->computed ? "." : "");
    json_print_string(out, help);
    fprintf(out, ",\n%*s\"type\": \"%s\",\n", indent, "", types[option->type]);
    print_constraints(out, option, indent);
    fprintf(out, "%*s\"default\": ", indent, "");
    print_default(out, option);
    fprintf(out, "\n%*s}", indent - 2, "");
}

void config_print_schema(FILE *out) {
    int open = -1;
    fputs("{\n"
          "  \"$schema\": \"http://json-schema.org/draft-07/schema#\",\n"
          "  \"title\": \"Configuration of a mantissa run\",\n"
          "  \"type\": \"object\",\n"
          "  \"additionalProperties\": false,\n"
          "  \"properties\": {\n"
          "    \"$schema\": {\n"
          "      \"description\": \"Where editors find this schema; ignored by the trainer.\",\n"
          "      \"type\": \"string\"\n"
          "    }",
          out);
    for (int i = 0; i < config_option_count; i++) {
        const struct config_option *option = &config_options[i];
        int block = config_option_block(option);
        if (block != open) {
            if (open >= 0) fputs("\n      }\n    }", out);
            fprintf(out, ",\n    \"%s\": {\n      \"description\": ", config_blocks[block].name);
            json_print_string(out, config_blocks[block].help);
            fputs(",\n      \"type\": \"object\",\n      \"additionalProperties\": false,\n"
                  "      \"properties\": {\n",
                  out);
        } else {
            fputs(",\n", out);
        }
        print_property(out, option, block < 0 ? 4 : 8);
        open = block;
    }
    fputs("\n      }\n    }\n  }\n}\n", out);
}

/* Prints text in lines of at most `width` columns, each indented by `indent` spaces. */
static void print_wrapped(FILE *out, const char *text, int indent, int width) {
    int column = 0;
    while (*text) {
        int length = (int)strcspn(text, " ");
        if (column > 0 && column + 1 + length > width) {
            fputc('\n', out);
            column = 0;
        }
        if (column == 0) column = fprintf(out, "%*s%.*s", indent, "", length, text);
        else column += fprintf(out, " %.*s", length, text);
        text += length;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

void config_print_help(FILE *out) {
    int open = -1;
    for (int i = 0; i < config_option_count; i++) {
        const struct config_option *option = &config_options[i];
        char allowed[320], initial[160], text[512];
        int block = config_option_block(option);
        if (block != open) {
            fputc('\n', out);
            print_wrapped(out, config_blocks[block].help, 2, 80);
        }
        open = block;
        config_describe_allowed(option, allowed, sizeof allowed);
        describe_default(option, initial, sizeof initial);
        fprintf(out, "  %s\n", option->key);
        print_wrapped(out, option->help, 6, 80);
        snprintf(text, sizeof text, "%c%s. Default: %s.", allowed[0] - 'a' + 'A', allowed + 1,
                 initial);
        print_wrapped(out, text, 6, 80);
    }
}

void config_print_reference(FILE *out) {
    static const char *const head = "| key | allowed | default | meaning |\n"
                                    "|---|---|---|---|\n";
    int open = -1;
    fputs(head, out);
    for (int i = 0; i < config_option_count; i++) {
        const struct config_option *option = &config_options[i];
        char allowed[320], initial[160];
        int block = config_option_block(option);
        if (block != open)
            fprintf(out, "\n**`%s`**: %s\n\n%s", config_blocks[block].name,
                    config_blocks[block].help, head);
        open = block;
        config_describe_allowed(option, allowed, sizeof allowed);
        describe_default(option, initial, sizeof initial);
        fprintf(out, "| `%s` | %s | %s | %s |\n", option->key, allowed, initial, option->help);
    }
}
