#include "model/config/config_keys.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/arena.h"
#include "model/architecture/autocast_sites.h"

static const char *const precision_words[] = {
#define X(NAME, name, ...) name,
    DTYPES(X)
#undef X
        "fp8",
    "auto", NULL};
static const char *const device_words[] = {"auto", "cpu", "cuda", NULL};
static const char *const preset_words[] = {"",
#define X(NAME, name, ...) name,
                                           MODEL_PRESETS(X)
#undef X
                                               NULL};
static const char *const type_words[] = {"auto", "mistral", NULL};
static const char *const tokenizer_words[] = {"bytes", "gpt2", "files", NULL};
static const char *const schedule_words[] = {"cosine", "linear", "constant", "wsd", NULL};
static const char *const dtype_words[] = {"float32", "lower", NULL};
static const char *const moments_words[] = {"float32", "bfloat16", NULL};
static const char *const copy_words[] = {"auto", "split", "kept", "cast", NULL};
static const char *const norm_words[] = {"layernorm", "rmsnorm", NULL};
static const char *const positions_words[] = {"learned", "rope", NULL};
static const char *const rope_scaling_words[] = {"none", "llama3", NULL};
static const char *const mlp_words[] = {"gelu", "swiglu", NULL};
static const char *const bias_words[] = {"all", "qkv", "none", NULL};
static const char *const recipe_words[] = {"tensor", "delayed", "row", NULL};
static const char *const format_words[] = {"hybrid", "e4m3", NULL};
static const char *const recompute_words[] = {"none", "gelu", "layer", NULL};
static const char *const shard_words[] = {"optimizer", "none", NULL};
static const char *const on_error_words[] = {"stop", "continue", NULL};
static const char *const resume_words[] = {"never", "auto", NULL};

/* The key is spelled once: it is the path of the field as well, and a row whose field has another
 * type than the row says does not compile. */
#define FIELD_OF(type_, field_) \
    _Generic(((struct config *)0)->field_, type_ : offsetof(struct config, field_))

#define INTEGER(field_, initial_, minimum_, maximum_, ...)                               \
    {                                                                                    \
        .key = #field_, .type = CONFIG_INTEGER, .offset = FIELD_OF(int64_t, field_),     \
        .initial = (initial_), .minimum = (minimum_), .maximum = (maximum_), __VA_ARGS__ \
    }
#define NUMBER(field_, initial_, minimum_, maximum_, ...)                                \
    {                                                                                    \
        .key = #field_, .type = CONFIG_NUMBER, .offset = FIELD_OF(double, field_),       \
        .initial = (initial_), .minimum = (minimum_), .maximum = (maximum_), __VA_ARGS__ \
    }
#define BOOLEAN(field_, initial_, ...)                                            \
    {                                                                             \
        .key = #field_, .type = CONFIG_BOOLEAN, .offset = FIELD_OF(bool, field_), \
        .initial = (initial_), .maximum = 1, __VA_ARGS__                          \
    }
#define STRING(field_, initial_, least_length_, ...)                                      \
    {                                                                                     \
        .key = #field_, .type = CONFIG_STRING, .offset = FIELD_OF(char *, field_),        \
        .text = (initial_), .minimum = (least_length_), .maximum = CONFIG_STRING_MAX - 1, \
        __VA_ARGS__                                                                       \
    }
/* gcc and clang give an enum without negative values the type unsigned int. */
#define ENUM(field_, initial_, words_, ...)                                        \
    {                                                                              \
        .key = #field_, .type = CONFIG_ENUM, .offset = FIELD_OF(unsigned, field_), \
        .initial = (initial_), .words = (words_), __VA_ARGS__                      \
    }
#define LIST(field_, words_, ...)                                                             \
    {                                                                                         \
        .key = #field_, .type = CONFIG_LIST, .offset = FIELD_OF(struct config_words, field_), \
        .words = (words_), __VA_ARGS__                                                        \
    }
#define HELP(text_)     .help = text_
#define COMPUTED(rule_) .computed = rule_
#define ABOVE_MINIMUM   .above_minimum = true
#define BELOW_MAXIMUM   .below_maximum = true

