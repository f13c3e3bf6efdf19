/* --sample with several texts, --chat, --choices, --agreement and eval.choices, run as programs. */
#include "data/util/json.h"
#include "test/bos_tokenizer.h"
#include <math.h>

#include "test/model/cli/program_fixture.h"

TestSuite(evaluation_program, .init = set_up, .fini = remove_folder, .timeout = 120);

#define TRAIN "--config|tiny.json|--set|sample.every=0|--set|train.steps=6"

static int lines_of(const char *text) {
    int lines = 0;
    for (; *text; text++) lines += *text == '\n';
    return lines;
}

/* Runs a command of the shell in the folder. Returns its output. */
static const char *shell(const char *format, ...) {
    char text[2000], command[2 * FILE_PATH_MAX + 2000];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    snprintf(command, sizeof command, "cd %s && { %s ; } >out.txt 2>error.txt", folder, text);
    int status = system(command);
    read_output(out_text, "out.txt");
    read_output(error_text, "error.txt");
    cr_assert_eq(status, 0, "%s: %d\n%s%s", text, status, out_text, error_text);
    return out_text;
}

Test(evaluation_program, several_samples_of_a_prompt) {
    expect_exit(TRAIN "|--set|train.steps=60", 0);
    expect_exit("--sample|the |--samples|3|--tokens|9|--from|a/run", 0);
    char *parts[4], *rest = out_text;
    int count = 0;
    for (char *part; count < 4 && (part = strsep(&rest, "-")); rest = rest ? rest + 2 : NULL)
        parts[count++] = part;
    cr_assert_eq(count, 3, "%d texts", count);
    cr_expect_str_neq(parts[0], parts[1] + 1, "the same text twice");
    for (int i = 0; i < 3; i++)
        cr_expect_eq(strncmp(parts[i] + (i > 0), "the ", 4), 0, "\"%s\"", parts[i]);
    expect_exit("--sample|the |--samples|2|--tokens|9|--from|a/run|--json|--seed|3", 0);
    cr_expect_eq(lines_of(out_text), 2, "%s", out_text);
    cr_expect_not_null(strstr(out_text, "{\"prompt\":\"the \",\"text\":\""), "%s", out_text);
    cr_expect_not_null(strstr(out_text, "\"tokens\":9,\"end\":\"length\"}"), "%s", out_text);
    expect_exit("--sample|the |--tokens|30|--from|a/run|--json|--stop|t|--stop|a|--stop|e", 0);
    cr_expect_not_null(strstr(out_text, "\"end\":\"stop\""), "%s", out_text);
    shell("%s --sample \"$(printf 'a\\377')\" --tokens 2 --json --from a/run", program);
    cr_expect_not_null(strstr(out_text, "{\"prompt\":\"a\xef\xbf\xbd\","), "%s", out_text);
    /* JSON escapes control characters, and a file has them as they are. */
    const char *controls = "\"$(printf 'a\\rb\\302\\233')\"";
    shell("%s --sample %s --tokens 2 --json --from a/run", program, controls);
    cr_expect_not_null(strstr(out_text, "{\"prompt\":\"a\\rb\\u009b\","), "%s", out_text);
    for (int samples = 1; samples <= 2; samples++) {
        shell("%s --sample %s --samples %d --tokens 2 --from a/run", program, controls, samples);
        cr_expect_eq(strncmp(out_text, "a\rb\xc2\x9b", 5), 0, "%s", out_text);
    }
    expect_error("--sample|the |--stop||--from|a/run", 2, "--stop: the text is empty");
    expect_error("--sample|the |--samples|0|--from|a/run", 2, "--samples");
    expect_error("--sample|the |--samples|40|--from|a/run", 1, "40 texts at once");
    expect_error("--chat|--from|a/run", 1, "no known chat template");
}

