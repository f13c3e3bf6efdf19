/* Runs of ./train with train.objective grpo: what they write, that they repeat and resume with the
 * same bits, programs that answer badly, and what they refuse. */
#include <math.h>

#include "test/model/cli/program_fixture.h"

static void set_up_rewards(void);

TestSuite(rewards_program, .init = set_up_rewards, .fini = remove_folder, .timeout = 300);

#define RUN "--config|rewards.json"

static const char config_text[] =
    "{\n"
    "  \"name\": \"run\", \"precision\": \"fp32\", \"threads\": 1, \"run_dir\": \"a\",\n"
    "  \"model\": {\"n_layer\": 2, \"n_head\": 2, \"n_embd\": 32, \"n_positions\": 32},\n"
    "  \"data\": {\"train\": \"rows.jsonl\", \"val\": \"rows.jsonl\", \"seq_len\": 32},\n"
    "  \"train\": {\"objective\": \"grpo\", \"steps\": 6, \"micro_batch_size\": 4,\n"
    "            \"grad_accum_steps\": 2},\n"
    "  \"grpo\": {\"num_generations\": 4, \"max_completion_length\": 5, \"stop\": \"e\"},\n"
    "  \"reward\": {\"command\": \"exec sh reward.sh\", \"timeout\": 20},\n"
    "  \"optimizer\": {\"lr\": 3e-3, \"warmup_steps\": 1},\n"
    "  \"eval\": {\"every\": 3, \"batches\": 1},\n"
    "  \"checkpoint\": {\"every\": 2, \"keep\": 9}\n"
    "}\n";

/* Rewards lines by their length, and keeps them in asked.txt. */
static const char reward_text[] =
    "while read -r line; do\n"
    "    printf '%s\\n' \"$line\" >>asked.txt\n"
    "    printf '{\"reward\": {\"a\": %d, \"b\": 0.25}}\\n' $((${#line} % 7))\n"
    "done\n";

static void set_up_rewards(void) {
    set_up();
    write_file("rewards.json", config_text);
    write_file("reward.sh", reward_text);
    write_file("rows.jsonl", "{\"prompt\": \"ab\", \"answer\": \"x\"}\n\n"
                             "{\"answer\": \"y\", \"n\": [1, {\"q\": 2}], \"prompt\": \"cde\"}\r\n"
                             " {\"prompt\": \"f\\u00e9\", \"answer\": \"z\"} \n");
}

static char *read_text(const char *name) {
    size_t size;
    char *text = NULL;
    cr_assert_eq(file_read_all(&text, &size, in_folder("%s", name), 1 << 24, &error), 0, "%s",
                 error.text);
    text = realloc(text, size + 1);
    text[size] = '\0';
    return text;
}

static int count_lines(const char *text) {
    int lines = 0;
    for (; *text; text++) lines += *text == '\n';
    return lines;
}

static void expect_text(const char *text, const char *part) {
    cr_expect_not_null(strstr(text, part), "\"%s\" is not in: %s", part, text);
}

static void remove_in_folder(const char *pattern) {
    char command[FILE_PATH_MAX + 32];
    snprintf(command, sizeof command, "rm -r %s", in_folder("%s", pattern));
    cr_assert_eq(system(command), 0);
}

#define SAME_WEIGHTS(a, b)                                                  \
    expect_same_file("a/" a "/checkpoints/step-00000006/model.safetensors", \
                     "a/" b "/checkpoints/step-00000006/model.safetensors")

Test(rewards_program, writes_rollouts_and_figures) {
    expect_exit(RUN, 0);
    char *rollouts = read_text("a/run/rollouts.jsonl"), *metrics = read_text("a/run/metrics.jsonl");
    char *asked = read_text("asked.txt");
    cr_expect_eq(count_lines(rollouts), 6 * 8);
    cr_expect_eq(count_lines(asked), 6 * 8 + 2 * 3 * 4, "those of validations too");
    expect_text(rollouts, "{\"step\": 6, \"reward\": ");
    expect_text(rollouts, "\"n\": [1, {\"q\": 2}], \"prompt\": \"cde\", \"completion\": \"");
    expect_text(metrics, "\"reward\": ");
    expect_text(metrics, "\"frac_reward_zero_std\": ");
    expect_text(metrics, "\"sampling_ratio_max\": ");
    expect_text(metrics, "\"val_reward\": ");
    expect_text(out_text, "objective  grpo: dapo, 4 completions of a prompt");
    expect_text(out_text, "data       rows.jsonl: 3 prompts\n");
    expect_text(out_text, "| reward ");
    cr_expect_null(strstr(rollouts, "e\"}"), "the stop is not part of the text");
    free(rollouts);
    free(metrics);
    free(asked);
}

