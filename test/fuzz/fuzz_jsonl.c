/* Any bytes as a row: either rejected with a message and a column, or the text equals cJSON's,
 * in UTF-8. */
#include <cjson/cJSON.h>

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
    const bool there = jsonl_has(row, size, "text");
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

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    char *built = malloc(size + 64);
    require(built != NULL);
    const size_t row_size = build(built, bytes, size);
    for (int count = 1; count <= 2; count++) check(built, row_size, count);
    free(built);
    return 0;
}
