/* A value of each config key that differs from the default, for the tests over all keys: settings
 * under which the key has an effect, where that is seen, and settings under which it has none. */
#pragma once

#include <inttypes.h>

#include "model/config/config_effects.h"
#include "test/model/cli/program_fixture.h"

/* Places where an effect is seen; UNSEEN needs a reason. */
enum sight { UNSEEN, WEIGHTS, LOSSES, OUTPUT };

#define COUNT(array) (sizeof(array) / sizeof *(array))

struct key_case {
    const char *key, *value;
    const char *with;   /* settings separated by | */
    const char *unless; /* settings under which a set key warns; NULL: it always has an effect */
    enum sight sight;
    const char *reason;
};

#define ROPE        "model.positions=rope"
#define YARN        ROPE "|model.rope_scaling=yarn|model.rope_original_positions=24|model.rope_theta=100"
#define LLAMA       ROPE "|" RMSNORM "|model.mlp=swiglu|model.bias=none"
#define LLAMA3      ROPE "|model.rope_scaling=llama3|model.rope_original_positions=8"
#define WINDOW      "model.window=8"
#define DELTA_PARTS RMSNORM "|model.bias=none"
#define DELTA       DELTA_PARTS "|model.full_attention_interval=2"
#define RMSNORM     "model.norm=rmsnorm"
#define LORA        "adapter.type=lora|model.init_from=a/start"
#define MARKED      "data.train=rows_train_*.bin|data.val=rows_val_*.bin"
#define PAIRS       "data.train=pairs_train_*.bin|data.val=pairs_val_*.bin|train.objective="
#define LABELS      "data.train=labels_train_*.bin|data.val=labels_val_*.bin|train.objective=kto"
#define ROLLED                                                                         \
    "data.train=prompts.jsonl|data.val=|train.objective=grpo|train.micro_batch_size=8" \
    "|grpo.num_generations=4|grpo.max_completion_length=6|reward.command=sh long.sh"
#define TWICE   ROLLED "|grpo.num_iterations=2"
#define DISTILL "distill.logits=top"
#define MUON    "optimizer.name=muon"
#define SGD     "optimizer.name=sgd"
#define LION    "optimizer.name=lion"
#define INT8    "optimizer.moments=int8|optimizer.min_8bit_size=0"
#define BF16    "precision=bf16"
#define FP16    "precision=fp16"
#define FP8     "precision=fp8"
#define DELAYED "precision=fp8|fp8.recipe=delayed"
#define NVFP4   "precision=nvfp4"
#define WIDE    "model.n_embd=256" /* weights of a size that the banner shows */
#define LONG    "model.n_positions=128|data.seq_len=128"
#define SAMPLED "sample.every=2|sample.tokens=12"
#define NO_GPU  "it needs a GPU"

