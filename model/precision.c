#include "model/precision.h"

#include <string.h>

#include "data/base/error.h"
#include "model/config/config_keys.h"

enum policy { POLICY_LOWER, POLICY_FLOAT32, POLICY_INPUT };

static const char *const names[] = {
#define X(id, name, policy) [OPERATION_##id] = name,
    AUTOCAST_OPERATIONS(X)
#undef X
};

static const enum policy policies[] = {
#define X(id, name, policy) [OPERATION_##id] = policy,
    AUTOCAST_OPERATIONS(X)
#undef X
};

const char *precision_operation_name(enum autocast_operation operation) {
    return names[operation];
}

bool precision_operation_is_choice(enum autocast_operation operation) {
    return policies[operation] != POLICY_FLOAT32;
}

static enum dtype choose_lower(const struct config *config, const struct backend *be, char *note) {
    switch (config->precision) {
    case CONFIG_PRECISION_FP16: return DTYPE_F16;
    case CONFIG_PRECISION_BF16: return DTYPE_BF16;
    case CONFIG_PRECISION_FP32: return DTYPE_F32;
    case CONFIG_PRECISION_AUTO: break;
    }
    const bool *native = be->device.native;
    enum dtype lower = native[DTYPE_BF16] ? DTYPE_BF16 : native[DTYPE_F16] ? DTYPE_F16 : DTYPE_F32;
    snprintf(note, ERROR_MAX, "precision \"auto\": %s, because this %s has %s", dtype_name(lower),
             be->device.kind == BACKEND_CUDA ? "GPU" : be->device.name,
             native[DTYPE_BF16]  ? "bf16 matrix products"
             : native[DTYPE_F16] ? "fp16 matrix products but no bf16"
                                 : "no fast 16-bit matrix products");
    return lower;
}

static bool kept_in_float32(const struct config *config, int operation) {
    for (int i = 0; i < config->autocast.float32.count; i++)
        if (strcmp(config->autocast.float32.items[i], names[operation]) == 0) return true;
    return false;
}

static enum dtype narrower(enum dtype a, enum dtype b) {
    return a == DTYPE_F32 ? b : a;
}

static void resolve_tensors(struct precision *p) {
    const enum dtype *operation = p->operation;
    p->ln1_out = operation[OPERATION_QKV];
    p->qkv = narrower(operation[OPERATION_QKV], operation[OPERATION_ATTENTION]);
    p->attention_out =
        narrower(operation[OPERATION_ATTENTION], operation[OPERATION_ATTENTION_PROJECTION]);
    p->attention_projection = operation[OPERATION_ATTENTION_PROJECTION];
    p->ln2_out = operation[OPERATION_MLP_FC];
    p->mlp_fc = narrower(operation[OPERATION_MLP_FC], operation[OPERATION_GELU]);
    p->mlp_gelu = narrower(operation[OPERATION_GELU], operation[OPERATION_MLP_PROJECTION]);
    p->mlp_projection = operation[OPERATION_MLP_PROJECTION];
    p->lnf_out = operation[OPERATION_LM_HEAD];
    p->logits = operation[OPERATION_LM_HEAD];
}

int precision_resolve(struct precision *precision, char *note, const struct config *config,
                      const struct backend *be, char *error) {
    struct precision *p = precision;
    memset(p, 0, sizeof *p);
    note[0] = 0;
    p->lower = config->autocast.enabled ? choose_lower(config, be, note) : DTYPE_F32;
    if (p->lower == DTYPE_BF16 && !be->device.computes[DTYPE_BF16])
        return fail(error,
                    "precision \"bf16\": %s cannot compute in bf16\n"
                    "use \"precision\": \"fp16\", which scales the loss to make up for its range",
                    be->device.description);
    for (int i = 0; i < AUTOCAST_OPERATION_COUNT; i++) {
        bool float32 = policies[i] == POLICY_FLOAT32 || kept_in_float32(config, i);
        p->operation[i] = float32 ? DTYPE_F32 : p->lower;
    }
    if (policies[OPERATION_GELU] == POLICY_INPUT && p->operation[OPERATION_GELU] != DTYPE_F32)
        p->operation[OPERATION_GELU] = p->operation[OPERATION_MLP_FC];
    p->residual = config->autocast.residual == CONFIG_DTYPE_LOWER ? p->lower : DTYPE_F32;
    p->gradients = config->gradients.dtype == CONFIG_DTYPE_LOWER ? p->lower : DTYPE_F32;
    p->scale_loss = p->lower == DTYPE_F16;
    resolve_tensors(p);
    return 0;
}

enum config_precision precision_setting(const struct precision *precision,
                                        const struct config *config) {
    static const enum config_precision settings[] = {[DTYPE_F32] = CONFIG_PRECISION_FP32,
                                                     [DTYPE_F16] = CONFIG_PRECISION_FP16,
                                                     [DTYPE_BF16] = CONFIG_PRECISION_BF16};
    return config->precision == CONFIG_PRECISION_AUTO ? settings[precision->lower]
                                                      : config->precision;
}

void precision_warnings(const struct precision *precision, const struct config *config, char *text,
                        size_t size) {
    const char *dtype = dtype_name(precision->lower);
    size_t used = 0;
    text[0] = 0;
    if (!precision->scale_loss && config_given(config, "loss_scale"))
        used = (size_t)snprintf(text, size,
                                "the loss_scale block has no effect: losses are scaled in fp16 "
                                "only, and this run computes in %s\n",
                                dtype);
    const struct {
        const char *key;
        bool set;
    } lowered[] = {
        {"autocast.float32", config->autocast.float32.count > 0},
        {"autocast.residual", config->autocast.residual == CONFIG_DTYPE_LOWER},
        {"gradients.dtype", config->gradients.dtype == CONFIG_DTYPE_LOWER},
    };
    for (size_t i = 0; precision->lower == DTYPE_F32 && i < sizeof lowered / sizeof *lowered; i++)
        if (lowered[i].set && used < size)
            used += (size_t)snprintf(text + used, size - used,
                                     "%s has no effect: this run computes in fp32 everywhere\n",
                                     lowered[i].key);
}

bool precision_branch_is_residual(const struct precision *precision) {
    return precision->attention_projection == precision->residual &&
           precision->mlp_projection == precision->residual;
}

/* Adds a word to the line, or to a new one behind the labels of the banner. */
static void print_word(FILE *out, const char *word, int *column) {
    enum { INDENT = 13, WIDTH = 79 };
    int length = (int)strlen(word) + 1;
    if (*column + length > WIDTH) {
        fprintf(out, "\n%*s", INDENT - 1, "");
        *column = INDENT - 1;
    }
    fprintf(out, " %s", word);
    *column += length;
}

void precision_print(FILE *out, const struct precision *precision) {
    const struct precision *p = precision;
    int column = 12;
    if (p->lower == DTYPE_F32) {
        print_word(out, "fp32 everywhere", &column);
        return;
    }
    for (int pass = 0; pass < 2; pass++) {
        enum dtype wanted = pass == 0 ? p->lower : DTYPE_F32;
        char label[16];
        snprintf(label, sizeof label, "%s:", dtype_name(wanted));
        if (pass > 0) column = 1 << 16; /* begins a line */
        print_word(out, label, &column);
        for (int i = 0; i < AUTOCAST_OPERATION_COUNT; i++)
            if (p->operation[i] == wanted) print_word(out, names[i], &column);
        if (p->residual == wanted) print_word(out, "residual", &column);
        if (p->gradients == wanted) print_word(out, "gradients", &column);
    }
}
