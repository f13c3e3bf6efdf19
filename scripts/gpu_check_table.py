"""Figures, tables and aims of gpu_check.py."""
import contextlib
import glob
import json
import re


def lines_of(path):
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read().splitlines()
    return []


def files_of(*parts):
    """The files that match a pattern in a folder."""
    return sorted(glob.glob("/".join([glob.escape(parts[0]), *parts[1:]])))


def records_of(c, pattern):
    """Records of JSON files, one a line, also of files that were not written to their end."""
    found = []
    for path in files_of(c.out, pattern):
        for text in re.findall(r'^\{"[^{}\n]*\}', "\n".join(lines_of(path)), re.M):
            with contextlib.suppress(ValueError):
                found.append(json.loads(text))
    return found


def figure(c, pattern, field, **wanted):
    """The field of the first record that has it and these values; None if there is none."""
    return next((one[field] for one in records_of(c, pattern) if one.get(field) is not None and
                 all(one.get(key) == value for key, value in wanted.items())), None)


def ratio(a, b):
    return round(a / b, 4) if a and b and a > 0 and b > 0 else None


def row(name, *values):
    return f"{name:28}" + "".join(f" {'-' if value is None else value:>10}" for value in values)


def step(c, precision, field, by=1):
    """A figure of a step of ours, and of PyTorch's."""
    ours = figure(c, "gpu_bench.json", field, precision=precision, operation=None)
    theirs = figure(c, "torch_[bm]*.json", field.replace("measured", "peak"), precision=precision)
    return [x if x is None or by == 1 else round(x * by, 2) for x in (ours, theirs)]


def attention(c, shape, field):
    """A figure of attention of ours, of cuDNN, flash (for fp32 efficient), and of our other kernels."""
    theirs = {**shape, "dtype": shape["dtype"].replace("tf32", "fp32")}
    flash = "efficient" if theirs["dtype"] == "fp32" else "flash"
    return [figure(c, "gpu_bench.json", field, **shape, wgmma=True),
            *(figure(c, "torch_attention.json", field, **theirs, kernel=kernel) for kernel in ("cudnn", flash)),
            figure(c, "gpu_bench.json", field, **shape, wgmma=False)]


def kernels_of(c, file="gpu_bench.json"):
    """Kernels that memory bounds, with their share of a copy, slowest first."""
    return sorted((one["of_copy"], one["kernel"]) for one in records_of(c, file)
                  if "kernel" in one and one.get("of_copy") is not None)


def products_of(c, file, precision):
    """Lines of a step's products: time, time beyond the best rate of the precision, TFLOP/s; the 12 that
    lose most, and all of them together."""
    best = max((one["tflop_per_s"] for one in records_of(c, "gpu_bench.json") if
                one.get("ceiling") == "product" and one["precision"] == precision), default=0)
    found = [one for one in records_of(c, file) if one.get("product") and one["precision"] == precision]
    if not found:
        return

    def lost(one):
        return one["ms"] - 1e3 * one["tflop"] / best if best else 0

    def line(name, calls, ms, beyond, rates):
        return f"{name[:52]:52} {calls:5} {ms:8.3f} {beyond:8.3f}" + "".join(f" {rate:>7}" for rate in rates)
    ways = ("step", "fused", "apart", "plain")
    yield f"\n{f'products, {precision}, TFLOP/s ({file[:-5]})':52} {'calls':>5} {'ms':>8} {'lost':>8}" + "".join(
        f" {way:>7}" for way in ways)
    for one in sorted(found, key=lost, reverse=True)[:12]:
        yield line(one["product"], one["calls"], one["ms"], lost(one),
                   [round(one[f"{way}_tflop_per_s"], 1) for way in ways])
    ms, tflop = (sum(one[field] for one in found) for field in ("ms", "tflop"))
    yield line("all", sum(one["calls"] for one in found), ms, sum(map(lost, found)),
               [round(1e3 * tflop / ms, 1)] if ms else [])


