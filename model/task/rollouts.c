#include "model/task/rollouts.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <stb/stb_ds.h>

#include "data/corpus/chat_file.h"
#include "data/corpus/prompts.h"
#include "data/util/file_stream.h"
#include "data/util/files.h"
#include "data/util/json.h"
#include "data/util/json_escape.h"
#include "data/util/min_max.h"
#include "data/util/printed.h"
#include "model/pass/forward.h"

/* Texts of a validation are drawn from streams that no training reaches. */
static const uint64_t VALIDATION_STREAM = (uint64_t)1 << 62;

/* ---- prompts */

/* Appends what the model reads of a conversation: [system], user, assistant, user ... */
static const char *render(char **text, const struct cJSON *messages,
                          const struct chat_template *chat) {
    const struct cJSON *message;
    const char *system = NULL, *last = "";
    if (!chat) return "\"prompt\" has messages, but the tokenizer has no known chat template";
    cJSON_ArrayForEach(message, messages) {
        const char *role = json_text(message, "role"), *content = json_text(message, "content");
        if (!role || !content) return "a message of \"prompt\" needs a \"role\" and a \"content\"";
        const bool answers = strcmp(role, "assistant") == 0 && strcmp(last, "user") == 0;
        const bool asks = strcmp(role, "user") == 0 && strcmp(last, "user") != 0;
        if (strcmp(role, "system") == 0 && !*last) system = content;
        else if (asks) chat_turn(chat, system, content, !*text, text);
        else if (answers) memcpy(arraddnptr(*text, strlen(content)), content, strlen(content));
        else
            return "messages of \"prompt\" must be a system's, if any, then a user's and an "
                   "assistant's in turn";
        last = role;
    }
    return strcmp(last, "user") == 0 ? NULL : "the last message of \"prompt\" must be a user's";
}

static int encode(struct rollouts *rollouts, const char *text, size_t size, struct error *error) {
    struct tokenizer_encoder *encoder = tokenizer_encoder_open(rollouts->tokenizer);
    if (!encoder) return fail_memory(error, "the prompt");
    arrsetlen(rollouts->prompt, 0);
    const int status = tokenizer_encode_context(encoder, rollouts->tokenizer, &rollouts->prompt,
                                                text, size, error);
    tokenizer_encoder_close(encoder);
    return status;
}

/* Encodes the prompt of rollouts->row, which is parsed as root. Returns why it is bad, or NULL. */
static const char *read_row(struct rollouts *rollouts, const struct cJSON *root,
                            struct error *reason) {
    const struct config *config = rollouts->config;
    const struct cJSON *prompt = json_member(root, "prompt");
    char *text = NULL;
    const char *bad = NULL;
    if (cJSON_IsString(prompt) && *prompt->valuestring)
        memcpy(arraddnptr(text, strlen(prompt->valuestring)), prompt->valuestring,
               strlen(prompt->valuestring));
    else if (cJSON_IsArray(prompt)) bad = render(&text, prompt, rollouts->chat);
    else bad = "the row needs a \"prompt\", a string or a list of messages";
    if (!bad && json_member(root, "completion"))
        bad = "the row has a \"completion\", but the model draws it";
    if (!bad && encode(rollouts, text, arrlenu(text), reason)) bad = reason->text;
    arrfree(text);
    if (bad ||
        arrlen(rollouts->prompt) + config->grpo.max_completion_length <= config->data.seq_len + 1)
        return bad;
    fail(reason,
         "the prompt has %td tokens, and with grpo.max_completion_length, %" PRId64
         ", more than data.seq_len allows, %" PRId64,
         arrlen(rollouts->prompt), config->grpo.max_completion_length, config->data.seq_len + 1);
    return reason->text;
}

static int read_prompt(struct rollouts *rollouts, const struct loader *loader, uint64_t sample,
                       struct error *error) {
    struct cJSON *root;
    struct error reason;
    size_t column;
    prompts_row(&rollouts->row, loader, sample);
    const char *bad = reason.text;
    if (json_parse_row(&root, rollouts->row, arrlenu(rollouts->row) - 1, &column, &reason) == 0)
        bad = read_row(rollouts, root, &reason);
    cJSON_Delete(root);
    return bad ? prompts_fail(loader, sample, bad, error) : 0;
}

