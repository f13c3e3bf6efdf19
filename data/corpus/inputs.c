#include "data/corpus/inputs.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include <stb/stb_ds.h>

#include "data/util/files.h"

enum { NAME_SHOWN = 400 };

const char *const inputs_endings[] = {".txt", ".text",  ".md",     ".markdown",
                                      ".rst", ".jsonl", ".ndjson", NULL};

/* Compressed files, their first bytes, and the commands that unpack them to standard output. */
static const struct {
    const char *ending, *magic, *command;
} PACKED[] = {{".gz", "\x1f\x8b", "gzip -dc"},
              {".bz2", "BZh", "bzip2 -dc"},
              {".xz", "\xfd\x37zXZ", "xz -dc"},
              {".zst", "\x28\xb5\x2f\xfd", "zstd -dc"},
              {".zip", "PK\3\4", "unzip -p"}};

/* Tables that scripts/rows.py reads, and their first bytes; NULL: text. */
static const struct {
    const char *ending, *magic;
} TABLES[] = {{".csv", NULL}, {".tsv", NULL}, {".parquet", "PAR1"}, {".arrow", "ARROW1"}};

enum {
    PACKED_COUNT = sizeof PACKED / sizeof *PACKED,
    TABLE_COUNT = sizeof TABLES / sizeof *TABLES
};

struct folder_id {
    dev_t device;
    ino_t number;
};

struct search {
    struct inputs *inputs;
    bool all_jsonl;
    bool tables;              /* the folder that is being searched holds tables */
    char path[FILE_PATH_MAX]; /* current path of the search */
    struct {
        struct folder_id key;
        char value;
    } * visited; /* stb_ds hash map */
};

static bool ends_in(const char *name, const char *ending) {
    const size_t length = strlen(name), end = strlen(ending);
    return length > end && strcasecmp(name + length - end, ending) == 0;
}

static bool begins_with(const char *bytes, size_t size, const char *magic) {
    const size_t length = strlen(magic);
    return size >= length && memcmp(bytes, magic, length) == 0;
}

static bool is_jsonl(const char *name) {
    return ends_in(name, ".jsonl") || ends_in(name, ".ndjson") || ends_in(name, ".json");
}

static bool is_table(const char *name) {
    for (int i = 0; i < TABLE_COUNT; i++)
        if (ends_in(name, TABLES[i].ending)) return true;
    return false;
}

static int refuse_table(const char *name, const char *what, struct error *error) {
    return fail(error,
                "%.*s %s\nturn it into rows on the way: scripts/rows.py %.*s | ./prepare ... "
                "--jsonl -",
                NAME_SHOWN, name, what, NAME_SHOWN, name);
}

static int refuse_archive(const char *name, struct error *error) {
    return fail(error, "%.*s is an archive\nunpack it with tar -xf, and name its files", NAME_SHOWN,
                name);
}

/* Refuses a compressed file that becomes `bare` when the command unpacks it. */
static int refuse_packed(const char *name, const char *bare, const char *command, bool all_jsonl,
                         struct error *error) {
    enum { SHOWN = NAME_SHOWN / 2 };
    if (ends_in(bare, ".tar")) return refuse_archive(name, error);
    if (is_table(bare))
        return fail(error,
                    "%.*s is a compressed table\nunpack it, then turn it into rows on the way: "
                    "%s %.*s >%.*s; scripts/rows.py %.*s | ./prepare ... --jsonl -",
                    SHOWN, name, command, SHOWN, name, SHOWN, bare, SHOWN, bare);
    return fail(error, "%.*s is compressed\nunpack it on the way: %s %.*s | ./prepare ...%s -",
                NAME_SHOWN, name, command, NAME_SHOWN, name,
                all_jsonl || is_jsonl(bare) ? " --jsonl" : "");
}

