"""A client that took part in no round of a finished federation.

With labels, it personalizes like every other client. Without labels, it predicts with the gates of the
participants, see `edgefl.learning.algorithms.mixtures.marginal_gate`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.config import FederationConfig, restore_config
from edgefl.base.errors import ConfigError, DataError, PlanError, StateError
from edgefl.base.rng import derive_rng
from edgefl.base.storage.aggregator_directory import AggregatorFiles
from edgefl.base.storage.run_directory import RunFiles
from edgefl.base.types import Array, Labels, Mixture, Peer, Scalars, ServerState, Shard, Weights
from edgefl.data.forms import has_label_arrays, to_input_shape, to_training_form
from edgefl.data.npz import check_lengths, find_num_classes, read_label_array, read_sample_array
from edgefl.data.sources import DataSource
from edgefl.data.unit import check_unit, to_federation_classes
from edgefl.learning.algorithms import PHASE_DONE, PHASE_PERSONALIZE, make_algorithm
from edgefl.learning.algorithms.mixtures.marginal_gate import ParticipantGate, predict_without_labels
from edgefl.learning.algorithms.mixtures.responsibility import Real
from edgefl.learning.algorithms.names import select_experts
from edgefl.learning.algorithms.registry import REGISTRY, check_plan_options, find_entry, make_options
from edgefl.learning.checkpoint import decode_server_state
from edgefl.learning.client.batch_norm import MAX_STATISTICS_SAMPLES, find_training_signature, make_renewer
from edgefl.learning.client.blend import predict_outputs
from edgefl.learning.client.runner import ClientRunner
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.plan.measured_values import restore_measured_values
from edgefl.program.plan.normalization import has_placeholders
from edgefl.program.plan.spec import Plan, PlanSpec, load_plan, read_num_classes, read_samples_config
from edgefl.protocol.server.server_algorithm import build_server_algorithm
from edgefl.protocol.wire.divergence_message import explain_divergence
from edgefl.simulation.clients import make_work_items
from edgefl.simulation.runs.directory import read_json
from edgefl.simulation.runs.round_records import find_recorded_divergence, read_round_records
from edgefl.simulation.runs.states import load_committed_states

MIN_STATISTICS_SAMPLES = 32
"""Minimum number of samples of an unlabelled client for the statistics of batch norms.

