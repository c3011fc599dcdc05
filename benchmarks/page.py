"""How long the page of a run takes to write, open and answer, and what it weighs, against what people put up with.

    python -m benchmarks.page --run RUN

Opening is measured in Chromium, from `goto` to the moment when the page can be used; median of 5. What a person does on
the page is timed from the event to the frame that follows; the slowest of 5. `ratio` is the worst of four: seconds to
write over 90 for 20,000 images and in proportion for more, seconds to open over 2, to answer over 0.1, bytes over 20
million.
"""

import argparse
import json
import shutil
import statistics
import time
from pathlib import Path

import torch
from playwright.sync_api import sync_playwright

from protonce.report.page import write_report
from protonce.run import load

WRITE, OPEN, ANSWER, BYTES = 90, 2, 0.1, 20_000_000
WRITTEN = 20_000  # images that may take that long to write
# What a person does, in order. `thumb` is the i-th thumbnail of the cluster that is shown, -1 its last.
ACTIONS = {
    "open a cluster": "location.hash = `#clusters/0/${i}`",
    "open an image": "thumb(i).click()",
    "go to the next image": "key('ArrowRight')",
    "close it": "document.querySelector('dialog').close()",
    "select one": "thumb(i).dispatchEvent(new MouseEvent('click', {bubbles: true, ctrlKey: true}))",
    "select a range": "thumb(-1).dispatchEvent(new MouseEvent('click', {bubbles: true, shiftKey: true}))",
    "label the selected": "giving('selection-label', `label ${i}`); find('selection-form').requestSubmit()",
    "undo": "find('undo').click()",
    "search by name": "giving('find', String(i))",
    "search by label": "giving('find', 'shirt'.slice(0, 5 - i % 3))",
    "show the map": "location.hash = '#map'",
}
TIMED = """async ([script, i]) => {
  const thumb = (i) => [...document.querySelectorAll('#cluster-view .thumb[data-image]')].at(i);
  const key = (name) => document.dispatchEvent(new KeyboardEvent('keydown', {key: name, bubbles: true}));
  const find = (id) => document.getElementById(id);
  const giving = (id, text) => {
    find(id).value = text;
    find(id).dispatchEvent(new InputEvent('input', {bubbles: true}));
  };
  const began = performance.now();
  eval(script);
  await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));
  return (performance.now() - began) / 1000;
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, help="a run folder; its report.html is written anew")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    run = load(options.run)
    began = time.perf_counter()
    page = write_report(run)
    writing = time.perf_counter() - began
    opening, answers = open_page(page)
    size = page.stat().st_size
    images = run.config["data"]["images"]
    slow = writing / (WRITE * max(images / WRITTEN, 1))
    result = {
        "ratio": max(slow, opening / OPEN, max(answers.values()) / ANSWER, size / BYTES),
        "goal": 1.0,
        "better": "lower",
        "timed": "writing report.html, opening it in Chromium until it can be used, and answering what a person does",
        "images": images,
        "clusters": run.settings.clusters,
        "seconds_to_write": writing,
        "seconds_to_open": opening,
        "seconds_to_answer": answers,
        "bytes": size,
        "threads": options.threads,
    }
    print(json.dumps(result, indent=2))
    results = Path(__file__).parent / "results" / "page.json"
    results.write_text(json.dumps(result, indent=2) + "\n")


def open_page(page: Path, repeats: int = 5) -> tuple[float, dict[str, float]]:
    """Median seconds until the page can be used, in a browser that runs already, and the slowest answers."""
    times = []
    with sync_playwright() as driver:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        for _ in range(repeats):
            tab = browser.new_page()
            began = time.perf_counter()
            tab.goto(page.resolve().as_uri())
            tab.wait_for_selector("html[data-ready]")
            times.append(time.perf_counter() - began)
            tab.close()
        tab = browser.new_page()
        tab.goto(page.resolve().as_uri())
        tab.wait_for_selector("html[data-ready]")
        answers = dict.fromkeys(ACTIONS, 0.0)
        for i in range(repeats):
            for name, script in ACTIONS.items():
                answers[name] = max(answers[name], tab.evaluate(TIMED, [script, i]))
        browser.close()
    return statistics.median(times), answers


if __name__ == "__main__":
    main()
