"""Drawn charts: their colours, and no script in them."""

from protonce.report import charts, drawing


def test_each_line_has_a_distinct_colour():
    """Names that begin alike are two lines all the same; a dashed line shares the colour of its own."""
    lines = [charts.Line(f"k = {k}", [1, 2], [k, k]) for k in (10, 100, 1000)]
    lines.append(charts.Line("by guessing", [1, 2], [5, 5], of="k = 100"))
    drawn = drawing.draw_chart(charts.Chart("a", "b", "c", "epoch", "y", lines)).axes[0].lines
    colours = [line.get_color() for line in drawn]
    assert len(set(colours)) == 3
    assert colours[3] == colours[1]


def test_a_figure_uses_the_page_colour_and_contains_no_script():
    line = charts.Line("<script>alert(1)</script>", [1, 2], [3, 4])
    other = charts.Line("$x", [1, 2], [3, 5])
    text = drawing.svg(drawing.draw_chart(charts.Chart("a", "</svg><b>", "", "epoch", "y", [line, other])))
    assert "<script" not in text
    assert text.count("</svg>") == 1
    assert "currentColor" in text
    assert "$x" in text
    assert text == drawing.svg(drawing.draw_chart(charts.Chart("a", "</svg><b>", "", "epoch", "y", [line, other])))
