/* The configuration of a run: what a JSON file, --set flags and defaults resolve to.
 *
 * Every key is one row of config_table.inc, which drives the parser, the defaults, the ranges,
 * --help-config, the resolved dump, the JSON Schema and the reference in configs/README.md. A key
 * path such as "optimizer.lr" is also the path of its field in struct config.
 *
 * Order of precedence, later wins: default, model.init_from, model.preset, config file, --set. A
 * preset named by --set also beats sizes named in the file, never sizes named by --set. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "data/tokenize/tokenizer.h"
#include "kernels/backend.h"
#include "kernels/dtype.h"
#include "model/architecture/activations.h"
#include "model/architecture/architecture.h"
#include "model/architecture/parts.h"
#include "model/architecture/presets.h"

enum {
    CONFIG_STRING_MAX = 512,           /* bytes of a string value, with the final NUL */
    CONFIG_WORDS_MAX = 12,             /* entries of a list value */
    CONFIG_OPTION_LIMIT = 224,         /* rows the table may have */
    CONFIG_FILE_MAX = 1 << 20,         /* bytes of a config file */
    CONFIG_HEAD_MAX = 256,             /* n_embd / n_head at most */
    CONFIG_MICRO_TOKENS_MAX = 1 << 24, /* tokens in a micro-batch */
};

/* Precisions whose linear layers have operands in blocks that share a scale: X(NAME, name). */
#define BLOCK_PRECISIONS(X) \
    X(MXFP8, "mxfp8")       \
    X(MXFP4, "mxfp4")       \
    X(NVFP4, "nvfp4")

/* The number of a dtype; a format of the operands of linear layers, beside bf16: FP8 and the
 * formats of blocks; or AUTO. */
enum config_precision {
    CONFIG_PRECISION_FP32 = DTYPE_F32,
    CONFIG_PRECISION_FP16 = DTYPE_F16,
    CONFIG_PRECISION_BF16 = DTYPE_BF16,
    CONFIG_PRECISION_FP8 = DTYPE_COUNT,
#define X(NAME, ...) CONFIG_PRECISION_##NAME,
    BLOCK_PRECISIONS(X)
#undef X
        CONFIG_PRECISION_AUTO,
};

/* True if operands of linear layers are quantized; has_blocks: in blocks. */
static inline bool config_precision_quantizes(enum config_precision precision) {
    return precision >= CONFIG_PRECISION_FP8 && precision < CONFIG_PRECISION_AUTO;
}
static inline bool config_precision_has_blocks(enum config_precision precision) {
    return precision > CONFIG_PRECISION_FP8 && precision < CONFIG_PRECISION_AUTO;
}
enum config_preset {
    CONFIG_PRESET_NONE,
#define X(NAME, ...) CONFIG_PRESET_##NAME,
    MODEL_PRESETS(X)
#undef X
};
/* Hugging Face class written to config.json where several classes fit. */
enum config_class { CONFIG_CLASS_AUTO, CONFIG_CLASS_MISTRAL, CONFIG_CLASS_SEED_OSS };
/* Sequences of rows; auto: whole if masks mark these, else cut. */
enum config_pack { CONFIG_PACK_AUTO, CONFIG_PACK_WHOLE, CONFIG_PACK_CUT };
enum config_schedule {
    CONFIG_SCHEDULE_COSINE,
    CONFIG_SCHEDULE_LINEAR,
    CONFIG_SCHEDULE_CONSTANT,
    CONFIG_SCHEDULE_WSD,
};
/* X(NAME, name, keys): update rules (model/core/update_rule.h), and the keys of the block
 * "optimizer" that are used only if a rule that lists them is set. */
#define OPTIMIZERS(X)                                                         \
    X(ADAMW, adamw, "beta1 beta2 eps")                                        \
    X(MUON, muon,                                                             \
      "beta1 beta2 eps momentum nesterov adamw_lr scale newton_schulz_steps " \
      "newton_schulz_dtype")                                                  \
    X(LION, lion, "beta1 beta2")                                              \
    X(SGD, sgd, "momentum nesterov")
