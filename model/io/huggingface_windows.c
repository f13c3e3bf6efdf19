#include <math.h>
#include <stdlib.h>

#include "data/util/json.h"
#include "data/util/min_max.h"
#include "model/config/config_keys.h"
#include "model/io/huggingface_reader.h"

/* Fails unless layer_types is null or has a known kind for each layer. */
static int check_layers(const struct config_reader *reader) {
    static const char key[] = "layer_types";
    const cJSON *types = json_member(reader->root, key), *type;
    int64_t count = 0;
    if (reader_is_null(reader, key)) return 0;
    cJSON_ArrayForEach(type, types) count +=
        reader_is_text(type, "full_attention") || reader_is_text(type, "sliding_attention");
    return cJSON_IsArray(types) && count == cJSON_GetArraySize(types) &&
                   count == reader->config->model.n_layer
               ? 0
               : reader_refuse(reader, key,
                               "\"full_attention\" or \"sliding_attention\" for each layer");
}

/* SmolLM3's layers have no windows here. */
static int check_full_layers(const struct config_reader *reader) {
    const cJSON *type;
    if (check_layers(reader)) return -1;
    cJSON_ArrayForEach(type, json_member(reader->root, "layer_types")) {
        if (!reader_is_text(type, "full_attention"))
            return reader_refuse(reader, "layer_types", "\"full_attention\" for each layer");
    }
    return 0;
}

/* Sets has[l] if layer l has the window: all of Mistral's and Phi-3's do. Other files have the kind
 * of each layer, or Qwen's the first layer with a window, and Gemma's are all but each N-th.
 * Returns the number of layers that have it. */
static int64_t find_windows(bool *has, const struct config_reader *reader,
                            enum model_family family) {
    int64_t layers = reader->config->model.n_layer, count = 0;
    int64_t first = reader->is_larger ? 80 : 28; /* transformers' */
    const cJSON *types = json_member(reader->root, "layer_types");
    const bool all = family == FAMILY_MISTRAL || family == FAMILY_PHI3;
    const cJSON *type = cJSON_IsArray(types) && !all ? types->child : NULL;
    int64_t pattern = families[family].window_pattern;
    if (pattern == 0) json_whole(&first, reader->root, "max_window_layers", 0, INT32_MAX);
    if (family == FAMILY_GEMMA3 || family == FAMILY_EXAONE4)
        json_whole(&pattern, reader->root, "sliding_window_pattern", 1, INT32_MAX);
    for (int64_t l = 0; l < layers; l++) {
        bool other = all || l >= first;
        if (pattern > 0) other = (l + 1) % pattern != 0;
        has[l] = type ? reader_is_text(type, "sliding_attention") : other;
        count += has[l];
        if (type) type = type->next;
    }
    return count;
}

/* Returns the N for which the layers from `from` on whose number, counted from 1, is a multiple of
 * N are those without a window, or -1. all: the first of them. */
static int64_t pattern_of(const bool *has, int64_t from, int64_t all, int64_t layers) {
    for (int64_t n = 2; n <= all + 1; n++) {
        bool same = (all + 1) % n == 0;
        for (int64_t l = from; same && l < layers; l++) same = has[l] == ((l + 1) % n != 0);
        if (same) return n;
    }
    return -1;
}

/* Sets model.window and the keys that give its layers, of which one or more have it. Returns false
 * if those keys cannot. */
static bool set_windows(const struct config_reader *reader, int64_t window, const bool *has) {
    int64_t layers = reader->config->model.n_layer, from = 0, all = 0;
    while (!has[from]) from++;
    for (all = from; all < layers && has[all];) all++;
    const int64_t pattern = all < layers ? pattern_of(has, from, all, layers) : 0;
    if (pattern < 0) return false;
    reader_set(reader, "model.window", (double)window);
    reader_set(reader, "model.window_from", (double)from);
    reader_set(reader, "model.window_pattern", (double)pattern);
    return true;
}

