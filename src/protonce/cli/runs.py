"""`protonce runs`."""

import argparse
from pathlib import Path

from protonce.cli.parser import Commands, add_command


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    parser = add_command(commands, "runs", run)
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="a folder with run folders in it, up to six folders deep"
    )
    parser.add_argument("--sort", metavar="COLUMN", default="run", help="column to sort by (run)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table as FILE.csv, or as a page FILE.html")


def run(options: argparse.Namespace) -> None:
    """List all runs below a folder: what was trained, how it went, and every score."""
    from rich.console import Console

    from protonce.report.overview import TEXTS, columns, fitting, gather_runs, sort_rows, write_overview
    from protonce.tables import print_table

    rows, problems = gather_runs(options.folder)
    rows = sort_rows(rows, options.sort)
    console = Console()
    names = fitting(rows, console.width, options.sort) if console.is_terminal else columns(rows)
    if not console.is_terminal:
        console.width = 10_000
    align = "".join("l" if name in TEXTS else "r" for name in names)
    print_table(console, align, names, [[row.cells.get(name, "") for name in names] for row in rows])
    left_out = [name for name in columns(rows) if name not in names and any(row.cells.get(name) for row in rows)]
    if left_out:
        print(f"no room for {', '.join(left_out)}; --out FILE.html or FILE.csv has all columns")
    for problem in problems:
        print(f"left out: {problem}")
    if options.out is not None:
        write_overview(rows, options.out)
        print(f"{options.out} holds {len(rows):,} runs")
