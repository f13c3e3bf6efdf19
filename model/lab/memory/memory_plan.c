#include "model/lab/memory/memory_plan.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "model/config/config_keys.h"
#include "model/trainer.h"

const struct memory_size memory_sizes[MEMORY_SIZES] = {
    {"gpt2", 12, 12, 768},     {"gpt2-medium", 24, 16, 1024}, {"gpt2-large", 36, 20, 1280},
    {"gpt2-xl", 48, 25, 1600}, {"7B", 32, 32, 4096},          {"13B", 40, 40, 5120},
    {"30B", 48, 56, 7168},     {"70B", 80, 64, 8192},
};

static double maximum_of(const char *key) {
    return config_options[config_option_index(key, strlen(key))].maximum;
}

static int resolve(struct precision *precision, const struct config *config,
                   const struct backend *be, struct error *error) {
    char note[PRECISION_NOTE_MAX];
    return precision_resolve(precision, note, config, be, error);
}

int memory_plan_of(struct memory_plan *plan, const struct config *config, struct backend *be,
                   struct error *error) {
    struct precision precision;
    struct trainer trainer;
    size_t workspace = be->workspace_bytes;
    if (resolve(&precision, config, be, error)) return -1;
    be->workspace_bytes = 0; /* it only grows, but this plan is to have its own */
    int status = trainer_open(&trainer, config, &precision, be, false, error);
    *plan = trainer.gpt.memory;
    trainer_close(&trainer);
    be->workspace_bytes = workspace;
    return status;
}

/* The plan without what only a walk knows, which takes longer. */
static int measure_layout(struct memory_plan *plan, const struct config *config, struct backend *be,
                          struct error *error) {
    struct precision precision;
    struct gpt gpt;
    if (resolve(&precision, config, be, error)) return -1;
    struct optimizer optimizer = {0};
    int status = gpt_open(&gpt, config, &precision, be, GPT_TRAINING, error);
    if (status == 0) status = optimizer_open(&optimizer, &gpt, config, error);
    *plan = gpt.memory;
    optimizer_close(&optimizer);
    gpt_close(&gpt);
    return status;
}

static size_t state_bytes(const struct memory_plan *plan) {
    return plan->master + plan->lower + plan->gradients + plan->moments;
}

/* ---- the largest micro-batch */

bool memory_batch_allowed(const struct config *config, int64_t batch) {
    return batch >= 1 && (double)batch <= maximum_of("train.micro_batch_size") &&
           batch <= CONFIG_MICRO_TOKENS_MAX / config->data.seq_len;
}

typedef int measurer(struct memory_plan *plan, const struct config *config, struct backend *be,
                     struct error *error);

/* One question asked for many micro-batches. */
struct search {
    struct config config;
    struct backend *be;
    size_t memory;
    size_t beside; /* what is expected beside a layout that is measured alone */
    struct error *error;
    int failed;
};

static bool fits(struct search *search, int64_t batch, measurer *measure) {
    struct memory_plan plan;
    if (search->failed || !memory_batch_allowed(&search->config, batch)) return false;
    search->config.train.micro_batch_size = batch;
    search->failed = measure(&plan, &search->config, search->be, search->error);
    if (search->failed) return false;
    return plan.total + (measure == measure_layout ? search->beside : 0) <= search->memory;
}

/* From a micro-batch that fits (or 0) and one that does not, neighbours of which this is true. */
static int64_t bisect(struct search *search, int64_t low, int64_t high, measurer *measure) {
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (fits(search, middle, measure)) low = middle;
        else high = middle;
    }
    return low;
}

/* Micro-batches from low on, which fits (or is 0), in growing strides, up to one that does not. */
static int64_t climb(struct search *search, int64_t low, measurer *measure) {
    int64_t stride = 1;
    for (; fits(search, low + stride, measure); stride *= 2) low += stride;
    return bisect(search, low, low + stride, measure);
}

/* The same downwards from one that does not fit. */
static int64_t descend(struct search *search, int64_t high, measurer *measure) {
    int64_t stride = 1;
    for (; high - stride > 0 && !fits(search, high - stride, measure); stride *= 2) high -= stride;
    return bisect(search, high - stride > 0 ? high - stride : 0, high, measure);
}

