/* Every flag of ./train, and every usage error. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/error.h"
#include "model/cli/command_line.h"

enum { ARGUMENTS_MAX = 24 };

/* Arguments are separated by |. */
static int parse(struct command_line *line, const char *arguments, struct error *error) {
    static char text[8][400];
    static int turn;
    char *argv[ARGUMENTS_MAX] = {"./train"}, *copy = text[turn++ % 8];
    int argc = 1;
    snprintf(copy, sizeof *text, "%s", arguments);
    for (char *rest = copy, *word; *arguments && (word = strsep(&rest, "|"));) argv[argc++] = word;
    error->text[0] = 0;
    return command_line_parse(line, argc, argv, error);
}

static struct command_line accept(const char *arguments) {
    struct command_line line;
    struct error error;
    cr_assert_eq(parse(&line, arguments, &error), 0, "%s: %s", arguments, error.text);
    return line;
}

/* Parsing must fail with a message that contains `part`. */
static void refuse(const char *arguments, const char *part) {
    struct command_line line;
    struct error error;
    cr_expect_eq(parse(&line, arguments, &error), -1, "accepted: %s", arguments);
    cr_expect_not_null(strstr(error.text, part), "%s: \"%s\" is not in: %s", arguments, part,
                       error.text);
    cr_expect(error.text[0] == 0 || error.text[strlen(error.text) - 1] != '\n');
    command_line_free(&line);
}

Test(command_line, train) {
    struct command_line line = accept("--config|a.json");
    cr_expect_eq(line.command, COMMAND_TRAIN);
    cr_expect_str_eq(line.config, "a.json");
    cr_expect_eq(arrlen(line.overrides), 0);
    cr_expect_not(line.resume);
    cr_expect_null(line.resume_path);
    cr_expect_eq(arrlen(line.prompts), 0);
    cr_expect_eq(line.export_dtype, CONFIG_PRECISION_FP32);
    cr_expect_null(line.from);
    command_line_free(&line);
}

Test(command_line, values_may_follow_an_equals_sign) {
    struct command_line line = accept("--config=a=b.json|--set=x.y=z=1|--resume=runs/a b");
    cr_expect_str_eq(line.config, "a=b.json");
    cr_expect_str_eq(line.overrides[0], "x.y=z=1");
    cr_expect_str_eq(line.resume_path, "runs/a b");
    command_line_free(&line);
}

Test(command_line, set_repeats_in_order) {
    struct command_line line = accept("--set|a=1|--config|c|--set|b=2|--set|a=3");
    cr_assert_eq(arrlen(line.overrides), 3);
    cr_expect_str_eq(line.overrides[0], "a=1");
    cr_expect_str_eq(line.overrides[1], "b=2");
    cr_expect_str_eq(line.overrides[2], "a=3");
    command_line_free(&line);
}

/* Their values are checked with the config. */
Test(command_line, flags_of_keys_are_overrides_in_order) {
    static const char *const cases[][2] = {
        {"--device|gpu", "--device device=gpu"},
        {"--tokens|0", "--tokens sample.tokens=0"},
        {"--temperature|0.5", "--temperature sample.temperature=0.5"},
        {"--top-k|7", "--top-k sample.top_k=7"},
        {"--top-p=0.9", "--top-p sample.top_p=0.9"},
        {"--min-p|0.1", "--min-p sample.min_p=0.1"},
        {"--repetition-penalty|x", "--repetition-penalty sample.repetition_penalty=x"},
        {"--seed|", "--seed seed="},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char arguments[100];
        snprintf(arguments, sizeof arguments, "--sample|p|--from|d|--set|a=1|%s", cases[i][0]);
        struct command_line line = accept(arguments);
        cr_assert_eq(arrlen(line.overrides), 2);
        cr_expect_str_eq(line.overrides[0], "a=1");
        cr_expect_str_eq(line.overrides[1], cases[i][1]);
        command_line_free(&line);
    }
}

