#include "model/config/config_check.h"

#include "data/util/fraction.h"
#include "data/util/min_max.h"
#include "data/util/utf8.h"
#include "model/architecture/adapters.h"
#include "model/config/config_keys.h"
#include "model/config/precision_switch.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

enum { NAME_BYTES_MAX = 200 }; /* a file name has at most 255; the rest is for suffixes */
static const double PARAMETERS_MAX = 1e12;   /* a thousand times the largest preset */
static const double RUN_TOKENS_MAX = 0x1p53; /* counted in int64, written as JSON numbers */

static int row_of(const char *key) {
    return (int)(config_option_of(key) - config_options);
}

static int source_of(const struct config *config, const char *key) {
    return config->sources[row_of(key)];
}

#define X(NAME, name, family, layers, heads, kv_heads, head_size, width, inner, length, \
          vocabulary, ...)                                                              \
    [CONFIG_PRESET_##NAME] = {.n_layer = layers,                                        \
                              .n_head = heads,                                          \
                              .n_kv_head = kv_heads,                                    \
                              .head_dim = head_size,                                    \
                              .n_embd = width,                                          \
                              .n_inner = inner,                                         \
                              .n_positions = length,                                    \
                              .vocab_size = vocabulary,                                 \
                              family,                                                   \
                              __VA_ARGS__},
/* A part that is initialized twice has the family's value first, then the model's own. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init"
static const struct gpt_shape presets[] = {MODEL_PRESETS(X)};
#pragma GCC diagnostic pop
#undef X

/* A later source wins; otherwise "--set model.preset=gpt2" would have no effect on a file that
 * gives sizes. */
static bool preset_sets(struct config *config, const char *key) {
    if (source_of(config, key) >= source_of(config, "model.preset")) return false;
    config->sources[row_of(key)] = CONFIG_SOURCE_DEFAULT;
    return true;
}

