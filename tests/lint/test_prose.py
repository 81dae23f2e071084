"""The prose of pages, docstrings, help texts and errors follows the measurable rules of the style."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.lint.prose import Text, check_text, main, read_module, read_page


def find_problems(kind: str, text: str) -> list[str]:
    return [problem.phrase for problem in check_text(Text(path=Path("x.py"), line=1, kind=kind, text=text))]


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("Return what a client sends.", "Return what"),
        ("The device is told to stop.", "is told"),
        ("Whoever reads it may write.", "Whoever"),
        ("A finished run does not go on.", "go on"),
        ("It is drawn anew.", "anew"),
        ("All but for the last round.", "but for"),
    ],
)
def test_awkward_phrases_are_reported(text: str, phrase: str) -> None:
    assert find_problems("docstring", text) == [phrase]
    assert find_problems("error", text) == [phrase]


def test_semicolons_are_allowed_only_in_errors() -> None:
    assert find_problems("page", "The round is open; devices train.")
    assert find_problems("error", "no such file; pass another path") == []


def test_long_sentences_are_reported() -> None:
    assert find_problems("page", " ".join(["word"] * 32) + ".") == []
    assert find_problems("page", " ".join(["word"] * 33) + ".") == ["word word word word word word ..."]
    assert find_problems("page", " ".join(["word"] * 20) + ". " + " ".join(["word"] * 20) + ".") == []


def test_code_links_and_quotations_are_not_prose() -> None:
    assert find_problems("page", 'Run `a; b`, read [it](x;y.md) and answer "go on".') == []


def test_all_kinds_of_text_are_read(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""Module."""\nimport click\n\n\nclass A:\n    """Class."""\n\n\n@click.option("-x", help="Help.")\n'
        'def f():\n    """Function."""\n    raise ValueError(f"{1} is wrong; " "pass 2")\n'
    )
    assert sorted((text.kind, text.text) for text in read_module(module)) == [
        ("docstring", "Class."),
        ("docstring", "Function."),
        ("docstring", "Module."),
        ("error", " is wrong; pass 2"),
        ("help", "Help."),
    ]
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\nOne\ntwo.\n\n- item\n- other\n  line\n\n```sh\nno; prose\n```\n\n| a; | b |\n"
    )
    assert [(text.line, text.text) for text in read_page(page)] == [
        (3, "One two."),
        (6, "- item"),
        (7, "- other line"),
    ]


def test_check_command_lists_problems_and_fails(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("A client goes on.\n")
    ran = CliRunner().invoke(main, ["check", str(page)])
    assert ran.exit_code == 1
    assert "page.md:1: page has 'goes on': use `continue`" in ran.output
    page.write_text("A client continues.\n")
    assert CliRunner().invoke(main, ["check", str(page)]).exit_code == 0


@pytest.mark.slow
def test_sample_command_is_reproducible_by_seed() -> None:
    first, second, other = (
        CliRunner().invoke(main, ["sample", "--seed", seed]).output for seed in ("1", "1", "2")
    )
    assert first == second != other
    assert first.count("(docstring)") >= 10