enum config_optimizer {
#define X(NAME, ...) CONFIG_OPTIMIZER_##NAME,
    OPTIMIZERS(X)
#undef X
};
enum config_dtype { CONFIG_DTYPE_FLOAT32, CONFIG_DTYPE_LOWER };
/* Factor of Muon's learning rate by the size of a matrix. */
enum config_muon_scale { CONFIG_SCALE_MATCH_RMS_ADAMW, CONFIG_SCALE_ORIGINAL };
enum config_newton_schulz {
    CONFIG_NEWTON_SCHULZ_BF16,
    CONFIG_NEWTON_SCHULZ_F32,
    CONFIG_NEWTON_SCHULZ_F16
};
enum config_moments { CONFIG_MOMENTS_FLOAT32, CONFIG_MOMENTS_BFLOAT16, CONFIG_MOMENTS_INT8 };
enum config_rounding { CONFIG_ROUNDING_NEAREST, CONFIG_ROUNDING_STOCHASTIC };
enum config_copy { CONFIG_COPY_AUTO, CONFIG_COPY_SPLIT, CONFIG_COPY_KEPT, CONFIG_COPY_CAST };
/* fp8 recipes: X(NAME, name, scales, element of the forward pass, of gradients, dtype of scales,
 * rows and columns of a block of elements that share a scale, rows in weights, rounding, true if
 * scales are those of previous steps). Blocks are those of a matrix whose columns a matmul reduces
 * over; 0: the whole extent. */
#define RECIPES(X)                                                                                 \
    X(TENSOR, "tensor", "amax of the tensor", E4M3, E5M2, F32, 0, 0, 0, SCALE_NEAREST, false)      \
    X(DELAYED, "delayed", "amax of previous steps", E4M3, E5M2, F32, 0, 0, 0, SCALE_NEAREST, true) \
    X(ROW, "row", "amax of each row of activations and each column of weights", E4M3, E5M2, F32,   \
      1, 0, 1, SCALE_NEAREST, false)                                                               \
    X(BLOCK, "block",                                                                              \
      "powers of two for blocks of 1 x 128, and 128 x 128 in weights; all in E4M3", E4M3, E4M3,    \
      E8M0, 1, 128, 128, SCALE_POWER_OF_TWO, false)
enum config_recipe {
#define X(NAME, ...) CONFIG_RECIPE_##NAME,
    RECIPES(X)
#undef X
};
enum config_format { CONFIG_FORMAT_HYBRID, CONFIG_FORMAT_E4M3 };
enum config_scales { CONFIG_SCALES_UP, CONFIG_SCALES_FLOOR };
/* Rows of data: texts, prompts with two answers or with one and a label, or prompts alone. */
enum config_rows { CONFIG_ROWS_TEXT, CONFIG_ROWS_PAIRS, CONFIG_ROWS_LABELLED, CONFIG_ROWS_PROMPTS };
/* X(NAME, name, ROWS, has_reference, nll_weight, keys): losses, the rows that each reads, true if
 * it compares answers with a reference model's, the default of objective.nll_weight, and its keys,
 * in the block "objective" and used if it is set. model/task/objective.h has all else. */
#define OBJECTIVES(X)                                                          \
    X(LANGUAGE, language, TEXT, false, 0, "")                                  \
    X(DPO, dpo, PAIRS, true, 0, "beta label_smoothing nll_weight")             \
    X(IPO, ipo, PAIRS, true, 0, "beta nll_weight")                             \
    X(ORPO, orpo, PAIRS, false, 1, "beta nll_weight")                          \
    X(KTO, kto, LABELLED, true, 0, "beta desirable_weight undesirable_weight") \
    X(SIMPO, simpo, PAIRS, false, 0, "beta label_smoothing nll_weight gamma")  \
    X(GRPO, grpo, PROMPTS, false, 0, "")