Test(evaluation_program, exact_samples_are_those_of_the_cache) {
    expect_exit(TRAIN, 0);
    expect_exit("--sample|the |--temperature|0|--tokens|20|--from|a/run", 0);
    char text[200];
    snprintf(text, sizeof text, "%s", out_text);
    expect_exit("--sample|the |--temperature|0|--tokens|20|--from|a/run|--set|sample.exact=true",
                0);
    cr_expect_str_eq(text, out_text);
}

static const char rows[] =
    "{\"context\": \"the cat\", \"choices\": [\"sat \", \"xyz \"], \"answer\": 0}\n"
    "\n"
    "{\"context\": \"on a \", \"choices\": [\"mat. \", \"qq\"], \"answer\": 0}\n";

Test(evaluation_program, choices_in_several_precisions) {
    expect_exit(TRAIN "|--set|train.steps=60", 0);
    write_file("q.jsonl", rows);
    expect_exit("--choices|q.jsonl|--from|a/run|--precision|fp32,bf16,fp16,fp8|--out|out", 0);
    cr_expect_not_null(strstr(out_text, "q.jsonl: 2 questions, chance 50.0%"), "%s", out_text);
    cr_expect_not_null(strstr(out_text, "\nfp8  "), "%s", out_text);
    struct json_file report;
    cr_assert_eq(json_file_open(&report, in_folder("out/choices.json"), &error), 0, "%s",
                 error.text);
    int64_t count;
    cr_expect(json_whole(&count, report.root, "count", 2, 2));
    json_file_close(&report);
}

Test(evaluation_program, errors_of_choices_name_the_line) {
    expect_exit(TRAIN, 0);
    write_file("long.jsonl", "{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 0}\n"
                             "{\"context\": \"a context of more than 32 bytes, which is long\", "
                             "\"choices\": [\"b\", \"c\"], \"answer\": 0}\n");
    write_file("bad.jsonl",
               "{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 0}\n{\n");
    write_file("one.jsonl", "{\"context\": \"a\", \"choices\": [\"b\"], \"answer\": 0}\n");
    write_file("empty.jsonl", "{\"context\": \"a\", \"choices\": [\"b\", \"\"], \"answer\": 0}\n");
    write_file("none.jsonl", "");
    expect_error("--choices|long.jsonl|--from|a/run", 1, "long.jsonl:2: question and choice have");
    expect_error("--choices|bad.jsonl|--from|a/run", 1, "bad.jsonl:2:");
    expect_error("--choices|one.jsonl|--from|a/run", 1, "one.jsonl:1:");
    expect_error("--choices|empty.jsonl|--from|a/run", 1, "empty.jsonl:1:");
    expect_error("--choices|none.jsonl|--from|a/run", 1, "none.jsonl");
    expect_error("--choices|missing.jsonl|--from|a/run", 1, "missing.jsonl");
    expect_error("--choices|q.jsonl", 2, "--choices needs --from");
    /* During training they are found before the first step. */
    expect_error(TRAIN "|--set|name=b|--set|eval.choices=long.jsonl", 1, "long.jsonl:2:");
    cr_expect_eq(last_step("a/b"), 0);
}

/* Questions are answered at the end if there are no validations. */
Test(evaluation_program, choices_without_validations_are_answered_at_the_end) {
    write_file("q.jsonl", rows);
    expect_exit(TRAIN "|--set|eval.every=0|--set|eval.choices=q.jsonl", 0);
    cr_expect_not_null(strstr(out_text, "step 6: "), "%s", out_text);
    cr_expect_not_null(strstr(out_text, "% of the questions right"), "%s", out_text);
    shell("tail -1 a/run/metrics.jsonl");
    cr_expect_not_null(strstr(out_text, "{\"step\": 6, \"choices_acc\": "), "%s", out_text);
}

