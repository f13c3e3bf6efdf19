#include "model/config/config_check.h"

#include "data/util/fraction.h"
#include "data/util/min_max.h"
#include "data/util/note.h"
#include "data/util/program_names.h"
#include "data/util/utf8.h"
#include "model/architecture/adapters.h"
#include "model/config/config_keys.h"
#include "model/config/config_print.h"
#include "model/config/precision_switch.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

enum {
    NAME_BYTES_MAX = 200,  /* a file name has at most 255; the rest is for suffixes */
    WARMUP_CUT_LEAST = 20, /* steps; with fewer the quickstart's loss rises from 5.5 to up to 10 */
};
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
static const struct model_shape presets[] = {MODEL_PRESETS(X)};
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
    const struct model_shape *preset = &presets[config->model.preset];
    if (config->model.preset == CONFIG_PRESET_NONE) return;
#define X(size) \
    if (preset_sets(config, "model." #size)) config->model.size = preset->size;
    MODEL_SIZES(X)
#undef X
#define X(type, part, ...) \
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

/* Returns the steps at the end that the warmup must leave to the decay. */
static int64_t decay_steps(const struct config *config) {
    if (config->optimizer.schedule != CONFIG_SCHEDULE_WSD) return 0;
    return fraction_of(config->optimizer.decay_fraction, config->train.steps, FRACTION_DOWN);
}

/* The warmup of a config file may exceed the steps of --set, which are few for a first try, or
 * those of train.epochs. */
static void cut_warmup(struct config *config) {
    const int64_t steps = config->train.steps, longest = steps - decay_steps(config);
    if (config_given_by_flag(config, "optimizer.warmup_steps") ||
        config->optimizer.warmup_steps <= longest)
        return;
    config->optimizer.warmup_steps = MIN(MAX(steps / 2, WARMUP_CUT_LEAST), longest);
    config->warmup_cut = true;
}

void config_resolve(struct config *config) {
    if (config->data.tokenizer == TOKENIZER_GPT2 && !config->model.init_from[0] &&
        !config_given(config, "model.vocab_size"))
        config->model.vocab_size = 50257;
    fill_from_preset(config);
    if (!config_given(config, "objective.nll_weight"))
        config->objective.nll_weight = config_nll_weight(config);
    /* Answers are documents of their own, and a printed false would be refused. */
    if (config_reads_pairs(config) && !config_given(config, "data.isolate"))
        config->data.isolate = true;
    if (!config_given(config, "data.val") && strcmp(config->data.train, "tales") != 0)
        config->data.val[0] = '\0';
    if (config->data.val[0] == '\0') leave_out_validation(config);
    if (source_of(config, "train.steps") > source_of(config, "train.epochs"))
        config->train.epochs = 0;
    if (config->train.epochs == 0 && config_given_by_flag(config, "train.steps"))
        cut_warmup(config);
    /* Not divided by a product, which overflows where seq_len is that of any length. */
    int64_t rows = config->train.batch_tokens / config->data.seq_len;
    if (rows >= config->train.micro_batch_size)
        config->train.grad_accum_steps = rows / config->train.micro_batch_size;
}

int config_split_batch(struct config *config, int rank_count, struct error *error) {
    int64_t tokens = config->train.batch_tokens;
    int64_t micro = config->train.micro_batch_size * config->data.seq_len * rank_count;
    if (config_reads_prompts(config) && rank_count > 1)
        return fail(error, "train.objective grpo trains on one rank only\nstart a single process");
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
    struct model_shape shape = config_shape(config);
    return shape_parameter_count(&shape);
}

int config_refuse(const struct config_check *check, const char *key, const char *format, ...) {
    char where[CONFIG_WHERE_MAX];
    char named[PROGRAM_TEXT_MAX];
    struct error message;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message.text, sizeof message.text, program_format(named, format), arguments);
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
                             "the run's name has %zu bytes, but must have 1 to %d: %s", length,
                             (int)NAME_BYTES_MAX, hint);
    if (name[0] == '.' || strchr(name, '/'))
        return config_refuse(check, "name",
                             "the run's name \"%.80s\" must not begin with a dot or hold a /: %s",
                             name, hint);
    char masked[CONFIG_STRING_MAX];
    memcpy(masked, name, length + 1);
    if (strpbrk(name, "\t\n") || strcmp(utf8_mask(masked), name) != 0)
        return config_refuse(check, "name", "the run's name holds a control character: %s", hint);
    return 0;
}

/* Values for which the frequencies of yarn and dynamic scaling would not be finite or in order. A
 * config.json of Hugging Face has no longest context of a model with dynamic scaling. */
