#!/usr/bin/env python3
"""Renders conversations with a model's own chat template, for ./prepare.

    scripts/render_chat.py DIR rows.jsonl > rendered.jsonl
    ./prepare --tokenizer DIR --out PREFIX rendered.jsonl

DIR holds the model's tokenizer and template. Rows are {"messages": [{"role", "content"}, ...]},
with "tools" if the template takes them, or ShareGPT's {"conversations": [{"from", "value"}, ...]};
- is the standard input, and a .json file may be one list of rows. A rendered row is {"segments":
[{"text", "train"}, ...]}: the text of apply_chat_template, of which the answers of the assistant
and the special tokens that end them are trained.

If the template marks answers with {% generation %}, these are trained instead. A message with a
"weight", "train", "training", "loss" or "loss_mask" of 0 or false is not. "system" beside the
messages becomes the first one; Alpaca's rows may have a "history". Calls of tools that a template
leaves out are errors.

Of {"prompt", "completion"} with lists of messages, the answers in the completion are trained.
Pairs for preference tuning are {"prompt", "chosen", "rejected"} or {"chosen", "rejected"} with lists
of messages, labelled answers {"prompt", "completion", "label"}. Each list becomes one of segments.

Needs transformers: pip install transformers jinja2. ./prepare renders ChatML, Llama 3, Mistral 7B
v0.3, Gemma, OLMo 2 and EXAONE 4 itself. After an error the output ends in a line that is not a row, so that ./prepare
fails too.
"""
import argparse
import collections
import itertools
import json
import re
import signal
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
CALLS = ("tool_calls", "function_call")
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
MARKS = ("weight", "train", "training", "loss", "loss_mask")


def messages_of(row, *names):
    """The conversation of a row, in ShareGPT's words or in those of the templates."""
    messages = None
    if isinstance(row, dict):
        messages = next((row[name] for name in names if name in row), None)
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        wanted = '" or "'.join(names)
        raise BadRow(f'there is no "{wanted}", a list of objects')
    return [
        {**{key: one[key] for key in one if key not in ("from", "value")},
         "role": ROLES.get(str(one["from"]), one["from"]), "content": one["value"]}
        if "from" in one and "value" in one else one for one in messages]


def conversation_of(row):
    """The conversation of a row, which may be an instruction of Alpaca's kind with a history."""
    if not isinstance(row, dict) or "instruction" not in row or "messages" in row:
        return with_system(row, messages_of(row, "messages", "conversations"))
    parts = [row[name] for name in ("instruction", "input") if row.get(name)]
    turns = [*(row.get("history") or []), ["\n".join(parts), row["output"]]]
    return with_system(row, [
        {"role": role, "content": content}
        for turn in turns for role, content in zip(("user", "assistant"), turn, strict=True)])


def with_system(row, messages):
    """The messages after the system prompt that a row has beside them."""
    if not row.get("system"):
        return messages
    if messages and messages[0].get("role") == "system":
        raise BadRow('there is a "system" and a message of the system; keep one of them')
    return [{"role": "system", "content": row["system"]}, *messages]


def is_trained(message, place):
    """True unless a mark of the message says that it is not trained."""
    marks = {name: message[name] for name in MARKS if message.get(name) is not None}
    for name, value in marks.items():
        if not isinstance(value, (bool, int, float)) or value not in (0, 1):
            raise BadRow(f'message {place}: "{name}" must be 0, 1, true or false')
    return all(marks.values())


def arguments_of(row):
    """Arguments of the template that a row has. TRL's data sets may hold tools as JSON."""
    tools = row.get("tools") or None
    return {"tools": json.loads(tools) if isinstance(tools, str) else tools,
            **(row.get("chat_template_kwargs") or {})}