def find_aims(c):
    """Aims: text, wanted, measured, and if it is met."""
    def speed(precision):
        return step(c, precision, "tokens_per_s")[0]

    def of(file):
        return figure(c, f"{file}.json", "tokens_per_s", **(
            {"precision": file[6:]} if file.startswith("large_") else {}))
    slowest, name = (kernels_of(c) or [(None, "none")])[0]
    memory = step(c, "bf16", "measured_bytes")[0]
    off = ratio(memory, step(c, "bf16", "plan_bytes")[0])
    aims = [("bf16 tokens/s, in those of PyTorch compile", ">= 1.1", ratio(*step(c, "bf16", "tokens_per_s"))),
            ("bf16 model FLOPs, in those of the product alone", ">= 0.6", step(c, "bf16", "mfu")[0]),
            ("fp16 speed, in that of bf16", ">= 0.97", ratio(speed("fp16"), speed("bf16"))),
            ("bf16 speed, in that of fp32", ">= 4", ratio(speed("bf16"), speed("fp32"))),
            ("fp8 speed at 1.5B, in that of bf16", ">= 1.25", ratio(of("large_fp8"), of("large_bf16"))),
            ("small steps as CUDA graphs, in those without", ">= 1",
             ratio(of("graphs_1"), of("graphs_0")))]
    for way in ("forward", "backward"):
        for D, T, B, H in ((64, 1024, 16, 12), (64, 4096, 4, 12), (128, 4096, 4, 6), (128, 16384, 1, 6)):
            ours, *others, _ = attention(c, {"dtype": "bf16", "D": D, "T": T, "B": B, "H": H},
                                         f"{way}_tflop_per_s")
            aims.append((f"attention {way}, D {D}, T {T}, in PyTorch's best", ">= 0.95",
                         ratio(ours, max((x for x in others if x), default=None))))
    aims += [(f"slowest memory-bound kernel ({name}), of copy", ">= 0.85", slowest),
             ("memory of bf16, in that of fp32", "<= 0.6", ratio(memory, step(c, "fp32", "measured_bytes")[0])),
             ("measured memory off the plan, bf16", "<= 0.02", off and round(abs(off - 1), 4))]
    for text, wanted, found in aims:
        sign, limit = 1 if wanted[0] == ">" else -1, float(wanted[3:])
        met = "-" if found is None else "yes" if sign * found >= sign * limit else "NO"
        c.aims.append({"aim": text, "wanted": wanted, "measured": found, "met": met})


def tables(c, parts):
    """The lines of table.txt."""
    yield row("\n ", "tokens/s", "PyTorch", "ratio", "ms/step", "MFU %", "GiB", "PyTorch")
    for p in ("fp32", "tf32", "fp16", "bf16", "fp8"):
        speeds = step(c, p, "tokens_per_s")
        yield row(p, *speeds, ratio(*speeds), step(c, p, "ms_per_step")[0], step(c, p, "mfu", 100)[0],
                  *step(c, p, "measured_bytes", 2**-30))
    yield row("\nattention, TFLOP/s", *(heading for way in ("forward", "backward") for heading in (
        way, "cuDNN", "flash", "mma.sync")))
    for one in records_of(c, "gpu_bench.json"):
        if one.get("wgmma") is True and "dtype" in one:
            shape = {key: one[key] for key in ("dtype", *"DTBH")}
            yield row(one["dtype"] + "".join(f" {key} {one[key]}" for key in "DTBH"),
                      *attention(c, shape, "forward_tflop_per_s"), *attention(c, shape, "backward_tflop_per_s"))
    for file, precision in (("gpu_bench.json", "bf16"), ("gpu_bench.json", "fp8"), ("large_bf16.json", "bf16"),
                            ("large_fp8.json", "fp8")):
        yield from products_of(c, file, precision)
    found = [f"{name} {share:.2f}" for share, name in kernels_of(c)]
    yield "\nkernels that move memory, share of a copy:"
    yield from ("  " + ", ".join(found[i:i + 5]) for i in range(0, len(found), 5))
    for name, part in parts.items():
        lines = lines_of(f"{c.out}/{name}.log") if part.shown else []
        if lines:
            yield f"\n{name}"
            yield from (line[:120] for line in (lines[-part.shown:] if isinstance(part.shown, int) else
                                                [line for line in lines if re.search(part.shown, line)]))
    if lines_of(f"{c.out}/against.json"):  # the bf16 step, and each kernel in shares of a copy
        yield row(f"\nbeside {c.against}", "other", "this", "ratio") + "  faster"
        both = [{"step in bf16, tokens/s": figure(c, file, "tokens_per_s", precision="bf16"),
                 **{f"{name}, of a copy": share for share, name in kernels_of(c, file)}}
                for file in ("against.json", "gpu_bench.json")]
        for name, this in both[1].items():
            if ratio(this, both[0].get(name)):
                yield row(name, both[0][name], this, ratio(this, both[0][name])) + \
                    ("  this" if this >= both[0][name] else "  OTHER")
    yield from re.findall(r"^run  *verdict.*?(?=^The training|\Z)", "\n".join(lines_of(f"{c.out}/lab.log")),
                          re.M | re.S)
    yield f"\n  {'aim':52} {'wanted':>9} {'measured':>10}  met"
    for one in c.aims:
        measured = "-" if one["measured"] is None else one["measured"]
        yield f"  {one['aim']:52} {one['wanted']:>9} {measured:>10}  {one['met']}"
    yield ""
    for one in c.records:
        yield f"  {one['part']:15} {one['seconds']:4} s  {'; '.join(filter(None, [one['verdict'], one['clocks']]))}"
    works, fails = ([one["part"] for one in c.records if one["verdict"].startswith(verdict)]
                    for verdict in ("ok", "failed"))
    yield "\nWorks: " + (" ".join(works) or "nothing")
    if fails:
        yield "Fails: " + " ".join(fails)
        yield from (f"  {name}: {parts[name].advice}" for name in fails)
    yield from (f"Slower than its aim: {one['aim']}: {one['measured']}, wanted {one['wanted']}"
                for one in c.aims if one["met"] == "NO")
    if c.rehearsal:
        yield "A rehearsal: none of these figures means anything."
