#include "model/cli/report.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include <stb/stb_ds.h>

#include "data/corpus/pairs.h"
#include "data/corpus/prompts.h"
#include "data/util/printed.h"
#include "kernels/collectives.h"
#include "model/config/config_keys.h"
#include "model/config/precision_switch.h"
#include "model/task/reference.h"

/* Most columns of a line, and steps below which the banner names what makes them more. */
enum { COLUMNS = 80, STEPS_FEW = 20 };

/* Returns log.every or, if that is 0, the least of 1, 2, 5, 10, 20, 50 ... that makes at most 60
 * lines of the run. */
static int64_t lines_every(const struct config *config) {
    enum { LINES_MAX = 60, FACTORS = 3 };
    static const int factors[FACTORS] = {1, 2, 5};
    if (config->log.every > 0) return config->log.every;
    for (int64_t ten = 1;; ten *= 10)
        for (int i = 0; i < FACTORS; i++)
            if (factors[i] * ten * LINES_MAX >= config->train.steps) return factors[i] * ten;
}

void report_open(struct report *report, FILE *out, const struct trainer *trainer, double began,
                 double floor) {
    double minutes = trainer->config->train.minutes;
    /* mpirun of Open MPI gives rank 0 a terminal as stdout even if its own output is a file. */
    bool alone = trainer->be->collectives->ranks->size == 1;
    *report = (struct report){
        .out = out,
        .terminal = progress_terminal(out) && (alone || isatty(STDERR_FILENO)),
        .first_step = trainer->state.step,
        .steps = trainer->config->train.steps,
        .every = lines_every(trainer->config),
        .shows_first = trainer->config->log.every == 0,
        .started = progress_clock(),
        .deadline = minutes > 0 ? began + 60 * minutes : 0,
        .scale_loss = trainer->model.precision.scale_loss,
        .floor = floor,
        .figures = objective_of(trainer->config)->figures,
    };
}

void report_memory(FILE *out, const struct memory_plan *plan) {
    const double mib = 1 << 20, total = (double)memory_total(plan);
    int digits = total < 1000 * mib; /* large plans have no decimals, so that they fit the line */
    fprintf(out, "%.*f MiB:", digits, total / mib);
    int printed = 0;
    for (enum memory_part part = 0; part < MEMORY_PART_TOTAL; part++) {
        double bytes = (double)memory_part_bytes(plan, part);
        if (bytes / mib < (digits ? 0.05 : 0.5)) continue; /* prints as 0 */
        const char *between = printed == 0 ? " " : printed % 3 ? ", " : ",\n              ";
        fprintf(out, "%s%s %.*f", between, memory_part_name(part), digits, bytes / mib);
        printed++;
    }
    for (enum memory_part part = MEMORY_PART_HOST; part <= MEMORY_PART_SNAPSHOT; part++)
        if (memory_part_bytes(plan, part) > 0)
            fprintf(out, "\n             %s %.*f MiB", memory_part_name(part), digits,
                    (double)memory_part_bytes(plan, part) / mib);
}

/* Prints those of the parts that are not empty, each behind the separator, on another line where it
 * would have more than 80 columns. used: columns of the line so far. */
static void print_parts(FILE *out, int used, char separator, const char parts[][64], int count) {
    for (int i = 0; i < count; i++) {
        if (!parts[i][0]) continue;
        bool fits = used + 2 + (int)strlen(parts[i]) <= COLUMNS;
        used = fprintf(out, fits ? "%c %s" : "%c\n             %s", separator, parts[i]) +
               (fits ? used : -2);
    }
    fputc('\n', out);
}