/* The accuracies in metrics.jsonl, in order. Returns their number. */
static int accuracies(const char *run_folder, double acc[8]) {
    char line[1024];
    int count = 0;
    FILE *file = fopen(in_folder("%s/metrics.jsonl", run_folder), "r");
    cr_assert_not_null(file);
    while (fgets(line, sizeof line, file)) {
        long step;
        double norm;
        if (sscanf(line, "{\"step\": %ld, \"choices_acc\": %lf, \"choices_acc_norm\": %lf}", &step,
                   &acc[count], &norm) == 3)
            cr_expect_eq(step, 4 * ++count, "step %ld", step);
    }
    fclose(file);
    return count;
}

Test(evaluation_program, choices_during_training) {
    double acc[8], resumed[8];
    write_file("q.jsonl", rows);
#define ANSWERS                                                                 \
    "--config|tiny.json|--set|train.steps=12|--set|eval.choices=q.jsonl|--set|" \
    "eval.choices_every=4|--set|sample.every=4"
    expect_exit(ANSWERS, 0);
    cr_expect_not_null(strstr(out_text, "% of the questions right"), "%s", out_text);
    cr_assert_eq(accuracies("a/run", acc), 3);
    /* Training does not change: the weights of a run without questions. */
    expect_exit("--config|tiny.json|--set|train.steps=12|--set|name=plain", 0);
    char command[3 * FILE_PATH_MAX];
    snprintf(command, sizeof command,
             "cmp %s/a/run/checkpoints/step-00000012/model.safetensors "
             "%s/a/plain/checkpoints/step-00000012/model.safetensors",
             folder, folder);
    cr_expect_eq(system(command), 0, "the questions changed the training");
    expect_exit(ANSWERS "|--set|name=half|--set|train.steps=8", 0);
    expect_exit(ANSWERS "|--set|name=half|--resume", 0);
    cr_assert_eq(accuracies("a/half", resumed), 3);
    cr_expect_eq(acc[1], resumed[1]);
    /* The figure equals that of the command. */
    expect_exit("--choices|q.jsonl|--from|a/run", 0);
    char line[80];
    snprintf(line, sizeof line, "\nfp32       %.1f%%", 100 * acc[2]);
    cr_expect_not_null(strstr(out_text, line), "no \"%s\" in %s", line, out_text);
}

Test(evaluation_program, agreement_of_sampler_and_trainer) {
    expect_exit(TRAIN, 0);
    expect_exit("--agreement|--from|a/run|--precision|fp32,bf16|--samples|3|--tokens|20|--out|out",
                0);
    cr_expect_not_null(strstr(out_text, "3 texts of 20 tokens"), "%s", out_text);
    cr_expect_not_null(strstr(out_text, "fp32: safe for on-policy training"), "%s", out_text);
    cr_expect_eq(access(in_folder("out/agreement.json"), R_OK), 0);
    expect_exit("--agreement|--from|a/run|--precision|fp32,bf16,fp16|--set|sample.exact=true|"
                "--samples|3|--tokens|20",
                0);
    cr_expect_not_null(strstr(out_text, "fp16: the same bits"), "%s", out_text);
    cr_expect_not_null(strstr(out_text, "bf16: the same bits"), "%s", out_text);
    expect_exit("--agreement|--from|a/run|--set|precision=auto|--samples|2", 0);
    cr_expect_null(strstr(out_text, "auto"), "%s", out_text);
    cr_expect_not_null(strstr(out_text, "2 texts of 32 tokens"), "%s", out_text);
    expect_exit("--agreement|--from|a/run|--tokens|0|--samples|2", 0);
    cr_expect_not_null(strstr(out_text, "2 texts of 32 tokens"), "%s", out_text);
    expect_error("--agreement|--from|a/run|--tokens|33", 1, "the context of the model has 32");
    expect_error("--agreement|--from|a/run|--temperature|1", 2, "--temperature goes with");
}

