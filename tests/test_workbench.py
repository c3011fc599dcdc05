"""The page as a workbench, in a real browser: look, select, label, undo, keep, download."""

import csv
import os
import shutil

import pytest
from PIL import Image

import protonce
from conftest import SMALL, zip_of
from protonce.cli import main
from protonce.label.labels_file import read_table
from protonce.label.tidy import tidy
from protonce.report.page import write_report
from test_tidy import EDITS, scene

pytestmark = pytest.mark.slow
EVIL = "<img src=x onerror=alert(1)>"
KNOWN = 30  # scenes; the last has a name that would run, were it taken for HTML


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The page of thirty scenes without labels and edited copies of three."""
    folder = tmp_path_factory.mktemp("workbench")
    (folder / "photos").mkdir()
    for i in range(KNOWN):
        name = f"{EVIL}.png" if i == KNOWN - 1 else f"{i:02d} & co #{i}.png"
        scene(i).save(folder / "photos" / name)
    for i, name in enumerate(("smaller", "brighter", "mirrored")):
        EDITS[name](scene(i)).save(folder / "photos" / f"{i:02d} {name}.png")
    run = protonce.train(folder / "photos", folder / "run", epochs=1, quiet=True, **{**SMALL, "clusters": [2, 4]})
    return write_report(run, quiet=True)


@pytest.fixture
def page(open_page, report):
    return open_page(report)


@pytest.fixture
def inside(page, report):
    """The page on a cluster, with its thumbnails."""
    page.goto(f"{report.as_uri()}#clusters/0/0")
    page.wait_for_selector("#cluster-view h3")
    return page


def thumbs(page):
    return page.locator("#cluster-view > .thumbs .thumb[data-image]")


def images(found):
    return [int(thumb.get_attribute("data-image")) for thumb in found.all()]


def labelled(page):
    """The labels that the page shows, by image."""
    found = page.locator(".thumb[data-image]:not([data-label=''])").all()
    return {int(one.get_attribute("data-image")): one.get_attribute("data-label") for one in found}


def table(page, folder):
    """labels.csv as it is downloaded."""
    with page.expect_download() as waiting:
        page.locator("#work .download").click()
    path = folder / "labels.csv"
    waiting.value.save_as(path)
    assert waiting.value.suggested_filename == "labels.csv"
    return path


def test_the_first_screen_has_no_word_of_the_paper(page):
    """What a person sees, clusters included, before "What is this?" is opened."""
    seen = page.locator("section[data-view=glance]").inner_text()
    assert "The largest clusters" in seen
    assert page.locator("#largest .thumb").count() > 0
    for word in ("φ", "phi", "NMI", "effective rank", "equation", "eq.", "prototype", "ImageNet"):
        assert word not in seen
    page.get_by_text("What is this?").first.click()
    assert "In the words of the paper" in page.locator("section[data-view=glance]").inner_text()


def test_an_image_opens_in_a_large_view(inside, report):
    page = inside
    shown = images(thumbs(page))
    names = protonce.load(report.parent).images[0]
    thumbs(page).nth(1).click()
    dialog = page.get_by_role("dialog")
    assert dialog.is_visible()
    assert page.locator("#large-title").inner_text() == names[shown[1]]
    assert "distance to the centre of its cluster" in page.locator("#large-facts").inner_text()
    assert page.locator("#large-facts a[href^='#clusters/']").count() == 2  # its cluster of each granularity
    page.wait_for_function("() => document.querySelector('#large-picture img')?.naturalWidth === 96")  # the original
    page.keyboard.press("ArrowRight")
    assert page.locator("#large-title").inner_text() == names[shown[2]]
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert page.locator("#large-title").inner_text() == names[shown[0]]
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="Open the original").click()
    opened.value.wait_for_load_state()
    assert opened.value.locator("img").count() == 1
    opened.value.close()
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    thumbs(page).nth(2).focus()
    page.keyboard.press("Enter")
    assert dialog.is_visible()
    page.locator("#large-facts a[href^='#clusters/']").nth(1).click()
    page.wait_for_function("() => location.hash.startsWith('#clusters/1/')")
    assert not dialog.is_visible()


def test_of_an_archive_the_page_has_the_picture(open_page, report, tmp_path):
    photos = zip_of(report.parent.parent / "photos", tmp_path / "photos.zip")
    run = protonce.train(photos, tmp_path / "run", epochs=1, quiet=True, **{**SMALL, "clusters": [2]})
    page = open_page(write_report(run, quiet=True))
    page.locator("#largest .thumb").first.click()
    assert page.locator("#large-picture img").count() == 0
    picture = page.locator("#large-picture .painted")
    picture.screenshot(path=tmp_path / "large.png")
    assert Image.open(tmp_path / "large.png").width > 300
    assert page.locator("#large-facts .note").last.is_visible()
    assert page.get_by_role("link", name="Open the original").count() == 0


def test_a_file_that_has_moved_leaves_the_picture_of_the_page(open_page, report, tmp_path):
    moved = shutil.copytree(report.parent, tmp_path / "a" / "b" / "run") / "report.html"
    page = open_page(moved, allowed="ERR_FILE_NOT_FOUND")
    page.locator("#largest .thumb").first.click()
    page.wait_for_selector("#large-picture .painted")


def test_selecting_and_labelling(inside, tmp_path, report):
    """By the switch, Shift, Ctrl and Space; then by the form and by a letter; undone, kept and downloaded."""
    page = inside
    shown = images(thumbs(page))
    assert not page.locator("#selection").is_visible()
    page.get_by_role("button", name="Select images").click()
    thumbs(page).nth(0).click()
    thumbs(page).nth(3).click(modifiers=["Shift"])
    assert page.locator("#selected-count").inner_text() == "4 images selected"
    thumbs(page).nth(1).click()  # not this one
    assert [t.get_attribute("aria-pressed") for t in thumbs(page).all()[:4]] == ["true", "false", "true", "true"]
    page.locator("#selection-label").fill("cat")
    page.keyboard.press("Enter")
    assert labelled(page) == {shown[i]: "cat" for i in (0, 2, 3)}
    page.get_by_role("button", name="Done").click()
    assert not page.locator("#selection").is_visible()
    thumbs(page).nth(4).click(modifiers=["ControlOrMeta"])
    thumbs(page).nth(5).focus()
    page.keyboard.press("Space")
    assert page.locator("#selected-count").inner_text() == "2 images selected"
    page.locator("#selection-label").fill("a dog")
    page.keyboard.press("Enter")
    page.locator("#selected-count").click()  # away from the text field
    page.keyboard.press("c")  # the letter of the first class
    assert labelled(page) == {shown[i]: "cat" for i in (0, 2, 3, 4, 5)}
    page.keyboard.press("Control+z")
    assert labelled(page) == {**{shown[i]: "cat" for i in (0, 2, 3)}, **{shown[i]: "a dog" for i in (4, 5)}}
    page.get_by_role("button", name="Mark as wrong").first.click()
    assert "marked as wrong" in thumbs(page).nth(4).get_attribute("aria-label")
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("button", name="Mark as duplicate").first.click()
    before = labelled(page)
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert labelled(page) == before
    assert page.locator("#said").inner_text() == "5 labels, 2 marks"
    found = read_table(table(page, tmp_path), protonce.load(report.parent).images[0])
    assert found.labels == {image: (label,) for image, label in before.items()}
    assert found.marks == {shown[4]: "duplicate", shown[5]: "duplicate"}


def test_a_cluster_gets_a_name_and_its_images_a_label(inside, tmp_path, report):
    page = inside
    run = protonce.load(report.parent)
    members = (run.prototypes[0].assignment == 0).nonzero()[:, 0].tolist()
    page.get_by_label("Name of the cluster").fill("hills")
    page.get_by_role("button", name="Name", exact=True).click()
    page.wait_for_function("() => document.querySelector('#cluster-view h3').textContent === 'Hills'")
    rows = list(csv.DictReader(table(page, tmp_path).open()))
    assert {row["cluster"] for row in rows} == {"hills"}
    assert not any(row["label"] for row in rows)
    assert {row["name"] for row in rows} == {run.images[0][i] for i in members}
    page.get_by_role("button", name=f"Label its {len(members)} images so").click()
    found = read_table(table(page, tmp_path), run.images[0])
    assert found.labels == dict.fromkeys(members, ("hills",))
    page.get_by_role("link", name="clusters", exact=True).click()
    assert "hills" in page.locator("#cluster-view .card[data-cluster='0/0']").inner_text()
    page.locator("#find").fill("HILLS")
    assert page.get_by_role("status").filter(has_text="with").inner_text() == f"{len(members)} images with “HILLS”"


def test_look_alikes_are_marked_as_duplicates(page, report, tmp_path):
    run = protonce.load(report.parent)
    expected = tidy(run, quiet=True)
    page.goto(f"{report.as_uri()}#clusters/alike")
    page.wait_for_selector("#cluster-view .tile.group")
    groups = page.locator("#cluster-view .tile.group")
    assert [sorted(images(g.locator(".thumb"))) for g in groups.all()] == [sorted(g) for g in expected.groups]
    assert len(expected.groups) == 3
    assert "mirrored" in groups.nth(2).inner_text()
    page.get_by_text("What is this?").locator("visible=true").first.click()
    assert f"At {expected.thresholds.correlation:.2f}" in page.locator("#cluster-view details").inner_text()
    groups.first.get_by_role("button", name="Mark copies as duplicates").click()
    page.get_by_role("button", name="Mark all copies as duplicates").click()
    found = read_table(table(page, tmp_path), run.images[0])
    assert found.marks == dict.fromkeys(expected.copies(), "duplicate")


def test_the_suggested_images_are_labelled_by_keys(page, report, tmp_path, capsys):
    """From the page's labelling view to all images labelled."""
    run = protonce.load(report.parent)
    page.get_by_role("link", name="Label", exact=True).click()
    queue = images(page.locator("#label-queue .thumb"))
    assert len(queue) == len({*queue}) == 20
    assert not {*queue} & {*tidy(run, quiet=True).copies()}  # of look-alikes one
    for name in ("one", "two"):
        page.get_by_label("Class", exact=True).fill(name)
        page.keyboard.press("Enter")
    page.keyboard.press("ArrowRight")  # skipped
    for i in range(17):
        page.keyboard.press("ot"[i % 2])
    assert page.locator("#label-progress").inner_text() == "19 of 20 images labelled"
    page.keyboard.press("o")  # back to the one that was skipped
    assert page.locator("#label-progress").inner_text() == "20 of 20 images labelled"
    assert page.locator("#label-done").is_visible()
    path = table(page, tmp_path)
    found = read_table(path, run.images[0])
    keys = ["one", "two", "one", *(("one", "two")[i % 2] for i in range(17))]  # the third came last
    assert found.labels == {image: (name,) for image, name in zip(queue, keys, strict=True)}
    assert main(["label", str(report.parent), str(path), "--out", str(tmp_path / "all.csv")]) == 0
    assert f"labels of {len(run.images[0])} of {len(run.images[0])} images, 20 of them given" in capsys.readouterr().out


