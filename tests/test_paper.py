"""The paper's numbers, digit by digit against its source, and a row in docs/paper.md for each of its parts."""

import os
import re
from pathlib import Path

import pytest

from conftest import SHARED
from protonce.paper import CLAIMS, FIGURES, TABLES

MAP = Path(__file__).parents[1] / "docs" / "paper.md"
NUMBERS = {  # how many values each table prints
    "tbl:lowshot_voc": 80,
    "tbl:semi_supervise": 32,
    "tbl:linear": 41,
    "tbl:knn": 4,
    "tbl:ami": 3,
    "tbl:detection": 6,
    "tbl:ablation": 10,
    "tbl:lowshot_std": 20,
    "tbl:coco": 18,
}
EQUATIONS, APPENDICES = range(1, 16), "ABCDEFGH"
DESCRIBED = {  # the tables with columns that describe a system
    "tbl:lowshot_voc": ["architecture"],
    "tbl:semi_supervise": ["architecture", "epochs"],
    "tbl:linear": ["architecture", "parameters", "epochs"],
    "tbl:detection": ["data", "architecture"],
}


@pytest.fixture(scope="module")
def source():
    """The source of the paper in the order in which it is printed, without comments and what is switched off."""
    file = SHARED.parent / "paper" / "pcl.tex"
    if not file.exists():
        assert not os.environ.get("CI"), f"CI lays the paper at {file}, and it is not there"
        pytest.skip("the source of the paper is not on this machine")
    _, *parts = re.split(r"^%% file: (.*)$", file.read_text(), flags=re.MULTILINE)
    files = {
        name.removesuffix(".tex"): re.sub(r"(?<!\\)%.*", "", text)
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }
    text = files["main"]
    while found := re.search(r"\\input\{(.*?)\}", text):
        text = text[: found.start()] + files[found[1].removesuffix(".tex")] + text[found.end() :]
    return re.sub(r"\\if 0.*?\\fi", "", text, flags=re.DOTALL)


def labelled(source, kind):
    """The tables or figures by label, in their order."""
    found = re.findall(rf"\\begin{{{kind}\*}}(.*?)\\end{{{kind}\*}}", source, flags=re.DOTALL)
    return {re.search(r"\\label\{(.*?)\}", text)[1]: text for text in found}


def cells(lines):
    """Rows of cells of a part of a tabular, as plain text."""
    for pattern, plain in (
        (r"~?\\citep?\{.*?\}|\\hline|~|\(ours\)", ""),
        (r"\\textbf\{(.*?)\}", r"\1"),
        (r"\\multirow\{\d\}\{\*\}\{(.*?)\}", r"\1"),
        (r"\$\^\\dagger\$", "†"),
        (r"\$\^\\ddagger\$", "‡"),
        (r"\$\^([*4])\$", r"\1"),
        (r"\$_\{?(?:\\mathrm\{)?(.*?)\}?\$", r"_\1"),
        ("–", "-"),
    ):
        lines = re.sub(pattern, plain, lines)
    rows = [[cell.strip() for cell in line.split("&")] for line in lines.split(r"\\")]
    return [row for row in rows if row != [""] and r"\multicolumn" not in row[0]]


def read_table(text, described):
    """System, description and values of each row of a table; an empty cell is `-`."""
    header, body = re.search(r"\\toprule(.*?)\\midrule(.*?)\\bottomrule", text, flags=re.DOTALL).groups()
    if len(rows := cells(body)) == 1:  # a row of values, whose systems are the columns
        return [(system, {}, [value]) for system, value in zip(cells(header)[0][1:], rows[0][1:], strict=True)]
    found, above = [], {}
    for system, *rest in rows:
        joined = "parameters" in described
        if joined:  # architecture (parameters)
            rest = [*re.fullmatch(r"(.*?) ?\((.*)\)", rest[0]).groups(), *rest[1:]]
        about = {name: rest[i] or above[name] for i, name in enumerate(described)}
        above = about
        found.append((system, about, rest[len(described) :]))
    return found