/* A run that was killed after step 5 and begins again after step 2 draws the same completions, and
 * asks for no reward twice. */
Test(rewards_program, resumes_with_the_same_bits) {
    expect_exit(RUN, 0);
    expect_exit(RUN "|--set|name=again", 0);
    expect_same_file("a/run/rollouts.jsonl", "a/again/rollouts.jsonl");
    SAME_WEIGHTS("run", "again");
    remove_in_folder("a/again/checkpoints/step-0000000[46]");
    char *before = read_text("a/again/rollouts.jsonl");
    char *cut = strstr(before, "{\"step\": 5");
    cr_assert_not_null(cut);
    strchr(cut, '\n')[20] = '\0'; /* in the middle of a line */
    write_file("a/again/rollouts.jsonl", before);
    free(before);
    remove(in_folder("asked.txt"));
    expect_exit(RUN "|--set|name=again|--resume", 0);
    expect_same_file("a/run/rollouts.jsonl", "a/again/rollouts.jsonl");
    SAME_WEIGHTS("run", "again");
    char *asked = read_text("asked.txt");
    cr_expect_eq(count_lines(asked), 7 + 8 + 2 * 3 * 4, "%s", asked);
    free(asked);
}

/* A run whose program fails in its third step is saved after the second. */
static void check_hostile(const char *script, const char *message) {
    write_file("reward.sh", script);
    expect_exit(RUN "|--set|name=bad|--set|eval.every=0|--set|checkpoint.every=0"
                    "|--set|reward.timeout=0.5",
                1);
    expect_text(error_text, message);
    expect_text(error_text, "rows.jsonl, line ");
    cr_expect(file_exists(in_folder("a/bad/checkpoints/step-00000002")), "%s", script);
    remove_in_folder("a/bad");
}

#define GOOD "i=0; while [ $i -lt 19 ]; do read -r x; echo '{\"reward\": '$i'}'; i=$((i+1)); done\n"

Test(rewards_program, hostile_programs) {
    check_hostile(GOOD "exit 3\n", "ended with status 3 before it answered");
    check_hostile(GOOD "kill -9 $$\n", "was ended by signal 9");
    check_hostile(GOOD "sleep 30\n", "did not answer in 0.5 s (reward.timeout)");
    check_hostile(GOOD "exec >&-; sleep 30\n", "closed its output before it answered");
    check_hostile(GOOD "echo hello\n", "but wrote: hello");
    check_hostile(GOOD "echo '{\"reward\": NaN}'\n", "but wrote: {\"reward\": NaN}");
    check_hostile(GOOD "echo '{\"reward\": 1e39}'\n", "must answer");
    check_hostile(GOOD "echo '{\"reward\": {\"a\": true}}'\n", "must answer");
    check_hostile(GOOD "echo '{\"reward\": {}}'\n", "must answer");
    check_hostile(GOOD "echo '{}'\n", "must answer");
    check_hostile(GOOD "while printf ' '; do sleep 0.1; done\n", "did not answer");
    /* Both in one write: one that came later might be taken for the next row's. */
    check_hostile(
        "i=0; more=; while read -r x; do i=$((i+1)); [ $i -eq 16 ] && more='{\"reward\": 1}\n'\n"
        "printf '{\"reward\": 1}\n'\"$more\"; more=; done\n",
        "more answers than the requests");
}

/* Weights and null as TRL's reward_weights and None: the sum over what is a number; and DAPO's soft
 * overlong punishment of TRL, of which completions of 3, 4 and 5 tokens here get 0, -0.5 and -1. */
