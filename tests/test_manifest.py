"""The manifest of a run folder: what is read is what was written, whenever a process was killed."""

import contextlib
import hashlib
import json
import os
import shutil
import threading

import numpy as np
import pytest
from safetensors.torch import load_file, save

import protonce
from conftest import SMALL
from protonce import manifest
from protonce.cli import main
from protonce.errors import UserError
from protonce.evaluate.drafts import Drafts
from protonce.run.checking import check_run


@pytest.fixture
def folder(tmp_path):
    manifest.create(tmp_path / "run")
    manifest.write(tmp_path / "run", "config.yaml", "format: 2\n")
    return tmp_path / "run"


def test_a_file_is_read_as_it_was_written(folder):
    manifest.write(folder, "sub/file.txt", "ü\udcff")
    assert manifest.read(folder, "sub/file.txt") == b"\xc3\xbc\xff"
    manifest.write(folder, "sub/file.txt", b"other")
    assert manifest.read(folder, "sub/file.txt") == b"other"
    assert json.loads((folder / "manifest.json").read_text())["files"]["sub/file.txt"][0]["size"] == 5


@pytest.mark.parametrize("data", [b"", b"othe", b"other ", b"oTher", b"\0" * 5])
def test_other_content_is_refused(folder, data):
    manifest.write(folder, "file", b"other")
    (folder / "file").write_bytes(data)
    with pytest.raises(UserError, match=r"file is not what protonce wrote: .*; restore it"):
        manifest.read(folder, "file")
    with pytest.raises(UserError, match="is not what protonce wrote"):
        manifest.check(folder, "file")


def test_missing_and_unlisted_files_are_refused(folder):
    manifest.write(folder, "file", b"x")
    (folder / "file").unlink()
    assert manifest.is_recorded(folder, "file")
    with pytest.raises(UserError, match="file is missing"):
        manifest.read(folder, "file")
    (folder / "new").write_bytes(b"x")
    assert not manifest.is_recorded(folder, "new")
    with pytest.raises(UserError, match=r"manifest.json does not list it"):
        manifest.read(folder, "new")


@pytest.mark.parametrize("written", [[], [b"first"], [b"first", b"second"]])
def test_killed_before_the_file_is_replaced_its_last_content_is_read(folder, monkeypatch, written):
    for data in written:
        manifest.write(folder, "file", data)
    save = manifest.write_whole

    def killed(path, data):
        if path.name == "file":
            raise KeyboardInterrupt
        save(path, data)

    monkeypatch.setattr(manifest, "write_whole", killed)
    for data in (b"third", b"fourth"):  # more than once
        with pytest.raises(KeyboardInterrupt):
            manifest.write(folder, "file", data)
    monkeypatch.undo()
    if written:
        assert manifest.read(folder, "file") == written[-1]
    else:
        with pytest.raises(UserError, match="file is missing"):
            manifest.read(folder, "file")
    manifest.write(folder, "file", b"third")
    assert manifest.read(folder, "file") == b"third"


