"""Estimates the time of a training step from replayed kernels. NOT MEASUREMENTS: the assumptions
are in scripts/cuda_estimates.md. Each figure has a range: all that is assumed at its worst, as
expected, and at its best.
"""
import collections
import math

Card = collections.namedtuple("Card", "name arch peak memory scratch launch head products")
Model = collections.namedtuple("Model", "name width layers heads batch length")
# products: of a pair of tiles; rows: queries or keys of a block; held: blocks that the card runs at
# once; tail: what the last blocks add
Attention = collections.namedtuple("Attention", "tflops products rows held tail")
# kernels: the products of each; bytes: of an element of the output, in passes before or after them
Way = collections.namedtuple("Way", "kernels bytes")
# Assumptions, of which estimates use the worst, the expected and the best: see RANGES
Assumed = collections.namedtuple("Assumed", "case library memory edge gelu launch tail")

# peak in TFLOP/s of bf16, memory in bytes a ns, scratch for logits in bytes; launch: microseconds
# between kernels of a graph; head, products: what cuBLASLt reaches of the peak, in products with
# the vocabulary, and in others by the model's width.
CARDS = [
    Card("A100 SXM 80 GB", 80, 312, 2039, 1.27e9, 1.3, 0.78, {768: 0.70, 1600: 0.78}),
    Card("H100 SXM", 90, 989, 3350, 1.27e9, 1.0, 0.66, {768: 0.58, 1600: 0.68}),
    Card("H200", 90, 989, 4800, 2.15e9, 1.0, 0.67, {768: 0.59, 1600: 0.69}),
]
MODELS = [Model("124M", 768, 12, 12, 32, 1024), Model("1.5B", 1600, 48, 25, 8, 1024)]
VOCABULARY = 50304
STREAMED = 0.87     # of the memory's rate, in passes that are not replayed
EDGE = 3000         # cycles that a block of attention spends before and after its tiles

# library: added to the share that cuBLASLt reaches; memory: a factor of replayed shares; edge: of
# EDGE; gelu: a product whose epilogue is gelu or its gradient takes that much longer; launch: a
# factor of the time between kernels; tail: of the forward pass of attention, whose last blocks
# find no others beside them
RANGES = [Assumed(0, -0.05, 0.92, 1.5, 0.40, 1.5, 0.06), Assumed(1, 0, 1, 1, 0.30, 1, 0.03),
          Assumed(2, 0.02, 1.03, 0.7, 0.20, 0.8, 0.02)]

# What attention reaches of its replayed rate: worst, expected and best. Public kernels reached that
# much of theirs (cuda_estimates.md). Backward: short is up to 1024 tokens.
FACTORS = {
    "wgmma forward, D 64": (0.68, 0.76, 0.81),
    "wgmma forward, D 128": (0.72, 0.82, 0.95),
    "wgmma backward, D 64, short": (0.65, 0.72, 0.80),
    "wgmma backward, D 64, long": (0.73, 0.80, 0.86),
    "wgmma backward, D 128, short": (0.60, 0.67, 0.78),
    "wgmma backward, D 128, long": (0.67, 0.74, 0.86),
    "mma, D 64": (0.77, 0.83, 0.87),
    "mma, D 128": (0.67, 0.74, 0.80),
    "mma on A100": (0.72, 0.80, 0.85),
}
SHORT = 1024
# The ways to compute gradients; the first whose kernels have been replayed counts. A kernel with
# five products needs delta, from the output and its gradient, before it; its blocks wait for turns,
# which costs about as much as the end of the forward pass.
BACKWARD = [Way({"gradients": 5}, 2 + 2), Way({"query_gradients": 3, "key_gradients": 4}, 0)]
COUNTED = {"forward": 2, "backward": 5}  # products that a rate in TFLOP/s counts


def product_ms(card, m, n, k, share, slower=0.0):
    return 2 * m * n * k / (card.peak * 1e9 * share) * (1 + slower)


def pass_ms(card, figure, elements, assumed):
    share = figure["share"] * assumed.memory
    return elements * figure["moved"] / (card.memory * 1e6 * share) + figure["tail"] / 1e6


def streamed_ms(card, size, assumed):
    return size / (card.memory * 1e6 * STREAMED * assumed.memory)


# ---- attention

def factor(kind, what, wide, length, card, case):
    if kind == "mma":
        name = "mma on A100" if card.arch == 80 else "mma, D %d" % wide
    elif what == "forward":
        name = "wgmma forward, D %d" % wide
    else:
        name = "wgmma backward, D %d, %s" % (wide, "short" if length <= SHORT else "long")
    return FACTORS[name][case]