static const struct key_case key_cases[] = {
    {"name", "other", "", NULL, UNSEEN, "the folder in which this test looks"},
    {"precision", "bf16", "", "autocast.enabled=false", WEIGHTS, NULL},
    {"device", "auto", "", NULL, UNSEEN, "the CPU without a GPU"},
    {"seed", "2", "", NULL, WEIGHTS, NULL},
    {"threads", "2", "", NULL, OUTPUT, NULL},
    {"tf32", "true", "", "", UNSEEN, NO_GPU},
    {"cuda_graphs", "false", "", "", UNSEEN, NO_GPU},
    {"cuda_wgmma", "false", "", "", UNSEEN, NO_GPU},
    {"autotune", "on", "", NULL, UNSEEN, "the fastest algorithm may be the first one"},
    {"autotune_seconds", "0", "", "", UNSEEN, NO_GPU},
    {"run_dir", "b", "", NULL, UNSEEN, "the folder in which this test looks"},
    {"model.preset", "gpt2", "", NULL, UNSEEN, "the sizes are given"},
    {"model.n_layer", "1", "", NULL, WEIGHTS, NULL},
    {"model.n_head", "4", "", NULL, WEIGHTS, NULL},
    {"model.n_kv_head", "1", "", NULL, WEIGHTS, NULL},
    {"model.head_dim", "8", "", NULL, WEIGHTS, NULL},
    {"model.n_embd", "64", "", NULL, WEIGHTS, NULL},
    {"model.n_inner", "64", "", NULL, WEIGHTS, NULL},
    {"model.n_positions", "64", "", NULL, WEIGHTS, NULL},
    {"model.vocab_size", "300", "", NULL, WEIGHTS, NULL},
    {"model.norm", "rmsnorm", "", NULL, WEIGHTS, NULL},
    {"model.norm_eps", "0.01", "", NULL, WEIGHTS, NULL},
    {"model.norm_zero_centered", "true", RMSNORM, NULL, WEIGHTS, NULL},
    {"model.post_norm", "true", RMSNORM, NULL, WEIGHTS, NULL},
    {"model.no_pre_norm", "true", RMSNORM "|model.post_norm=true", RMSNORM, WEIGHTS, NULL},
    {"model.positions", "rope", "", NULL, WEIGHTS, NULL},
    {"model.rope_theta", "50", ROPE, "", WEIGHTS, NULL},
    {"model.rope_theta_window", "50", ROPE "|" WINDOW, ROPE, WEIGHTS, NULL},
    {"model.rope_scaling", "linear", ROPE, "", WEIGHTS, NULL},
    {"model.rope_factor", "4", YARN, ROPE, WEIGHTS, NULL},
    {"model.rope_low_freq_factor", "0.5", LLAMA3, YARN, WEIGHTS, NULL},
    {"model.rope_high_freq_factor", "8", LLAMA3, YARN, WEIGHTS, NULL},
    {"model.rope_original_positions", "16", YARN, ROPE "|model.rope_scaling=linear", WEIGHTS, NULL},
    {"model.rope_attention_factor", "2", YARN, LLAMA3, WEIGHTS, NULL},
    {"model.rope_beta_fast", "1.5", YARN, LLAMA3, WEIGHTS, NULL},
    {"model.rope_beta_slow", "0.1", YARN, LLAMA3, WEIGHTS, NULL},
    {"model.rope_truncate", "false", YARN, LLAMA3, WEIGHTS, NULL},
    {"model.no_rope_interval", "1", ROPE, "", WEIGHTS, NULL},
    {"model.rope_interleaved", "true", ROPE, RMSNORM, WEIGHTS, NULL},
    {"model.query_scaling_beta", "0.5", YARN, LLAMA3, WEIGHTS, NULL},
    {"model.partial_rotary_factor", "0.5", ROPE, RMSNORM, WEIGHTS, NULL},
    {"model.full_attention_interval", "2", DELTA_PARTS, NULL, WEIGHTS, NULL},
    {"model.linear_num_key_heads", "8", DELTA, DELTA_PARTS, WEIGHTS, NULL},
    {"model.linear_num_value_heads", "32", DELTA, DELTA_PARTS, WEIGHTS, NULL},
    {"model.linear_key_head_dim", "4", DELTA, DELTA_PARTS, WEIGHTS, NULL},
    {"model.linear_value_head_dim", "4", DELTA, DELTA_PARTS, WEIGHTS, NULL},
    {"model.linear_conv_kernel_dim", "3", DELTA, DELTA_PARTS, WEIGHTS, NULL},
    {"model.window", "8", "", NULL, WEIGHTS, NULL},
    {"model.window_from", "1", WINDOW, "", WEIGHTS, NULL},
    {"model.window_pattern", "2", WINDOW, "", WEIGHTS, NULL},
    {"model.qk_norm", "true", "", NULL, WEIGHTS, NULL},
    {"model.attention_gate", "true", "", NULL, WEIGHTS, NULL},
    {"model.qk_norm_whole", "true", "model.qk_norm=true", "", WEIGHTS, NULL},
    {"model.query_pre_attn_scalar", "64", "", "model.attention_multiplier=0.3", WEIGHTS, NULL},
    {"model.attention_softcap", "1", "", NULL, WEIGHTS, NULL},
    {"model.logit_softcap", "1", "", NULL, WEIGHTS, NULL},
    {"model.scale_embedding", "true", "", NULL, WEIGHTS, NULL},
    {"model.mlp", "geglu", "model.mlp=swiglu", NULL, WEIGHTS, NULL},
    {"model.bias", "none", "", NULL, WEIGHTS, NULL},
    {"model.tied_head", "false", "", NULL, WEIGHTS, NULL},
    {"model.embedding_multiplier", "3", "", "model.scale_embedding=true", WEIGHTS, NULL},
    {"model.attention_multiplier", "0.3", "", NULL, WEIGHTS, NULL},
    {"model.residual_multiplier", "0.3", "", NULL, WEIGHTS, NULL},
    {"model.logits_scaling", "3", "", NULL, WEIGHTS, NULL},
    {"model.fused", "all", "", NULL, WEIGHTS, NULL},
    {"model.type", "mistral", LLAMA, ROPE, UNSEEN, "the class of exports: test_export.c"},
    {"model.dropout", "0.5", "", PAIRS "dpo", WEIGHTS, NULL},
    {"model.init_from", "a/start", "", NULL, WEIGHTS, NULL},
    {"adapter.type", "lora", "model.init_from=a/start", NULL, OUTPUT, NULL},
    {"adapter.rank", "2", LORA, "", WEIGHTS, NULL},
    {"adapter.alpha", "8", LORA, "", WEIGHTS, NULL},
    {"adapter.dropout", "0.5", LORA, "", WEIGHTS, NULL},
    {"adapter.targets", "c_fc", LORA, "", WEIGHTS, NULL},
    {"adapter.rslora", "true", LORA, "", WEIGHTS, NULL},
    {"adapter.base", "nf4", LORA, "", WEIGHTS, NULL},
    {"adapter.init_from", "a/adapter", LORA, NULL, WEIGHTS, NULL},
    {"data.train", "rows_train_*.bin", "", NULL, WEIGHTS, NULL},
    {"data.val", "rows_val_*.bin", "", NULL, LOSSES, NULL},
    {"data.seq_len", "16", "", NULL, WEIGHTS, NULL},
    {"data.isolate", "false", MARKED, NULL, WEIGHTS, NULL},
    {"data.pack", "cut", MARKED, PAIRS "dpo", WEIGHTS, NULL},
    {"data.tokenizer", "gpt2", "", NULL, UNSEEN, "the data are bytes: test_base_program.c"},
    {"data.tokenizer_dir", "a/start", "", "", UNSEEN, "the data are bytes: test_base_program.c"},
    {"train.objective", "ipo", PAIRS "dpo", NULL, WEIGHTS, NULL},
    {"train.steps", "5", "", NULL, WEIGHTS, NULL},
    {"train.epochs", "0.06", "", NULL, WEIGHTS, NULL},
    {"train.minutes", "1e-6", "", NULL, OUTPUT, NULL},
    {"train.patience", "1", "optimizer.lr=1e-9|optimizer.min_lr=0|eval.every=1", NULL, OUTPUT,
     NULL},
    {"train.micro_batch_size", "4", "", NULL, WEIGHTS, NULL},
    {"train.grad_accum_steps", "2", "", "train.batch_tokens=64", WEIGHTS, NULL},
    {"train.batch_tokens", "128", "", NULL, WEIGHTS, NULL},
    {"train.recompute", "layer", "", NULL, OUTPUT, NULL},
    {"objective.reference", "base", PAIRS "dpo|" LORA "|adapter.init_from=a/adapter",
     PAIRS "simpo|" LORA, WEIGHTS, NULL},
    {"objective.dropout", "true", PAIRS "dpo|model.dropout=0.5", "", WEIGHTS, NULL},
    {"objective.beta", "0.5", PAIRS "dpo", "", WEIGHTS, NULL},
    {"objective.label_smoothing", "0.2", PAIRS "dpo", PAIRS "ipo", WEIGHTS, NULL},
    {"objective.nll_weight", "0.7", PAIRS "ipo", LABELS, WEIGHTS, NULL},
    {"objective.gamma", "0.7", PAIRS "simpo", PAIRS "dpo", WEIGHTS, NULL},
    {"objective.desirable_weight", "2", LABELS, PAIRS "orpo", WEIGHTS, NULL},
    {"objective.undesirable_weight", "2", LABELS, PAIRS "dpo", WEIGHTS, NULL},
    {"grpo.loss_type", "cispo", ROLLED, "", WEIGHTS, NULL},
    {"grpo.importance_sampling_level", "sequence", TWICE, "", WEIGHTS, NULL},
    {"grpo.num_generations", "2", ROLLED, "", WEIGHTS, NULL},
    {"grpo.texts_at_once", "2", ROLLED, "", UNSEEN, "the texts are the same"},
    {"grpo.max_completion_length", "3", ROLLED, "", WEIGHTS, NULL},
    {"grpo.num_iterations", "2", ROLLED, "", WEIGHTS, NULL},
    {"grpo.temperature", "2", ROLLED, "", WEIGHTS, NULL},
    {"grpo.epsilon", "1e-5", TWICE, "", WEIGHTS, NULL},
    {"grpo.epsilon_high", "1e-5", TWICE, "", WEIGHTS, NULL},
    {"grpo.delta", "0.9", TWICE, "", WEIGHTS, NULL},
    {"grpo.beta", "9", ROLLED "|" LORA, "", WEIGHTS, NULL},
    {"grpo.use_bias_correction_kl", "false", ROLLED "|grpo.beta=9|" LORA, ROLLED, WEIGHTS, NULL},
    {"grpo.scale_rewards", "none", ROLLED, "", WEIGHTS, NULL},
    {"grpo.mask_truncated_completions", "true", ROLLED, "", WEIGHTS, NULL},
    {"grpo.stop", "Y", ROLLED, "", WEIGHTS, NULL},
    {"reward.command", "sh short.sh", ROLLED, "", WEIGHTS, NULL},
    {"reward.weights", "a=2", ROLLED, "", UNSEEN, "no named rewards: test_rewards_program.c"},
    {"reward.soft_punish_cache", "6", ROLLED "|grpo.stop=Y", "", WEIGHTS, NULL},
    {"reward.timeout", "50", ROLLED, "", UNSEEN, "the program answers in time"},
    {"reward.match", "other", ROLLED, ROLLED, UNSEEN, "no text matches: test_rewards_program.c"},
    {"reward.pattern", "(.)", ROLLED, ROLLED, UNSEEN, "no text matches: test_rewards_program.c"},
    {"distill.logits", "top", "", NULL, WEIGHTS, NULL},
    {"distill.alpha", "0.2", DISTILL, "", WEIGHTS, NULL},
    {"distill.temperature", "1.5", DISTILL, DISTILL "|distill.alpha=0", WEIGHTS, NULL},
    {"optimizer.name", "lion", "", NULL, WEIGHTS, NULL},
    {"optimizer.lr", "0.01", "", NULL, WEIGHTS, NULL},
    {"optimizer.min_lr", "0.0005", "", "optimizer.schedule=constant", WEIGHTS, NULL},
    {"optimizer.warmup_steps", "3", "", NULL, WEIGHTS, NULL},
    {"optimizer.schedule", "constant", "", NULL, WEIGHTS, NULL},
    {"optimizer.decay_fraction", "0.5", "optimizer.schedule=wsd", "", WEIGHTS, NULL},
    {"optimizer.beta1", "0.5", "", SGD, WEIGHTS, NULL},
    {"optimizer.beta2", "0.5", MUON, SGD, WEIGHTS, NULL},
    {"optimizer.eps", "0.01", MUON, LION, WEIGHTS, NULL},
    {"optimizer.weight_decay", "0.5", "", NULL, WEIGHTS, NULL},
    {"optimizer.grad_clip", "0.01", SGD, NULL, WEIGHTS, NULL},
    {"optimizer.momentum", "0.5", SGD, LION, WEIGHTS, NULL},
    {"optimizer.nesterov", "false", MUON, "", WEIGHTS, NULL},
    {"optimizer.adamw_lr", "0.01", MUON, "", WEIGHTS, NULL},
    {"optimizer.scale", "original", MUON, SGD, WEIGHTS, NULL},
    {"optimizer.newton_schulz_steps", "2", MUON, SGD, WEIGHTS, NULL},
    {"optimizer.newton_schulz_dtype", "float32", MUON, "", WEIGHTS, NULL},
    {"optimizer.moments", "bfloat16", "", NULL, WEIGHTS, NULL},
    {"optimizer.min_8bit_size", "0", "optimizer.moments=int8", "", WEIGHTS, NULL},
    {"optimizer.embeddings_8bit", "true", INT8, "", WEIGHTS, NULL},
    {"optimizer.rounding_8bit", "stochastic", INT8, "", WEIGHTS, NULL},
    {"autocast.enabled", "false", BF16, "", WEIGHTS, NULL},
    {"autocast.float32", "lm_head", BF16, "", WEIGHTS, NULL},
    {"autocast.lower16", "qkv", FP8, BF16, WEIGHTS, NULL},
    {"autocast.lower16_first", "1", FP8, BF16, WEIGHTS, NULL},
    {"autocast.lower16_last", "1", FP8, BF16, WEIGHTS, NULL},
    {"autocast.lower16_forward", "true", FP8, BF16, WEIGHTS, NULL},
    {"autocast.residual", "lower", BF16, "", WEIGHTS, NULL},
    {"fp8.recipe", "row", FP8, BF16, WEIGHTS, NULL},
    {"fp8.format", "e4m3", FP8, FP8 "|fp8.recipe=block", WEIGHTS, NULL},
    {"fp8.power_of_two", "true", FP8, FP8 "|fp8.recipe=block", WEIGHTS, NULL},
    {"fp8.amax_history_length", "1", DELAYED, FP8, WEIGHTS, NULL},
    {"fp8.margin", "9", DELAYED, FP8, WEIGHTS, NULL},
    {"fp8.fast_accumulation", "false", FP8, FP8, UNSEEN, NO_GPU},
    {"fp8.require", "true", FP8, BF16, UNSEEN, NO_GPU},
    {"mx.format", "hybrid", "precision=mxfp8", "precision=mxfp4", WEIGHTS, NULL},
    {"mx.scales", "floor", "precision=mxfp4", NVFP4, WEIGHTS, NULL},
    {"nvfp4.stochastic_rounding", "false", NVFP4, FP8, WEIGHTS, NULL},
    {"nvfp4.hadamard", "false", NVFP4, FP8, WEIGHTS, NULL},
    {"nvfp4.square_blocks", "false", NVFP4, FP8, WEIGHTS, NULL},
    {"precision_switch.at", "3", "", NULL, WEIGHTS, NULL},
    {"precision_switch.precision", "fp16", "precision_switch.at=3", "", WEIGHTS, NULL},
    {"gradients.dtype", "lower", BF16, "", WEIGHTS, NULL},
    {"weights.copy", "cast", BF16 "|" WIDE, "", OUTPUT, NULL},
    {"weights.keep_quantized", "true", FP8 "|" WIDE, BF16, OUTPUT, NULL},
    {"offload.optimizer", "true", "", NULL, UNSEEN, NO_GPU},
    {"offload.weights", "true", "", NULL, UNSEEN, NO_GPU},
    {"offload.gradients", "true", "", NULL, UNSEEN, NO_GPU},
    {"offload.activations", "true", "", NULL, UNSEEN, NO_GPU},
    {"ranks.shard", "none", "", "", UNSEEN, "it needs several ranks"},
    {"ranks.gradients", "lower", BF16, BF16, UNSEEN, "it needs several ranks"},
    {"loss_scale.init_scale", "1e9", FP16, "", LOSSES, NULL},
    {"loss_scale.growth_factor", "4", FP16 "|loss_scale.growth_interval=1", "", LOSSES, NULL},
    {"loss_scale.backoff_factor", "0.25", FP16 "|loss_scale.init_scale=1e9", "", LOSSES, NULL},
    {"loss_scale.growth_interval", "1", FP16, "", LOSSES, NULL},
    {"loss_scale.min_scale", "9e8", FP16 "|loss_scale.init_scale=1e9", "loss_scale.init_scale=1e9",
     LOSSES, NULL},
    {"eval.every", "1", "", NULL, LOSSES, NULL},
    {"eval.batches", "3", "", "eval.every=0", LOSSES, NULL},
    {"eval.choices", "tales", LONG, NULL, OUTPUT, NULL},
    {"eval.choices_every", "1", LONG "|eval.choices=tales", "", OUTPUT, NULL},
    {"checkpoint.every", "1", "", NULL, OUTPUT, NULL},
    {"checkpoint.keep", "1", "", NULL, OUTPUT, NULL},
    {"checkpoint.keep_best", "true", "checkpoint.keep=2|eval.every=1|optimizer.lr=1", NULL, OUTPUT,
     NULL},
    {"checkpoint.reset_optimizer", "true", "", NULL, UNSEEN, "a resume: test_checkpoint.c"},
    {"checkpoint.shard_gb", "1e-5", "", NULL, OUTPUT, NULL},
    {"checkpoint.background", "false", "", NULL, UNSEEN, "only the time of a save"},
    {"checkpoint.on_error", "continue", "", NULL, UNSEEN, "no save fails here"},
    {"checkpoint.resume", "auto", "", NULL, UNSEEN, "the first process does not resume"},
    {"sample.every", "1", "sample.tokens=12", NULL, OUTPUT, NULL},
    {"sample.prompt", "the cat", SAMPLED, "", OUTPUT, NULL},
    {"sample.tokens", "9", SAMPLED, "", OUTPUT, NULL},
    {"sample.temperature", "9", SAMPLED, "", OUTPUT, NULL},
    {"sample.top_k", "1", SAMPLED, SAMPLED "|sample.temperature=0", OUTPUT, NULL},
    {"sample.top_p", "0.01", SAMPLED, SAMPLED "|sample.temperature=0", OUTPUT, NULL},
    {"sample.min_p", "0.9", SAMPLED, "", OUTPUT, NULL},
    {"sample.repetition_penalty", "9", SAMPLED, "", OUTPUT, NULL},
    {"sample.exact", "true", SAMPLED, SAMPLED, UNSEEN, "no sample of a run reads it"},
    {"log.every", "2", "", NULL, OUTPUT, NULL},
    {"log.metrics", "false", "", NULL, LOSSES, NULL},
};