/* ---- completions */

struct sample_options rollouts_options(const struct config *config,
                                       const struct sample_options *ends,
                                       const struct tokenizer *tokenizer) {
    struct sample_options options = *ends;
    const struct chat_template *chat = chat_template_of(tokenizer);
    if (chat) options.ends[options.end_count++] = chat_end_token(chat, tokenizer);
    for (int i = 0; i < options.end_count; i++) options.shown[i] = true; /* their log p counts */
    options.tokens = config->grpo.max_completion_length;
    options.vocabulary = tokenizer->vocab_size;
    options.temperature = 1; /* the model divides its logits by grpo.temperature */
    options.top_p = options.repetition_penalty = 1;
    options.min_p = 0;
    options.top_k = 0;
    return options;
}

static bool ends_text(const struct sample_options *options, int token) {
    for (int i = 0; i < options->end_count; i++)
        if (options->ends[i] == token) return true;
    return false;
}

static bool add_token(void *context, int64_t text, int token) {
    struct rollouts *rollouts = context;
    const int64_t row = text * rollouts->config->data.seq_len;
    struct completion *completion = &rollouts->completions[text];
    const char *stop = rollouts->config->grpo.stop;
    const size_t stop_size = strlen(stop);
    size_t size;
    rollouts->values[ROLLOUTS_SAMPLED][row + completion->length - 1] = rollouts->sampler->drawn;
    completion->tokens[completion->length++] = token;
    completion->ended = ends_text(&rollouts->sampler->options, token);
    const uint8_t *bytes = tokenizer_bytes(rollouts->tokenizer, token, &size);
    if (completion->ended || tokenizer_special(rollouts->tokenizer, bytes, size) == token)
        return true;
    memcpy(arraddnptr(completion->text, size), bytes, size);
    size = arrlenu(completion->text);
    if (stop_size == 0 || size < stop_size ||
        memcmp(completion->text + size - stop_size, stop, stop_size) != 0)
        return true;
    arrsetlen(completion->text, size - stop_size);
    completion->ended = true;
    return false;
}

/* Writes the request of a completion: its row with one more member. */
static int write_request(struct rollouts *rollouts, int64_t index, const struct loader *loader,
                         uint64_t sample, struct error *error) {
    const struct completion *completion = &rollouts->completions[index];
    struct reward_request *request = &rollouts->requests[index];
    struct printed line;
    prompts_row(&rollouts->row, loader, sample);
    free(request->json);
    *request = (struct reward_request){.completion = completion->text,
                                       .size = arrlenu(completion->text),
                                       .loader = loader,
                                       .sample = sample};
    if (printed_open(&line)) return fail_memory(error, "a completion");
    fprintf(line.out, "%.*s, \"completion\": ", (int)arrlen(rollouts->row) - 2, rollouts->row);
    json_print_text(line.out, completion->text, request->size);
    fputs("}\n", line.out);
    if (printed_close(&line)) return fail_memory(error, "a completion");
    request->json = line.text;
    return 0;
}

/* Draws the first `count` completions, num_generations of each prompt from `first` /
 * num_generations on. Completion i uses stream + i. */
static int draw(struct rollouts *rollouts, const struct loader *loader, uint64_t first,
                uint64_t stream, int64_t count, struct error *error) {
    const int64_t group = rollouts->config->grpo.num_generations;
    struct sampler *sampler = rollouts->sampler;
    struct sample_result ignored;
    for (int64_t i = 0; i < count; i++) {
        struct completion *completion = &rollouts->completions[i];
        if (i % group == 0 &&
            read_prompt(rollouts, loader, (first + (uint64_t)i) / (uint64_t)group, error))
            return -1;
        completion->prompt = completion->length = arrlen(rollouts->prompt);
        completion->ended = false;
        arrsetlen(completion->text, 0);
        memcpy(completion->tokens, rollouts->prompt,
               (size_t)completion->length * sizeof *completion->tokens);
        rollouts->texts[i] =
            (struct sample_text){completion->tokens, completion->length, stream + (uint64_t)i};
    }
    sampler->options.emit = add_token;
    sampler->options.context = rollouts;
    const int status = sampler_generate_texts(sampler, rollouts->texts, count, &ignored, error);
    if (status) return status;
    for (int64_t i = 0; i < count; i++)
        if (write_request(rollouts, i, loader, (first + (uint64_t)i) / (uint64_t)group, error))
            return -1;
    return 0;
}