int reader_window(const struct config_reader *reader, enum model_family family) {
    struct config *config = reader->config;
    const bool kinds = 1 << family & IN_KINDS, needed = kinds && family != FAMILY_EXAONE4;
    bool used = family == FAMILY_MISTRAL || kinds ||
                (family == FAMILY_PHI3 && !reader_is_null(reader, "sliding_window"));
    int64_t window = families[family].window;
    reader_set(reader, "model.window", 0);
    reader_set(reader, "model.window_from", 0);
    reader_set(reader, "model.window_pattern", 0);
    if (family == FAMILY_SMOLLM3) return check_full_layers(reader);
    if (window == 0) return 0; /* Llama ignores such keys */
    if (family == FAMILY_PHI3 && !used) return 0;
    if ((!used || kinds) && check_layers(reader)) return -1;
    if (!used && reader_flag(&used, reader, "use_sliding_window")) return -1;
    bool absent = reader_lacks(reader, "sliding_window");
    if (!used || (!absent && !needed && reader_is_null(reader, "sliding_window"))) return 0;
    if (!absent && !json_whole(&window, reader->root, "sliding_window", 1, INT64_C(1) << 40))
        return reader_refuse(reader, "sliding_window",
                             needed ? "a number of tokens from 1 on"
                                    : "null, or a number of tokens from 1 on");
    if (!kinds && window >= config->model.n_positions) return 0;
    if (kinds) window = MIN(window, (int64_t)config_option_of("model.window")->maximum);
    int64_t period;
    if ((family == FAMILY_GEMMA3 || family == FAMILY_EXAONE4) &&
        reader_is_null(reader, "layer_types") &&
        cJSON_IsNumber(json_member(reader->root, "sliding_window_pattern")) &&
        !json_whole(&period, reader->root, "sliding_window_pattern", 1, INT32_MAX))
        return reader_refuse(reader, "sliding_window_pattern", "a whole number from 1 on");
    bool *has = calloc((size_t)config->model.n_layer, sizeof *has);
    if (!has) return fail_memory(reader->error, "the windows of layers");
    bool set = find_windows(has, reader, family) == 0 || set_windows(reader, window, has);
    free(has);
    if (set) return 0;
    if (kinds)
        return reader_refuse(reader, "layer_types",
                             "windows that model.window_from and model.window_pattern can name");
    if (window < config->data.seq_len && config_given(config, "data.seq_len"))
        return reader_refuse(
            reader, "sliding_window",
            "at least data.seq_len, unless model.window_from and model.window_pattern can "
            "name the layers that have the window");
    config->model.n_positions = window;
    return 0;
}

int reader_full_attention(const struct config_reader *reader) {
    static const char key[] = "layer_types", path[] = "model.full_attention_interval";
    const int64_t layers = reader->config->model.n_layer;
    const cJSON *types = json_member(reader->root, key), *type;
    int64_t interval = 0, layer = 0;
    if (reader_is_null(reader, key))
        return reader_key(reader, "full_attention_interval", path, 4, NAN);
    bool same = cJSON_IsArray(types) && cJSON_GetArraySize(types) == layers;
    cJSON_ArrayForEach(type, types) {
        const bool full = reader_is_text(type, "full_attention");
        layer++;
        if (full && interval == 0) interval = layer;
        same &= full ? layer % interval == 0
                     : reader_is_text(type, "linear_attention") &&
                           (interval == 0 || layer % interval != 0);
    }
    if (!same)
        return reader_refuse(reader, key,
                             "\"full_attention\" for each N-th layer, and \"linear_attention\" for "
                             "others");
    reader_set(reader, path, (double)(interval > 0 ? interval : layers + 1));
    return 0;
}

/* EXAONE 4 has no rope in layers without a window, if others have one. */
static int read_no_rope_of_windows(const struct config_reader *reader) {
    const struct config *config = reader->config;
    const cJSON *pattern = json_member(reader->root, "sliding_window_pattern");
    const bool none = cJSON_IsNull(json_member(reader->root, "sliding_window"));
    if (cJSON_IsString(pattern) && reader_is_null(reader, "layer_types"))
        return reader_refuse(reader, "layer_types",
                             "the kind of each layer beside a pattern of letters");
    if (config->model.window == 0 && !none)
        return reader_refuse(reader, "layer_types", "a layer with the window");
    if (config->model.window > 0 && config->model.window_from > 0)
        return reader_refuse(reader, "layer_types", "the window in the first layer");
    reader_set(reader, "model.no_rope_interval",
               config->model.window > 0 ? (double)config->model.window_pattern : 0);
    return 0;
}

int reader_no_rope(const struct config_reader *reader, enum model_family family) {
    static const char key[] = "no_rope_layers", path[] = "model.no_rope_interval";
    const int64_t layers = reader->config->model.n_layer;
    const cJSON *list = json_member(reader->root, key), *rotates;
    int64_t interval = 0, layer = 0;
    if (family == FAMILY_EXAONE4) return read_no_rope_of_windows(reader);
    if (reader_is_null(reader, key))
        return reader_key(reader, "no_rope_layer_interval", path,
                          (double)families[family].parts.no_rope_interval, NAN);
    bool same = cJSON_IsArray(list) && cJSON_GetArraySize(list) >= layers;
    cJSON_ArrayForEach(rotates, list) {
        if (layer++ >= layers) break;
        if (rotates->valuedouble == 0 && interval == 0) interval = layer;
        same &= cJSON_IsNumber(rotates) &&
                (rotates->valuedouble == 0) == (interval > 0 && layer % interval == 0);
    }
    if (!same) return reader_refuse(reader, key, "0 for each N-th layer, and 1 for others");
    reader_set(reader, path, (double)interval);
    return 0;
}
