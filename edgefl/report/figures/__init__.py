"""Draws the papers' figures from the user's own runs, with the paper's axes, series and units."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from edgefl.config import suggest_nearest
from edgefl.errors import ConfigError
from edgefl.report.chart import Chart
from edgefl.report.figures import aem, clustered, fedmix, pfl_moe
from edgefl.report.folder import Folder

ChartFunction = Callable[[Sequence[Folder]], Chart]


@dataclass(frozen=True)
class PaperFigure:
    """A figure of a paper.

    Attributes:
        paper: authors and short title of the paper.
        shows: describes the figure in our words.
        needs: describes the runs that it needs.
        algorithms: algorithms of these runs, empty for any.
        make: draws the figure. It raises ConfigError for runs that lack data.
    """

    paper: str
    shows: str
    needs: str
    algorithms: tuple[str, ...]
    make: ChartFunction


_AEM = "Isaksson et al., Adaptive Expert Models"
_FEDMIX = "Reisser et al., Federated Mixture of Experts"
_CLUSTERED = "Filippakopoulos et al., Clustered Federated Learning"
_PFL_MOE = "Guo et al., PFL-MoE"
_NEEDS_MODELS = "runs of aem with several num_experts"
_NEEDS_EPSILON = "runs of aem with epsilon 0 and above"
_NEEDS_P = "runs of aem with several p"
_NEEDS_LAYERS = "runs with --layers-over EPOCHS"
_NEEDS_EVALUATION = "runs of clustered with --evaluate-every 1"
_NEEDS_MIXTURES = "a run of pfl-mf and one of pfl-mfe with the same federation"
_FEDERATED_ALGORITHMS = ("fedavg", "pfl-ft", "pfl-fb", "pfl-mf", "pfl-mfe")
_MIXTURE_ALGORITHMS = ("pfl-mf", "pfl-mfe")

_ROWS: Sequence[tuple[str, str, str, str, tuple[str, ...], ChartFunction]] = (
    (
        "aem-3",
        _AEM,
        "accuracy by majority fraction p, without and with exploration",
        _NEEDS_P,
        ("aem",),
        aem.chart_accuracy_by_fraction,
    ),
    (
        "aem-4",
        _AEM,
        "accuracy by the number of cluster models J, a panel for each p",
        _NEEDS_MODELS,
        ("aem",),
        aem.chart_accuracy_by_models,
    ),
    (
        "aem-5",
        _AEM,
        "clients in each cluster, sorted, a panel for each p",
        _NEEDS_EPSILON,
        ("aem",),
        aem.chart_cluster_sizes,
    ),
    (
        "aem-6",
        _AEM,
        "distribution of client accuracy, a panel for each data set and p",
        _NEEDS_EPSILON,
        ("aem",),
        aem.chart_accuracy_distribution,
    ),
    (
        "fedmix-1",
        _FEDMIX,
        "sliding window of the gradient divergence",
        "runs of fedavg and fedmix",
        ("fedavg", "fedmix"),
        fedmix.chart_divergence,
    ),
    (
        "fedmix-7",
        _FEDMIX,
        "true permutations and q(expert given the client)",
        "a run of fedmix-permutation on the partition permutation",
        ("fedmix-permutation",),
        fedmix.chart_permutations,
    ),
    (
        "fedmix-14",
        _FEDMIX,
        "q(expert given the label) over rounds; with the objective likelihood, the gate by label",
        "a run of fedmix",
        ("fedmix",),
        fedmix.chart_specialization,
    ),
    (
        "clustered-3",
        _CLUSTERED,
        "similarity of convolutional and dense layers, by epochs of pretraining",
        _NEEDS_LAYERS,
        (),
        clustered.chart_layer_similarity,
    ),
    (
        "clustered-4",
        _CLUSTERED,
        "similarity of dense layers for each pair of clients, a line for each epoch",
        _NEEDS_LAYERS,
        (),
        clustered.chart_pair_similarity,
    ),
    (
        "clustered-5",
        _CLUSTERED,
        "test loss by lambda, with and without clusters",
        _NEEDS_EVALUATION,
        ("clustered",),
        clustered.chart_test_loss,
    ),
    (
        "clustered-6",
        _CLUSTERED,
        "test accuracy by lambda, with and without clusters",
        _NEEDS_EVALUATION,
        ("clustered",),
        clustered.chart_test_accuracy,
    ),
    (
        "pfl-moe-1",
        _PFL_MOE,
        "local and global test of models trained alone, by alpha",
        "runs of local with several alpha",
        ("local",),
        pfl_moe.chart_local_models,
    ),
    (
        "pfl-moe-2",
        _PFL_MOE,
        "global test of FedAvg over rounds, a line for each alpha",
        "runs of fedavg with --evaluate-every 1",
        _FEDERATED_ALGORITHMS,
        pfl_moe.chart_global_accuracy,
    ),
    (
        "pfl-moe-3",
        _PFL_MOE,
        "gain of each client over FedAvg; in the paper Fashion-MNIST and LeNet-5",
        _NEEDS_MIXTURES,
        _MIXTURE_ALGORITHMS,
        pfl_moe.chart_gains,
    ),
    (
        "pfl-moe-4",
        _PFL_MOE,
        "the same; in the paper CIFAR-10 and LeNet-5",
        _NEEDS_MIXTURES,
        _MIXTURE_ALGORITHMS,
        pfl_moe.chart_gains,
    ),
    (
        "pfl-moe-5",
        _PFL_MOE,
        "the same; in the paper CIFAR-10 and VGG-16",
        _NEEDS_MIXTURES,
        _MIXTURE_ALGORITHMS,
        pfl_moe.chart_gains,
    ),
)
PAPER_FIGURES: Mapping[str, PaperFigure] = {row[0]: PaperFigure(*row[1:]) for row in _ROWS}


def find_figure(name: str) -> PaperFigure:
    """Return a figure by its name.

    Raises:
        ConfigError: no figure has this name. The message suggests the nearest one.
    """
    if name not in PAPER_FIGURES:
        raise ConfigError(
            f"no figure {name!r}; {suggest_nearest(name, list(PAPER_FIGURES))}; `edgefl report --list` "
            "lists all"
        )
    return PAPER_FIGURES[name]


def make_figure(name: str, folders: Sequence[Folder]) -> Chart:
    """Return the chart of a figure.

    Args:
        name: name of the figure, a key of `PAPER_FIGURES`.
        folders: the runs.

    Raises:
        ConfigError: no figure has this name, or the runs lack data that it needs.
        StateError: the data of a run are damaged.
    """
    paper_figure = find_figure(name)
    for folder in folders:
        if paper_figure.algorithms and folder.algorithm not in paper_figure.algorithms:
            raise ConfigError(
                f"{folder.path} is a run of {folder.algorithm or 'no algorithm'}, but {name} needs "
                f"{paper_figure.needs}"
            )
    if not folders:
        raise ConfigError(f"no folder given; {name} needs {paper_figure.needs}")
    return paper_figure.make(folders)
