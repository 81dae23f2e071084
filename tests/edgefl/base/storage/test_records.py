"""Typed records round-trip, and a tree that does not fit their types is refused by the name of the field."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, make_dataclass, replace
from types import ModuleType

import numpy as np
import pytest

from edgefl.base.errors import StateError
from edgefl.base.storage.records import decode_records, encode_records
from edgefl.base.types import Array, ClientState, ServerState, StateRecord, Weights
from edgefl.learning.algorithms.registry import REGISTRY
from edgefl.learning.checkpoint import (
    decode_client_state,
    decode_server_state,
    encode_client_state,
    encode_server_state,
)
from edgefl.learning.client.compression import CodecResidual
from edgefl.protocol.server.server_algorithm import build_server_algorithm


@dataclass(frozen=True)
class Fork:
    start: Weights
    depth: int


@dataclass(frozen=True)
class EveryKind(StateRecord):
    """A record with each kind of field."""

    count: int = 0
    share: float = 0.5
    is_open: bool = False
    name: str = ""
    height: float | None = None
    matrix: Array | None = None
    forks: tuple[Fork, ...] = ()
    by_index: Mapping[int, tuple[float, ...]] = field(default_factory=dict)


NAME = f"{__name__}.EveryKind"
"""The name of the record in a file."""
FULL = EveryKind(
    count=3,
    share=1e-30,
    is_open=True,
    name="a/b:ü",
    height=2.5,
    matrix=np.float32([[1, 2]]),
    forks=(Fork({"a/b": np.float32(3), "a": np.float32([])}, depth=1), Fork({}, depth=2)),
    by_index={12: (0.25, 0.75), 3: ()},
)


@pytest.mark.parametrize("record", [FULL, EveryKind()])
def test_every_kind_of_field_round_trips(record):
    state = decode_server_state(
        encode_server_state(ServerState(round=1, phase="federate", models={}).with_record(record))
    )
    read = state.read_record(EveryKind)
    without_arrays = {"matrix": None, "forks": ()}
    assert replace(read, **without_arrays) == replace(record, **without_arrays)
    np.testing.assert_array_equal(read.matrix, record.matrix)
    assert [fork.depth for fork in read.forks] == [fork.depth for fork in record.forks]
    for fork, expected in zip(read.forks, record.forks, strict=True):
        assert fork.start.keys() == expected.start.keys()
        for name, array in expected.start.items():
            np.testing.assert_array_equal(fork.start[name], array)


def test_order_of_names_changes_no_byte():
    first = EveryKind(by_index={1: (0.5,), 2: (1.5,)})
    second = EveryKind(by_index={2: (1.5,), 1: (0.5,)})
    states = [ClientState().with_record(record).with_record(CodecResidual()) for record in (first, second)]
    swapped = ClientState().with_record(CodecResidual()).with_record(first)
    assert len({encode_client_state(state) for state in (*states, swapped)}) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 1.0}, r"EveryKind\.count is '1\.0' \(float\), expected int"),
        ({"count": True}, r"EveryKind\.count is 'True' \(bool\), expected int"),
        ({"share": "0.5"}, r"EveryKind\.share is '0\.5' \(str\), expected float"),
        ({"name": None}, r"EveryKind\.name is 'None' \(NoneType\), expected str"),
        ({"matrix": "missing"}, r"EveryKind\.matrix is 'missing' \(str\), expected an array of float32"),
        ({"matrix": "whole"}, r"EveryKind\.matrix is 'whole' \(str\), expected an array of float32"),
        ({"forks": {}}, r"EveryKind\.forks is '\{\}' \(dict\), expected tuple"),
        ({"forks": [{"start": {}}]}, r"EveryKind\.forks\.0 has the fields start, expected start, depth"),
        ({"by_index": {"3": [None]}}, r"EveryKind\.by_index\.3\.0 is 'None' \(NoneType\), expected float"),
        ({"by_index": {"x": []}}, "'x'"),
    ],
)
def test_value_of_another_type_is_named(change, message):
    tree, arrays = encode_records({NAME: EveryKind()})
    with pytest.raises(ValueError, match=message):
        decode_records({NAME: {**tree[NAME], **change}}, {**arrays, "whole": np.zeros(2, np.int64)})


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ([], "its records are list, expected an object"),
        ({"Unheard": {}}, "it has the record 'Unheard', which no imported algorithm has"),
        ({NAME: {"count": 0}}, r"EveryKind has the fields count, expected count, share, is_open"),
    ],
)
def test_tree_without_known_records_is_refused(tree, message):
    with pytest.raises(ValueError, match=message):
        decode_records(tree, {})


@pytest.mark.parametrize("value", [np.float32(1), {1, 2}, [1], EveryKind, None, True, "1"])
def test_value_of_another_type_is_refused_when_it_is_stored(value):
    state = ClientState().with_record(EveryKind(share=value))
    with pytest.raises(
        StateError, match=r"client state cannot be stored: .*EveryKind\.share is .*, expected float; convert"
    ):
        encode_client_state(state)


@pytest.mark.parametrize(
    "changes",
    [
        {"matrix": np.zeros(2)},
        {"by_index": {"3": ()}},
        {"by_index": {True: ()}},
        {"forks": ({"start": {}, "depth": 1},)},
        {"forks": (Fork({"w": np.zeros(1, np.float64)}, 1),)},
    ],
)
def test_array_key_or_item_of_another_type_is_refused_when_it_is_stored(changes):
    (field_name,) = changes
    with pytest.raises(StateError, match=rf"EveryKind\.{field_name}.* is .*, expected "):
        encode_client_state(ClientState().with_record(EveryKind(**changes)))


def test_whole_number_in_a_float_field_gives_the_same_bytes_after_a_load():
    blob = encode_client_state(ClientState().with_record(EveryKind(share=1)))
    assert encode_client_state(decode_client_state(blob)) == blob


@pytest.mark.parametrize(
    "annotation", [dict[str, float], tuple[int, int], int | str | None, Mapping[bool, int]]
)
def test_field_that_has_no_stored_form_is_named_by_its_type(annotation):
    kind = make_dataclass("Odd", [("value", annotation, None)], bases=(StateRecord,), frozen=True)
    with pytest.raises(TypeError, match=r"a record cannot have a field of the type .*, expected bool, int"):
        encode_records({"Odd": kind()})


def test_records_of_one_name_in_two_modules_are_two_records():
    source = (
        "from dataclasses import dataclass\n"
        "from edgefl.base.types import StateRecord\n"
        "@dataclass(frozen=True)\n"
    )
    module = ModuleType("other")
    exec(f"{source}class EveryKind(StateRecord):\n    count: int = 5", vars(module))
    state = ClientState().with_record(EveryKind(count=1)).with_record(module.EveryKind())
    decoded = decode_client_state(encode_client_state(state))
    assert (decoded.read_record(EveryKind).count, decoded.read_record(module.EveryKind).count) == (1, 5)


def test_every_record_of_the_product_is_frozen_and_round_trips_when_empty():
    """The registry imports all algorithms, and `build_server_algorithm` the layers around them."""
    assert REGISTRY and build_server_algorithm
    kinds = [kind for kind in StateRecord.classes.values() if kind.__module__.startswith("edgefl.")]
    assert len(kinds) >= 15
    for kind in kinds:
        assert kind.__dataclass_params__.frozen, kind
        decoded = decode_client_state(encode_client_state(ClientState().with_record(kind())))
        assert repr(decoded.read_record(kind)) == repr(kind())
        assert fields(kind), kind


@pytest.mark.parametrize(
    ("decode", "blob", "what"),
    [
        (
            decode_server_state,
            encode_server_state(ServerState(round=1, phase="federate", models={})),
            "server state",
        ),
        (decode_client_state, encode_client_state(ClientState()), "client state"),
    ],
)
def test_state_of_another_version_is_refused(decode, blob, what):
    for old, found in ((b'"format": 2', b'"format": 3'), (b'"format": 2', b'"farmat": 2')):
        assert old in blob
        number = "3" if b"format" in found else "missing"
        with pytest.raises(
            StateError,
            match=rf"this {what} was written by .*: its format is {number}, expected 2; .* empty directory",
        ):
            decode(blob.replace(old, found))
    with pytest.raises(StateError, match=rf"this {what} has no records: the file is damaged"):
        decode(blob.replace(b'"records"', b'"recards"'))


def test_number_beyond_the_range_of_a_float_is_refused():
    blob = encode_client_state(ClientState().with_record(EveryKind(count=10**400)))
    swapped = blob.replace(b'"count": 1', b'"share": 1').replace(b'"share": 0.5', b'"count": 123')
    with pytest.raises(StateError, match="does not fit the algorithms of this version"):
        decode_client_state(swapped)


def test_state_with_an_unknown_record_is_refused():
    blob = encode_client_state(ClientState().with_record(EveryKind()))
    with pytest.raises(StateError, match=r"this client state does not fit .* record '.*EvenyKind'"):
        decode_client_state(blob.replace(b"EveryKind", b"EvenyKind"))


def test_read_record_gives_defaults_and_remove_record_removes():
    state = ClientState()
    assert state.read_record(EveryKind) == EveryKind()
    changed = state.with_record(EveryKind(count=2))
    assert (changed.read_record(EveryKind).count, state.records) == (2, {})
    assert changed.remove_record(EveryKind) == state