def attention_ms(model, kernel, assumed):
    """Scores above the diagonal are computed where a block's tiles hold some of the others. Blocks
    begin and end in turns, so the multiprocessor's other blocks fill the gaps of one."""
    width = model.width // model.heads
    pairs = sum(i + 1 for i in range(math.ceil(model.length / kernel.rows))) * kernel.rows ** 2
    flop = model.batch * model.heads * pairs * 2 * width * kernel.products
    blocks = model.batch * model.heads * model.length / kernel.rows
    edges = blocks / kernel.held * EDGE * assumed.edge / 1.5e6
    return (flop / (kernel.tflops * 1e9) + edges) * (1 + kernel.tail)


def attention_parts(model, card, figures, assumed):
    """Milliseconds of a layer's two passes. A block has 128 rows."""
    wide = 128 if model.width // model.heads > 64 else 64
    kind, multiprocessors = ("wgmma", 132) if card.arch == 90 else ("mma", 108)

    def of(name, what):
        slots = ", 3" if kind == "mma" and what == "forward" else ""
        return figures.get("attention_%s_%s/%s<bf16, %d%s, false>"
                           % (kind, what, name, wide, slots))

    def ms(name, what, products, tail=0.0):
        held = 1 if kind == "wgmma" and (what == "backward" or wide == 128) else 2
        scale = factor(kind, what, wide, model.length, card, assumed.case)
        kernel = Attention(of(name, what)["tflops"] * scale, products, 128,
                           held * multiprocessors, tail)
        return attention_ms(model, kernel, assumed)

    way = next(w for w in BACKWARD if all(of(name, "backward") for name in w.kernels))
    elements = model.batch * model.length * model.width
    return {"forward": ms("forward", "forward", 2, assumed.tail),
            "backward": sum(ms(name, "backward", n, assumed.tail if n == 5 else 0)
                            for name, n in way.kernels.items()) +
            streamed_ms(card, elements * way.bytes, assumed)}


# ---- a step

def chunks_of(model, card):
    return math.ceil(model.batch * model.length * VOCABULARY * 2 / card.scratch)


def kernels_and_products(model, card):
    """Launches as in test/model/core/test_launches.c: in layers, in chunks of the head, others."""
    return model.layers * (12 + 12) + 4 * chunks_of(model, card) + 3 + 8 + 1 + 7


def pass_parts(model, card, figures, assumed):
    """Milliseconds of the passes that move memory."""
    rows, c = model.batch * model.length, model.width
    parameters = parameters_of(model)
    norms = 2 * model.layers + 1

    def replayed(name, elements):
        return pass_ms(card, figures[name], elements, assumed)

    return {
        "norms forward": norms * replayed("layernorm_forward/forward<bf16, bf16, fp32>", rows * c),
        "norms backward": norms * replayed("layernorm_backward/backward<bf16, fp32>", rows * c),
        # of what the library has multiplied by gelu'
        "bias of the mlp": model.layers * streamed_ms(card, rows * 4 * c * 2, assumed),
        "cross-entropy": replayed("cross_entropy/kept_cross_entropy<bf16, 8, 512>", rows * VOCABULARY),
        "update and norm": replayed("adamw/adamw<fp32, upper_bits, bf16_copy, fp32>", parameters) +
        streamed_ms(card, parameters * 4, assumed),
        "embedding": streamed_ms(card, rows * c * (2 + 4 + 4 + 4), assumed),
    }


def parameters_of(model):
    return 12 * model.layers * model.width ** 2 + (VOCABULARY + model.length) * model.width


def parts_of(model, card, figures, assumed):
    rows, c, v = model.batch * model.length, model.width, VOCABULARY
    share = card.products[c] + assumed.library

    def products(*shapes):
        return sum(product_ms(card, *shape, share) for shape in shapes)

    linear = products((rows, 3 * c, c), (rows, c, c), (rows, 4 * c, c), (rows, c, 4 * c))
    weights = products((3 * c, c, rows), (c, c, rows), (4 * c, c, rows), (c, 4 * c, rows))
    gelu = assumed.gelu * products((rows, 4 * c, c))
    parts = {
        "products forward": model.layers * (linear + gelu),
        "products backward": model.layers * (linear + gelu + weights),
        # the gradient of its weights is read and written with each chunk but the first
        "head": 3 * product_ms(card, rows, v, c, card.head + assumed.library) +
        streamed_ms(card, (chunks_of(model, card) - 1) * v * c * 8, assumed),
    }
    parts.update(pass_parts(model, card, figures, assumed))
    parts["between kernels"] = (kernels_and_products(model, card) * card.launch * assumed.launch /
                                1e3)
    for what, ms in attention_parts(model, card, figures, assumed).items():
        parts["attention " + what] = model.layers * ms
    return parts


