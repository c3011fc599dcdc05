"""The command line: one command a function, and no logic of its own. `--help` loads no torch."""

import argparse
import dataclasses
import io
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TextIO

import yaml

from protonce import __version__
from protonce.config import ARCHITECTURE, Settings, read_config, recipes
from protonce.errors import UserError
from protonce.evaluate.options import PROTOCOLS
from protonce.fields import Checked
from protonce.methods.registry import SYSTEMS, check_names

DATA = (
    "images: a folder, a .zip or .tar, a .csv or .parquet of paths, `builtin`, or NAME[@SPLIT]:ROOT with ImageNet, "
    "Places205, VOC2007, VOC2012 or a data set of torchvision"
)
TEST = "labelled images to test on; else the data's own test part, or a fifth of the training images"
MAIN_SETTINGS = ("method", "epochs", "seed", "limit", "init")
CLUSTERING = ("clusters", "tau", "alpha", "concentration", "kmeans_engine", "kmeans_iterations", "kmeans_starts")
IMPORT_SETTINGS = (*ARCHITECTURE, *CLUSTERING, "kmeans_points", "seed", "limit", "device", "workers")
IMPORTED = {  # what holds there for a setting that is not given
    "backbone": "the file's; untrained: resnet50",
    "stem": "as it was trained; else standard",
    "head": "the file's; untrained: mlp",
    "dim": "the file's; untrained: 128",
    "image_size": "as it was trained; else 224",
    "plain_resize": "in proportion to image_size; 256 for 224",
}
FEW = 5  # names of tensors that are printed


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are one sentence, like every other error of the user's."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and where help is; exit code 2."""
        raise UserError(f"{message}; see `{self.prog} --help`")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 when it succeeded, 2 when the user can mend what went wrong."""
    for stream in (sys.stdout, sys.stderr):
        _print_every_name(stream)
    try:
        options = _parser(_method(arguments)).parse_args(arguments)
        command: Callable[[argparse.Namespace], None] = options.command
        command(options)
    except UserError as error:
        print(f"protonce: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # a disk that is full, a folder that may not be written, a name that is a folder
        print(f"protonce: {error.strerror or error}: {error.filename or ''}".rstrip(": "), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("protonce: interrupted; the same command goes on (`protonce train`: with --resume)", file=sys.stderr)
        return 130
    return 0


def _print_every_name(stream: TextIO) -> None:
    """A file name that is no text in the terminal's encoding is shown with escapes, and ends nothing."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


def demo(options: argparse.Namespace) -> None:
    """Train MoCo and PCL on the built-in images and compare what they learnt."""
    from protonce.demo import run_demo

    run_demo(options.out, options.seed)


def train(options: argparse.Namespace) -> None:
    """Learn an encoder and a hierarchy of prototypes from images without labels."""
    from protonce.api import train
    from protonce.ranks import Ranks

    if options.out is None and options.resume:
        raise UserError("--resume needs --out RUN, the run to continue")
    out = options.out or _new_run(options.data)
    run = train(options.data, out, recipe=options.recipe, resume=options.resume, **_settings(options))
    if not Ranks().is_first:
        return
    print(f"{run.path} holds the encoder and the prototypes; next: protonce embed {run.path} DATA --out FILE.npz")
    if not options.no_report:
        from protonce.report.page import write_report

        print(f"Look at what it found: {write_report(run)}")


def embed(options: argparse.Namespace) -> None:
    """Write features, and the nearest prototype of each granularity with its distance, for every image."""
    from protonce.embedding import write_embedding
    from protonce.run import load

    n, skipped = write_embedding(load(options.run), options.data, options.out)
    print(f"{options.out} holds {n:,} images" + (f"; {skipped:,} files could not be read" if skipped else ""))


def evaluate(options: argparse.Namespace) -> None:
    """Evaluate the encoder of a run by a protocol of the paper."""
    from protonce.evaluate.protocols import evaluate
    from protonce.run import load

    chosen = _chosen(PROTOCOLS[options.protocol], options)
    evaluate(load(options.run), options.protocol, train=options.train, test=options.test, name=options.name, **chosen)


def import_(options: argparse.Namespace) -> None:
    """Make a run folder of an encoder from elsewhere, or of one before training, for every other command."""
    from protonce.importing import import_encoder
    from protonce.run import load

    chosen = _chosen(Settings, options)
    like = load(options.like) if options.like else None
    run, found = import_encoder(options.file, options.out, data=options.data, like=like, **chosen)
    s = run.settings
    print(f"{run.path} holds {s.backbone} with head {s.head}, {s.dim} dimensions, for views of {s.image_size} pixels")
    if options.file == "untrained":
        return
    for what, names in (("used", found.used), ("missing, and new", found.missing), ("left over", found.left_over)):
        print(f"{what}: {_some(names)}")
    if len(found.used) + len(found.left_over) > FEW:
        print(f"every name stands in {run.path / 'import.json'}")


