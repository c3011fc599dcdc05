"""Write the screenshots in docs/images, from a run and one to compare it with.

protonce demo && python docs/screenshots.py protonce-demo/pcl protonce-demo/moco

It writes the page of the run anew.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

import protonce

IMAGES = Path(__file__).parent / "images"
SIZE = {"width": 980, "height": 900}
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-sync",
    "--no-first-run",
]


def main(run: str, other: str) -> None:
    """Write the page, open it in Chromium, and take a picture of each view."""
    found = protonce.load(run)
    page = found.report(against=protonce.load(other))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        view = browser.new_page(viewport=SIZE)
        for name, take in (("clusters", clusters), ("map", map_), ("label", label), ("large", large)):
            view.goto(f"{page.resolve().as_uri()}#{name if name != 'large' else 'clusters'}")
            view.wait_for_selector("html[data-ready]")
            take(view)
            view.wait_for_timeout(500)
            view.screenshot(path=IMAGES / f"report-{name}.png")
            print(IMAGES / f"report-{name}.png")


def clusters(view: Page) -> None:
    """The largest coarse cluster, with the finer ones inside it."""
    view.locator("#cluster-view .card a").first.click()
    view.wait_for_selector(".thumb.large.painted")


def map_(view: Page) -> None:
    """The maps of both runs, with the mouse at an image."""
    view.wait_for_selector("#map-plots[data-ready]")
    box = view.locator("#map-plots").bounding_box()
    assert box
    for step in range(2000):  # line by line, until there is an image
        view.mouse.move(box["x"] + 150 + (step % 40) * 8, box["y"] + 150 + (step // 40) * 8)
        if view.locator("#pointed[data-image]").count():
            return


def label(view: Page) -> None:
    """The images to label first; the command on the page names the folder without where it is on this disk."""
    view.locator("[data-view=label] code").evaluate(
        "code => code.textContent = code.textContent.replace(/ \\S*[/]/, ' ')"
    )
    view.wait_for_selector("#label-view .thumb.painted, [data-view=label] .thumb.painted")


def large(view: Page) -> None:
    """A large image, with its name and its clusters."""
    clusters(view)
    view.locator(".thumb.large.painted").first.click()
    view.wait_for_selector("dialog[open]")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