static void fill_from_preset(struct config *config) {
    const struct gpt_shape *preset = &presets[config->model.preset];
    if (config->model.preset == CONFIG_PRESET_NONE) return;
#define X(size) \
    if (preset_sets(config, "model." #size)) config->model.size = preset->size;
    MODEL_SIZES(X)
#undef X
#define X(type, part) \
    if (preset_sets(config, "model." #part)) config->model.part = preset->part;
    MODEL_PARTS(X)
#undef X
    if (preset_sets(config, "model.type"))
        config->model.type = config->model.preset == CONFIG_PRESET_MISTRAL_7B ? CONFIG_CLASS_MISTRAL
                                                                              : CONFIG_CLASS_AUTO;
}

void config_apply_preset(struct config *config, enum config_preset preset) {
    config->model.preset = preset;
    config->sources[row_of("model.preset")] = CONFIG_SOURCE_FILE;
    fill_from_preset(config);
}

/* Custom data often have no validation part, so eval.every is ignored unless --set gives it. */
static void leave_out_validation(struct config *config) {
    if (config_given_by_flag(config, "eval.every")) return;
    config->without_val = config_given(config, "eval.every") && config->eval.every > 0;
    config->eval.every = 0;
}

/* The warmup of a config file may exceed the steps of --set, which are few for a first try, or
 * those of train.epochs. */
static void cut_warmup(struct config *config) {
    if (config_given_by_flag(config, "optimizer.warmup_steps") ||
        config->optimizer.warmup_steps <= config->train.steps)
        return;
    config->optimizer.warmup_steps = config->train.steps / 10;
    config->warmup_cut = true;
}

void config_resolve(struct config *config) {
    if (config->data.tokenizer == CONFIG_TOKENIZER_GPT2 && !config->model.init_from[0] &&
        !config_given(config, "model.vocab_size"))
        config->model.vocab_size = 50257;
    fill_from_preset(config);
    if (config->train.objective == CONFIG_OBJECTIVE_ORPO &&
        !config_given(config, "objective.nll_weight"))
        config->objective.nll_weight = 1;
    /* Answers are documents of their own, and a printed false would be refused. */
    if (config->train.objective != CONFIG_OBJECTIVE_LANGUAGE &&
        !config_given(config, "data.isolate"))
        config->data.isolate = true;
    if (!config_given(config, "data.val") && strcmp(config->data.train, "tales") != 0)
        config->data.val[0] = '\0';
    if (config->data.val[0] == '\0') leave_out_validation(config);
    if (source_of(config, "train.steps") > source_of(config, "train.epochs"))
        config->train.epochs = 0;
    if (config->train.epochs == 0 && config_given_by_flag(config, "train.steps"))
        cut_warmup(config);
    int64_t micro = config->train.micro_batch_size * config->data.seq_len;
    if (config->train.batch_tokens >= micro)
        config->train.grad_accum_steps = config->train.batch_tokens / micro;
}

int config_split_batch(struct config *config, int rank_count, struct error *error) {
    int64_t tokens = config->train.batch_tokens;
    int64_t micro = config->train.micro_batch_size * config->data.seq_len * rank_count;
    config->rank_count = rank_count;
    if (tokens == 0) return 0;
    config->train.grad_accum_steps = tokens / micro;
    if (tokens % micro == 0) return 0;
    return fail(error,
                "train.batch_tokens is %" PRId64 ", but %d ranks take a multiple of %" PRId64
                " tokens (train.micro_batch_size * data.seq_len * ranks)\nset it to %" PRId64
                ", or choose another micro-batch or number of ranks",
                tokens, rank_count, micro, (tokens + micro - 1) / micro * micro);
}

int64_t config_parameter_count(const struct config *config) {
    struct gpt_shape shape = config_shape(config);
    return shape_parameter_count(&shape);
}

int config_refuse(const struct config_check *check, const char *key, const char *format, ...) {
    char where[CONFIG_WHERE_MAX];
    struct error message;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message.text, sizeof message.text, format, arguments);
    va_end(arguments);
    config_where(where, check->origins, row_of(key));
    return fail(check->error, "%s: %s", where, message.text);
}

/* Returns the key from the later source, of two conflicting ones, for the message. */
static const char *later_key(const struct config_check *check, const char *a, const char *b) {
    return source_of(check->config, b) > source_of(check->config, a) ? b : a;
}

static int check_name(const struct config_check *check) {
    const char *name = check->config->name;
    size_t length = strlen(name);
    const char *hint = "it names the run's folder; give another one with the key name.";
    if (length == 0 || length > NAME_BYTES_MAX)
        return config_refuse(check, "name",
                             "the run's name has %zu bytes, but must have 1 to %d:\n%s", length,
                             (int)NAME_BYTES_MAX, hint);
    if (name[0] == '.' || strchr(name, '/'))
        return config_refuse(check, "name",
                             "the run's name \"%.80s\" must not begin with a dot or hold a /:\n%s",
                             name, hint);
    char masked[CONFIG_STRING_MAX];
    memcpy(masked, name, length + 1);
    if (strpbrk(name, "\t\n") || strcmp(utf8_mask(masked), name) != 0)
        return config_refuse(check, "name", "the run's name holds a control character:\n%s", hint);
    return 0;
}

/* Values for which the frequencies of yarn and dynamic scaling would not be finite or in order. A
 * config.json of Hugging Face has no longest context of a model with dynamic scaling. */
static int check_rope(const struct config_check *check, const struct gpt_shape *s) {
    const double longest = s->rope_factor * (double)s->rope_original_positions;
    if (s->rope_scaling == ROPE_YARN && s->rope_theta <= 1)
        return config_refuse(check, later_key(check, "model.rope_theta", "model.rope_scaling"),
                             "yarn scaling needs a model.rope_theta above 1.");
    if (s->rope_scaling == ROPE_YARN && s->rope_beta_fast < s->rope_beta_slow)
        return config_refuse(check,
                             later_key(check, "model.rope_beta_fast", "model.rope_beta_slow"),
                             "model.rope_beta_fast must be at least model.rope_beta_slow.");
    if (s->rope_scaling == ROPE_DYNAMIC && s->head_dim <= 2)
        return config_refuse(check, later_key(check, "model.head_dim", "model.rope_scaling"),
                             "dynamic scaling needs a head size above 2.");
    if (s->rope_scaling == ROPE_DYNAMIC && (double)s->n_positions > longest)
        return config_refuse(check, later_key(check, "model.n_positions", "model.rope_scaling"),
                             "model.n_positions is %" PRId64
                             ", but dynamic scaling reaches %.10g positions,\n"
                             "model.rope_factor * model.rope_original_positions.",
                             s->n_positions, floor(longest));
    return 0;
}

/* Checks the number and size of heads. */
static int check_heads(const struct config_check *check) {
    const struct config *c = check->config;
    struct gpt_shape s = config_shape(c);
    if (!c->model.head_dim && s.n_embd % s.n_head != 0)
        return config_refuse(
            check, later_key(check, "model.n_embd", "model.n_head"),
            "model.n_embd is %" PRId64 " and model.n_head is %" PRId64
            ":\nn_embd must be a multiple of n_head, since each head takes an equal part.",
            s.n_embd, s.n_head);
    if (s.head_dim > CONFIG_HEAD_MAX)
        return config_refuse(
            check, later_key(check, "model.n_embd", "model.n_head"),
            "the head size, model.n_embd / model.n_head, is %" PRId64
            ";\nattention handles at most %d. Raise n_head, to at least %" PRId64 ".",
            s.head_dim, (int)CONFIG_HEAD_MAX, (s.n_embd + CONFIG_HEAD_MAX - 1) / CONFIG_HEAD_MAX);
    if (s.n_head % s.n_kv_head != 0)
        return config_refuse(check, later_key(check, "model.n_head", "model.n_kv_head"),
                             "model.n_head is %" PRId64 " and model.n_kv_head is %" PRId64
                             ".\nn_head must be a multiple of n_kv_head.",
                             s.n_head, s.n_kv_head);
    if (s.positions == POSITIONS_ROPE && s.head_dim % 2 != 0)
        return config_refuse(check, later_key(check, "model.positions", "model.head_dim"),
                             "the head size is %" PRId64
                             ", but rope turns pairs of columns:\nit must be even.",
                             s.head_dim);
    if (s.rope_scaling == ROPE_LLAMA3 && s.rope_low_freq_factor >= s.rope_high_freq_factor)
        return config_refuse(
            check, later_key(check, "model.rope_low_freq_factor", "model.rope_high_freq_factor"),
            "model.rope_low_freq_factor must be less than model.rope_high_freq_factor.");
    return s.positions == POSITIONS_ROPE ? check_rope(check, &s) : 0;
}

static int check_norms(const struct config_check *check) {
    const struct config *c = check->config;
    const char *key = c->model.post_norm ? "model.post_norm" : "model.norm_zero_centered";
    if (c->model.norm == NORM_RMSNORM || !(c->model.post_norm || c->model.norm_zero_centered))
        return 0;
    return config_refuse(check, later_key(check, "model.norm", key),
                         "%s needs the norm that Gemma has: model.norm \"rmsnorm\".", key);
}

static int check_model(const struct config_check *check) {
    const struct config *c = check->config;
    int64_t vocabulary = c->model.vocab_size;
    if (check_heads(check) || check_norms(check)) return -1;
    /* Positions begin anew in each document of a pair, and the loader cuts those that are longer.
     */
    if (c->train.objective == CONFIG_OBJECTIVE_LANGUAGE && c->data.seq_len > c->model.n_positions)
        return config_refuse(
            check, later_key(check, "data.seq_len", "model.n_positions"),
            "data.seq_len is %" PRId64 ", but the model has only model.n_positions = "
            "%" PRId64 "\npositions. Lower data.seq_len or raise model.n_positions.",
            c->data.seq_len, c->model.n_positions);
    /* Each kind has a token for each byte; the tokenizer's files determine the rest. */
    const int64_t needed = 256;
    if (vocabulary < needed)
        return config_refuse(check, later_key(check, "model.vocab_size", "data.tokenizer"),
                             "model.vocab_size is %" PRId64
                             ", but data.tokenizer \"%s\" has a token for "
                             "each byte:\nvocab_size must be at least %" PRId64 ".",
                             vocabulary, config_tokenizer_name(c->data.tokenizer), needed);
    if ((double)config_parameter_count(c) > PARAMETERS_MAX)
        return config_refuse(check, later_key(check, "model.n_embd", "model.n_layer"),
                             "the model would have %.3g parameters; at most %.3g make sense here.\n"
                             "Look at model.n_layer (%" PRId64 ") and model.n_embd (%" PRId64 ").",
                             (double)config_parameter_count(c), PARAMETERS_MAX, c->model.n_layer,
                             c->model.n_embd);
    return 0;
}

/* Adapters need layers that the model has, and a rank that its matrices can have. The model itself
 * is needed only when the run starts: a memory plan does without. */
static int check_adapters(const struct config_check *check) {
    const struct config *c = check->config;
    const struct gpt_shape shape = config_shape(c);
    if (c->adapter.type == CONFIG_ADAPTER_NONE && c->adapter.init_from[0])
        return config_refuse(check, "adapter.init_from",
                             "adapter.init_from names adapters, but adapter.type is none.\n"
                             "Set adapter.type to \"lora\".");
    if (c->adapter.type == CONFIG_ADAPTER_NONE) return 0;
    for (int i = 0; i < c->adapter.targets.count; i++) {
        const char *name = c->adapter.targets.items[i];
        if (adapter_targets_named(&shape, name) == 0)
            return config_refuse(check, "adapter.targets",
                                 "adapter.targets names \"%s\", which this model does not have.\n"
                                 "It has %s.",
                                 name,
                                 shape.weights_out_in
                                     ? "q_proj, k_proj, v_proj, o_proj, gate_proj, "
                                       "up_proj (if gated) and down_proj"
                                     : "c_attn, c_fc and c_proj");
    }
    for (enum adapter_target i = 0; i < ADAPTER_TARGET_COUNT; i++)
        if (shape.adapter_targets >> i & 1 && c->adapter.rank > adapter_rank_max(&shape, i))
            return config_refuse(check, "adapter.rank",
                                 "adapter.rank is %" PRId64 ", more than %" PRId64
                                 ", the smaller side of %s, which it adapts.\nLower it.",
                                 c->adapter.rank, adapter_rank_max(&shape, i),
                                 adapter_target_layer(&shape, i));
    return 0;
}

static int check_data(const struct config_check *check) {
    const struct config *c = check->config;
    bool tales_train = strcmp(c->data.train, "tales") == 0;
    bool tales_val = strcmp(c->data.val, "tales") == 0;
    if (c->data.tokenizer != CONFIG_TOKENIZER_BYTES && (tales_train || tales_val)) {
        const char *key = tales_train ? "data.train" : "data.val";
        return config_refuse(check, later_key(check, "data.tokenizer", key),
                             "%s is \"tales\", a corpus of bytes, but data.tokenizer is \"%s\".\n"
                             "Set data.tokenizer to \"bytes\", or name token shards.",
                             key, config_tokenizer_name(c->data.tokenizer));
    }
    if (c->train.objective != CONFIG_OBJECTIVE_LANGUAGE && c->distill.logits[0])
        return config_refuse(check, later_key(check, "distill.logits", "train.objective"),
                             "distill.logits needs train.objective \"language\".\n"
                             "Leave one of the two out.");
    if (c->train.objective != CONFIG_OBJECTIVE_LANGUAGE && config_given(c, "data.isolate") &&
        !c->data.isolate)
        return config_refuse(check, later_key(check, "data.isolate", "train.objective"),
                             "data.isolate is false, but pairs of answers need it.\n"
                             "Leave it out, or set train.objective to \"language\".");
    if (c->train.epochs > 0 && config_given_by_flag(c, "train.steps"))
        return config_refuse(check, "train.epochs",
                             "train.steps is given by --set as well.\nGive one of them.");
    const char *needs_validation = c->train.patience > 0     ? "train.patience"
                                   : c->checkpoint.keep_best ? "checkpoint.keep_best"
                                                             : NULL;
    if (needs_validation && c->eval.every == 0)
        return config_refuse(check, needs_validation,
                             "%s goes by the validation loss, but there is no validation.\n"
                             "Name its text in data.val, and set eval.every above 0.",
                             needs_validation);
    if (c->eval.every > 0 && c->data.val[0] == '\0')
        return config_refuse(check, later_key(check, "eval.every", "data.val"),
                             "eval.every is %" PRId64 ", but there is no validation text.\n"
                             "Name it in data.val, or set eval.every to 0.",
                             c->eval.every);
    int64_t micro = c->train.micro_batch_size * c->data.seq_len;
    if (micro > CONFIG_MICRO_TOKENS_MAX)
        return config_refuse(check, later_key(check, "train.micro_batch_size", "data.seq_len"),
                             "train.micro_batch_size * data.seq_len is %" PRId64
                             " tokens; at most %" PRId64
                             " fit in one pass.\nLower it and raise train.grad_accum_steps.",
                             micro, (int64_t)CONFIG_MICRO_TOKENS_MAX);
    if (c->train.batch_tokens % micro != 0)
        return config_refuse(check, "train.batch_tokens",
                             "train.batch_tokens is %" PRId64 ", no multiple of the %" PRId64
                             " tokens of a micro-batch (train.micro_batch_size * data.seq_len).\n"
                             "Set it to %" PRId64 ", or choose another micro-batch.",
                             c->train.batch_tokens, micro,
                             (c->train.batch_tokens + micro - 1) / micro * micro);
    double tokens = (double)micro * (double)c->train.grad_accum_steps * (double)c->train.steps;
    if (tokens > RUN_TOKENS_MAX)
        return config_refuse(check, "train.steps",
                             "the run would read %.3g tokens; more than 2^53 cannot be counted.\n"
                             "Look at train.steps and train.grad_accum_steps.",
                             tokens);
    return 0;
}

/* With train.epochs the number of steps is not known yet; config_resolve_epochs checks it. */
static int check_schedule(const struct config_check *check) {
    const struct config *c = check->config;
    char fraction[CONFIG_NUMBER_MAX];
    if (c->optimizer.warmup_steps > c->train.steps)
        return config_refuse(
            check, later_key(check, "optimizer.warmup_steps", "train.steps"),
            "optimizer.warmup_steps is %" PRId64 ", more than train.steps, %" PRId64
            ":\nthe run would end before the warmup does. Lower optimizer.warmup_steps.",
            c->optimizer.warmup_steps, c->train.steps);
    int64_t decay = fraction_of(c->optimizer.decay_fraction, c->train.steps, FRACTION_DOWN);
    if (c->optimizer.schedule == CONFIG_SCHEDULE_WSD &&
        c->optimizer.warmup_steps + decay > c->train.steps)
        return config_refuse(
            check, later_key(check, "optimizer.decay_fraction", "optimizer.warmup_steps"),
            "optimizer.warmup_steps (%" PRId64 ") and optimizer.decay_fraction (%s of "
            "%" PRId64 " steps) overlap:\nlower one of them.",
            c->optimizer.warmup_steps, config_format_number(fraction, c->optimizer.decay_fraction),
            c->train.steps);
    return 0;
}

int config_resolve_epochs(struct config *config, uint64_t sequences, int64_t step,
                          int64_t next_sample, struct error *error) {
    struct config_origins origins = {.path = config->name};
    struct config_check check = {config, &origins, error};
    int64_t batch =
        config->rank_count * config->train.grad_accum_steps * config->train.micro_batch_size;
    int64_t left = fraction_of(config->train.epochs, (int64_t)sequences, FRACTION_UP) - next_sample;
    int64_t steps = step + (left > 0 ? (left + batch - 1) / batch : 0);
    double limit = config_option_of("train.steps")->maximum;
    if ((double)steps > limit)
        return config_refuse(&check, "train.epochs",
                             "train.epochs %g would take %.3g steps; at most %.3g make sense "
                             "here.\nLower it.",
                             config->train.epochs, (double)steps, limit);
    config->train.steps = steps;
    cut_warmup(config);
    return check_schedule(&check);
}

static int check_optimizer(const struct config_check *check) {
    const struct config *c = check->config;
    char low[CONFIG_NUMBER_MAX], high[CONFIG_NUMBER_MAX];
    if (c->optimizer.min_lr > c->optimizer.lr)
        return config_refuse(check, later_key(check, "optimizer.min_lr", "optimizer.lr"),
                             "optimizer.min_lr is %s, more than optimizer.lr, %s:\n"
                             "the rate falls from lr to min_lr, so min_lr must not be larger.",
                             config_format_number(low, c->optimizer.min_lr),
                             config_format_number(high, c->optimizer.lr));
    if (c->optimizer.adamw_lr > 0 && c->optimizer.lr == 0)
        return config_refuse(check, later_key(check, "optimizer.adamw_lr", "optimizer.lr"),
                             "optimizer.adamw_lr is %s, but optimizer.lr is 0:\n"
                             "its schedule is that of lr, in proportion. Set lr above 0.",
                             config_format_number(low, c->optimizer.adamw_lr));
    if (c->optimizer.grad_clip > 0 && c->optimizer.grad_clip < 1e-30)
        return config_refuse(check, "optimizer.grad_clip",
                             "optimizer.grad_clip is %s, too small for fp32.\n"
                             "Set it to 0 for no clipping, or to 1e-30 at least.",
                             config_format_number(low, c->optimizer.grad_clip));
    if (c->loss_scale.min_scale > c->loss_scale.init_scale)
        return config_refuse(check,
                             later_key(check, "loss_scale.min_scale", "loss_scale.init_scale"),
                             "loss_scale.min_scale is %s, more than loss_scale.init_scale, %s:\n"
                             "the scale starts at init_scale and never falls below min_scale.",
                             config_format_number(low, c->loss_scale.min_scale),
                             config_format_number(high, c->loss_scale.init_scale));
    return 0;
}

static int check_precision_switch(const struct config_check *check) {
    const struct config *c = check->config;
    double at = c->precision_switch.at;
    if (at >= 1 && at != floor(at))
        return config_refuse(check, "precision_switch.at",
                             "precision_switch.at is %g: give a whole number of steps, or a part "
                             "of all steps below 1.",
                             at);
    return 0;
}

int config_check(const struct config *config, const struct config_origins *origins,
                 struct error *error) {
    struct config_check check = {config, origins, error};
    if (check_name(&check)) return -1;
    if (check_model(&check)) return -1;
    if (check_adapters(&check)) return -1;
    if (check_data(&check)) return -1;
    if (config->train.epochs == 0 && check_schedule(&check)) return -1;
    if (check_optimizer(&check)) return -1;
    return check_precision_switch(&check);
}

/* Appends a line to text, truncated at size, and counts it in *count. */
__attribute__((format(printf, 4, 5))) static void add_line(char *text, size_t size, int *count,
                                                           const char *format, ...) {
    size_t length = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + length, size - length, format, arguments);
    va_end(arguments);
    (*count)++;
}

int config_warnings(const struct config *config, char *text, size_t size) {
    int count = 0;
    text[0] = '\0';
    if (strcmp(config->data.val, "tales") == 0 && strcmp(config->data.train, "tales") != 0)
        add_line(text, size, &count,
                 "data.val is the built-in corpus \"tales\", but data.train is not: the "
                 "validation loss is that of another text\n");
    return count;
}

int config_resolve_notes(const struct config *config, char *text, size_t size) {
    int count = 0;
    text[0] = '\0';
    if (config->warmup_cut)
        add_line(text, size, &count,
                 "optimizer.warmup_steps is %" PRId64 ", a tenth of train.steps, which the file's "
                 "own warmup exceeds; --set it to choose another\n",
                 config->optimizer.warmup_steps);
    if (config->precision_switch.at > 0 && precision_switch_step(config) == config->train.steps)
        add_line(text, size, &count,
                 "precision_switch.at is not before the last step, so the precision stays\n");
    if (config->without_val)
        add_line(text, size, &count,
                 "there is no validation: name its text in data.val, or set eval.every to 0\n");
    for (int i = 0; i < config->removed.count; i++)
        add_line(text, size, &count,
                 "%s was set by an earlier version; this one has no such key and ignores it\n",
                 config->removed.items[i]);
    return count;
}

int config_dimension_notes(const struct config *config, char *text, size_t size) {
    struct {
        const char *name;
        int64_t value;
    } dimensions[] = {
        {"model.n_embd", config->model.n_embd},
        {config->model.head_dim ? "model.head_dim" : "the head size, model.n_embd / model.n_head,",
         config_shape(config).head_dim},
        {"data.seq_len", config->data.seq_len},
    };
    int count = 0;
    text[0] = '\0';
    for (size_t i = 0; i < sizeof dimensions / sizeof *dimensions; i++)
        if (dimensions[i].value % 8 != 0)
            add_line(text, size, &count,
                     "%s is %" PRId64 ", not a multiple of 8: 16-bit matrix units run slower; "
                     "multiples of 64 suit them best\n",
                     dimensions[i].name, dimensions[i].value);
    return count;
}
