#include "test/model/io/checkpoint_fixture.h"

#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/dtype.h"
#include "model/io/export.h"
#include "model/io/gguf.h"
#include "model/io/huggingface.h"
#include "test/model/families.h"
#include "test/model/io/foreign_weights.h"
#include "test/model/io/gguf_reader.h"
#include "test/safetensors_find.h"

TestSuite(gguf, .init = make_folder, .fini = remove_folder);

/* ---- models */

static struct config config;

/* Puts a model of a family into a folder, whose values are value_of's. Returns its parameters. */
static struct parameter *put_model(void) {
    static const struct foreign_format plain = {.dtype = SAFETENSORS_F32, .prefix = ""};
    struct huggingface_tokens tokens = {.begin = 5, .pad = 6, .ends = {7, 8, 9, 10}};
    char *text;
    size_t size;
    int64_t count;
    tokens.end_count = 4;
    FILE *out = open_memstream(&text, &size);
    huggingface_print_config(out, &config, &tokens, DTYPE_F32);
    fclose(out);
    put_text("config.json", text);
    free(text);
    struct model_shape shape = config_shape(&config);
    struct parameter *list = parameter_list(&shape, &count);
    put_weights(list, &plain);
    return list;
}

static int export_to(const char *to, enum gguf_type type, FILE *notes) {
    const struct export_options options = {.gguf_type = type, .notes = notes};
    error.text[0] = '\0';
    return export_model(to, folder, &options, &error);
}

static void export_and_read(struct read_gguf *file, enum gguf_type type) {
    unlink(in_folder("out.gguf"));
    SUCCEEDS(export_to(in_folder("out.gguf"), type, NULL));
    read_gguf(file, in_folder("out.gguf"));
}

static void expect_refused(const char *reason) {
    cr_expect_eq(export_to(in_folder("out.gguf"), GGUF_F32, NULL), -1, "exported: %s", reason);
    expect_text(error.text, reason);
    cr_expect_not(file_exists(in_folder("out.gguf")));
    cr_expect_not(file_exists(in_folder("out.gguf.tmp")));
}

/* One tensor of a file, and where its values are in the file of Hugging Face. */
struct expected {
    const char *name, *from;
    char order; /* '=': the same, 'T': transposed, 'q' and 'k': rows for llama.cpp's rope */
};

static const struct expected gpt2_tensors[] = {
    {"token_embd.weight", "wte.weight", '='},
    {"position_embd.weight", "wpe.weight", '='},
    {"output_norm.weight", "ln_f.weight", '='},
    {"output_norm.bias", "ln_f.bias", '='},
    {"blk.1.attn_norm.weight", "h.1.ln_1.weight", '='},
    {"blk.1.attn_norm.bias", "h.1.ln_1.bias", '='},
    {"blk.1.attn_qkv.weight", "h.1.attn.c_attn.weight", 'T'},
    {"blk.1.attn_qkv.bias", "h.1.attn.c_attn.bias", '='},
    {"blk.1.attn_output.weight", "h.1.attn.c_proj.weight", 'T'},
    {"blk.1.attn_output.bias", "h.1.attn.c_proj.bias", '='},
    {"blk.1.ffn_norm.weight", "h.1.ln_2.weight", '='},
    {"blk.1.ffn_norm.bias", "h.1.ln_2.bias", '='},
    {"blk.1.ffn_up.weight", "h.1.mlp.c_fc.weight", 'T'},
    {"blk.1.ffn_up.bias", "h.1.mlp.c_fc.bias", '='},
    {"blk.1.ffn_down.weight", "h.1.mlp.c_proj.weight", 'T'},
    {"blk.1.ffn_down.bias", "h.1.mlp.c_proj.bias", '='},
};

