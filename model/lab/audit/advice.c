#include "model/lab/audit/advice.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>

#include <stb/stb_ds.h>

#include "data/base/printed.h"
#include "model/lab/page/percent.h"

#define TOLERANCE_OF_NOISE 0.1
#define TOLERANCE_MIN      0.01
#define TOLERANCE_MAX      0.1
#define TOLERANCE_UNKNOWN  0.02
#define WORD_REMOVES       0.25 /* of the error, to be worth its time */

__attribute__((format(printf, 2, 3))) static void add_text(struct advice *advice,
                                                           const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char *text = *arraddnptr(advice->texts, 1);
    vsnprintf(text, ADVICE_TEXT_MAX, format, arguments);
    va_end(arguments);
}

static double step_noise(const struct audit *audit) {
    return audit->reference.gradient_noise /
           sqrt((double)audit->subject.config.train.grad_accum_steps);
}

static double tolerance_of(const struct audit *audit) {
    double noise = step_noise(audit);
    if (noise == 0) return TOLERANCE_UNKNOWN;
    return fmin(fmax(TOLERANCE_OF_NOISE * noise, TOLERANCE_MIN), TOLERANCE_MAX);
}

static void choose_words(struct advice_format *advised, const struct audit_format *found,
                         double tolerance) {
    advised->words = found->given | found->needed;
    advised->error = found->usable ? found->pass.gradient_error : INFINITY;
    if (advised->error <= tolerance || !found->usable) return;
    for (int i = 0; i < AUTOCAST_SITE_COUNT; i++) {
        if (audit_format_removed(found, i) < WORD_REMOVES) continue;
        advised->words |= 1u << i;
        advised->error = fmin(advised->error, found->trials[i].gradient_error);
    }
}

static bool is_native(const struct audit *audit, int format) {
    return audit->subject.be.device.native[format == AUDIT_BF16 ? DTYPE_BF16 : DTYPE_F16];
}

static enum dtype choose_format(const struct advice *advice, const struct audit *audit) {
    for (int i = 0; i < AUDIT_FORMATS; i++)
        if (advice->formats[i].fit && is_native(audit, i)) return audit->formats[i].dtype;
    return DTYPE_F32;
}

/* What has fast products or not, after "this". */
static const char *device_word(const struct audit *audit) {
    return audit->subject.be.device.kind == BACKEND_CUDA ? "GPU" : "CPU";
}

/* fp32, as nothing else will do, or nothing else is fast here. */
static void write_fp32(struct advice *advice, const struct audit *audit) {
    const char *fit = NULL;
    for (int i = 0; i < AUDIT_FORMATS && !fit; i++)
        if (advice->formats[i].fit) fit = audit_name(i);
    if (fit)
        add_text(advice,
                 "Format: fp32. This %s has fast products in no format that is exact enough; "
                 "to save memory, %s would do.",
                 device_word(audit), fit);
    else add_text(advice, "Format: fp32. No format that was looked at is exact enough.");
}

static void write_lower(struct advice *advice, const struct audit *audit, int i) {
    char error[PERCENT_MAX], noise[PERCENT_MAX], compared[100] = "";
    if (step_noise(audit) > 0)
        snprintf(compared, sizeof compared, "; another batch changes them by %s",
                 percent(noise, step_noise(audit)));
    add_text(advice,
             "Format: %s. Its gradients are %s from those of fp32%s. %s%s has fast products "
             "in it.",
             audit_name(i), percent(error, advice->formats[i].error), compared,
             i == AUDIT_BF16 ? "It needs no loss scale, and this " : "This ", device_word(audit));
}

static void write_other(struct advice *advice, const struct audit *audit, int i) {
    char error[PERCENT_MAX], tolerance[PERCENT_MAX];
    const struct advice_format *format = &advice->formats[i];
    if (!audit->formats[i].usable)
        add_text(advice, "%s cannot hold this model: values are infinite%s.", audit_name(i),
                 i == AUDIT_FP16 ? ", whatever is kept in float32" : "");
    else
        add_text(advice, "%s %s: error %s, tolerance %s%s.", audit_name(i),
                 format->fit ? "is exact enough" : "is not exact enough",
                 percent(error, format->error), percent(tolerance, advice->tolerance),
                 format->fit && !is_native(audit, i) ? ", but without fast products here" : "");
}

