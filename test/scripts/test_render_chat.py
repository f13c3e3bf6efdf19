#!/usr/bin/env python3
"""Tests that scripts/render_chat.py finds the answers in the text of a template, with a fake
transformers module whose templates are functions."""
import json
import os
import subprocess
import sys
import tempfile

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts/render_chat.py")

FAKE = '''
class AutoTokenizer:
    all_special_tokens = ["<s>", "</s>", "<end>"]

    @staticmethod
    def from_pretrained(directory, trust_remote_code=None):
        if trust_remote_code is not False:  # transformers would ask on the standard input
            raise ValueError("code of the model's folder would run")
        tokenizer = AutoTokenizer()
        tokenizer.kind = directory
        return tokenizer

    def get_added_vocab(self):
        return {"<call>": 7, "</s>": 2}

    def apply_chat_template(self, messages, tools=None, tokenize=True, add_generation_prompt=False):
        assert not tokenize
        text = "<s>" + (str(tools) if tools else "")
        text += str(len(messages)) * (self.kind == "counts")
        for i, one in enumerate(messages):
            is_last = i == len(messages) - 1
            content = one["content"] or "<call>" + one["call"]
            if one["role"] != "assistant":
                text += f"[{one['role']}]{content}<end>"
            elif self.kind == "thinks":  # only in the last answer
                text += "[assistant]" + "(think)" * is_last + content + "<end>\\n"
            elif self.kind == "trims":
                text += "[assistant]: " + content.strip() + " </s>"
            elif self.kind == "shouts":
                text += "[assistant]" + content.upper() + "<end>"
            else:
                text += "[assistant]" + content + "<end>\\n"
        if self.kind == "controls":
            raise ValueError("\x1b[2J\x9b\u202e")
        if self.kind == "alternates" and messages[0]["role"] != "user":
            raise ValueError("users begin")
        return text + "[assistant]" * (add_generation_prompt or self.kind == "prompts")
'''

failures = []