def pair_of(row):
    """The prompt of a row and its answers by name, or None if the row is a conversation."""
    names = [name for name in ("chosen", "rejected") if name in row]
    is_chat = "messages" in row or "conversations" in row
    if "completion" in row and ("label" in row or not (names or is_chat)):
        return (with_system(row, messages_of(row, "prompt")),
                {"completion": messages_of(row, "completion")})
    if not names or is_chat:
        return None
    chosen, rejected = messages_of(row, "chosen"), messages_of(row, "rejected")
    if isinstance(row.get("prompt"), list):
        return with_system(row, messages_of(row, "prompt")), {"chosen": chosen, "rejected": rejected}
    chosen, rejected = with_system(row, chosen), with_system(row, rejected)
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
        self.left_out = collections.Counter()  # rows with members that the template leaves out
        names = sorted(tokenizer.all_special_tokens, key=len, reverse=True)
        names += [str(token) for token in tokenizer.get_added_vocab() if str(token) not in names]
        self.special = re.compile("|".join(re.escape(name) for name in names) or "(?!)")

    def render(self, messages, given, prompt=False):
        """The text of messages; given: further arguments of the template, like tools."""
        plain = [{key: one[key] for key in one if key not in MARKS} for one in messages]
        return self.tokenizer.apply_chat_template(
            plain, tokenize=False, add_generation_prompt=prompt, **given)

    def around_mark(self, messages, given, i, full):
        """The bounds of the content of message i in the full text, or None. They are found by
        rendering the conversation with another content: the text around it stays the same."""
        marked = self.render(
            messages[:i] + [{**messages[i], "content": MARK}] + messages[i + 1:], given)
        before, found, after = marked.partition(MARK)
        is_same = found and MARK not in after and full.startswith(before) and full.endswith(after)
        begin, end = len(before), len(full) - len(after)
        return (begin, end) if is_same and begin < end else None

    def prefix(self, messages, given, prompt, full):
        """The length of a rendered beginning of the conversation, or None if the full text does
        not begin with it."""
        try:
            text = self.render(messages, given, prompt)
        except Exception:  # some templates refuse conversations that end here
            return None
        return len(text) if full.startswith(text) else None

    def span(self, messages, given, i, full):
        """The bounds of the answer in message i, with the token that ends it."""
        content = messages[i].get("content")
        prompt = self.prefix(messages[:i], given, True, full) if i else None
        bounds = None
        if isinstance(content, str) and content.strip():
            bounds = self.around_mark(messages, given, i, full)
        if bounds:
            begin, end = bounds
            stop = re.compile(r"\s*(?:" + self.special.pattern + ")").match(full, end)
            return (begin if prompt is None else min(begin, prompt)), stop.end() if stop else end
        whole = self.prefix(messages[:i + 1], given, False, full)
        if prompt is None or whole is None or whole <= prompt:
            raise BadRow(f"message {i + 1}: the answer cannot be found in the text of the template")
        stops = [match.end() for match in self.special.finditer(full, prompt, whole)]
        return prompt, stops[-1] if stops else whole

    def calls(self, message):
        """True if the message calls tools; check_members makes sure that its text does."""
        return bool(message.get("tool_calls") or message.get("function_call"))

    def check_members(self, messages, given, full):
        """Fails if the template leaves out calls of tools, and counts other members of messages and
        arguments that it leaves out."""
        for i, one in enumerate(messages):
            for name in CALLS + THOUGHTS:
                if not one.get(name):
                    continue
                without = {key: value for key, value in one.items() if key != name}
                try:
                    is_same = self.render(messages[:i] + [without] + messages[i + 1:], given) == full
                except Exception:  # the template needs it
                    continue
                if is_same and name in CALLS:
                    raise BadRow(f'message {i + 1}: the template leaves out "{name}"')
                self.left_out[name] += is_same
        if given.get("tools"):
            self.left_out["tools"] += self.render(messages, {**given, "tools": None}) == full

    def marked(self, messages, given, answers):
        """The bounds of the answers that the template itself marks with {% generation %}, if it
        does, as transformers' assistant masks have them."""
        get = getattr(self.tokenizer, "get_chat_template", None)
        template = get(None, given.get("tools")) if get else ""
        if not re.search(r"\{%-?\s*generation\b", template):
            return None
        from transformers.utils.chat_template_utils import render_jinja_template
        plain = [{key: one[key] for key in one if key not in MARKS} for one in messages]
        _, bounds = render_jinja_template(
            [plain], chat_template=template, return_assistant_tokens_mask=True,
            **{**self.tokenizer.special_tokens_map, "tools": None, **given})
        numbers = [i for i, one in enumerate(messages) if one.get("role") == "assistant"]
        if len(bounds[0]) == len(numbers):
            return [bounds[0][numbers.index(i)] for i in answers]
        raise BadRow(f"the template marks {len(bounds[0])} answers of {len(numbers)} with "
                     "{% generation %}")

    def row(self, row):
        """The rendered row."""
        pair = pair_of(row) if isinstance(row, dict) else None
        if not pair:
            messages = conversation_of(row)
            return {"segments": self.segments(messages, arguments_of(row))}
        prompt, answers = pair
        if "completion" in answers and "label" not in row:
            messages = prompt + answers["completion"]
            return {"segments": self.segments(messages, arguments_of(row), len(prompt))}
        found, begin = {}, None
        for name, answer in answers.items():
            first, *rest = self.segments(prompt + answer, arguments_of(row), len(prompt))
            if first["train"] or begin not in (None, first):
                raise BadRow("the template does not begin both answers with the same prompt")
            found[name], begin = rest, first
        label = {"label": row["label"]} if "completion" in answers else {}
        return {"prompt": [begin], **found, **label}

    def segments(self, messages, given, first=0):
        """The text of a conversation, of which answers from message `first` on are trained."""
        answers = [i for i, one in enumerate(messages)
                   if one.get("role") == "assistant" and i >= first and is_trained(one, i + 1)]
        if not answers:
            raise BadRow("there is no message of the assistant to train on")
        try:
            full = self.render(messages, given)
            self.check_members(messages, given, full)
            spans = self.marked(messages, given, answers) or [
                self.span(messages, given, i, full) for i in answers]
        except BadRow:
            raise
        except Exception as error:  # templates raise errors of many kinds
            raise BadRow(f"the template refuses it: {error}") from error
        found, at = [], 0
        for i, (begin, end) in zip(answers, spans):
            if begin < at:
                raise BadRow(f"message {i + 1}: its text overlaps the answer before it")
            if not self.special.sub("", full[begin:end]).strip() and not self.calls(messages[i]):
                raise BadRow(f"message {i + 1}: the answer is empty in the text of the template")
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
    name = arguments.directory
    try:  # any failure must end the output in a line that is not a row
        # None would have transformers ask on the standard input, whose rows could answer.
        renderer = Renderer(AutoTokenizer.from_pretrained(name, trust_remote_code=False))
        for name in arguments.rows:
            file = sys.stdin if name == "-" else open(name, encoding="utf-8-sig")
            for place, row in rows_of(file):
                try:
                    rendered = renderer.row(row)
                except Exception as error:
                    why = error if isinstance(error, BadRow) else f"{type(error).__name__}: {error}"
                    raise BadRow(f"{place}: {why}") from error
                print(json.dumps(rendered, ensure_ascii=True))
    except BadRow as error:
        fail(f"{name}, {error}")
    except Exception as error:
        fail(f"{name}: {error}")
    sys.stdout.flush()
    for member, count in renderer.left_out.items():
        if count:
            print(f'render_chat.py: note: the template leaves out "{member}", {count} times',
                  file=sys.stderr)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that ends early ends this program
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    main()