#define LAYER(name) "model.layers.1." name
static const struct expected llama_tensors[] = {
    {"token_embd.weight", "model.embed_tokens.weight", '='},
    {"output.weight", "lm_head.weight", '='},
    {"output_norm.weight", "model.norm.weight", '='},
    {"blk.1.attn_norm.weight", LAYER("input_layernorm.weight"), '='},
    {"blk.1.attn_q.weight", LAYER("self_attn.q_proj.weight"), 'q'},
    {"blk.1.attn_q.bias", LAYER("self_attn.q_proj.bias"), 'q'},
    {"blk.1.attn_k.weight", LAYER("self_attn.k_proj.weight"), 'k'},
    {"blk.1.attn_k.bias", LAYER("self_attn.k_proj.bias"), 'k'},
    {"blk.1.attn_v.weight", LAYER("self_attn.v_proj.weight"), '='},
    {"blk.1.attn_v.bias", LAYER("self_attn.v_proj.bias"), '='},
    {"blk.1.attn_q_norm.weight", LAYER("self_attn.q_norm.weight"), '='},
    {"blk.1.attn_k_norm.weight", LAYER("self_attn.k_norm.weight"), '='},
    {"blk.1.attn_output.weight", LAYER("self_attn.o_proj.weight"), '='},
    {"blk.1.attn_output.bias", LAYER("self_attn.o_proj.bias"), '='},
    {"blk.1.ffn_gate.weight", LAYER("mlp.gate_proj.weight"), '='},
    {"blk.1.ffn_gate.bias", LAYER("mlp.gate_proj.bias"), '='},
    {"blk.1.ffn_up.weight", LAYER("mlp.up_proj.weight"), '='},
    {"blk.1.ffn_up.bias", LAYER("mlp.up_proj.bias"), '='},
    {"blk.1.ffn_down.weight", LAYER("mlp.down_proj.weight"), '='},
    {"blk.1.ffn_down.bias", LAYER("mlp.down_proj.bias"), '='},
    /* Last, since Gemma has gemma_norms instead. */
    {"blk.1.ffn_norm.weight", LAYER("post_attention_layernorm.weight"), '='},
};

static const struct expected gemma_norms[] = {
    {"blk.1.post_attention_norm.weight", LAYER("post_attention_layernorm.weight"), '='},
    {"blk.1.ffn_norm.weight", LAYER("pre_feedforward_layernorm.weight"), '='},
    {"blk.1.post_ffw_norm.weight", LAYER("post_feedforward_layernorm.weight"), '='},
};
#undef LAYER

/* Returns the place of a row of q or k in llama.cpp, which rotates rows 2i and 2i + 1 of a head;
 * transformers rotates rows i and i + half. */
static int64_t rope_row(int64_t row, int64_t size) {
    int64_t head = row / size, at = row % size;
    return head * size + (at < size / 2 ? 2 * at : 2 * (at - size / 2) + 1);
}

static void expect_tensor(const struct read_info *info, const struct expected *expected,
                          const struct parameter *parameter, int64_t id, bool reorders) {
    const struct extent *extent = &parameter->extent;
    const int64_t rows = extent->rows, columns = extent->columns ? extent->columns : 1;
    const bool transposed = expected->order == 'T';
    const float offset = config.model.norm_zero_centered && !extent->columns ? 1 : 0;
    cr_expect_eq(info->dimensions, extent->columns ? 2u : 1u);
    cr_assert_eq(info->shape[0], (uint64_t)(transposed || !extent->columns ? rows : columns));
    if (extent->columns) cr_assert_eq(info->shape[1], (uint64_t)(transposed ? columns : rows));
    for (int64_t row = 0; row < rows; row++)
        for (int64_t column = 0; column < columns; column++) {
            bool moved = reorders && strchr("qk", expected->order);
            int64_t to = moved ? rope_row(row, config_shape(&config).head_dim) : row;
            int64_t at = transposed ? column * rows + row : to * columns + column;
            float value;
            memcpy(&value, info->data + 4 * at, 4);
            cr_assert_eq(value, value_of(id, row * columns + column) + offset, "%s[%d, %d]",
                         expected->name, (int)row, (int)column);
        }
}

