/* Any bytes as a row: either refused with a message and a column, or the text is what cJSON finds,
 * in UTF-8. */
#include <cjson/cJSON.h>

#include "data/text/jsonl.h"
#include "data/base/utf8.h"
#include "test/fuzz/fuzz.h"

/* Half of the inputs are the value of a member, which alone would rarely be reached. */
static size_t build(char *row, const uint8_t *bytes, size_t size) {
    static const char begin[] = "{\"id\":[1],\"text\":", end[] = "}";
    if (size == 0 || bytes[0] % 2) {
        memcpy(row, bytes, size);
        return size;
    }
    memcpy(row, begin, sizeof begin - 1);
    memcpy(row + sizeof begin - 1, bytes + 1, size - 1);
    memcpy(row + sizeof begin - 1 + size - 1, end, 1);
    return sizeof begin + size - 1;
}

/* cJSON knows no half surrogate pairs and no NUL in strings, and reads only the first of two
 * members of one name; what it makes of the rest must be the same. */
static void compare(const char *row, size_t size, const char *text, size_t text_size) {
    cJSON *root = cJSON_ParseWithLength(row, size);
    if (!root) return;
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(root, "text");
    require(cJSON_IsObject(root) && cJSON_IsString(member));
    if (!memchr(text, 0, text_size))
        require(strlen(member->valuestring) == text_size &&
                memcmp(member->valuestring, text, text_size) == 0);
    cJSON_Delete(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    char *text;
    struct error error = {0};
    size_t text_size, column = 0;
    char *built = malloc(size + 64);
    require(built != NULL);
    const size_t row_size = build(built, bytes, size);
    /* Of just this size, so that reading too far is seen. */
    char *row = malloc(row_size + !row_size);
    require(row != NULL);
    memcpy(row, built, row_size);
    if (jsonl_row(row, row_size, "text", &text, &text_size, &column, &error) == 0) {
        require(text >= row && text + text_size <= row + row_size);
        require(utf8_valid(text, text_size) && !jsonl_is_blank(built, row_size));
        compare(built, row_size, text, text_size);
    } else {
        require(error.text[0] && column >= 1 && column <= row_size + 1);
        require(memcmp(row, built, row_size) == 0);
    }
    free(row);
    free(built);
    return 0;
}