Test(rewards_program, weights_of_named_rewards_and_length) {
#define WEIGHTED \
    RUN "|--set|train.steps=1|--set|eval.every=0|--set|grpo.stop=|--set|reward.weights="
    write_file("reward.sh", "while read -r line; do\n"
                            "    echo '{\"reward\": {\"a\": 3, \"b\": 0.25, \"c\": null}}'\n"
                            "done\n");
    expect_exit(WEIGHTED "a=-0.5,b=4,c=9|--set|reward.soft_punish_cache=2", 0);
    char *rollouts = read_text("a/run/rollouts.jsonl");
    expect_text(rollouts, "{\"step\": 1, \"reward\": -1.5, ");
    free(rollouts);
    expect_exit(WEIGHTED "a=1,b=1|--set|name=b", 1);
    expect_text(error_text, "with all names of reward.weights and no others, but wrote: {\"rew");
    expect_exit(WEIGHTED "a=1,b=1,c=1,d=1|--set|name=c", 1);
    expect_text(error_text, "with all names of reward.weights");
    expect_exit(WEIGHTED "a:1|--set|name=d", 1);
    expect_text(error_text, "reward.weights \"a:1\": write name=number");
}

Test(rewards_program, a_program_that_cannot_start) {
    expect_exit(RUN "|--set|reward.command=./nothing", 1);
    expect_text(error_text, "ended with status 127");
}

Test(rewards_program, matches_answers) {
    write_file("rows.jsonl", "{\"prompt\": \"a\", \"answer\": \"b\", \"count\": 3}\n");
    expect_exit(RUN "|--set|reward.command=|--set|reward.pattern=^(.)", 0);
    char *rollouts = read_text("a/run/rollouts.jsonl");
    char line[512];
    for (const char *at = rollouts; *at; at = strchr(at, '\n') + 1) {
        const char *text = strstr(at, "\"completion\": \"") + strlen("\"completion\": \"");
        snprintf(line, sizeof line, "{\"step\": %c, \"reward\": %d,", at[9], *text == 'b');
        cr_expect_eq(strncmp(at, line, strlen(line)), 0, "%.200s", at);
    }
    free(rollouts);
    expect_exit(RUN "|--set|name=b|--set|reward.command=|--set|reward.match=count", 1);
    expect_text(error_text, "line 1: the row has no string with the name of reward.match: count");
    expect_exit(RUN "|--set|name=c|--set|reward.command=|--set|reward.pattern=(", 1);
    expect_text(error_text, "reward.pattern \"(\"");
    expect_exit(RUN "|--set|name=d|--set|reward.command=|--set|reward.pattern=x", 1);
    expect_text(error_text, "has no group");
}

static void check_rows(const char *rows, const char *message) {
    write_file("rows.jsonl", rows);
    expect_exit(RUN "|--set|name=rows", 1);
    expect_text(error_text, message);
}

Test(rewards_program, refuses_bad_rows) {
    check_rows("{\"prompt\": \"a\"}\n{\"prompt\": \"\"}\n", "rows.jsonl, line 2: the row needs");
    check_rows("{\"text\": \"a\"}\n", "line 1: the row needs a \"prompt\"");
    check_rows("{\"prompt\": \"a\", \"completion\": \"b\"}\n", "has a \"completion\"");
    check_rows("{\"prompt\": \"a\"\n", "rows.jsonl, line 1: ");
    check_rows("{\"prompt\": \"123456789012345678901234567890\"}\n",
               "the prompt has 30 tokens, and with grpo.max_completion_length, 5");
    check_rows("{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}]}\n",
               "the tokenizer has no known chat template");
    check_rows("\n \n", "holds no row with a prompt");
}

Test(rewards_program, refuses_what_it_does_not_compute) {
    expect_exit(RUN "|--set|grpo.num_generations=3", 2);
    expect_text(error_text, "a step has 8 completions");
    expect_exit(RUN "|--set|grpo.beta=0.1", 2);
    expect_text(error_text, "grpo.beta needs adapters");
    expect_exit(RUN "|--set|sample.every=2", 2);
    expect_text(error_text, "rollouts.jsonl");
    expect_exit(RUN "|--set|grpo.max_completion_length=33", 2);
    expect_text(error_text, "a sequence has 32");
    expect_exit(RUN "|--set|grpo.temperature=2|--set|eval.choices=tales", 2);
    expect_text(error_text, "grpo.temperature");
    expect_exit(RUN "|--set|grpo.num_iterations=2", 2);
    expect_text(error_text, "eval.every is 3, no multiple of grpo.num_iterations, 2");
    expect_exit(RUN "|--set|grpo.num_iterations=3|--set|checkpoint.every=3"
                    "|--set|precision_switch.at=3",
                2);
    expect_text(error_text, "does not go with train.epochs");
}

