"""The content of a plan: named signatures, the shapes of their inputs and outputs, and the export template.

A plan travels as one safetensors blob of uint8 tensors: `spec` (JSON), `program` (plan.tflite), `template`
(the float graph of the mixture, batch 1, with placeholder weights) and `single` (the same graph for one
model).
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors.numpy import load as st_load
from safetensors.numpy import save as st_save

from edgefl.base.errors import ConfigError, PlanError
from edgefl.base.system.files import parse_json, write_atomic
from edgefl.base.tasks.config import CLASSIFICATION, TaskConfig
from edgefl.base.tasks.samples import NAME_KEYS, SamplesConfig
from edgefl.base.types import Array

PLAN_FORMAT = 2
TASK_PLAN_FORMAT = 3
"""The format of plans for another task than classification. An older edgefl refuses it."""
AUGMENTED_PLAN_FORMAT = 4
"""The format of plans whose training changes pictures at random. An older edgefl refuses it."""
SAMPLES_PLAN_FORMAT = 5
"""The format of plans that state unit or layout of the samples. An older edgefl refuses it."""
MICRO_BATCH_PLAN_FORMAT = 6
"""The format of plans that train a batch in several calls. An older edgefl refuses it."""
PLAN_FORMATS = (
    PLAN_FORMAT,
    TASK_PLAN_FORMAT,
    AUGMENTED_PLAN_FORMAT,
    SAMPLES_PLAN_FORMAT,
    MICRO_BATCH_PLAN_FORMAT,
)
PREDICT_MIXTURE = "predict_mixture"
"""The signature that predicts with the personal model of a client. The export template computes the same."""
PREDICT_SINGLE = "predict"
"""The signature that predicts with one model. A client may ship one model instead of its mixture."""
PREDICT_BLEND = "predict_blend"
"""Predicts with several models of a client, see `edgefl.learning.client.blend`. No program has such a
signature."""
TRAIN_SINGLE = "train_single"
"""The signature that trains one model on the samples of a client, from scratch or from a federated model."""
PERSONAL_SIGNATURES = (PREDICT_MIXTURE, PREDICT_SINGLE, PREDICT_BLEND)
"""The signatures of a client's personal model."""
PLAN_FILE_NAMES = {
    "spec": "plan.json",
    "program": "plan.tflite",
    "template": "template.tflite",
    "single": "single.tflite",
}
INITIAL_FILE = "initial.safetensors"
"""Initial weights next to the files of a plan, if a federation starts from them."""


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and dtype of one tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class SignatureSpec:
    """One pure function of the program.

    In the `.tflite`, the arguments have positional names: `d_<name>` for data, `t_<i>` for trained weights,
    `f_<i>` for frozen weights, `s_<i>` for optimizer slots, `n_<i>` for noise, `g_<i>` for sums of gradients
    and `h_<name>` for hyper-parameters.

    A `train` signature also takes the labels `d_y`, shape (batch,), int32, and the weights `d_sample_weight`,
    shape (batch,), float32. For another task than classification, `d_y` is `label`, shape (batch, outputs),
    float32. It returns the new `t_<i>` and `s_<i>`, and the scalar `loss`, the mean over the
    weighted samples. A `predict` signature takes data and frozen weights and returns `out`.

    A `train` signature with `gradients` takes a micro-batch, a part of a batch, so that it needs less memory.
    `d_sample_weight` are then shares of the whole batch. It adds the part's gradients to `g_<i>`, which are 0
    for the first part, and also returns them. Its `t_<i>` and `s_<i>` are valid after the last part, and
    its `loss` is the part's share of the batch's loss.

    Attributes:
        name: name of the function.
        kind: `train` or `predict`.
        batch_size: number of samples of a training step or of a prediction. Without `gradients` it is the
            size of the first axis of data and noise, otherwise this axis has the size of a micro-batch.
        data: the data arguments.
        trained: the weights that the function updates.
        frozen: the weights that the function only reads.
        slots: optimizer slots, zero at the start.
        noise: uniform noise in [0, 1).
        hyper: hyper-parameters with their defaults, float32 scalars in the `.tflite`.
        out: the output of a `predict` signature, else None.
        label: the labels of a `train` signature that does not train on classes, else None.
        gradients: the weights whose gradients are summed over micro-batches. Empty if one call trains on a
            whole batch.
    """

    name: str
    kind: Literal["train", "predict"]
    batch_size: int
    data: tuple[TensorSpec, ...]
    trained: tuple[TensorSpec, ...] = ()
    frozen: tuple[TensorSpec, ...] = ()
    slots: tuple[TensorSpec, ...] = ()
    noise: tuple[TensorSpec, ...] = ()
    hyper: Mapping[str, float] = field(default_factory=dict)
    out: TensorSpec | None = None
    label: TensorSpec | None = None
    gradients: tuple[TensorSpec, ...] = ()

    @property
    def call_size(self) -> int:
        """Number of samples that one call takes."""
        return self.data[0].shape[0] if self.gradients else self.batch_size


