/* Any index, beside two valid shards and one of any bytes, is either rejected with a message or
 * gives tensors of files in its directory, which can all be read. */
#include "model/io/tensor_files.h"
#include "test/fuzz/fuzz_read.h"

#include <fcntl.h>
#include <stb/stb_ds.h>

static char folder[] = "/dev/shm/fuzz_tensor_files_XXXXXX";

static void put(const char *name, const void *bytes, size_t size) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    require(fd >= 0 && write(fd, bytes, size) == (ssize_t)size && close(fd) == 0);
}

static void put_shard(const char *name, const char *header) {
    uint8_t bytes[256] = {0};
    const size_t length = strlen(header);
    bytes[0] = (uint8_t)length;
    memcpy(bytes + 8, header, length);
    put(name, bytes, 8 + length + 1);
}

static void remove_all(void) {
    static const char *const names[] = {"a", "b", "c", "model.safetensors.index.json"};
    char path[128];
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

static void make_folder(void) {
    if (!strstr(folder, "XXXXXX")) return;
    require(mkdtemp(folder) != NULL);
    atexit(remove_all);
    put_shard("a", "{\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}");
    put_shard("b", "{\"y\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}");
}

static void read_everything(const struct tensor_files *files) {
    for (ptrdiff_t i = 0; i < arrlen(files->files); i++) {
        const char *path = files->files[i].reader.path;
        require(strncmp(path, folder, strlen(folder)) == 0 && path[strlen(folder)] == '/');
        require(!strchr(path + strlen(folder) + 1, '/') && !strstr(path, "/.."));
    }
    for (int i = 0; i < files->count; i++) {
        const struct safetensors_entry *entry = files->tensors[i].entry;
        require(tensor_files_find(files, entry->name) == &files->tensors[i]);
        fuzz_read(files->tensors[i].file, entry);
    }
}

/* The bytes after a byte 0xff, which JSON cannot contain, are the third shard. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    struct error error = {0};
    struct tensor_files files;
    make_folder();
    const uint8_t *mark = size ? memchr(bytes, 0xff, size) : NULL;
    const size_t index_bytes = mark ? (size_t)(mark - bytes) : size;
    put("model.safetensors.index.json", bytes, index_bytes);
    put("c", mark ? mark + 1 : bytes, mark ? size - index_bytes - 1 : 0);
    if (tensor_files_open_directory(&files, folder, "model", &error) == 0) {
        read_everything(&files);
        tensor_files_close(&files);
    } else {
        require(strstr(error.text, folder) != NULL);
    }
    return 0;
}
