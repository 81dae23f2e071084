"""Rules about names: forbidden words, verbs for functions, one meaning for each name."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.lint.source import Problem, Source

VERBS = frozenset(Path(__file__).with_name("verbs.txt").read_text().split())

FORBIDDEN_WORDS = """
told said tell tells telling say says saying found given taken wanted known kept held placed each own owns
word words there here likeness crew deal deals dealt allotment allotments light place places
"""
FORBIDDEN = frozenset(FORBIDDEN_WORDS.split())
# Established technical terms, and names of Python.
ALLOWED = re.compile(r"known_hosts|held_out|not_?found", re.IGNORECASE)
# Names in JSON that users or other programs read.
WRITTEN = {
    "edgefl/cli/doctor/broker_checks.py": {"found"},  # `edgefl doctor --json`
    "edgefl/cli/doctor/check_result.py": {"found"},
    "edgefl/cli/doctor/host_checks.py": {"found"},
    "edgefl/cli/doctor/runtimes.py": {"found"},
    "edgefl/cli/commands/doctor.py": {"found"},
    "edgefl/lab/tune/directory.py": {"given"},  # `edgefl tune --json`
    "edgefl/lab/tune/stagewise.py": {"given"},
}

VAGUE = re.compile(r"manager|handler|helper|utils", re.IGNORECASE)

# Public functions without a verb. All others begin with a word of tests/lint/verbs.txt.
NOUNS = {
    "factories of algorithms, registered under their name": re.compile(
        r"edgefl/learning/algorithms/papers/\w+::\w+"
    ),
    "networks, registered under their name": re.compile(r"edgefl/program/models/zoo/(\w+)::\1"),
    "partitions, registered under the name in federation.toml": re.compile(
        r"edgefl/data/partitions/\w+::(client_dirichlet|dirichlet|iid|p_majority|pachinko|packages|"
        r"permutation|quantity|rotation|shards|tasks)"
    ),
    "optimizers": re.compile(r"edgefl/program/compiler/optimizer::(sgd|adam|adamw)"),
    "functions that mathematics names": re.compile(
        r".*::(correlation|cosine_distance|cosine_similarity|cross_entropy|euclidean_distance|exp_of_negative|"
        r"inverse_square_root|krum|l2_norm|logistic|median|percentile|tanh|total_variation|trimmed_mean|"
        r"weighted_mean|weighted_sum)"
    ),
    "entry points of `python -m` and of the console script": re.compile(r".*::main"),
    "the interface of an experiment": re.compile(r"edgefl/lab/reproduce/\w+::(stages|figures|verdicts)"),
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


@dataclass(frozen=True)
class Definition:
    """A top-level definition or a method: its file, line, qualified name, kind and decorators."""

    path: str
    line: int
    name: str
    kind: str
    decorators: str = ""

    @property
    def key(self) -> str:
        """The definition as tables of exceptions name it, `path/file.py::name`."""
        return f"{self.path}::{self.name}"


def split_identifier(identifier: str) -> list[str]:
    """Return the lower-case parts of a name: `readTensor_byName` has read, tensor, by, name."""
    pattern = r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+"
    return [part.lower() for piece in identifier.strip("_").split("_") for part in re.findall(pattern, piece)]


def list_identifiers(source: Source) -> Iterator[tuple[int, str]]:
    """Yield each name that a file defines or uses, with its line; the file's own name comes first."""
    yield 1, Path(source.path).stem
    for node in ast.walk(source.tree):
        line = getattr(node, "lineno", 1)
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield line, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield line, name
            case ast.alias(name=name, asname=alias):
                yield from ((line, part) for part in (*name.split("."), alias) if part)
            case ast.keyword(arg=str(name)) | ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield line, name
            case _:
                pass