static const char every_key_config[] =
    "{\n"
    "  \"name\": \"run\", \"precision\": \"fp32\", \"device\": \"cpu\", \"threads\": 1,\n"
    "  \"run_dir\": \"a\",\n"
    "  \"model\": {\"n_layer\": 2, \"n_head\": 2, \"n_embd\": 32, \"n_positions\": 32},\n"
    "  \"data\": {\"train\": \"tiny_train_*.bin\", \"val\": \"tiny_val_*.bin\", \"seq_len\": 32},\n"
    "  \"train\": {\"steps\": 4, \"micro_batch_size\": 2},\n"
    "  \"optimizer\": {\"lr\": 3e-3, \"min_lr\": 1e-3},\n"
    "  \"eval\": {\"every\": 4, \"batches\": 1},\n"
    "  \"checkpoint\": {\"every\": 2, \"keep\": 9},\n"
    "  \"sample\": {\"every\": 0}\n"
    "}\n";

/* Writes a config, shards of text, rows, pairs and labelled answers, a model, adapters on it, and
 * the logits of a teacher. */
static inline void set_up_every_key(void) {
    char command[FILE_PATH_MAX + 1000], prepare[FILE_PATH_MAX];
    const char *name = getenv("PREPARE") ? getenv("PREPARE") : "./prepare";
    set_up();
    cr_assert_not_null(realpath(name, prepare), "no program %s: build it or set PREPARE", name);
    write_file("key.json", every_key_config);
    write_file("prompts.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"bc\"}\n{\"prompt\": \"d\"}\n");
    for (int i = 0; i < 2; i++)
        write_file(i ? "short.sh" : "long.sh",
                   i ? "while read -r line; do echo {\\\"reward\\\": -${#line}}; done\n"
                     : "while read -r line; do echo {\\\"reward\\\": ${#line}}; done\n");
    snprintf(command, sizeof command,
             "cd %s && for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do"
             " echo '{\"prompt\":\"a'$i'\",\"chosen\":\" cat\",\"rejected\":\" dog '$i'\"}' >&3;"
             " echo '{\"prompt\":\"a'$i'\",\"completion\":\" mat\",\"label\":true}' >&4;"
             " echo '{\"prompt\":\"b'$i'\",\"completion\":\" hat\",\"label\":false}' >&4;"
             " echo '{\"prompt\":\"c'$i'\",\"completion\":\" on a mat '$i'\"}' >&5;"
             " done 3>pairs.jsonl 4>labels.jsonl 5>rows.jsonl &&"
             " for d in pairs labels rows; do"
             " %s --tokenizer bytes --val-fraction 0.3 --out $d $d.jsonl || exit 1;"
             " done >prepare.txt 2>&1",
             folder, prepare);
    cr_assert_eq(system(command), 0, "%s", command);
    expect_exit("--config|key.json|--set|name=start|--set|train.steps=1", 0);
    expect_exit("--config|key.json|--set|name=adapter|--set|adapter.type=lora|--set|"
                "model.init_from=a/start|--set|train.steps=1",
                0);
    expect_exit("--logits|top|--top|256|--from|a/start", 0);
}