/* ---- rewards */

static int fail_file(struct error *error) {
    return fail(error, "rollouts.jsonl: %s\nfree space, or choose another run_dir",
                strerror(errno));
}

/* Ends the file after the lines that are right. */
static int cut_file(struct rollouts *rollouts, struct error *error) {
    rollouts->recorded = false;
    return fseek(rollouts->file, rollouts->bytes, SEEK_SET) ||
                   ftruncate(rollouts->descriptor, rollouts->bytes)
               ? fail_file(error)
               : 0;
}

/* Reads the next line of the file. Returns what follows its step and reward, or NULL. */
static const char *read_line(struct rollouts *rollouts, char **line, size_t *capacity,
                             int64_t *step, double *reward) {
    int at = 0;
    const ssize_t size = getline(line, capacity, rollouts->file);
    if (size <= 0 || (*line)[size - 1] != '\n' ||
        sscanf(*line, "{\"step\": %" SCNd64 ", \"reward\": %lf, %n", step, reward, &at) != 2 ||
        at == 0)
        return NULL;
    return *line + at;
}

/* Takes recorded rewards, as far as the lines are those of this step's completions. */
static int take_recorded(struct rollouts *rollouts, struct error *error) {
    char *line = NULL;
    size_t capacity = 0;
    rollouts->asked = 0;
    while (rollouts->recorded && rollouts->asked < rollouts->count) {
        int64_t step;
        double reward;
        const char *rest = read_line(rollouts, &line, &capacity, &step, &reward);
        if (!rest || step != rollouts->step ||
            strcmp(rest, rollouts->requests[rollouts->asked].json + 1) != 0)
            break;
        rollouts->completions[rollouts->asked++].reward = reward;
        rollouts->bytes = ftell(rollouts->file);
    }
    free(line);
    return rollouts->recorded && rollouts->asked < rollouts->count ? cut_file(rollouts, error) : 0;
}

/* Returns the reward of a completion whose text has this value: less for a length near the limit.
 */
static double punished(const struct rollouts *rollouts, int64_t index, double value) {
    const struct completion *completion = &rollouts->completions[index];
    const int64_t cache = rollouts->config->reward.soft_punish_cache;
    const int64_t over = completion->length - completion->prompt -
                         (rollouts->config->grpo.max_completion_length - cache);
    return over > 0 && cache > 0 ? value - (double)over / (double)cache : value;
}

static int take_reward(void *context, int64_t index, double value, struct error *error) {
    struct rollouts *rollouts = context;
    index += rollouts->asked;
    value = punished(rollouts, index, value);
    rollouts->completions[index].reward = value;
    fprintf(rollouts->file, "{\"step\": %" PRId64 ", \"reward\": %.17g, %s", rollouts->step, value,
            rollouts->requests[index].json + 1);
    if (fflush(rollouts->file) || ferror(rollouts->file)) return fail_file(error);
    rollouts->bytes = ftell(rollouts->file);
    return 0;
}

static int rate(struct rollouts *rollouts, struct error *error) {
    if (take_recorded(rollouts, error)) return -1;
    return reward_rate(&rollouts->reward, rollouts->requests + rollouts->asked,
                       rollouts->count - rollouts->asked, take_reward, rollouts, error);
}

/* ---- advantages */

struct moments {
    double mean, deviation; /* of a sample */
};

static struct moments moments_of(const struct completion *completions, int64_t count) {
    struct moments moments = {0, 0};
    for (int64_t i = 0; i < count; i++) moments.mean += completions[i].reward / (double)count;
    for (int64_t i = 0; i < count; i++) {
        const double away = completions[i].reward - moments.mean;
        moments.deviation += away * away / (double)(count - 1);
    }
    moments.deviation = sqrt(moments.deviation);
    return moments;
}

