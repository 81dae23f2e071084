"""What a plan holds: named signatures, the shapes of all they take and give, and the export template.

A plan travels as one safetensors blob of uint8 tensors: `spec` (JSON), `program` (plan.tflite), `template`
(the mixture's float graph, batch 1, with placeholder weights) and `single` (the same for one model).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors.numpy import load as st_load
from safetensors.numpy import save as st_save

from edgefl.errors import PlanError
from edgefl.system.files import parse_json, write_atomic

PLAN_FORMAT = 2
OLDER_PLAN_FORMAT = 1
"""The format of plans without a template for one model and without settings of the personalization."""
KEYS_OF_FORMAT_2 = ("single_bindings", "personalization")
PREDICT_MIXTURE = "predict_mixture"
"""The signature that predicts with a client's personal model; the export template computes the same."""
PREDICT_SINGLE = "predict"
"""The signature that predicts with one model; a client may ship one in place of its mixture."""
TRAIN_SINGLE = "train_single"
"""The signature that trains one model on a client's own samples: alone, or from the federation's model."""
PLAN_FILE_NAMES = {
    "spec": "plan.json",
    "program": "plan.tflite",
    "template": "template.tflite",
    "single": "single.tflite",
}
INITIAL_FILE = "initial.safetensors"
"""Initial weights beside the files of a plan, where a federation starts from it."""


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and type of one tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class SignatureSpec:
    """One pure function of the program.

    Arguments in the `.tflite` are named by place: data `d_<name>` (first axis `batch_size`), trained weights
    `t_<i>`, frozen weights `f_<i>`, optimizer slots `s_<i>` (zero at the start), uniform noise in [0, 1)
    `n_<i>`, hyper-parameters `h_<name>` (float32 scalars, with their defaults here). `kind` train: takes also
    `d_y` (int32[batch]) and `d_sample_weight` (float32[batch]) and returns the new `t_<i>`, `s_<i>`, `loss`
    (mean over the weighted samples; scalar). `kind` predict: takes data and frozen weights, returns `out`
    with first axis `batch_size`.
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


@dataclass(frozen=True)
class Binding:
    """Where one weight of the mixture sits in the template: `buffer = transpose(weight,
    permutation).reshape(shape)`.

    `tensor` is the index in subgraph 0. `derived` names a rule of `edgefl.plan.fill` that makes the value
    from several weights (a folded batch norm); empty for a weight that is copied.
    """

    weight: str
    tensor: int
    permutation: tuple[int, ...]
    shape: tuple[int, ...]
    derived: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PlanSpec:
    """All that a device must know of a plan before it runs it.

    `weights` are the tensors of the federated model, in wire order; `algorithm` and `options` name the
    algorithm and the keywords of its factory, `model` and `model_options` what the model was built from.
    `single_bindings` are those of the template of one model. `personalization` holds the keys of
    `edgefl.config.PersonalizationConfig`; without any, a client ships its mixture and compares nothing.
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

    def find_signature(self, name: str) -> SignatureSpec:
        """Return the signature of that name; PlanError when the plan lacks it."""
        for signature in self.signatures:
            if signature.name == name:
                return signature
        have = ", ".join(s.name for s in self.signatures)
        raise PlanError(
            f"the plan has no signature {name!r}, it has {have}; build it for the algorithm that needs it"
        )


@dataclass(frozen=True)
class Plan:
    """A spec with its flatbuffers.

    `single` is empty where the template of the mixture serves one model too.
    """

    spec: PlanSpec
    program: bytes
    template: bytes
    single: bytes = b""

    def find_template(self, signature: str) -> tuple[bytes, tuple[Binding, ...]]:
        """Return the template of a predict signature and the place of each weight in it."""
        if signature == PREDICT_SINGLE and self.single:
            return self.single, self.spec.single_bindings
        return self.template, self.spec.bindings

    @cached_property
    def id(self) -> str:
        """The plan's name: the sha256 of its wire form, in hex."""
        return hashlib.sha256(encode_plan(self)).hexdigest()


def _parse_tensors(rows: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(r["name"], tuple(r["shape"]), r["dtype"]) for r in rows)


