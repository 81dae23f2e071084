"""CIFAR-100: 60,000 colour pictures of 32x32 pixels, 100 classes in 20 superclasses.

Reads the binary version, or else a `cifar100_20.npz` with 20 of the classes. That file contains `x_train`,
`y_train`, `x_test`, `y_test` and `classes`, the names of the classes.

Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
"""

from pathlib import Path

import numpy as np

from edgefl.base.errors import DataError
from edgefl.base.types import Labels
from edgefl.data.arrays import read_arrays, read_parts
from edgefl.data.dataset import Dataset
from edgefl.data.datasets.cifar import read_cifar_records
from edgefl.data.datasets.fetch import RemoteFile, find_file, find_or_download

ARCHIVE = "cifar-100-binary.tar.gz"
REMOTE = RemoteFile(
    "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
)
SUPERCLASSES = (
    "beaver dolphin otter seal whale",
    "aquarium_fish flatfish ray shark trout",
    "orchid poppy rose sunflower tulip",
    "bottle bowl can cup plate",
    "apple mushroom orange pear sweet_pepper",
    "clock keyboard lamp telephone television",
    "bed chair couch table wardrobe",
    "bee beetle butterfly caterpillar cockroach",
    "bear leopard lion tiger wolf",
    "bridge castle house road skyscraper",
    "cloud forest mountain plain sea",
    "camel cattle chimpanzee elephant kangaroo",
    "fox porcupine possum raccoon skunk",
    "crab lobster snail spider worm",
    "baby boy girl man woman",
    "crocodile dinosaur lizard snake turtle",
    "hamster mouse rabbit shrew squirrel",
    "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "bicycle bus motorcycle pickup_truck train",
    "lawn_mower rocket streetcar tank tractor",
)


def load() -> Dataset:
    """Load 50,000 training and 10,000 test pictures, with the superclass of each class.

    If only the file with 20 classes exists, the data set has these classes. Its split is not the published
    split, and its note says so.

    Returns:
        The data set. Pictures have shape (n, 32, 32, 3), uint8.

    Raises:
        DataError: the files are missing and cannot be downloaded, or are damaged.
    """
    npz_path = find_file("cifar100_20.npz")
    if npz_path and not find_file(ARCHIVE):
        return _load_subset(npz_path)
    archive = find_or_download(ARCHIVE, REMOTE)
    (x_train, train), (x_test, test) = (
        read_cifar_records(archive, [f"cifar-100-binary/{part}.bin"], 2) for part in ("train", "test")
    )
    coarse = np.zeros(100, np.int64)
    coarse[train[:, 1]] = train[:, 0]
    return Dataset(
        x_train=x_train,
        y_train=train[:, 1].astype(np.int64),
        x_test=x_test,
        y_test=test[:, 1].astype(np.int64),
        num_classes=100,
        coarse=coarse,
    )


def find_superclasses(names: list[str]) -> Labels:
    """Return the superclass of each class.

    Args:
        names: names of the classes.

    Returns:
        Numbers of the superclasses, shape (len(names),), int64.

    Raises:
        DataError: CIFAR-100 has no class of such a name.
    """
    kinds = {name: kind for kind, row in enumerate(SUPERCLASSES) for name in row.split()}
    unknown = [name for name in names if name not in kinds]
    if unknown:
        raise DataError(
            f"CIFAR-100 has no class {unknown[0]!r}, expected a CIFAR-100 class such as "
            f"{', '.join(sorted(kinds)[:3])}"
        )
    return np.array([kinds[name] for name in names], np.int64)


def _load_subset(path: Path) -> Dataset:
    names = [str(name) for name in read_arrays(path, ("classes",))["classes"]]
    note = (
        f"{len(names)} of the 100 classes, not in the published split: {', '.join(names)}; put {ARCHIVE} "
        "in the same folder for all classes"
    )
    x_train, y_train, x_test, y_test = read_parts(path)
    return Dataset(
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        num_classes=len(names),
        coarse=find_superclasses(names),
        note=note,
    )