/* Both sides see all tokens that the tokenizer puts before a text, here two. */
Test(evaluation_program, agreement_of_texts_that_begin_with_two_tokens) {
    const char *name = getenv("PREPARE") ? getenv("PREPARE") : "./prepare";
    char prepare[FILE_PATH_MAX];
    cr_assert_not_null(realpath(name, prepare));
    FILE *file = fopen(in_folder("one.json"), "w");
    cr_assert_not_null(file);
    print_bos_tokenizer(file);
    cr_assert_eq(fclose(file), 0);
    static const char begin[] = "{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 0}}, ";
    shell("for i in 1 2 3 4 5 6 7 8 9; do echo 'a b cab ab ac bc a cb'; done >text.txt; "
          "mkdir two && sed 's|%s|%s%s|' one.json >two/tokenizer.json && "
          "%s --tokenizer two --out abc --val-fraction 0 text.txt",
          begin, begin, begin, prepare);
    expect_exit(TRAIN
                "|--set|data.train=abc_train_*.bin|--set|data.val=|--set|eval.every=0|--set|"
                "data.tokenizer=files|--set|data.tokenizer_dir=two|--set|model.vocab_size=320",
                0);
    expect_exit("--agreement|--from|a/run|--samples|3|--tokens|31", 0);
    cr_expect_not_null(strstr(out_text, "fp32: safe for on-policy training"), "%s", out_text);
    expect_error("--agreement|--from|a/run|--tokens|32", 1, "room for 31 after the beginning");
}

/* A tokenizer of bytes with ChatML's special tokens. */
static void write_chatml(void) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    cr_assert_eq(mkdir(in_folder("chatml"), 0755), 0);
    write_file("chatml/tiktoken.json",
               "{\"pattern\": \"\\\\n+|[^\\\\n]\", \"special_tokens\": {\"<|endoftext|>\": 256, "
               "\"<|im_start|>\": 257, \"<|im_end|>\": 258}}");
    FILE *file = fopen(in_folder("chatml/ranks.tiktoken"), "w");
    for (int byte = 0; byte < 256; byte++)
        fprintf(file, "%c%c== %d\n", digits[byte >> 2], digits[(byte & 3) << 4], byte);
    cr_assert_eq(fclose(file), 0);
}

/* Expects that the text sampled after a prompt is this answer of a chat. */
static void expect_sampled(const char *prompt, int tokens, const char *answer) {
    static const char mark[] = "\"text\":\"";
    shell("%s --sample '%s' --json --top-k 2 --tokens %d --from a/run", program, prompt, tokens);
    const char *text = strstr(out_text, mark);
    cr_assert_not_null(text, "%s", out_text);
    cr_expect_eq(strncmp(text + strlen(mark), answer, strlen(answer)), 0, "\"%s\", sampled %s",
                 answer, out_text);
}

#define TURN "<|im_start|>user\nsay %c<|im_end|>\n<|im_start|>assistant\n"

/* Answers of at most so many tokens: one that is cut stays in the conversation as it is. */
static void expect_turns(int tokens) {
    char first[200], prompt[600];
    shell("printf 'say a\\n\\nsay b\\n' | %s --chat --top-k 2 --tokens %d --from a/run", program,
          tokens);
    snprintf(first, sizeof first, "%s", out_text);
    char *second = first, *answer = strsep(&second, "\n"), *rest = second;
    cr_assert(second && strlen(answer) > 0, "no answer");
    strsep(&rest, "\n");
    cr_expect_str_eq(rest, "", "more than two answers");
    snprintf(prompt, sizeof prompt, TURN, 'a');
    expect_sampled(prompt, tokens, answer);
    snprintf(prompt, sizeof prompt, TURN "%s<|im_end|>\n" TURN, 'a', answer, 'b');
    expect_sampled(prompt, tokens, second);
}