With fewer samples, the server's statistics are used.
"""


@dataclass(frozen=True)
class FinishedRun:
    """A federation after its last round.

    Attributes:
        files: the files of the run.
        config: the configuration of the federation.
        plan: the plan of the federation.
        state: the last server state.
        sample_counts: number of training samples of each participant in its last round, by client id.
    """

    files: RunFiles
    config: FederationConfig
    plan: Plan
    state: ServerState
    sample_counts: Mapping[str, float]


def open_finished_run(path: Path) -> FinishedRun:
    """Read the directory of a finished federation, without changing it.

    Args:
        path: the `--out` of `edgefl simulate` or `edgefl aggregator start`, or a stage of `edgefl reproduce`.

    Raises:
        StateError: the directory contains no finished federation, its training diverged, or a file is
            damaged.
        PlanError: the plan is missing or damaged, or is the plan of another federation.
        ConfigError: run.json has a configuration that this version of edgefl does not know.
    """
    files = RunFiles(path)
    values = read_json(files.note).get("config")
    if not isinstance(values, dict):
        raise StateError(f"{files.note} has no configuration; check that this is the right directory")
    try:
        config = restore_config(values)
    except ConfigError as error:
        raise ConfigError(f"{files.note}: {error}") from error
    if not files.plan.exists():
        raise StateError(f"{path} has no plan yet; finish the federation, with --resume for a simulation")
    plan = load_plan(files.plan)
    result = AggregatorFiles(path).result
    if result.exists() or has_placeholders(plan.spec):  # the plan of a simulation has the values already
        plan = restore_measured_values(plan, read_json(result), config.range_test)
    check_plan_options(plan.spec, "use the version that made this run")
    if plan.spec.algorithm != config.algorithm:
        raise PlanError(
            f"{files.plan} is a plan of {plan.spec.algorithm}, expected {config.algorithm} as in "
            f"{files.note}; restore the plan of this federation"
        )
    try:
        state = decode_server_state(files.server_state.read_bytes())
    except OSError as error:
        raise StateError(
            f"{path} has no server state: {error}; finish the federation, with --resume for a simulation"
        ) from error
    except StateError as error:
        raise StateError(f"{files.server_state}: {error}") from error
    if state.round <= config.rounds and state.phase not in (PHASE_PERSONALIZE, PHASE_DONE):
        raise StateError(
            f"{path} has {state.round - 1} of {config.rounds} rounds; finish the federation, with --resume "
            "for a simulation"
        )
    for model, weights in state.models.items():
        if wrong := [name for name, array in weights.items() if not np.isfinite(array).all()]:
            raise StateError(
                f"{files.server_state} has values in {model} {wrong[0]} that are not finite; run the "
                "federation again"
            )
    # A resumed run may have more rounds than its run.json
    config = replace(config, rounds=max(config.rounds, state.round - 1))
    records = read_round_records(files.rounds)
    if not records:
        raise StateError(f"{files.rounds} has no rounds; check that this is the right directory")
    if divergence := find_recorded_divergence(records, config, plan.spec):
        raise StateError(f"{path}: {explain_divergence(divergence)}")
    return FinishedRun(
        files=files,
        config=config,
        plan=plan,
        state=state,
        sample_counts=_count_samples(files.rounds, records),
    )


def _count_samples(path: Path, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    try:
        counts = {
            client_id: float(figures["num_samples"])
            for record in records
            for client_id, figures in record.get("updates", {}).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(
            f"cannot read the rounds in {path}: {error!r}; check that this is the right directory"
        ) from error
    for client_id, count in counts.items():
        if not 0 < count < np.inf:
            raise StateError(
                f"{path} has num_samples {count:g} of {client_id}, expected a number above 0; run the "
                "federation again"
            )
    return counts


def personalize_new_client(run: FinishedRun, client_id: str, shard: Shard) -> tuple[Mixture, Scalars, Labels]:
    """Make and measure the model of a client that took part in no round.

    The simulator gives the same bits to a client that it only personalizes.

    Args:
        client_id: the new client, from which its draws follow.
        shard: its samples, with labels as they are stored.

    Returns:
        The shipped model, its metrics, see `edgefl.learning.client.personalization.choose_personal_model`,
            and the predicted classes of the test samples, shape (n,), int64. No classes for another task than
            classification.

    Raises:
        ConfigError: a client of this id took part.
        DataError: the samples do not fit the plan.
        DivergedError: no model could be made.
    """
    if client_id in run.sample_counts:
        raise ConfigError(
            f"{client_id} took part in the federation, expected the id of a new client; give another --id"
        )
    spec = run.plan.spec
    algorithm = build_server_algorithm(
        make_algorithm(spec.algorithm, None, spec.options),
        run.config,
        spec,
        key=bytes(32),  # a broadcast draws no noise
    )
    state = replace(run.state, phase=PHASE_PERSONALIZE)
    (item,) = make_work_items(algorithm, state, [client_id], {}, run.config.codec)
    runner = ClientRunner(run.plan, LiteRTLearner(run.plan), {client_id: shard}, run.config.seed)
    mixture, _, metrics = runner.personalize(item)
    if not (spec.is_classification and len(shard.y_test)):
        return mixture, metrics, np.zeros(0, np.int64)
    outputs = predict_outputs(runner.learner, Peer(mixture.signature, mixture.weights), shard.x_test)
    return mixture, metrics, np.asarray(outputs.argmax(axis=1), np.int64)


def list_participant_gates(run: FinishedRun) -> Sequence[ParticipantGate]:
    """Return the gates of the participants, with which a client without labels predicts.

    Raises:
        ConfigError: the algorithm has no gates that work without labels.
        StateError: the gate of a participant is missing, or a file is damaged.
    """
    spec = run.plan.spec
    list_gates = find_entry(spec.algorithm).list_gates
    if list_gates is None:
        fitting = ", ".join(name for name, entry in REGISTRY.items() if entry.list_gates is not None)
        raise ConfigError(
            f"the algorithm is {spec.algorithm}, which cannot predict for a client without labels, expected "
            f"{fitting}; give labels y, without --ignore-labels"
        )
    gates = list_gates(
        make_options(spec.algorithm, spec.options),
        run.state,
        load_committed_states(run.files, run.state.round - 1),
        run.sample_counts,
    )
    if not gates:
        raise StateError(f"{run.files.root} has no participants, expected at least one; run it again")
    return gates


def predict_for_new_client(run: FinishedRun, gates: Sequence[ParticipantGate], x: Array) -> tuple[Real, Real]:
    """Return the predictions for a client without labels that took part in no round.

    Batch norms take the moving statistics of these samples, if there are at least `MIN_STATISTICS_SAMPLES`.

    Args:
        x: samples, shape (n, *input_shape), float32. At least one.

    Returns:
        p(y|x), shape (n, classes), and p(z|x), shape (n, experts), float64.
    """
    learner = LiteRTLearner(run.plan)
    experts: Mapping[int, Weights] = select_experts(run.state.models)
    signature = find_training_signature(run.plan.spec)
    if signature is not None and len(x) >= MIN_STATISTICS_SAMPLES:
        labels = np.zeros(len(x), np.int64)  # they do not affect the statistics
        shard = Shard(
            x_train=x,
            y_train=labels,
            x_test=x[:0],
            y_test=labels[:0],
            num_classes=run.plan.spec.num_classes,
        )
        draws = derive_rng(run.config.seed, run.state.round, "statistics")
        renew = make_renewer(learner, signature, shard, draws, MAX_STATISTICS_SAMPLES)
        experts = {index: renew(weights) for index, weights in experts.items()}
    return predict_without_labels(learner, experts, gates, x)


def read_all_samples(
    arrays: Mapping[str, NDArray[Any]], source: DataSource, spec: PlanSpec
) -> tuple[Array, Labels | None]:
    """Return all samples of a source for a plan: `x`, then `x_test` if there is one. Nothing is held out.

    Args:
        arrays: the arrays of the source, see `edgefl.data.sources.read_source`.
        source: the source, which the error messages name.

    Returns:
        The samples, shape (n, *input_shape), float32, and their labels, shape (n,), int64. None without
            labels.

    Raises:
        DataError: the samples do not fit the plan.
    """
    try:
        samples_config = read_samples_config(spec)
        check_unit(arrays, samples_config, source.scale)
        formed, _ = to_training_form(arrays, samples_config, source.scale)
        formed = to_federation_classes(formed, samples_config)
        parts = [part for part in ("", "_test") if not part or f"x{part}" in formed]
        samples = [to_input_shape(read_sample_array(formed, part), spec.input_shape) for part in parts]
        for part, x in zip(parts, samples, strict=True):
            if x.shape[1:] != spec.input_shape:
                raise DataError(
                    f"x{part} has samples of shape {x.shape[1:]}, expected {spec.input_shape}; is this a "
                    "shard of another data set?"
                )
        if not sum(map(len, samples)):
            raise DataError("x is empty, expected at least one sample; collect data first")
        if not has_label_arrays(arrays):
            return np.concatenate(samples), None
        labels = [read_label_array(formed, part) for part in parts]
        for part, x, y in zip(parts, samples, labels, strict=True):
            check_lengths(x, y, part)
        all_labels = np.concatenate(labels)
        find_num_classes(formed, read_num_classes(spec), int(all_labels.max()))
        return np.concatenate(samples), all_labels
    except DataError as error:
        raise DataError(f"{source.data}: {error}") from error
