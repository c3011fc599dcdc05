"""The page in a real browser, opened from the disk: what a person clicks, types and sees."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import protonce
from conftest import SMALL, stripes
from protonce import manifest
from protonce.report.page import write_report

pytestmark = pytest.mark.slow
EVIL_NAME = "<img src=x onerror=alert(1)>.jpg"
EVIL_CLASS = "</script>"  # a folder `<` that holds a folder `script>`


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """The page of a run whose files and classes have names that would run, were they taken for HTML."""
    folder = tmp_path_factory.mktemp("browser")
    rng = np.random.default_rng(0)
    for i in range(60):
        place = folder / "photos" / ("<" if i % 3 == 0 else "tame") / ("script>" if i % 3 == 0 else f"slope{i % 3}")
        place.mkdir(parents=True, exist_ok=True)
        name = EVIL_NAME if i == 0 else f"{i:02d} & 'co'.png"
        Image.fromarray(stripes(rng, i % 3)).save(place / name)
    settings = {**SMALL, "clusters": [3, 6, 12]}
    run, other = (
        protonce.train(folder / "photos", folder / method, epochs=2, quiet=True, method=method, **settings)
        for method in ("pcl", "moco")
    )
    return write_report(run, against=other, quiet=True)


@pytest.fixture
def page(open_page, report):
    return open_page(report)


def cards(page):
    return page.locator("#cluster-view .card")


def wait_for_view(page, name):
    """Until that view, and no other, is visible."""
    visible = (
        "[...document.querySelectorAll('section[data-view]')].filter(s => s.offsetParent).map(s => s.dataset.view)"
    )
    page.wait_for_function(f"() => {visible}.join() === '{name}'", timeout=5000)


def wait_for_heading(page, text):
    """Until the cluster view has this heading."""
    heading = "document.querySelector('#cluster-view h3')?.textContent"
    page.wait_for_function(f"() => {heading} === '{text}'", timeout=5000)


def test_from_coarse_to_fine_by_clicking_and_back(page):
    wait_for_view(page, "glance")
    assert page.locator(".health").inner_text()
    page.get_by_role("link", name="Clusters", exact=True).click()
    wait_for_view(page, "clusters")
    assert cards(page).count() == 3
    parent = page.locator("#cluster-view .card:not(:has-text('0 finer'))").first
    address = parent.get_attribute("data-cluster")
    parent.locator("a").click()
    wait_for_heading(page, f"Cluster {address.split('/')[1]} of 3")
    assert page.url.endswith(f"#clusters/{address}")
    assert page.locator(".thumb.large.close.painted").count() > 0
    child = cards(page).first.get_attribute("data-cluster")
    assert child.startswith("1/")
    cards(page).first.locator("a").click()
    wait_for_heading(page, f"Cluster {child.split('/')[1]} of 6")
    page.locator(".crumbs a").nth(1).click()
    wait_for_heading(page, f"Cluster {address.split('/')[1]} of 3")
    page.go_back()
    wait_for_heading(page, f"Cluster {child.split('/')[1]} of 6")


def test_a_thumbnail_shows_the_image(page, report):
    """Not an empty box: the pixels on the screen are the picture's."""
    page.goto(f"{report.as_uri()}#clusters")
    thumb = page.locator("#cluster-view .thumb.painted").first
    thumb.scroll_into_view_if_needed()
    path = report.parent / "thumb.png"
    thumb.screenshot(path=path)
    inside = np.asarray(Image.open(path).convert("L"), dtype=float)[6:-6, 6:-6]
    assert inside.std() > 20  # stripes


def test_sorting(page):
    page.goto(page.url.split("#")[0] + "#clusters/2")
    page.wait_for_selector("#cluster-view .card[data-cluster='2/0']")
    text = lambda: [card.inner_text() for card in cards(page).all()]  # noqa: E731
    by_size = [int(t.split(" image")[0]) for t in text()]
    assert by_size == sorted(by_size, reverse=True)
    page.locator("#sort").select_option("tightness")
    by_phi = [float(card.get_attribute("data-phi")) for card in cards(page).all()]
    assert by_phi == sorted(by_phi)
    page.locator("#sort").select_option("purity")
    by_purity = [float(t.split("· ")[1].split(" %")[0]) for t in text()]
    assert by_purity == sorted(by_purity, reverse=True)


def test_purity_says_of_how_many_labelled_images_it_is(chromium, trained):
    """One image of the largest cluster has a label, and two of another, which comes first."""
    assignment = trained.prototypes[0].assignment
    sizes = assignment.bincount().tolist()
    *_, other, largest = sorted(range(len(sizes)), key=lambda c: (sizes[c], -c))  # of two alike the first
    labels = {(assignment == largest).nonzero()[0].item(): "one"}
    labels |= {i.item(): "two" for i in (assignment == other).nonzero()[:2]}
    lines = [f"{i},{name},{labels.get(i, '')}" for i, name in enumerate(trained.images[0])]
    manifest.write(trained.path, "images.csv", "\n".join(["index,name,label", *lines]) + "\n")
    opened = chromium.new_page()
    opened.goto(f"{write_report(protonce.load(trained.path), quiet=True).as_uri()}#clusters/0")
    opened.locator("#sort").select_option("purity")
    first, second, *rest = (card.inner_text() for card in cards(opened).all())
    assert "· 100 % two of 2 labelled" in first
    assert "· 100 % one of 1 labelled" in second
    assert not any("%" in text for text in rest)
    opened.close()


