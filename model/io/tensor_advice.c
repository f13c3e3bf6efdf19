#include "model/io/tensor_advice.h"

#include <stdio.h>
#include <string.h>

#include "data/util/json.h"

bool tensor_name_ends(const char *text, const char *end) {
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/* Returns a tensor whose name ends with `name`, or NULL. */
static const struct stored_tensor *find_longer(const struct tensor_files *files, const char *name) {
    for (int i = 0; i < files->count; i++)
        if (tensor_name_ends(files->tensors[i].entry->name, name)) return &files->tensors[i];
    return NULL;
}

int tensor_missing(const struct tensor_files *files, const char *prefix, const char *name,
                   struct error *error) {
    const struct stored_tensor *longer = find_longer(files, name);
    if (!longer)
        return fail(error,
                    "%.400s: tensor %s%s is missing\nit is not a model like the config's: use "
                    "another file",
                    files->where, prefix, name);
    char before[128];
    const char *found = longer->entry->name;
    size_t length = strlen(found) - strlen(name), own = strlen(prefix);
    if (length >= own && memcmp(found + length - own, prefix, own) == 0) length -= own;
    snprintf(before, sizeof before, "%.*s", (int)length, found);
    const char *wrapper = strstr(before, "_orig_mod.")
                              ? ": torch.compile's model._orig_mod has none"
                          : strstr(before, "module.") ? ": DistributedDataParallel's model.module "
                                                        "has none"
                                                      : "";
    return fail(
        error,
        "%.400s: tensor %s%s is missing, but there is %s\nremove the prefix \"%s\" from the "
        "names%s",
        files->where, prefix, name, json_text_shown(found).text, json_text_shown(before).text,
        wrapper);
}

int tensor_missing_adapter(const struct tensor_files *files, const char *prefix, const char *name,
                           struct error *error) {
    const struct stored_tensor *longer = find_longer(files, name);
    if (longer)
        return fail(error,
                    "%.400s: tensor %s%s is missing, but there is %s\nsave the adapter with PEFT's "
                    "save_pretrained, which gives it the first name",
                    files->where, prefix, name, json_text_shown(longer->entry->name).text);
    return fail(error,
                "%.400s: tensor %s%s is missing\nname the layers of this adapter in "
                "adapter.targets, or use another one",
                files->where, prefix, name);
}

const char *tensor_key_of_shape(const struct parameter *parameter,
                                const struct safetensors_entry *entry) {
    static const char heads[] = "model.n_head or model.head_dim",
                      kv_heads[] = "model.n_kv_head or model.head_dim";
    static const struct {
        const char *part, *inputs, *outputs; /* NULL: model.n_embd */
    } parts[] = {
        {"mlp.c_fc.", NULL, "model.n_inner"},
        {"mlp.c_proj.", "model.n_inner", NULL},
        {"mlp.gate_proj.", NULL, "model.n_inner"},
        {"mlp.up_proj.", NULL, "model.n_inner"},
        {"mlp.down_proj.", "model.n_inner", NULL},
        {"self_attn.q_proj.", NULL, heads},
        {"self_attn.k_proj.", NULL, kv_heads},
        {"self_attn.v_proj.", NULL, kv_heads},
        {"self_attn.o_proj.", heads, NULL},
        {"self_attn.q_norm.", NULL, "model.head_dim"},
        {"self_attn.k_norm.", NULL, "model.head_dim"},
    };
    const struct extent *extent = &parameter->extent;
    const bool rows_differ = entry->rank < 1 || entry->shape[0] != (uint64_t)extent->rows;
    const bool out_in = parameter->adapter || strncmp(parameter->name, "h.", 2) != 0;
    const bool outputs = extent->columns == 0 || rows_differ == out_in;
    const char *key = rows_differ ? extent->rows_of : "model.n_embd";
    if (parameter->adapter && outputs != (strstr(parameter->kind, "lora_B") != NULL))
        return "adapter.rank";
    if (strcmp(key, "model.n_embd") != 0) return key;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const char *found = outputs ? parts[i].outputs : parts[i].inputs;
        if (found && strncmp(parameter->kind, parts[i].part, strlen(parts[i].part)) == 0)
            return found;
    }
    return key;
}
