"""The picture of a terminal in the README shows the output of the demo and fetches nothing."""

import re
from pathlib import Path

import pytest

pytest.importorskip("rich")
from tests.support.pictures import draw_terminal, shorten

OUTPUT = (Path(__file__).parent / "support" / "demo_output.txt").read_text()
ASSETS = Path(__file__).parents[1] / "docs" / "assets"


def extract_text(svg: str) -> str:
    lines = re.findall(r"<text[^>]*>(.*?)</text>", svg)
    return re.sub(r"&#160;", " ", "\n".join(lines)).replace("&#x27;", "'")


def test_shortened_output_omits_single_reports_and_middle_rounds() -> None:
    lines = shorten("[##--] progress\r" + OUTPUT)
    assert len(lines) < 40
    assert [line.split()[1] for line in lines if re.match(r"round \d", line)] == [
        f"{number}/20" for number in (1, 2, 3, 18, 19, 20)
    ]
    assert lines.count("...") == 1
    assert not any("reported" in line or "waiting" in line or "progress" in line for line in lines)


def test_the_terminal_shows_the_text_and_fetches_nothing() -> None:
    svg = draw_terminal("edgefl demo", shorten(OUTPUT))
    text = extract_text(svg)
    assert "edgefl demo" in text
    assert "round 20/20" in text
    assert "mean             87.8%" in text
    assert_fetches_nothing(svg)


def test_the_picture_of_the_readme_fetches_nothing() -> None:
    svg = (ASSETS / "demo.svg").read_text()
    assert "round 20/20" in extract_text(svg)
    assert_fetches_nothing(svg)


def assert_fetches_nothing(svg: str) -> None:
    assert not re.search(r"@import|@font-face|href|url\((?!#)", svg)
    assert re.findall(r"\w+://[^\"< ]*", re.sub(r">[^<]*<", "><", svg)) == ["http://www.w3.org/2000/svg"]
