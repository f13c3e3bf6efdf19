"""Reads lines of metrics.jsonl and settings of config.json, for plot.py and follow_run.py."""
import json
import re

# Keys of every run in metrics.jsonl. Others are the figures of an objective (model/task/objective.h),
# and those of validations begin with val_.
KEYS = (
    "step tokens loss lr grad_norm loss_scale skipped step_ms tokens_per_s memory_bytes "
    "fp8_not_finite fp8_zero val_loss choices_acc choices_acc_norm time"
).split()


def is_figure(key):
    """True for the key of a figure, which is a plain word: files may hold any key."""
    return key not in KEYS and re.fullmatch("[a-z][a-z0-9_]{0,47}", key) is not None


def printable(text):
    """Text without control characters, which names may hold."""
    return "".join(one if one.isprintable() else "?" for one in text)


def record_of(line):
    """The record in a line of metrics.jsonl; None for other lines, such as a half-written last one."""
    try:
        record = json.loads(line) if line[-1:] in ("\n", b"\n") else None
        if not isinstance(record, dict) or not isinstance(record.get("step"), int):
            return None
        for value in record.values():
            if isinstance(value, (int, float)):
                float(value)  # fails for an integer of hundreds of digits
    except (ValueError, RecursionError, OverflowError):
        return None
    return record


def setting(config, block, key, kinds, otherwise):
    """A value in a block of a config, or `otherwise` if there is none of these types."""
    found = config.get(block) if isinstance(config, dict) else None
    found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, kinds) else otherwise