Test(command_line, resume_with_and_without_a_path) {
    static const struct {
        const char *arguments, *path;
    } cases[] = {
        {"--config|c|--resume", NULL},
        {"--resume|--config|c", NULL},
        {"--config|c|--resume|runs/a/checkpoints/step-00000010",
         "runs/a/checkpoints/step-00000010"},
        {"--resume=p|--config|c", "p"},
        {"--resume|p|--config|c", "p"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct command_line line = accept(cases[i].arguments);
        cr_expect(line.resume);
        cr_expect_str_eq(line.config, "c");
        cr_expect_eq(line.resume_path == NULL, cases[i].path == NULL, "%s", cases[i].arguments);
        if (cases[i].path && line.resume_path) cr_expect_str_eq(line.resume_path, cases[i].path);
        command_line_free(&line);
    }
}

/* --resume "$LAST" with an unset variable must not silently start a new run. */
Test(command_line, resume_from_an_empty_path) {
    refuse("--config|c|--resume|", "--resume");
    refuse("--config|c|--resume=", "--resume");
}

Test(command_line, memory_of_a_dry_run) {
    struct command_line line = accept("--dry-run|--config|c");
    cr_expect(!line.fit && line.memory_gib == 0);
    command_line_free(&line);
    line = accept("--dry-run|--config|c|--memory|80|--sizes");
    cr_expect(!line.fit && line.sizes);
    cr_expect_eq(line.memory_gib, 80);
    command_line_free(&line);
    static const char *const fits[] = {"--dry-run|--fit|2.5|--config|c",
                                       "--fit=2.5|--dry-run|--config=c"};
    for (int i = 0; i < 2; i++) {
        line = accept(fits[i]);
        cr_expect(line.fit);
        cr_expect_eq(line.fit_gib, 2.5);
        cr_expect_eq(line.memory_gib, 0);
        command_line_free(&line);
    }
    line = accept("--dry-run|--fit|--config|c"); /* free memory */
    cr_expect(line.fit && line.fit_gib == 0);
    command_line_free(&line);
    refuse("--dry-run|--config|c|--fit|x", "--fit: \"x\" is not a number");
    refuse("--dry-run|--config|c|--fit|3|--memory|4", "--fit");
    refuse("--dry-run|--config|c|--memory|4|--fit", "give one");
    refuse("--config|c|--fit|3", "--fit goes with --dry-run");
    line = accept("--dry-run|--link|12.5|--config|c");
    cr_expect_eq(line.link, 12.5);
    refuse("--dry-run|--config|c|--link|0", "--link: \"0\" is not a number from 1e-06 to 1e+06");
    refuse("--config|c|--link|3", "goes with --dry-run");
    refuse("--config|c|--memory|3", "goes with --dry-run");
}

Test(command_line, sample_takes_any_prompt) {
    static const char *const cases[][2] = {{"--from|d|--sample|", ""},
                                           {"--sample|--- a --- b|--from|d", "--- a --- b"},
                                           {"--sample=x=y|--from=d|--samples=2", "x=y"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct command_line line = accept(cases[i][0]);
        cr_expect_eq(line.command, COMMAND_SAMPLE);
        cr_expect_str_eq(line.from, "d");
        cr_expect_str_eq(line.prompts[0], cases[i][1]);
        cr_expect_eq(line.samples, i == 2 ? 2 : 0);
        command_line_free(&line);
    }
}

Test(command_line, sample_repeats_in_order) {
    struct command_line line = accept("--sample|one|--from|d|--sample|two|--sample=");
    cr_assert_eq(arrlen(line.prompts), 3);
    cr_expect_str_eq(line.prompts[0], "one");
    cr_expect_str_eq(line.prompts[1], "two");
    cr_expect_str_eq(line.prompts[2], "");
    command_line_free(&line);
}

Test(command_line, eval) {
    struct command_line line = accept("--eval|--from|d|--data|x*.bin|--device|cpu");
    cr_expect_eq(line.command, COMMAND_EVAL);
    cr_expect_str_eq(line.from, "d");
    cr_expect_str_eq(line.overrides[0], "--data data.val=x*.bin");
    cr_expect_str_eq(line.overrides[1], "--device device=cpu");
    cr_expect_eq(line.precision_count, 0);
    command_line_free(&line);
    line = accept("--eval|--from|d|--data|x|--precision|bf16,fp32,fp16");
    cr_assert_eq(line.precision_count, 3);
    cr_expect_eq(line.precisions[0], CONFIG_PRECISION_BF16);
    cr_expect_eq(line.precisions[1], CONFIG_PRECISION_FP32);
    cr_expect_eq(line.precisions[2], CONFIG_PRECISION_FP16);
    command_line_free(&line);
}

Test(command_line, export) {
    static const char *const names[] = {"fp32", "fp16", "bf16"};
    for (int i = 0; i < 3; i++) {
        char arguments[100];
        snprintf(arguments, sizeof arguments, "--export|out|--from|d|--dtype|%s", names[i]);
        struct command_line line = accept(arguments);
        cr_expect_eq(line.command, COMMAND_EXPORT);
        cr_expect_str_eq(line.export_to, "out");
        cr_expect_eq(line.export_dtype, (enum config_precision)i);
        cr_expect_eq(line.shard_gb, 0, "not given");
        command_line_free(&line);
    }
    struct command_line line = accept("--export|out|--from|d|--dtype|fp16|--shard-size|0.25");
    cr_expect_eq(line.shard_gb, 0.25);
    command_line_free(&line);
}

Test(command_line, export_to_a_file_takes_a_type) {
    static const char *const names[] = {"f32", "f16", "bf16", "q8_0", "q4_0"};
    for (int i = 0; i < 5; i++) {
        char arguments[100];
        snprintf(arguments, sizeof arguments, "--export|a/b.gguf|--from|d|--type|%s", names[i]);
        struct command_line line = accept(arguments);
        cr_expect_str_eq(gguf_types[line.gguf_type].name, names[i]);
        command_line_free(&line);
    }
    struct command_line line = accept("--from|d|--export|b.gguf");
    cr_expect_eq(line.gguf_type, GGUF_F32);
    command_line_free(&line);
    line = accept("--from|d|--export|a/B.GGUF|--type|q8_0");
    command_line_free(&line);
    refuse("--export|b.gguf|--from|d|--type|q5_0",
           "--type: \"q5_0\" is not one of f32, f16, bf16, q8_0, q4_0");
    refuse("--export|b.gguf|--from|d|--type|", "\"\" is not one of f32");
    refuse("--export|b.gguf|--type|f32", "--from DIR");
    refuse("--type|q8_0|--export|out|--from|d", "--type is for a file with a name that ends in");
    refuse("--export|.gguf|--from|d|--type|q8_0", "a folder takes --dtype");
    refuse("--export|a/.gguf|--from|d|--type|q8_0", "a folder takes --dtype");
    refuse("--export|b.gguf|--from|d|--dtype|fp16", "--dtype is for a folder; a .gguf file takes");
    refuse("--export|b.gguf|--from|d|--shard-size|1", "--shard-size is for a folder");
    refuse("--eval|--from|d|--type|f32", "--type goes with --export");
}

Test(command_line, eval_and_export_need_what_they_read) {
    refuse("--eval|--data|x", "--from DIR");
    refuse("--eval|--from|d|--data|x|--config|c", "--config");
    refuse("--export|o|--dtype|fp16", "--from DIR");
    refuse("--export|o|--from|d|--dtype|fp8", "\"fp8\" is not one of fp32, fp16, bf16");
    refuse("--export|o|--from|d|--dtype|auto", "fp32, fp16, bf16");
    refuse("--export|o|--from|d|--dtype|fp16|--shard-size|0", "from 1e-06 to 1e+06");
    refuse("--export|o|--from|d|--dtype|fp16|--shard-size|x", "not a number");
    refuse("--export|o|--from|d|--dtype|fp16|--resume", "--resume");
    refuse("--export|o|--from|d|--dtype|fp16|--device|cpu", "--device goes with");
}

Test(command_line, precisions) {
    refuse("--eval|--from|d|--data|x|--precision|fp64", "\"fp64\" is not one of");
    refuse("--eval|--from|d|--data|x|--precision|fp32,", "\"\" is not one of");
    refuse("--eval|--from|d|--data|x|--precision|bf16,bf16", "--precision: bf16 is given twice");
    refuse("--eval|--from|d|--data|x|--precision|fp32,fp16,bf16,fp8,mxfp8,mxfp4,nvfp4,fp32",
           "--precision: fp32 is given twice");
}

Test(command_line, one_command_at_a_time) {
    static const char *const commands[] = {"--sample|p", "--eval", "--export|o", "--dry-run"};
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            char arguments[100];
            if (i == j) continue;
            snprintf(arguments, sizeof arguments, "%s|%s|--from|d", commands[i], commands[j]);
            refuse(arguments, "exclude each other");
        }
}

Test(command_line, commands_that_only_print) {
    static const struct {
        const char *arguments;
        enum command command;
    } cases[] = {
        {"--help", COMMAND_HELP},
        {"-h", COMMAND_HELP},
        {"--help|sample", COMMAND_HELP},
        {"--help-config", COMMAND_HELP_CONFIG},
        {"--version", COMMAND_VERSION},
        {"--print-schema", COMMAND_PRINT_SCHEMA},
        {"--print-reference", COMMAND_PRINT_REFERENCE},
        {"--config|c|--help", COMMAND_HELP},
        {"--help|--nonsense", COMMAND_HELP},
        {"--sample|x|--version", COMMAND_VERSION},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct command_line line = accept(cases[i].arguments);
        cr_expect_eq(line.command, cases[i].command, "%s", cases[i].arguments);
        command_line_free(&line);
    }
}

Test(command_line, nothing_to_do) {
    refuse("", "--config");
    refuse("--dry-run", "--config");
    refuse("--resume", "--config");
    struct command_line line = accept("--resume|runs/a");
    cr_expect_str_eq(line.resume_path, "runs/a");
    command_line_free(&line);
    refuse("--set|a=1", "--config");
}

Test(command_line, unknown_arguments) {
    refuse("--confg|c", "--confg");
    refuse("c.json", "c.json");
    refuse("--config|c|extra", "extra");
    refuse("--config|c|--", "\"--\"");
    refuse("--config|c|", "\"\"");
    refuse("--dry-runs|--config|c", "--dry-runs");
    refuse("--nonsense|--help", "--nonsense");
    refuse("--help=", "no command, key or flag \"\"");
    refuse("--help|zzz", "no command, key or flag \"zzz\"");
}

Test(command_line, values_that_are_missing_or_too_many) {
    static const char *const needs[] = {"--config", "--set",         "--device",     "--sample",
                                        "--from",   "--temperature", "--top-k",      "--seed",
                                        "--tokens", "--top-p",       "--data",       "--precision",
                                        "--export", "--dtype",       "--shard-size", "--type"};
    static const char *const takes_none[] = {
        "--dry-run=1", "--version=", "--help-config=", "--print-schema=a", "--print-reference=a"};
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        char arguments[100];
        snprintf(arguments, sizeof arguments, "%s needs a value", needs[i]);
        refuse(needs[i], arguments);
    }
    for (size_t i = 0; i < sizeof takes_none / sizeof *takes_none; i++)
        refuse(takes_none[i], "takes no value");
}