/* Returns the number of targets of a completion that count. */
static int64_t counted(const struct rollouts *rollouts, const struct completion *completion) {
    const bool masked = rollouts->config->grpo.mask_truncated_completions && !completion->ended;
    return masked ? 0 : completion->length - completion->prompt;
}

static int64_t count_tokens(const struct rollouts *rollouts, int64_t first, int64_t count) {
    int64_t tokens = 0;
    for (int64_t i = first; i < first + count; i++)
        tokens += counted(rollouts, &rollouts->completions[i]);
    return MAX(tokens, 1);
}

/* Returns the factor of a completion's losses, of which a step takes the mean over completions. */
static double factor_of(const struct rollouts *rollouts, int64_t index) {
    const struct config *config = rollouts->config;
    const int64_t micro = config->train.micro_batch_size;
    switch (config->grpo.loss_type) {
    case CONFIG_GRPO_GRPO: return 1 / (double)count_tokens(rollouts, index, 1);
    case CONFIG_GRPO_DR_GRPO: return 1 / (double)config->grpo.max_completion_length;
    case CONFIG_GRPO_BNPO:
        return (double)micro / (double)count_tokens(rollouts, index / micro * micro, micro);
    default: return (double)rollouts->count / (double)count_tokens(rollouts, 0, rollouts->count);
    }
}

static void add_completion(struct policy_sums *sums, const struct completion *completion) {
    sums->length += (float)(completion->length - completion->prompt);
    sums->truncated += !completion->ended;
}

/* Sets advantages, factors, and the step's figures. */
static void set_advantages(struct rollouts *rollouts) {
    const struct config *config = rollouts->config;
    const int64_t group = config->grpo.num_generations, count = rollouts->count;
    const struct moments all = moments_of(rollouts->completions, count);
    struct policy_sums *sums = &rollouts->sums;
    *sums = (struct policy_sums){.micro_batches = 1, .deviation = (float)all.deviation};
    for (int64_t i = 0; i < count; i++) {
        struct completion *completion = &rollouts->completions[i];
        const struct moments own = moments_of(rollouts->completions + i / group * group, group);
        const double deviation =
            config->grpo.scale_rewards == CONFIG_REWARDS_BATCH ? all.deviation : own.deviation;
        double advantage = completion->reward - own.mean;
        if (config->grpo.scale_rewards != CONFIG_REWARDS_NONE) advantage /= deviation + 1e-4;
        completion->given =
            (struct policy_sequence){(float)advantage, (float)factor_of(rollouts, i)};
        sums->reward += (float)completion->reward;
        sums->constant += deviation <= 1e-8 ? 1 / (float)count : 0;
        add_completion(sums, completion);
    }
}

/* ---- batches */

/* Stores -log p of all targets under the model as it is, or without its adapters. */
static int find_values(struct rollouts *rollouts, enum rollouts_array which,
                       struct evaluator *evaluator, const struct loader *loader,
                       struct error *error) {
    struct model *model = evaluator->model;
    const int64_t batch = model->capacity.batch, length = rollouts->config->data.seq_len;
    for (int64_t i = 0; i < rollouts->count; i += batch) {
        const int64_t here = MIN(batch, rollouts->count - i);
        if (batches_put(evaluator->batches, loader, rollouts->first_sample + i, here, NULL, error))
            return -1;
        struct pass pass = batches_pass(evaluator->batches, model, PASS_EVALUATE);
        pass.without_adapters = which == ROLLOUTS_REFERENCE;
        model_forward(&pass);
        model_head(&pass, &(struct head_args){.losses = model->activations.losses.data});
        backend_download(model->be, rollouts->values[which] + i * length,
                         model->activations.losses.data, (size_t)(here * length) * sizeof(float));
    }
    return model->be->failure.text[0] ? fail(error, "%s", model->be->failure.text) : 0;
}

int rollouts_weigh(struct rollouts *rollouts, struct evaluator *evaluator,
                   const struct loader *loader, struct error *error) {
    set_advantages(rollouts);
    return rollouts->values[ROLLOUTS_REFERENCE]
               ? find_values(rollouts, ROLLOUTS_REFERENCE, evaluator, loader, error)
               : 0;
}

