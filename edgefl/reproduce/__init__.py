"""The papers' experiments, their published figures beside ours."""

from importlib import import_module
from types import ModuleType

EXPERIMENTS = {
    "outcomes": "what devices take away: every algorithm with its defaults, on nine federations of real data",
    "pfl-moe": "Fashion-MNIST by Dirichlet: personal classifiers, and mixtures of them with the global one",
    "aem": "p-majority classes: exploring cluster models, and a mixture of all of them with a local one",
    "fedmix-permutation": "permuted labels: experts find the permutations",
    "fedmix-cifar10": "CIFAR-10 by Dirichlet: experts specialize on labels",
    "fedap": "seven classes in packages of two: clusters by Ward's method, meta-learning steps, a client's "
    "own epochs",
    "clustered": "few tasks a client: clusters by the cosine of dense layers",
}


def load_experiment(name: str) -> ModuleType:
    """Return the module of an experiment: `stages(scale, seed)`, `figures(scale, results)`, and
    `verdicts(scale, results)`.

    PAPER, REFERENCE: published figures to compare with. SETUP_NOTES: by scale, how the set-up differs from
    the paper's. REFUSALS: by scale, why it cannot be run. Two functions are optional:
    `format_results(results)` is printed
    instead of the figures, `choose_plotted_figures(scale, results)` returns the figures of the picture.
    """
    return import_module(f"edgefl.reproduce.{name.replace('-', '_')}")