@dataclass(frozen=True)
class Binding:
    """The position of one weight of the mixture in the template.

    The content of the tensor is `transpose(weight, permutation).reshape(shape)`.

    Attributes:
        weight: name of the weight.
        tensor: index of the tensor in subgraph 0.
        permutation: order of the axes of the weight.
        shape: shape of the tensor.
        derived: a rule of `edgefl.program.plan.fill` that computes the value from several weights (a folded
            batch norm) or from a slice of the weight. Empty for a weight that is copied.
    """

    weight: str
    tensor: int
    permutation: tuple[int, ...]
    shape: tuple[int, ...]
    derived: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PlanSpec:
    """Everything that a device must know about a plan before running it.

    Attributes:
        model: name of the model that the plan was built from.
        algorithm: name of the algorithm.
        options: keyword arguments of the algorithm's factory.
        input_shape: shape of one sample.
        num_classes: number of classes, or of outputs for another task than classification.
        weights: tensors of the federated model, in wire order.
        signatures: the functions of the program.
        bindings: positions of the weights in the template of the mixture.
        model_options: options of the model.
        single_bindings: positions of the weights in the template of one model.
        personalization: keys of `edgefl.base.config.PersonalizationConfig`. If it is empty, a client ships
            its mixture without comparing models.
        format: version of the plan format.
        task: keys of `edgefl.base.tasks.config.TaskConfig`. Empty for its defaults, a classification.
        augmentation: keys of `edgefl.base.config.AugmentationConfig`. Empty without augmentation.
        samples: keys of `edgefl.base.config.SamplesConfig`. Empty for its defaults.
        process_mb: estimated peak memory of a device's process that trains the plan, in MB of 10^6 bytes, see
            `edgefl.program.plan.memory`. 0 if it is unknown.
    """

    model: str
    algorithm: str
    options: Mapping[str, Any]
    input_shape: tuple[int, ...]
    num_classes: int
    weights: tuple[TensorSpec, ...]
    signatures: tuple[SignatureSpec, ...]
    bindings: tuple[Binding, ...] = ()
    model_options: Mapping[str, Any] = field(default_factory=dict)
    single_bindings: tuple[Binding, ...] = ()
    personalization: Mapping[str, Any] = field(default_factory=dict)
    format: int = PLAN_FORMAT
    task: Mapping[str, Any] = field(default_factory=dict)
    augmentation: Mapping[str, Any] = field(default_factory=dict)
    samples: Mapping[str, Any] = field(default_factory=dict)
    process_mb: int = 0

    @property
    def is_classification(self) -> bool:
        """Whether the model classifies samples."""
        return bool(self.task.get("kind", CLASSIFICATION) == CLASSIFICATION)

    def normalize_input(self, x: Array) -> Array:
        """Return samples after `mean` and `std` of `[model]`, or unchanged without them.

        Programs do this themselves. It is for figures about a gate that reads samples.

        Args:
            x: the samples, shape (n, *input_shape), float32.
        """
        if not self.model_options.get("mean"):
            return x
        mean, std = (np.float32(self.model_options[key]) for key in ("mean", "std"))
        return np.asarray((x - mean) / std, np.float32)

    def find_signature(self, name: str) -> SignatureSpec:
        """Return the signature of this name.

        Raises:
            PlanError: the plan has no such signature.
        """
        for signature in self.signatures:
            if signature.name == name:
                return signature
        have = ", ".join(s.name for s in self.signatures)
        raise PlanError(
            f"the plan has no signature {name!r}, it has {have}; build it for the algorithm that needs it"
        )


