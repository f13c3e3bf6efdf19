/* Any bytes as a row: either rejected with a message and a column, or the text equals cJSON's,
 * in UTF-8. The same holds for a list of messages, which are then rendered. */
#include <cjson/cJSON.h>

#include <stb/stb_ds.h>

#include "data/corpus/chat.h"
#include "data/corpus/jsonl.h"
#include "data/util/utf8.h"
#include "test/fuzz/fuzz.h"

/* Half of the inputs are the value of a member, which would rarely be reached otherwise; half of
 * those follow another string. */
static size_t build(char *row, const uint8_t *bytes, size_t size) {
    if (size == 0 || bytes[0] % 2) {
        memcpy(row, bytes, size);
        return size;
    }
    const char *begin = bytes[0] & 2 ? "{\"id\":[1],\"text\":" : "{\"id\":\"a\\n\",\"text\":";
    const size_t length = strlen(begin);
    memcpy(row, begin, length);
    memcpy(row + length, bytes + 1, size - 1);
    row[length + size - 1] = '}';
    return length + size;
}

/* cJSON rejects lone surrogates and NUL in strings, and reads only the first of two members of
 * one name. Its result for all other inputs must be the same. */
static void compare(const char *row, size_t size, const struct jsonl_member *found) {
    cJSON *root = cJSON_ParseWithLength(row, size);
    if (!root) return;
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(root, found->name);
    require(cJSON_IsObject(root) && cJSON_IsString(member));
    if (!memchr(found->text, 0, found->size))
        require(strlen(member->valuestring) == found->size &&
                memcmp(member->valuestring, found->text, found->size) == 0);
    cJSON_Delete(root);
}

/* Reads one member, or two. */
static void check(const char *built, size_t size, int count) {
    struct jsonl_member members[] = {{.name = "text"}, {.name = "id"}};
    struct error error = {0};
    size_t column = 0;
    /* Allocated in exactly this size, so that sanitizers detect overreads. */
    char *row = malloc(size + !size);
    require(row != NULL);
    memcpy(row, built, size);
    static const char *const names[] = {"text"};
    const bool there = jsonl_names(row, size, names, 1);
    if (jsonl_row(row, size, members, count, &column, &error) == 0) {
        require(there && !jsonl_is_blank(built, size));
        for (int i = 0; i < count; i++) {
            require(members[i].text >= row && members[i].text + members[i].size <= row + size);
            require(utf8_valid(members[i].text, members[i].size));
            compare(built, size, &members[i]);
        }
    } else {
        require(error.text[0] && column >= 1 && column <= size + 1);
        require(memcmp(row, built, size) == 0);
    }
    free(row);
}

/* Puts the input into a list of messages. Bytes below 4 become roles, names and borders, which
 * would rarely be found otherwise. */
static char *build_messages(const uint8_t *bytes, size_t size) {
    static const char *const parts[] = {"{\"role\":\"user\",\"content\":\"", "\"},",
                                        "{\"content\":\"a\\n\",\"role\":\"assistant\"},",
                                        "\"role\":true"};
    char *row = NULL;
    const char begin[] = "{\"messages\":[", end[] = "{\"role\":\"system\",\"content\":\"\"}]}";
    memcpy(arraddnptr(row, sizeof begin - 1), begin, sizeof begin - 1);
    for (size_t i = 0; i < size; i++) {
        const char *part = bytes[i] < 4 ? parts[bytes[i]] : (const char *)&bytes[i];
        const size_t length = bytes[i] < 4 ? strlen(part) : 1;
        memcpy(arraddnptr(row, length), part, length);
    }
    memcpy(arraddnptr(row, sizeof end - 1), end, sizeof end - 1);
    return row;
}

/* All members of the list equal cJSON's. */
static void compare_messages(const char *row, size_t size, const struct jsonl_member *items) {
    cJSON *root = cJSON_ParseWithLength(row, size);
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "messages");
    require(!root || (size_t)cJSON_GetArraySize(list) == arrlenu(items) / 2);
    for (size_t i = 0; root && i < arrlenu(items); i++) {
        const cJSON *message = cJSON_GetArrayItem(list, (int)(i / 2));
        const cJSON *member = cJSON_GetObjectItemCaseSensitive(message, items[i].name);
        require(cJSON_IsString(member));
        if (!memchr(items[i].text, 0, items[i].size))
            require(strlen(member->valuestring) == items[i].size &&
                    memcmp(member->valuestring, items[i].text, items[i].size) == 0);
    }
    cJSON_Delete(root);
}

static void check_messages(const uint8_t *bytes, size_t bytes_size) {
    static const struct jsonl_member message[] = {{.name = "role"}, {.name = "content"}};
    char *built = build_messages(bytes, bytes_size);
    const size_t size = arrlenu(built);
    struct jsonl_member list = {.name = "messages", .kind = JSONL_LIST, .of = message};
    struct segment *segments = NULL;
    struct error error = {0};
    size_t column = 0;
    char *row = malloc(size);
    require(row != NULL);
    memcpy(row, built, size);
    if (jsonl_row(row, size, &list, 1, &column, &error) == 0) {
        compare_messages(built, size, list.items);
        for (int i = 0; chat_template_at(i); i++) {
            arrsetlen(segments, 0);
            error.text[0] = '\0';
            if (chat_render(chat_template_at(i), list.items, arrlenu(list.items) / 2, &segments,
                            &error))
                require(error.text[0]);
            for (size_t j = 0; j < arrlenu(segments); j++)
                require(utf8_valid(segments[j].text, segments[j].size));
        }
    } else {
        require(error.text[0] && column >= 1 && column <= size + 1);
        require(memcmp(row, built, size) == 0);
    }
    arrfree(segments);
    arrfree(list.items);
    arrfree(built);
    free(row);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    char *built = malloc(size + 64);
    require(built != NULL);
    const size_t row_size = build(built, bytes, size);
    for (int count = 1; count <= 2; count++) check(built, row_size, count);
    check_messages(bytes, size);
    free(built);
    return 0;
}
