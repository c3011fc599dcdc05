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


def test_a_long_legend_stands_below_the_curves():
    def drawn(n):
        lines = [charts.Line(f"k = {k}", [1, 2], [k, k]) for k in range(n)]
        figure = drawing.draw_chart(charts.Chart("a", "b", "c", "epoch", "y", lines))
        return [len(found.get_texts()) for found in (figure.axes[0].get_legend(), *figure.legends) if found]

    assert [drawn(n) for n in (1, 4, 6)] == [[], [4], [6]]


def test_long_names_fit_into_the_figure():
    for length in (28, 40, 500):
        name = ("PCL (images of May 2020) " * 20)[: length - 7]
        lines = [charts.Line(f"k = {k}, {name}", [1, 2], [k, k]) for k in range(6)]
        figure = drawing.draw_chart(charts.Chart("a", "b", "c", "epoch", "y", lines))
        figure.draw_without_rendering()
        legend = figure.legends[0].get_window_extent()
        assert 0 <= legend.x0 < legend.x1 <= figure.bbox.width
        assert legend.y1 < figure.axes[0].get_window_extent().y0


def test_the_outline_of_a_histogram_begins_and_ends_at_zero():
    line = charts.Line("sizes", [0.5, 1.5, 2.5], [3, 4, 0], steps=True)
    (drawn,) = drawing.draw_chart(charts.Chart("a", "b", "c", "images", "clusters", [line])).axes[0].lines
    assert drawn.get_xydata().tolist() == [[0.5, 0], [0.5, 3], [1.5, 4], [2.5, 0]]