def list_definitions(source: Source) -> Iterator[Definition]:
    """Yield the top-level names of a file and the methods of its classes, private ones too."""
    for node in source.tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield Definition(
                    path=source.path,
                    line=node.lineno,
                    name=name,
                    kind="function",
                    decorators=_show_decorators(node),
                )
            case ast.ClassDef(name=name, body=body):
                yield Definition(path=source.path, line=node.lineno, name=name, kind="class")
                for member in body:
                    if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                        method = f"{name}.{member.name}"
                        yield Definition(
                            path=source.path,
                            line=member.lineno,
                            name=method,
                            kind="method",
                            decorators=_show_decorators(member),
                        )
            case ast.Assign(targets=targets):
                for target in targets:
                    if isinstance(target, ast.Name):
                        yield Definition(
                            path=source.path, line=target.lineno, name=target.id, kind="constant"
                        )
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield Definition(path=source.path, line=node.lineno, name=name, kind="constant")
            case _:
                pass


def check_vague_words(source: Source) -> Iterator[Problem]:
    """Yield vague names of modules, functions and classes."""
    path = Path(source.path)
    defined = [
        (node.lineno, node.name)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    for line, name in ((1, path.stem), (1, path.parent.name), *defined):
        if VAGUE.search(name):
            yield line, f"the name {name} is vague; name the noun or the action"


def check_forbidden_words(source: Source) -> Iterator[Problem]:
    """Yield identifiers that have a forbidden word as a part."""
    allowed = WRITTEN.get(source.path, set())
    for line, identifier in list_identifiers(source):
        parts = set(split_identifier(ALLOWED.sub("", identifier))) & FORBIDDEN
        if parts and identifier not in allowed:
            yield line, f"the identifier {identifier} has the forbidden word {', '.join(sorted(parts))}"


def check_verbs(source: Source) -> Iterator[Problem]:
    """Yield public functions and methods that do not begin with a verb."""
    for definition in list_definitions(source):
        name = definition.name.rpartition(".")[2]
        if definition.kind not in ("function", "method") or name.startswith("_"):
            continue
        if _is_command(definition) or "property" in definition.decorators:
            continue
        key = definition.key.replace(".py::", "::")
        if name.split("_")[0] not in VERBS and not any(p.fullmatch(key) for p in NOUNS.values()):
            yield (
                definition.line,
                f"{definition.name} begins with no verb of tests/lint/verbs.txt; rename it, add the verb, "
                "or list the name in tests/lint/names.py",
            )


def check_unused_entries(sources: Iterable[Source]) -> Iterator[str]:
    """Yield verbs and exceptions that no name of the product needs any more."""
    definitions = [definition for source in sources for definition in list_definitions(source)]
    names = {definition.name.rpartition(".")[2].split("_")[0] for definition in definitions}
    if VERBS - names:
        yield f"tests/lint/verbs.txt: no function begins with {', '.join(sorted(VERBS - names))}"
    keys = [definition.key.replace(".py::", "::") for definition in definitions]
    for reason, pattern in NOUNS.items():
        if not any(pattern.fullmatch(key) for key in keys):
            yield f"tests/lint/names.py: no function matches {reason!r}"


def check_shared_names(sources: Iterable[Source]) -> Iterator[str]:
    """Yield names that several modules define without a role in `ROLES`, and roles of no name."""
    modules: dict[str, set[str]] = defaultdict(set)
    for source in sources:
        for definition in list_definitions(source):
            if (
                definition.kind != "method"
                and not definition.name.startswith("_")
                and not _is_command(definition)
            ):
                modules[definition.name].add(definition.path)
    for name in sorted(modules):
        if len(paths := sorted(modules[name])) > 1 and name not in ROLES:
            yield (f"{', '.join(paths)} define {name}; rename one, or give it a role in tests/lint/names.py")
    for name in sorted(ROLES.keys() - modules.keys()):
        yield f"tests/lint/names.py has a role for {name}, which no module defines; remove it"


def _is_command(definition: Definition) -> bool:
    return any(word in definition.decorators for word in ("command", "group"))


def _show_decorators(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return " ".join(ast.unparse(decorator) for decorator in node.decorator_list)