_Static_assert((int)AUTOCAST_WORD_COUNT <= (int)CONFIG_WORDS_MAX,
               "struct config_words must hold every site");

#define PRESET_RULE "or the preset's, or init_from's"

const struct config_option config_options[] = {
    STRING(name, "", 0, COMPUTED("the config file's name without .json"),
           HELP("Name of the run, and of its folder in run_dir.")),
    ENUM(
        precision, CONFIG_PRECISION_AUTO, precision_words,
        HELP(
            "Arithmetic of the run. auto takes bf16 where that is faster than fp32, else fp32 on a "
            "CPU and fp16 on a GPU. fp8 is bf16 whose linear layers read 8 bits; auto never takes "
            "it.")),
    ENUM(device, CONFIG_DEVICE_AUTO, device_words,
         HELP("Where to train. auto takes the GPU if there is one.")),
    INTEGER(seed, 1, 0, 9007199254740991.0,
            HELP("Seed of initialization, data order and sampling.")),
    INTEGER(threads, 0, 0, 4096, HELP("CPU threads; 0 = all cores.")),
    BOOLEAN(tf32, false,
            HELP("GPU only: fp32 matrix products may round what they read to 10 bits of fraction, "
                 "several times as fast.")),
    BOOLEAN(cuda_graphs, true,
            HELP("GPU only: record the operations of a step and start them together, which saves "
                 "the time between them. The same bits as without.")),
    BOOLEAN(cuda_wgmma, true,
            HELP("GPU only: attention by Hopper's own instructions where it has heads of 64 or 128 "
                 "values. false: by those of sm_80, as on other GPUs. The last bits differ.")),
    BOOLEAN(autotune, false,
            HELP("Time the algorithms of each matrix product before the first step. The "
                 "choice is kept in the run's folder, so that a resumed run computes the same.")),
    STRING(run_dir, "runs", 1, HELP("Folder in which the run makes its own folder.")),

    ENUM(model.preset, CONFIG_PRESET_NONE, preset_words,
         HELP("Sizes and parts of a well-known model. Those that are given beside it win.")),
    INTEGER(model.n_layer, 4, 1, 1024, COMPUTED(PRESET_RULE), HELP("Transformer blocks.")),
    INTEGER(model.n_head, 4, 1, 1024, COMPUTED(PRESET_RULE), HELP("Attention heads.")),
    INTEGER(model.n_kv_head, 0, 0, 1024, COMPUTED(PRESET_RULE),
            HELP("Heads of keys and values, which n_head / n_kv_head heads of queries share; 0 = "
                 "n_head.")),
    INTEGER(model.head_dim, 0, 0, 256, COMPUTED(PRESET_RULE),
            HELP("Width of a head; 0 = n_embd / n_head.")),
    INTEGER(model.n_embd, 256, 1, 65536, COMPUTED(PRESET_RULE),
            HELP("Width of the residual stream.")),
    INTEGER(model.n_inner, 0, 0, 262144, COMPUTED(PRESET_RULE),
            HELP("Width of the MLP; 0 = 4 n_embd, or with swiglu 8/3 n_embd rounded up to a "
                 "multiple of 64.")),
    INTEGER(model.n_positions, 256, 1, 1048576, COMPUTED(PRESET_RULE),
            HELP("Longest context in tokens.")),
    INTEGER(model.vocab_size, 256, 2, 1048576,
            COMPUTED(PRESET_RULE ", or 50257 with data.tokenizer gpt2"),
            HELP("Number of different tokens.")),
    ENUM(model.norm, NORM_LAYERNORM, norm_words, COMPUTED(PRESET_RULE),
         HELP("Normalization before attention, MLP and head.")),
    NUMBER(model.norm_eps, 1e-5, 1e-12, 1, COMPUTED(PRESET_RULE),
           HELP("Added to the variance, or mean square, that a norm divides by.")),
    ENUM(model.positions, POSITIONS_LEARNED, positions_words, COMPUTED(PRESET_RULE),
         HELP("How the model knows where a token stands: a learned embedding, or rope, rotated "
              "queries and keys.")),
    NUMBER(model.rope_theta, 10000, 1, 1e12, COMPUTED(PRESET_RULE),
           HELP("rope only: base of its wavelengths.")),
    ENUM(model.rope_scaling, ROPE_UNSCALED, rope_scaling_words, COMPUTED(PRESET_RULE),
         HELP("rope only: how long wavelengths are stretched for longer contexts.")),
    NUMBER(model.rope_factor, 8, 1, 1e6, COMPUTED(PRESET_RULE),
           HELP("llama3 scaling: by how much.")),
    NUMBER(model.rope_low_freq_factor, 1, 1e-6, 1e6, COMPUTED(PRESET_RULE),
           HELP("llama3 scaling: wavelengths above rope_original_positions / this are stretched in "
                "full.")),
    NUMBER(model.rope_high_freq_factor, 4, 1e-6, 1e6, COMPUTED(PRESET_RULE),
           HELP("llama3 scaling: those below rope_original_positions / this are not.")),
    INTEGER(model.rope_original_positions, 8192, 1, 1048576, COMPUTED(PRESET_RULE),
            HELP("llama3 scaling: the context before it was stretched.")),
    BOOLEAN(model.qk_norm, false, COMPUTED(PRESET_RULE),
            HELP("Whether each head's queries and keys are normalized (RMS norm) before they are "
                 "compared.")),
    ENUM(model.mlp, MLP_GELU, mlp_words, COMPUTED(PRESET_RULE),
         HELP("gelu, or swiglu: a gated linear unit of SiLU.")),
    ENUM(model.bias, BIAS_ALL, bias_words, COMPUTED(PRESET_RULE),
         HELP("Which linear layers have a bias.")),
    BOOLEAN(model.tied_head, true, COMPUTED(PRESET_RULE),
            HELP("Whether the head is the token embedding, or has weights of its own.")),
    ENUM(
        model.type, CONFIG_CLASS_AUTO, type_words, COMPUTED(PRESET_RULE),
        HELP(
            "Class of Hugging Face that checkpoints and exports have. auto: the one that has these "
            "parts; mistral: MistralForCausalLM instead of LlamaForCausalLM, which computes the "
            "same.")),
    STRING(
        model.init_from, "", 0,
        HELP("Folder whose weights the run starts from: a checkpoint, or a GPT-2, Llama, Mistral "
             "or Qwen of Hugging Face; \"\" = random weights.")),

    STRING(data.train, "tales", 1,
           HELP("Training text: a glob of token shards, or tales, the built-in corpus.")),
    STRING(data.val, "tales", 0, COMPUTED("or \"\" when data.train is not tales"),
           HELP("Validation text, like data.train; \"\" = none.")),
    INTEGER(data.seq_len, 256, 1, 1048576, HELP("Tokens per sequence; at most model.n_positions.")),
    ENUM(
        data.tokenizer, CONFIG_TOKENIZER_BYTES, tokenizer_words, COMPUTED("or that of init_from"),
        HELP("How text became tokens: needed for samples, prompts and checkpoints. gpt2 and files: "
             "as the files in tokenizer_dir say; what is kept with the run is gpt2 for byte pairs "
             "as GPT-2 has them, and files for all others.")),
    STRING(data.tokenizer_dir, "", 0,
           COMPUTED("the folder of init_from, or where ./prepare found the tokenizer"),
           HELP("gpt2 and files only: folder with vocab.json and merges.txt, or tokenizer.json.")),

    INTEGER(train.steps, 600, 1, 1e9, HELP("Optimizer steps of the whole run.")),
    NUMBER(train.epochs, 0, 0, 1e6,
           HELP("Passes over data.train, such as 3 or 0.5: train.steps is then computed from it. "
                "0 = train.steps counts.")),
    NUMBER(train.minutes, 0, 0, 1e7,
           HELP("Minutes after which the program finishes its step, saves and ends; --resume "
                "continues. 0 = no limit.")),
    INTEGER(train.patience, 0, 0, 1e6,
            HELP("Early stopping: the run ends after so many validations in a row without a lower "
                 "loss. 0 = off.")),
    INTEGER(train.micro_batch_size, 8, 1, 65536,
            HELP("Sequences per forward and backward pass; memory grows with it.")),
    INTEGER(train.grad_accum_steps, 1, 1, 65536,
            HELP("Micro-batches of each rank whose gradients add up to one step.")),
    INTEGER(train.batch_tokens, 0, 0, 1e12,
            HELP("Tokens of one step, of all ranks together: grad_accum_steps is then worked out "
                 "from it, for any number of ranks. 0 = micro_batch_size x grad_accum_steps x "
                 "seq_len x ranks.")),
    ENUM(train.recompute, CONFIG_RECOMPUTE_NONE, recompute_words,
         HELP("What the backward pass computes once more instead of keeping it: less memory, the "
              "same bits. gelu: each layer's GELU; layer: all of a layer but its input.")),

    NUMBER(optimizer.lr, 1e-3, 0, 10, HELP("Learning rate at its peak.")),
    NUMBER(optimizer.min_lr, 0, 0, 10, HELP("Learning rate at the end of the decay.")),
    INTEGER(optimizer.warmup_steps, 0, 0, 1e9,
            HELP("Steps in which the learning rate rises from 0 to lr.")),
    ENUM(optimizer.schedule, CONFIG_SCHEDULE_COSINE, schedule_words,
         HELP("Decay after the warmup. wsd stays at lr, then falls linearly at the end.")),
    NUMBER(optimizer.decay_fraction, 0.2, 0, 1,
           HELP("wsd only: the part of all steps that the final decay takes.")),
    NUMBER(optimizer.beta1, 0.9, 0, 1, BELOW_MAXIMUM, HELP("AdamW, decay of the first moment.")),
    NUMBER(optimizer.beta2, 0.95, 0, 1, BELOW_MAXIMUM, HELP("AdamW, decay of the second moment.")),
    NUMBER(optimizer.eps, 1e-8, 1e-30, 1, HELP("AdamW, added to the root of the second moment.")),
    NUMBER(optimizer.weight_decay, 0.1, 0, 10,
           HELP("AdamW, decoupled decay of matrices and embeddings.")),
    NUMBER(optimizer.grad_clip, 1, 0, 1e6,
           HELP("Largest global norm of the gradients; 0 = no clipping.")),
    ENUM(optimizer.moments, CONFIG_MOMENTS_FLOAT32, moments_words,
         HELP("Storage of AdamW's moments; bfloat16, rounded stochastically, takes half the "
              "memory.")),

    BOOLEAN(autocast.enabled, true,
            HELP("false computes in float32 everywhere, whatever the precision.")),
    LIST(autocast.float32, autocast_words,
         HELP("Operations that stay in float32 in a 16-bit run.")),
    LIST(autocast.lower16, linear_words, HELP("Linear layers that stay in bf16 in an fp8 run.")),
    ENUM(autocast.residual, CONFIG_DTYPE_FLOAT32, dtype_words,
         HELP("Storage of the residual stream; lower = the 16-bit type of the run.")),

    ENUM(fp8.recipe, CONFIG_RECIPE_TENSOR, recipe_words,
         HELP("What the scale of 8-bit values is made of. tensor: the tensor itself; delayed: the "
              "largest values of the steps before; row: each row of activations and each column of "
              "weights.")),
    ENUM(fp8.format, CONFIG_FORMAT_HYBRID, format_words,
         HELP("hybrid: E4M3 in the forward pass, E5M2 for gradients; e4m3: E4M3 for all.")),
    BOOLEAN(fp8.power_of_two, false, HELP("Whether scales are rounded down to powers of two.")),
    INTEGER(fp8.amax_history_length, 1024, 1, 65536,
            HELP("delayed only: the steps whose largest values count.")),
    INTEGER(fp8.margin, 0, 0, 16,
            HELP("delayed only: scales are divided by 2 to this power, so that values may grow.")),
    BOOLEAN(
        fp8.fast_accumulation, true,
        HELP("GPU only: whether tensor cores may add up the forward pass with fewer bits, which "
             "is faster.")),
    BOOLEAN(fp8.require, false,
            HELP("GPU only: true ends the run where there are no 8-bit matrix products; false "
                 "computes the same numbers with bf16 products.")),

    ENUM(gradients.dtype, CONFIG_DTYPE_FLOAT32, dtype_words,
         HELP("Storage of weight gradients; lower = the 16-bit type of the run.")),

    ENUM(
        weights.copy, CONFIG_COPY_AUTO, copy_words,
        HELP(
            "Where 16-bit weights come from, to the same bits. split: they are the upper halves of "
            "the masters, bf16 only; kept: a copy beside the masters; cast: copied a layer at a "
            "time when needed, less memory and slower. auto: split in bf16, kept in fp16.")),

    BOOLEAN(offload.optimizer, false,
            HELP("GPU only: moments, and the remainders of split weights, stay in memory of the "
                 "host, where the update reads and writes them.")),

    ENUM(ranks.shard, CONFIG_SHARD_OPTIMIZER, shard_words,
         HELP("What several ranks divide among them. optimizer: each updates a part of the weights "
              "and has the moments of that part only; none: each updates all.")),
    ENUM(ranks.gradients, CONFIG_DTYPE_FLOAT32, dtype_words,
         HELP("How gradients travel between ranks; lower = in the 16-bit type of the run: half the "
              "traffic, rounded once more.")),

    NUMBER(loss_scale.init_scale, 65536, 1e-6, 0x1p32, HELP("First loss scale.")),
    NUMBER(loss_scale.growth_factor, 2, 1.001, 1024,
           HELP("Factor after growth_interval steps without an overflow.")),
    NUMBER(loss_scale.backoff_factor, 0.5, 0.001, 0.999,
           HELP("Factor after a step whose gradients overflowed.")),
    INTEGER(loss_scale.growth_interval, 2000, 1, 1e9,
            HELP("Steps in a row without an overflow before the scale grows.")),
    /* 2^-14 is the smallest normal fp16 number: unscaled gradients of 65504 * 2^14, about 1e9,
     * still pass there. A run that overflows even so is diverging, and scaling lower cannot help
     * it. */
    NUMBER(loss_scale.min_scale, 0x1p-14, 1e-6, 0x1p32,
           HELP("Floor of the scale, best a power of two. Overflow that persists there stops the "
                "run; a scale below 1 already means that training is in trouble.")),

    INTEGER(eval.every, 100, 0, 1e9, COMPUTED("or 0 without data.val"),
            HELP("Steps between validations; 0 = never.")),
    INTEGER(eval.batches, 20, 1, 1e6,
            HELP("Micro-batches per validation, fewer if the text ends before.")),

    INTEGER(checkpoint.every, 0, 0, 1e9,
            HELP("Steps between checkpoints; 0 = only at the end of the run.")),
    INTEGER(checkpoint.keep, 2, 1, 1e6, HELP("Newest checkpoints that stay on disk.")),
    BOOLEAN(checkpoint.keep_best, false,
            HELP("Whether to save after each validation with the lowest loss so far; the newest "
                 "such checkpoint stays on disk beside those of checkpoint.keep.")),
    NUMBER(
        checkpoint.shard_gb, 5, 1e-6, 1e6,
        HELP("GB (1e9 bytes) of tensors in a file at most; larger models and moments are written "
             "in several, with an index.")),
    BOOLEAN(checkpoint.background, true,
            HELP("Whether training continues while a checkpoint is written, from a copy of weights "
                 "and moments in memory of the host. Where there is no memory for the copy, "
                 "training waits.")),
    ENUM(checkpoint.on_error, CONFIG_ON_ERROR_STOP, on_error_words,
         HELP("What a checkpoint that cannot be written means. stop: the run ends with status 1. "
              "continue: a warning, and training continues to the next checkpoint; only the last "
              "one has to succeed.")),
    ENUM(checkpoint.resume, CONFIG_RESUME_NEVER, resume_words,
         HELP("auto continues from the newest checkpoint in the run's folder if there is one.")),

    INTEGER(sample.every, 0, 0, 1e9, HELP("Steps between samples of text; 0 = never.")),
    STRING(sample.prompt, "Once upon a time", 1, HELP("Text that a sample continues.")),
    INTEGER(sample.tokens, 200, 1, 1048576, HELP("Tokens per sample.")),
    NUMBER(sample.temperature, 0.8, 0, 100,
           HELP("Randomness of a sample; 0 = always the likeliest token.")),
    INTEGER(sample.top_k, 0, 0, 1048576,
            HELP("Draw only among the k likeliest tokens; 0 = among all.")),
    NUMBER(
        sample.top_p, 1, 0, 1,
        HELP("Then draw only among the likeliest that together have this probability; 1 = all.")),

    INTEGER(log.every, 1, 1, 1e9, HELP("Steps between lines on the console.")),
    BOOLEAN(log.metrics, true, HELP("Whether to write metrics.jsonl in the run's folder.")),
    BOOLEAN(log.csv, false, HELP("Whether to write the same as metrics.csv in the run's folder.")),
    BOOLEAN(log.tensorboard, false,
            HELP("Whether to write event files for TensorBoard in the run's folder.")),
};
const int config_option_count = sizeof config_options / sizeof *config_options;
_Static_assert(sizeof config_options / sizeof *config_options <= CONFIG_OPTION_LIMIT,
               "raise CONFIG_OPTION_LIMIT");