/* --export --from runs/a must not write a model to a folder named --from. */
Test(command_line, a_flag_is_not_the_value_of_another) {
    static const char *const needs[][2] = {
        {"--config|--resume", "--config needs a value: --config FILE"},
        {"--export|--from|d", "--export needs a value: --export DIR"},
        {"--set|--config|c", "--set needs a value: --set KEY=VALUE"},
        {"--set|--config=c", "--set needs a value: --set KEY=VALUE"},
        {"--choices|--from|d", "--choices needs a value: --choices FILE"},
        {"--profile|--config|c|--out|--repetitions|3", "--out needs a value: --out DIR"},
        {"--eval|--from|d|--data|--best", "--data needs a value: --data GLOB"},
        {"--config|c|--ranks|--resume", "--ranks needs a value: --ranks N"},
        {"--config|-h", "--config needs a value: --config FILE"}};
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) refuse(needs[i][0], needs[i][1]);
    struct command_line line = accept("--export=--from|--from|-d");
    cr_expect_str_eq(line.export_to, "--from");
    cr_expect_str_eq(line.from, "-d");
    command_line_free(&line);
    line = accept("--sample|--from|--stop|--json|--from|d");
    cr_expect_str_eq(line.prompts[0], "--from");
    cr_expect_str_eq(line.stops[0], "--json");
    cr_expect_not(line.json);
    command_line_free(&line);
}