static void write_format(struct advice *advice, const struct audit *audit) {
    if (advice->format == DTYPE_F32) write_fp32(advice, audit);
    for (int i = 0; i < AUDIT_FORMATS; i++)
        if (audit->formats[i].made && audit->formats[i].dtype == advice->format)
            write_lower(advice, audit, i);
    for (int i = 0; i < AUDIT_FORMATS; i++)
        if (audit->formats[i].made && audit->formats[i].dtype != advice->format)
            write_other(advice, audit, i);
}

/* How the scale of the run compares, if there is one; where it is below min_scale, that. */
static void write_scale_of_run(struct advice *advice, const struct audit *audit, int safe,
                               int start) {
    enum { FAR_BELOW = 3 };
    const struct subject *subject = &audit->subject;
    double now = (double)subject->loss_scale, smallest = subject->config.loss_scale.min_scale;
    int exponent = (int)ceil(log2(now));
    bool far = subject->scale_of_run && start - exponent >= FAR_BELOW;
    if (far && now == ldexp(1, exponent))
        add_text(advice, "This run is at 2^%d, 2^%d below that.", exponent, start - exponent);
    else if (far)
        add_text(advice, "This run is at %.12g, more than 2^%d below that.", now, start - exponent);
    if (ldexp(1, safe) < smallest)
        add_text(advice,
                 "loss_scale.min_scale, %.12g, is more than what stayed finite: steps would be "
                 "skipped until the run gives up. Set it to 2^%d = %.12g or less.",
                 smallest, safe, ldexp(1, safe));
}

static void write_scale(struct advice *advice, const struct audit *audit) {
    const struct audit_format *found = &audit->formats[AUDIT_FP16];
    struct magnitudes gradients;
    char lost[2][PERCENT_MAX], subnormal[2][PERCENT_MAX];
    if (!found->made || !found->usable) return;
    int start = advice->formats[AUDIT_FP16].init_scale;
    int batches = audit_pass_tried(&audit->subject, &found->pass.precision);
    audit_format_gradients(&gradients, found, &audit->reference);
    add_text(advice,
             "Loss scale for fp16: 2^%d is the largest power of two that stayed finite in "
             "%d micro-batch%s (2^%d did not). Start at 2^%d = %.12g; the dynamic scale "
             "finds its way from there.",
             found->safe_scale, batches, batches == 1 ? "" : "es", found->safe_scale + 1, start,
             ldexp(1, start));
    write_scale_of_run(advice, audit, found->safe_scale, start);
    add_text(advice,
             "Of the gradients that fp16 stores, %s become zero and %s subnormal at scale "
             "1, %s and %s at 2^%d.",
             percent(lost[0], magnitudes_lost(&gradients, 0)),
             percent(subnormal[0], magnitudes_subnormal(&gradients, 0)),
             percent(lost[1], magnitudes_lost(&gradients, start)),
             percent(subnormal[1], magnitudes_subnormal(&gradients, start)), start);
}

/* The word that removes most, or -1. */
static int best_word(const struct audit_format *found) {
    int best = -1;
    for (int i = 0; i < AUTOCAST_SITE_COUNT; i++) {
        double removed = audit_format_removed(found, i);
        if (removed > (best < 0 ? 0 : audit_format_removed(found, best))) best = i;
    }
    return best;
}

