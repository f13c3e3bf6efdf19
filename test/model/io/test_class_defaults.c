/* Keys that a config.json lacks stand for the defaults of the class in transformers: a file with
 * all keys, as transformers writes them, is read like one with sizes alone. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "data/util/json.h"
#include "model/architecture/families.h"
#include "model/config/config_keys.h"
#include "test/model/io/huggingface_fixture.h"

TestSuite(class_defaults, .init = make_folder, .fini = remove_folder);

/* Keys that a short file has. */
static const char *const kept[] = {"model_type",
                                   "hidden_size",
                                   "intermediate_size",
                                   "num_attention_heads",
                                   "num_hidden_layers",
                                   "vocab_size",
                                   "n_embd",
                                   "n_head",
                                   "n_layer",
                                   "n_positions",
                                   "text_config",
                                   "max_position_embeddings",
                                   "use_sliding_window"};

static void shorten(cJSON *object) {
    for (cJSON *member = object->child, *next; member; member = next) {
        bool keeps = false;
        next = member->next;
        for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
            keeps |= strcmp(member->string, kept[i]) == 0;
        if (cJSON_IsObject(member)) shorten(member);
        if (!keeps) cJSON_Delete(cJSON_DetachItemViaPointer(object, member));
    }
}

struct defaults {
    struct model_shape shape;
    struct huggingface_tokens tokens;
};

static struct defaults defaults_of(const cJSON *row) {
    struct config config;
    struct defaults all;
    char *text = cJSON_PrintUnformatted(row);
    SUCCEEDS(read_config_text(&config, text));
    SUCCEEDS(huggingface_read_tokens(&all.tokens, &config, folder, &error));
    all.shape = config_shape(&config);
    free(text);
    return all;
}

/* HyperCLOVA X's scale is a power in transformers, and the inverse of a root here. */
static bool equal(double a, double b) {
    return fabs(a - b) <= 0x1p-52 * fabs(a);
}

Test(class_defaults, absent_keys) {
    struct json_file file;
    cJSON *row;
    int rows = 0;
    SUCCEEDS(json_file_open(&file, "test/golden/class_defaults.json", &error));
    cJSON_ArrayForEach(row, json_member(file.root, "rows")) {
        const struct defaults whole = defaults_of(row);
        const char *type = json_text(row, "model_type");
        shorten(row);
        const struct defaults absent = defaults_of(row);
#define X(name, ...)                                                                \
    cr_expect(equal((double)whole.shape.name, (double)absent.shape.name),           \
              "%s: model.%s is %g, not %g", type, #name, (double)absent.shape.name, \
              (double)whole.shape.name);
#define Y(kind, name, ...) X(name)
        MODEL_SIZES(X)
        MODEL_PARTS(Y)
#undef X
#undef Y
        cr_expect(whole.tokens.begin == absent.tokens.begin &&
                      whole.tokens.pad == absent.tokens.pad,
                  "%s: begin %d, pad %d", type, (int)absent.tokens.begin, (int)absent.tokens.pad);
        cr_expect(whole.tokens.end_count == absent.tokens.end_count &&
                      memcmp(whole.tokens.ends, absent.tokens.ends,
                             (size_t)whole.tokens.end_count * sizeof *whole.tokens.ends) == 0,
                  "%s: ends", type);
        rows++;
    }
    cr_expect_eq(rows, 23);
    json_file_close(&file);
}
