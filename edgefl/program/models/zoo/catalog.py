"""The built-in networks by name, with their sources and options.

Their modules import Keras only when they build a network, because listing them must not import it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edgefl.base.errors import ConfigError
from edgefl.base.options import check_options, read_defaults
from edgefl.program.models.zoo.aem_cnn import aem_cnn
from edgefl.program.models.zoo.autoencoder import autoencoder
from edgefl.program.models.zoo.cnn1d import cnn1d
from edgefl.program.models.zoo.conv_autoencoder import conv_autoencoder
from edgefl.program.models.zoo.ds_cnn import ds_cnn
from edgefl.program.models.zoo.five_conv import five_conv
from edgefl.program.models.zoo.gate_cnn import gate_cnn
from edgefl.program.models.zoo.gate_pixels import gate_pixels
from edgefl.program.models.zoo.lenet5 import lenet5
from edgefl.program.models.zoo.mlp import mlp
from edgefl.program.models.zoo.mobilenetv1 import mobilenetv1
from edgefl.program.models.zoo.mobilenetv2 import mobilenetv2
from edgefl.program.models.zoo.resnet8 import resnet8
from edgefl.program.models.zoo.resnet20 import resnet20
from edgefl.program.models.zoo.softmax import softmax
from edgefl.program.models.zoo.vgg16 import vgg16


@dataclass(frozen=True)
class ZooNetwork:
    """A network of the zoo.

    Attributes:
        build: builds the Keras model from `input_shape` and `num_classes`. Its keywords are the options.
        source: where it comes from and how many weights it has, in one line.
    """

    build: Callable[..., Any]
    source: str


ZOO: Mapping[str, ZooNetwork] = {
    "lenet5": ZooNetwork(
        lenet5,
        "LeCun et al. 1998 as in PFL-MoE (arXiv:2012.15589): 61,706 weights at 28x28x1; as in FedMix "
        "with padding valid: 44,426",
    ),
    "aem-cnn": ZooNetwork(
        aem_cnn,
        "LEAF CNN of Adaptive Expert Models (Isaksson et al. 2022): 942,634 weights at 32x32x3",
    ),
    "five-conv": ZooNetwork(
        five_conv,
        "clustered federated learning on dense layers: five 3x3 convolutions and one dense layer, "
        "130,826 weights at 32x32x3",
    ),
    "resnet20": ZooNetwork(
        resnet20,
        "He et al. 2016 with the group norm of Wu and He 2018, as in FedMix: 269,722 weights at 32x32x3",
    ),
    "mobilenetv2": ZooNetwork(
        mobilenetv2,
        "Sandler et al. 2018, as in FedAP: 2,266,951 weights with seven classes, images from 16x16 up",
    ),
    "mobilenetv1": ZooNetwork(
        mobilenetv1,
        "Howard et al. 2017 at width .25, as in MLPerf Tiny: 219,058 weights with two classes, images "
        "from 16x16 up",
    ),
    "resnet8": ZooNetwork(
        resnet8,
        "He et al. 2016 with batch norm, as in MLPerf Tiny: 78,666 weights at 32x32x3",
    ),
    "ds-cnn": ZooNetwork(
        ds_cnn,
        "keyword spotting (Zhang et al. 2017), as in MLPerf Tiny: 24,908 weights at 49x10x1 with twelve "
        "classes",
    ),
    "vgg16": ZooNetwork(
        vgg16,
        "Simonyan and Zisserman 2014 as in PFL-MoE: 15,245,130 weights at 32x32x3",
    ),
    "cnn1d": ZooNetwork(
        cnn1d,
        "windows of inertial sensors such as UCI HAR (Anguita et al. 2013): 16,326 weights at 128x9 "
        "with six classes",
    ),
    "gate-pixels": ZooNetwork(
        gate_pixels,
        "linear gate of PFL-MF on the flattened sample, one class per expert: 6,146 weights at 32x32x3 "
        "over two",
    ),
    "gate-cnn": ZooNetwork(
        gate_cnn,
        "gate of Adaptive Expert Models (Isaksson et al. 2022), one class per expert: 6,995 weights at "
        "32x32x3 over seven",
    ),
    "softmax": ZooNetwork(
        softmax,
        "multinomial logistic regression: one dense layer on the flattened sample",
    ),
    "mlp": ZooNetwork(
        mlp,
        "multilayer perceptron of FedMix (Reisser et al. 2021): two hidden layers of 200 units, 199,210 "
        "weights at 28x28x1",
    ),
    "autoencoder": ZooNetwork(
        autoencoder,
        "autoencoder of MLPerf Tiny for anomaly detection (Koizumi et al. 2020): 269,992 weights at 640 "
        "values",
    ),
    "conv-autoencoder": ZooNetwork(
        conv_autoencoder,
        "convolutional autoencoder for windows of sensors, for anomaly detection: 11,038 weights at 128x3",
    ),
}


def list_models() -> dict[str, str]:
    """Return the source of each network in one line, by name."""
    return {name: network.source for name, network in ZOO.items()}


def read_model_defaults(name: str) -> Mapping[str, Any]:
    """Return the options of a network with their defaults.

    Args:
        name: a name of `list_models`.
    """
    return read_defaults(ZOO[name].build)


def check_model_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Check the options of a network, and convert whole numbers to float where the default is a float.

    Args:
        name: a name of `list_models`.

    Raises:
        ConfigError: an option is unknown, has another type than its default, or is out of range. The shares
            `dropout` and `momentum` range from 0 to below 1, and other whole numbers start at 1.
    """
    defaults = read_model_defaults(name)
    checked = check_options(f"[model] {name}", defaults, options)
    for key, value in checked.items():
        if key in ("dropout", "momentum") and not 0 <= value < 1:
            raise ConfigError(
                f"[model] {name}: {key} is {value!r}, expected a share of at least 0 and below 1 such as "
                f"{defaults[key]!r}"
            )
        if isinstance(value, int) and value < 1:
            raise ConfigError(
                f"[model] {name}: {key} is {value!r}, expected 1 or more such as {defaults[key]!r}"
            )
    return checked