const struct config_block config_blocks[] = {
    {"model", "The transformer's sizes and parts, and where its weights come from."},
    {"data", "What is read."},
    {"train", "How long, and how much per step."},
    {"optimizer", "AdamW and its learning rate."},
    {"autocast", "What runs in 16 bit when precision is fp16, bf16 or fp8."},
    {"fp8", "How linear layers are rounded to 8 bits; used with fp8 only."},
    {"gradients", "How gradients are stored."},
    {"weights", "How 16-bit weights are stored."},
    {"offload", "What is kept in memory of the host."},
    {"ranks", "Several processes that train together; see kernels/ranks/README.md."},
    {"loss_scale", "Dynamic loss scaling; used with fp16 only."},
    {"eval", "Validation during training."},
    {"checkpoint", "What is saved, and whether to continue from it."},
    {"sample", "Text from the model during training."},
    {"log", "What is reported."},
};
const int config_block_count = sizeof config_blocks / sizeof *config_blocks;

static bool text_is(const char *text, const char *name, size_t length) {
    return strlen(text) == length && memcmp(text, name, length) == 0;
}

int config_option_index(const char *name, size_t length) {
    for (int i = 0; i < config_option_count; i++)
        if (text_is(config_options[i].key, name, length)) return i;
    return -1;
}