# ---- tables

def span(worst, expected, best, form="%.0f"):
    """An expected figure with its range, the smaller end first."""
    low, high = sorted((worst, best))
    return ("%s (%s-%s)" % (form, form, form)) % (expected, low, high)


def estimate_attention(figures):
    """Prints the rate of causal attention on each card, of 16384 tokens and 768 columns."""
    result = {}
    print("EXPECTED rates of attention, not measured: TFLOP/s, of 2 and 5 products of what is seen")
    print("%-26s" % "" + "".join("%20s" % card.name for card in CARDS[:2]))
    for what, wide, length in ((w, d, t) for w in COUNTED for d in (64, 128) for t in (1024, 4096)):
        model = Model("", 768, 1, 768 // wide, 16384 // length, length)
        flop = 16384 * length / 2 * 768 * 2 * COUNTED[what]
        line = "%s, D %d, T %d" % (what, wide, length)
        print("  %-24s" % line, end="")
        for card in CARDS[:2]:
            rates = [flop / attention_parts(model, card, figures[card.arch], assumed)[what] / 1e9
                     for assumed in RANGES]
            print("%20s" % span(*rates), end="")
            result["attention %s on %s" % (line, card.name)] = {"tflops": rates[1]}
        print()
    return result


# A reader's judgement of the shares of H100's memory rate (an expert in CUDA, not a measurement).
JUDGED = {"layernorm_forward/forward<bf16, bf16, fp32>": "0.80-0.85",
          "layernorm_backward/backward<bf16, fp32>": "0.65-0.70",
          "cross_entropy/kept_cross_entropy<bf16, 8, 512>": "0.75-0.80",
          "adamw/adamw<fp32, upper_bits, bf16_copy, fp32>": "0.85-0.90",
          "gelu_backward/summed<false, bf16, bf16>": "0.85-0.90",
          "quantize/round<bf16, 4, 0>": "0.60-0.75"}


def estimate_passes(figures):
    """Prints the share of an H100's memory rate of each pass at 124M, with the kernel's end."""
    model, card = MODELS[0], CARDS[1]
    rows = model.batch * model.length
    elements = {"cross_entropy": rows * VOCABULARY, "adamw": parameters_of(model),
                "gelu_backward": rows * 4 * model.width}
    print("EXPECTED shares of the memory's rate of an H100 at 124M, 32 x 1024, not measured")
    for name, judged in JUDGED.items():
        count = elements.get(name.split("/")[0], rows * model.width)
        figure = figures[90][name]
        shares = [count * figure["moved"] / card.memory / 1e6 / pass_ms(card, figure, count, a)
                  for a in RANGES]
        print("  %-48s %-18s judged %s" % (name, span(*shares, form="%.2f"), judged))


def estimate(figures):
    """Prints what is expected; returns rates of attention, and the time of a step on each card.
    figures: by architecture."""
    result = estimate_attention(figures)
    print()
    estimate_passes(figures)
    print()
    print("ESTIMATED steps in bf16, not measured: ms of each part")
    for model in MODELS:
        flops = (6 * parameters_of(model) + 6 * model.layers * model.width * model.length) * \
            model.batch * model.length
        columns = [[parts_of(model, card, figures[card.arch], assumed) for assumed in RANGES]
                   for card in CARDS]
        totals = [[sum(parts.values()) for parts in column] for column in columns]
        print("%-20s" % ("%s, %d x %d" % (model.name, model.batch, model.length)) +
              "".join("%20s" % card.name for card in CARDS))
        for part in columns[0][1]:
            print("  %-18s" % part + "".join("%20.2f" % column[1][part] for column in columns))
        print("  %-18s" % "step" + "".join("%20s" % span(*total, form="%.1f") for total in totals))
        shares = [flops / total[1] / 1e9 / card.peak for total, card in zip(totals, CARDS)]
        print("  %-18s" % "share of peak" + "".join("%20.2f" % share for share in shares))
        for card, total, share in zip(CARDS, totals, shares):
            result["%s on %s" % (model.name, card.name)] = {"ms": total[1], "of_peak": share}
    return result