/* Names of Phi-3 and GLM-4, whose rope pairs the same rows in llama.cpp. */
static const struct expected fused_tensors[] = {
    {"token_embd.weight", "model.embed_tokens.weight", '='},
    {"output_norm.weight", "model.norm.weight", '='},
    {"blk.1.attn_norm.weight", "model.layers.1.input_layernorm.weight", '='},
    {"blk.1.attn_qkv.weight", "model.layers.1.self_attn.qkv_proj.weight", '='},
    {"blk.1.attn_q.weight", "model.layers.1.self_attn.q_proj.weight", '='},
    {"blk.1.attn_q.bias", "model.layers.1.self_attn.q_proj.bias", '='},
    {"blk.1.attn_k.weight", "model.layers.1.self_attn.k_proj.weight", '='},
    {"blk.1.attn_k.bias", "model.layers.1.self_attn.k_proj.bias", '='},
    {"blk.1.attn_v.weight", "model.layers.1.self_attn.v_proj.weight", '='},
    {"blk.1.attn_v.bias", "model.layers.1.self_attn.v_proj.bias", '='},
    {"blk.1.attn_output.weight", "model.layers.1.self_attn.o_proj.weight", '='},
    {"blk.1.post_attention_norm.weight", "model.layers.1.post_self_attn_layernorm.weight", '='},
    {"blk.1.ffn_norm.weight", "model.layers.1.post_attention_layernorm.weight", '='},
    {"blk.1.ffn_up.weight", "model.layers.1.mlp.gate_up_proj.weight", '='},
    {"blk.1.ffn_down.weight", "model.layers.1.mlp.down_proj.weight", '='},
    {"blk.1.post_ffw_norm.weight", "model.layers.1.post_mlp_layernorm.weight", '='},
};

/* Checks the tensors of the model and of layer 1. Returns how many of them there are. */
static uint64_t expect_tensors(const struct read_gguf *file, const struct expected *all,
                               size_t count, const struct parameter *list, bool reorders) {
    uint64_t found = 0;
    for (size_t i = 0; i < count; i++) {
        ptrdiff_t at = 0;
        while (at < arrlen(list) && strcmp(list[at].name, all[i].from) != 0) at++;
        const struct read_info *info = find_info(file, all[i].name);
        cr_assert_eq(at < arrlen(list), info != NULL, "%s", all[i].name);
        if (!info) continue;
        cr_expect_eq(info->type, 0u);
        expect_tensor(info, &all[i], &list[at], at, reorders);
        found += list[at].layer < 0 ? 1 : (uint64_t)config.model.n_layer;
    }
    return found;
}

static void expect_sizes(const struct read_gguf *file, const char *architecture) {
    const struct model_shape s = config_shape(&config);
    const bool rope = strcmp(architecture, "gpt2") != 0;
    const struct {
        const char *key;
        int64_t size;
    } sizes[] = {
        {"vocab_size", 300},
        {"context_length", 16},
        {"embedding_length", 24},
        {"block_count", s.n_layer},
        {"feed_forward_length", s.n_inner},
        {"attention.head_count", s.n_head},
        {"attention.head_count_kv", rope ? s.n_kv_head : -1},
        {"attention.key_length", rope ? s.head_dim : -1},
        {"attention.value_length", rope ? s.head_dim : -1},
        {"rope.dimension_count", rope ? shape_rotary(&s) : -1},
        {"attention.sliding_window", s.window ? s.window : -1},
    };
    char key[80];
    expect_string(file, "general.architecture", architecture);
    for (size_t i = 0; i < COUNT(sizes); i++) {
        snprintf(key, sizeof key, "%s.%s", architecture, sizes[i].key);
        expect_uint32(file, key, sizes[i].size);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm%s_epsilon", architecture,
             rope ? "_rms" : "");
    expect_float32(file, key, rope ? 1e-6f : 1e-5f);
    snprintf(key, sizeof key, "%s.rope.freq_base", architecture);
    if (rope) expect_float32(file, key, 10000);
    else cr_expect_null(find_pair(file, key));
}

static void expect_family(const char *architecture) {
    struct read_gguf file;
    struct parameter *list = put_model();
    const bool gpt2 = strcmp(architecture, "gpt2") == 0;
    const bool scaled = config.model.rope_scaling == ROPE_LLAMA3;
    const bool fused = config.model.fused != FUSED_NONE;
    const bool gemma = config.model.post_norm && !fused; /* and others with norms after branches */
    export_and_read(&file, GGUF_F32);
    expect_sizes(&file, architecture);
    uint64_t found = fused ? expect_tensors(&file, fused_tensors, COUNT(fused_tensors), list, false)
                     : gpt2
                         ? expect_tensors(&file, gpt2_tensors, COUNT(gpt2_tensors), list, false)
                         : expect_tensors(&file, llama_tensors, COUNT(llama_tensors) - gemma, list,
                                          strcmp(architecture, "llama") == 0 ||
                                              strcmp(architecture, "smollm3") == 0 ||
                                              strcmp(architecture, "granite") == 0 ||
                                              strcmp(architecture, "arcee") == 0);
    if (gemma) found += expect_tensors(&file, gemma_norms, COUNT(gemma_norms), list, false);
    cr_expect_eq(file.info_count, found + scaled, "%s", architecture);
    arrfree(list);
    free(file.bytes);
}

