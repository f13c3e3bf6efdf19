/* The grammar of the built-in stories, in the notation of data/corpus/grammar.h. Only
 * data/corpus/tales.c includes it.
 *
 * A story is one paragraph: a child and a treasured thing, a trouble, an animal that helps, and an
 * ending. Everything named with {name:rule} comes back later in the same story, so a model that has
 * forgotten the beginning cannot predict it.
 *
 * No alternative of a rule is a prefix of another one. So a story is decoded from left to right in
 * exactly one way, and its information content is the sum of its choices. This is why no word is a
 * prefix of another word of its list, and why an optional sentence is written as two alternatives
 * of the rule that continues. test/data/corpus/test_tales.c proves it for each rule. */
#pragma once

#include "data/corpus/grammar.h"

static const struct grammar_rule TALES[] = {
    {"story", NULL, {"{opening}{scene}{trouble}\n\n"}},

    /* Opening: the child, the place, the thing. */
    {"opening",
     NULL,
     {
         "4:{when}, {hero:child} {moved} to the {place:place} with {a_look} {color:color} "
         "{thing:thing}. ",
         "3:{when}, {hero:child} found {a_look} {color:color} {thing:thing} {spot} in the "
         "{place:place}. ",
         "3:{when}, {hero:child} got {a_look} {color:color} {thing:thing} from {hero.his} {nature} "
         "{kin}. {^hero.he} took it to the {place:place}. ",
         "3:{when}, {hero:child} made {a_look} {color:color} {thing:thing} out of {stuff}, {stuff} "
         "and {stuff}. {^hero.he} {moved} {adverb} to the {place:place}. ",
         "2:{hero:child}, a {nature} {hero.girl}, lived {spot} near the {place:place} with "
         "{a_look} {color:color} {thing:thing}. ",
     }},
    {"when",
     NULL,
     {
         "8:One {weather} {daytime}",
         "3:On {a_weather} {daytime} in {month}",
         "2:Once upon a time",
         "2:{^number} days before {feast}",
         "1:Not long ago",
         "1:The day after {feast}",
         "1:Last {month}",
     }},
    {"scene",
     NULL,
     {
         "4:{^hero.he} was {nature}, {mood} and {mood}. ",
         "3:{^hero.he} carried {dish} {food}, {a_look} {junk} and {number} {color} {coin}. ",
         "3:On the way {hero.he} met {a_size} {animal}, the {nature} {worker} and {number} {color} "
         "{plants}. ",
         "3:It smelled of {food}, {stuff} and {color} {plants}. ",
         "8:\"{song}\" sang {hero.name} {adverb}. ",
         "2:{^hero.he} liked {hobby}, {hobby} and {hobby}. ",
         "1:{^hero.his} {kin} wanted {hero.him} home before {hour}. ",
     }},

    /* The trouble; each kind leads to its own kind of help. */
    {"trouble", NULL, {"5:{lost}", "4:{stuck}", "4:{broken}", "3:{hungry}", "2:{stray}"}},
    {"lost",
     NULL,
     {
         "2:But at {hour} the {thing.name} was gone! {search}",
         "3:While {hero.he} was {pastime}, the {thing.name} rolled away {adverb}. {search}",
         "2:Then a {nature} {worker} took the {thing.name} by mistake. {search}",
     }},
    {"search",
     NULL,
     {
         "4:{hero.name} looked {spot} and {spot}, but found only {a_look} {junk}. {lost_pal}",
         "3:{hero.name} searched {spot}, {spot} and even {spot}. {lost_pal}",
         "2:{^hero.he} asked the {nature} {worker} and the {worker}, in vain. {lost_pal}",
     }},
    {"lost_pal",
     NULL,
     {"{meeting}{question}\"I lost my {color.name} {thing.name},\" said {hero.name}. {found}"}},
    {"found",
     NULL,
     {
         "4:{palname.name} {sensed} {adverb} and found it {spot}, {state} but safe. {thanks}",
         "3:\"I saw it {spot}!\" {pal.says} {palname.name}. They {moved} there and saw {number} "
         "{color} {plants}, {a_look} {junk} and the {thing.name}. {thanks}",
         "2:\"Let us look together,\" {pal.says} {palname.name}. At {hour} they found it {spot}, "
         "next to {a_look} {junk}. {thanks}",
     }},
    {"stuck",
     NULL,
     {
         "3:Then a {nature} wind blew the {thing.name} up into the {tree}. {reach}",
         "2:Then a {nature} {thief} dropped the {thing.name} on the {roof}. {reach}",
         "2:Then, {adverb}, the {thing.name} fell into the {water}. {reach}",
     }},
    {"reach",
     NULL,
     {
         "3:{hero.name} tried with {a_look} {tool} and {a_look} {tool}, in vain. {stuck_pal}",
         "2:{^hero.he} jumped {number} times {adverb} and felt {sorrow}. {stuck_pal}",
         "2:\"Oh no, my {thing.name}!\" cried {hero.name} {adverb}. {stuck_pal}",
     }},
    {"stuck_pal",
     NULL,
     {"{meeting}{question}\"I cannot reach my {color.name} {thing.name},\" said {hero.name}. "
      "{fetched}"}},
    {"fetched",
     NULL,
     {
         "3:{palname.name} called {number} {nature} friends, and {adverb} they freed it {spell}. "
         "{thanks}",
         "3:{palname.name} borrowed {a_look} {tool} from the {nature} {worker} and brought it "
         "back, {state} but whole. {thanks}",
         "4:\"Say {one:syllable}{two:syllable}{three:syllable} {number} times,\" {pal.says} "
         "{palname.name}. \"{^one.name}{two.name}{three.name}!\" cried {hero.name}, and the "
         "{thing.name} lay {spot}. {thanks}",
     }},
    {"spell", NULL, {"2:by the {junk}", "2:with {a_look} {tool}", "1:while singing \"{song}\""}},
    {"broken",
     NULL,
     {
         "3:But {hero.he} tripped over {a_look} {junk}, and the {thing.name} broke into "
         "{count:number} {shape} pieces. {broken_pal}",
         "2:But {hero.his} {nature} {kin} sat on the {thing.name}, and it broke into "
         "{count:number} parts. {broken_pal}",
         "2:But while {hero.he} was {pastime}, the {thing.name} fell into {count:number} bits. "
         "{broken_pal}",
     }},
    {"broken_pal",
     NULL,
     {
         "2:{hero.name} felt {sorrow}. {meeting}{question}\"My {color.name} {thing.name} is "
         "broken,\" said {hero.name}. {mended}",
         "1:{^hero.he} cried {adverb}. {meeting}{question}\"Look at my {thing.name},\" said "
         "{hero.name}. {mended}",
     }},
    {"mended",
     NULL,
     {
         "3:{palname.name} brought {stuff}, {stuff} and {a_look} {tool}, and {adverb} they mended "
         "all {count.name}. {thanks}",
         "2:\"Take {stuff}, {stuff} and {stuff},\" {pal.says} {palname.name}. It took {count.name} "
         "hours and {dish} {food}. {thanks}",
         "2:The {pal.name} knew a {nature} {worker} who could fix it {adverb} for {count.name} "
         "{color} {coin}. {thanks}",
     }},
    {"hungry",
     NULL,
     {
         "2:{meeting}\"I am {sorrow} and {sorrow},\" {pal.says} {palname.name}. \"I ate nothing "
         "but {food} and {food} since {month}.\" {share}",
         "1:{meeting}\"Do you have {food}, {food} or {food}?\" {pal.says} {palname.name} {adverb}. "
         "{share}",
     }},
    {"share",
     NULL,
     {
         "2:{hero.name} {moved} home for {dish} {treat:food}. {palname.name} ate it {adverb} and "
         "was {joy}. {gift}",
         "1:{hero.name} had {dish} {treat:food} in the {thing.name}, {state} but good, and gave it "
         "to {palname.him}. {gift}",
     }},
    {"gift",
     NULL,
     {
         "2:{^palname.he} showed {hero.him} {a_look} {junk} {spot} and {a_look} {tool} {spot}. "
         "{ending}",
         "2:\"For the {treat.name} I give you a secret word,\" {pal.says} {palname.name}. \"It is "
         "{one:syllable}{two:syllable}{three:syllable}.\" \"{^one.name}{two.name}{three.name},\" "
         "said {hero.name} {adverb}. {ending}",
         "2:{^palname.he} taught {hero.him} {hobby}, {hobby} and a song: \"{song}\" {ending}",
     }},
    {"stray",
     NULL,
     {
         "2:{^hero.he} {moved} {spot}, {spot} and {spot}, and then {hero.he} was lost. "
         "{meeting}{question}{way}",
         "1:It grew dark {adverb}, and every {tree} looked {sorrow}. {meeting}{question}{way}",
     }},
    {"way",
     NULL,
     {
         "2:\"Where is my {kin}?\" said {hero.name}. \"Go left {spot}, then past the {roof},\" "
         "{pal.says} {palname.name}. {thanks}",
         "1:\"I am lost,\" said {hero.name}. {palname.name} tied the {thing.name} to {palname.his} "
         "tail and {moved} ahead, past the {roof} and the {tree}. {thanks}",
     }},

    /* The helper. */
    {"meeting",
     NULL,
     {
         "4:{^a_size} {nature} {pal:animal} named {palname:petname} {came} {spot}. ",
         "3:{^a_size} {pal:animal} in {a_look} {color} {clothing} {came} {spot}. Its name was "
         "{palname:petname}. ",
         "2:{^spot} sat {a_size} {pal:animal}. \"I am {palname:petname},\" {pal.says} the {nature} "
         "{pal.name}. ",
         "4:\"{song}\" sang {a_size} {pal:animal} {spot}. It was {palname:petname}. ",
     }},
    {"question",
     NULL,
     {
         "3:\"Why so {sorrow}?\" {pal.says} {palname.name}. ",
         "2:\"Good {daytime}, {nature} {hero.girl}!\" {pal.says} {palname.name}. ",
         "2:{palname.name} {pal.says} {adverb}. ",
         "2:The {pal.name} stopped {pastime}. ",
     }},

    /* The ending. */
    {"thanks",
     NULL,
     {
         "3:{hero.name} was {joy} and gave {palname.him} {dish} {treat:food}. {ending}",
         "2:\"Thank you, {palname.name}!\" said {hero.name}. They shared {dish} {treat:food}, "
         "{food} and {food} in the {place.name}. {ending}",
         "2:{hero.name} danced {adverb}. {^hero.his} {nature} {kin} cooked {treat:food} with "
         "{food} and {food}. {ending}",
     }},
    {"ending",
     NULL,
     {
         "3:In {month} {hero.name} and {palname.name} met again {spot}.",
         "3:{^hero.he} let {palname.him} play with the {color.name} {thing.name} until {hour}.",
         "3:At night {hero.name} dreamed of {treat.name}, {number} {color} {coin} and {hobby}.",
         "2:And the {place.name} was never {sorrow} or {sorrow} again.",
         "5:They sang: \"{song}\"",
         "1:\"A {nature} {pal.name} is worth {number} {color} {coin},\" said {hero.name}.",
         "1:Now {hero.he} is {joy}, and the {pal.name} is {joy}.",
     }},

#include "data/corpus/tales_words.inc"
};
