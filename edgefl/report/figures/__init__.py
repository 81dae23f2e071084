"""The papers' figures from runs of one's own: axes, series and units as in the paper, drawn in edgefl's
way.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from edgefl.config import nearest
from edgefl.errors import ConfigError
from edgefl.report.chart import Chart
from edgefl.report.figures import aem, clustered, fedmix, pfl_moe
from edgefl.report.folder import Folder

Make = Callable[[Sequence[Folder]], Chart]


@dataclass(frozen=True)
class PaperFigure:
    """One figure. shows: in our words; needs: which runs; algorithms: of these runs; make: ConfigError for
    runs that lack something.
    """

    paper: str
    shows: str
    needs: str
    algorithms: tuple[str, ...]
    make: Make


_AEM = "Isaksson et al., Adaptive Expert Models"
_FEDMIX = "Reisser et al., Federated Mixture of Experts"
_CLUSTERED = "Filippakopoulos et al., Clustered Federated Learning"
_PFL = "Guo et al., PFL-MoE"
_J = "runs of aem with several num_experts"
_EPSILON = "runs of aem with epsilon 0 and above"
_P = "runs of aem with several p"
_LAYERS = "runs with --layers-over EPOCHS"
_EVALUATED = "runs of clustered with --evaluate-every 1"
_SCATTER = "a run of pfl-mf and one of pfl-mfe with the same federation"
_FEDERATED = ("fedavg", "pfl-ft", "pfl-fb", "pfl-mf", "pfl-mfe")
_BOTH = ("pfl-mf", "pfl-mfe")

_ROWS: Sequence[tuple[str, str, str, str, tuple[str, ...], Make]] = (
    (
        "aem-3",
        _AEM,
        "accuracy by majority fraction p, without and with exploration",
        _P,
        ("aem",),
        aem.by_fraction,
    ),
    (
        "aem-4",
        _AEM,
        "accuracy by the number of cluster models J, a panel each p",
        _J,
        ("aem",),
        aem.by_models,
    ),
    ("aem-5", _AEM, "clients in each cluster, sorted, a panel each p", _EPSILON, ("aem",), aem.cluster_sizes),
    (
        "aem-6",
        _AEM,
        "distribution of client accuracy, a panel each data set and p",
        _EPSILON,
        ("aem",),
        aem.distribution,
    ),
    (
        "fedmix-1",
        _FEDMIX,
        "sliding window of the gradient divergence",
        "runs of fedavg and fedmix",
        ("fedavg", "fedmix"),
        fedmix.divergence,
    ),
    (
        "fedmix-7",
        _FEDMIX,
        "true permutations beside q(expert given the client)",
        "a run of fedmix-permutation on the partition permutation",
        ("fedmix-permutation",),
        fedmix.permutations,
    ),
    (
        "fedmix-14",
        _FEDMIX,
        "q(expert given the label) over rounds; with objective likelihood the gate by label",
        "a run of fedmix",
        ("fedmix",),
        fedmix.specialization,
    ),
    (
        "clustered-3",
        _CLUSTERED,
        "similarity of convolutional and dense layers, by epochs of pretraining",
        _LAYERS,
        (),
        clustered.heat_maps,
    ),
    (
        "clustered-4",
        _CLUSTERED,
        "similarity of dense layers, pair by pair, a line each epoch",
        _LAYERS,
        (),
        clustered.pair_lines,
    ),
    (
        "clustered-5",
        _CLUSTERED,
        "test loss by lambda, with clusters and without",
        _EVALUATED,
        ("clustered",),
        clustered.loss,
    ),
    (
        "clustered-6",
        _CLUSTERED,
        "test accuracy by lambda, with clusters and without",
        _EVALUATED,
        ("clustered",),
        clustered.accuracy,
    ),
    (
        "pfl-moe-1",
        _PFL,
        "local and global test of models trained alone, by alpha",
        "runs of local with several alpha",
        ("local",),
        pfl_moe.alone,
    ),
    (
        "pfl-moe-2",
        _PFL,
        "global test of FedAvg over rounds, a line each alpha",
        "runs of fedavg with --evaluate-every 1",
        _FEDERATED,
        pfl_moe.federation,
    ),
    (
        "pfl-moe-3",
        _PFL,
        "gain of each client over FedAvg; in the paper Fashion-MNIST and LeNet-5",
        _SCATTER,
        _BOTH,
        pfl_moe.gains,
    ),
    ("pfl-moe-4", _PFL, "the same; in the paper CIFAR-10 and LeNet-5", _SCATTER, _BOTH, pfl_moe.gains),
    ("pfl-moe-5", _PFL, "the same; in the paper CIFAR-10 and VGG-16", _SCATTER, _BOTH, pfl_moe.gains),
)
FIGURES: Mapping[str, PaperFigure] = {row[0]: PaperFigure(*row[1:]) for row in _ROWS}


def figure(name: str) -> PaperFigure:
    """Return a figure by name; ConfigError names the nearest."""
    if name not in FIGURES:
        raise ConfigError(
            f"no figure {name!r}; {nearest(name, list(FIGURES))}; `edgefl report --list` names all"
        )
    return FIGURES[name]


def make_figure(name: str, folders: Sequence[Folder]) -> Chart:
    """Return the figure of these folders.

    ConfigError when one of them is of another algorithm or lacks what the figure needs.
    """
    wanted = figure(name)
    for folder in folders:
        if wanted.algorithms and folder.algorithm not in wanted.algorithms:
            raise ConfigError(
                f"{folder.path} is a run of {folder.algorithm or 'nothing'}, {name} needs {wanted.needs}"
            )
    if not folders:
        raise ConfigError(f"no folder given, {name} needs {wanted.needs}")
    return wanted.make(folders)