static void print_data(FILE *out, const char *label, const char *name, const struct loader *loader,
                       bool isolates) {
    char tokens[32], sequences[32];
    bool raw = false; /* shown to the user: a renamed text file would also be read as raw tokens */
    for (ptrdiff_t i = 0; i < arrlen(loader->tokens->shards); i++)
        raw = raw || loader->tokens->shards[i].raw;
    int used = fprintf(out, "  %-10s %s: ", label, name);
    const struct packing *packing = &loader->packing;
    if (loader->options.kind == &prompts_loader) {
        fprintf(out, "%s prompt%s\n", count_text(sequences, (double)loader->sequence_count),
                PLURAL(loader->sequence_count));
        return;
    }
    if (packing_has_pairs(packing))
        used += fprintf(out, "%s %s, ", count_text(tokens, packing_units(packing)),
                        pairs_noun(packing));
    used += fprintf(
        out, "%s token%s, %s sequence%s%s", count_text(tokens, (double)loader->tokens->count),
        PLURAL(loader->tokens->count), count_text(sequences, (double)loader->sequence_count),
        PLURAL(loader->sequence_count), raw ? ", raw uint16" : "");
    enum { NOTES = 4 };
    const double cut = (double)packing->cut, tail = (double)loader_tail_tokens(loader);
    char notes[NOTES][64] = {""};
    if (loader->tokens->counted < loader->tokens->count)
        snprintf(notes[0], sizeof *notes, "%s count in the loss",
                 count_text(tokens, (double)loader->tokens->counted));
    if (loader_is_packed(loader))
        snprintf(notes[1], sizeof *notes, "packed whole, %.3g %% unused (padding)",
                 100 * loader_padding(loader));
    else if (tail > 0)
        snprintf(notes[1], sizeof *notes, "the last %s token%s padded", count_text(tokens, tail),
                 PLURAL(tail));
    if (isolates && loader_has_starts(loader))
        snprintf(notes[2], sizeof *notes, "documents isolated");
    if (cut > 0 && packing_has_pairs(packing))
        snprintf(notes[3], sizeof *notes, "documents of %s %s cut", count_text(tokens, cut),
                 cut == 1 ? "pair" : "pairs");
    else if (cut > 0)
        snprintf(notes[3], sizeof *notes, "%s of %s document%s cut, longer than a sequence",
                 count_text(tokens, cut), count_text(sequences, (double)packing->documents),
                 PLURAL(packing->documents));
    print_parts(out, used, ';', notes, NOTES);
}

/* "cpu: AMD EPYC, x86-64-v4, 2 threads"; processors with long names take two lines. */
static void print_device(FILE *out, const struct backend_description *device) {
    enum { WIDTH = 67 };
    int used = fprintf(out, "%s: %s", device->name, device->description);
    size_t more = strlen(device->use);
    if (more > 0)
        fprintf(out, ",%s%s", used + more + 2 > WIDTH ? "\n             " : " ", device->use);
}

/* Prints the number of ranks, their library and tokens per step; nothing for one process. */
static void print_ranks(FILE *out, const struct trainer *trainer) {
    const struct collectives *c = trainer->be->collectives;
    const struct config *config = trainer->config;
    if (c->ranks->size == 1) return;
    fprintf(out, "  ranks      %d, over %s: %" PRId64 " tokens a step;", c->ranks->size,
            c->description, batches_step_tokens(config));
    if (trainer->optimizer.exchange.shards.divided)
        fprintf(out, " each has 1/%d of the moments\n", c->ranks->size);
    else fputs(" each has all moments\n", out);
}

/* Prints "24 steps (0.5 epochs)": the passes over the data that these steps make, with earlier ones
 * of another batch size. They can be far more than train.epochs, which a step of more sequences
 * than the data have exceeds. Without data only the passes that the config gives. */
static int print_length(FILE *out, const struct trainer *trainer, const struct loader *data) {
    const struct config *config = trainer->config;
    const struct training_state *state = &trainer->state;
    double epochs = config->train.epochs;
    if (epochs > 0 && !data) return fprintf(out, "%g epoch%s", epochs, PLURAL(epochs));
    int64_t steps = config->train.steps;
    int used = fprintf(out, "%" PRId64 " step%s", steps, PLURAL(steps));
    if (!data) return used;
    double left = (double)(steps - state->step);
    double sequences = (double)state->next_sample + left * (double)batches_step_samples(config);
    epochs = sequences / (double)config_draws(config) / (double)data->sequence_count;
    return used + fprintf(out, " (%.3g epoch%s)", epochs, PLURAL(epochs));
}

/* Prints the kind of adapters, their size, their layers and how the model is stored; nothing
 * without adapters. */
static void print_adapters(FILE *out, const struct config *config, const struct model *model) {
    const struct model_shape *s = &model->capacity;
    char text[32];
    double count = 0;
    unsigned printed = 0;
    if (!shape_has_adapters(s)) return;
    for (ptrdiff_t i = 0; i < parameter_adapter_count(model->list); i++)
        count += (double)parameter_count(&model->list[i]);
    fprintf(out,
            "\n  adapters   lora, rank %" PRId64 ", alpha %g: %s parameters are trained, in\n"
            "             ",
            config->adapter.rank, config->adapter.alpha, count_text(text, count));
    for (enum adapter_target i = 0; i < ADAPTER_TARGET_COUNT; i++) {
        if (!(s->adapter_targets & ~printed & 1u << i)) continue;
        fprintf(out, "%s%s", printed ? ", " : "", adapter_target_name(s, i));
        printed |= adapter_targets_named(s, adapter_target_name(s, i));
    }
    fprintf(out, "\n             on a model in %s",
            model->precision.frozen_format == WEIGHT_PLAIN
                ? dtype_name(model->precision.frozen)
                : config_name_of("adapter.base", config->adapter.base));
}