Test(gguf, each_family_has_its_names_orders_and_sizes) {
    /* Number 2 has the rope of Llama 3, and the Gemmas here another scale of scores; the layers of
     * SmolLM3, OLMo 3 and EXAONE 4 here differ from those of llama.cpp. */
    static const char *const architectures[FAMILIES] = {
        "gpt2", "llama", "llama",   NULL, NULL,    "qwen3", NULL, NULL,   NULL, "olmo2",
        NULL,   NULL,    "granite", NULL, "arcee", "phi3",  NULL, "glm4", NULL, NULL};
    for (int family = 0; family < FAMILIES; family++) {
        subject_config(&config, CONFIG_PRECISION_FP32);
        set_family(&config, family);
        if (family == 14) config.model.bias = BIAS_NONE;
        if (architectures[family]) {
            expect_family(architectures[family]);
            unlink(in_folder("out.gguf"));
            continue;
        }
        struct parameter *list = put_model();
        expect_refused("llama.cpp has no model with these parts");
        arrfree(list);
    }
}

Test(gguf, variants_of_the_families) {
    subject_config(&config, CONFIG_PRECISION_FP32);
    set_family(&config, 2);
    config.model.rope_scaling = ROPE_UNSCALED;
    expect_family("qwen2");
    config.model.head_dim = 4; /* llama.cpp's Qwen2 has heads as wide as the model */
    expect_family("llama");
    set_family(&config, 1);
    config.model.bias = BIAS_ALL;
    expect_family("llama");
    config.model.bias = BIAS_NONE;
    config.model.window = 5;
    expect_family("llama");
    set_family(&config, 5);
    config.model.window = 0;
    config.model.rope_scaling = ROPE_LLAMA3;
    unlink(in_folder("out.gguf"));
    struct parameter *list = put_model();
    expect_refused("Qwen3 without llama3 rope scaling\nexport to a folder instead");
    arrfree(list);
}

/* Every fourth layer of llama.cpp's SmolLM3 has no rope, and of its OLMo 3 no window. Only its
 * EXAONE 4 of 64 layers has windows. */
Test(gguf, layers_that_differ) {
    struct read_gguf file;
    subject_config(&config, CONFIG_PRECISION_FP32);
    set_family(&config, 8);
    config.model.no_rope_interval = config.model.n_layer = 4;
    expect_family("smollm3");
    config.model.n_layer = 2;
    set_family(&config, 10);
    config.model.window_pattern = 4;
    config.model.rope_theta_window = config.model.rope_theta;
    config.model.rope_scaling = ROPE_YARN;
    expect_family("olmo2");
    export_and_read(&file, GGUF_F32);
    expect_string(&file, "olmo2.rope.scaling.type", "yarn");
    free(file.bytes);
    set_family(&config, 11);
    config.model.window = config.model.no_rope_interval = 0;
    config.model.rope_scaling = ROPE_LLAMA3;
    expect_family("exaone4");
    for (int i = 0; i < 3; i++) {
        set_family(&config, i == 0 ? 11 : 10);
        config.model.window_pattern = i == 1 ? 2 : 4;
        config.model.no_rope_interval = i == 0 ? 4 : 0;
        if (i == 1) config.model.rope_theta_window = config.model.rope_theta;
        unlink(in_folder("out.gguf"));
        struct parameter *list = put_model();
        expect_refused("OLMo 2 and 3 and EXAONE 4 with their usual parts");
        arrfree(list);
    }
}

/* Its Arcee has no biases, and its OLMo 2 a head of its own and heads as wide as the model. */
Test(gguf, tensors_that_llama_cpp_lacks) {
    for (int i = 0; i < 3; i++) {
        subject_config(&config, CONFIG_PRECISION_FP32);
        set_family(&config, i == 0 ? 14 : 9);
        config.model.tied_head = i < 2;
        if (i == 2) config.model.head_dim = 4;
        struct parameter *list = put_model();
        expect_refused("llama.cpp has no model with these parts");
        arrfree(list);
    }
}

