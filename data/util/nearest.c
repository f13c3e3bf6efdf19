#include "data/util/nearest.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#include "data/util/min_max.h"

/* True if the letters are equal but for their case. */
static bool same(char a, char b) {
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* distance[i][j] is that of the first i and j bytes. */
int nearest_edits(const char *a, int a_length, const char *b, int b_length) {
    int distance[NEAREST_NAME_MAX + 1][NEAREST_NAME_MAX + 1];
    for (int i = 0; i <= a_length; i++)
        for (int j = 0; j <= b_length; j++) {
            distance[i][j] = i + j;
            if (i == 0 || j == 0) continue;
            int replaced = distance[i - 1][j - 1] + !same(a[i - 1], b[j - 1]);
            int changed = MIN(distance[i][j - 1], distance[i - 1][j]) + 1;
            if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
                changed = MIN(changed, distance[i - 2][j - 2] + 1);
            distance[i][j] = MIN(replaced, changed);
        }
    return distance[a_length][b_length];
}

static bool contains(const char *text, int text_length, const char *part, int part_length) {
    if (part_length < 4 || part_length >= text_length) return false;
    for (int i = 0; i + part_length <= text_length; i++)
        if (strncasecmp(text + i, part, (size_t)part_length) == 0) return true;
    return false;
}

int nearest_distance(const char *name, size_t name_length, const char *text) {
    int length = (int)strlen(text);
    if (name_length > NEAREST_NAME_MAX || length > NEAREST_NAME_MAX || length == 0)
        return NEAREST_NONE;
    int given = (int)name_length;
    int allowed = MIN(given, length) <= 3 ? 1 : 1 + MIN(given, length) / 4;
    int distance = nearest_edits(name, given, text, length);
    if (distance <= allowed) return distance;
    if (contains(text, length, name, given) || contains(name, given, text, length)) return allowed;
    return NEAREST_NONE;
}

int nearest_text(const char *const *texts, int count, const char *name, size_t length) {
    int best = -1, best_distance = NEAREST_NONE;
    for (int i = 0; i < count; i++) {
        int distance = nearest_distance(name, length, texts[i]);
        if (distance < best_distance) {
            best = i;
            best_distance = distance;
        }
    }
    return best;
}
