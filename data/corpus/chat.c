#include "data/corpus/chat.h"

#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/utf8.h"

enum role { SYSTEM, USER, ASSISTANT, ROLES };

/* The second names are ShareGPT's. */
static const char *const role_names[ROLES] = {"system", "user", "assistant"},
                         *const other_names[ROLES] = {"system", "human", "gpt"};

/* The texts around a message. */
struct turn {
    const char *begin, *end;
};

/* Places of system messages: where they are, or in a turn of the user. With the latter only the
 * first message can be one, and user and assistant take turns. */
enum system_place { SYSTEM_IN_PLACE, SYSTEM_IN_FIRST_TURN, SYSTEM_IN_LAST_TURN };

struct chat_template {
    const char *name;
    const char *tokens[4]; /* special tokens that a tokenizer for it has */
    const char
        *variants[2];  /* special tokens of tokenizers for other templates that have the same */
    const char *mark;  /* text that the tokenizer's own template has, if there is one */
    bool needs_own;    /* there has to be one: its tokens alone are those of another template */
    const char *begin; /* text before all messages */
    struct turn turns[ROLES];
    const char *lead;  /* before the assistant's content: counts in the loss, as turns[].end */
    const char *after; /* after turns[].end of the assistant: does not count */
    bool separates;    /* `after` is only before another message */
    bool trims[ROLES]; /* contents are used without the white space around them */
    enum system_place system;
    const char *jinja; /* the template for transformers */
};

