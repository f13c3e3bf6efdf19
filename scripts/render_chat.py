#!/usr/bin/env python3
"""Renders conversations with a model's own chat template, for ./prepare.

    scripts/render_chat.py DIR rows.jsonl > rendered.jsonl
    ./prepare --tokenizer DIR --out PREFIX rendered.jsonl

DIR holds the model's tokenizer and template. Rows are {"messages": [{"role", "content"}, ...]},
with "tools" if the template takes them, or ShareGPT's {"conversations": [{"from", "value"}, ...]};
- is the standard input, and a .json file may be one list of rows. A rendered row is {"segments":
[{"text", "train"}, ...]}: the text of apply_chat_template, of which the answers of the assistant
and the special tokens that end them are trained.

Of {"prompt", "completion"} with lists of messages, the answers in the completion are trained.
Pairs for preference tuning are {"prompt", "chosen", "rejected"} or {"chosen", "rejected"} with lists
of messages, labelled answers {"prompt", "completion", "label"}. Each list becomes one of segments.

Needs transformers: pip install transformers jinja2. ./prepare renders ChatML, Llama 3, Mistral 7B
v0.3 and Gemma itself. After an error the output ends in a line that is not a row, so that ./prepare
fails too.
"""
import argparse
import itertools
import json
import re
import sys

MARK = "Q7answerQ7"


class BadRow(Exception):
    """A row that cannot be rendered, with the reason."""


def shown(text):
    """The text as a terminal may have it: messages of a template may hold control characters."""
    return "".join(one if one.isprintable() or one == "\n" else "?" for one in text)


def fail(text):
    print(shown(f"render_chat.py: {text}"), flush=True)
    sys.exit(shown(f"render_chat.py: {text}"))


ROLES = {"human": "user", "gpt": "assistant"}


def messages_of(row, *names):
    """The conversation of a row, in ShareGPT's words or in those of the templates."""
    messages = None
    if isinstance(row, dict):
        messages = next((row[name] for name in names if name in row), None)
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        wanted = '" or "'.join(names)
        raise BadRow(f'there is no "{wanted}", a list of objects')
    return [
        {"role": ROLES.get(one["from"], one["from"]), "content": one["value"]}
        if "from" in one and "value" in one else one for one in messages]


def pair_of(row):
    """The prompt of a row and its answers by name, or None if the row is a conversation."""
    names = [name for name in ("chosen", "rejected") if name in row]
    is_chat = "messages" in row or "conversations" in row
    if "completion" in row and ("label" in row or not (names or is_chat)):
        return messages_of(row, "prompt"), {"completion": messages_of(row, "completion")}
    if not names or is_chat:
        return None
    chosen, rejected = messages_of(row, "chosen"), messages_of(row, "rejected")
    if isinstance(row.get("prompt"), list):
        return messages_of(row, "prompt"), {"chosen": chosen, "rejected": rejected}
    same, most = 0, min(len(chosen), len(rejected)) - 1  # each keeps an answer
    while same < most and chosen[same] == rejected[same]:
        same += 1
    return chosen[:same], {"chosen": chosen[same:], "rejected": rejected[same:]}


def rows_of(file):
    """The rows of a file with their places: lines, or the items of one list."""
    number, first = 1, file.readline()
    while first and not first.strip():
        number, first = number + 1, file.readline()
    if first.lstrip().startswith("["):
        for i, row in enumerate(json.loads(first + file.read()), 1):
            yield f"row {i}", row
        return
    for line in itertools.chain([first], file):
        if line.strip():
            try:
                yield f"line {number}", json.loads(line)
            except ValueError as error:
                raise BadRow(f"line {number}: {error}") from error
        number += 1