/* Evaluates rows, prepared anew, by the run. Returns the loss. */
static double loss_of_rows(const char *text, const char *prepare, const char *flags) {
    double loss = -1;
    write_file("eval.jsonl", text);
    shell("%s --tokenizer bytes --force --val-fraction 0 --out eval eval.jsonl", prepare);
    char arguments[300];
    snprintf(arguments, sizeof arguments,
             "--eval|--data|eval_train_*.bin|--precision|fp32|--from|a/run%s", flags);
    expect_exit(arguments, 0);
    const char *line = strstr(out_text, "\nfp32 ");
    cr_assert(line && sscanf(line, "\nfp32 %lf", &loss) == 1, "%s", out_text);
    return loss;
}

/* A run of plain text evaluates rows as its own documents: the loss of two rows with answers of one
 * length is the mean of their losses alone, which texts shorter than a sequence give. */
Test(evaluation_program, eval_isolates_as_the_text_says) {
    static const char one[] = "{\"prompt\": \"the c\", \"completion\": \"at\"}\n",
                      two[] = "{\"prompt\": \"on\", \"completion\": \" a\"}\n";
    const char *name = getenv("PREPARE") ? getenv("PREPARE") : "./prepare";
    char prepare[FILE_PATH_MAX], both[sizeof one + sizeof two];
    cr_assert_not_null(realpath(name, prepare), "no program %s: build it or set PREPARE", name);
    expect_exit(TRAIN "|--set|train.steps=60", 0);
    double mean = (loss_of_rows(one, prepare, "") + loss_of_rows(two, prepare, "")) / 2;
    snprintf(both, sizeof both, "%s%s", one, two);
    cr_expect_float_eq(loss_of_rows(both, prepare, ""), mean, 1e-4); /* losses have 4 decimals */
    cr_expect_not_null(strstr(out_text, ": 1 sequence of 32 tokens; documents isolated\n"), "%s",
                       out_text);
    cr_expect_gt(fabs(loss_of_rows(both, prepare, "|--set|data.isolate=false") - mean), 1e-3);
    cr_expect_not_null(strstr(out_text, "; documents not isolated\n"), "%s", out_text);
    expect_exit("--eval|--data|tiny_val_*.bin|--from|a/run", 0);
    cr_expect_not_null(strstr(out_text, "not isolated: nothing marks them\n"), "%s", out_text);
    expect_error("--eval|--data|tiny_val_*.bin|--from|a/run|--set|data.isolate=true", 1,
                 "nothing marks where documents begin in tiny_val_000000.bin");
}

/* After /reset the same message has the same answer; /exit ends before the rest of the input. */
static void expect_reset(void) {
    char alone[200];
    shell("echo say a | %s --chat --temperature 0 --tokens 5 --from a/run", program);
    snprintf(alone, sizeof alone, "%s", out_text);
    shell("printf 'say a\\n/reset\\nsay a\\n/exit\\nsay b\\n' | %s --chat --temperature 0 "
          "--tokens 5 --from a/run",
          program);
    size_t length = strlen(alone);
    cr_expect_gt(length, 1);
    cr_expect(strlen(out_text) == 2 * length && strncmp(out_text, alone, length) == 0 &&
                  strcmp(out_text + length, alone) == 0,
              "alone %s, twice %s", alone, out_text);
}

/* Standard input is a prompt as it is. A prompt of ChatML has to end in a line break. */
static void expect_piped_prompt(void) {
    char given[300];
    shell("%s --sample 'say\n\na\n' --json --temperature 0 --tokens 3 --from a/run", program);
    snprintf(given, sizeof given, "%s", out_text);
    cr_expect_not_null(strstr(given, "\"prompt\":\"say\\n\\na\\n\""), "%s", given);
    shell("printf 'say\\n\\na\\n' | %s --sample - --json --temperature 0 --tokens 3 --from a/run",
          program);
    cr_expect_str_eq(out_text, given);
    expect_error("--sample|-|--from|a/run", 2, "standard input is empty");
    shell("! printf 'say\\0a' | %s --sample - --from a/run 2>nul && grep -q 'a NUL byte' nul",
          program);
}

/* Answers are the text sampled after the whole conversation, turn after turn: random numbers depend
 * on the number of tokens before. The two likeliest tokens are printable. */