static void write_words(struct advice *advice, const struct audit *audit, int format) {
    const struct audit_format *found = &audit->formats[format];
    unsigned more = advice->formats[format].words & ~(found->given | found->needed);
    char text[WORDS_TEXT_MAX], removed[PERCENT_MAX];
    if (found->needs_residual)
        add_text(advice,
                 "Keep the residual stream in float32 in %s (autocast.residual): values of it are "
                 "beyond 65504.",
                 audit_name(format));
    if (found->needed) {
        words_text(text, found->needed);
        add_text(advice,
                 "Keep %s in float32 in %s: without it values are beyond 65504, "
                 "whatever the loss scale.",
                 text, audit_name(format));
    }
    if (!found->usable) return;
    for (int i = 0; i < AUTOCAST_SITE_COUNT; i++)
        if (more & (1u << i))
            add_text(advice, "Keep %s in float32 in %s: that alone removes %s of the error.",
                     autocast_site_name(i), audit_name(format),
                     percent(removed, audit_format_removed(found, i)));
    int best = best_word(found);
    if (more || best < 0) return;
    add_text(advice,
             "Nothing %shas to stay in float32 in %s: %s, the best choice, would remove %s "
             "of the error.",
             found->needed || found->given ? "else " : "", audit_name(format),
             autocast_site_name(best), percent(removed, audit_format_removed(found, best)));
}

static void write_masters(struct advice *advice, const struct audit *audit) {
    const struct audit_update *update = &audit->update;
    char lost[MASTER_FORMATS][PERCENT_MAX];
    if (update->skipped || update->all.changed == 0) return;
    add_text(advice,
             "Master weights in fp32, as they always are here: of the updates of step "
             "%" PRId64 " (lr %.3g) a bf16 master would lose %s, an fp16 one %s.%s",
             update->step, update->lr,
             percent(lost[MASTER_BF16], update_lost(&update->all, MASTER_BF16)),
             percent(lost[MASTER_FP16], update_lost(&update->all, MASTER_FP16)),
             audit->subject.fresh ? " That is Adam's first step, which is not typical: give a "
                                    "checkpoint with --from to see another."
                                  : "");
}

/* To what loss_scale.init_scale takes next to the config's min_scale. */
static int clamp_scale(int exponent, const struct config *config) {
    int smallest = (int)ceil(log2(config->loss_scale.min_scale));
    return exponent < smallest ? smallest : exponent > 32 ? 32 : exponent;
}

void advice_make(struct advice *advice, const struct audit *audit) {
    *advice = (struct advice){.tolerance = tolerance_of(audit)};
    for (int i = 0; i < AUDIT_FORMATS; i++) {
        const struct audit_format *found = &audit->formats[i];
        struct advice_format *format = &advice->formats[i];
        if (!found->made) continue;
        choose_words(format, found, advice->tolerance);
        format->fit = found->usable && format->error <= advice->tolerance;
        format->init_scale = clamp_scale(found->safe_scale - ADVICE_MARGIN, &audit->subject.config);
    }
    advice->format = choose_format(advice, audit);
    write_format(advice, audit);
    write_scale(advice, audit);
    for (int i = 0; i < AUDIT_FORMATS; i++)
        if (audit->formats[i].made) write_words(advice, audit, i);
    write_masters(advice, audit);
}

void advice_free(struct advice *advice) {
    arrfree(advice->texts);
}

void advice_print_config(FILE *out, const struct advice *advice, const struct audit *audit,
                         int format) {
    char words[WORDS_TEXT_MAX];
    bool scales = audit->formats[format].dtype == DTYPE_F16;
    words_text(words, advice->formats[format].words);
    fprintf(out, "{\n  \"precision\": \"%s\",\n", audit_name(format));
    bool lower = audit->subject.config.autocast.residual == CONFIG_DTYPE_LOWER;
    bool needed = audit->formats[format].needs_residual;
    fprintf(out, "  \"autocast\": {\"float32\": [%s]%s}", words,
            needed  ? ", \"residual\": \"float32\""
            : lower ? ", \"residual\": \"lower\""
                    : "");
    if (scales)
        fprintf(out, ",\n  \"loss_scale\": {\"init_scale\": %.17g}",
                ldexp(1, advice->formats[format].init_scale));
    fprintf(out, "\n}\n");
}

char *advice_config_text(const struct advice *advice, const struct audit *audit, int format) {
    struct printed printed;
    if (!audit->formats[format].made || !audit->formats[format].usable) return NULL;
    if (printed_open(&printed)) return NULL;
    advice_print_config(printed.out, advice, audit, format);
    return printed_close(&printed) ? NULL : printed.text;
}