def test_names_that_would_run_are_shown_as_text(page):
    page.get_by_role("link", name="Clusters", exact=True).click()
    wait_for_view(page, "clusters")
    page.locator("#find").fill("onerror")
    assert page.get_by_role("status").inner_text() == "1 image with “onerror”"
    tile = page.locator("#cluster-view .tile")
    assert EVIL_NAME in tile.inner_text()
    assert EVIL_CLASS in tile.inner_text()
    assert page.locator("img[src=x]").count() == 0
    page.locator("#find").fill("nothing has this name")
    assert page.get_by_role("status").inner_text().startswith("0 images")
    page.locator("#find").fill("02 & 'co'")
    assert page.locator("#cluster-view .tile").count() == 1
    page.locator("#cluster-view .tile a").first.click()
    page.wait_for_selector("#cluster-view h3:has-text('Cluster')")
    page.go_back()  # to what was found
    page.wait_for_selector("#cluster-view .tile")
    assert page.locator("#find").input_value() == "02 & 'co'"
    page.get_by_role("link", name="clusters", exact=True).click()
    page.wait_for_selector("#cluster-view .card")
    assert page.locator("#find").input_value() == ""


def test_the_map_shows_what_the_mouse_points_at(page):
    page.get_by_role("link", name="Map", exact=True).click()
    page.wait_for_selector("#map-plots[data-ready]")
    assert "Point at an image" in page.locator("#pointed").inner_text()
    box = page.locator("#map-plots").bounding_box()
    for step in range(2000):  # over the left plot, line by line, until there is something
        page.mouse.move(box["x"] + 20 + (step % 40) * 11, box["y"] + 40 + (step // 40) * 10)
        if page.locator("#pointed[data-image]").count():
            break
    assert page.locator("#pointed .thumb.painted").count() == 1
    assert page.locator("#pointed a").count() == 3
    legend = page.locator("#legend button")
    assert legend.count() == 3
    assert any(EVIL_CLASS in text for text in legend.all_inner_texts())
    page.locator("#colour").select_option("2")
    assert legend.count() == 12
    legend.first.click()
    assert legend.first.get_attribute("aria-pressed") == "true"


def test_the_other_views(page):
    page.get_by_role("link", name="Training", exact=True).click()
    assert page.locator("section[data-view=training] svg").count() >= 9
    page.get_by_role("link", name="Evaluations", exact=True).click()
    assert "None yet" in page.locator("section[data-view=evaluations]").inner_text()
    page.get_by_role("link", name="Reproduce", exact=True).click()
    assert "protonce train" in page.locator(".command").inner_text()


def test_by_keyboard_alone(page):
    def tab_to(what):
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate(f"() => document.activeElement.matches('{what}')"):
                return
        raise AssertionError(f"no {what} on the way")

    tab_to('[href="#clusters"]')
    page.keyboard.press("Enter")
    wait_for_view(page, "clusters")
    tab_to(".card a")
    page.keyboard.press("Enter")
    page.wait_for_selector("#cluster-view h3:has-text('Cluster')")
    assert page.evaluate("document.activeElement.tagName") == "H3"
    page.goto(page.url.split("#")[0] + "#map")
    page.wait_for_selector("#map-plots[data-ready]")
    page.locator("#map-plots").focus()
    seen = set()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
        seen.add(page.locator("#pointed").get_attribute("data-image"))
    assert len(seen) == 3
    legend = page.locator("#legend button").first
    legend.focus()
    page.keyboard.press("Enter")
    assert legend.get_attribute("aria-pressed") == "true"
    assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"


def test_dark_and_light(page):
    colours = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        colours[scheme] = page.evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,"
            " getComputedStyle(document.querySelector('figure svg text')).fill]"
        )
    luma = {s: [sum(map(int, c.strip("rgb()").split(",")[:3])) for c in found] for s, found in colours.items()}
    assert luma["light"][0] > 600 > 200 > luma["light"][1]
    assert luma["dark"][0] < 200 < 600 < luma["dark"][1]
    assert luma["dark"][2] > 600  # the figures' letters too


def test_a_phone_never_scrolls_sideways(page):
    page.set_viewport_size({"width": 390, "height": 800})
    for view in (
        "glance",
        "clusters",
        "clusters/0/0",
        "clusters/find/co",
        "label",
        "map",
        "training",
        "reproduce",
    ):
        page.goto(page.url.split("#")[0] + f"#{view}")
        wait_for_view(page, view.split("/")[0])
        if view == "map":
            page.wait_for_selector("#map-plots[data-ready]")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, view


def test_printing_shows_every_view_with_its_pictures(page):
    page.emulate_media(media="print")
    assert all(section.is_visible() for section in page.locator("section[data-view]:not([data-view=label])").all())
    assert page.locator("#cluster-view .card").count() == 3
    assert page.locator("button:not(.thumb):visible").count() == 0
    pictures = page.pdf(print_background=False).count(b"/Subtype /Image")
    assert pictures > 1  # thumbnails, and the map