Test(evaluation_program, chat_continues_the_conversation) {
    const char *name = getenv("PREPARE") ? getenv("PREPARE") : "./prepare";
    char prepare[FILE_PATH_MAX];
    cr_assert_not_null(realpath(name, prepare), "no program %s: build it or set PREPARE", name);
    write_chatml();
    FILE *file = fopen(in_folder("rows.jsonl"), "w");
    for (int i = 0; i < 300; i++)
        fprintf(file,
                "{\"messages\":[{\"role\":\"user\",\"content\":\"say %c\"},"
                "{\"role\":\"assistant\",\"content\":\"%c.\"}]}\n",
                'a' + i % 5, 'a' + i % 5);
    fclose(file);
    shell("%s --tokenizer chatml --val-fraction 0 --out rows rows.jsonl", prepare);
    expect_exit("--config|tiny.json|--set|sample.every=0|--set|train.steps=40|--set|"
                "data.train=rows_train_*.bin|--set|data.val=|--set|eval.every=0|--set|"
                "data.tokenizer=files|--set|data.tokenizer_dir=chatml|--set|model.vocab_size=320|"
                "--set|model.n_positions=128|--set|data.seq_len=128",
                0);
    for (int tokens = 1; tokens <= 8; tokens++) expect_turns(tokens);
    expect_reset();
    expect_piped_prompt();
}

/* Ctrl-C ends an answer; the end of the input ends the program. */
Test(evaluation_program, chat_goes_on_after_an_interrupted_answer) {
    const char *name = getenv("PREPARE") ? getenv("PREPARE") : "./prepare";
    char prepare[FILE_PATH_MAX];
    int input[2];
    cr_assert_not_null(realpath(name, prepare));
    write_chatml();
    write_file("rows.jsonl",
               "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},"
               "{\"role\":\"assistant\",\"content\":\"a b c d e f g h i j k l m\"}]}\n");
    shell("for i in 1 2 3 4 5 6 7 8 9; do cat rows.jsonl; done > many.jsonl; %s --tokenizer chatml "
          "--val-fraction 0 --out rows many.jsonl",
          prepare);
    expect_exit("--config|tiny.json|--set|sample.every=0|--set|train.steps=1|--set|"
                "data.train=rows_train_*.bin|--set|data.val=|--set|eval.every=0|--set|"
                "data.tokenizer=files|--set|data.tokenizer_dir=chatml|--set|model.vocab_size=320",
                0);
    cr_assert_eq(pipe(input), 0);
    write_file("out.txt", "");
    out_text[0] = 0;
    pid_t child = fork();
    if (child == 0) {
        enter();
        dup2(input[0], 0);
        close(input[1]);
        /* Greedy text of this model repeats without an end. */
        execl(program, program, "--chat", "--from", "a/run", "--temperature", "0", "--tokens",
              "2000000000", (char *)NULL);
        _exit(98);
    }
    close(input[0]);
    for (int turn = 0; turn < 2; turn++) {
        size_t before = strlen(out_text);
        cr_assert_eq(write(input[1], "q\n", 2), 2);
        for (int i = 0; i < 10000 && running(child); i++) { /* until the answer has begun */
            usleep(1000);
            read_output(out_text, "out.txt");
            if (strlen(out_text) > before + 20) break;
        }
        cr_assert(running(child), "it ended: %s", error_text);
        kill(child, SIGINT);
        before = 0;
        for (int i = 0; i < 100; i++) { /* until it has ended */
            usleep(100000);
            read_output(out_text, "out.txt");
            size_t now = strlen(out_text);
            if (now == before && out_text[now - 1] == '\n') break;
            before = now;
        }
        cr_expect_eq(out_text[strlen(out_text) - 1], '\n', "the answer has no end");
    }
    close(input[1]);
    cr_expect_eq(finish(child), 0, "%s", error_text);
}