def test_killed_while_a_line_is_appended_the_lines_before_are_read(folder, monkeypatch):
    manifest.append(folder, "metrics.jsonl", "one\n")
    monkeypatch.setattr(manifest, "_save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        manifest.append(folder, "metrics.jsonl", "lost\n")
    monkeypatch.undo()
    assert (folder / "metrics.jsonl").read_bytes() == b"one\nlost\n"
    assert manifest.read(folder, "metrics.jsonl") == b"one\n"
    manifest.append(folder, "metrics.jsonl", "two\n")
    assert (folder / "metrics.jsonl").read_bytes() == manifest.read(folder, "metrics.jsonl") == b"one\ntwo\n"
    (folder / "metrics.jsonl").write_bytes(b"One\ntwo\n")
    with pytest.raises(UserError, match="content has changed"):
        manifest.append(folder, "metrics.jsonl", "three\n")


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("act", [manifest.read, manifest.check])
def test_a_reader_beside_a_writer_finds_no_damage(folder, monkeypatch, act, moment):
    """It may see the manifest of one moment and the file of another."""
    opened, written = manifest._open, []

    def write_twice():
        while len(written) < 2:
            written.append(len(written))
            manifest.write(folder, "file", f"later {len(written)}")

    @contextlib.contextmanager
    def open_beside_a_writer(run, name):
        if moment == "before":
            write_twice()
        with opened(run, name) as file:
            yield file
        write_twice()

    manifest.write(folder, "file", "first")
    monkeypatch.setattr(manifest, "_open", open_beside_a_writer)
    expected = b"first" if moment == "after" else b"later 2"
    assert act(folder, "file") in (expected, hashlib.sha256(expected).hexdigest())
    assert len(written) == 2


def test_two_writers_do_not_forget_each_others_files(folder):
    def work(name):
        for i in range(20):
            manifest.write(folder, f"{name}{i}", f"{name} {i}")

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in "ab":
        for i in range(20):
            assert manifest.read(folder, f"{name}{i}") == f"{name} {i}".encode()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "damaged"),
        ("[]", "damaged"),
        ('{"format": 2}', "damaged"),
        ('{"format": 2, "files": {"config.yaml": [{"size": 1}]}}', "damaged"),
        ("[" * 100_000, "damaged"),
        ('{"format": 99, "files": {}}', "newer version"),
        (None, r"manifest.json is missing"),
    ],
)
def test_a_damaged_manifest_is_refused(folder, text, expected):
    if text is None:
        (folder / "manifest.json").unlink()
    else:
        (folder / "manifest.json").write_text(text)
    for act in (lambda: manifest.read(folder, "config.yaml"), lambda: manifest.write(folder, "file", "x")):
        with pytest.raises(UserError, match=expected):
            act()


def test_a_removed_run_folder_does_not_come_back(photos, tmp_path, monkeypatch):
    from protonce import checkpoints

    save = checkpoints.save

    def remove_and_save(run, *rest):
        shutil.rmtree(run)
        save(run, *rest)

    monkeypatch.setattr(checkpoints, "save", remove_and_save)
    with pytest.raises(UserError, match="has been removed; nothing more is written to it"):
        protonce.train(photos, tmp_path / "run", epochs=2, quiet=True, **SMALL)
    assert not (tmp_path / "run").exists()


def test_a_run_without_a_manifest_is_read_and_recorded_at_the_first_write(trained, photos, capsys):
    config = trained.path / "config.yaml"
    config.write_text(config.read_text().partition("\n")[2])  # without its format
    (trained.path / "manifest.json").unlink()
    expected = trained.embed(photos).features
    np.testing.assert_array_equal(protonce.load(trained.path).embed(photos).features, expected)
    assert main(["check", str(trained.path)]) == 0
    assert "format 1, of an older version" in capsys.readouterr().out
    assert main(["evaluate", str(trained.path), "clustering"]) == 0
    assert manifest.load(trained.path).version == 1
    assert len(manifest.load(trained.path).files) > 8
    (trained.path / "prototypes.npz").write_bytes(b"other")
    with pytest.raises(UserError, match=r"prototypes.npz is not what protonce wrote"):
        protonce.load(trained.path).embed(photos)


def mutants(data, rng):
    """Damaged versions of a file."""
    yield b""
    yield data[: int(rng.integers(1, len(data)))]
    yield data + b"\n"
    yield b"\0" * len(data)
    flipped = bytearray(data)
    flipped[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    yield bytes(flipped)


def test_no_command_uses_a_damaged_file(trained_once, photos, tmp_path, capsys):
    """Every file of a run, damaged in several ways: `check` names it, and no command gives another result."""
    run = protonce.load(shutil.copytree(trained_once, tmp_path / "run"))
    assert main(["evaluate", str(run.path), "clustering"]) == 0
    expected, rng = run.embed(photos), np.random.default_rng(0)
    names = [*manifest.load(run.path).files, "manifest.json"]
    cases = 0
    for name in names:
        original = (run.path / name).read_bytes()
        assert original
        for data in [*mutants(original, rng), None]:
            _damage(run.path / name, data)
            _check_named(run.path, name, original, data)
            with contextlib.suppress(UserError):
                found = protonce.load(run.path).embed(photos)
                np.testing.assert_array_equal(found.features, expected.features)
                np.testing.assert_array_equal(found.prototypes, expected.prototypes)
            (run.path / name).write_bytes(original)
            cases += 1
    assert cases == 6 * len(names) >= 60
    assert main(["check", str(run.path)]) == 0
    capsys.readouterr()


def _damage(path, data):
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)