def _parse_bindings(rows: list[dict[str, Any]]) -> tuple[Binding, ...]:
    return tuple(
        Binding(b["weight"], b["tensor"], tuple(b["permutation"]), tuple(b["shape"]), b["derived"])
        for b in rows
    )


def serialize_spec(spec: PlanSpec) -> str:
    """Return the spec as JSON with sorted keys: the same spec gives the same bytes."""
    fields = asdict(spec)
    if spec.format == OLDER_PLAN_FORMAT:
        fields = {key: value for key, value in fields.items() if key not in KEYS_OF_FORMAT_2}
    return json.dumps(fields, sort_keys=True, indent=1)


def parse_spec(text: str) -> PlanSpec:
    """Read a spec; PlanError when the text is of another format or lacks a field."""
    try:
        raw = parse_json(text)
        if raw["format"] not in (OLDER_PLAN_FORMAT, PLAN_FORMAT):
            raise PlanError(
                f"plan format {raw['format']}, expected {PLAN_FORMAT}; update edgefl on this device or "
                f"rebuild "
                "the plan"
            )
        signatures = tuple(
            SignatureSpec(
                s["name"],
                s["kind"],
                s["batch_size"],
                _parse_tensors(s["data"]),
                _parse_tensors(s["trained"]),
                _parse_tensors(s["frozen"]),
                _parse_tensors(s["slots"]),
                _parse_tensors(s["noise"]),
                s["hyper"],
                _parse_tensors([s["out"]])[0] if s["out"] else None,
            )
            for s in raw["signatures"]
        )
        return PlanSpec(
            raw["model"],
            raw["algorithm"],
            raw["options"],
            tuple(raw["input_shape"]),
            raw["num_classes"],
            _parse_tensors(raw["weights"]),
            signatures,
            _parse_bindings(raw["bindings"]),
            raw["model_options"],
            () if raw["format"] == OLDER_PLAN_FORMAT else _parse_bindings(raw["single_bindings"]),
            {} if raw["format"] == OLDER_PLAN_FORMAT else raw["personalization"],
            raw["format"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PlanError(f"this is not a plan: {error!r}; build it again with `edgefl plan build`") from error


def encode_plan(plan: Plan) -> bytes:
    """Return the plan as one blob for the wire."""
    parts = {
        "spec": serialize_spec(plan.spec).encode(),
        "program": plan.program,
        "template": plan.template,
    } | ({"single": plan.single} if plan.single else {})
    return bytes(st_save({name: np.frombuffer(part, np.uint8) for name, part in parts.items()}))


def decode_plan(blob: bytes) -> Plan:
    """Read a blob; PlanError when it is not a plan."""
    try:
        parts = {name: tensor.tobytes() for name, tensor in st_load(blob).items()}
        spec = parse_spec(parts["spec"].decode())
        return Plan(spec, parts["program"], parts["template"], parts.get("single", b""))
    except PlanError:
        raise
    except Exception as error:  # safetensors raises its own type, which has no base of use
        raise PlanError(f"this blob is not a plan: {error}; fetch it again") from error


def save_plan(plan: Plan, directory: Path) -> None:
    """Write the files of a plan into the directory, each by atomic rename."""
    directory.mkdir(parents=True, exist_ok=True)
    write_atomic(directory / PLAN_FILE_NAMES["program"], plan.program)
    write_atomic(directory / PLAN_FILE_NAMES["template"], plan.template)
    if plan.single:
        write_atomic(directory / PLAN_FILE_NAMES["single"], plan.single)
    else:
        (directory / PLAN_FILE_NAMES["single"]).unlink(missing_ok=True)
    write_atomic(directory / PLAN_FILE_NAMES["spec"], serialize_spec(plan.spec).encode())


def load_plan(directory: Path) -> Plan:
    """Read what `save_plan` wrote; PlanError when it is not there."""
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
            f"{directory / PLAN_FILE_NAMES['spec']} is damaged: {error}; copy the plan again, or remake it"
        ) from error
    return Plan(parse_spec(text), parts["program"], parts["template"], parts.get("single", b""))