def test_a_name_that_is_not_utf8_is_downloaded_byte_by_byte(open_page, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for i in range(8):
        scene(i).save(photos / (os.fsdecode(b"caf\xe9.png") if i == 0 else f"{i}.png"))
    run = protonce.train(photos, tmp_path / "run", epochs=1, quiet=True, **{**SMALL, "clusters": [2], "batch_size": 4})
    page = open_page(write_report(run, quiet=True))
    for cluster in (0, 1):
        page.goto(f"{run.path.as_uri()}/report.html#clusters/0/{cluster}")
        page.wait_for_function(f"() => document.querySelector('#cluster-view h3').innerText.includes('{cluster}')")
        thumbs(page).nth(0).click(modifiers=["ControlOrMeta"])
        thumbs(page).nth(thumbs(page).count() - 1).click(modifiers=["Shift"])
    page.locator("#selection-label").fill("place")
    page.keyboard.press("Enter")
    path = table(page, tmp_path)
    assert b"caf\xe9.png,place," in path.read_bytes()
    assert read_table(path, run.images[0]).labels == dict.fromkeys(range(8), ("place",))


def test_a_table_is_opened_for_labelling(page, report, tmp_path):
    """Exactly its images, in its order; labels that it has are taken, as a spreadsheet writes them."""
    names = protonce.load(report.parent).images[0]
    path = tmp_path / "suggest.csv"
    path.write_bytes(f'﻿name;label\r\n"{names[7]}";\r\n{names[3]};"a ""b"""\r\nnowhere.png;x\r\n'.encode())
    page.get_by_role("link", name="Label", exact=True).click()
    page.locator("#label-table").set_input_files(path)
    page.wait_for_function("() => document.querySelectorAll('#label-queue .thumb').length === 2")
    assert images(page.locator("#label-queue .thumb")) == [7, 3]
    assert page.locator("#told").inner_text() == "2 images of suggest.csv; 1 others are not on this page."
    assert labelled(page)[3] == 'a "b"'
    assert names[7] in page.locator("#label-stage").inner_text()


def test_a_rubber_band_on_the_map_selects(page):
    page.get_by_role("link", name="Map", exact=True).click()
    page.wait_for_selector("#map-plots[data-ready]")
    page.locator("#map-plots .bk-tool-icon-box-select").first.click()
    box = page.locator("#map-plots").bounding_box()
    page.mouse.move(box["x"] + 12, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 12, box["y"] + min(box["height"], 640) - 60, steps=5)
    page.mouse.up()
    page.wait_for_function("() => document.querySelector('#selected-count').textContent.split(' ')[0] > 5")
    page.locator("#selection-label").fill("band")
    page.keyboard.press("Enter")
    assert len(labelled(page)) > 5


def test_names_and_labels_that_would_run_stay_text(page, report, tmp_path):
    """Also in a spreadsheet: a label that is a formula is written so that it is not run, and read as it was."""
    names = protonce.load(report.parent).images[0]
    evil = names.index(f"{EVIL}.png")
    page.goto(f"{report.as_uri()}#clusters/find/onerror")
    page.wait_for_selector("#cluster-view .tile")
    page.locator("#cluster-view .thumb").click()
    page.locator("#large-label").fill(f"{EVIL} 'x'")
    page.keyboard.press("Enter")
    assert f"{EVIL} 'x'" in page.locator("#large-facts").inner_text()
    page.keyboard.press("Escape")
    assert page.locator("img[src=x]").count() == 0
    assert read_table(table(page, tmp_path), names).labels == {evil: (f"{EVIL} 'x'",)}
    page.locator("#cluster-view .thumb").click()
    page.locator("#large-label").fill('=1+"1",2')
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    path = table(page, tmp_path)
    assert "'=1+" in path.read_text()
    assert read_table(path, names).labels == {evil: ('=1+"1",2',)}


def test_a_phone(inside):
    """Nothing is wider than the screen, also with the large view and the selection open; both can be used."""
    page = inside
    page.set_viewport_size({"width": 390, "height": 800})
    page.get_by_role("button", name="Select images").click()
    thumbs(page).first.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("button", name="Done").click()
    thumbs(page).first.click()
    width = page.locator("#large").bounding_box()["width"]
    assert width <= 390
    assert page.evaluate("document.querySelector('#large').scrollWidth") <= width
    page.get_by_role("button", name="Close").click()
    assert not page.get_by_role("dialog").is_visible()