int rollouts_make(struct rollouts *rollouts, struct evaluator *evaluator,
                  const struct loader *loader, int64_t step, int64_t first_sample,
                  struct error *error) {
    const struct config *config = rollouts->config;
    const int64_t iterations = config->grpo.num_iterations, iteration = (step - 1) % iterations;
    rollouts->first_sample = first_sample;
    if (iteration > 0 && rollouts->step == step - iteration) return 0;
    if (iteration > 0)
        return fail(error,
                    "step %" PRId64 " trains on completions that step %" PRId64
                    " drew\nresume from a checkpoint whose step is a multiple of "
                    "grpo.num_iterations, %" PRId64,
                    step, step - iteration, iterations);
    rollouts->step = step;
    if (draw(rollouts, loader, (uint64_t)(first_sample / iterations), (uint64_t)first_sample,
             rollouts->count, error) ||
        rate(rollouts, error) || rollouts_weigh(rollouts, evaluator, loader, error))
        return -1;
    return rollouts->values[ROLLOUTS_OLD]
               ? find_values(rollouts, ROLLOUTS_OLD, evaluator, loader, error)
               : 0;
}

static int add_reward(void *context, int64_t index, double value, struct error *error) {
    struct rollouts *rollouts = context;
    (void)error;
    rollouts->total += punished(rollouts, index, value);
    return 0;
}

int rollouts_evaluate(struct rollouts *rollouts, const struct loader *loader, int64_t prompts,
                      struct policy_sums *sums, struct error *error) {
    const int64_t all = prompts * rollouts->config->grpo.num_generations;
    rollouts->total = 0;
    *sums = (struct policy_sums){.sequences = (float)all};
    for (int64_t i = 0; i < all; i += rollouts->count) {
        const int64_t here = MIN(rollouts->count, all - i);
        const int status =
            draw(rollouts, loader, (uint64_t)i, VALIDATION_STREAM + (uint64_t)i, here, error);
        if (status) return status;
        if (reward_rate(&rollouts->reward, rollouts->requests, here, add_reward, rollouts, error))
            return -1;
        for (int64_t k = 0; k < here; k++) add_completion(sums, &rollouts->completions[k]);
    }
    sums->reward = (float)rollouts->total;
    return 0;
}

void rollouts_read(const struct rollouts *rollouts, struct loader_arrays *arrays,
                   struct policy_batch *batch, uint64_t first_sample, int count) {
    const int64_t length = rollouts->config->data.seq_len;
    const int64_t first = (int64_t)first_sample - rollouts->first_sample;
    assert(first >= 0 && first + count <= rollouts->count && !arrays->first_keys);
    batch->has_old = rollouts->values[ROLLOUTS_OLD] != NULL;
    batch->has_reference = rollouts->values[ROLLOUTS_REFERENCE] != NULL;
    batch->host = first == 0 ? rollouts->sums : (struct policy_sums){0};
    arrays->counted = 0;
    for (int64_t i = 0; i < count; i++) {
        const struct completion *completion = &rollouts->completions[first + i];
        const int64_t last = completion->length - 1;
        int32_t *tokens = arrays->tokens + i * length, *targets = arrays->targets + i * length;
        batch->sequences[i] = completion->given;
        arrays->counted += (uint64_t)counted(rollouts, completion);
        for (int64_t t = 0; t < length; t++) {
            const bool counts =
                t < last && t + 1 >= completion->prompt && counted(rollouts, completion) > 0;
            tokens[t] = completion->tokens[t < last ? t : 0];
            targets[t] = counts ? completion->tokens[t + 1] : -1;
        }
    }
}

void rollouts_values(const struct rollouts *rollouts, enum rollouts_array which, float *values,
                     int64_t first_sample, int64_t count) {
    const int64_t length = rollouts->config->data.seq_len;
    const float *from = rollouts->values[which];
    if (from)
        memcpy(values, from + (first_sample - rollouts->first_sample) * length,
               (size_t)(count * length) * sizeof *values);
}

