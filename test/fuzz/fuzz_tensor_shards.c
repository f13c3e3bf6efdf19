/* A folder of weights in shards from an untrusted source: the bytes select faults in the index
 * and the shards, each on its own or combined. It is either rejected with a message that names
 * the folder, or gives tensors of files in it, each once, which can all be read. */
#include "model/io/tensor_files.h"
#include "test/fuzz/fuzz_read.h"

#include <fcntl.h>
#include <stb/stb_ds.h>
#include <stdbool.h>

enum { SHARDS = 3, TENSORS = 6, TEXT_MAX = 4096 };

static char folder[] = "/dev/shm/fuzz_tensor_shards_XXXXXX";

/* Returns the bytes one by one, then zeros. */
struct choices {
    const uint8_t *bytes;
    size_t left;
};

static unsigned choose(struct choices *choices, unsigned count) {
    if (choices->left == 0) return 0;
    choices->left--;
    return *choices->bytes++ % count;
}

static void shard_path(char path[128], int shard) {
    if (shard < SHARDS)
        snprintf(path, 128, "%s/model-%05d-of-%05d.safetensors", folder, shard + 1, SHARDS);
    else if (shard == SHARDS) snprintf(path, 128, "%s/model.safetensors.index.json", folder);
    else snprintf(path, 128, "%s/model.safetensors", folder);
}

static void remove_all(void) {
    char path[128];
    for (int i = 0; i <= SHARDS + 1; i++) {
        shard_path(path, i);
        unlink(path);
    }
}

static void remove_folder(void) {
    remove_all();
    rmdir(folder);
}

static void put(int shard, const void *bytes, size_t size) {
    char path[128];
    shard_path(path, shard);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    require(fd >= 0 && write(fd, bytes, size) == (ssize_t)size && close(fd) == 0);
}

/* Tensors that a shard holds: its own, possibly one of another shard too, possibly one fewer. */
static void put_shard(struct choices *choices, int shard) {
    static const char *const dtypes[] = {"U8", "F16", "F32", "I4"};
    static const unsigned sizes[] = {1, 2, 4, 1};
    uint8_t image[TEXT_MAX + 64] = {0};
    char *header = (char *)image + 8;
    unsigned damage = choose(choices, 12), data = 0;
    int used = snprintf(header, TEXT_MAX, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < TENSORS; i++) {
        bool own = i % SHARDS == shard;
        if (damage == 1 && i == TENSORS - 1) own = !own;
        if (!own) continue;
        unsigned kind = choose(choices, 4), bytes = 3 * sizes[kind];
        used += snprintf(header + used, (size_t)(TEXT_MAX - used),
                         ",\"t%d\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[%u,%u]}", i,
                         dtypes[kind], data, data + bytes);
        data += bytes;
    }
    used += snprintf(header + used, (size_t)(TEXT_MAX - used), "}");
    for (int i = 0; i < 8; i++) image[i] = (uint8_t)((uint64_t)used >> (8 * i));
    size_t size = 8 + (size_t)used + data;
    if (damage == 2) size -= 1 + choose(choices, 250) % size;
    if (damage == 3) image[choose(choices, 250) % size] ^= (uint8_t)(1 + choose(choices, 255));
    if (damage != 4) put(shard, image, size);
}

/* Returns the file that the index names for tensor i. */
static void print_place(FILE *out, struct choices *choices, int i) {
    static const char *const strange[] = {"../model-00001-of-00003.safetensors",
                                          "/etc/passwd",
                                          "",
                                          ".",
                                          "..",
                                          "model-00004-of-00003.safetensors",
                                          "a/b",
                                          "model.safetensors.index.json"};
    unsigned damage = choose(choices, 16);
    int shard = damage == 1 ? (i + 1) % SHARDS : i % SHARDS;
    if (damage == 2) fprintf(out, "\"%s\"", strange[choose(choices, 8)]);
    else if (damage == 3) fprintf(out, "%u", choose(choices, 9));
    else if (damage == 4) fputs("null", out);
    else fprintf(out, "\"model-%05d-of-%05d.safetensors\"", shard + 1, SHARDS);
}

static void put_index(struct choices *choices) {
    static const char *const totals[] = {"54", "0", "-1", "1e300", "\"54\"", "null"};
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    require(out != NULL);
    unsigned damage = choose(choices, 12);
    fprintf(out, "{\"metadata\":{\"total_size\":%s},\"weight_map\":{", totals[choose(choices, 6)]);
    for (int i = 0; i < TENSORS; i++) {
        bool left_out = damage == 1 && i == 2, twice = damage == 2 && i == 4;
        if (left_out) continue;
        fprintf(out, "%s\"t%d\":", i ? "," : "", twice ? 3 : damage == 3 && i == 5 ? 77 : i);
        print_place(out, choices, i);
    }
    fputs("}}", out);
    require(fclose(out) == 0);
    if (damage == 4) size -= choose(choices, 250) % size;
    if (damage == 5) text[choose(choices, 250) % size] ^= (char)(1 + choose(choices, 255));
    if (damage != 6) put(SHARDS, text, size);
    if (damage == 7) put(SHARDS + 1, "", 0); /* a single file, which takes precedence over shards */
    free(text);
}

static void read_everything(const struct tensor_files *files) {
    const size_t length = strlen(folder);
    for (ptrdiff_t i = 0; i < arrlen(files->files); i++) {
        const char *path = files->files[i].reader.path;
        require(strncmp(path, folder, length) == 0 && path[length] == '/');
        require(!strchr(path + length + 1, '/') && !strstr(path, "/.."));
    }
    for (int i = 0; i < files->count; i++) {
        const struct safetensors_entry *entry = files->tensors[i].entry;
        require(tensor_files_find(files, entry->name) == &files->tensors[i]);
        fuzz_read(files->tensors[i].file, entry);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    struct choices choices = {bytes, size};
    struct error error = {0};
    struct tensor_files files;
    if (strstr(folder, "XXXXXX")) {
        require(mkdtemp(folder) != NULL);
        atexit(remove_folder);
    }
    remove_all();
    for (int shard = 0; shard < SHARDS; shard++) put_shard(&choices, shard);
    put_index(&choices);
    if (tensor_files_open_directory(&files, folder, "model", &error) == 0) {
        read_everything(&files);
        tensor_files_close(&files);
    } else {
        require(strstr(error.text, folder) != NULL);
    }
    return 0;
}
