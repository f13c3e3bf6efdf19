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
    {"story", "{opening}{scene}{trouble}\n\n"},

    /* Opening: the child, the place, the thing. */
    {"opening",
     "4:{when}, {hero:child} {moved} to the {place:place} with {a_look} {color:color} "
     "{thing:thing}. |"
     "3:{when}, {hero:child} found {a_look} {color:color} {thing:thing} {spot} in the "
     "{place:place}. |"
     "{when}, {hero:child} got {a_look} {color:color} {thing:thing} from {hero.his} {nature} "
     "{kin}. {^hero.he} took it to the {place:place}. |"
     "{when}, {hero:child} made {a_look} {color:color} {thing:thing} out of {stuff}, {stuff} "
     "and {stuff}. {^hero.he} {moved} {adverb} to the {place:place}. |"
     "2:{hero:child}, a {nature} {hero.girl}, lived {spot} near the {place:place} with {a_look} "
     "{color:color} {thing:thing}. "},
    {"when", "8:One {weather} {daytime}|"
             "3:On {a_weather} {daytime} in {month}|"
             "2:Once upon a time|"
             "{^number} days before {feast}|"
             "1:Not long ago|"
             "The day after {feast}|"
             "Last {month}"},
    {"scene",
     "4:{^hero.he} was {nature}, {mood} and {mood}. |"
     "3:{^hero.he} carried {dish} {food}, {a_look} {junk} and {number} {color} {coin}. |"
     "On the way {hero.he} met {a_size} {animal}, the {nature} {worker} and {number} {color} "
     "{plants}. |"
     "It smelled of {food}, {stuff} and {color} {plants}. |"
     "8:\"{song}\" sang {hero.name} {adverb}. |"
     "2:{^hero.he} liked {hobby}, {hobby} and {hobby}. |"
     "1:{^hero.his} {kin} wanted {hero.him} home before {hour}. "},

    /* The trouble; each kind leads to its own kind of help. */
    {"trouble", "5:{lost}|4:{stuck}|{broken}|3:{hungry}|2:{stray}"},
    {"lost", "2:But at {hour} the {thing.name} was gone! {search}|"
             "3:While {hero.he} was {pastime}, the {thing.name} rolled away {adverb}. {search}|"
             "2:Then a {nature} {worker} took the {thing.name} by mistake. {search}"},
    {"search", "4:{hero.name} looked {spot} and {spot}, but found only {a_look} {junk}. {lost_pal}|"
               "3:{hero.name} searched {spot}, {spot} and even {spot}. {lost_pal}|"
               "2:{^hero.he} asked the {nature} {worker} and the {worker}, in vain. {lost_pal}"},
    {"lost_pal",
     "{meeting}{question}\"I lost my {color.name} {thing.name},\" said {hero.name}. {found}"},
    {"found",
     "4:{palname.name} {sensed} {adverb} and found it {spot}, {state} but safe. {thanks}|"
     "3:\"I saw it {spot}!\" {pal.says} {palname.name}. They {moved} there and saw {number} "
     "{color} {plants}, {a_look} {junk} and the {thing.name}. {thanks}|"
     "2:\"Let us look together,\" {pal.says} {palname.name}. At {hour} they found it {spot}, "
     "next to {a_look} {junk}. {thanks}"},
    {"stuck", "3:Then a {nature} wind blew the {thing.name} up into the {tree}. {reach}|"
              "2:Then a {nature} {thief} dropped the {thing.name} on the {roof}. {reach}|"
              "Then, {adverb}, the {thing.name} fell into the {water}. {reach}"},
    {"reach", "3:{hero.name} tried with {a_look} {tool} and {a_look} {tool}, in vain. {stuck_pal}|"
              "2:{^hero.he} jumped {number} times {adverb} and felt {sorrow}. {stuck_pal}|"
              "\"Oh no, my {thing.name}!\" cried {hero.name} {adverb}. {stuck_pal}"},
    {"stuck_pal",
     "{meeting}{question}\"I cannot reach my {color.name} {thing.name},\" said {hero.name}. "
     "{fetched}"},
    {"fetched",
     "3:{palname.name} called {number} {nature} friends, and {adverb} they freed it {spell}. "
     "{thanks}|"
     "{palname.name} borrowed {a_look} {tool} from the {nature} {worker} and brought it back, "
     "{state} but whole. {thanks}|"
     "4:\"Say {one:syllable}{two:syllable}{three:syllable} {number} times,\" {pal.says} "
     "{palname.name}. \"{^one.name}{two.name}{three.name}!\" cried {hero.name}, and the "
     "{thing.name} lay {spot}. {thanks}"},
    {"spell", "2:by the {junk}|with {a_look} {tool}|1:while singing \"{song}\""},
    {"broken",
     "3:But {hero.he} tripped over {a_look} {junk}, and the {thing.name} broke into "
     "{count:number} {shape} pieces. {broken_pal}|"
     "2:But {hero.his} {nature} {kin} sat on the {thing.name}, and it broke into {count:number} "
     "parts. {broken_pal}|"
     "But while {hero.he} was {pastime}, the {thing.name} fell into {count:number} bits. "
     "{broken_pal}"},
    {"broken_pal",
     "2:{hero.name} felt {sorrow}. {meeting}{question}\"My {color.name} {thing.name} is "
     "broken,\" said {hero.name}. {mended}|"
     "1:{^hero.he} cried {adverb}. {meeting}{question}\"Look at my {thing.name},\" said "
     "{hero.name}. {mended}"},
    {"mended",
     "3:{palname.name} brought {stuff}, {stuff} and {a_look} {tool}, and {adverb} they mended "
     "all {count.name}. {thanks}|"
     "2:\"Take {stuff}, {stuff} and {stuff},\" {pal.says} {palname.name}. It took {count.name} "
     "hours and {dish} {food}. {thanks}|"
     "The {pal.name} knew a {nature} {worker} who could fix it {adverb} for {count.name} "
     "{color} {coin}. {thanks}"},
    {"hungry",
     "2:{meeting}\"I am {sorrow} and {sorrow},\" {pal.says} {palname.name}. \"I ate nothing but "
     "{food} and {food} since {month}.\" {share}|"
     "1:{meeting}\"Do you have {food}, {food} or {food}?\" {pal.says} {palname.name} {adverb}. "
     "{share}"},
    {"share",
     "2:{hero.name} {moved} home for {dish} {treat:food}. {palname.name} ate it {adverb} and "
     "was {joy}. {gift}|"
     "1:{hero.name} had {dish} {treat:food} in the {thing.name}, {state} but good, and gave it "
     "to {palname.him}. {gift}"},
    {"gift",
     "2:{^palname.he} showed {hero.him} {a_look} {junk} {spot} and {a_look} {tool} {spot}. "
     "{ending}|"
     "\"For the {treat.name} I give you a secret word,\" {pal.says} {palname.name}. \"It is "
     "{one:syllable}{two:syllable}{three:syllable}.\" \"{^one.name}{two.name}{three.name},\" "
     "said {hero.name} {adverb}. {ending}|"
     "{^palname.he} taught {hero.him} {hobby}, {hobby} and a song: \"{song}\" {ending}"},
    {"stray",
     "2:{^hero.he} {moved} {spot}, {spot} and {spot}, and then {hero.he} was lost. "
     "{meeting}{question}{way}|"
     "1:It grew dark {adverb}, and every {tree} looked {sorrow}. {meeting}{question}{way}"},
    {"way",
     "2:\"Where is my {kin}?\" said {hero.name}. \"Go left {spot}, then past the {roof},\" "
     "{pal.says} {palname.name}. {thanks}|"
     "1:\"I am lost,\" said {hero.name}. {palname.name} tied the {thing.name} to {palname.his} "
     "tail and {moved} ahead, past the {roof} and the {tree}. {thanks}"},

    /* The helper. */
    {"meeting",
     "4:{^a_size} {nature} {pal:animal} named {palname:petname} {came} {spot}. |"
     "3:{^a_size} {pal:animal} in {a_look} {color} {clothing} {came} {spot}. Its name was "
     "{palname:petname}. |"
     "2:{^spot} sat {a_size} {pal:animal}. \"I am {palname:petname},\" {pal.says} the {nature} "
     "{pal.name}. |"
     "4:\"{song}\" sang {a_size} {pal:animal} {spot}. It was {palname:petname}. "},
    {"question", "3:\"Why so {sorrow}?\" {pal.says} {palname.name}. |"
                 "2:\"Good {daytime}, {nature} {hero.girl}!\" {pal.says} {palname.name}. |"
                 "{palname.name} {pal.says} {adverb}. |"
                 "The {pal.name} stopped {pastime}. "},

    /* The ending. */
    {"thanks",
     "3:{hero.name} was {joy} and gave {palname.him} {dish} {treat:food}. {ending}|"
     "2:\"Thank you, {palname.name}!\" said {hero.name}. They shared {dish} {treat:food}, "
     "{food} and {food} in the {place.name}. {ending}|"
     "{hero.name} danced {adverb}. {^hero.his} {nature} {kin} cooked {treat:food} with {food} "
     "and {food}. {ending}"},
    {"ending", "3:In {month} {hero.name} and {palname.name} met again {spot}.|"
               "{^hero.he} let {palname.him} play with the {color.name} {thing.name} until {hour}.|"
               "At night {hero.name} dreamed of {treat.name}, {number} {color} {coin} and {hobby}.|"
               "2:And the {place.name} was never {sorrow} or {sorrow} again.|"
               "5:They sang: \"{song}\"|"
               "1:\"A {nature} {pal.name} is worth {number} {color} {coin},\" said {hero.name}.|"
               "Now {hero.he} is {joy}, and the {pal.name} is {joy}."},

    /* Phrases. */
    {"a_weather", "3:a {weather}|2:an icy|an unusually {weather}"},
    {"feast", "3:the harvest fair|the first snow|2:the school play|the big race|the full moon|"
              "the kite festival|the spring parade|{month} market"},
    {"hour",
     "3:noon|bedtime|supper|sunset|2:teatime|midnight|dawn|3:{clock} o'clock|2:half past {clock}"},
    {"mood", "3:always hungry|never late|full of ideas|fond of {hobby}|2:a little forgetful|"
             "good at {hobby}|afraid of the {water}|as quick as {a_size} {animal}|very tidy|"
             "bad at {hobby}|tall for {number} years|often in trouble"},
    {"shape", "4:small|sharp|3:round|flat|crooked|2:long|thin|dull|equal|1:curly|{color}|wobbly"},
    {"state",
     "3:wet|dirty|cold|muddy|scratched|2:dented|a bit {color}|full of {food}|dusty|upside down|"
     "covered in {stuff}|frozen"},
    {"joy", "4:happy|3:glad|proud|full of joy|cheerful|2:delighted|thankful|relieved|"
            "as merry as {a_size} {animal}|content|overjoyed|amazed"},
    {"moved",
     "4:walked|ran|3:skipped|hurried|hopped|marched|wandered|raced|2:tiptoed|strolled|danced|"
     "crept|trotted|galloped|paddled|rode {a_size} pony|limped"},
    {"came",
     "4:sat|3:jumped up|danced|appeared|was hiding|2:slept|was waiting|was {pastime}|landed|"
     "1:stood {adverb}|yawned|coughed {number} times"},
    {"sensed", "4:looked around|3:sniffed the air|listened|dug {number} holes|2:thought|searched|"
               "asked {a_size} {animal}|tiptoed about|scratched the ground"},
    {"pastime", "3:sleeping|eating {food}|singing|playing|picking {food}|2:dreaming|"
                "talking to the {worker}|washing {a_look} {clothing}|fishing|sneezing|"
                "tying {a_look} {tool} to the {tree}|juggling {food}"},
    {"hobby", "3:baking {food}|counting {coin}|drawing {plants}|singing {adverb}|telling jokes|"
              "collecting {coin}|2:climbing|swimming|reading|feeding the {animal}|sewing|"
              "playing chess with {hobbyist}|knitting {a_look} {clothing}|whistling|"
              "building towers of {stuff}|riddles|growing {food}|juggling"},
    {"adverb",
     "4:slowly|quickly|happily|3:bravely|carefully|quietly|gently|loudly|softly|proudly|"
     "politely|eagerly|cheerfully|2:kindly|calmly|boldly|sleepily|nervously|shyly|merrily|"
     "warmly|wisely|patiently|playfully|grumpily|curiously|clumsily|gracefully|hopefully|"
     "solemnly|twice|for {number} minutes"},
    {"hobbyist", "3:the {worker}|2:a {nature} {kin}|{a_size} {animal}"},
    {"spot",
     "4:under the {spot_thing}|behind the {spot_thing}|3:beside the {spot_thing}|"
     "near the {spot_thing}|between the {tree} and the {spot_thing}|2:inside the {spot_thing}|"
     "on top of the {spot_thing}|by the {water}|at the foot of the {tree}|"
     "far from the {spot_thing}"},
    {"spot_thing", "2:{spot_noun}|3:{color} {spot_noun}|{worker}'s {spot_noun}|"
                   "2:{worker}'s {color} {spot_noun}|3:{nature} {worker}'s {spot_noun}"},
    {"spot_noun",
     "4:bench|fence|well|3:haystack|bridge|hedge|wall|gate|barrel|shed|tower|fountain|table|"
     "door|2:cupboard|bed|sofa|curtain|piano|rug|ladder|stairs|stove|chimney|mailbox|"
     "pile of {stuff}|sack of {food}|armchair|beehive|pumpkin|scarecrow|wheelbarrow"},
    {"roof", "3:church roof|{worker}'s house|barn roof|2:school tower|town hall|{color} chimney|"
             "old mill|highest wall"},
    {"stuff", "4:wood|glue|3:string|paper|wool|clay|tape|2:leather|nails|straw|wire|moss|beeswax|"
              "cardboard|silk|buttons|feathers|old newspapers|{color} paint|birch bark"},
    {"clothing", "4:hat|coat|3:scarf|dress|vest|2:cape|bow tie|sweater|apron|raincoat|bonnet|shawl|"
                 "waistcoat|pair of {color} boots"},
    {"dish",
     "3:a bowl of|some|a plate of|2:a bag of|a basket of|a lot of|{number} spoons of|a box of|"
     "the last of the|a mountain of"},
    {"song", "3:{^sound}{sound}{sound}{sound}hey!|{^sound}{sound}{sound}{sound}{sound}hum!|"
             "2:{^sound}{sound}{sound}{sound}{sound}{sound}ding!|"
             "{^number} {coin}, {number} {plants}, {food} and {color} {tool}s!"},
    {"sound", "3:{syllable}{syllable}, |{syllable}{syllable} |2:{syllable}-{syllable}! |"
              "{syllable}{syllable}{syllable}, |{syllable}{syllable}{syllable} "},

    /* Words. Weights fall along each list, so that words are common or rare as in real text. */
    {"child: name he him his girl",
     "6:Mia,she,her,her,girl|Tom,he,him,his,boy|5:Lily,she,her,her,girl|Ben,he,him,his,boy|"
     "Rosa,she,her,her,girl|Leo,he,him,his,boy|4:Nora,she,her,her,girl|Max,he,him,his,boy|"
     "Clara,she,her,her,girl|Hugo,he,him,his,boy|Hazel,she,her,her,girl|Oscar,he,him,his,boy|"
     "3:Ivy,she,her,her,girl|Finn,he,him,his,boy|Greta,she,her,her,girl|Jack,he,him,his,boy|"
     "Zoe,she,her,her,girl|Theo,he,him,his,boy|Ruth,she,her,her,girl|Otis,he,him,his,boy|"
     "Dora,she,her,her,girl|Walter,he,him,his,boy|2:Elsie,she,her,her,girl|Ned,he,him,his,boy|"
     "Fern,she,her,her,girl|Gus,he,him,his,boy|Wanda,she,her,her,girl|Victor,he,him,his,boy|"
     "Pearl,she,her,her,girl|Yuri,he,him,his,boy|Kira,she,her,her,girl|Paul,he,him,his,boy|"
     "Agnes,she,her,her,girl|Emil,he,him,his,boy|Sabine,she,her,her,girl|Quentin,he,him,his,boy"},
    {"animal: name says",
     "5:duck,quacked|dog,barked|frog,croaked|cat,purred|4:owl,hooted|mouse,squeaked|pig,oinked|"
     "horse,neighed|crow,cawed|3:bee,buzzed|goose,honked|sheep,bleated|bear,growled|dove,cooed|"
     "rooster,crowed|cow,mooed|lion,roared|wolf,howled|2:snake,hissed|sparrow,chirped|"
     "hen,clucked|donkey,brayed|turkey,gobbled|elephant,trumpeted|monkey,chattered"},
    {"petname: name he him his",
     "4:Pip,he,him,his|Bramble,she,her,her|Biscuit,he,him,his|Clover,she,her,her|"
     "Button,he,him,his|Ginger,she,her,her|3:Rusty,he,him,his|Pepper,she,her,her|"
     "Dusty,he,him,his|Nutmeg,she,her,her|Patch,he,him,his|Tansy,she,her,her|Jasper,he,him,his|"
     "Sorrel,she,her,her|Waffle,he,him,his|Olive,she,her,her|2:Quill,he,him,his|"
     "Mossy,she,her,her|Smudge,he,him,his|Bobbin,she,her,her|Ziggy,he,him,his|Plum,she,her,her|"
     "Cricket,he,him,his|Fidget,she,her,her|Noodle,he,him,his|Velvet,she,her,her|"
     "Rumble,he,him,his|Acorn,she,her,her|Thistle,he,him,his|Dimple,she,her,her|"
     "Hobnob,he,him,his|Inky,she,her,her"},
    {"thing: name",
     "5:kite|4:drum|boat|lantern|wagon|teapot|blanket|3:puppet|bell|bucket|basket|umbrella|"
     "flute|rocket|mirror|sled|pillow|trumpet|clock|box|crown|2:robot|globe|suitcase|vase|tent|"
     "whistle|compass|jar|statue|scooter|violin|model train|birdhouse|fan|helmet|guitar|parasol|"
     "dollhouse|easel"},
    {"color: name",
     "5:red|blue|4:green|yellow|purple|3:orange|silver|golden|pink|brown|white|black|2:striped|"
     "gray|spotted|crimson|turquoise|violet|checkered|copper"},
    {"place: name",
     "5:garden|forest|4:park|village|barn|kitchen|meadow|market|3:valley|attic|library|orchard|"
     "castle|cellar|harbor|bakery|museum|playground|2:stable|jungle|swamp|mountains|toy shop|"
     "town square|desert|greenhouse|lighthouse|vineyard|windmill|quarry|circus|fire station"},
    {"number: name",
     "5:three|4:two|four|3:five|seven|six|2:ten|nine|eight|twelve|eleven|twenty|thirty|forty"},
    {"food: name",
     "4:bread|soup|honey|jam|cheese|3:porridge|cake|noodles|berries|pudding|popcorn|cookies|"
     "carrots|apple pie|rice|2:pancakes|walnuts|plums|cherries|butter|turnips|beans|raisins|"
     "dumplings|ice cream|mushrooms|oatmeal|pickles|lemon tart|melon|toast|gingerbread"},
    {"weather",
     "4:sunny|rainy|windy|3:cold|warm|foggy|snowy|bright|misty|2:chilly|quiet|stormy|gloomy|"
     "frosty|breezy|lazy"},
    {"daytime",
     "4:morning|afternoon|3:evening|2:day|Monday|Sunday|Saturday|Tuesday|Friday|Wednesday|"
     "Thursday|night"},
    {"month",
     "4:summer|spring|3:winter|autumn|2:May|June|April|October|December|January|February|March|"
     "July|August|September|November"},
    {"clock", "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"},
    {"kin", "4:mother|father|grandmother|3:grandfather|sister|brother|aunt|uncle|2:cousin|teacher|"
            "godmother|neighbor"},
    {"worker",
     "4:baker|farmer|3:teacher|doctor|miller|king|sailor|shepherd|cook|2:painter|carpenter|"
     "postman|fisherman|queen|tailor|gardener|blacksmith|wizard|beekeeper|juggler|pilot|mayor|"
     "knight|clown"},
    {"thief", "3:magpie|squirrel|raven|seagull|2:raccoon|parrot|stork|jackdaw|hawk"},
    {"nature",
     "4:brave|kind|curious|clever|cheerful|3:gentle|sleepy|funny|quiet|lively|shy|wild|wise|"
     "merry|polite|2:patient|stubborn|noisy|proud|playful|strong|thoughtful|restless|serious|"
     "bold|dreamy|grumpy|honest|jolly|mighty|nimble|tender|rowdy|generous|mysterious|hasty"},
    {"a_size",
     "4:a little|a big|3:an old|a tiny|a young|a fat|a thin|a white|a brown|2:a fluffy|a gray|"
     "a spotted|a huge|a lonely|a friendly|an enormous|a one-eyed|a muddy|a shaggy|a limping|"
     "a wet|a round|a skinny|an elegant"},
    {"a_look",
     "4:a shiny|an old|3:a tiny|a new|a pretty|a wooden|a round|a funny|a dusty|a soft|a lovely|"
     "a long|2:a magic|a crooked|a heavy|a huge|a patched|a rusty|a smooth|a glass|a woolen|"
     "a strange|an ugly|a broad|a plain|a fancy|a hollow|a paper|a velvet|a pointed|a sticky|"
     "a folding|an expensive|a borrowed"},
    {"sorrow",
     "4:sad|3:hungry|lonely|worried|tired|unhappy|2:angry|gloomy|cold|upset|miserable|sorry|"
     "pale|hopeless|empty"},
    {"tree", "4:oak|3:apple tree|willow|pine|birch|2:chestnut|cherry tree|poplar|maple|elm|linden|"
             "fig tree"},
    {"water", "4:river|3:pond|lake|well|2:brook|sea|waterfall|ditch|canal|millpond"},
    {"junk",
     "4:stone|stick|3:feather|sock|acorn|button|spoon|shoe|leaf|2:bottle|ribbon|snail|key|map|"
     "rope|pine cone|candle|glove|pebble|turnip|hammer|cork|nest|thimble|postcard|seashell"},
    {"tool",
     "4:ladder|rope|3:stick|net|hammer|rake|2:broom|hook|pole|fishing rod|needle|shovel|crowbar|"
     "magnet"},
    {"coin", "3:coins|stars|shells|stones|2:pearls|clouds|beetles|stamps|diamonds|marbles|tickets"},
    {"plants",
     "4:daisies|tulips|3:roses|thistles|poppies|mushrooms|2:sunflowers|nettles|bluebells|lilies|"
     "ferns|violets|cabbages|melons|pansies|reeds"},
    {"syllable: name",
     "2:ba|be|bo|da|di|do|fa|fi|1:fo|ga|gu|2:ha|1:hu|2:ka|ki|la|li|lo|ma|mi|mo|na|no|pa|pi|po|"
     "ra|ri|ro|ta|ti|tu|1:va|vo|wa|wi|yo|za|zi|zu"},
};