/* Prints how many matmuls were timed, and how many were not; nothing if earlier runs' choices
 * sufficed. */
static void print_tuning(FILE *out, const struct trainer *trainer) {
    const struct config *config = trainer->config;
    struct tuning tuning = algorithms_tuning(trainer->be->algorithms);
    if (tuning.timed + tuning.untimed == 0) return;
    fprintf(out, "  autotune   %d matmul%s timed in %.1f s", tuning.timed, PLURAL(tuning.timed),
            tuning.seconds);
    if (tuning.untimed > 0) fprintf(out, ", %d left to the library", tuning.untimed);
    if (tuning.untimed > 0 && config->autotune == AUTOTUNE_AUTO)
        fprintf(out, " (autotune_seconds is %g)", config->autotune_seconds);
    fputc('\n', out);
}

/* Prints the change of precision that lies ahead, if there is one. */
static void print_switch(FILE *out, const struct trainer *trainer) {
    const struct config *config = trainer->config;
    int64_t step = precision_switch_step(config);
    if (step >= config->train.steps || trainer->state.step >= step) return;
    fprintf(out, "  switch     %s after step %" PRId64 "\n",
            config_precision_name(config->precision_switch.precision), step);
}

/* Prints the model to which answers are compared. */
static void print_reference(FILE *out, const struct config *config) {
    fputs("  reference  the model as it is before step 0", out);
    if (reference_is_base(config)) fputs(", without the adapters", out);
    else if (config->adapter.init_from[0])
        fprintf(out, ", with the adapters of\n             %s", config->adapter.init_from);
    fputc('\n', out);
}

/* Prints the loss and its settings; nothing for language. */
static void print_objective(FILE *out, const struct config *config, const struct loader *train) {
    const struct objective *objective = objective_of(config);
    char settings[OBJECTIVE_SETTINGS][64] = {""};
    if (!objective->describe) return;
    objective->describe(settings, config, train);
    const int used =
        fprintf(out, "  objective  %s: %s",
                config_name_of("train.objective", config->train.objective), settings[0]);
    print_parts(out, used, ',', settings + 1, OBJECTIVE_SETTINGS - 1);
    if (config_has_reference(config)) print_reference(out, config);
}

void report_banner(struct report *report, const struct trainer *trainer, const struct loader *train,
                   const struct loader *val, const char *run_directory) {
    FILE *out = report->out;
    const struct config *config = trainer->config;
    const struct model *model = &trainer->model;
    const struct model_shape *s = &model->capacity;
    char text[32], shared[48] = "";
    if (s->n_kv_head != s->n_head)
        snprintf(shared, sizeof shared, " (%" PRId64 " of keys and values)", s->n_kv_head);
    fprintf(out, "mantissa: training %s\n", config->name);
    fprintf(out,
            "  model      %" PRId64 " layer%s, %" PRId64 " head%s%s, %" PRId64 " wide: %s "
            "parameters\n  vocabulary %" PRId64,
            s->n_layer, PLURAL(s->n_layer), s->n_head, PLURAL(s->n_head), shared, s->n_embd,
            count_text(text, (double)shape_parameter_count(s)), s->vocab_size);
    if (s->padded_vocab != s->vocab_size) fprintf(out, " (inside %" PRId64 ")", s->padded_vocab);
    const int64_t windows = shape_window_layers(s);
    if (windows > 0)
        fprintf(out, ", attention window of %" PRId64 " token%s", s->window, PLURAL(s->window));
    if (windows > 0 && windows < s->n_layer) fprintf(out, " in %" PRId64 " of the layers", windows);
    print_adapters(out, config, model);
    fprintf(out, "\n  precision ");
    precision_print(out, &model->precision);
    if (report->scale_loss)
        fprintf(out, "\n  loss scale %g, x %g after %" PRId64 " good step%s, x %g on overflow",
                trainer->state.scaler.loss_scale, config->loss_scale.growth_factor,
                config->loss_scale.growth_interval, PLURAL(config->loss_scale.growth_interval),
                config->loss_scale.backoff_factor);
    fprintf(out, "\n  device     ");
    print_device(out, &trainer->be->device);
    fprintf(out, "\n  memory     ");
    report_memory(out, &model->memory);
    fputc('\n', out);
    if (train) print_data(out, "data", config->data.train, train, config->data.isolate);
    if (train && train->teacher)
        fprintf(out, "  teacher    %s: top %" PRIu32 " logits, alpha %g, temperature %g\n",
                config->distill.logits, train->teacher->header.top, config->distill.alpha,
                config->distill.temperature);
    if (val) print_data(out, "validation", config->data.val, val, config->data.isolate);
    print_objective(out, config, train);
    fputs("  training   ", out);
    int used = print_length(out, trainer, train);
    used += fprintf(out, " of %" PRId64 " x %" PRId64 " x %" PRId64 " tokens,",
                    config->train.grad_accum_steps, config->train.micro_batch_size,
                    config->data.seq_len);
    char schedule[80];
    int length = snprintf(schedule, sizeof schedule, "%s lr %g to %g",
                          config_name_of("optimizer.schedule", config->optimizer.schedule),
                          config->optimizer.lr, config->optimizer.min_lr);
    fprintf(out, "%s%s\n", used + 1 + length > COLUMNS - 13 ? "\n             " : " ", schedule);
    if (config->train.steps < STEPS_FEW && (train || config->train.epochs == 0))
        fprintf(out, "             few steps to learn in: raise train.%s\n",
                config->train.epochs == 0 ? "steps" : "epochs, or take smaller batches");
    print_switch(out, trainer);
    print_ranks(out, trainer);
    print_tuning(out, trainer);
    const char *line;
    for (int i = 0; (line = backend_fallback(trainer->be, i)); i++)
        fprintf(out, "  fallback   %s\n", line);
    if (report->deadline > 0)
        fprintf(out, "  ends       after %g minute%s, if not done before; continue with --resume\n",
                config->train.minutes, PLURAL(config->train.minutes));
    fprintf(out, "  run        %s\n", run_directory);
    if (report->floor > 0)
        fprintf(out,
                "  floor      %.4f: entropy of this corpus; no validation loss stays below it\n",
                report->floor);
    fflush(out);
}