static void set_gemma_of_llama_cpp(bool third) {
    subject_config(&config, CONFIG_PRECISION_FP32);
    set_family(&config, third ? 7 : 6);
    config.model.query_pre_attn_scalar = 6; /* head_dim */
    if (third) config.model.logit_softcap = 0;
}

Test(gguf, factors_of_granite) {
    struct read_gguf file;
    subject_config(&config, CONFIG_PRECISION_FP32);
    set_family(&config, 12);
    config.model.residual_multiplier = 0; /* none */
    struct parameter *list = put_model();
    export_and_read(&file, GGUF_F32);
    expect_float32(&file, "granite.embedding_scale", 7);
    expect_float32(&file, "granite.attention.scale", 0.3f);
    expect_float32(&file, "granite.residual_scale", 1);
    expect_float32(&file, "granite.logit_scale", 1.5f);
    arrfree(list);
    free(file.bytes);
}

Test(gguf, gemma_2_and_3) {
    struct read_gguf file;
    set_gemma_of_llama_cpp(false);
    expect_family("gemma2");
    export_and_read(&file, GGUF_F32);
    expect_float32(&file, "gemma2.attn_logit_softcapping", 2);
    expect_float32(&file, "gemma2.final_logit_softcapping", 3);
    cr_expect_null(find_pair(&file, "gemma2.attention.sliding_window_pattern"));
    free(file.bytes);
    set_gemma_of_llama_cpp(true);
    expect_family("gemma3");
    export_and_read(&file, GGUF_F32);
    expect_uint32(&file, "gemma3.attention.sliding_window_pattern", 2);
    expect_float32(&file, "gemma3.rope.freq_base_swa", 100);
    cr_expect_null(find_pair(&file, "gemma3.final_logit_softcapping"));
    free(file.bytes);
    config.model.window_pattern = 6;
    config.model.rope_theta_window = 10000;
    config.model.query_pre_attn_scalar = 0;
    config.model.rope_scaling = ROPE_LINEAR;
    expect_family("gemma3");
    export_and_read(&file, GGUF_F32);
    cr_expect_null(find_pair(&file, "gemma3.attention.sliding_window_pattern"));
    cr_expect_null(find_pair(&file, "gemma3.rope.freq_base_swa"));
    expect_string(&file, "gemma3.rope.scaling.type", "linear");
    free(file.bytes);
}

Test(gguf, gemmas_that_llama_cpp_computes_otherwise_are_refused) {
    for (int i = 0; i < 9; i++) {
        set_gemma_of_llama_cpp(i >= 5);
        if (i == 0 || i == 5) config.model.query_pre_attn_scalar = 7;
        if (i == 1) config.model.attention_softcap = 0;
        if (i == 2) config.model.logit_softcap = 0;
        if (i == 3) config.model.tied_head = false;
        if (i == 4 || i == 6) config.model.window = 0;
        if (i == 7) config.model.logit_softcap = 3;
        if (i == 8) config.model.rope_scaling = ROPE_YARN;
        unlink(in_folder("out.gguf"));
        struct parameter *list = put_model();
        expect_refused("Gemma 2 and 3, SmolLM3, OLMo 2 and 3");
        arrfree(list);
    }
}

