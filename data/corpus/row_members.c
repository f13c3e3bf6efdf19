#include "data/corpus/row_members.h"

#include <inttypes.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/note.h"

enum { NAMES_MAX = 12, NAME_MAX_BYTES = 60 };

static const char MARKS[] = " weight train training loss loss_mask ",
                  RENDERED[] = " system tools functions tool_calls function_call reasoning_content "
                               "reasoning thinking documents images history "
                               "chat_template_kwargs ";

/* True if a list of words, with spaces around each, has a name. */
static bool has_name(const char *words, const char *name) {
    char word[NAME_MAX_BYTES + 3];
    return snprintf(word, sizeof word, " %s ", name) < (int)sizeof word && strstr(words, word);
}

static bool is_empty(const cJSON *value) {
    const char *text = cJSON_GetStringValue(value);
    return cJSON_IsNull(value) || (text && !*text) ||
           ((cJSON_IsArray(value) || cJSON_IsObject(value)) && !value->child);
}

static int take(void *context, struct jsonl_member *object, const cJSON *value,
                struct error *error) {
    struct row_members *members = context;
    const char *name = value->string;
    const bool is_mark = object && strcmp(object->name, "role") == 0 && has_name(MARKS, name),
               is_off = cJSON_IsFalse(value) || (cJSON_IsNumber(value) && value->valuedouble == 0),
               is_on = cJSON_IsTrue(value) || (cJSON_IsNumber(value) && value->valuedouble == 1);
    const bool is_text = !cJSON_IsBool(value) && !cJSON_IsNumber(value);
    if (is_empty(value) || (is_mark && is_on) || (!is_text && !has_name(MARKS, name))) return 0;
    if (is_mark && is_off) object[1].untrained = true;
    else if (is_mark)
        return fail(error,
                    "the \"%s\" of a message must be 0, 1, true or false: it is trained or not",
                    name);
    else if (!members->is_text && has_name(RENDERED, name))
        return fail(error,
                    "\"%s\" is rendered by a model's own template only: use "
                    "scripts/render_chat.py, or remove it from the rows%s",
                    name, strcmp(name, "system") == 0 ? " and begin messages with it" : "");
    else if (strlen(name) <= NAME_MAX_BYTES &&
             (shlen(members->left_out) < NAMES_MAX || shgeti(members->left_out, name) >= 0)) {
        const uint64_t before = shget(members->left_out, name); /* shput adds the key first */
        shput(members->left_out, name, before + 1);
    }
    return 0;
}

void row_members_open(struct row_members *members) {
    *members = (struct row_members){.others = {take, members}};
    sh_new_strdup(members->left_out);
}

void row_members_close(struct row_members *members) {
    shfree(members->left_out);
}

void row_members_note(FILE *out, const struct row_members *members) {
    struct member_count *left_out = members->left_out; /* the macros write to its header */
    if (shlen(left_out) == 0) return;
    char names[NAMES_MAX * (NAME_MAX_BYTES + 30)] = "";
    size_t used = 0;
    for (ptrdiff_t i = 0; i < shlen(left_out); i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s (%" PRIu64 ")",
                                 i ? ", " : "", left_out[i].key, left_out[i].value);
    const bool pairs = shgeti(left_out, "chosen") >= 0 && shgeti(left_out, "rejected") >= 0;
    note(out, "note", "left out of rows and messages: %s%s%s%s", names, pairs ? "; --field " : "",
         pairs && shgeti(left_out, "prompt") >= 0 ? "prompt," : "",
         pairs ? "chosen,rejected prepares preference pairs" : "");
}