static int check_rope(const struct config_check *check, const struct model_shape *s) {
    const double longest = s->rope_factor * (double)s->rope_original_positions;
    if (shape_rotary(s) < 2 || shape_rotary(s) % 2 ||
        (shape_rotary(s) < s->head_dim && s->rope_scaling != ROPE_UNSCALED))
        return config_refuse(check, "model.partial_rotary_factor",
                             "the rotated part of a head has %" PRId64 " of %" PRId64
                             " columns: it must be"
                             " even, and a part\nneeds model.rope_scaling \"none\".",
                             shape_rotary(s), s->head_dim);
    if ((s->qk_norm && (s->rope_interleaved || s->query_scaling_beta > 0)) ||
        (s->query_scaling_beta > 0 && s->rope_theta_window > 0))
        return config_refuse(check, s->qk_norm ? "model.qk_norm" : "model.rope_theta_window",
                             "model.rope_interleaved and model.query_scaling_beta need queries "
                             "without a norm,\nand the latter one model.rope_theta.");
    if (s->query_scaling_beta > 0 && check->config->data.isolate &&
        check->config->data.seq_len > s->rope_original_positions)
        return config_refuse(check, "data.isolate",
                             "model.query_scaling_beta scales queries by their position in the "
                             "sequence, not in\ntheir document: data.seq_len must be at most "
                             "model.rope_original_positions.");
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
                             ", but dynamic scaling reaches %.10g positions, "
                             "model.rope_factor * model.rope_original_positions.",
                             s->n_positions, floor(longest));
    return 0;
}