static inline void forget(const char *name) {
    if (exists(name)) cr_assert_eq(directory_remove(in_folder("%s", name), &error), 0);
}

/* Appends settings separated by | as --set flags. */
static inline void add_settings(char *line, size_t size, const char *settings) {
    while (*settings) {
        size_t length = strcspn(settings, "|"), used = strlen(line);
        snprintf(line + used, size - used, "|--set|%.*s", (int)length, settings);
        settings += length + (settings[length] == '|');
    }
}

/* Trains into a/NAME with these settings and the key, unless that is NULL. `first`: flags. */
static inline int train(const char *name, const char *first, const char *settings,
                        const struct key_case *key) {
    char line[1500], setting[200];
    snprintf(line, sizeof line, "--config|key.json%s|--set|name=%s", first, name);
    add_settings(line, sizeof line, settings);
    if (key) {
        snprintf(setting, sizeof setting, "%s=%s", key->key, key->value);
        add_settings(line, sizeof line, setting);
    }
    return run(line);
}

static inline uint64_t hash_text(uint64_t hash, const char *text, size_t size) {
    for (size_t i = 0; i < size; i++) hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3u;
    return hash;
}

/* The figures of a finished run that are compared. */
struct seen {
    uint64_t of[OUTPUT + 1];
};

/* Adds the lines of the console but for times and paths, and of metrics.jsonl but for times and the
 * answers to questions. */