def ablation(options: argparse.Namespace) -> None:
    """Train and compare the five rows of appendix A: each term of ProtoNCE alone, with and without warm-up."""
    from protonce.ablation import run_ablation

    chosen = {"recipe": options.recipe, **_settings(options)}
    run_ablation(options.data, options.out, test=options.test, draws=options.draws, share=options.share, **chosen)


def report(options: argparse.Namespace) -> None:
    """Write RUN/report.html: clusters, map, curves and evaluations on one page that opens from the disk."""
    from protonce.report.page import write_report
    from protonce.run import load

    against = load(options.against) if options.against else None
    print(write_report(load(options.run), data=options.data, against=against, figures=options.figures))


def clusters(options: argparse.Namespace) -> None:
    """Write the clusters of a run as folders of links to the images, and a table of who is in which."""
    from protonce.report.folders import write_folders
    from protonce.run import load

    n = write_folders(load(options.run), options.out, data=options.data, copy=options.copy)
    print(f"{options.out} holds {n:,} images in the folders of their clusters, and clusters.csv")


def _chosen(fields: type[Checked], options: argparse.Namespace) -> dict[str, Any]:
    """The values of those fields that have been given on the command line."""
    return {name: getattr(options, name) for name in fields.names() if hasattr(options, name)}


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """The settings of a training: those of --config, and those given on the command line, which win."""
    config = read_config(options.config) if options.config else {}
    check_names(config, str(options.config))
    chosen = _chosen(Settings, options)
    for entry in SYSTEMS.values():
        chosen |= _chosen(entry.options, options)
    return {**config, **chosen}


