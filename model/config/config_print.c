#include "model/config/config_print.h"

#include <inttypes.h>
#include <string.h>

#include "data/util/json_escape.h"
#include "data/util/note.h"
#include "data/util/printed.h"
#include "data/util/program_names.h"
#include "model/config/config_nearest.h"

static void print_names(FILE *out, const char *const *names, int count) {
    for (int i = 0; i < count; i++) {
        if (i) fputs(", ", out);
        json_print_string(out, names[i]);
    }
}

static void print_number(FILE *out, double value) {
    char text[CONFIG_NUMBER_MAX];
    fputs(config_format_number(text, value), out);
}

void config_print_value(FILE *out, const struct config *config,
                        const struct config_option *option) {
    const void *field = (const char *)config + option->offset;
    const struct config_words *list = field;
    switch (option->type) {
    case CONFIG_STRING: json_print_string(out, field); break;
    case CONFIG_ENUM:
        json_print_string(out, option->names[(int)config_number(config, option)]);
        break;
    case CONFIG_BOOLEAN: fputs(config_number(config, option) ? "true" : "false", out); break;
    case CONFIG_LIST:
        fputc('[', out);
        print_names(out, list->items, list->count);
        fputc(']', out);
        break;
    case CONFIG_INTEGER:
    case CONFIG_NUMBER: print_number(out, config_number(config, option)); break;
    }
}

void config_value_text(char text[CONFIG_VALUE_MAX], const struct config *config,
                       const struct config_option *option) {
    memset(text, 0, CONFIG_VALUE_MAX);
    FILE *out = fmemopen(text, CONFIG_VALUE_MAX - 1, "w");
    if (!out) return;
    config_print_value(out, config, option);
    fclose(out);
}

/* Returns the block that begins with this row, or -1. */
static int block_begun(int row) {
    int block = config_option_block(&config_options[row]);
    return row > 0 && config_option_block(&config_options[row - 1]) == block ? -1 : block;
}

/* True for a block of another precision that was not given. */
static bool is_omitted(const struct config *config, int block) {
    bool scaled =
        config->precision == CONFIG_PRECISION_FP16 || config->precision == CONFIG_PRECISION_AUTO;
    bool rounded = config_precision_quantizes(config->precision);
    return (block == config_block_index("loss_scale", 10) && !scaled &&
            !config_given(config, "loss_scale")) ||
           (block == config_block_index("fp8", 3) && !rounded && !config_given(config, "fp8"));
}