class Renderer:
    """The template of a tokenizer."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        names = sorted(tokenizer.all_special_tokens, key=len, reverse=True)
        names += [str(token) for token in tokenizer.get_added_vocab() if str(token) not in names]
        self.special = re.compile("|".join(re.escape(name) for name in names) or "(?!)")

    def render(self, messages, tools, prompt=False):
        return self.tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=prompt)

    def around_mark(self, messages, tools, i, full):
        """The bounds of the content of message i in the full text, or None. They are found by
        rendering the conversation with another content: the text around it stays the same."""
        marked = self.render(
            messages[:i] + [{**messages[i], "content": MARK}] + messages[i + 1:], tools)
        before, found, after = marked.partition(MARK)
        is_same = found and MARK not in after and full.startswith(before) and full.endswith(after)
        begin, end = len(before), len(full) - len(after)
        return (begin, end) if is_same and begin < end else None

    def prefix(self, messages, tools, prompt, full):
        """The length of a rendered beginning of the conversation, or None if the full text does
        not begin with it."""
        try:
            text = self.render(messages, tools, prompt)
        except Exception:  # some templates refuse conversations that end here
            return None
        return len(text) if full.startswith(text) else None

    def span(self, messages, tools, i, full):
        """The bounds of the answer in message i, with the token that ends it."""
        content = messages[i].get("content")
        prompt = self.prefix(messages[:i], tools, True, full) if i else None
        bounds = None
        if isinstance(content, str) and content.strip():
            bounds = self.around_mark(messages, tools, i, full)
        if bounds:
            begin, end = bounds
            stop = re.compile(r"\s*(?:" + self.special.pattern + ")").match(full, end)
            return (begin if prompt is None else min(begin, prompt)), stop.end() if stop else end
        whole = self.prefix(messages[:i + 1], tools, False, full)
        if prompt is None or whole is None or whole <= prompt:
            raise BadRow(f"message {i + 1}: the answer cannot be found in the text of the template")
        stops = [match.end() for match in self.special.finditer(full, prompt, whole)]
        return prompt, stops[-1] if stops else whole

    def row(self, row):
        """The rendered row."""
        pair = pair_of(row) if isinstance(row, dict) else None
        if not pair:
            messages = messages_of(row, "messages", "conversations")
            return {"segments": self.segments(messages, row.get("tools"))}
        prompt, answers = pair
        if "completion" in answers and "label" not in row:
            messages = prompt + answers["completion"]
            return {"segments": self.segments(messages, row.get("tools"), len(prompt))}
        found, begin = {}, None
        for name, answer in answers.items():
            first, *rest = self.segments(prompt + answer, row.get("tools"), len(prompt))
            if first["train"] or begin not in (None, first):
                raise BadRow("the template does not begin both answers with the same prompt")
            found[name], begin = rest, first
        label = {"label": row["label"]} if "completion" in answers else {}
        return {"prompt": [begin], **found, **label}

    def segments(self, messages, tools, first=0):
        """The text of a conversation, of which answers from message `first` on are trained."""
        answers = [i for i, one in enumerate(messages)
                   if one.get("role") == "assistant" and i >= first]
        if not answers:
            raise BadRow("there is no message of the assistant to train on")
        try:
            full = self.render(messages, tools)
            spans = [self.span(messages, tools, i, full) for i in answers]
        except BadRow:
            raise
        except Exception as error:  # templates raise errors of many kinds
            raise BadRow(f"the template refuses it: {error}") from error
        found, at = [], 0
        for i, (begin, end) in zip(answers, spans):
            if begin < at:
                raise BadRow(f"message {i + 1}: its text overlaps the answer before it")
            found += [(full[at:begin], False), (full[begin:end], True)]
            at = end
        found.append((full[at:], False))
        return [{"text": text, "train": train} for text, train in found if text]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("rows", nargs="+", metavar="ROWS", help="JSON Lines, or -")
    arguments = parser.parse_args()
    try:
        from transformers import AutoTokenizer
    except ImportError:
        fail("transformers is missing: pip install transformers jinja2")
    # None would have transformers ask on the standard input, whose rows could answer.
    renderer = Renderer(
        AutoTokenizer.from_pretrained(arguments.directory, trust_remote_code=False))
    for name in arguments.rows:
        try:
            file = sys.stdin if name == "-" else open(name, encoding="utf-8-sig")
            for place, row in rows_of(file):
                try:
                    rendered = renderer.row(row)
                except BadRow as error:
                    raise BadRow(f"{place}: {error}") from error
                print(json.dumps(rendered, ensure_ascii=True))
        except BadRow as error:
            fail(f"{name}, {error}")
        except (OSError, ValueError) as error:
            fail(f"{name}: {error}")


if __name__ == "__main__":
    main()