/* Checks the number and size of heads. */
static int check_heads(const struct config_check *check) {
    const struct config *c = check->config;
    struct model_shape s = config_shape(c);
    if (!c->model.head_dim && s.n_embd % s.n_head != 0)
        return config_refuse(
            check, later_key(check, "model.n_embd", "model.n_head"),
            "model.n_embd is %" PRId64 " and model.n_head is %" PRId64
            ": n_embd must be a multiple of n_head, since each head takes an equal part.",
            s.n_embd, s.n_head);
    if (s.head_dim > CONFIG_HEAD_MAX)
        return config_refuse(
            check, later_key(check, "model.n_embd", "model.n_head"),
            "the head size, model.n_embd / model.n_head, is %" PRId64
            "; attention handles at most %d. Raise n_head, to at least %" PRId64 ".",
            s.head_dim, (int)CONFIG_HEAD_MAX, (s.n_embd + CONFIG_HEAD_MAX - 1) / CONFIG_HEAD_MAX);
    if (s.n_head % s.n_kv_head != 0)
        return config_refuse(check, later_key(check, "model.n_head", "model.n_kv_head"),
                             "model.n_head is %" PRId64 " and model.n_kv_head is %" PRId64
                             ".\nn_head must be a multiple of n_kv_head.",
                             s.n_head, s.n_kv_head);
    if (s.positions == POSITIONS_ROPE && s.head_dim % 2 != 0)
        return config_refuse(check, later_key(check, "model.positions", "model.head_dim"),
                             "the head size is %" PRId64
                             ", but rope turns pairs of columns: it must be even.",
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

static int check_delta(const struct config_check *check) {
    const struct model_shape s = config_shape(check->config);
    if (s.full_attention_interval == 0) return 0;
    if (s.norm != NORM_RMSNORM || s.bias != BIAS_NONE || s.fused != FUSED_NONE)
        return config_refuse(check, "model.full_attention_interval",
                             "model.full_attention_interval needs parts of Qwen3.5: model.norm "
                             "\"rmsnorm\", model.bias \"none\" and model.fused \"none\".");
    if (s.linear_num_value_heads % s.linear_num_key_heads == 0) return 0;
    return config_refuse(
        check, later_key(check, "model.linear_num_value_heads", "model.linear_num_key_heads"),
        "model.linear_num_value_heads is %" PRId64 " and model.linear_num_key_heads is %" PRId64
        ".\nThe first must be a multiple of the second.",
        s.linear_num_value_heads, s.linear_num_key_heads);
}

static int check_model(const struct config_check *check) {
    const struct config *c = check->config;
    int64_t vocabulary = c->model.vocab_size;
    if (check_heads(check) || check_norms(check) || check_delta(check)) return -1;
    /* Positions begin anew in each document of a pair, and the loader cuts those that are longer.
     */
    if (!config_reads_pairs(c) && c->data.seq_len > c->model.n_positions)
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
                             "each byte: vocab_size must be at least %" PRId64 ".",
                             vocabulary, tokenizer_kind_name(c->data.tokenizer), needed);
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
    const struct model_shape shape = config_shape(c);
    if (c->adapter.type == CONFIG_ADAPTER_NONE && c->adapter.init_from[0])
        return config_refuse(check, "adapter.init_from",
                             "adapter.init_from names adapters, but adapter.type is none.\n"
                             "Set adapter.type to \"lora\".");
    if (c->adapter.type == CONFIG_ADAPTER_NONE) return 0;
    for (int i = 0; i < c->adapter.targets.count; i++) {
        const char *name = c->adapter.targets.items[i];
        if (adapter_targets_named(&shape, name) == 0)
            return config_refuse(
                check, "adapter.targets",
                "adapter.targets names \"%s\", which this model does not have.\n"
                "It has %s.",
                name,
                shape.fused == FUSED_ALL ? "qkv_proj, o_proj, gate_up_proj and down_proj"
                : is_granite4(&shape)    ? "q_proj, k_proj, v_proj, o_proj, input_linear and "
                                           "output_linear"
                : shape.fused        ? "q_proj, k_proj, v_proj, o_proj, gate_up_proj and down_proj"
                : !shape.llama_names ? "c_attn, c_fc and c_proj"
                : mlp_is_gated(shape.mlp)
                    ? "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and "
                      "down_proj"
                : shape.mlp == MLP_RELU2
                    ? "q_proj, k_proj, v_proj, o_proj, up_proj and down_proj"
                    : "q_proj, k_proj, v_proj, o_proj, gate_proj and down_proj");
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
    bool tales_train = config_is_built_in(c->data.train),
         tales_val = config_is_built_in(c->data.val);
    if (c->data.tokenizer != TOKENIZER_BYTES && (tales_train || tales_val)) {
        const char *key = tales_train ? "data.train" : "data.val";
        return config_refuse(check, later_key(check, "data.tokenizer", key),
                             "%s is \"%s\", a corpus of bytes, but data.tokenizer is \"%s\".\n"
                             "Set data.tokenizer to \"bytes\", or name token shards.",
                             key, tales_train ? c->data.train : c->data.val,
                             tokenizer_kind_name(c->data.tokenizer));
    }
    if (c->train.objective != CONFIG_OBJECTIVE_LANGUAGE && c->distill.logits[0])
        return config_refuse(check, later_key(check, "distill.logits", "train.objective"),
                             "distill.logits needs train.objective \"language\".\n"
                             "Leave one of the two out.");
    if (config_reads_pairs(c) && config_given(c, "data.isolate") && !c->data.isolate)
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

/* Learning from rewards: what is not computed is refused here. */
static int check_grpo(const struct config_check *check) {
    const struct config *c = check->config;
    const int64_t samples = c->train.micro_batch_size * c->train.grad_accum_steps;
    if (!config_reads_prompts(c)) return 0;
    if (samples % c->grpo.num_generations != 0)
        return config_refuse(check,
                             later_key(check, "grpo.num_generations", "train.micro_batch_size"),
                             "a step has %" PRId64 " completions (train.micro_batch_size * "
                             "train.grad_accum_steps), which grpo.num_generations,\n%" PRId64
                             ", does not divide. Change one of them.",
                             samples, c->grpo.num_generations);
    if (c->grpo.max_completion_length > c->data.seq_len)
        return config_refuse(check, later_key(check, "grpo.max_completion_length", "data.seq_len"),
                             "grpo.max_completion_length is %" PRId64
                             ", but a sequence has %" PRId64
                             " tokens, prompt included.\nLower it or raise data.seq_len.",
                             c->grpo.max_completion_length, c->data.seq_len);
    const struct {
        const char *key;
        int64_t value;
    } steps[] = {{"train.steps", c->train.steps},
                 {"eval.every", c->eval.every},
                 {"checkpoint.every", c->checkpoint.every}};
    for (int i = 0; i < 3; i++)
        if (steps[i].value % c->grpo.num_iterations != 0)
            return config_refuse(check, later_key(check, "grpo.num_iterations", steps[i].key),
                                 "%s is %" PRId64 ", no multiple of grpo.num_iterations, %" PRId64
                                 ", before whose end no run is saved.\nChange one of them.",
                                 steps[i].key, steps[i].value, c->grpo.num_iterations);
    if (c->grpo.num_iterations > 1 && (c->train.epochs > 0 || c->precision_switch.at > 0))
        return config_refuse(check, "grpo.num_iterations",
                             "grpo.num_iterations above 1 does not go with train.epochs or "
                             "precision_switch.at.\nGive train.steps instead.");
    if (c->grpo.beta > 0 && c->adapter.type == CONFIG_ADAPTER_NONE)
        return config_refuse(check, "grpo.beta",
                             "grpo.beta needs adapters, without which the model is the reference.\n"
                             "Set adapter.type to \"lora\", or grpo.beta to 0.");
    if (c->grpo.temperature != 1 && (c->model.logit_softcap > 0 || c->eval.choices[0]))
        return config_refuse(
            check, "grpo.temperature",
            "grpo.temperature other than 1 does not go with model.logit_softcap or "
            "eval.choices.\nSet it to 1.");
    if (c->sample.every > 0)
        return config_refuse(
            check, later_key(check, "sample.every", "train.objective"),
            "sample.every does not apply to train.objective grpo: rollouts.jsonl in "
            "the run's folder has its texts.\nSet sample.every to 0.");
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
    if (c->optimizer.warmup_steps + decay_steps(c) > c->train.steps)
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
                             "optimizer.min_lr is %s, more than optimizer.lr, %s: "
                             "the rate falls from lr to min_lr, so min_lr must not be larger.",
                             config_format_number(low, c->optimizer.min_lr),
                             config_format_number(high, c->optimizer.lr));
    if (c->optimizer.name == CONFIG_OPTIMIZER_MUON && c->optimizer.adamw_lr > 0 &&
        c->optimizer.lr == 0)
        return config_refuse(check, later_key(check, "optimizer.adamw_lr", "optimizer.lr"),
                             "optimizer.adamw_lr is %s, but optimizer.lr is 0: "
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
                             "loss_scale.min_scale is %s, more than loss_scale.init_scale, %s: "
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

/* Values that come from a model's files or are computed must be those that a config may give,
 * because the saved config has them. */
static int check_ranges(const struct config_check *check) {
    char allowed[320], value[CONFIG_VALUE_MAX];
    for (int i = 0; i < config_option_count; i++) {
        const struct config_option *option = &config_options[i];
        if (option->type != CONFIG_INTEGER && option->type != CONFIG_NUMBER) continue;
        double number = config_number(check->config, option);
        if (number >= option->minimum && number <= option->maximum) continue;
        config_describe_allowed(option, allowed, sizeof allowed);
        config_value_text(value, check->config, option);
        return config_refuse(check, option->key, "%s is %s, but must be %s.", option->key, value,
                             allowed);
    }
    return 0;
}

int config_check(const struct config *config, const struct config_origins *origins,
                 struct error *error) {
    struct config_check check = {config, origins, error};
    if (check_ranges(&check)) return -1;
    if (check_name(&check)) return -1;
    if (check_model(&check)) return -1;
    if (check_adapters(&check)) return -1;
    if (check_data(&check) || check_grpo(&check)) return -1;
    if (config->train.epochs == 0 && check_schedule(&check)) return -1;
    if (check_optimizer(&check)) return -1;
    return check_precision_switch(&check);
}

void config_warnings(const struct config *config, FILE *out) {
    if (strcmp(config->data.val, "tales") == 0 && strcmp(config->data.train, "tales") != 0)
        note(out, "warning",
             "data.val is the built-in corpus \"tales\", but data.train is not: the validation "
             "loss is that of another text");
}

void config_resolve_notes(const struct config *config, FILE *out) {
    if (config->warmup_cut)
        note(out, "note",
             "optimizer.warmup_steps is %" PRId64 ", for the file's own does not fit in %" PRId64
             " train.steps; --set it to choose another",
             config->optimizer.warmup_steps, config->train.steps);
    if (config->precision_switch.at > 0 && precision_switch_step(config) == config->train.steps)
        note(out, "note",
             "precision_switch.at is not before the last step, so the precision stays");
    if (config->without_val)
        note(out, "note",
             "there is no validation: name its text in data.val, or set eval.every to 0");
    for (int i = 0; i < config->removed.count; i++)
        note(out, "note",
             "%s was set by an earlier version; this one has no such key and ignores it",
             config->removed.items[i]);
}

void config_dimension_notes(const struct config *config, FILE *out) {
    struct {
        const char *name;
        int64_t value;
    } dimensions[] = {
        {"model.n_embd", config->model.n_embd},
        {config->model.head_dim ? "model.head_dim" : "the head size, model.n_embd / model.n_head,",
         config_shape(config).head_dim},
        {"data.seq_len", config->data.seq_len},
    };
    for (size_t i = 0; i < sizeof dimensions / sizeof *dimensions; i++)
        if (dimensions[i].value % 8 != 0)
            note(out, "note",
                 "%s is %" PRId64 ", not a multiple of 8: 16-bit matrix units run slower; "
                 "multiples of 64 suit them best",
                 dimensions[i].name, dimensions[i].value);
}