/* Refuses compressed files and other formats that are not text. */
static int check_ending(const char *name, bool all_jsonl, struct error *error) {
    for (int i = 0; i < PACKED_COUNT; i++) {
        if (!ends_in(name, PACKED[i].ending)) continue;
        char bare[FILE_PATH_MAX];
        snprintf(bare, sizeof bare, "%.*s", (int)(strlen(name) - strlen(PACKED[i].ending)), name);
        return refuse_packed(name, bare, PACKED[i].command, all_jsonl, error);
    }
    if (ends_in(name, ".tar") || ends_in(name, ".tgz")) return refuse_archive(name, error);
    return is_table(name) ? refuse_table(name, "is a table", error) : 0;
}

int inputs_check_first_bytes(const char *bytes, size_t size, struct error *error) {
    for (int i = 0; i < PACKED_COUNT; i++)
        if (begins_with(bytes, size, PACKED[i].magic))
            return fail(error,
                        "the standard input is compressed\nunpack it before: %s FILE | ./prepare "
                        "... -",
                        PACKED[i].command);
    for (int i = 0; i < TABLE_COUNT; i++)
        if (TABLES[i].magic && begins_with(bytes, size, TABLES[i].magic))
            return fail(error,
                        "the standard input is a table\nturn its file into rows: "
                        "scripts/rows.py FILE%s | ./prepare ... --jsonl -",
                        TABLES[i].ending);
    return 0;
}

static int append(struct search *search, const char *name, bool is_jsonl, struct error *error) {
    struct input input = {.name = strdup(name), .is_jsonl = search->all_jsonl || is_jsonl};
    if (!input.name) return fail_memory(error, "the list of files");
    arrput(search->inputs->list, input);
    return 0;
}

static int add_file(struct search *search, const char *name, const struct stat *status,
                    struct error *error) {
    struct inputs *inputs = search->inputs;
    if (check_ending(name, search->all_jsonl, error)) return -1;
    if (access(name, R_OK))
        return fail(error, "cannot read %.*s: %s\ncheck its permissions", NAME_SHOWN, name,
                    strerror(errno));
    if (append(search, name, is_jsonl(name), error)) return -1;
    if (S_ISREG(status->st_mode)) inputs->bytes += (uint64_t)status->st_size;
    else inputs->bytes_known = false;
    return 0;
}

static int add_standard_input(struct search *search, struct error *error) {
    struct inputs *inputs = search->inputs;
    if (append(search, "-", false, error)) return -1;
    struct stat status;
    const off_t at = lseek(STDIN_FILENO, 0, SEEK_CUR);
    if (at >= 0 && fstat(STDIN_FILENO, &status) == 0 && S_ISREG(status.st_mode))
        inputs->bytes += status.st_size > at ? (uint64_t)(status.st_size - at) : 0;
    else inputs->bytes_known = false;
    return 0;
}

static bool has_text_ending(const char *name) {
    for (int i = 0; inputs_endings[i]; i++)
        if (ends_in(name, inputs_endings[i])) return true;
    return false;
}

