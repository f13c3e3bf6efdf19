#include "data/text/subwords_files.h"

#include <stdlib.h>

#include "data/base/files.h"
#include "data/text/ranks.h"
#include "data/text/subwords_json.h"

int subwords_read_folder(struct subwords *subwords, struct subwords_file files[SUBWORDS_FILES_MAX],
                         int *count, const char *folder, struct error *error) {
    char paths[SUBWORDS_FILES_MAX][FILE_PATH_MAX];
    struct json_reader readers[SUBWORDS_FILES_MAX];
    const bool is_json = file_exists_in(folder, SUBWORDS_JSON);
    const int wanted = is_json ? 1 : 2;
    int status = 0;
    for (*count = 0; *count < wanted && !status; ++*count) {
        struct subwords_file *file = &files[*count];
        readers[*count] = (struct json_reader){.path = paths[*count], .error = error};
        *file = (struct subwords_file){.name = is_json  ? SUBWORDS_JSON
                                               : *count ? SUBWORDS_RANKS
                                                        : SUBWORDS_TIKTOKEN};
        status = file_path_join(paths[*count], folder, file->name, error) ||
                         file_read_all(&file->bytes, &file->size, paths[*count],
                                       SUBWORDS_FILE_MAX_BYTES, error)
                     ? -1
                     : 0;
    }
    if (!status && is_json)
        status = subwords_read_json(subwords, files[0].bytes, files[0].size, &readers[0]);
    else if (!status)
        status = subwords_read_ranks(subwords, files[0].bytes, files[0].size, &readers[0],
                                     files[1].bytes, files[1].size, &readers[1]);
    if (!status) return 0;
    while (*count > 0) free(files[--*count].bytes);
    return -1;
}