/* Removes the sign of a NaN, which C libraries would print. */
static double shown(double value) {
    return isnan(value) ? (double)NAN : value;
}

/* Writes a loss or norm with that many decimals or, from 1e5 on, with three digits. */
static const char *figure(char text[32], double value, int decimals) {
    if (fabs(value) < 1e5) snprintf(text, 32, "%.*f", decimals, value);
    else snprintf(text, 32, "%.2e", shown(value));
    return text;
}

/* Writes " | scale 2^16", " | skipped", both or nothing. */
static void scaler_text(const struct report *report, char text[48],
                        const struct step_report *step) {
    int used = 0;
    text[0] = 0;
    int exponent;
    bool power_of_two = frexpf(step->loss_scale, &exponent) == 0.5f;
    if (report->scale_loss && power_of_two)
        used = snprintf(text, 48, " | scale 2^%d", exponent - 1);
    else if (report->scale_loss) used = snprintf(text, 48, " | scale %g", step->loss_scale);
    if (step->skipped) snprintf(text + used, (size_t)(48 - used), "%s", " | skipped");
}

/* Writes " | margin 0.123 | right 61 %": the objective's figures, without means of nothing. */
static void figures_text(const struct report *report, char text[64], const struct step_sums *sums) {
    int used = 0;
    text[0] = '\0';
    for (const struct objective_figure *f = report->figures; f && f->name && used < 64; f++) {
        char number[32];
        if (!f->label || sums->values[f->count] <= 0) continue;
        if (f->less_count > 0 && sums->values[f->less_count] <= 0) continue;
        figure(number, objective_value(f, sums, f->factor), f->decimals);
        used += snprintf(text + used, (size_t)(64 - used), " | %s %s%s", f->label, number, f->unit);
    }
}

/* Prints the figures of a step. Those that can be spared are left out where the line would have
 * more than 80 columns. */
static void print_line(const struct report *report, const struct step_report *step, double step_ms,
                       double tokens_per_s) {
    enum { PARTS = 7 };
    char parts[PARTS][64], scale[48], speed[32], loss[32], norm[32];
    int digits = snprintf(NULL, 0, "%" PRId64, report->steps), length = 0;
    scaler_text(report, scale, step);
    snprintf(parts[0], sizeof *parts, "step %*" PRId64 "/%" PRId64 " | loss %s",
             digits < 3 ? 3 : digits, step->step, report->steps, figure(loss, step->loss, 4));
    snprintf(parts[1], sizeof *parts, " | lr %.2e", step->lr);
    snprintf(parts[2], sizeof *parts, " | norm %s", figure(norm, step->gradient_norm, 3));
    snprintf(parts[3], sizeof *parts, "%s", scale);
    figures_text(report, parts[4], &step->sums);
    snprintf(parts[5], sizeof *parts, " | %s tok/s", count_text(speed, tokens_per_s));
    snprintf(parts[6], sizeof *parts, step_ms < 1e4 ? " | %.1f ms" : " | %.0f ms", step_ms);
    static const int spared[] = {6, 1, 5};
    for (int i = 0; i < PARTS; i++) length += (int)strlen(parts[i]);
    for (int i = 0; i < 3 && length > COLUMNS; i++) {
        length -= (int)strlen(parts[spared[i]]);
        parts[spared[i]][0] = '\0';
    }
    for (int i = 0; i < PARTS; i++) fputs(parts[i], report->out);
    fputc('\n', report->out);
    fflush(report->out);
}