/* llama.cpp multiplies attn_factor by 0.1 ln(factor) + 1. */
Test(gguf, linear_and_yarn_are_in_the_metadata) {
    struct read_gguf file;
    subject_config(&config, CONFIG_PRECISION_FP32);
    set_family(&config, 1);
    config.model.rope_factor = 2.5;
    config.model.rope_scaling = ROPE_LINEAR;
    expect_family("llama");
    export_and_read(&file, GGUF_F32);
    expect_string(&file, "llama.rope.scaling.type", "linear");
    expect_float32(&file, "llama.rope.scaling.factor", 2.5f);
    cr_expect_null(find_pair(&file, "llama.rope.scaling.attn_factor"));
    free(file.bytes);
    set_family(&config, 5);
    config.model.rope_scaling = ROPE_YARN;
    config.model.rope_attention_factor = 0.8;
    expect_family("qwen3");
    export_and_read(&file, GGUF_F32);
    expect_string(&file, "qwen3.rope.scaling.type", "yarn");
    expect_float32(&file, "qwen3.rope.scaling.factor", 2.5f);
    expect_uint32(&file, "qwen3.rope.scaling.original_context_length", 16);
    expect_float32(&file, "qwen3.rope.scaling.attn_factor", (float)(0.8 / (0.1 * log(2.5) + 1)));
    free(file.bytes);
    config.model.rope_attention_factor = 0;
    expect_family("qwen3");
    export_and_read(&file, GGUF_F32);
    expect_float32(&file, "qwen3.rope.scaling.attn_factor", 1);
    free(file.bytes);
}

Test(gguf, ropes_that_llama_cpp_lacks_are_refused) {
    static const struct {
        enum rope_scaling kind;
        double fast, slow;
        bool truncate;
    } cases[] = {{ROPE_DYNAMIC, 32, 1, true},
                 {ROPE_YARN, 31, 1, true},
                 {ROPE_YARN, 32, 2, true},
                 {ROPE_YARN, 32, 1, false}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        subject_config(&config, CONFIG_PRECISION_FP32);
        set_family(&config, 1);
        config.model.rope_scaling = cases[i].kind;
        config.model.rope_beta_fast = cases[i].fast;
        config.model.rope_beta_slow = cases[i].slow;
        config.model.rope_truncate = cases[i].truncate;
        struct parameter *list = put_model();
        expect_refused(cases[i].kind == ROPE_DYNAMIC ? "no rope scaling \"dynamic\""
                                                     : "yarn only with model.rope_beta_fast 32");
        arrfree(list);
    }
}

/* Frequencies of Llama 3's rope by hand: head_dim 6, base 10000, 16 original positions. The pairs
 * have 2.55, 0.118 and 0.0055 periods there: the first lies between low_freq_factor 1 and
 * high_freq_factor 4, the others below. */
Test(gguf, the_rope_of_llama_3_has_divisors) {
    struct read_gguf file;
    float divisors[3];
    subject_config(&config, CONFIG_PRECISION_FP32);
    set_family(&config, 2);
    struct parameter *list = put_model();
    export_and_read(&file, GGUF_Q8_0);
    const struct read_info *info = find_info(&file, "rope_freqs.weight");
    cr_assert(info && info->type == 0 && info->dimensions == 1 && info->shape[0] == 3);
    memcpy(divisors, info->data, sizeof divisors);
    double smooth = (16 / (2 * M_PI) - 1) / 3, factor = config.model.rope_factor;
    cr_expect_float_eq(divisors[0], (float)(1 / (smooth + (1 - smooth) / factor)), 1e-5f);
    cr_expect_float_eq(divisors[1], (float)factor, 1e-5f);
    cr_expect_float_eq(divisors[2], (float)factor, 1e-5f);
    arrfree(list);
    free(file.bytes);
}

/* ---- types of a model's tensors */

/* A Llama with rows of whole blocks, except those of ffn_down. */
static void put_wide_model(bool tied) {
    subject_config(&config, CONFIG_PRECISION_FP32);
    set_family(&config, 1);
    config.model.n_embd = 64;
    config.model.head_dim = 0;
    config.model.tied_head = tied;
    struct parameter *list = put_model();
    arrfree(list);
}

static uint32_t type_of(const struct read_gguf *file, const char *name) {
    const struct read_info *info = find_info(file, name);
    cr_assert_not_null(info, "%s", name);
    return info->type;
}

