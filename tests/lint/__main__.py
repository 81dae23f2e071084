"""Check the product and the tests against the project's own rules.

`make lint` runs `python -m tests.lint`, which prints each problem as `path:line: message` and exits with 1 if
there is one.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator

from tests.lint import docstrings, errors, file_names, imports, names, prose, records
from tests.lint.source import Problem, Source, read_sources

RULES_OF_ALL: tuple[Callable[[Source], Iterator[Problem]], ...] = (names.check_vague_words,)
RULES_OF_THE_PRODUCT: tuple[Callable[[Source], Iterator[Problem]], ...] = (
    imports.check_packages,
    imports.check_machines,
    imports.check_papers,
    imports.check_room_order,
    imports.check_heavy_imports,
    names.check_forbidden_words,
    names.check_verbs,
    docstrings.check_arguments,
    errors.check_remedies,
    file_names.check_file_names,
)
RULES_OF_THE_WHOLE: tuple[Callable[[Iterable[Source]], Iterator[str]], ...] = (
    names.check_unused_entries,
    names.check_shared_names,
)


def check_formatter(source: Source) -> Iterator[Problem]:
    """Yield comments that switch the formatter off."""
    for line, text in enumerate(source.text.splitlines(), 1):
        if re.search(r"# fmt: ?(skip|off)", text):
            yield line, "switches the formatter off; remove the comment"


def list_problems(sources: Iterable[Source]) -> Iterator[str]:
    """Yield the problems of some files, each with path and line."""
    sources = tuple(sources)
    product = [source for source in sources if source.is_product]
    for source in sources:
        rules = (check_formatter, *RULES_OF_ALL, *(RULES_OF_THE_PRODUCT if source.is_product else ()))
        for rule in rules:
            yield from (f"{source.path}:{line}: {message}" for line, message in rule(source))
    for rule_of_the_whole in RULES_OF_THE_WHOLE:
        yield from rule_of_the_whole(product)
    yield from records.check_construction(sources)


def main() -> None:
    """Print all problems of code and prose."""
    sources = read_sources()
    problems = [
        *list_problems(sources),
        *(str(p) for text in prose.read_all() for p in prose.check_text(text)),
    ]
    print("\n".join([*problems, f"{len(sources)} files, {len(problems)} problems"]))
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