static int by_bytes(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int not_hidden(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static int add_folder(struct search *search, const struct stat *status, struct error *error);

static int add_entry(struct search *search, const char *name, struct error *error) {
    struct inputs *inputs = search->inputs;
    const size_t length = strlen(search->path);
    struct stat status;
    if (length + strlen(name) + 2 > FILE_PATH_MAX)
        return fail(error, "%.*s...: the path is too long", 60, search->path);
    sprintf(search->path + length, "%s%s", search->path[length - 1] == '/' ? "" : "/", name);
    int result = 0;
    /* A dangling link is skipped like any other file that is not text. */
    const bool exists = stat(search->path, &status) == 0;
    if (exists && S_ISDIR(status.st_mode)) result = add_folder(search, &status, error);
    else if (exists && S_ISREG(status.st_mode) && has_text_ending(name))
        result = add_file(search, search->path, &status, error);
    else if (inputs->skipped++ == 0) inputs->skipped_example = strdup(search->path);
    search->tables |= is_table(name);
    search->path[length] = '\0';
    return result;
}

/* Adds the files in the folder search->path. */
static int add_folder(struct search *search, const struct stat *status, struct error *error) {
    struct folder_id id;
    memset(&id, 0, sizeof id);
    id.device = status->st_dev;
    id.number = status->st_ino;
    if (hmgeti(search->visited, id) >= 0) return 0;
    hmput(search->visited, id, 1);
    struct dirent **entries;
    const int count = scandir(search->path, &entries, not_hidden, by_bytes);
    if (count < 0)
        return fail(error, "cannot list %.*s: %s\ncheck its permissions", NAME_SHOWN, search->path,
                    strerror(errno));
    int result = 0;
    for (int i = 0; i < count; i++) {
        if (result == 0) result = add_entry(search, entries[i]->d_name, error);
        free(entries[i]);
    }
    free(entries);
    return result;
}

/* Adds a folder that the command line names. One without text is an error; a subfolder without text
 * is not. */
static int add_named_folder(struct search *search, const char *name, const struct stat *status,
                            struct error *error) {
    const size_t before = arrlenu(search->inputs->list);
    snprintf(search->path, sizeof search->path, "%s", name);
    search->tables = false;
    if (add_folder(search, status, error)) return -1;
    hmfree(search->visited);
    if (arrlenu(search->inputs->list) > before) return 0;
    if (search->tables) return refuse_table(name, "holds tables and no text", error);
    char endings[200] = "";
    for (int i = 0; inputs_endings[i]; i++)
        snprintf(endings + strlen(endings), sizeof endings - strlen(endings), " %s",
                 inputs_endings[i]);
    return fail(error,
                "no text in the folder %.*s: no file in it ends in%s\nname the files, or give a "
                "pattern in quotes, for instance '%.*s/*.log'",
                NAME_SHOWN, name, endings, NAME_SHOWN / 2, name);
}

static int add_existing(struct search *search, const char *name, const struct stat *status,
                        struct error *error) {
    if (strlen(name) >= FILE_PATH_MAX) return fail(error, "%.60s...: the path is too long", name);
    return S_ISDIR(status->st_mode) ? add_named_folder(search, name, status, error)
                                    : add_file(search, name, status, error);
}

static int add_matches(struct search *search, const char *pattern, struct error *error) {
    glob_t matches = {0};
    struct stat status;
    int result = glob(pattern, GLOB_TILDE, NULL, &matches);
    if (result == GLOB_NOMATCH)
        result = fail(error, "nothing matches %.*s\ncheck the pattern", NAME_SHOWN, pattern);
    else if (result)
        result = fail(error, "cannot search for %.*s: out of memory, or unreadable", NAME_SHOWN,
                      pattern);
    for (size_t i = 0; result == 0 && i < matches.gl_pathc; i++) {
        const char *name = matches.gl_pathv[i];
        result = stat(name, &status) ? fail(error, "cannot read %.*s: %s\ncheck the path",
                                            NAME_SHOWN, name, strerror(errno))
                                     : add_existing(search, name, &status, error);
    }
    globfree(&matches);
    return result;
}

static int add_name(struct search *search, const char *name, struct error *error) {
    struct stat status;
    if (strcmp(name, "-") == 0) return add_standard_input(search, error);
    if (stat(name, &status) == 0) return add_existing(search, name, &status, error);
    const int number = errno;
    if (strpbrk(name, "*?[") || *name == '~') return add_matches(search, name, error);
    return fail(error, "cannot read %.*s: %s\ncheck the path", NAME_SHOWN, name, strerror(number));
}

int inputs_open(struct inputs *inputs, char **names, int count, bool all_jsonl,
                struct error *error) {
    *inputs = (struct inputs){.bytes_known = true};
    struct search *search = calloc(1, sizeof *search);
    if (!search) return fail_memory(error, "the list of files");
    search->inputs = inputs;
    search->all_jsonl = all_jsonl;
    int result = 0;
    for (int i = 0; result == 0 && i < count; i++) result = add_name(search, names[i], error);
    hmfree(search->visited);
    free(search);
    return result;
}

void inputs_close(struct inputs *inputs) {
    for (size_t i = 0; i < arrlenu(inputs->list); i++) free(inputs->list[i].name);
    arrfree(inputs->list);
    free(inputs->skipped_example);
    *inputs = (struct inputs){0};
}