int config_block_index(const char *name, size_t length) {
    for (int i = 0; i < config_block_count; i++)
        if (text_is(config_blocks[i].name, name, length)) return i;
    return -1;
}

int config_option_block(const struct config_option *option) {
    const char *dot = strchr(option->key, '.');
    return dot ? config_block_index(option->key, (size_t)(dot - option->key)) : -1;
}

const char *config_option_name(const struct config_option *option) {
    const char *dot = strchr(option->key, '.');
    return dot ? dot + 1 : option->key;
}

int config_word_count(const struct config_option *option) {
    int count = 0;
    while (option->words[count]) count++;
    return count;
}

const char *config_format_number(char text[CONFIG_NUMBER_MAX], double value) {
    for (int digits = 1; digits <= 17; digits++) {
        /* %g turns to exponents at `digits` figures; plain digits read better up to 2^53. */
        if (value == floor(value) && fabs(value) < 0x1p53)
            snprintf(text, CONFIG_NUMBER_MAX, "%.0f", value);
        else snprintf(text, CONFIG_NUMBER_MAX, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    return text;
}

static void append(char *text, size_t size, const char *addition) {
    size_t length = strlen(text);
    if (length < size) snprintf(text + length, size - length, "%s", addition);
}

static void append_words(char *text, size_t size, const char *const *words) {
    for (int i = 0; words[i]; i++) {
        append(text, size, i ? ", \"" : "\"");
        append(text, size, words[i]);
        append(text, size, "\"");
    }
}

void config_describe_allowed(const struct config_option *option, char *text, size_t size) {
    char low[CONFIG_NUMBER_MAX], high[CONFIG_NUMBER_MAX];
    config_format_number(low, option->minimum);
    config_format_number(high, option->maximum);
    switch (option->type) {
    case CONFIG_STRING:
        snprintf(text, size, "a string of %s%s bytes", option->minimum > 0 ? "1 to " : "at most ",
                 high);
        break;
    case CONFIG_ENUM:
        snprintf(text, size, "one of ");
        append_words(text, size, option->words);
        break;
    case CONFIG_INTEGER: snprintf(text, size, "a whole number from %s to %s", low, high); break;
    case CONFIG_NUMBER:
        snprintf(text, size, "a number %s %s %s %s", option->above_minimum ? "above" : "from", low,
                 option->below_maximum   ? "and below"
                 : option->above_minimum ? "and up to"
                                         : "to",
                 high);
        if (option->below_maximum && !option->above_minimum)
            snprintf(text, size, "a number from %s to below %s", low, high);
        break;
    case CONFIG_BOOLEAN: snprintf(text, size, "true or false"); break;
    case CONFIG_LIST:
        snprintf(text, size, "a list of some of ");
        append_words(text, size, option->words);
        break;
    }
}

static void set_default(struct config *config, const struct config_option *option) {
    char *field = (char *)config + option->offset;
    int64_t whole = (int64_t)option->initial;
    unsigned word = (unsigned)option->initial;
    bool condition = option->initial != 0;
    switch (option->type) {
    case CONFIG_STRING: memcpy(field, option->text, strlen(option->text) + 1); break;
    case CONFIG_ENUM: memcpy(field, &word, sizeof word); break;
    case CONFIG_INTEGER: memcpy(field, &whole, sizeof whole); break;
    case CONFIG_NUMBER: memcpy(field, &option->initial, sizeof option->initial); break;
    case CONFIG_BOOLEAN: memcpy(field, &condition, sizeof condition); break;
    case CONFIG_LIST: memset(field, 0, sizeof(struct config_words)); break;
    }
}

void config_defaults(struct config *config) {
    memset(config, 0, sizeof *config);
    config->rank_count = 1;
    for (int i = 0; i < config_option_count; i++) set_default(config, &config_options[i]);
}

bool config_given(const struct config *config, const char *name) {
    int row = config_option_index(name, strlen(name));
    if (row >= 0) return config->sources[row] != CONFIG_SOURCE_DEFAULT;
    int block = config_block_index(name, strlen(name));
    assert(block >= 0);
    for (int i = 0; i < config_option_count; i++)
        if (config_option_block(&config_options[i]) == block &&
            config->sources[i] != CONFIG_SOURCE_DEFAULT)
            return true;
    return false;
}

struct gpt_shape config_shape(const struct config *config) {
    struct gpt_shape shape = {
#define X(size) .size = config->model.size,
        MODEL_SIZES(X)
#undef X
#define X(type, part) .part = config->model.part,
            MODEL_PARTS(X)
#undef X
                .padded_vocab = round_up(config->model.vocab_size, VOCAB_ALIGNMENT),
    };
    if (!shape.n_kv_head) shape.n_kv_head = shape.n_head;
    if (!shape.head_dim) shape.head_dim = shape.n_embd / shape.n_head;
    if (!shape.n_inner)
        shape.n_inner =
            shape.mlp == MLP_SWIGLU ? round_up(8 * shape.n_embd / 3, 64) : 4 * shape.n_embd;
    shape.linear = !shape_is_gpt2(&shape);
    return shape;
}

static const char *word_of(const char *key, unsigned value) {
    return config_options[config_option_index(key, strlen(key))].words[value];
}

const char *config_preset_name(enum config_preset preset) {
    return word_of("model.preset", preset);
}

const char *config_precision_name(enum config_precision precision) {
    return word_of("precision", precision);
}

const char *config_schedule_name(enum config_schedule schedule) {
    return word_of("optimizer.schedule", schedule);
}

const char *config_recompute_name(enum config_recompute recompute) {
    return word_of("train.recompute", recompute);
}

const char *config_tokenizer_name(enum config_tokenizer tokenizer) {
    return word_of("data.tokenizer", tokenizer);
}
