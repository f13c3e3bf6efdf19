#include <math.h>
#include <string.h>

#include "data/util/json.h"
#include "model/config/config_keys.h"
#include "model/io/huggingface_reader.h"

enum {
    LINEAR = 1 << ROPE_LINEAR,
    DYNAMIC = 1 << ROPE_DYNAMIC,
    YARN = 1 << ROPE_YARN,
    LLAMA3 = 1 << ROPE_LLAMA3,
    SCALED = LINEAR | DYNAMIC | YARN | LLAMA3
};
static const char rope_original[] = "original_max_position_embeddings",
                  rope_partial[] = "partial_rotary_factor", query_beta[] = "llama_4_scaling_beta";

/* clang-format off: a row is a line. */
const struct huggingface_rope huggingface_ropes[] = {
    {"factor", SCALED, "model.rope_factor", NAN, NAN},
    {"low_freq_factor", LLAMA3, "model.rope_low_freq_factor", NAN, NAN},
    {"high_freq_factor", LLAMA3, "model.rope_high_freq_factor", NAN, NAN},
    {"attention_factor", YARN, "model.rope_attention_factor", 0, 0},
    {"beta_fast", YARN, "model.rope_beta_fast", 32, 32},
    {"beta_slow", YARN, "model.rope_beta_slow", 1, 1},
    {"truncate", YARN, "model.rope_truncate", true, false},
    {rope_original, YARN | LLAMA3, "model.rope_original_positions", NAN, NAN},
    {"mscale", YARN, NULL, NAN, NAN},
    {"mscale_all_dim", YARN, NULL, NAN, NAN},
    {query_beta, YARN, NULL, NAN, NAN}, /* Ministral 3's; others ignore it */
    {"max_position_embeddings", YARN, NULL, NAN, NAN},
    {rope_partial, SCALED, NULL, NAN, NAN},
    {"rope_theta", SCALED, NULL, NAN, NAN},
    {"rope_type", SCALED, NULL, NAN, NAN},
    {"type", SCALED, NULL, NAN, NAN},
    {0},
};
/* clang-format on */

/* Fails at settings that the kind lacks. A part of each head would turn with
 * partial_rotary_factor, which the default kind ignores. */
static int check_scaling(const struct config_reader *reader, const struct config_reader *inner,
                         int kind) {
    const struct config_reader *part = reader_lacks(inner, rope_partial) ? reader : inner;
    const cJSON *factor = json_member(part->root, rope_partial);
    if (!reader_is_null(part, rope_partial) &&
        !(cJSON_IsNumber(factor) && factor->valuedouble == 1))
        return reader_refuse(part, rope_partial, "1 with this rope_type");
    for (const cJSON *member = inner->root->child; member; member = member->next) {
        const struct huggingface_rope *row = huggingface_ropes;
        while (row->key && !(row->kinds >> kind & 1 && strcmp(row->key, member->string) == 0))
            row++;
        if (!row->key && !cJSON_IsNull(member))
            return reader_refuse(inner, member->string, "only settings that this rope_type has");
    }
    return 0;
}

/* Reads mscale and mscale_all_dim, whose quotient is the attention factor unless that is given. */
static int read_mscale(const struct config_reader *inner) {
    static const char *const keys[] = {"mscale", "mscale_all_dim"};
    const double length = log(inner->config->model.rope_factor);
    double scales[2];
    if (!reader_is_null(inner, "attention_factor"))
        return inner->config->model.rope_attention_factor > 0
                   ? 0
                   : reader_refuse(inner, "attention_factor", "a number above 0");
    for (int i = 0; i < 2; i++) {
        const cJSON *scale = json_member(inner->root, keys[i]);
        scales[i] = cJSON_IsNumber(scale) ? scale->valuedouble : 0;
        if (!reader_is_null(inner, keys[i]) && !(cJSON_IsNumber(scale) && scales[i] >= 0))
            return reader_refuse(inner, keys[i], "a number from 0 on");
    }
    if (scales[0] > 0 && scales[1] > 0)
        reader_set(inner, "model.rope_attention_factor",
                   (0.1 * scales[0] * length + 1) / (0.1 * scales[1] * length + 1));
    return 0;
}