int memory_largest_batch(int64_t *batch, const struct config *config, struct backend *be,
                         size_t memory, struct error *error) {
    struct search search = {.config = *config, .be = be, .memory = memory, .error = error};
    struct memory_plan layout, plan;
    search.config.train.micro_batch_size = 1;
    if (measure_layout(&layout, &search.config, be, error)) return -1;
    *batch = MEMORY_NO_STATE;
    if (state_bytes(&layout) > memory) return 0;
    /* A walk prepares products and takes long, a layout does not. So layouts alone lead to where
     * the answer is, at most; what a walk finds beside that one leads close to the answer. */
    *batch = climb(&search, 0, measure_layout);
    if (search.failed || *batch == 0) return search.failed;
    search.config.train.micro_batch_size = *batch;
    if (measure_layout(&layout, &search.config, be, error) ||
        memory_plan_of(&plan, &search.config, be, error))
        return -1;
    if (plan.total <= memory) return 0;
    search.beside = plan.total - layout.total;
    *batch = climb(&search, 0, measure_layout);
    if (*batch == 0 || fits(&search, *batch, memory_plan_of))
        *batch = climb(&search, *batch, memory_plan_of);
    else *batch = descend(&search, *batch, memory_plan_of);
    return search.failed;
}

/* ---- options */

/* Divides the micro-batch so that a step sees the sequences it saw. */
static bool divide_batch(struct config *config, int64_t divisor) {
    if (config->train.micro_batch_size % divisor ||
        (double)(config->train.grad_accum_steps * divisor) > maximum_of("train.grad_accum_steps"))
        return false;
    config->train.micro_batch_size /= divisor;
    config->train.grad_accum_steps *= divisor;
    return true;
}

static bool set_recompute(struct config *config, enum config_recompute level) {
    bool more = config->train.recompute < level;
    if (more) config->train.recompute = level;
    return more;
}

static bool set_lower(enum config_dtype *dtype, bool lower) {
    bool changes = lower && *dtype != CONFIG_DTYPE_LOWER;
    if (changes) *dtype = CONFIG_DTYPE_LOWER;
    return changes;
}

bool memory_apply(struct config *config, enum memory_option option, bool lower) {
    int64_t factor = 2, batch = config->train.micro_batch_size;
    switch (option) {
    case MEMORY_RECOMPUTE_GELU: return set_recompute(config, CONFIG_RECOMPUTE_GELU);
    case MEMORY_RECOMPUTE_LAYER: return set_recompute(config, CONFIG_RECOMPUTE_LAYER);
    case MEMORY_GRADIENTS: return set_lower(&config->gradients.dtype, lower);
    case MEMORY_RESIDUAL: return set_lower(&config->autocast.residual, lower);
    case MEMORY_MICRO_BATCH:
        while (batch > 1 && batch % factor) factor++;
        return batch > 1 && divide_batch(config, factor);
    case MEMORY_OPTIONS: break;
    }
    return false;
}

/* Multiplications that a layer does once more, for one row: of the sites that write what is shared.
 * The GELU's input is there, but a library's GELU may be that of the unrounded one. */
static int64_t products_again(const struct gpt_shape *shape, const struct config *config,
                              const struct backend *be) {
    bool again[AUTOCAST_SITE_COUNT] = {false};
    int64_t total = 0;
    for (int i = 0; i < ACTIVATION_COUNT && config->train.recompute; i++) {
        const struct activation *a = &activation_table[i];
        if (!a->layered || a->residual || (int)a->shared > (int)config->train.recompute) continue;
        again[a->writer] = true;
        if (a->shared == SHARE_GELU && !be->device.gelu_of_stored)
            again[activation_table[i - 1].writer] = true;
    }
    for (enum autocast_site i = 0; i < AUTOCAST_SITE_COUNT; i++)
        if (again[i]) total += shape_layer_products(shape, i);
    return total;
}

double memory_recomputed_part(const struct config *config, const struct backend *be) {
    struct gpt_shape shape = config_shape(config);
    double layers = (double)shape.n_layer, width = (double)shape.n_embd;
    /* Scores and their use, half of each because nothing looks ahead. Going back there are five
     * such products for two: the scores once more, and four gradients. */
    double attention = width * (double)config->data.seq_len;
    double products = (double)shape_layer_products(&shape, AUTOCAST_SITE_COUNT);
    double head = (double)shape.padded_vocab * width;
    double step = 3 * (layers * products + head) + 3.5 * layers * attention;
    double again = (double)products_again(&shape, config, be);
    if (config->train.recompute == CONFIG_RECOMPUTE_LAYER) again += attention;
    return (layers - 1) * again / step; /* the last layer's is still there */
}

/* ---- advice */