Test(gguf, tensors_have_the_type_or_one_that_llama_cpp_needs) {
    static const struct {
        enum gguf_type type;
        uint32_t file_type, matrix, head, odd;
    } types[] = {{GGUF_F32, 0, 0, 0, 0},
                 {GGUF_F16, 1, 1, 1, 1},
                 {GGUF_BF16, 32, 30, 30, 30},
                 {GGUF_Q8_0, 7, 8, 8, 1},
                 {GGUF_Q4_0, 2, 2, 8, 1}};
    for (size_t i = 0; i < COUNT(types); i++)
        for (int tied = 0; tied < 2; tied++) {
            struct read_gguf file;
            put_wide_model(tied);
            export_and_read(&file, types[i].type);
            expect_uint32(&file, "general.file_type", types[i].file_type);
            expect_uint32(&file, "general.quantization_version",
                          gguf_types[types[i].type].block > 1 ? 2 : -1);
            cr_expect_eq(type_of(&file, "blk.0.attn_k.weight"), types[i].matrix);
            cr_expect_eq(type_of(&file, "blk.1.ffn_down.weight"), types[i].odd);
            cr_expect_eq(type_of(&file, "blk.0.attn_norm.weight"), 0u);
            cr_expect_eq(type_of(&file, tied ? "token_embd.weight" : "output.weight"),
                         types[i].head);
            if (!tied) cr_expect_eq(type_of(&file, "token_embd.weight"), types[i].matrix);
            else cr_expect_null(find_info(&file, "output.weight"));
            free(file.bytes);
        }
}

/* The rows are those of the f32 file, after gguf_store. */
Test(gguf, quantized_rows_are_those_of_the_model) {
    struct read_gguf wide, file;
    put_wide_model(false);
    export_and_read(&wide, GGUF_F32);
    export_and_read(&file, GGUF_Q4_0);
    const struct read_info *from = find_info(&wide, "blk.1.attn_q.weight");
    const struct read_info *to = find_info(&file, "blk.1.attn_q.weight");
    for (int row = 0; row < 64; row++) {
        float values[64];
        uint8_t blocks[36];
        memcpy(values, from->data + sizeof values * (size_t)row, sizeof values);
        cr_assert_eq(gguf_store(blocks, GGUF_Q4_0, values, 64), -1);
        cr_expect_eq(memcmp(blocks, to->data + sizeof blocks * (size_t)row, sizeof blocks), 0);
    }
    free(wide.bytes);
    free(file.bytes);
}

static char *notes_of(enum gguf_type type) {
    char *text;
    size_t size;
    FILE *notes = open_memstream(&text, &size);
    unlink(in_folder("out.gguf"));
    SUCCEEDS(export_to(in_folder("out.gguf"), type, notes));
    fclose(notes);
    return unfold(text);
}

Test(gguf, notes_say_what_differs) {
    put_wide_model(false);
    char *text = notes_of(GGUF_F16);
    cr_expect_str_eq(text, "note: no tokenizer found; the file works with token numbers only\n");
    free(text);
    text = notes_of(GGUF_Q8_0);
    expect_text(text, "note: blk.0.ffn_down.weight and other layers: rows of 72 values are not a "
                      "multiple of 32; stored as f16\n");
    cr_expect_null(strstr(text, "blk.1"));
    cr_expect_null(strstr(text, "attn"));
    free(text);
    config.model.window = 9;
    struct parameter *list = put_model();
    text = notes_of(GGUF_F32);
    expect_text(text,
                "ignores the sliding window; its results differ in texts of more than 9 tokens");
    free(text);
    arrfree(list);
    set_gemma_of_llama_cpp(true); /* whose windows it has */
    list = put_model();
    text = notes_of(GGUF_F32);
    cr_expect_str_eq(text, "note: no tokenizer found; the file works with token numbers only\n");
    free(text);
    arrfree(list);
}

Test(gguf, values_too_large_are_named) {
    subject_config(&config, CONFIG_PRECISION_FP32);
    struct parameter *list = put_model();
    struct safetensors file;
    SUCCEEDS(safetensors_open(&file, in_folder("model.safetensors"), &error));
    const struct safetensors_entry *entry = safetensors_find(&file, "h.0.mlp.c_fc.weight");
    uint64_t offset = file.data_start + entry->offset + 4 * (3 * entry->shape[1] + 2);
    safetensors_close(&file);
    FILE *out = fopen(in_folder("model.safetensors"), "r+");
    cr_assert_eq(fseek(out, (long)offset, SEEK_SET), 0);
    fwrite(&(float){-7e4f}, 4, 1, out);
    fclose(out);
    cr_expect_eq(export_to(in_folder("out.gguf"), GGUF_F16, NULL), -1);
    expect_text(error.text,
                "tensor blk.0.ffn_up.weight: element [2, 3] is -70000, which f16 cannot "
                "represent\nexport with --type bf16 or f32");
    cr_expect_str_eq(names_in(""), "config.json model.safetensors ");
    SUCCEEDS(export_to(in_folder("out.gguf"), GGUF_BF16, NULL));
    arrfree(list);
}

