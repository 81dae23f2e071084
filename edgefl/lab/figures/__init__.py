"""Draws the papers' figures from the user's own runs, with the paper's axes, series and units."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from edgefl.base.errors import ConfigError
from edgefl.base.options import suggest_nearest
from edgefl.lab.figures import aem, clustered, fedmix, pfl_moe
from edgefl.watch.report.chart import Chart
from edgefl.watch.report.folder import Folder

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

PAPER_FIGURES: Mapping[str, PaperFigure] = {
    "aem-3": PaperFigure(
        paper=_AEM,
        shows="accuracy by majority fraction p, without and with exploration",
        needs=_NEEDS_P,
        algorithms=("aem",),
        make=aem.chart_accuracy_by_fraction,
    ),
    "aem-4": PaperFigure(
        paper=_AEM,
        shows="accuracy by the number of cluster models J, a panel for each p",
        needs=_NEEDS_MODELS,
        algorithms=("aem",),
        make=aem.chart_accuracy_by_models,
    ),
    "aem-5": PaperFigure(
        paper=_AEM,
        shows="clients in each cluster, sorted, a panel for each p",
        needs=_NEEDS_EPSILON,
        algorithms=("aem",),
        make=aem.chart_cluster_sizes,
    ),
    "aem-6": PaperFigure(
        paper=_AEM,
        shows="distribution of client accuracy, a panel for each data set and p",
        needs=_NEEDS_EPSILON,
        algorithms=("aem",),
        make=aem.chart_accuracy_distribution,
    ),
    "fedmix-1": PaperFigure(
        paper=_FEDMIX,
        shows="sliding window of the gradient divergence",
        needs="runs of fedavg and fedmix",
        algorithms=("fedavg", "fedmix"),
        make=fedmix.chart_divergence,
    ),
    "fedmix-7": PaperFigure(
        paper=_FEDMIX,
        shows="true permutations and q(expert given the client)",
        needs="a run of fedmix-permutation on the partition permutation",
        algorithms=("fedmix-permutation",),
        make=fedmix.chart_permutations,
    ),
    "fedmix-14": PaperFigure(
        paper=_FEDMIX,
        shows="q(expert given the label) over rounds; with the objective likelihood, the gate by label",
        needs="a run of fedmix",
        algorithms=("fedmix",),
        make=fedmix.chart_specialization,
    ),
    "clustered-3": PaperFigure(
        paper=_CLUSTERED,
        shows="similarity of convolutional and dense layers, by epochs of pretraining",
        needs=_NEEDS_LAYERS,
        algorithms=(),
        make=clustered.chart_layer_similarity,
    ),
    "clustered-4": PaperFigure(
        paper=_CLUSTERED,
        shows="similarity of dense layers for each pair of clients, a line for each epoch",
        needs=_NEEDS_LAYERS,
        algorithms=(),
        make=clustered.chart_pair_similarity,
    ),
    "clustered-5": PaperFigure(
        paper=_CLUSTERED,
        shows="test loss by lambda, with and without clusters",
        needs=_NEEDS_EVALUATION,
        algorithms=("clustered",),
        make=clustered.chart_test_loss,
    ),
    "clustered-6": PaperFigure(
        paper=_CLUSTERED,
        shows="test accuracy by lambda, with and without clusters",
        needs=_NEEDS_EVALUATION,
        algorithms=("clustered",),
        make=clustered.chart_test_accuracy,
    ),
    "pfl-moe-1": PaperFigure(
        paper=_PFL_MOE,
        shows="local and global test of models trained alone, by alpha",
        needs="runs of local with several alpha",
        algorithms=("local",),
        make=pfl_moe.chart_local_models,
    ),
    "pfl-moe-2": PaperFigure(
        paper=_PFL_MOE,
        shows="global test of FedAvg over rounds, a line for each alpha",
        needs="runs of fedavg with --evaluate-every 1",
        algorithms=_FEDERATED_ALGORITHMS,
        make=pfl_moe.chart_global_accuracy,
    ),
    "pfl-moe-3": PaperFigure(
        paper=_PFL_MOE,
        shows="gain of each client over FedAvg; in the paper Fashion-MNIST and LeNet-5",
        needs=_NEEDS_MIXTURES,
        algorithms=_MIXTURE_ALGORITHMS,
        make=pfl_moe.chart_gains,
    ),
    "pfl-moe-4": PaperFigure(
        paper=_PFL_MOE,
        shows="the same; in the paper CIFAR-10 and LeNet-5",
        needs=_NEEDS_MIXTURES,
        algorithms=_MIXTURE_ALGORITHMS,
        make=pfl_moe.chart_gains,
    ),
    "pfl-moe-5": PaperFigure(
        paper=_PFL_MOE,
        shows="the same; in the paper CIFAR-10 and VGG-16",
        needs=_NEEDS_MIXTURES,
        algorithms=_MIXTURE_ALGORITHMS,
        make=pfl_moe.chart_gains,
    ),
}


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
