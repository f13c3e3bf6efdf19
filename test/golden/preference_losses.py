"""Losses of pairs of documents, and the fixture of the operation that computes them."""

import torch
import torch.nn.functional as F

DEFAULTS = {"label_smoothing": 0.0, "nll_weight": 0.0, "gamma": 0.0, "desirable_weight": 1.0,
            "undesirable_weight": 1.0}
RUNS = {
    "dpo": {"objective": "dpo", "beta": 0.12},
    "dpo_nll": {"objective": "dpo", "beta": 0.15, "nll_weight": 0.5},
    "dpo_smoothed": {"objective": "dpo", "beta": 0.12, "label_smoothing": 0.15},
    "ipo": {"objective": "ipo", "beta": 0.2},
    "orpo": {"objective": "orpo", "beta": 0.25, "nll_weight": 1.0},
    "simpo": {"objective": "simpo", "beta": 2.2, "gamma": 0.7},
    "simpo_nll": {"objective": "simpo", "beta": 1.25, "gamma": 0.4, "nll_weight": 1.0,
                  "label_smoothing": 0.05},
    "kto": {"objective": "kto", "beta": 0.13, "desirable_weight": 1.25, "undesirable_weight": 0.75},
}
RUNS = {name: DEFAULTS | run for name, run in RUNS.items()}


def log1mexp(x):
    return torch.log(-torch.expm1(x))


def pair_losses(run, chosen, rejected, answers, reference, desirable):
    """Of the pairs of a micro-batch, whose loss is the mean over pairs: losses [n], rewards and
    log-probabilities [n, 2], and the KL estimate.

    `chosen` and `rejected` are lists of log-probabilities of all targets of a document, `answers`
    [n][2] the first target of each answer, `reference` [n, 2] the sums over answers of the
    reference model.
    """
    beta, smoothing = run["beta"], run["label_smoothing"]
    c, r = ([lp[begin[k]:] for lp, begin in zip(documents, answers)]
            for k, documents in enumerate((chosen, rejected)))
    sums, means = (torch.stack([torch.stack([f(x), f(y)]) for x, y in zip(c, r)])
                   for f in (torch.sum, torch.mean))
    ratios, kl = sums - reference, torch.zeros(())
    if run["objective"] == "dpo":
        x = beta * (ratios[:, 0] - ratios[:, 1])
    elif run["objective"] == "ipo":
        lengths = torch.tensor([[len(x), len(y)] for x, y in zip(c, r)])
        delta = (ratios / lengths).diff(dim=1)[:, 0].neg()
        losses = (delta - 1 / (2 * beta)) ** 2
    elif run["objective"] == "orpo":
        x = -(means - log1mexp(means)).diff(dim=1)[:, 0]
        nll = -torch.stack([lp.mean() for lp in chosen])  # of the prompt as well
        losses = run["nll_weight"] * nll - beta * F.logsigmoid(x)
    elif run["objective"] == "simpo":
        x = beta * (means[:, 0] - means[:, 1]) - run["gamma"]
    else:
        kl = ratios[:, 1].mean().clamp(min=0).detach()
        x = beta * (ratios[:, 0] - kl)
        losses = torch.where(desirable, run["desirable_weight"] * (1 - F.sigmoid(x)),
                             run["undesirable_weight"] * (1 - F.sigmoid(-x)))
    if run["objective"] in ("dpo", "simpo"):
        losses = -(1 - smoothing) * F.logsigmoid(x) - smoothing * F.logsigmoid(-x)
        losses = losses - run["nll_weight"] * means[:, 0]  # of the answer
    if run["objective"] in ("orpo", "simpo"):
        return losses, beta * means, means, kl
    return losses, beta * ratios, sums, kl


def make_operation():
    """Pairs in two sequences with rows of padding, and what each objective makes of them, in
    float64. Some answers are certain or a single token, some losses saturate."""
    g = torch.Generator().manual_seed(7)
    prompts = [[3, 3], [1, 2], [0, 0], [5, 4], [0, 7], [9, 1], [2, 2]]  # rows before the answer's
    answers = [[9, 4], [1, 1], [1, 6], [17, 30], [2, 1], [5, 5], [3, 8]]
    begin, row = [], 0
    for i, (before, length) in enumerate(zip(prompts, answers)):
        row = max(row, 100) if i == 4 else row  # the second sequence
        begin.append([row, row + before[0] + length[0]])
        row = begin[-1][1] + before[1] + length[1]
    count, begin, prompts, answers = row + 5, *map(torch.tensor, (begin, prompts, answers))
    answer = begin + prompts
    end = answer + answers
    nll = torch.rand(count, generator=g).double() * 8
    nll[answer[1, 0]:end[1, 0]] = 1e-5
    nll[answer[4, 0]:end[4, 0]] = 30
    reference = -torch.tensor([[nll[a:e].sum() for a, e in zip(*pair)]
                               for pair in zip(answer, end)]) + 3 * torch.randn(7, 2, generator=g)
    reference[3] += torch.tensor([200, -300])
    reference[5] += torch.tensor([-300, 200])
    reference = reference.float()
    desirable = torch.tensor([True, False, True, True, False, False, True])
    below = reference + torch.tensor([0, reference[:, 1].abs().max()])  # their estimate is below 0
    result = {"begin": begin.int(), "answer": answer.int(), "end": end.int(), "nll": nll.float(),
              "undesirable": (~desirable).int()}
    cases = {name: (run, reference) for name, run in RUNS.items()}
    for name, (run, given) in (cases | {"kto_clamped": (RUNS["kto"], below)}).items():
        logp = (-nll.float().double()).requires_grad_(True)
        chosen, rejected = ([logp[b:e] for b, e in zip(begin[:, i], end[:, i])] for i in (0, 1))
        losses, rewards, logps, kl = pair_losses(run, chosen, rejected, prompts.tolist(),
                                                 given.double(), desirable)
        losses.sum().backward()
        result |= {f"{name}.{key}": value.float() for key, value in
                   {"reference": given, "loss": losses, "weights": -logp.grad, "rewards": rewards,
                    "logps": logps, "kl": kl.view(1)}.items()}
        assert all(value.isfinite().all() for value in result.values()), name
    assert result["kto.kl"] > 0 and result["kto_clamped.kl"] == 0
    return result
