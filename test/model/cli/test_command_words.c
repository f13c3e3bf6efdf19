/* Words that are neither flags nor commands of ./train, as arguments and for --help. */
#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#include "data/util/error.h"
#include "model/cli/command_line.h"

/* At most two arguments, separated by |. */
static int parse(struct command_line *line, char *arguments, struct error *error) {
    char *second = strchr(arguments, '|');
    char *argv[] = {"./train", arguments, second ? second + 1 : NULL, NULL};
    if (second) *second = '\0';
    return command_line_parse(line, second ? 3 : 2, argv, error);
}

static void refuse(const char *arguments, const char *part) {
    struct command_line line;
    struct error error = {0};
    char text[100];
    snprintf(text, sizeof text, "%s", arguments);
    cr_expect_eq(parse(&line, text, &error), -1, "accepted: %s", arguments);
    cr_expect_not_null(strstr(error.text, part), "%s: \"%s\" is not in: %s", arguments, part,
                       error.text);
    command_line_free(&line);
}

/* Arguments of other trainers, keys given as flags, and mistyped flags. */
Test(command_words, arguments_suggest_a_flag_or_key) {
    refuse("--learning_rate|1e-3", "did you mean --set optimizer.lr=VALUE?\nVALUE is a number");
    refuse("--num-train-epochs=3", "did you mean --set train.epochs=VALUE?");
    refuse("--optimizer.lr=1", "did you mean --set optimizer.lr=VALUE?");
    refuse("--steps=5", "did you mean --set train.steps=VALUE?");
    refuse("--eval_steps|5", "did you mean --set eval.every=VALUE?");
    refuse("--max_new_tokens|5", "did you mean --tokens?");
    refuse("--SAMPLE|x", "did you mean --sample?");
    refuse("--sampel|x", "did you mean --sample?");
    refuse("--tempature|x", "did you mean --temperature?");
    refuse("--flash-attention", "nothing to switch on");
    refuse("c.json", "--config");
    refuse("--zzz", "--help lists");
}

Test(command_words, help_of_a_word) {
    static const char *const words[][3] = {
        {"lr", "  optimizer.lr\n", "A number from 0 to 10. Default: 0.001."},
        {"train.steps", "  train.steps\n", "Default: 600."},
        {"gradient_checkpointing", "  train.recompute\n", "Activations"},
        {"loss_scale", "  loss_scale.init_scale\n", "  loss_scale.min_scale\n"},
        {"top-p", "--top-p X", "probability"},
        {"max_new_tokens", "--tokens N", "number of tokens"},
        {"wandb", "follow_run.py", "."},
        {"gradscaler", "loss_scale", "GradScaler"},
        {"get_scale", "loss_scale", "metrics.jsonl"},
        {"unscale_", "unscaled", "optimizer.grad_clip"},
        {"overflow", "skipped", "loss_scale"},
        {"underflow", "2^-25", "--audit"},
        {"softmax", "fp32", "attention"},
        {"tie_weights", "  model.tied_head\n", "."},
        {"neftune_noise_alpha", "NEFTune", "."},
        {"adamw_8bit", "  optimizer.moments\n", "int8"},
        {"int4", "  adapter.base\n", "nf4"},
        {"warmup_ratio", "warmup_ratio times train.steps", "."},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        char arguments[60];
        struct error error = {0};
        snprintf(arguments, sizeof arguments, "--help|%s", words[i][0]);
        struct command_line line = {0};
        char *text = NULL;
        size_t size;
        cr_assert_eq(parse(&line, arguments, &error), 0, "%s", error.text);
        FILE *out = open_memstream(&text, &size);
        command_line_help(out, &line);
        fclose(out);
        for (int part = 1; part < 3; part++)
            cr_expect_not_null(strstr(text, words[i][part]), "%s: %s", words[i][part], text);
        cr_expect_null(strstr(text, "  seed\n"), "%s", text);
        free(text);
    }
}