enum config_objective {
#define X(NAME, ...) CONFIG_OBJECTIVE_##NAME,
    OBJECTIVES(X)
#undef X
};
/* Kinds of GRPO's loss, by the names of TRL: X(NAME, name). */
#define GRPO_LOSSES(X)  \
    X(DAPO, dapo)       \
    X(GRPO, grpo)       \
    X(BNPO, bnpo)       \
    X(DR_GRPO, dr_grpo) \
    X(CISPO, cispo)
enum config_grpo_loss {
#define X(NAME, ...) CONFIG_GRPO_##NAME,
    GRPO_LOSSES(X)
#undef X
};
enum config_importance { CONFIG_IMPORTANCE_TOKEN, CONFIG_IMPORTANCE_SEQUENCE };
enum config_scale_rewards { CONFIG_REWARDS_GROUP, CONFIG_REWARDS_BATCH, CONFIG_REWARDS_NONE };
enum config_base {
    CONFIG_BASE_AUTO,
    CONFIG_BASE_FLOAT32,
    CONFIG_BASE_BFLOAT16,
    CONFIG_BASE_FLOAT16,
    CONFIG_BASE_NF4,
    CONFIG_BASE_FP8,
    CONFIG_BASE_FP8_BLOCK
};
enum config_reference { CONFIG_REFERENCE_START, CONFIG_REFERENCE_BASE };
enum config_adapter { CONFIG_ADAPTER_NONE, CONFIG_ADAPTER_LORA };
enum config_shard { CONFIG_SHARD_OPTIMIZER, CONFIG_SHARD_NONE };
enum config_on_error { CONFIG_ON_ERROR_STOP, CONFIG_ON_ERROR_CONTINUE };
enum config_resume { CONFIG_RESUME_NEVER, CONFIG_RESUME_AUTO };

/* Source of a key's value; a larger one wins. */
enum config_source { CONFIG_SOURCE_DEFAULT, CONFIG_SOURCE_FILE, CONFIG_SOURCE_FLAG };

/* List value: items[0..count) point to names in the table, which are static. */
struct config_words {
    int count;
    const char *items[CONFIG_WORDS_MAX];
};

