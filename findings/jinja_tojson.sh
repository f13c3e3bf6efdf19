#!/usr/bin/env bash
# Plain Jinja renders tools of a chat template into other text than transformers.
#
# Guess: a chat template is Jinja, so any Jinja renders it to the same text.
# Seen with jinja2 3.1.6 and transformers 5.24.0: the filter tojson of Jinja sorts keys and writes
#   <, >, & and ' as \u escapes, as for HTML. transformers replaces the filter: members keep their
#   order, and characters stay. Blocks also differ, because transformers sets trim_blocks.
# Why a trainer cares: tools are rendered by tojson in nearly all templates. A trainer that
#   renders with plain Jinja trains on prompts that no client ever sends.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q transformers==5.24.0 jinja2==3.1.6 tokenizers==0.23.3
TRANSFORMERS_VERBOSITY=error "$folder/venv/bin/python" - <<'PYTHON'
import jinja2
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

TEMPLATE = "{% if tools %}\n{{ tools[0] | tojson }}{% endif %}"
TOOL = {"name": "less", "description": "true if a < b, isn't it"}
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
plain = jinja2.Environment().from_string(TEMPLATE).render(tools=[TOOL])
ours = tokenizer.apply_chat_template([{"role": "user", "content": "?"}], tools=[TOOL],
                                     chat_template=TEMPLATE, tokenize=False)
print("jinja2:      ", repr(plain))
print("transformers:", repr(ours))
assert plain == "\n" + r'{"description": "true if a \u003c b, isn\u0027t it", "name": "less"}'
assert ours == '{"name": "less", "description": "true if a < b, isn\'t it"}'
PYTHON
echo "as found: two texts of one template"
