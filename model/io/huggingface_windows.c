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

/* Sets has[l] if layer l has the window: all of Mistral's do. Other files have the kind of each
 * layer, or Qwen's the first layer with a window, and Gemma's are all but each N-th. Returns the
 * number of layers that have it. */
static int64_t find_windows(bool *has, const struct config_reader *reader,
                            const struct huggingface_class *class) {
    int64_t layers = reader->config->model.n_layer, count = 0, first = 28; /* transformers' */
    const cJSON *types = json_member(reader->root, "layer_types");
    const cJSON *type =
        cJSON_IsArray(types) && !huggingface_is_mistral(class) ? types->child : NULL;
    int64_t pattern = class->window_pattern;
    if (pattern == 0) json_whole(&first, reader->root, "max_window_layers", 0, INT32_MAX);
    if (class == &huggingface_classes[HUGGINGFACE_GEMMA3])
        json_whole(&pattern, reader->root, "sliding_window_pattern", 1, INT32_MAX);
    for (int64_t l = 0; l < layers; l++) {
        bool other = huggingface_is_mistral(class) || l >= first;
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

int reader_window(const struct config_reader *reader, const struct huggingface_class *class) {
    struct config *config = reader->config;
    const bool gemma = huggingface_is_gemma(class);
    bool used = huggingface_is_mistral(class) || gemma;
    int64_t window = class->window;
    reader_set(reader, "model.window", 0);
    reader_set(reader, "model.window_from", 0);
    reader_set(reader, "model.window_pattern", 0);
    if (window == 0) return 0; /* Llama ignores such keys */
    if ((!used || gemma) && check_layers(reader)) return -1;
    if (!used && reader_flag(&used, reader, "use_sliding_window")) return -1;
    bool absent = reader_lacks(reader, "sliding_window");
    if (!used || (!absent && !gemma && reader_is_null(reader, "sliding_window"))) return 0;
    if (!absent && !json_whole(&window, reader->root, "sliding_window", 1, INT64_C(1) << 40))
        return reader_refuse(reader, "sliding_window",
                             gemma ? "a number of tokens from 1 on"
                                   : "null, or a number of tokens from 1 on");
    if (!gemma && window >= config->model.n_positions) return 0;
    if (gemma) window = MIN(window, (int64_t)config_option_of("model.window")->maximum);
    bool *has = calloc((size_t)config->model.n_layer, sizeof *has);
    if (!has) return fail(reader->error, "out of memory");
    bool set = find_windows(has, reader, class) == 0 || set_windows(reader, window, has);
    free(has);
    if (set) return 0;
    if (gemma)
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
