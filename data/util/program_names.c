#include "data/util/program_names.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static const char prefix_of_build[] = "./", prefix_installed[] = "mantissa-",
                  scripts[] = "scripts/";

int program_path(char path[PATH_MAX]) {
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = '\0';
    return length < 0 ? -1 : 0;
}

int program_folder(char folder[PATH_MAX]) {
    int status = program_path(folder);
    if (status == 0) strrchr(folder, '/')[1] = '\0';
    return status;
}

static bool begins_with(const char *text, const char *beginning) {
    return strncmp(text, beginning, strlen(beginning)) == 0;
}

static bool is_installed(void) {
    return begins_with(program_invocation_short_name, prefix_installed);
}

/* True for a program's name, "./train" with this prefix, on its own. */
static bool names_a_program(const char *text, const char *prefix) {
    static const char *const names[] = {"train", "prepare", "compare"};
    if (!begins_with(text, prefix)) return false;
    text += strlen(prefix);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *end = text + strlen(names[i]);
        if (begins_with(text, names[i]) && strchr(" \n,;:.)", *end))
            return *end != '.' || strchr(" \n", end[1]);
    }
    return false;
}

bool program_begins_command(const char *text) {
    static const char python[] = "python3 ";
    char folder[PATH_MAX];
    text += *text == '(';
    if (begins_with(text, python)) text += strlen(python);
    if (names_a_program(text, prefix_of_build) || names_a_program(text, prefix_installed))
        return true;
    if (is_installed() && program_folder(folder) == 0 && begins_with(text, folder))
        text += strlen(folder);
    return begins_with(text, scripts);
}

/* Returns what an installed program prints before **at, and skips what it leaves out. */
static const char *take_prefix(char folder[PATH_MAX], const char *text, const char **at) {
    /* A name is not part of a path such as ../train_x.bin. */
    if (!is_installed() || (*at > text && !strchr(" \n(", (*at)[-1]))) return "";
    if (names_a_program(*at, prefix_of_build)) {
        *at += strlen(prefix_of_build);
        return prefix_installed;
    }
    return begins_with(*at, scripts) && program_folder(folder) == 0 ? folder : "";
}

void help_print(FILE *out, const char *text) {
    char folder[PATH_MAX];
    for (const char *at = text; *at; at++) {
        fputs(take_prefix(folder, text, &at), out);
        fputc(*at, out);
    }
}

/* Returns the text itself if there is no room for the names. */
static const char *put_names(char named[PROGRAM_TEXT_MAX], const char *text, bool is_format) {
    char folder[PATH_MAX];
    size_t used = 0;
    if (!is_installed()) return text;
    for (const char *at = text; *at; at++) {
        const char *prefix = take_prefix(folder, text, &at);
        if (used + 2 * strlen(prefix) + 2 > PROGRAM_TEXT_MAX) return text;
        for (; *prefix; prefix++) {
            if (is_format && *prefix == '%') named[used++] = '%';
            named[used++] = *prefix;
        }
        named[used++] = *at;
    }
    named[used] = '\0';
    return named;
}

const char *program_text(char named[PROGRAM_TEXT_MAX], const char *text) {
    return put_names(named, text, false);
}

const char *program_format(char named[PROGRAM_TEXT_MAX], const char *format) {
    return put_names(named, format, true);
}
