#include "data/corpus/chat_file.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "data/util/files.h"
#include "data/util/json.h"
#include "data/util/note.h"
#include "data/util/utf8.h"

enum { TEMPLATE_MAX_BYTES = 1 << 20 };

/* Returns the template of tokenizer_config.json: a string, or a list of templates with names. */
static const char *template_of(const cJSON *root) {
    const cJSON *member = json_member(root, "chat_template"), *item;
    if (!cJSON_IsArray(member)) return cJSON_GetStringValue(member);
    cJSON_ArrayForEach(item, member) {
        const char *name = json_text(item, "name");
        if (name && strcmp(name, "default") == 0) return json_text(item, "template");
    }
    return NULL;
}

int chat_file_read(char **text, const char *directory, struct error *error) {
    char path[FILE_PATH_MAX];
    struct json_file file;
    size_t size;
    *text = NULL;
    if (file_exists_in(directory, CHAT_TEMPLATE_NAME))
        return file_path_join(path, directory, CHAT_TEMPLATE_NAME, error) ||
                       file_read_all(text, &size, path, TEMPLATE_MAX_BYTES, error)
                   ? -1
                   : 0;
    if (json_file_open_optional(&file, directory, "tokenizer_config.json", error)) return -1;
    const char *found = template_of(file.root);
    *text = found ? strdup(found) : NULL;
    json_file_close(&file);
    return *text ? 0 : RESULT_NONE;
}

const struct chat_template *chat_template_of(const struct tokenizer *tokenizer) {
    struct error ignored;
    char *own = NULL;
    int i = 0;
    if (tokenizer->directory) chat_file_read(&own, tokenizer->directory, &ignored);
    while (chat_template_at(i) && !chat_template_fits(chat_template_at(i), tokenizer, own)) i++;
    free(own);
    return chat_template_at(i);
}

/* Removes what does not change the text that a template renders: white space in tags, the line feed
 * after a block, and quotes and the signs between joined strings. */
static void normalize(char *text) {
    char *to = text, quote = 0;
    bool tag = false;
    for (const char *from = text; *from; from++) {
        const bool ends = tag && !quote && *from == '}' && strchr("%}", from[-1]);
        if (quote ? *from == quote : tag && strchr("'\"", *from)) quote = quote ? 0 : *from;
        else if (quote && strncmp(from, "\\n", 2) == 0) *to++ = '\n', from++;
        else if (!tag || quote || !strchr(" +\n\t\r", *from)) *to++ = *from;
        tag = quote || (tag ? !ends : *from == '{' && (from[1] == '{' || from[1] == '%'));
        if (ends && from[-1] == '%' && from[1] == '\n') from++;
    }
    *to = '\0';
    text[utf8_trim_end(text, strlen(text))] = '\0';
}

/* Removes the message of the system that templates like SmolLM2's add to chats without one, from a
 * normalized template. Returns true if it does. */
static bool remove_added_system(char *text) {
    char *begin = strstr(text, "{%ifloop.firstandmessages[0][role]!=system%}{{");
    const char *end = begin ? strstr(begin, "{%endif%}") : NULL;
    if (end) memmove(begin, end + strlen("{%endif%}"), strlen(end) - strlen("{%endif%}") + 1);
    return end;
}

bool chat_file_note(FILE *out, const char *directory, const struct chat_template *chat,
                    bool without_system) {
    struct error ignored;
    char *text, shown[FILE_SHOWN_MAX];
    if (!directory || chat_file_read(&text, directory, &ignored)) return false;
    char *built_in = strdup(chat_template_text(chat));
    normalize(text);
    if (built_in) normalize(built_in);
    const bool adds = remove_added_system(text) && without_system;
    const bool differs = adds || !built_in || strcmp(text, built_in) != 0;
    if (differs)
        note(out, "note", "%s has a chat template of its own, and this uses the built-in one of %s",
             file_path_shown(shown, directory), chat_template_name(chat));
    free(built_in);
    free(text);
    return differs;
}
