#include "model/lab/compare/run_record.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/files.h"
#include "data/util/table.h"

enum { EXACT = 53 }; /* bits of the integers that a double represents exactly */

/* Adds a line of metrics.jsonl. Returns false if it has another format or its step does not follow
 * the earlier ones. */
static bool add_line(struct run_record *run, const cJSON *line) {
    int64_t step;
    if (!json_whole(&step, line, "step", 0, INT64_C(1) << EXACT)) return false;
    if (json_member(line, "val_loss")) {
        bool known = run_record_last_step(run) == step && arrlen(run->steps) > 0;
        struct run_validation validation = {.step = step,
                                            .loss = json_number_at(line, "val_loss"),
                                            .tokens = known ? arrlast(run->steps).tokens : NAN};
        if (arrlen(run->validations) > 0 && arrlast(run->validations).step >= step) return false;
        arrput(run->validations, validation);
        return true;
    }
    if (json_member(line, "choices_acc")) return true; /* nothing here is compared with it */
    if (!json_member(line, "loss") || run_record_last_step(run) >= step) return false;
    struct run_step values = {
        .step = step,
        .tokens = json_number_at(line, "tokens"),
        .loss = json_number_at(line, "loss"),
        .gradient_norm = json_number_at(line, "grad_norm"),
        .loss_scale = json_number_at(line, "loss_scale"),
        .tokens_per_s = json_number_at(line, "tokens_per_s"),
        .memory_bytes = json_number_at(line, "memory_bytes"),
        .skipped = cJSON_IsTrue(json_member(line, "skipped")),
    };
    arrput(run->steps, values);
    return true;
}

static int read_lines(struct run_record *run, FILE *file, const char *path, struct error *error) {
    char *text = NULL;
    size_t room = 0;
    ssize_t length;
    int status = 0;
    for (long number = 1; status == 0 && (length = getline(&text, &room, file)) >= 0; number++) {
        if (text[length - 1] != '\n') {
            run->cut = true; /* the writer was killed, or is still writing */
            break;
        }
        struct error ignored;
        cJSON *line;
        json_parse(&line, text, (size_t)length, "", &ignored);
        if (!add_line(run, line))
            status = fail(error,
                          "%s:%ld: this is no line that ./train writes there\n"
                          "(one JSON object with a step, which comes after the step before)",
                          path, number);
        cJSON_Delete(line);
    }
    if (status == 0 && ferror(file)) status = fail(error, "%s: %s", path, strerror(errno));
    free(text);
    return status;
}

static int read_metrics(struct run_record *run, struct error *error) {
    char path[FILE_PATH_MAX];
    if (file_path_join(path, run->path, "metrics.jsonl", error)) return -1;
    if (!file_exists(path))
        return fail(error, "%s: %s\n(a run with log.metrics=false has none)", path,
                    strerror(errno));
    int descriptor = file_open_regular(path, error);
    if (descriptor < 0) return -1;
    FILE *file = fdopen(descriptor, "r");
    if (!file) {
        close(descriptor);
        return fail(error, "out of memory while reading %s", path);
    }
    int status = read_lines(run, file, path, error);
    fclose(file);
    if (status == 0 && arrlen(run->steps) == 0)
        return fail(error, "%s: no step is in it yet", path);
    return status;
}

static int read_config(struct run_record *run, struct error *error) {
    if (!file_exists_in(run->path, "config.json"))
        return fail(error, "%s: no config.json is there\ngive run directories, such as runs/NAME",
                    run->path);
    if (json_file_open_in(&run->config, run->path, "config.json", error)) return -1;
    const cJSON *root = run->config.root;
    const cJSON *name = json_member(root, "name"), *precision = json_member(root, "precision");
    bool whole = json_whole(&run->seed, root, "seed", 0, INT64_C(1) << EXACT) &&
                 json_whole(&run->planned_steps, json_member(root, "train"), "steps", 1,
                            INT64_C(1) << EXACT);
    if (!whole || !cJSON_IsString(name) || !cJSON_IsString(precision))
        return fail(error,
                    "%s: it lacks name, precision, seed or train.steps: this is no config of a "
                    "run\n(that of a checkpoint is another file)",
                    run->config.where);
    run->name = name->valuestring;
    run->precision = precision->valuestring;
    run->in_fp32 = cJSON_IsFalse(json_member(json_member(root, "autocast"), "enabled"));
    return 0;
}

int run_record_read(struct run_record *run, const char *path, struct error *error) {
    *run = (struct run_record){0};
    run->path = strdup(path);
    if (!run->path) return fail(error, "out of memory");
    if (read_config(run, error) == 0 && read_metrics(run, error) == 0 &&
        json_file_open_optional(&run->profile, path, "profile.json", error) == 0)
        return 0;
    run_record_close(run);
    return -1;
}

void run_record_close(struct run_record *run) {
    arrfree(run->steps);
    arrfree(run->validations);
    json_file_close(&run->config);
    json_file_close(&run->profile);
    free(run->path);
    *run = (struct run_record){0};
}

int64_t run_record_last_step(const struct run_record *run) {
    return arrlen(run->steps) > 0 ? arrlast(run->steps).step : 0;
}