/* Plain data: copy it by assignment; there is nothing to free. Units are those of the table. */
struct config {
    char name[CONFIG_STRING_MAX];
    enum config_precision precision;
    enum device device;
    int64_t seed;
    int64_t threads; /* 0: all cores */
    bool tf32, cuda_graphs, cuda_wgmma;
    enum autotune autotune;
    double autotune_seconds;
    char run_dir[CONFIG_STRING_MAX];
    struct {
        enum config_preset preset;
#define X(size) int64_t size;
        MODEL_SIZES(X)
#undef X
#define X(type, part, ...) type part;
        MODEL_PARTS(X)
#undef X
        enum config_class type;
        double dropout;                    /* probability in the embedding and both branches */
        char init_from[CONFIG_STRING_MAX]; /* "": random initialization */
    } model;
    struct {
        enum config_adapter type;
        int64_t rank;
        double alpha, dropout;
        struct config_words targets; /* none: all linear layers of the blocks */
        bool rslora;
        enum config_base base;
        char init_from[CONFIG_STRING_MAX]; /* "": A is random, B is zero */
    } adapter;
    struct {
        char train[CONFIG_STRING_MAX]; /* "tales" or a glob of token shards */
        char val[CONFIG_STRING_MAX];   /* the same, or "": no validation */
        int64_t seq_len;
        bool isolate; /* computed by setup_documents if it is not given */
        enum config_pack pack;
        enum tokenizer_kind tokenizer;
        char tokenizer_dir[CONFIG_STRING_MAX]; /* "": setup_tokenizer searches for it */
    } data;
    struct {
        enum config_objective objective;
        int64_t steps;
        double epochs;    /* 0: steps is given; else steps is computed once the data are open */
        int64_t patience; /* validations without a lower loss that end the run; 0: off */
        double minutes;   /* limit for one process; 0: no limit */
        int64_t micro_batch_size, grad_accum_steps;
        int64_t batch_tokens; /* 0: grad_accum_steps applies */
        enum recompute recompute;
    } train;
    struct {
        double beta, label_smoothing, nll_weight, gamma, desirable_weight, undesirable_weight;
        enum config_reference reference;
        bool dropout;
    } objective;
    struct {
        enum config_grpo_loss loss_type;
        enum config_importance importance_sampling_level;
        int64_t num_generations, texts_at_once, max_completion_length, num_iterations;
        double temperature;
        double epsilon, epsilon_high; /* epsilon_high 0: epsilon */
        double delta;                 /* 0: none */
        double beta;
        bool use_bias_correction_kl;
        enum config_scale_rewards scale_rewards;
        bool mask_truncated_completions;
        char stop[CONFIG_STRING_MAX]; /* "": none */
    } grpo;
    struct {
        char command[CONFIG_STRING_MAX]; /* "": the answer's match */
        char weights[CONFIG_STRING_MAX]; /* name=number,name=number; "": 1 each */
        double timeout;                  /* seconds */
        int64_t soft_punish_cache;       /* tokens; 0: no punishment */
        char match[CONFIG_STRING_MAX];   /* member of rows */
        char pattern[CONFIG_STRING_MAX]; /* POSIX extended; "": all of a completion */
    } reward;
    struct {
        char logits[CONFIG_STRING_MAX]; /* folder that --logits wrote; "": no distillation */
        double alpha, temperature;
    } distill;
    struct {
        enum config_optimizer name;
        double lr, min_lr;
        int64_t warmup_steps;
        enum config_schedule schedule;
        double decay_fraction; /* wsd only: part of the steps in the final decay */
        double beta1, beta2, eps, weight_decay;
        double grad_clip; /* 0: off */
        double momentum;  /* Muon and SGD */
        bool nesterov;
        double adamw_lr; /* Muon: peak rate of what AdamW updates; 0: lr */
        enum config_muon_scale scale;
        int64_t newton_schulz_steps;
        enum config_newton_schulz newton_schulz_dtype;
        enum config_moments moments;
        int64_t min_8bit_size; /* with int8: elements of the smallest tensor that has them */
        bool embeddings_8bit;
        enum config_rounding rounding_8bit;
    } optimizer;
    struct {
        bool enabled;
        struct config_words float32;        /* operations kept in float32 */
        struct config_words lower16;        /* linear layers that are not quantized */
        double lower16_first, lower16_last; /* blocks that are not; below 1: part of all */
        bool lower16_forward;               /* only the backward pass quantizes */
        enum config_dtype residual;
    } autocast;
    struct {
        enum config_recipe recipe;
        enum config_format format;
        bool power_of_two;
        int64_t amax_history_length, margin;
        bool fast_accumulation, require;
    } fp8;
    struct {
        enum config_format format;
        enum config_scales scales;
    } mx;
    struct {
        bool stochastic_rounding, hadamard, square_blocks;
    } nvfp4;
    struct {
        double at; /* step, or below 1 a part of all steps; 0: never */
        enum config_precision precision;
    } precision_switch;
    struct {
        enum config_dtype dtype;
    } gradients;
    struct {
        enum config_copy copy;
        bool keep_quantized;
    } weights;
    struct {
        bool optimizer, weights, gradients, activations;
    } offload;
    struct {
        enum config_shard shard;
        enum config_dtype gradients;
    } ranks;
    struct {
        double init_scale, growth_factor, backoff_factor;
        int64_t growth_interval;
        double min_scale;
    } loss_scale;
    struct {
        int64_t every, batches;          /* every 0: never */
        char choices[CONFIG_STRING_MAX]; /* "": none */
        int64_t choices_every;           /* 0: as `every` */
    } eval;
    struct {
        int64_t every, keep;  /* every 0: only at the end */
        bool keep_best;       /* by validation loss */
        bool reset_optimizer; /* begin with moments of 0 if the checkpoint has another optimizer */
        double shard_gb;      /* largest amount of data in a file of tensors, in 1e9 bytes */
        bool background;      /* written while training continues, if there is memory */
        enum config_on_error on_error;
        enum config_resume resume;
    } checkpoint;
    struct {
        int64_t every; /* 0: never */
        char prompt[CONFIG_STRING_MAX];
        int64_t tokens;
        double temperature;        /* 0: always the likeliest token */
        int64_t top_k;             /* 0: all tokens */
        double top_p;              /* 1: all tokens */
        double min_p;              /* 0: all tokens */
        double repetition_penalty; /* 1: none */
        bool exact;
    } sample;
    struct {
        int64_t every;
        bool metrics;
    } log;