@dataclass(frozen=True)
class Plan:
    """A plan specification with its flatbuffers.

    Attributes:
        spec: the specification.
        program: the `.tflite` with all signatures.
        template: the float `.tflite` of the mixture, with placeholder weights.
        single: the template of one model. Empty if the template of the mixture serves one model too.
    """

    spec: PlanSpec
    program: bytes
    template: bytes
    single: bytes = b""

    def find_template(self, signature: str) -> tuple[bytes, tuple[Binding, ...]]:
        """Return the template of a predict signature, and the position of each weight in it."""
        if signature == PREDICT_SINGLE and self.single:
            return self.single, self.spec.single_bindings
        return self.template, self.spec.bindings

    @cached_property
    def id(self) -> str:
        """The id of the plan: the sha256 of its wire form, in hex."""
        return hashlib.sha256(encode_plan(self)).hexdigest()


def _parse_tensors(rows: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(r["name"], tuple(r["shape"]), r["dtype"]) for r in rows)


def _parse_bindings(rows: list[dict[str, Any]]) -> tuple[Binding, ...]:
    return tuple(
        Binding(
            weight=b["weight"],
            tensor=b["tensor"],
            permutation=tuple(b["permutation"]),
            shape=tuple(b["shape"]),
            derived=b["derived"],
        )
        for b in rows
    )


