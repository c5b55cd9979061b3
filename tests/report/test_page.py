"""The page is one safe file, and says what the numbers say."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from armillary.evaluate.statistics import gain, pass_at_1, select
from armillary.report.build import build_report
from armillary.report.data import ReportData, TrainingPoint
from armillary.report.page import config_text
from armillary.report.palette import HARNESSES, INK, MUTED, PAPER, Tone
from armillary.report.wording import duration, percent, signed

VOID = {"meta", "br", "img", "hr", "link", "input"}


class Document(HTMLParser):
    """Tags, attributes and visible text; unbalanced tags are an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.styles: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        (self.styles if self.open and self.open[-1] == "style" else self.words).append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words).replace("\xa0", " "))


@pytest.fixture(scope="module")
def document(page: str) -> Document:
    return Document(page)


def test_the_page_is_well_formed_and_needs_nothing_else(document: Document):
    assert document.open == []
    assert not {"script", "link", "iframe", "object", "embed", "base", "img"} & set(document.tags)
    for name, value in document.attributes:
        assert not name.startswith("on"), name
        if name in {"src", "srcset", "href", "xlink:href", "action", "data"}:
            assert value.startswith("#"), (name, value)
        assert "://" not in value, (name, value)
        assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)", value))
    css = "".join(document.styles)
    assert "url(" not in css
    assert "@import" not in css


def test_ids_are_unique_and_every_reference_has_its_target(document: Document):
    ids = [value for name, value in document.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    targets = {v[1:] for n, v in document.attributes if n in {"href", "xlink:href"}}
    for name, value in document.attributes:
        if name != "content":
            targets.update(re.findall(r"url\(#([^)]*)\)", value))
    assert targets
    assert targets <= set(ids)


def test_untrusted_text_is_shown_as_text(page: str, document: Document):
    hostile = '<script>alert("1")</script>'
    assert hostile not in page
    assert page.count("&lt;script&gt;alert(&#34;1&#34;)&lt;/script&gt;") >= 3
    assert document.text.count(hostile) >= 3
    assert "odd $x_1$ <b>&" in document.text


def test_every_figure_is_inlined_for_large_and_small_screens(page: str, document: Document):
    assert document.tags.count("figure") == 5
    assert document.tags.count("svg") == 10
    assert "<metadata" not in page
    assert page.count("<style") == 1


def test_figures_follow_the_colours_of_the_page(page: str):
    figures = "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))
    assert "var(--h0)" in figures
    assert "var(--ink)" in figures
    for tone in (INK, MUTED, *HARNESSES[:3]):
        assert tone.light not in figures


def test_the_headline_and_tables_state_the_computed_numbers(data: ReportData, document: Document):
    for harness in data.harnesses:
        mine = [a for a in data.attempts if a.harness == harness]
        before, after = select(mine, "sft", "test"), select(mine, "grpo", "test")
        start, end, change = pass_at_1(before), pass_at_1(after), gain(before, after)
        assert start.estimate is not None
        assert end.estimate is not None
        assert change is not None
        assert f"from {percent(start.estimate.point)}" in document.text
        assert f"to {percent(end.estimate.point)}" in document.text
        assert signed(100 * change.point) in document.text
        assert f"paired over {change.n} cells" in document.text
    assert "30 / 31" in document.text


def test_ungraded_attempts_are_counted_in_words_and_by_kind(data: ReportData, document: Document):
    assert f"2 ungraded of {len(data.attempts)} attempts" in document.text
    assert "sandbox 2" in document.text


def test_groups_and_exposure_are_shown(document: Document):
    text = document.text
    assert "12 updates, 18,000 trained tokens" in text
    assert re.search(r"all rewards exactly equal, nothing to compare\s*24\s*20\.0%", text)
    assert re.search(r"fewer than two members graded\s*12\s*10\.0%", text)
    assert re.search(r"GRPO\s*●\s*loop\s*16\s*4\s*32\s*1,120\s*70\.0%\s*3,200", text)


def test_no_ungraded_attempt_is_said_too(data: ReportData, tmp_path: Path):
    clean = ReportData(name="r", seed=0, attempts=[a for a in data.attempts if a.graded])
    text = Document(build_report(tmp_path, clean).read_text()).text
    assert f"0 ungraded of {len(clean.attempts)} attempts" in text


def test_a_run_without_training_has_no_training_part(data: ReportData, tmp_path: Path):
    only = [a for a in data.attempts if a.stage == "base"]
    text = build_report(tmp_path, ReportData(name="eval", seed=0, attempts=only)).read_text()
    document = Document(text)
    assert document.tags.count("figure") == 2
    assert "On held-out tasks, pass@1 is" in document.text
    assert "Nothing was trained in this run." in document.text
    assert 'id="training"' not in text
    assert not (tmp_path / "figures" / "training_correct.png").exists()


def test_an_empty_run_still_has_a_page(tmp_path: Path):
    document = Document(
        build_report(tmp_path, ReportData(name="none", seed=0, attempts=[])).read_text()
    )
    assert "No attempt of this run was graded on held-out tasks." in document.text
    assert "0 ungraded of 0 attempts" in document.text


def test_one_step_and_more_harnesses_than_colours_still_draw(data: ReportData, tmp_path: Path):
    template = data.attempts[0]
    many = [msgspec.structs.replace(template, harness=f"h{i}", attempt_id=f"{i}") for i in range(8)]
    point = TrainingPoint(step=1, tool_calls={"h0": 0.0}, correct={"h7": 0.0}, ratio_p50=1.0)
    odd = ReportData(name="odd", seed=0, attempts=many, curve=[point])
    document = Document(build_report(tmp_path, odd).read_text())
    assert document.tags.count("figure") == 5
    assert "h7" in document.text


def test_equal_data_gives_equal_files(data: ReportData, run_dir: Path, tmp_path: Path):
    build_report(tmp_path, data)
    names = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file())
    assert names == sorted(p.relative_to(run_dir) for p in run_dir.rglob("*") if p.is_file())
    for name in names:
        assert (tmp_path / name).read_bytes() == (run_dir / name).read_bytes(), name


def test_the_configuration_is_toml_without_unset_values(data: ReportData, page: str):
    text = config_text(data.config)
    assert text == 'name = "run"\n\n[engine]\nkind = "local"\npath = "/x"\n'
    assert html.escape(text).replace("&quot;", "&#34;") in page


def _luminance(colour: str) -> float:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def _contrast(first: str, second: str) -> float:
    light, dark = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("tone", [INK, MUTED, *HARNESSES], ids=lambda tone: tone.variable)
def test_text_colours_have_enough_contrast_in_both_modes(tone: Tone):
    assert _contrast(tone.light, PAPER.light) >= 4.5
    assert _contrast(tone.dark, PAPER.dark) >= 4.5


def test_durations_are_written_for_people():
    assert [duration(s) for s in (2.13, 59.6, 312, 7265)] == [
        "2.1 s",
        "60 s",
        "5 min 12 s",
        "2 h 01 min",
    ]