/* Reads the settings of a kind of scaling. The number of original positions beside the object wins
 * over that inside it, and max_position_embeddings is the last resort; for dynamic scaling it is
 * the only one, and the model's positions are as many as the factor is meant for. The factor of
 * yarn may be null: the quotient of both lengths. */
static int read_scaling(const struct config_reader *reader, const struct config_reader *inner,
                        int kind) {
    const struct config_reader *outer = reader_lacks(reader, rope_original) ? inner : reader;
    const int64_t *original = &reader->config->model.rope_original_positions;
    const double positions = (double)reader->config->model.n_positions;
    reader_set(reader, "model.rope_scaling", kind);
    reader_set(reader, "model.rope_original_positions", positions);
    if (check_scaling(reader, inner, kind)) return -1;
    if ((YARN | LLAMA3) >> kind & 1 &&
        reader_key(outer, rope_original, "model.rope_original_positions", positions, NAN))
        return -1;
    const double quotient =
        kind == ROPE_YARN && positions >= (double)*original ? positions / (double)*original : NAN;
    for (const struct huggingface_rope *row = huggingface_ropes; row->key; row++)
        if (row->path && row->kinds >> kind & 1 && row->key != rope_original &&
            reader_key(inner, row->key, row->path, row->absent,
                       isnan(row->null) ? quotient : row->null))
            return -1;
    if (kind == ROPE_YARN && read_mscale(inner)) return -1;
    const double longest = floor(positions * reader->config->model.rope_factor);
    if (kind == ROPE_DYNAMIC && longest > config_option_of("model.n_positions")->maximum)
        return reader_refuse(inner, "factor", "a shorter context: model.n_positions has a limit");
    if (kind == ROPE_DYNAMIC) reader_set(reader, "model.n_positions", longest);
    return 0;
}

/* Opens rope_scaling of older files or rope_parameters of newer ones, and fails unless its kind is
 * one that can be computed. An object without a kind is of the default one, as is none at all. */
static int open_rope(struct config_reader *inner, int *kind, const struct config_reader *reader,
                     const char *key, const char *inside) {
    const char *const *names = config_option_of("model.rope_scaling")->names;
    *inner = *reader;
    inner->root = json_member(reader->root, key);
    inner->inside = inside;
    *kind = ROPE_UNSCALED;
    if (reader_is_null(reader, key)) return 0;
    if (!cJSON_IsObject(inner->root)) return reader_refuse(reader, key, "an object");
    for (const cJSON *member = inner->root->child; member; member = member->next)
        if (cJSON_IsObject(member))
            return reader_refuse(inner, member->string, "one setting for all layers");
    const char *name = reader_lacks(inner, "rope_type") ? "type" : "rope_type";
    const cJSON *type = json_member(inner->root, name);
    if (!type || reader_is_text(type, "default")) return 0;
    if (reader->is_larger && reader_is_text(type, "mrope")) return 0;
    for (*kind = ROPE_UNSCALED + 1; names[*kind]; ++*kind)
        if (reader_is_text(type, names[*kind])) return 0;
    return reader_refuse(inner, name,
                         strcmp(reader->rules, families[FAMILY_PHI3].class) == 0
                             ? "\"default\": longrope cannot be computed"
                             : "one of \"default\", \"linear\", \"dynamic\", \"yarn\", \"llama3\"");
}

/* A part of 0 is all of a head in a config of mantissa, and none in transformers. */
static int read_partial(const struct config_reader *reader, double absent) {
    const cJSON *part = json_member(reader->root, rope_partial);
    if (cJSON_IsNumber(part) && part->valuedouble == 0)
        return reader_refuse(reader, rope_partial, "a number above 0");
    return reader_key(reader, rope_partial, "model.partial_rotary_factor", absent, absent);
}