/* ---- targets */

Test(gguf, writes_to_a_new_file) {
    subject_config(&config, CONFIG_PRECISION_FP32);
    struct parameter *list = put_model();
    struct read_gguf file;
    SUCCEEDS(export_to(in_folder("a/b/My Model.gguf"), GGUF_F32, NULL));
    read_gguf(&file, in_folder("a/b/My Model.gguf"));
    expect_string(&file, "general.name", "My Model");
    expect_string(&file, "general.type", "model");
    free(file.bytes);
    cr_expect_str_eq(names_in("a/b"), "My Model.gguf ");
    put_text("taken.gguf", "other");
    cr_assert_eq(symlink("nowhere", in_folder("link.gguf")), 0);
    cr_assert_eq(mkdir(in_folder("dir.gguf"), 0755), 0);
    static const char *const names[] = {"taken", "link", "dir"};
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(export_to(in_folder("%s.gguf", names[i]), GGUF_F32, NULL), -1);
        expect_text(error.text, "already exists\nexport to another file, or remove it first");
    }
    char *text;
    size_t size;
    SUCCEEDS(file_read_all(&text, &size, in_folder("taken.gguf"), 100, &error));
    cr_expect_str_eq(text, "other");
    free(text);
    cr_expect_eq(export_to(in_folder("config.json/out.gguf"), GGUF_F32, NULL), -1);
    char *deep = calloc(1, FILE_PATH_MAX + 1);
    memset(deep, 'x', FILE_PATH_MAX);
    memcpy(deep + FILE_PATH_MAX - 5, ".gguf", 5);
    cr_expect_eq(export_to(deep, GGUF_F32, NULL), -1);
    expect_text(error.text, "too long");
    free(deep);
    arrfree(list);
}

Test(gguf, a_full_disk_leaves_nothing) {
    subject_config(&config, CONFIG_PRECISION_FP32);
    struct parameter *list = put_model();
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t limit = 0; limit < 80000; limit += 9973) {
        struct rlimit few = {limit, RLIM_INFINITY}, any = {RLIM_INFINITY, RLIM_INFINITY};
        setrlimit(RLIMIT_FSIZE, &few);
        int status = export_to(in_folder("out.gguf"), GGUF_F32, NULL);
        setrlimit(RLIMIT_FSIZE, &any);
        cr_expect_eq(status, -1, "exported in %lu bytes", (unsigned long)limit);
        expect_text(error.text, "disk full");
        cr_expect_str_eq(names_in(""), "config.json model.safetensors ");
    }
    SUCCEEDS(export_to(in_folder("out.gguf"), GGUF_F32, NULL));
    arrfree(list);
}

/* The file is complete or absent, and the next export replaces leftovers. */
Test(gguf, a_kill_leaves_no_half_file, .timeout = 120) {
    subject_config(&config, CONFIG_PRECISION_FP32);
    struct parameter *list = put_model();
    int finished = 0, interrupted = 0;
    double window = 4000; /* microseconds */
    for (uint64_t round = 0; round < 300 && (finished < 6 || interrupted < 10); round++) {
        pid_t child = fork();
        if (child == 0) _exit(export_to(in_folder("out.gguf"), GGUF_F32, NULL) ? 1 : 0);
        usleep((useconds_t)(window * random_uniform(3, 0, round)));
        kill(child, SIGKILL);
        cr_assert_eq(waitpid(child, NULL, 0), child);
        bool whole = file_exists(in_folder("out.gguf"));
        interrupted += file_exists(in_folder("out.gguf.tmp"));
        window *= whole ? 0.8 : 1.3;
        finished += whole;
        if (!whole) continue;
        struct read_gguf file;
        read_gguf(&file, in_folder("out.gguf"));
        expect_tensors(&file, gpt2_tensors, COUNT(gpt2_tensors), list, false);
        free(file.bytes);
        unlink(in_folder("out.gguf"));
    }
    cr_expect_geq(finished, 6);
    cr_expect_geq(interrupted, 10);
    arrfree(list);
}