static const struct chat_template templates[] = {
    {.name = "ChatML",
     .tokens = {"<|im_start|>", "<|im_end|>"},
     .variants = {"<|im_sep|>"},
     .mark = "<|im_start|>",
     .begin = "",
     .turns = {{"<|im_start|>system\n", "<|im_end|>\n"},
               {"<|im_start|>user\n", "<|im_end|>\n"},
               {"<|im_start|>assistant\n", "<|im_end|>"}},
     .lead = "",
     .after = "\n",
     .jinja = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
              "message['content'] + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt "
              "%}{{ '<|im_start|>assistant\\n' }}{% endif %}"},
    {.name = "Llama 3",
     .tokens = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
     .mark = "<|start_header_id|>",
     .begin = "<|begin_of_text|>",
     .turns = {{"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
               {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
               {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"}},
     .lead = "",
     .after = "",
     .trims = {true, true, true},
     .jinja = "{{ '<|begin_of_text|>' }}{% for message in messages %}{{ '<|start_header_id|>' + "
              "message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + "
              "'<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>"
              "assistant<|end_header_id|>\\n\\n' }}{% endif %}"},
    /* Tokenizers of Mistral's later models have the other two. */
    {.name = "Mistral 7B v0.3",
     .tokens = {"<s>", "[INST]", "[/INST]", "</s>"},
     .variants = {"[PREFIX]", "[SYSTEM_PROMPT]"},
     .mark = "[INST]",
     .begin = "<s>",
     .turns = {{"", "\n\n"}, {"[INST] ", "[/INST]"}, {"", "</s>"}},
     .lead = " ",
     .after = "",
     .trims = {false, false, true},
     .system = SYSTEM_IN_LAST_TURN,
     .jinja = "{% set ns = namespace(system='', last=-1) %}{% for message in messages %}{% if "
              "message['role'] == 'system' %}{% set ns.system = message['content'] + '\\n\\n' %}"
              "{% elif message['role'] == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
              "{% endfor %}{{ '<s>' }}{% for message in messages %}{% if message['role'] == "
              "'user' %}{{ '[INST] ' + (ns.system if loop.index0 == ns.last else '') + "
              "message['content'] + '[/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + "
              "message['content'] | trim + '</s>' }}{% endif %}{% endfor %}"},
    {.name = "Gemma",
     .tokens = {"<bos>", "<start_of_turn>", "<end_of_turn>"},
     .mark = "<start_of_turn>",
     .begin = "<bos>",
     .turns = {{"", "\n\n"},
               {"<start_of_turn>user\n", "<end_of_turn>\n"},
               {"<start_of_turn>model\n", "<end_of_turn>"}},
     .lead = "",
     .after = "\n",
     .trims = {false, true, true},
     .system = SYSTEM_IN_FIRST_TURN,
     .jinja = "{% set ns = namespace(system='') %}{{ '<bos>' }}{% for message in messages %}{% if "
              "message['role'] == 'system' %}{% set ns.system = message['content'] + '\\n\\n' %}"
              "{% else %}{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else "
              "message['role']) + '\\n' + ns.system + message['content'] | trim + "
              "'<end_of_turn>\\n' }}{% set ns.system = '' %}{% endif %}{% endfor %}{% if "
              "add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"},
    /* Its tokenizer is OLMo 3's, whose template is a kind of ChatML. */
    {.name = "OLMo 2",
     .tokens = {"<|endoftext|>", "<|endofprompt|>", "<|im_start|>"},
     .mark = "<|assistant|>",
     .needs_own = true,
     .begin = "<|endoftext|>",
     .turns = {{"<|system|>\n", "\n"}, {"<|user|>\n", "\n"}, {"<|assistant|>\n", "<|endoftext|>"}},
     .lead = "",
     .after = "\n",
     .separates = true,
     .jinja = "{{ '<|endoftext|>' }}{% for message in messages %}{{ '<|' + message['role'] + "
              "'|>\\n' + message['content'] }}{% if message['role'] == 'assistant' %}{{ "
              "'<|endoftext|>' + ('' if loop.last else '\\n') }}{% else %}{{ '\\n' }}{% endif %}"
              "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"},
    {.name = "EXAONE 4",
     .tokens = {"[|system|]", "[|assistant|]", "[|tool|]", "[|endofturn|]"},
     .mark = "[|assistant|]",
     .begin = "",
     .turns = {{"[|system|]\n", "[|endofturn|]\n"},
               {"[|user|]\n", "[|endofturn|]\n"},
               {"[|assistant|]\n<think>\n\n</think>\n\n", "[|endofturn|]"}},
     .lead = "",
     .after = "\n",
     .jinja =
         "{% set thought = '<think>\\n\\n</think>\\n\\n' %}{% for message in messages %}{{ '[|' "
         "+ message['role'] + '|]\\n' + (thought if message['role'] == 'assistant' else '') + "
         "message['content'] + '[|endofturn|]\\n' }}{% endfor %}{% if add_generation_prompt %}"
         "{{ '[|assistant|]\\n' + thought }}{% endif %}"},
};

static bool has_token(const struct tokenizer *tokenizer, const char *name) {
    return tokenizer_special(tokenizer, name, strlen(name)) >= 0;
}

bool chat_template_fits(const struct chat_template *chat, const struct tokenizer *tokenizer,
                        const char *own) {
    for (size_t i = 0; i < sizeof chat->tokens / sizeof *chat->tokens && chat->tokens[i]; i++)
        if (!has_token(tokenizer, chat->tokens[i])) return false;
    for (size_t i = 0; i < sizeof chat->variants / sizeof *chat->variants && chat->variants[i]; i++)
        if (has_token(tokenizer, chat->variants[i])) return false;
    return own ? strstr(own, chat->mark) != NULL : !chat->needs_own;
}

const struct chat_template *chat_template_at(int index) {
    return index < (int)(sizeof templates / sizeof *templates) ? &templates[index] : NULL;
}

/* Returns a content without the white space around it, as the templates do with Python's strip. */
static struct segment trimmed(const struct jsonl_member *content) {
    size_t size = utf8_trim_end(content->text, content->size);
    size_t from = utf8_skip_space(content->text, size);
    return segment_of(content->text + from, size - from, false);
}

static bool spells(const struct jsonl_member *value, const char *name) {
    return strlen(name) == value->size && memcmp(name, value->text, value->size) == 0;
}

static enum role role_of(const struct jsonl_member *value) {
    int role = 0;
    while (role < ROLES && !spells(value, role_names[role]) && !spells(value, other_names[role]))
        role++;
    return (enum role)role;
}

bool chat_is_assistant(const struct jsonl_member *role) {
    return role_of(role) == ASSISTANT;
}

static int check(const struct chat_template *chat, const struct jsonl_member *values, size_t count,
                 size_t first, struct error *error) {
    const bool has_system = count > 0 && role_of(&values[0]) == SYSTEM;
    bool any_answer = false;
    for (size_t i = 0; i < count; i++) {
        const enum role role = role_of(&values[2 * i]);
        if (role == ROLES)
            return fail(error,
                        "message %zu: unknown role \"%.*s\"; known are system, user (or human) and "
                        "assistant (or gpt); scripts/render_chat.py renders others",
                        i + 1, values[2 * i].size < 50 ? (int)values[2 * i].size : 50,
                        values[2 * i].text);
        const enum role turn = (i - has_system) % 2 == 0 ? USER : ASSISTANT;
        if (chat->system != SYSTEM_IN_PLACE && role != turn && !(i == 0 && has_system))
            return fail(error,
                        "message %zu: the role is %s where the tokenizer's chat template needs %s; "
                        "after an optional system message, user and assistant take turns",
                        i + 1, role_names[role], role_names[turn]);
        if (role == ASSISTANT && trimmed(&values[2 * i + 1]).size == 0)
            return fail(error, "message %zu: the assistant's content is empty", i + 1);
        any_answer |= role == ASSISTANT && i >= first && !values[2 * i + 1].untrained;
    }
    return any_answer ? 0 : fail(error, "there is no message of the assistant to train on");
}

static void put(struct segment **segments, const char *text, bool in_loss) {
    struct segment segment = segment_of(text, strlen(text), in_loss);
    segment.is_template = true;
    if (segment.size > 0) arrput(*segments, segment);
}

/* Appends messages, which may begin with one of the system. Those before `first` do not count. */
static void put_messages(const struct chat_template *chat, const struct jsonl_member *values,
                         size_t count, size_t first, struct segment **segments) {
    const bool moves_system = chat->system != SYSTEM_IN_PLACE && role_of(&values[0]) == SYSTEM;
    size_t host = 1; /* the user's message that the system message is moved into */
    for (size_t i = 0; i < count && chat->system == SYSTEM_IN_LAST_TURN; i++)
        if (role_of(&values[2 * i]) == USER) host = i;
    for (size_t i = moves_system; i < count; i++) {
        const enum role role = role_of(&values[2 * i]);
        const struct turn *turn = &chat->turns[role];
        const struct jsonl_member *content = &values[2 * i + 1];
        struct segment segment = segment_of(content->text, content->size, false);
        if (chat->trims[role]) segment = trimmed(content);
        segment.in_loss = role == ASSISTANT && i >= first && !content->untrained;
        put(segments, turn->begin, false);
        if (moves_system && i == host) {
            arrput(*segments, segment_of(values[1].text, values[1].size, false));
            put(segments, chat->turns[SYSTEM].end, false);
        }
        if (role == ASSISTANT) put(segments, chat->lead, segment.in_loss);
        if (segment.size > 0) arrput(*segments, segment);
        put(segments, turn->end, segment.in_loss);
        if (role == ASSISTANT && !(chat->separates && i + 1 == count))
            put(segments, chat->after, false);
    }
}

int chat_render_from(const struct chat_template *chat, const struct jsonl_member *values,
                     size_t count, size_t first, struct segment **segments, struct error *error) {
    if (check(chat, values, count, first, error)) return -1;
    put(segments, chat->begin, false);
    put_messages(chat, values, count, first, segments);
    return 0;
}

bool chat_begins_with_system(const struct chat_template *chat, const struct segment *first) {
    return first[*chat->begin != '\0'].text == chat->turns[SYSTEM].begin;
}

int chat_render(const struct chat_template *chat, const struct jsonl_member *values, size_t count,
                struct segment **segments, struct error *error) {
    return chat_render_from(chat, values, count, 0, segments, error);
}

static struct jsonl_member member_of(const char *text) {
    return (struct jsonl_member){.text = (char *)text, .size = strlen(text)};
}

void chat_turn(const struct chat_template *chat, const char *system, const char *user, bool first,
               char **text) {
    const bool has_system = first && system;
    const struct jsonl_member values[] = {member_of(role_names[SYSTEM]),
                                          member_of(has_system ? system : ""),
                                          member_of(role_names[USER]), member_of(user)};
    struct segment *segments = NULL;
    put(&segments, first ? chat->begin : chat->turns[ASSISTANT].end, false);
    put(&segments, first ? "" : chat->after, false);
    put_messages(chat, has_system ? values : values + 2, has_system ? 2 : 1, 0, &segments);
    put(&segments, chat->turns[ASSISTANT].begin, false);
    for (size_t i = 0; i < arrlenu(segments); i++)
        if (segments[i].size > 0)
            memcpy(arraddnptr(*text, segments[i].size), segments[i].text, segments[i].size);
    arrfree(segments);
}

const char *chat_template_name(const struct chat_template *chat) {
    return chat->name;
}

const char *chat_template_text(const struct chat_template *chat) {
    return chat->jinja;
}

int chat_end_token(const struct chat_template *chat, const struct tokenizer *tokenizer) {
    const char *end = chat->turns[ASSISTANT].end;
    return tokenizer_special(tokenizer, end, strlen(end));
}
