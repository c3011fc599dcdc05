"""How long the page of a run takes to write and to open, and what it weighs, against what a person puts up with.

    python -m benchmarks.page --run RUN

Opening is measured in Chromium, from `goto` to the moment when the page can be used; median of 5. `ratio` is the worst
of three: seconds to write over 90, seconds to open over 2, bytes over 20 million.
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

WRITE, OPEN, BYTES = 90, 2, 20_000_000


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
    opening = open_page(page)
    size = page.stat().st_size
    result = {
        "ratio": max(writing / WRITE, opening / OPEN, size / BYTES),
        "goal": 1.0,
        "better": "lower",
        "timed": "writing report.html, and opening it in Chromium until it can be used",
        "images": run.config["data"]["images"],
        "clusters": run.settings.clusters,
        "seconds_to_write": writing,
        "seconds_to_open": opening,
        "bytes": size,
        "threads": options.threads,
    }
    print(json.dumps(result, indent=2))
    results = Path(__file__).parent / "results" / "page.json"
    results.write_text(json.dumps(result, indent=2) + "\n")


def open_page(page: Path, repeats: int = 5) -> float:
    """Median seconds until the page can be used, in a browser that runs already."""
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
        browser.close()
    return statistics.median(times)


if __name__ == "__main__":
    main()
