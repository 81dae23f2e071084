"""The naming rules of the product code: forbidden words, verbs for functions, one meaning for each name."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.names import (
    ROOT,
    Definition,
    list_definitions,
    list_identifiers,
    list_sources,
    split_identifier,
)

VERBS = frozenset((ROOT / "tests" / "support" / "verbs.txt").read_text().split())

FORBIDDEN_WORDS = """
told said tell tells telling say says saying found given taken wanted known kept held placed each own owns
word words there here likeness crew deal deals dealt allotment allotments light place places
"""
FORBIDDEN = frozenset(FORBIDDEN_WORDS.split())
# Established technical terms, and names of Python.
ALLOWED = re.compile(r"known_hosts|held_out|not_?found", re.IGNORECASE)
# Names in JSON that users or other programs read.
WRITTEN = {
    "edgefl/doctor/check_result.py": {"found"},  # `edgefl doctor --json`
    "edgefl/cli/commands/doctor.py": {"found"},
    "edgefl/tune/directory.py": {"given"},  # `edgefl tune --json`
    "edgefl/tune/stagewise.py": {"given"},
}

# Public functions without a verb. All others begin with a word of tests/support/verbs.txt.
NOUNS = {
    "factories of algorithms, registered under their name": re.compile(r"edgefl/algorithms/papers/\w+::\w+"),
    "networks, registered under their name": re.compile(r"edgefl/models/(\w+)::\1"),
    "partitions, registered under the name in federation.toml": re.compile(
        r"edgefl/data/partitions/\w+::(client_dirichlet|dirichlet|iid|p_majority|pachinko|packages|"
        r"permutation|quantity|rotation|shards|tasks)"
    ),
    "optimizers": re.compile(r"edgefl/compiler/optimizer::(sgd|adam|adamw)"),
    "functions that mathematics names": re.compile(
        r".*::(correlation|cosine_distance|cosine_similarity|cross_entropy|euclidean_distance|exp_of_negative|"
        r"inverse_square_root|krum|l2_norm|logistic|median|percentile|tanh|total_variation|trimmed_mean|"
        r"weighted_mean|weighted_sum)"
    ),
    "entry points of `python -m` and of the console script": re.compile(r".*::main"),
    "the interface of an experiment": re.compile(r"edgefl/reproduce/\w+::(stages|figures|verdicts)"),
    "actions of textual, ssl, click and socketserver": re.compile(
        r".*\.(action_\w+|recv|pending|shell_complete|server_bind)"
    ),
}

# A name that several modules define has one role in all of them.
ROLES = {
    "T": "the type variable of a generic function",
    "LOGGER": "the logger of a module",
    "Matrix": "a two-dimensional float64 array",
    "Vector": "a one-dimensional float64 array",
    "Real": "a float64 array",
    "Tensor": "a tensor of TensorFlow",
    "Tensors": "tensors of TensorFlow by name",
    "DAY_S": "seconds of a day",
    "ENTRIES": "the algorithms that a module registers",
    "load": "loads the data set of a module",
    "ARCHIVE": "the file name of a data set's archive",
    "BASE_URL": "the address from which a data set is downloaded",
    "REMOTE": "the remote file of a data set",
    "MANUAL_DOWNLOAD": "how to download a data set by hand",
    "main": "the entry point of a program",
    "simulate": "simulates a federation: the function and its command",
    "stages": "an experiment's stages",
    "figures": "an experiment's measured figures",
    "verdicts": "an experiment's claims and whether they hold",
    "MODEL_KEYS": "the models of the AEM paper and their keys in a client's row",
    "build_section": "builds one section of the report page",
    "SHARE_BYTES": "size of a Shamir share",
    "State": "the state message of a version of the protocol",
    "RETAINED_WAIT_S": "how long retained messages may take after a subscription",
    "MAX_CHUNKS_IN_FLIGHT": "number of chunks that are sent before the first is acknowledged",
    "WEIGHT_OPERATORS": "TFLite operators that have a kernel of weights",
    "CA_OPTION": "the option `--ca`",
}


def is_command(definition: Definition) -> bool:
    return any(word in definition.decorators for word in ("command", "group"))


@pytest.fixture(scope="module")
def definitions() -> list[Definition]:
    return [definition for path in list_sources() for definition in list_definitions(path)]


@pytest.mark.parametrize("path", list_sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_identifier_has_a_forbidden_part(path: Path) -> None:
    allowed = WRITTEN.get(str(path.relative_to(ROOT)), set())
    for line, identifier in list_identifiers(path):
        parts = set(split_identifier(ALLOWED.sub("", identifier)))
        assert not parts & FORBIDDEN or identifier in allowed, f"{path}:{line}: {identifier}"


def test_public_functions_begin_with_a_verb(definitions: list[Definition]) -> None:
    for definition in definitions:
        name = definition.name.rpartition(".")[2]
        if definition.kind not in ("function", "method") or name.startswith("_"):
            continue
        if is_command(definition) or "property" in definition.decorators:
            continue
        key = definition.key.replace(".py::", "::")
        is_noun = any(pattern.fullmatch(key) for pattern in NOUNS.values())
        assert is_noun or name.split("_")[0] in VERBS, (
            f"{definition.key}: begin with a verb of tests/support/verbs.txt, add one there, or list the name"
        )


def test_verbs_and_exceptions_are_used(definitions: list[Definition]) -> None:
    names = {definition.name.rpartition(".")[2].split("_")[0] for definition in definitions}
    assert names >= VERBS, f"no function begins with {', '.join(sorted(VERBS - names))}"
    keys = [definition.key.replace(".py::", "::") for definition in definitions]
    for reason, pattern in NOUNS.items():
        assert any(pattern.fullmatch(key) for key in keys), reason


def test_shared_names_have_one_documented_role(definitions: list[Definition]) -> None:
    modules: dict[str, set[str]] = defaultdict(set)
    for definition in definitions:
        if definition.kind != "method" and not definition.name.startswith("_") and not is_command(definition):
            modules[definition.name].add(definition.path)
    shared = {name: sorted(paths) for name, paths in modules.items() if len(paths) > 1}
    assert shared.keys() <= ROLES.keys(), {name: paths for name, paths in shared.items() if name not in ROLES}
    assert ROLES.keys() <= modules.keys(), f"not defined: {', '.join(sorted(ROLES.keys() - modules.keys()))}"


@pytest.mark.parametrize(
    ("identifier", "parts"),
    [
        ("readTensor_byName", ["read", "tensor", "by", "name"]),
        ("__HTTPServer", ["http", "server"]),
        ("one_hot", ["one", "hot"]),
        ("conv2d", ["conv2d"]),
    ],
)
def test_an_identifier_is_split_into_its_parts(identifier: str, parts: list[str]) -> None:
    assert split_identifier(identifier) == parts