__attribute__((format(printf, 2, 3))) static void add_flag(struct memory_advice *advice,
                                                           const char *format, ...) {
    va_list arguments;
    size_t used = strlen(advice->flags), size = sizeof advice->flags;
    used += (size_t)snprintf(advice->flags + used, size - used, "%s--set ", used ? " " : "");
    va_start(arguments, format);
    used += (size_t)vsnprintf(advice->flags + used, size - used, format, arguments);
    va_end(arguments);
    assert(used < size);
}

static void name_changes(struct memory_advice *advice, const struct config *from) {
    const struct config *to = &advice->config;
    advice->flags[0] = 0;
    if (to->precision != from->precision)
        add_flag(advice, "precision=%s", config_precision_name(to->precision));
    if (to->train.recompute != from->train.recompute)
        add_flag(advice, "train.recompute=%s", config_recompute_name(to->train.recompute));
    if (to->train.micro_batch_size != from->train.micro_batch_size) {
        add_flag(advice, "train.micro_batch_size=%" PRId64, to->train.micro_batch_size);
        add_flag(advice, "train.grad_accum_steps=%" PRId64, to->train.grad_accum_steps);
    }
    if (to->gradients.dtype != from->gradients.dtype) add_flag(advice, "gradients.dtype=lower");
    if (to->autocast.residual != from->autocast.residual)
        add_flag(advice, "autocast.residual=lower");
}

/* Whether config fits, and if so the advice to take it. Returns RESULT_NONE if not. */
static int try_config(struct memory_advice *advice, const struct config *config, struct backend *be,
                      size_t memory, struct error *error) {
    if (measure_layout(&advice->plan, config, be, error)) return -1;
    if (advice->plan.total > memory) return RESULT_NONE;
    if (memory_plan_of(&advice->plan, config, be, error)) return -1;
    if (advice->plan.total > memory) return RESULT_NONE;
    advice->config = *config;
    return 0;
}

/* Micro-batches from config's down, each with all levels of recomputing from config's up. */
static int try_batches(struct memory_advice *advice, const struct config *config,
                       struct backend *be, size_t memory, struct error *error) {
    int64_t batch = config->train.micro_batch_size;
    for (int64_t divisor = 1; divisor <= batch; divisor++) {
        struct config smaller = *config;
        if (!divide_batch(&smaller, divisor)) continue;
        for (int level = (int)config->train.recompute; level <= CONFIG_RECOMPUTE_LAYER; level++) {
            smaller.train.recompute = (enum config_recompute)level;
            int status = try_config(advice, &smaller, be, memory, error);
            if (status != RESULT_NONE) return status;
        }
    }
    return RESULT_NONE;
}

/* What is less exact, each with what was before: 16 bit, its gradients, its residual stream. */
static bool give_up_bits(struct config *config, int turn, const struct backend *be) {
    bool lower = config->autocast.enabled && config->precision != CONFIG_PRECISION_FP32;
    if (turn == 1) return memory_apply(config, MEMORY_GRADIENTS, lower);
    if (turn == 2) return memory_apply(config, MEMORY_RESIDUAL, lower);
    if (lower || !config->autocast.enabled) return false;
    config->precision =
        be->device.computes[DTYPE_BF16] ? CONFIG_PRECISION_BF16 : CONFIG_PRECISION_FP16;
    return true;
}

int memory_advise(struct memory_advice *advice, const struct config *config, struct backend *be,
                  size_t memory, struct error *error) {
    struct config other = *config;
    int status = try_batches(advice, &other, be, memory, error);
    bool less_exact = false;
    for (int turn = 0; status == RESULT_NONE && turn < 3; turn++) {
        if (!give_up_bits(&other, turn, be)) continue;
        less_exact = true;
        status = try_batches(advice, &other, be, memory, error);
    }
    if (status) return status;
    bool same_batch = advice->config.train.micro_batch_size == config->train.micro_batch_size;
    advice->bits = less_exact   ? MEMORY_LESS_EXACT
                   : same_batch ? MEMORY_SAME_BITS
                                : MEMORY_OTHER_ORDER;
    name_changes(advice, config);
    return 0;
}

/* ---- sizes */

void memory_size_config(struct config *out, const struct memory_size *size,
                        const struct config *config) {
    enum { POSITIONS = 1024 }; /* of GPT-2 */
    int64_t length = config->data.seq_len;
    config_defaults(out);
    snprintf(out->name, sizeof out->name, "%s", size->name);
    out->model.n_layer = size->n_layer;
    out->model.n_head = size->n_head;
    out->model.n_embd = size->n_embd;
    out->model.n_positions = length > POSITIONS ? length : POSITIONS;
    out->model.vocab_size = MEMORY_SIZES_VOCABULARY;
    out->data.seq_len = length;
    out->train.micro_batch_size = 1;
}