def test_every_number_of_the_source_is_here_digit_by_digit(source):
    printed = labelled(source, "table")
    assert list(printed) == list(TABLES)
    for label, text in printed.items():
        rows, table = read_table(text, DESCRIBED.get(label, [])), TABLES[label]
        assert [system for system, _, _ in rows] == [row.system for row in table.rows], label
        for (system, about, values), row in zip(rows, table.rows, strict=True):
            ours = [f"{value.text}{value.mark}" if value else "-" for value in row.values]
            assert ours == values, (label, system)
            for name, described in about.items():
                if name != "data":
                    assert (getattr(row, name) or "-") == described, (label, system)
                else:
                    assert described in table.note
        assert {mark for _, _, values in rows for v in values for mark in v.lstrip("0123456789.-")} == {*table.marks}


def test_the_figures_and_claims_of_the_source(source):
    assert [(label, number) for label, (number, _) in FIGURES.items()] == [
        (label, i) for i, label in enumerate(labelled(source, "figure"), start=1)
    ]
    text = " ".join(re.sub(r"[\\$]", "", source).split())
    for claim in CLAIMS:
        assert claim.words in text
    assert source.count(r"\begin{equation}") == len(EQUATIONS)
    appendices = source.partition(r"\begin{appendices}")[2]
    assert appendices.count(r"\section{") == len(APPENDICES)


def test_the_tables_are_whole():
    found = {label: sum(v is not None for row in table.rows for v in row.values) for label, table in TABLES.items()}
    assert found == NUMBERS
    assert sum(found.values()) == 214
    assert [table.number for table in TABLES.values()] == list(range(1, 10))
    for table in TABLES.values():
        for row in table.rows:
            assert len(row.values) == len(table.columns)
            for value in row.values:
                assert value is None or (re.fullmatch(r"\d+\.\d+", value.text) and value.mark in ("", *table.marks))


@pytest.mark.parametrize(
    ("label", "column", "system", "expected", "encoder"),
    [
        ("tbl:lowshot_voc", "VOC07 k=16", "PCL v2", "78.3", "ResNet-50-MLP, 200 epochs"),
        ("tbl:lowshot_std", "Places205 k=2", "PCL", "0.23", "ResNet-50, 200 epochs"),
        ("tbl:semi_supervise", "10%", "SwAV", "89.9‡", "ResNet-50-MLP, 800 epochs"),
        ("tbl:linear", "Places205", "MoCo", "48.9*", "R50, 24M, 200 epochs"),
        ("tbl:linear", "ImageNet", "BYOL", "74.3†", "R50-MLP_big, 35M, 1000 epochs"),
        ("tbl:ami", "AMI", "PCL", "0.410", "ResNet-50, 200 epochs"),
        ("tbl:detection", "VOC07+12", "PCL", "78.5", "Resnet-50-FPN, 200 epochs"),
        ("tbl:coco", "AP75 mk", "MoCo", "37.6", ""),
    ],
)
def test_some_numbers_by_hand(label, column, system, expected, encoder):
    ((row, value),) = [pair for pair in TABLES[label].column(column) if pair[0].system == system]
    assert (value.text + value.mark, row.encoder) == (expected, encoder)


def test_shares_keep_the_digits():
    values = [(v.text, v.share) for t in TABLES.values() if t.per_cent for r in t.rows for v in r.values if v]
    for text, share in values:
        assert share.replace(".", "").lstrip("0") == text.replace(".", "").lstrip("0")
        assert float(share) == pytest.approx(float(text) / 100)


@pytest.mark.parametrize(
    "part",
    [
        *(f"table {table.number} (`{label}`)" for label, table in TABLES.items()),
        *(f"figure {number} (`{label}`)" for label, (number, _) in FIGURES.items()),
        *(f"eq. {number}" for number in EQUATIONS),
        *(f"appendix {letter}" for letter in APPENDICES),
        *(claim.words for claim in CLAIMS),
    ],
)
def test_each_part_of_the_paper_has_a_row_on_the_map(part):
    rows = [line.strip("|").split(" | ") for line in MAP.read_text().splitlines() if line.startswith("|")]
    named = [row for row in rows if re.match(rf" *{re.escape(part)}(?!\w)", row[0])]
    assert named, f"docs/paper.md has no row that starts with {part}"
    for row in named:
        assert row[1].strip(), f"docs/paper.md does not say where {part} is"
