#include "model/session/model_hash.h"

#include <stdlib.h>
#include <string.h>

#include "model/config/config_print.h"
#include "model/io/checkpoint_manifest.h"
#include "model/io/tensor_files.h"

/* Copies the keys that change what a forward pass computes, but for names of files. */
static void copy_keys(struct config *to, const struct config *from) {
    config_defaults(to);
    to->precision = from->precision, to->tf32 = from->tf32, to->seed = from->seed;
    to->model = from->model;
    to->adapter = from->adapter;
    to->data.seq_len = from->data.seq_len; /* the base of dynamic rope */
    to->autocast = from->autocast;
    to->fp8 = from->fp8, to->mx = from->mx, to->nvfp4 = from->nvfp4;
    to->model.init_from[0] = to->adapter.init_from[0] = '\0';
    to->model.dropout = to->adapter.dropout = 0;
}

int model_hash(char hex[SHA256_HEX_MAX], const struct model *model, const struct config *config,
               const char *directory, struct error *error) {
    const char *stem =
        shape_has_adapters(&model->shape) ? checkpoint_adapter_stem : checkpoint_model_stem;
    char weights[SHA256_HEX_MAX] = "", *text;
    struct tensor_files files;
    struct sha256 hash;
    struct config keys;
    size_t size;
    copy_keys(&keys, config);
    if (directory[0]) {
        keys.seed = 0;
        if (tensor_files_open_directory(&files, directory, stem, error)) return -1;
        const int status = tensor_files_fingerprint(weights, &files, error);
        tensor_files_close(&files);
        if (status) return -1;
    }
    text = config_json_text(&keys, &size);
    if (!text) return fail_memory(error, "the config of a model");
    sha256_begin(&hash);
    sha256_add(&hash, weights, sizeof weights);
    sha256_add(&hash, model->base_fingerprint, sizeof model->base_fingerprint);
    sha256_add(&hash, text, size);
    sha256_end(hex, &hash);
    free(text);
    return 0;
}