static inline void see_lines(struct seen *seen, const char *name) {
    char *text, *rest = out_text, *line;
    size_t size;
    while ((line = strsep(&rest, "\n")))
        if (!strstr(line, " tok/s") && !strstr(line, "a/") && !strstr(line, "paused training"))
            seen->of[OUTPUT] = hash_text(seen->of[OUTPUT], line, strlen(line));
        else if (strstr(line, " tok/s")) seen->of[OUTPUT]++;
    if (file_read_all(&text, &size, in_folder("a/%s/metrics.jsonl", name), 1 << 20, &error)) return;
    for (rest = text; (line = strsep(&rest, "\n"));) {
        const char *times = strstr(line, ", \"step_ms\"");
        size_t length = times ? (size_t)(times - line) : strlen(line);
        if (strstr(line, "choices_acc")) continue;
        seen->of[LOSSES] = hash_text(seen->of[LOSSES], line, length);
    }
    free(text);
}

static inline struct seen see(const char *name) {
    static const char *const files[] = {"model.safetensors", "adapter_model.safetensors"};
    struct seen seen = {{0}};
    char *text, last[64], where[96];
    size_t size;
    snprintf(where, sizeof where, "a/%s/checkpoints", name);
    const char *names = names_in(where, "");
    seen.of[OUTPUT] = hash_text(0, names, strlen(names));
    const char *space = strrchr(names, ' ');
    snprintf(last, sizeof last, "%.40s", space ? space + 1 : names);
    snprintf(where + strlen(where), sizeof where - strlen(where), "/%.40s", last);
    names = names_in(where, "");
    seen.of[OUTPUT] = hash_text(seen.of[OUTPUT], names, strlen(names));
    for (int i = 0; i < 2; i++) {
        if (file_read_all(&text, &size, in_folder("%s/%s", where, files[i]), 1 << 24, &error))
            continue;
        seen.of[WEIGHTS] = hash_text(seen.of[WEIGHTS], text, size);
        free(text);
    }
    see_lines(&seen, name);
    return seen;
}
