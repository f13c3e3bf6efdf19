#include "model/config/config_keys.h"
#include "model/files/config_file.h"
#include "model/lab/audit/words.h"

#include <criterion/criterion.h>

#include <string.h>

#define BIT(id) (1u << SITE_##id)

Test(words, go_into_a_config_and_come_back) {
    struct config config;
    config_defaults(&config);
    cr_expect_eq(words_of_config(&config), 0);
    unsigned words = BIT(QKV) | BIT(GELU) | BIT(LM_HEAD);
    words_set(&config, words);
    cr_expect_eq(config.autocast.float32.count, 3);
    cr_expect_eq(words_of_config(&config), words);
    words_set(&config, BIT(LAYERNORM));
    cr_expect_eq(config.autocast.float32.count, 0, "what is fp32 in any case is no word");
}

/* The words that the config takes, and no others. */
Test(words, choices_are_those_of_the_config) {
    int choices = 0;
    for (int i = 0; i < AUTOCAST_SITE_COUNT; i++) {
        char text[200];
        struct error error;
        struct config config;
        enum autocast_site operation = (enum autocast_site)i;
        snprintf(text, sizeof text, "autocast.float32=%s", autocast_site_name(operation));
        char *overrides[] = {text};
        config_defaults(&config);
        strcpy(config.name, "x");
        bool taken = config_override(&config, "x.json", overrides, 1, &error) == 0;
        cr_expect_eq(taken, autocast_site_is_choice(operation), "%s", text);
        choices += taken;
    }
    cr_expect_eq(choices, 7);
}

Test(words, are_listed_as_in_json) {
    char text[WORDS_TEXT_MAX];
    words_text(text, BIT(QKV) | BIT(MLP_FC));
    cr_expect_str_eq(text, "\"qkv\", \"mlp_fc\"");
    words_text(text, 0);
    cr_expect_str_eq(text, "");
    words_text(text, ~0u);
    cr_expect_lt(strlen(text), WORDS_TEXT_MAX - 1, "all of them fit");
}
