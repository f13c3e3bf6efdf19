#include "model/io/copied_file.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/util/files.h"
#include "data/util/json.h"

enum { COPIED_MAX_BYTES = 64 << 20 };

static bool begins_with(const char *path, const char *directory) {
    size_t length = strlen(directory);
    return strncmp(path, directory, length) == 0 && path[length] == '/';
}

/* True if a file's real path is in the directory, or in MODEL/blobs for a directory
 * MODEL/snapshots/REVISION. */
static bool is_inside(const char *real, const char *directory) {
    char base[PATH_MAX], blobs[PATH_MAX];
    if (!realpath(directory, base)) return false;
    if (begins_with(real, base)) return true;
    for (int i = 0; i < 2; i++) {
        char *slash = strrchr(base, '/');
        if (!slash || slash == base || (i == 1 && strcmp(slash, "/snapshots") != 0)) return false;
        *slash = '\0';
    }
    struct error ignored;
    return file_path_join(blobs, base, "blobs", &ignored) == 0 && begins_with(real, blobs);
}

/* Fails unless the file holds one JSON object. */
static int check_json(const char *path, const char *text, size_t size, struct error *error) {
    struct error reason;
    cJSON *root;
    size_t column;
    if (json_parse_row(&root, text, size, &column, &reason))
        return fail(error, "cannot parse %.400s as JSON: %s\nrestore it, or remove it", path,
                    reason.text);
    const bool is_object = cJSON_IsObject(root);
    cJSON_Delete(root);
    return is_object ? 0
                     : fail(error, "%.400s does not hold one JSON object\nrestore it, or remove it",
                            path);
}

int copied_file_read(char **bytes, size_t *size, const char *directory, const char *name,
                     struct error *error) {
    char path[FILE_PATH_MAX];
    struct stat status;
    *bytes = NULL;
    if (file_path_join(path, directory, name, error)) return -1;
    if (lstat(path, &status) != 0 && errno == ENOENT) return RESULT_NONE;
    char *real = realpath(path, NULL);
    if (!real) return fail(error, "cannot read %.400s: %s\nremove it", path, strerror(errno));
    bool inside = is_inside(real, directory);
    if (!inside)
        fail(error,
             "%.400s is a link to %.400s, outside its folder, so a file of yours could be "
             "published\nput a copy in its place if that is meant, or remove the link",
             path, real);
    int read = inside ? file_read_all(bytes, size, real, COPIED_MAX_BYTES, error) : -1;
    free(real);
    if (read) return -1;
    const size_t length = strlen(name);
    if (length < 5 || strcmp(name + length - 5, ".json") != 0 ||
        check_json(path, *bytes, *size, error) == 0)
        return 0;
    free(*bytes);
    *bytes = NULL;
    return -1;
}