/* ---- opening */

int rollouts_allocate(struct rollouts *rollouts, const struct config *config, struct error *error) {
    *rollouts = (struct rollouts){
        .config = config, .reward = {.to = -1, .from = -1}, .count = batches_step_samples(config)};
    const size_t count = (size_t)rollouts->count, length = (size_t)config->data.seq_len;
    rollouts->completions = calloc(count, sizeof *rollouts->completions);
    rollouts->requests = calloc(count, sizeof *rollouts->requests);
    rollouts->texts = calloc(count, sizeof *rollouts->texts);
    rollouts->all_tokens = calloc(count * (length + 1), sizeof *rollouts->all_tokens);
    bool complete =
        rollouts->completions && rollouts->requests && rollouts->texts && rollouts->all_tokens;
    for (int i = 0; i < ROLLOUTS_ARRAYS; i++) {
        const bool needed = i == ROLLOUTS_OLD         ? config->grpo.num_iterations > 1
                            : i == ROLLOUTS_REFERENCE ? config->grpo.beta > 0
                                                      : true;
        if (needed) rollouts->values[i] = calloc(count * length, sizeof(float));
        complete = complete && (!needed || rollouts->values[i]);
    }
    for (size_t i = 0; complete && i < count; i++)
        rollouts->completions[i].tokens = rollouts->all_tokens + i * (length + 1);
    return complete ? 0 : fail_memory(error, "the completions of a step");
}

/* Opens the file behind the lines of the first `step` steps. */
static int open_file(struct rollouts *rollouts, const char *directory, int64_t step,
                     struct error *error) {
    char path[FILE_PATH_MAX], *line = NULL;
    size_t capacity = 0;
    int64_t found;
    double reward;
    if (file_path_join(path, directory, "rollouts.jsonl", error)) return -1;
    rollouts->descriptor = file_open_own(path, error);
    if (rollouts->descriptor < 0) return -1;
    rollouts->file = file_stream_open(rollouts->descriptor);
    if (!rollouts->file) {
        close(rollouts->descriptor);
        return fail_file(error);
    }
    if (step == 0) return cut_file(rollouts, error);
    while (read_line(rollouts, &line, &capacity, &found, &reward) && found <= step)
        rollouts->bytes = ftell(rollouts->file);
    free(line);
    rollouts->recorded = true;
    return fseek(rollouts->file, rollouts->bytes, SEEK_SET) ? fail_file(error) : 0;
}

int rollouts_open(struct rollouts *rollouts, const struct config *config, struct sampler *sampler,
                  const struct tokenizer *tokenizer, struct loader *const loaders[2],
                  const char *directory, int64_t step, struct error *error) {
    if (rollouts_allocate(rollouts, config, error)) return -1;
    rollouts->tokenizer = tokenizer;
    rollouts->chat = chat_template_of(tokenizer);
    rollouts->sampler = sampler;
    for (int i = 0; i < 2; i++) {
        for (uint64_t sample = 0; loaders[i] && sample < loaders[i]->sequence_count; sample++)
            if (read_prompt(rollouts, loaders[i], sample, error)) return -1;
        if (loaders[i]) loaders[i]->rollouts = rollouts;
    }
    if (reward_open(&rollouts->reward, config, error)) return -1;
    return directory ? open_file(rollouts, directory, step, error) : 0;
}

void rollouts_close(struct rollouts *rollouts) {
    if (!rollouts->config) return;
    for (int64_t i = 0; rollouts->completions && i < rollouts->count; i++)
        arrfree(rollouts->completions[i].text);
    for (int64_t i = 0; rollouts->requests && i < rollouts->count; i++)
        free(rollouts->requests[i].json);
    for (int i = 0; i < ROLLOUTS_ARRAYS; i++) free(rollouts->values[i]);
    free(rollouts->completions);
    free(rollouts->requests);
    free(rollouts->texts);
    free(rollouts->all_tokens);
    arrfree(rollouts->row);
    arrfree(rollouts->prompt);
    reward_close(&rollouts->reward);
    if (rollouts->file) fclose(rollouts->file);
    *rollouts = (struct rollouts){0};
}