/* Writes the figures to the right of the bar. Returns their width. */
static int bar_text(const struct report *report, char line[256], const struct step_report *step,
                    double tokens_per_s, bool with_norm) {
    char scale[48], speed[32], left[32], norm[48] = "", text[32];
    double now = progress_clock();
    int64_t done = step->step - report->first_step, rest = report->steps - step->step;
    double seconds = done > 0 ? (now - report->started) / (double)done * (double)rest : 0;
    if (report->deadline > 0 && now + seconds > report->deadline)
        seconds = report->deadline > now ? report->deadline - now : 0;
    progress_duration(left, seconds);
    scaler_text(report, scale, step);
    if (with_norm) snprintf(norm, sizeof norm, " | norm %s", figure(text, step->gradient_norm, 2));
    return snprintf(line, 256, "%" PRId64 "/%" PRId64 " | loss %s%s%s | %s tok/s | %s left",
                    step->step, report->steps, figure(text, step->loss, 4), norm, scale,
                    count_text(speed, tokens_per_s), left);
}

/* Redraws the progress line: figures on the right, and a bar in the remaining width. The gradient
 * norm is left out if the bar would be too short. */
static void draw_bar(struct report *report, const struct step_report *step, double tokens_per_s) {
    char bar[64], line[256];
    int width = progress_columns(report->out) - 3; /* the terminal may echo ^C behind it */
    int rest = width - bar_text(report, line, step, tokens_per_s, true) - 1;
    if (rest < PROGRESS_BAR_MIN)
        rest = width - bar_text(report, line, step, tokens_per_s, false) - 1;
    int used = progress_bar(bar, rest, 40, (double)step->step, (double)report->steps);
    fprintf(report->out, "\r%.*s%.*s\033[K", used, bar, width - used, line);
    fflush(report->out);
    report->bar_visible = true;
}

void report_step(struct report *report, const struct step_report *step, double step_ms,
                 double tokens_per_s) {
    const bool last = step->step == report->steps;
    const bool first = report->shows_first && step->step == report->first_step + 1;
    if (first || last || step->step % report->every == 0) {
        report_pause(report);
        print_line(report, step, step_ms, tokens_per_s);
    }
    if (report->terminal && !last) draw_bar(report, step, tokens_per_s);
}

void report_validation(struct report *report, int64_t step, double loss,
                       const struct step_sums *sums) {
    report_pause(report);
    char text[32], more[64];
    fprintf(report->out, "step %" PRId64 ": validation loss %s", step, figure(text, loss, 4));
    figures_text(report, more, sums);
    fputs(more, report->out);
    if (report->floor > 0 && isfinite(loss))
        fprintf(report->out, ", %.4f above the floor %.4f", loss - report->floor, report->floor);
    fputc('\n', report->out);
    fflush(report->out);
}

void report_accuracy(struct report *report, int64_t step, const struct accuracy *accuracy) {
    report_pause(report);
    fprintf(report->out,
            "step %" PRId64
            ": %.1f %% of the questions right (%.1f to %.1f %%), acc_norm %.1f %%\n",
            step, 100 * accuracy->acc, 100 * accuracy->acc_low, 100 * accuracy->acc_high,
            100 * accuracy->norm);
    fflush(report->out);
}

bool report_out_of_time(const struct report *report) {
    return report->deadline > 0 && progress_clock() >= report->deadline;
}

void report_pause(struct report *report) {
    if (report->bar_visible) fputs("\r\033[K", report->out);
    if (report->bar_visible) fflush(report->out);
    report->bar_visible = false;
}

void report_waited(const struct report *report, double waited) {
    double all = progress_clock() - report->started;
    if (waited <= 0 || all <= 0) return;
    fprintf(report->out, "waited for other ranks %.1f of %.1f s (%.1f %%)\n", waited, all,
            100 * waited / all);
}