def run(kind, rows):
    """The output of the script, and its messages."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "transformers.py"), "w", encoding="utf-8") as file:
            file.write(FAKE)
        text = "".join(json.dumps(row) + "\n\n" for row in rows)
        done = subprocess.run([sys.executable, SCRIPT, kind, "-"], input=text, text=True,
                              capture_output=True, env={**os.environ, "PYTHONPATH": folder},
                              check=False)
        return done.stdout, done.stderr


def row(*contents, **more):
    """A row whose messages are role=content or, for a call, assistant>content."""
    messages = []
    for one in contents:
        role, sign, content = one.partition("=")
        if not sign:
            role, _, call = one.partition(">")
            messages.append({"role": role, "content": None, "call": call})
        else:
            messages.append({"role": role, "content": content})
    return {"messages": messages, **more}


def check(kind, given, expected):
    """expected: the text, with the answers between braces."""
    out, error = run(kind, [given])
    found = error
    if out:
        found = "".join("{" + one["text"] + "}" if one["train"] else one["text"]
                        for one in json.loads(out)["segments"])
    if found != expected:
        failures.append(f"{kind}: {found!r}, not {expected!r}")


def check_pair(kind, given, expected):
    """expected: the text of each member, with the answers between braces, and other members."""
    out, error = run(kind, [given])
    found = error
    if out:
        found = {name: "".join("{" + one["text"] + "}" if one["train"] else one["text"]
                               for one in member) if isinstance(member, list) else member
                 for name, member in json.loads(out).items()}
    if found != expected:
        failures.append(f"{kind}: {found!r}, not {expected!r}")


def pair(prompt=None, **answers):
    """A row whose members are lists of messages, as row makes them, or other values."""
    members = {"prompt": prompt, **answers} if prompt else answers
    return {name: row(*member)["messages"] if isinstance(member, list) else member
            for name, member in members.items()}


def check_refused(kind, rows, expected):
    out, error = run(kind, rows)
    if expected not in error:
        failures.append(f"{kind}: {error!r} without {expected!r}")
    if not out.endswith(error):  # a line that is no row, for ./prepare behind a pipe
        failures.append(f"{kind}: {out!r} does not end in the message")


check("plain", row("system=be", "user=q", "assistant=a", "user=r", "assistant= b\n"),
      "<s>[system]be<end>[user]q<end>[assistant]{a<end>}\n[user]r<end>[assistant]{ b\n<end>}\n")
check("plain", row("user=assistant", "assistant=a", "assistant=a", "user=a"),
      "<s>[user]assistant<end>[assistant]{a<end>}\n[assistant]{a<end>}\n[user]a<end>")
# An answer that is a call has no content.
check("plain", row("user=q", "assistant>f", "user=1", "assistant=b", tools=["T"]),
      "<s>['T'][user]q<end>[assistant]{<call>f<end>}\n[user]1<end>[assistant]{b<end>}\n")
check("thinks", row("user=q", "assistant=a", "user=r", "assistant=b"),
      "<s>[user]q<end>[assistant]{a<end>}\n[user]r<end>[assistant]{(think)b<end>}\n")
check("trims", row("user=q", "assistant= a\n"), "<s>[user]q<end>[assistant]{: a </s>}")
check("prompts", row("user=q", "assistant=a", "user=r"),
      "<s>[user]q<end>[assistant]{a<end>}\n[user]r<end>[assistant]")
check("alternates", row("user=q", "assistant=a"), "<s>[user]q<end>[assistant]{a<end>}\n")
check("shouts", row("user=q", "assistant=a"), "<s>[user]q<end>[assistant]{A<end>}")
good = row("user=q", "assistant=a")
check_refused("plain", [good, row("user=q")], "-, line 3: there is no message of the assistant")
check_refused("plain", [{"messages": "x"}], '-, line 1: there is no "messages"')
check_refused("plain", [7], '-, line 1: there is no "messages"')
check_refused("plain", [[1]], '-, row 1: there is no "messages"')  # a list of rows
check_refused("plain", [good, {"conversations": 7}], '-, line 3: there is no "messages"')
shared = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}
check("plain", [shared], "<s>[user]q<end>[assistant]{a<end>}\n")  # a list of one row
check("plain", shared, "<s>[user]q<end>[assistant]{a<end>}\n")
check_refused("alternates", [row("assistant=a")], "-, line 1: the template refuses it: users begin")
check_refused("controls", [good], "-, line 1: the template refuses it: ?[2J??\n")
check_refused("prompts", [row("assistant>f")], "-, line 1: message 1: the answer cannot be found")

# Pairs: only the answers are trained, and both have one prompt.
rendered = {"prompt": "<s>[user]q<end>[assistant]", "chosen": "{y<end>}\n", "rejected": "{n<end>}\n"}
check_pair("plain", pair(["user=q"], chosen=["assistant=y"], rejected=["assistant=n"]), rendered)
check_pair("plain", pair(chosen=["user=q", "assistant=y"], rejected=["user=q", "assistant=n"]), rendered)
check_pair("plain", pair("q", chosen=["user=q", "assistant=y"], rejected=["user=q", "assistant=n"]),
           rendered)
check_pair("plain", pair(["user=q", "assistant=a", "user=r"], chosen=["assistant=y"],
                         rejected=["assistant=n", "user=s", "assistant=m"]),
           {"prompt": "<s>[user]q<end>[assistant]a<end>\n[user]r<end>[assistant]",
            "chosen": "{y<end>}\n", "rejected": "{n<end>}\n[user]s<end>[assistant]{m<end>}\n"})
check_pair("plain", pair(["user=q"], completion=["assistant=y"], label=False),
           {"prompt": "<s>[user]q<end>[assistant]", "completion": "{y<end>}\n", "label": False})
# A completion without a label: one text, in which the prompt's answers are not trained.
check("plain", pair(["user=q", "assistant=a", "user=r"], completion=["assistant=y"]),
      "<s>[user]q<end>[assistant]a<end>\n[user]r<end>[assistant]{y<end>}\n")
check("plain", pair(["user=q"], completion=["assistant=y", "user=r", "assistant=z"], tools='["T"]'),
      "<s>['T'][user]q<end>[assistant]{y<end>}\n[user]r<end>[assistant]{z<end>}\n")
check_refused("plain", [pair(["user=q"], completion="y")], '-, line 1: there is no "completion"')
check_refused("plain", [pair("q", completion=["assistant=y"])], '-, line 1: there is no "prompt"')
check_refused("plain", [pair(["user=q"], completion=["user=y"])],
              "-, line 1: there is no message of the assistant")
check_refused("plain", [pair(["user=q"], chosen=["assistant=y"])], '-, line 1: there is no "rejected"')
check_refused("plain", [pair(["user=q"], chosen="y", rejected="n")], 'line 1: there is no "chosen"')
check_refused("plain", [pair(["user=q"], chosen=["user=y"], rejected=["assistant=n"])],
              "-, line 1: there is no message of the assistant")
check_refused("plain", [pair("q", completion=["assistant=y"], label=True)], 'there is no "prompt"')
check_refused("counts", [pair(["user=q"], chosen=["assistant=y"],
                              rejected=["assistant=n", "assistant=m"])],
              "-, line 1: the template does not begin both answers with the same prompt")

# Marks of messages, and members beside them.
marked = row("user=q", "assistant=a", "user=r", "assistant=b")
for mark in ({"weight": 0}, {"train": False}, {"training": False}, {"loss": 0.0}, {"loss_mask": 0}):
    marked["messages"][1] = {"role": "assistant", "content": "a", **mark}
    check("plain", marked, "<s>[user]q<end>[assistant]a<end>\n[user]r<end>[assistant]{b<end>}\n")
marked["messages"][3]["weight"] = 0.5
check_refused("plain", [marked], '-, line 1: message 4: "weight" must be 0, 1, true or false')
check_refused("plain", [{"messages": [{"role": "assistant", "content": "a", "weight": 0}]}],
              "-, line 1: there is no message of the assistant to train on")
of_sharegpt = {"conversations": [{"from": "human", "value": "q"},
                                 {"from": "gpt", "value": "a", "weight": 0},
                                 {"from": "gpt", "value": "b"}], "system": "s"}
check("plain", of_sharegpt,
      "<s>[system]s<end>[user]q<end>[assistant]a<end>\n[assistant]{b<end>}\n")
check_pair("plain", {**pair(chosen=["user=q", "assistant=y"], rejected=["user=q", "assistant=n"]),
                     "system": "s"}, {**rendered, "prompt": "<s>[system]s<end>[user]q<end>[assistant]"})
check_refused("plain", [row("system=s", "assistant=a", system="t")], "keep one of them")
check("plain", {"instruction": "i", "input": "j", "output": "o", "system": "s",
                "history": [["q", "a"]]},
      "<s>[system]s<end>[user]q<end>[assistant]{a<end>}\n[user]i\nj<end>[assistant]{o<end>}\n")
called = row("user=q", "assistant=a")
called["messages"][1]["tool_calls"] = [{"function": {"name": "f"}}]
check_refused("plain", [called], '-, line 1: message 2: the template leaves out "tool_calls"')
check_refused("plain", [row("user=q", "assistant=</s>")], "message 2: the answer is empty")
thought = row("user=q", "assistant=a")
thought["messages"][1]["thinking"] = "t"
check("plain", thought, "<s>[user]q<end>[assistant]{a<end>}\n")
if 'note: the template leaves out "thinking", 2 times' not in run("plain", [thought, thought])[1]:
    failures.append("thinking: no note")

# Failures of any kind end the output in a line that is no row.
check_refused("plain", [good, {"conversations": [{"from": [], "value": "x"}]}], "-, line 3: ")
check_refused("plain", [good, {"messages": [{"role": "assistant"}]}], "-, line 3: ")
with tempfile.TemporaryDirectory() as folder:
    with open(os.path.join(folder, "transformers.py"), "w", encoding="utf-8") as file:
        file.write(FAKE)
    environment = {**os.environ, "PYTHONPATH": folder}
    with open(os.path.join(folder, "deep.jsonl"), "w", encoding="utf-8") as file:
        file.write("[" * 100000)
    for arguments, expected in (([f"{folder}/deep.jsonl"], "recursion"), (["no_such_file"], "No such")):
        done = subprocess.run([sys.executable, SCRIPT, "plain", *arguments], text=True,
                              capture_output=True, env=environment, check=False)
        if done.returncode != 1 or expected not in done.stdout or "Traceback" in done.stderr:
            failures.append(f"{arguments}: {done}")
    with subprocess.Popen([sys.executable, SCRIPT, "plain", "-"], stdin=subprocess.PIPE, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as reader:
        reader.stdout.close()  # a reader that ends early
        reader.stdin.write(json.dumps(good) + "\n")
        reader.stdin.close()
        if reader.stderr.read():
            failures.append("a broken pipe prints messages")

for failure in failures:
    print(failure)
print(f"scripts/render_chat.py: {len(failures)} failures")
sys.exit(1 if failures else 0)
