#include "data/corpus/chat_file.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "data/util/files.h"
#include "data/util/json.h"
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

/* True if the texts are equal, but for white space at their ends. */
static bool same_text(const char *a, const char *b) {
    const size_t size = utf8_trim_end(a, strlen(a));
    return size == utf8_trim_end(b, strlen(b)) && memcmp(a, b, size) == 0;
}

void chat_file_note(FILE *out, const char *prefix, const char *directory,
                    const struct chat_template *chat) {
    struct error ignored;
    char *text, shown[FILE_SHOWN_MAX];
    if (!directory || chat_file_read(&text, directory, &ignored)) return;
    if (!same_text(text, chat_template_text(chat)))
        fprintf(out,
                "%snote: %s has a chat template of its own, and this uses the built-in one of %s\n"
                "%snote: if they differ, prepare the chats with scripts/render_chat.py, which uses "
                "the model's own\n",
                prefix, file_path_shown(shown, directory), chat_template_name(chat), prefix);
    free(text);
}
