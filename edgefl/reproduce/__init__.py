"""Experiments of the papers, with published and measured figures side by side."""

from importlib import import_module
from types import ModuleType

EXPERIMENTS = {
    "outcomes": "the models that devices end with: every algorithm with defaults, on nine real federations",
    "pfl-moe": "Fashion-MNIST by Dirichlet: personal classifiers, and their mixtures with the global one",
    "aem": "p-majority classes: exploration of cluster models, and their mixture with a local model",
    "fedmix-permutation": "permuted labels: experts recover the permutations",
    "fedmix-cifar10": "CIFAR-10 by Dirichlet: experts specialize on labels",
    "fedap": "seven classes in packages of two: clusters by Ward's method, meta-learning steps, local epochs",
    "clustered": "few tasks per client: clusters by cosine similarity of dense layers",
}


def load_experiment(name: str) -> ModuleType:
    """Return the module of an experiment.

    The module has the functions `stages(scale, seed)`, `figures(scale, results)` and `verdicts(scale,
    results)`. Two more are optional: `format_results(results)` returns the text to print instead of the
    figures, and `choose_plotted_figures(scale, results)` returns the figures of the picture.

    It also has the constants PAPER_RESULTS and REFERENCE_RESULTS, published figures to compare with.
    SETUP_NOTES describes, by scale, how the set-up differs from the paper. REFUSALS states, by scale, why an
    experiment cannot run.

    Args:
        name: a key of `EXPERIMENTS`.
    """
    return import_module(f"edgefl.reproduce.{name.replace('-', '_')}")