def _check_named(path, name, original, data):
    grown = data == original + b"\n" and name in (*manifest.GROWING, "manifest.json")
    removed = data is None and name.startswith(
        ("evaluations/", "checkpoints/", "encoder.safetensors")
    )  # continued, or made again
    try:
        damaged = [*check_run(path).damaged]
    except UserError as error:
        damaged = [name] if name in str(error) else []
    assert damaged == ([] if grown or removed else [name]), (name, data)


def test_check_says_what_is_intact_and_what_is_not(trained, photos, capsys):
    trained.features(photos, "momentum")
    (cached,) = (trained.path / "features").glob("*.npy")
    assert main(["check", str(trained.path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    intact = {line.split()[1] for line in shown[:-1]}
    on_disk = {p.relative_to(trained.path).as_posix() for p in trained.path.rglob("[!.]*") if p.is_file()}
    assert intact == on_disk - {"manifest.json"}
    assert shown[-1] == f"{trained.path}: all {len(intact)} files are intact"

    cached.write_bytes(cached.read_bytes()[:-1])
    (trained.path / "own-notes.txt").write_text("a person's")
    assert main(["check", str(trained.path)]) == 0
    said = capsys.readouterr().out
    assert f"note     features/{cached.name} is damaged, or of an older version; it will be computed again" in said
    assert "note     own-notes.txt was not written by protonce" in said

    (trained.path / "prototypes.npz").unlink()
    (trained.path / "images.csv").write_text("index,name,label\n")
    assert main(["check", str(trained.path)]) == 2
    shown = capsys.readouterr()
    assert "damaged or missing: images.csv, prototypes.npz" in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out.count("damaged  ") == 2


def test_weights_that_are_not_finite_are_refused(trained, photos, capsys):
    state = load_file(trained.path / "encoder.safetensors")
    name = next(name for name, value in state.items() if value.is_floating_point())
    state[name].view(-1)[-1] = float("nan")
    manifest.write(trained.path, "encoder.safetensors", save(state))
    with pytest.raises(UserError, match=f"{name} contains NaN or infinite weights"):
        protonce.load(trained.path).embed(photos)
    assert main(["check", str(trained.path)]) == 2
    assert "NaN" in capsys.readouterr().out


def test_every_setting_is_required(trained):
    """Also in a run of an older version, which has no checksum: nothing is taken from today's defaults."""
    config = trained.path / "config.yaml"
    lines = config.read_text().splitlines(keepends=True)[1:]  # without its format
    (trained.path / "manifest.json").unlink()
    settings = lines.index("settings:\n")
    (last,) = (i for i, line in enumerate(lines) if line.startswith("  own_views:"))
    for cut in range(last + 1):
        config.write_text("".join(lines[:cut]))
        with pytest.raises(UserError, match=r"config.yaml"):
            protonce.load(trained.path)
    for i in range(settings + 1, len(lines)):
        name = lines[i].strip().partition(":")[0]
        if not lines[i].startswith("  ") or name not in {*trained.settings.names(), *trained.options}:
            continue
        config.write_text("".join(line for j, line in enumerate(lines) if j != i))
        with pytest.raises(UserError, match=rf"config.yaml (has no value for {name}|is damaged|is not YAML)"):
            protonce.load(trained.path)


def test_a_shared_folder_can_be_written_by_all_who_may(folder):
    folder.chmod(0o777)
    (folder / ".manifest.lock").unlink(missing_ok=True)
    manifest.write(folder, "file", "x")
    assert (folder / ".manifest.lock").stat().st_mode & 0o777 == 0o666


def test_a_read_only_run_is_refused_before_the_work(trained, photos, monkeypatch, capsys):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    for command in (["evaluate", str(trained.path), "knn"], ["report", str(trained.path)]):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"protonce: {trained.path} cannot be written to; copy the run folder")


def test_the_draft_of_an_evaluation_is_not_checked(trained):
    Drafts(trained.path, "evaluations/.linear.draft", "key").keep("piece", 1)
    assert check_run(trained.path).notes == []