Test(command_line, counts) {
    static const char *const bad[] = {"-1", "0",   "1.5", "x", "5x", "4097", "99999999999999999999",
                                      "",   "1e3", "0x10"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char arguments[100];
        snprintf(arguments, sizeof arguments, "--sample|p|--from|d|--samples=%s", bad[i]);
        refuse(arguments, "is not a whole number from 1 to 4096");
    }
    refuse("--config|c|--ranks|4097", "--ranks: \"4097\" is not a whole number from 1 to 4096");
    refuse("--config|c|--ranks|0", "--ranks: \"0\" is not a whole number from 1 to 4096");
}

Test(command_line, sample_and_the_rest_do_not_mix) {
    refuse("--sample|p", "--from DIR");
    refuse("--sample|p|--from|d|--config|c", "--config");
    refuse("--sample|p|--from|d|--resume", "--resume");
    refuse("--config|c|--from|d", "--sample");
    refuse("--config|c|--tokens|5", "--sample");
    refuse("--config|c|--data|x", "--set data.train");
    refuse("--config|c|--precision|fp32", "--set precision");
    refuse("--config|c|--dtype|fp32", "--export");
    refuse("--sample|p|--from|d|--dtype|fp32", "--export");
    refuse("--eval|--from|d|--data|x|--tokens|5", "--sample");
}