void config_print_json(FILE *out, const struct config *config) {
    fputs("{", out);
    for (int i = 0; i < config_option_count; i++) {
        const struct config_option *option = &config_options[i];
        int block = config_option_block(option), begun = block_begun(i);
        if (block >= 0 && is_omitted(config, block)) continue;
        if (begun > 0) fputs("\n  }", out);
        if (i > 0) fputc(',', out);
        if (begun >= 0) fprintf(out, "\n  \"%s\": {", config_blocks[block].name);
        fprintf(out, "\n%*s\"%s\": ", block < 0 ? 2 : 4, "", config_option_name(option));
        config_print_value(out, config, option);
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

/* Prints a default, and the rule of a computed one after it, or in place of an empty text. */
static void describe_default(FILE *out, const struct config_option *option) {
    bool empty = option->type == CONFIG_STRING && !option->text[0];
    if (!option->computed || !empty) print_default(out, option);
    if (option->computed) fprintf(out, "%s%s", empty ? "" : ", ", option->computed);
}

static void print_allowed(FILE *out, const struct config_option *option) {
    char low[CONFIG_NUMBER_MAX], high[CONFIG_NUMBER_MAX];
    config_format_number(low, option->minimum);
    config_format_number(high, option->maximum);
    switch (option->type) {
    case CONFIG_STRING:
        fprintf(out, "a string of %s%s bytes", option->minimum > 0 ? "1 to " : "at most ", high);
        break;
    case CONFIG_INTEGER: fprintf(out, "a whole number from %s to %s", low, high); break;
    case CONFIG_NUMBER:
        fprintf(out, "a number from %s to %s%s", low, option->below_maximum ? "below " : "", high);
        break;
    case CONFIG_BOOLEAN: fputs("true or false", out); break;
    case CONFIG_ENUM:
    case CONFIG_LIST:
        fputs(option->type == CONFIG_ENUM ? "one of " : "a list of some of ", out);
        print_names(out, option->names, config_name_count(option));
        if (config_has_switch(option)) fputs(", true, false", out);
        break;
    }
}

/* Writes the output of a printer to text. */
static const char *text_of(char *text, size_t size, const struct config_option *option,
                           void (*print)(FILE *, const struct config_option *)) {
    FILE *out = fmemopen(text, size - 1, "w");
    text[0] = text[size - 1] = '\0';
    if (!out) return text;
    print(out, option);
    fclose(out);
    return text;
}

void config_describe_allowed(const struct config_option *option, char *text, size_t size) {
    text_of(text, size, option, print_allowed);
}

/* Prints the constraints of a property's values. */
static void print_constraints(FILE *out, const struct config_option *option, int indent) {
    if (option->type == CONFIG_STRING) {
        if (option->minimum > 0)
            fprintf(out, "%*s\"minLength\": %.0f,\n", indent, "", option->minimum);
        fprintf(out, "%*s\"maxLength\": %.0f,\n", indent, "", option->maximum);
    } else if (option->type == CONFIG_ENUM) {
        fprintf(out, "%*s\"enum\": [", indent, "");
        print_names(out, option->names, config_name_count(option));
        fputs(config_has_switch(option) ? ", true, false],\n" : "],\n", out);
    } else if (option->type == CONFIG_LIST) {
        fprintf(out, "%*s\"anyOf\": [{\"enum\": [", indent, "");
        print_names(out, option->names, config_name_count(option));
        fprintf(out, "]},\n%*s{\"type\": \"array\", \"uniqueItems\": true, \"items\": {\"enum\": [",
                indent + 2, "");
        print_names(out, option->names, config_name_count(option));
        fputs("]}}],\n", out);
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
        [CONFIG_NUMBER] = "number", [CONFIG_BOOLEAN] = "boolean",
    };
    fprintf(out, "%*s\"%s\": {\n", indent, "", config_option_name(option));
    indent += 2;
    fprintf(out, "%*s\"description\": ", indent, "");
    char help[512], initial[160];
    snprintf(help, sizeof help, "%s", option->help);
    if (option->computed)
        snprintf(help, sizeof help, "%s Default: %s.", option->help,
                 text_of(initial, sizeof initial, option, describe_default));
    json_print_string(out, help);
    fputs(",\n", out);
    if (!config_has_switch(option) && option->type != CONFIG_LIST)
        fprintf(out, "%*s\"type\": \"%s\",\n", indent, "", types[option->type]);
    print_constraints(out, option, indent);
    fprintf(out, "%*s\"default\": ", indent, "");
    print_default(out, option);
    fprintf(out, "\n%*s}", indent - 2, "");
}

void config_print_schema(FILE *out) {
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
        int block = block_begun(i);
        if (block > 0) fputs("\n      }\n    }", out);
        if (block >= 0) {
            fprintf(out, ",\n    \"%s\": {\n      \"description\": ", config_blocks[block].name);
            json_print_string(out, config_blocks[block].help);
            fputs(",\n      \"type\": \"object\",\n      \"additionalProperties\": false,\n"
                  "      \"properties\": {\n",
                  out);
        } else {
            fputs(",\n", out);
        }
        print_property(out, option, config_option_block(option) < 0 ? 4 : 8);
    }
    fputs("\n      }\n    }\n  }\n}\n", out);
}

static void print_paragraph(FILE *out, const char *text, int indent) {
    char named[PROGRAM_TEXT_MAX];
    fprintf(out, "%*s", indent, "");
    text_wrap(out, indent, indent, indent, program_text(named, text));
    fputc('\n', out);
}

static void print_option_help(FILE *out, const struct config_option *option) {
    char allowed[320], initial[160], text[512];
    fprintf(out, "  %s\n", option->key);
    print_paragraph(out, option->help, 6);
    config_describe_allowed(option, allowed, sizeof allowed);
    snprintf(text, sizeof text, "%c%s. Default: %s.", allowed[0] - 'a' + 'A', allowed + 1,
             text_of(initial, sizeof initial, option, describe_default));
    print_paragraph(out, text, 6);
}

void config_print_help(FILE *out, const char *name) {
    int named_block = name ? config_block_index(name, strlen(name)) : -1;
    for (int i = 0; i < config_option_count; i++) {
        const struct config_option *option = &config_options[i];
        int block = block_begun(i);
        if (name && strcmp(option->key, name) != 0 &&
            (named_block < 0 || config_option_block(option) != named_block))
            continue;
        if (block >= 0 && !(name && named_block < 0)) {
            fputc('\n', out);
            print_paragraph(out, config_blocks[block].help, 2);
        }
        print_option_help(out, option);
    }
}

void config_print_reference(FILE *out) {
    static const char *const head = "| key | allowed | default | meaning |\n"
                                    "|---|---|---|---|\n";
    fputs(head, out);
    for (int i = 0; i < config_option_count; i++) {
        const struct config_option *option = &config_options[i];
        int block = block_begun(i);
        if (block >= 0)
            fprintf(out, "\n**`%s`**: %s\n\n%s", config_blocks[block].name,
                    config_blocks[block].help, head);
        fprintf(out, "| `%s` | ", option->key);
        print_allowed(out, option);
        fputs(" | ", out);
        describe_default(out, option);
        fprintf(out, " | %s |\n", option->help);
    }
    fputs("\n## Words of other tools\n\n"
          "What nanoGPT, llm.c, transformers, PEFT, TRL, axolotl and unsloth call it. `./train "
          "--help\n"
          "WORD` and errors about keys know these words too.\n\n"
          "| here | there |\n|---|---|\n",
          out);
    config_print_synonyms(out);
}