int reader_rope(const struct config_reader *reader, enum model_family family) {
    const struct model_shape *parts = &families[family].parts;
    struct config_reader older, newer;
    int older_kind, newer_kind;
    if (open_rope(&older, &older_kind, reader, "rope_scaling", "rope_scaling.") ||
        open_rope(&newer, &newer_kind, reader, "rope_parameters", "rope_parameters."))
        return -1;
    const bool is_older = older.root && older.root->child;
    const struct config_reader *inner = is_older ? &older : &newer;
    const int kind = is_older ? older_kind : newer_kind;
    reader_set(reader, "model.positions", POSITIONS_ROPE);
    reader_set(reader, "model.rope_scaling", ROPE_UNSCALED);
    if (kind != ROPE_UNSCALED && 1 << family & IN_PARTIAL)
        return reader_refuse(reader, is_older ? "rope_scaling" : "rope_parameters",
                             family == FAMILY_PHI3
                                 ? "rope_type \"default\": longrope cannot be computed"
                                 : "rope_type \"default\"");
    if (kind != ROPE_YARN && family == FAMILY_MINISTRAL3)
        return reader_refuse(reader, "rope_parameters", "an object with the settings of yarn");
    if (kind != ROPE_UNSCALED && read_scaling(reader, inner, kind)) return -1;
    if (1 << family & IN_PARTIAL && read_partial(reader_lacks(inner, rope_partial) ? reader : inner,
                                                 parts->partial_rotary_factor))
        return -1;
    if (family == FAMILY_MINISTRAL3 &&
        reader_key(inner, query_beta, "model.query_scaling_beta", NAN, NAN))
        return -1;
    return reader_key(reader_lacks(inner, "rope_theta") ? reader : inner, "rope_theta",
                      "model.rope_theta", parts->rope_theta > 0 ? parts->rope_theta : 10000, NAN);
}

int reader_rope_of_kinds(const struct config_reader *reader, const struct model_shape *parts) {
    struct config_reader kinds = *reader, older, all, windows;
    int older_kind, kind, windows_kind;
    kinds.root = json_member(reader->root, "rope_parameters");
    kinds.inside = "rope_parameters.";
    if (!reader_is_null(reader, "rope_parameters") && !cJSON_IsObject(kinds.root))
        return reader_refuse(reader, "rope_parameters", "an object");
    if (open_rope(&older, &older_kind, reader, "rope_scaling", "rope_scaling.") ||
        open_rope(&all, &kind, &kinds, "full_attention", "rope_parameters.full_attention.") ||
        open_rope(&windows, &windows_kind, &kinds, "sliding_attention",
                  "rope_parameters.sliding_attention."))
        return -1;
    if (windows_kind != ROPE_UNSCALED)
        return reader_refuse(&windows, "rope_type", "\"default\" in layers with a window");
    const bool is_older = older.root && older.root->child;
    reader_set(reader, "model.positions", POSITIONS_ROPE);
    reader_set(reader, "model.rope_scaling", ROPE_UNSCALED);
    if ((is_older ? older_kind : kind) != ROPE_UNSCALED &&
        read_scaling(reader, is_older ? &older : &all, is_older ? older_kind : kind))
        return -1;
    reader_set(reader, "model.rope_truncate", true); /* transformers looks for it elsewhere */
    if (is_older && !reader_lacks(&older, "rope_theta")) all = older;
    return reader_key(reader_lacks(&all, "rope_theta") ? reader : &all, "rope_theta",
                      "model.rope_theta", parts->rope_theta, NAN) ||
                   (reader_lacks(&windows, "rope_theta")
                        ? reader_key(reader, "rope_local_base_freq", "model.rope_theta_window",
                                     parts->rope_theta_window, NAN)
                        : reader_key(&windows, "rope_theta", "model.rope_theta_window", NAN, NAN))
               ? -1
               : 0;
}