static char *help(const char *arguments) {
    struct command_line line = accept(arguments);
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    command_line_help(out, &line);
    fclose(out);
    return text;
}

static void expect_in_help(const char *text, const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++)
        cr_expect_not_null(strstr(text, names[i]), "no %s in: %s", names[i], text);
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
        cr_expect_leq(strcspn(line, "\n"), 80u, "%.*s", (int)strcspn(line, "\n"), line);
}

Test(command_line, help_names_all_commands_on_one_screen) {
    static const char *const names[] = {
        "--config",      "--set",          "--device",          "--resume",  "--ranks N",
        "--help",        "--log-ranks",    "--dry-run",         "--sample",  "--chat",
        "--eval",        "--export",       "--audit",           "--profile", "--version",
        "--help-config", "--print-schema", "--print-reference", "130",       "143"};
    char *text = help("--help");
    expect_in_help(text, names, sizeof names / sizeof *names);
    int lines = 0;
    for (const char *at = text; *at; at++) lines += *at == '\n';
    cr_expect_leq(lines, 45, "%d lines", lines);
    free(text);
}

Test(command_line, help_of_each_command_names_its_flags) {
    static const char *const flags[][2] = {
        {"sample", "--tokens"},
        {"sample", "--top-k"},
        {"sample", "--seed"},
        {"sample", "--temperature"},
        {"sample", "--top-p"},
        {"sample", "--min-p"},
        {"sample", "--samples"},
        {"sample", "--stop"},
        {"sample", "--json"},
        {"chat", "--system"},
        {"chat", "--repetition-penalty X\n"},
        {"eval", "--data"},
        {"eval", "--precision"},
        {"export", "--shard-size"},
        {"export", "--type"},
        {"audit", "--out"},
        {"audit", "--repetitions"},
        {"dry-run", "--sizes"},
        {"dry-run", "--link GB/S"},
        {"dry-run", "--memory GIB"},
    };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        char arguments[40];
        snprintf(arguments, sizeof arguments, "--help|%s", flags[i][0]);
        char *text = help(arguments);
        expect_in_help(text, &flags[i][1], 1);
        free(text);
    }
}

/* The answer to a word that is no name of ours or of another trainer begins with that. */
Test(command_line, help_names_its_guesses) {
    static const struct {
        const char *word, *answer;
        bool guess;
    } words[] = {
        {"optimizer.lr", "optimizer.lr", false},  {"lr", "optimizer.lr", false},
        {"learning_rate", "optimizer.lr", false}, {"GradScaler", "loss_scale", false},
        {"optimizer", "optimizer.lr", false},     {"tokens", "--tokens", false},
        {"optimizer.lrr", "optimizer.lr", true},  {"warmup_stepss", "warmup_steps", true},
        {"gradscalr", "loss_scale", true},        {"learning_rat", "optimizer.lr", true},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        char arguments[40], first[80];
        snprintf(arguments, sizeof arguments, "--help|%s", words[i].word);
        snprintf(first, sizeof first, "There is no key or flag \"%s\"; the nearest:\n",
                 words[i].word);
        char *text = help(arguments);
        expect_in_help(text, &words[i].answer, 1);
        cr_expect_eq(strncmp(text, first, strlen(first)) == 0, words[i].guess, "%s", text);
        free(text);
    }
}

Test(command_line, help_of_a_command_has_its_flags_only) {
    static const char *const names[] = {"--export DIR  ", "--from DIR  ", "--dtype NAME  ",
                                        "--shard-size GB  "};
    char *text = help("--help|export");
    expect_in_help(text, names, sizeof names / sizeof *names);
    cr_expect_null(strstr(text, "--resume"), "%s", text);
    cr_expect_null(strstr(text, "--tokens"), "%s", text);
    free(text);
    text = help("--help|dry-run");
    expect_in_help(text, (const char *const[]){"--fit [GIB]  ", "--config FILE  "}, 2);
    free(text);
}

Test(command_line, help_of_the_config_names_its_keys) {
    char *text = help("--help-config");
    expect_in_help(text, (const char *const[]){"optimizer.lr", "log.metrics"}, 2);
    free(text);
}