/* Two generations of three steps each. A run that was stopped in the middle of one ends after it,
 * and a resumed one has the same bits. */
Test(rewards_program, several_steps_of_the_same_completions) {
#define ITERATIONS "|--set|grpo.num_iterations=3|--set|checkpoint.every=3"
    expect_exit(RUN ITERATIONS, 0);
    char *rollouts = read_text("a/run/rollouts.jsonl"), *metrics = read_text("a/run/metrics.jsonl");
    cr_expect_eq(count_lines(rollouts), 2 * 8);
    expect_text(rollouts, "\n{\"step\": 4, ");
    const char *last = strstr(metrics, "{\"step\": 6, \"tokens\"");
    double difference = 0, first_loss = 0, second_loss = 0;
    cr_assert_not_null(last);
    sscanf(strstr(metrics, "\"loss\": "), "\"loss\": %lf", &first_loss);
    sscanf(strstr(strstr(metrics, "{\"step\": 2"), "\"loss\": "), "\"loss\": %lf", &second_loss);
    cr_expect_neq(first_loss, second_loss);
    sscanf(strstr(last, "\"sampling_logp_difference_mean\": "),
           "\"sampling_logp_difference_mean\": %lf", &difference);
    cr_expect_lt(difference, 1e-5, "the sampler's against the weights that it drew with");
    expect_exit(RUN ITERATIONS "|--set|name=again|--set|train.minutes=1e-6", 0);
    cr_expect(file_exists(in_folder("a/again/checkpoints/step-00000003")));
    expect_exit(RUN ITERATIONS "|--set|name=again|--resume", 0);
    expect_same_file("a/run/rollouts.jsonl", "a/again/rollouts.jsonl");
    SAME_WEIGHTS("run", "again");
    free(rollouts);
    free(metrics);
}

/* The divergence from the model without adapters is 0 at first, and grows. */
Test(rewards_program, adapters) {
    expect_exit("--config|tiny.json|--set|name=base|--set|sample.every=0|--set|eval.every=0", 0);
    expect_exit(RUN "|--set|model.init_from=a/base|--set|adapter.type=lora|--set|grpo.beta=0.1"
                    "|--set|grpo.temperature=1.5|--set|precision=bf16",
                0);
    char *metrics = read_text("a/run/metrics.jsonl");
    double first = NAN, last = NAN;
    for (char *at = metrics; (at = strstr(at, "\"kl\": ")); at++) {
        sscanf(at, "\"kl\": %lf", &last);
        if (isnan(first)) first = last;
    }
    cr_expect(fabs(first) < 1e-6 && last > 1e-5, "%g, %g", first, last);
    free(metrics);
}

Test(rewards_program, sums_name_the_next_run) {
    expect_exit("--config|tiny.json|--set|name=sums|--set|data.train=sums|--set|data.val="
                "|--set|sample.every=0|--set|eval.every=0|--set|train.steps=1",
                0);
    expect_text(out_text, "\nnext: ./train --config grpo.json --set model.init_from=a/sums\n");
}

/* --eval draws what the last validation of the run has drawn. Other commands have no completions.
 */
Test(rewards_program, other_commands) {
    double validated = 0, evaluated = 0;
    expect_exit(RUN "|--set|grpo.temperature=1.25", 0);
    char *metrics = read_text("a/run/metrics.jsonl");
    for (char *at = metrics; (at = strstr(at, "\"val_reward\": ")); at++)
        sscanf(at, "\"val_reward\": %lf", &validated);
    free(metrics);
    expect_exit("--eval|--from|a/run", 0);
    expect_text(out_text, "rows.jsonl: 3 prompts, 4 completions of each");
    const char *row = strstr(out_text, "\nfp32 ");
    cr_assert_not_null(row, "%s", out_text);
    sscanf(row, " fp32 %*f %lf", &evaluated);
    cr_expect_float_eq(evaluated, validated, 1e-4, "%s", out_text);
    expect_exit("--audit|--from|a/run", 1);
    expect_text(error_text, "its completions are drawn while it trains");
}