def _method(arguments: Sequence[str] | None) -> str:
    """The system whose options the help of a command shows."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    scan = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    scan.add_argument("--method", default=Settings().method)
    try:
        method = scan.parse_known_args(words)[0].method
    except argparse.ArgumentError:  # --method without a name, which the command itself complains about
        method = ""
    return method if method in SYSTEMS else Settings().method


def _some(names: Sequence[str]) -> str:
    """So many tensors, and as many of their names as can be read at a glance."""
    shown = ", ".join(names[:FEW]) + (", ..." if len(names) > FEW else "")
    return f"{len(names)} tensors" + (f" ({shown})" if names else "")


def _new_run(data: str) -> Path:
    """A run folder that does not exist yet, named after the data."""
    name = Path(data).resolve().stem
    return next(path for i in itertools.count(1) if not (path := Path("runs") / f"{name}-{i}").exists())


def _parser(method: str) -> Parser:
    parser = Parser(prog="protonce", description="Prototypical Contrastive Learning: learn from images without labels.")
    parser.add_argument("--version", action="version", version=f"protonce {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)

    def add(command: Callable[[argparse.Namespace], None], usage: str | None = None) -> argparse.ArgumentParser:
        text = command.__doc__ or ""
        added = commands.add_parser(command.__name__.strip("_"), help=text, description=text, usage=usage)
        added.set_defaults(command=command)
        return added

    sub = add(demo)
    sub.add_argument("--out", type=Path, default=Path("protonce-demo"), help="folder to write to (%(default)s)")
    sub.add_argument("--seed", type=int, default=0, help="seed of every draw (%(default)s)")

    sub = add(train, "protonce train DATA [--out RUN] [--recipe NAME] [--epochs N] [--resume] [--SETTING VALUE ...]")
    sub.add_argument("data", metavar="DATA", help=DATA)
    sub.add_argument("--out", type=Path, metavar="RUN", help="run folder to write (runs/DATA-1, or the next number)")
    sub.add_argument(
        "--recipe",
        metavar="NAME",
        help=f"named settings: {', '.join(recipes())}; else chosen by the data and the device",
    )
    sub.add_argument("--resume", action="store_true", help="continue the run in RUN after its last checkpoint")
    sub.add_argument("--no-report", action="store_true", help="write no report.html when training has ended")
    _add_settings(sub, method)

    sub = add(embed)
    sub.add_argument("run", metavar="RUN", help="a run folder")
    sub.add_argument("data", metavar="DATA", help=DATA)
    sub.add_argument("--out", type=Path, required=True, metavar="FILE", help="FILE.npz, or FILE.parquet")

    sub = add(evaluate)
    sub.add_argument("run", metavar="RUN", help="a run folder")
    _add_protocols(sub)

    sub = add(
        import_, "protonce import FILE --out RUN [--data DATA] [--like RUN] [--backbone NAME] [--SETTING VALUE ...]"
    )
    sub.add_argument(
        "file",
        metavar="FILE",
        help="a checkpoint of the published PCL or MoCo, weights of timm or of torchvision's ResNets, timm:NAME, "
        "another run, or `untrained`",
    )
    sub.add_argument("--out", type=Path, required=True, metavar="RUN", help="new run folder to write")
    sub.add_argument("--data", metavar="DATA", help=f"{DATA}: for prototypes, without which there are no clusters")
    sub.add_argument("--like", metavar="RUN", help="take architecture and preparation of images from this run")
    _add_fields(sub, Settings, IMPORT_SETTINGS, IMPORTED)

    sub = add(ablation, "protonce ablation DATA --out DIR [--test DATA] [--epochs N] [--SETTING VALUE ...]")
    sub.add_argument("data", metavar="DATA", help=f"labelled {DATA}")
    sub.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder for the five runs and ablation.json"
    )
    sub.add_argument("--test", metavar="DATA", help=TEST)
    sub.add_argument("--recipe", metavar="NAME", help=f"named settings: {', '.join(recipes())}")
    sub.add_argument("--draws", type=int, default=5, help="draws of the labels that are fine-tuned on (%(default)s)")
    sub.add_argument("--share", type=float, default=0.01, help="of the labels that are fine-tuned on (%(default)s)")
    _add_settings(sub, "pcl", without=("method", "terms"))

    where = "the images the run was trained on, if they are no longer where they were"
    sub = add(report)
    sub.add_argument("run", metavar="RUN", help="a run folder")
    sub.add_argument("--against", metavar="OTHER_RUN", help="a run folder to show beside it")
    sub.add_argument("--data", metavar="DATA", help=where)
    sub.add_argument("--figures", type=Path, metavar="DIR", help="write the figures there, too, as PNG and PDF")

    sub = add(clusters)
    sub.add_argument("run", metavar="RUN", help="a run folder")
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="new folder to write")
    sub.add_argument("--data", metavar="DATA", help=where)
    sub.add_argument("--copy", action="store_true", help="copy the images instead of linking to them")
    return parser


def _add_protocols(parser: argparse.ArgumentParser) -> None:
    """The protocols, each with its options; what all of them take may stand before PROTOCOL too."""
    images = {"train": "labelled images to learn from; else the run's own data", "test": TEST}

    def add_common(to: argparse.ArgumentParser, default: object) -> None:
        for name, text in images.items():
            to.add_argument(f"--{name}", metavar="DATA", default=default, help=text)
        to.add_argument("--name", default=default, help="kept as evaluations/PROTOCOL-NAME.json")

    add_common(parser, None)
    protocols = parser.add_subparsers(dest="protocol", required=True, metavar="PROTOCOL", parser_class=Parser)
    for name, fields in PROTOCOLS.items():
        sub = protocols.add_parser(name, help=fields.__doc__, description=fields.__doc__)
        add_common(sub, argparse.SUPPRESS)
        _add_fields(sub, fields)


def _add_settings(parser: argparse.ArgumentParser, method: str, without: Sequence[str] = ()) -> None:
    """An option for each setting of a training and each option of a system, and for a file of them.

    The help shows the options of one system; those of others are taken too, so that who gives one is told whose it is.
    """
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file of settings; it wins over the recipe")
    main_group = parser.add_argument_group("main settings", "defaults in brackets; a recipe may name others")
    entry = SYSTEMS[method]
    own = parser.add_argument_group(
        f"options of {entry.name} ({entry.about})", "see --method NAME --help for another's"
    )
    others = parser.add_argument_group("all other settings", "the same names work as lines of a --config file")
    _add_fields(
        main_group, Settings, [name for name in Settings.names() if name in MAIN_SETTINGS and name not in without]
    )
    _add_fields(own, entry.options, [name for name in entry.options.names() if name not in without])
    _add_fields(others, Settings, [name for name in Settings.names() if name not in (*MAIN_SETTINGS, *without)])
    added = {*entry.options.names(), *without}
    for other in SYSTEMS.values():
        _add_fields(parser, other.options, [name for name in other.options.names() if name not in added], shown=False)
        added.update(other.options.names())


def _add_fields(
    group: argparse.ArgumentParser | argparse._ArgumentGroup,
    fields: type[Checked],
    names: Sequence[str] | None = None,
    otherwise: Mapping[str, str] = MappingProxyType({}),
    shown: bool = True,
) -> None:
    """An option for each field, or for those of these names. One that is not given is absent: a recipe's stands.

    The help names the field's default, or what holds `otherwise`; nothing where it is not `shown`.
    """
    defaults = fields()
    for field in dataclasses.fields(fields):
        if names is not None and field.name not in names:
            continue
        default = getattr(defaults, field.name)
        usual = otherwise.get(field.name) or str(default).strip("[]").replace(" ", "") or "none"
        text = f"{field.metadata['help']} ({usual})".replace("%", "%%")
        if field.name == "method":
            text = f"system: {', '.join(SYSTEMS)} ({usual}); its options: --method NAME --help"
        group.add_argument(
            f"--{field.name.replace('_', '-')}",
            dest=field.name,
            type=str if isinstance(default, str) and default != "auto" else _value,
            default=argparse.SUPPRESS,
            metavar=_metavar(default),
            help=text if shown else argparse.SUPPRESS,
        )


def _metavar(default: object) -> str:
    if isinstance(default, list):
        return ",".join("X" * len(default))
    return {int: "N", float: "X"}.get(type(default), "VALUE")


def _value(text: str) -> object:
    """An option's value as YAML reads it; `1,2,3` is a list as well as `[1, 2, 3]`."""
    if "," in text and not text.startswith("["):
        text = f"[{text}]"
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text
