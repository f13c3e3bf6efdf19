"""Estimates the time of a training step from replayed kernels. NOT MEASUREMENTS: the assumptions
are in scripts/cuda_estimates.md.
"""
import collections
import math

Card = collections.namedtuple("Card", "name arch peak memory scratch launch head products")
Model = collections.namedtuple("Model", "name width layers heads batch length")
# rows: queries or keys of a block; held: blocks that the card runs at once
Attention = collections.namedtuple("Attention", "tflops rows held")

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
STREAMED = 0.90     # of the memory's rate, what a pass with enough bytes in flight reaches
EDGE = 3000         # cycles that a block of attention spends before and after its tiles
GELU_COST = 0.30    # a product whose epilogue is gelu or its gradient takes that much longer


def product_ms(card, m, n, k, share, slower=0.0):
    return 2 * m * n * k / (card.peak * 1e9 * share) * (1 + slower)


def pass_ms(card, figure, elements):
    return elements * figure["moved"] / (card.memory * 1e6 * STREAMED * figure["share"])


def attention_ms(model, kernel, products):
    """Scores above the diagonal are computed where a block's tiles hold some of the others. Blocks
    begin and end in turns, so the multiprocessor's other blocks fill the gaps of one."""
    width = model.width // model.heads
    pairs = sum(i + 1 for i in range(math.ceil(model.length / kernel.rows))) * kernel.rows ** 2
    flop = model.batch * model.heads * pairs * 2 * width * products
    blocks = model.batch * model.heads * model.length / kernel.rows
    return flop / (kernel.tflops * 1e9) + blocks / kernel.held * EDGE / 1.5e6


def attention_parts(model, card, of):
    """A block has 128 rows, but 256 in the forward pass of wgmma for heads of 64 values."""
    wide = 128 if model.width // model.heads > 64 else 64
    kind, blocks, multiprocessors = ("wgmma", 1, 132) if card.arch == 90 else ("mma", 2, 108)

    def kernel(name, rows=128):
        slots = ", 3" if kind == "mma" and name[1] == "forward" else ""
        tflops = of("attention_%s%s/%s<bf16, %d%s, false>" % (kind, *name, wide, slots))["tflops"]
        return Attention(tflops, rows, blocks * multiprocessors)

    forward = kernel(("_forward", "forward"), 16384 // wide if kind == "wgmma" else 128)
    query = kernel(("_backward", "query_gradients"))
    key = kernel(("_backward", "key_gradients"))
    return {"attention forward": model.layers * attention_ms(model, forward, 2),
            "attention backward": model.layers * (attention_ms(model, query, 3) +
                                                  attention_ms(model, key, 4))}


def chunks_of(model, card):
    return math.ceil(model.batch * model.length * VOCABULARY * 2 / card.scratch)


def kernels_and_products(model, card):
    """Launches as in test/model/core/test_launches.c: in layers, in chunks of the head, others."""
    return model.layers * (12 + 12) + 4 * chunks_of(model, card) + 3 + 8 + 1 + 7


def parts_of(model, card, of):
    rows, c, v = model.batch * model.length, model.width, VOCABULARY
    parameters = 12 * model.layers * c * c + (v + model.length) * c
    share = card.products[c]

    def products(*shapes):
        return sum(product_ms(card, *shape, share) for shape in shapes)

    linear = products((rows, 3 * c, c), (rows, c, c), (rows, 4 * c, c), (rows, c, 4 * c))
    weights = products((3 * c, c, rows), (c, c, rows), (4 * c, c, rows), (c, 4 * c, rows))
    gelu = GELU_COST * products((rows, 4 * c, c))
    norms = 2 * model.layers + 1
    parts = {
        "products forward": model.layers * (linear + gelu),
        "products backward": model.layers * (linear + gelu + weights),
        # the gradient of its weights is read and written with each chunk but the first
        "head": 3 * product_ms(card, rows, v, c, card.head) +
                (chunks_of(model, card) - 1) * v * c * 8 / (card.memory * 1e6 * STREAMED),
        "norms forward": norms * pass_ms(card, of("layernorm_forward/forward<bf16, bf16, fp32>"),
                                         rows * c),
        "norms backward": norms * pass_ms(card, of("layernorm_backward/backward<bf16, fp32>"),
                                          rows * c),
        # of what the library has multiplied by gelu'
        "bias of the mlp": model.layers * rows * 4 * c * 2 / (card.memory * 1e6 * STREAMED),
        "cross-entropy": pass_ms(card, of("cross_entropy/cross_entropy<bf16, 8, 512>"), rows * v),
        "update and norm": pass_ms(card, of("adamw/adamw<fp32, upper_bits, bf16_copy, fp32>"),
                                   parameters) +
                           parameters * 4 / (card.memory * 1e6 * STREAMED),
        "embedding": rows * c * (2 + 4 + 4 + 4) / (card.memory * 1e6 * STREAMED),
        "between kernels": kernels_and_products(model, card) * card.launch / 1e3,
    }
    parts.update(attention_parts(model, card, of))
    flops = (6 * parameters + 6 * model.layers * c * model.length) * rows
    return parts, flops


def estimate(figures):
    """Prints the parts of a step; returns its time on each card. figures: by architecture."""
    result = {}
    print("ESTIMATED steps in bf16, not measured: ms of each part")
    for model in MODELS:
        columns = []
        for card in CARDS:
            parts, flops = parts_of(model, card, figures[card.arch].__getitem__)
            columns.append((card, parts, sum(parts.values()), flops))
        print("%-20s" % ("%s, %d x %d" % (model.name, model.batch, model.length)) +
              "".join("%16s" % card.name for card, *_ in columns))
        for part in columns[0][1]:
            print("  %-18s" % part + "".join("%16.2f" % parts[part] for _, parts, *_ in columns))
        print("  %-18s" % "step" + "".join("%16.1f" % total for *_, total, _ in columns))
        print("  %-18s" % "share of peak" +
              "".join("%16.2f" % (flops / total / 1e9 / card.peak)
                      for card, _, total, flops in columns))
        for card, _, total, flops in columns:
            result["%s on %s" % (model.name, card.name)] = {
                "ms": total, "of_peak": flops / total / 1e9 / card.peak}
    return result