    bool warmup_cut;             /* optimizer.warmup_steps was longer than the run */
    bool without_val;            /* eval.every is ignored: the text has no validation part */
    struct config_words removed; /* keys of an earlier version that changed its run */
    int64_t rank_count;          /* processes that train together, set by their launcher; >= 1 */
    int64_t distill_top;         /* stored logits of a token, set by setup_distillation; 0: none */
    int64_t packed_sequences;    /* of data.train if they are packed whole, set by setup_documents;
                                  * 0: the text is cut, or not open */
    double masked_share;         /* share of the targets of data.train that do not count; 0: less
                                  * than a sixteenth. Set by setup_documents */
    int64_t samples; /* texts that a model for sampling generates at once, set by the command that
                      * opens it; 0 means one */

    /* enum config_source of each row of the table; read it with config_given(). */
    unsigned char sources[CONFIG_OPTION_LIMIT];
};

/* True if the name of a text is that of a built-in corpus. */
static inline bool config_is_built_in(const char *text) {
    return strcmp(text, "tales") == 0 || strcmp(text, "sums") == 0;
}

/* Returns the rows of data that the objective reads. */
static inline enum config_rows config_rows(const struct config *config) {
#define X(NAME, name, ROWS, ...) CONFIG_ROWS_##ROWS,
    static const enum config_rows rows[] = {OBJECTIVES(X)};
#undef X
    return rows[config->train.objective];
}

static inline bool config_reads_text(const struct config *config) {
    return config_rows(config) == CONFIG_ROWS_TEXT;
}

/* True if rows become two documents each. */
static inline bool config_reads_pairs(const struct config *config) {
    return config_rows(config) == CONFIG_ROWS_PAIRS || config_rows(config) == CONFIG_ROWS_LABELLED;
}

static inline bool config_reads_prompts(const struct config *config) {
    return config_rows(config) == CONFIG_ROWS_PROMPTS;
}

/* Returns the number of texts that a run generates at once while it trains; 0: none. */
static inline int64_t config_texts(const struct config *config) {
    const int64_t step = config->train.micro_batch_size * config->train.grad_accum_steps;
    const int64_t most = step < config->data.seq_len ? step : config->data.seq_len;
    if (!config_reads_prompts(config)) return config->sample.every > 0;
    return config->grpo.texts_at_once < most ? config->grpo.texts_at_once : most;
}

/* Returns the number of samples that a step has of each sequence of the data. */
static inline int64_t config_draws(const struct config *config) {
    return config_reads_prompts(config) ? config->grpo.num_generations : 1;
}

/* True if the objective compares answers with those of a reference model. */
static inline bool config_has_reference(const struct config *config) {
#define X(NAME, name, ROWS, has_reference, ...) has_reference,
    static const bool has[] = {OBJECTIVES(X)};
#undef X
    return has[config->train.objective];
}

/* Returns the default of objective.nll_weight. */
static inline double config_nll_weight(const struct config *config) {
#define X(NAME, name, ROWS, has_reference, nll_weight, ...) nll_weight,
    static const double weights[] = {OBJECTIVES(X)};
#undef X
    return weights[config->train.objective];
}

/* True if the objective has the dropout that the config asks for. */
static inline bool config_drops(const struct config *config) {
    return config_reads_text(config) || config->objective.dropout;
}