def _parse_table(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    table = raw.get(key, {})
    if not isinstance(table, dict):
        raise TypeError(f"{key} is {table!r}")
    return table


def _parse_count(raw: Mapping[str, Any], key: str) -> int:
    count = raw.get(key, 0)
    if type(count) is not int or count < 0:
        raise TypeError(f"{key} is {count!r}")
    return count


def divide_batch(batch_size: int, micro_batch: int) -> int:
    """Return the number of samples of each part of a batch. The parts have equal sizes.

    Args:
        micro_batch: maximum number of samples of a part. 0: the whole batch is one part.
    """
    parts = math.ceil(batch_size / micro_batch) if micro_batch else 1
    return math.ceil(batch_size / parts)


def choose_plan_format(
    task: Mapping[str, Any],
    augmentation: Mapping[str, Any],
    samples: Mapping[str, Any],
    signatures: Iterable[SignatureSpec] = (),
) -> int:
    """Return the lowest format of a plan with these entries, which most versions of edgefl can read.

    Args:
        task: see `PlanSpec`.
        augmentation: see `PlanSpec`.
        samples: see `PlanSpec`.
        signatures: see `PlanSpec`.
    """
    if any(signature.gradients for signature in signatures):
        return MICRO_BATCH_PLAN_FORMAT
    if samples:
        return SAMPLES_PLAN_FORMAT
    if augmentation:
        return AUGMENTED_PLAN_FORMAT
    return TASK_PLAN_FORMAT if task else PLAN_FORMAT


def serialize_spec(spec: PlanSpec) -> str:
    """Return the specification as JSON with sorted keys. Equal specifications give equal bytes."""
    fields = asdict(spec)
    for signature in fields["signatures"]:
        if signature["label"] is None:
            del signature["label"]
        if not signature["gradients"]:
            del signature["gradients"]
    for key in ("task", "augmentation", "samples", "process_mb"):
        if not fields[key]:
            del fields[key]
    return json.dumps(fields, sort_keys=True, indent=1)


def parse_spec(text: str) -> PlanSpec:
    """Parse a specification from JSON.

    Raises:
        PlanError: the text is not a specification, has another format version or lacks a field.
    """
    try:
        raw = parse_json(text)
        if raw["format"] not in PLAN_FORMATS:
            limit = f"least {PLAN_FORMAT}" if raw["format"] < PLAN_FORMAT else f"most {max(PLAN_FORMATS)}"
            raise PlanError(
                f"plan format {raw['format']}, expected at {limit}; update edgefl on this device or rebuild "
                "the plan"
            )
        signatures = tuple(
            SignatureSpec(
                name=s["name"],
                kind=s["kind"],
                batch_size=s["batch_size"],
                data=_parse_tensors(s["data"]),
                trained=_parse_tensors(s["trained"]),
                frozen=_parse_tensors(s["frozen"]),
                slots=_parse_tensors(s["slots"]),
                noise=_parse_tensors(s["noise"]),
                hyper=s["hyper"],
                out=_parse_tensors([s["out"]])[0] if s["out"] else None,
                label=_parse_tensors([s["label"]])[0] if s.get("label") else None,
                gradients=_parse_tensors(s.get("gradients", [])),
            )
            for s in raw["signatures"]
        )
        return PlanSpec(
            model=raw["model"],
            algorithm=raw["algorithm"],
            options=raw["options"],
            input_shape=tuple(raw["input_shape"]),
            num_classes=raw["num_classes"],
            weights=_parse_tensors(raw["weights"]),
            signatures=signatures,
            bindings=_parse_bindings(raw["bindings"]),
            model_options=raw["model_options"],
            single_bindings=_parse_bindings(raw["single_bindings"]),
            personalization=raw["personalization"],
            format=raw["format"],
            task=_parse_table(raw, "task"),
            augmentation=_parse_table(raw, "augmentation"),
            samples=_parse_table(raw, "samples"),
            process_mb=_parse_count(raw, "process_mb"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PlanError(f"this is not a plan: {error!r}; build it again with `edgefl plan build`") from error


def read_num_classes(spec: PlanSpec) -> int | None:
    """Return the number of classes of a plan. None for another task than classification."""
    return spec.num_classes if spec.is_classification else None


def read_task(spec: PlanSpec) -> TaskConfig:
    """Return the task of a plan.

    Raises:
        PlanError: this version of edgefl does not know the task.
    """
    try:
        values = {**spec.task, "anomalies": tuple(spec.task.get("anomalies", ()))}
        return TaskConfig(**values)
    except (TypeError, ConfigError) as error:
        raise PlanError(
            f"the plan's task does not fit: {error}; update edgefl on this device, or build the plan again"
        ) from error


def read_samples_config(spec: PlanSpec) -> SamplesConfig:
    """Return unit and layout of the samples of a plan.

    Raises:
        PlanError: this version of edgefl does not know a setting of the plan, or the names do not fit it.
    """
    try:
        columns = {key: tuple(spec.samples.get(key, ())) for key in NAME_KEYS}
        samples = SamplesConfig(**{**spec.samples, **columns})
        samples.check_model(tuple(spec.input_shape), spec.num_classes, read_task(spec))
        return samples
    except (TypeError, ConfigError) as error:
        raise PlanError(
            f"the plan's samples do not fit: {error}; update edgefl on this device, or build the plan again"
        ) from error


def encode_plan(plan: Plan) -> bytes:
    """Encode a plan as one blob for the wire."""
    parts = {
        "spec": serialize_spec(plan.spec).encode(),
        "program": plan.program,
        "template": plan.template,
    } | ({"single": plan.single} if plan.single else {})
    return bytes(st_save({name: np.frombuffer(part, np.uint8) for name, part in parts.items()}))


def decode_plan(blob: bytes) -> Plan:
    """Decode a plan from a blob.

    Raises:
        PlanError: the blob is not a plan.
    """
    try:
        parts = {name: tensor.tobytes() for name, tensor in st_load(blob).items()}
        spec = parse_spec(parts["spec"].decode())
        return Plan(
            spec=spec, program=parts["program"], template=parts["template"], single=parts.get("single", b"")
        )
    except PlanError:
        raise
    except Exception as error:  # the error class of safetensors has no useful base class
        raise PlanError(f"this blob is not a plan: {error}; download it again") from error


def save_plan(plan: Plan, directory: Path) -> None:
    """Write the files of a plan to a directory, each atomically.

    Args:
        directory: directory of the plan. It is created if it does not exist.

    Raises:
        OSError: a file cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_atomic(directory / PLAN_FILE_NAMES["program"], plan.program)
    write_atomic(directory / PLAN_FILE_NAMES["template"], plan.template)
    if plan.single:
        write_atomic(directory / PLAN_FILE_NAMES["single"], plan.single)
    else:
        (directory / PLAN_FILE_NAMES["single"]).unlink(missing_ok=True)
    write_atomic(directory / PLAN_FILE_NAMES["spec"], serialize_spec(plan.spec).encode())


def load_plan(directory: Path) -> Plan:
    """Read a plan that `save_plan` has written.

    Raises:
        PlanError: a file of the plan is missing or damaged.
    """
    try:
        parts = {
            name: (directory / file).read_bytes()
            for name, file in PLAN_FILE_NAMES.items()
            if name != "single" or (directory / file).exists()
        }
    except OSError as error:
        raise PlanError(
            f"no plan in {directory}: {error}; make one with `edgefl plan build -o {directory}`"
        ) from error
    try:
        text = parts["spec"].decode()
    except UnicodeDecodeError as error:
        raise PlanError(
            f"{directory / PLAN_FILE_NAMES['spec']} is damaged: {error}; copy or build the plan again"
        ) from error
    return Plan(
        spec=parse_spec(text),
        program=parts["program"],
        template=parts["template"],
        single=parts.get("single", b""),
    )
