import pickle
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import md5
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from images import save_solid
from torchvision.datasets import CIFAR10, CIFAR100, STL10

from iecl.data.datasets import DATASETS, FACTS
from iecl.data.imagenet import imagenet100_classes, open_imagenet, open_imagenet100
from iecl.data.settings import DataSettings
from iecl.data.torchvision_sets import open_cifar10, open_cifar100, open_stl10
from iecl.errors import UserError

Monkey = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: Monkey) -> None:
    """Addresses of this machine are reached directly, whatever the environment says."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def at(root: Path, **values: Any) -> DataSettings:
    return DataSettings(root=str(root), **values)


# --- the table


def test_listing_the_names_imports_nothing_heavy() -> None:
    heavy = {"torch", "torchvision", "numpy", "PIL", "sklearn"}
    code = f"import sys, iecl.data.datasets; print(*sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


def test_there_are_facts_for_every_name() -> None:
    assert list(FACTS) == list(DATASETS)


@pytest.mark.parametrize("name", DATASETS)
def test_every_reader_refuses_a_split_that_its_dataset_lacks(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{name} has no split 'extra' .*one of: train, test, pretrain"):
        DATASETS[name].load()(at(tmp_path), "extra")


# --- tiny copies of what lies on a disk, with the checksums that torchvision would compare


def write(folder: Path, name: str, content: bytes) -> list[str]:
    """Write a file; its row in torchvision's list is its name and its checksum."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return [name, md5(content).hexdigest()]


def cifar_pixels(count: int, first: int) -> np.ndarray:
    """Rows of 3072 bytes: the red of image i is i everywhere, its green the column, its blue the row."""
    row, column = np.divmod(np.arange(1024), 32)
    images = [np.concatenate([np.full(1024, first + i), column, row]) for i in range(count)]
    return np.stack(images).astype(np.uint8)


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: Monkey) -> Path:
    """Both CIFARs with four training and two test images: labels 3, 1 twice over, then 0, 2."""
    for kind, key, meta_key in ((CIFAR10, "labels", "label_names"), (CIFAR100, "fine_labels", "fine_label_names")):
        folder = tmp_path / kind.base_folder
        batches = [
            write(folder, f"part{start}", pickle.dumps({"data": cifar_pixels(2, start), key: labels}))
            for start, labels in ((0, [3, 1]), (2, [3, 1]), (4, [0, 2]))
        ]
        names = write(folder, "names", pickle.dumps({meta_key: ["ant", "bee", "cow", "dog"]}))
        monkeypatch.setattr(kind, "train_list", batches[:2])
        monkeypatch.setattr(kind, "test_list", batches[2:])
        monkeypatch.setattr(kind, "meta", {"filename": names[0], "key": meta_key, "md5": names[1]})
    return tmp_path


CIFARS = pytest.mark.parametrize("open_cifar", [open_cifar10, open_cifar100])


@CIFARS
def test_cifar_is_read_with_its_labels(open_cifar: Callable[..., Any], cifar: Path) -> None:
    source = open_cifar(at(cifar), "train")
    images = source.read(np.arange(4)).images

    assert images[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert images[2, 1, 5].tolist() == list(range(32))  # green is the column
    assert images[2, 2, :, 5].tolist() == list(range(32))  # blue is the row
    assert source.labels.tolist() == [3, 1, 3, 1]
    assert source.classes == ("ant", "bee", "cow", "dog")


@CIFARS
def test_cifar_has_a_test_part_and_pretrains_on_the_training_part(open_cifar: Callable[..., Any], cifar: Path) -> None:
    assert open_cifar(at(cifar), "test").labels.tolist() == [0, 2]
    assert open_cifar(at(cifar), "test").images[:, 0, 0, 0].tolist() == [4, 5]
    assert open_cifar(at(cifar), "pretrain").labels.tolist() == [3, 1, 3, 1]


def test_cifar_is_looked_for_in_the_cache_folder_when_no_root_is_given(cifar: Path, monkeypatch: Monkey) -> None:
    monkeypatch.setenv("IECL_CACHE", str(cifar))
    assert len(open_cifar10(DataSettings(), "train")) == 4


@pytest.fixture
def stl10(tmp_path: Path, monkeypatch: Monkey) -> Path:
    """Three training images (labels 1, 10, 2 of 1 to 10), one test image and two without a label."""
    folder = tmp_path / "stl10_binary"

    def images(first: int, count: int) -> bytes:
        """Red tells which image; green is the column, blue the row. Stored column by column."""
        row, column = np.mgrid[0:96, 0:96]
        stack = [np.stack([np.full((96, 96), first + i), column, row]).transpose(0, 2, 1) for i in range(count)]
        return np.stack(stack).astype(np.uint8).tobytes()

    train = [write(folder, "train_X.bin", images(0, 3)), write(folder, "train_y.bin", bytes([1, 10, 2]))]
    monkeypatch.setattr(STL10, "train_list", [*train, write(folder, "unlabeled_X.bin", images(10, 2))])
    test = [write(folder, "test_X.bin", images(20, 1)), write(folder, "test_y.bin", bytes([5]))]
    monkeypatch.setattr(STL10, "test_list", test)
    return tmp_path


@pytest.mark.parametrize(
    ("split", "labels", "reds"),
    [
        ("train", [0, 9, 1], [0, 1, 2]),
        ("test", [4], [20]),
        ("unlabeled", [-1, -1], [10, 11]),
        ("pretrain", [0, 9, 1, -1, -1], [0, 1, 2, 10, 11]),
    ],
)
def test_stl10_gives_each_of_its_parts(split: str, labels: list[int], reds: list[int], stl10: Path) -> None:
    source = open_stl10(at(stl10), split)
    images = source.read(np.arange(len(source))).images

    assert source.labels.tolist() == labels
    assert source.labels.dtype == np.int64
    assert images[:, 0, 0, 0].tolist() == reds
    assert images[0, 1, 7].tolist() == list(range(96))  # green is the column
    assert images[0, 2, :, 7].tolist() == list(range(96))  # blue is the row


def test_stl10_has_ten_names_in_the_order_of_its_labels(stl10: Path) -> None:
    assert open_stl10(at(stl10), "train").classes[8:] == ("ship", "truck")


# --- what is not there, and what cannot be fetched

READERS = pytest.mark.parametrize(
    ("name", "reader", "kind"),
    [("cifar10", open_cifar10, CIFAR10), ("cifar100", open_cifar100, CIFAR100), ("stl10", open_stl10, STL10)],
)
Reader = Callable[[DataSettings, str], Any]


@READERS
def test_absent_data_says_how_to_get_it(name: str, reader: Reader, kind: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        reader(at(tmp_path), "train")
    told = f"{name} is not in {tmp_path} (data.root); add --set data.download=true, or point --data at a folder"
    assert str(caught.value) == told
    assert list(tmp_path.iterdir()) == []


def test_half_of_the_data_does_not_look_complete(cifar: Path) -> None:
    part = cifar / CIFAR10.base_folder / "part2"
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(UserError, match=f"cifar10 is incomplete in {cifar} .*data.download=true"):
        open_cifar10(at(cifar), "train")


@READERS
def test_without_a_network_fetching_fails_with_a_message(
    name: str, reader: Reader, kind: Any, tmp_path: Path, monkeypatch: Monkey
) -> None:
    monkeypatch.setattr(kind, "url", "http://127.0.0.1:9/archive.tar.gz")  # nobody listens there
    with pytest.raises(
        UserError, match=rf"{name} cannot be fetched: .*refused.* \(data.root = .*\); try again, or fetch"
    ):
        reader(at(tmp_path, download=True), "train")


class QuietServer(SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        """Keep the terminal to pytest."""


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: Monkey) -> Iterator[Callable[[Any, Path], Path]]:
    """A function that packs a folder and offers the archive, on this machine, where torchvision will look for it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietServer, directory=str(tmp_path)))
    Thread(target=server.serve_forever, daemon=True).start()

    def pack(kind: Any, folder: Path) -> Path:
        archive = tmp_path / "offered.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(folder, kind.base_folder)
        monkeypatch.setattr(kind, "url", f"http://127.0.0.1:{server.server_port}/{archive.name}")
        monkeypatch.setattr(kind, "tgz_md5", md5(archive.read_bytes()).hexdigest())
        return archive

    yield pack
    server.shutdown()
    server.server_close()


Offer = Callable[[Any, Path], Path]


def test_absent_data_is_fetched_when_asked_for(cifar: Path, offer: Offer) -> None:
    offer(CIFAR10, cifar / CIFAR10.base_folder)
    assert open_cifar10(at(cifar / "new", download=True), "test").labels.tolist() == [0, 2]
    assert open_cifar10(at(cifar / "new"), "test").labels.tolist() == [0, 2]


def test_damaged_data_is_fetched_again_when_asked_for(cifar: Path, offer: Offer) -> None:
    offer(CIFAR10, cifar / CIFAR10.base_folder)
    (cifar / CIFAR10.base_folder / "part0").unlink()
    assert len(open_cifar10(at(cifar, download=True), "train")) == 4


@pytest.mark.parametrize("attempts", [1, 2])
def test_an_archive_that_arrives_damaged_is_not_taken(attempts: int, cifar: Path, offer: Offer) -> None:
    archive = offer(CIFAR10, cifar / CIFAR10.base_folder)
    archive.write_bytes(archive.read_bytes()[:-20])
    for _ in range(attempts):  # the second finds what the first left behind
        with pytest.raises(UserError, match="cifar10 cannot be fetched"):
            open_cifar10(at(cifar / "new", download=True), "train")
    assert not (cifar / "new" / CIFAR10.base_folder).exists()


def test_a_fetched_stl10_is_checked_too(stl10: Path, offer: Offer) -> None:
    (stl10 / "stl10_binary" / "test_y.bin").write_bytes(b"")  # packed with a wrong file
    offer(STL10, stl10 / "stl10_binary")
    with pytest.raises(UserError, match="stl10 cannot be fetched"):
        open_stl10(at(stl10 / "new", download=True), "train")


# --- ImageNet


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ImageNet's folders with two training images and one other for each class; the subset is all real names."""
    root = tmp_path_factory.mktemp("imagenet")
    image = save_solid(root / "one.png", (10, 20, 30), (6, 9))
    others = [f"n2{number:07d}" for number in range(900)]  # later than all real names
    for wnid in (*imagenet100_classes(), *others):
        for part, count in (("train", 2), ("val", 1)):
            (root / part / wnid).mkdir(parents=True)
            for number in range(count):
                (root / part / wnid / f"{wnid}_{number}.png").hardlink_to(image)
    return root


@pytest.mark.parametrize(("split", "each"), [("train", 2), ("pretrain", 2), ("test", 1)])
def test_plain_class_folders_are_accepted_as_imagenet(split: str, each: int, imagenet: Path) -> None:
    source = open_imagenet(at(imagenet), split)
    assert source.classes == tuple(sorted(path.name for path in (imagenet / "train").iterdir()))
    assert source.labels.tolist() == [label for label in range(1000) for _ in range(each)]
    assert source.classes[source.labels[-1]] in source.path(len(source) - 1)


def test_imagenet100_is_its_hundred_classes_of_the_same_folders(imagenet: Path) -> None:
    source = open_imagenet100(at(imagenet), "test")
    owners = [Path(source.path(i)).parent.name for i in range(len(source))]
    assert owners == [source.classes[label] for label in source.labels]
    assert tuple(owners) == imagenet100_classes()


def test_imagenet_images_are_decoded_to_the_size_that_is_set(imagenet: Path) -> None:
    read = open_imagenet100(at(imagenet, decode_size=16), "test").read(np.array([0]))
    assert read.images.shape == (1, 3, 16, 16)
    assert read.images[0, :, 8, 8].tolist() == [10, 20, 30]
    assert read.sizes.tolist() == [[9, 6]]


def test_the_decoded_size_of_imagenet_is_larger_than_a_view_unless_it_is_set(imagenet: Path) -> None:
    assert open_imagenet100(at(imagenet), "test").side == FACTS["imagenet100"].decode_size


def test_the_hundred_classes_are_a_hundred_wnids() -> None:
    classes = imagenet100_classes()
    assert len(set(classes)) == 100
    assert {(len(wnid), wnid[0], wnid[1:].isdigit()) for wnid in classes} == {(9, "n", True)}
    assert {"n02869837", "n02090622"} <= set(classes)  # the first and the last of the published list


IMAGENETS = pytest.mark.parametrize("reader", [open_imagenet, open_imagenet100])


@IMAGENETS
def test_imagenet_must_be_given_a_root(reader: Reader) -> None:
    with pytest.raises(UserError, match=r"\(data.root\); add --set data.root=FOLDER"):
        reader(DataSettings(), "train")


@IMAGENETS
def test_a_root_that_does_not_exist_is_told(reader: Reader, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no folder .*nowhere \(data.root\); give the one"):
        reader(at(tmp_path / "nowhere"), "train")


@IMAGENETS
def test_a_root_without_folders_or_archives_tells_what_belongs_there(reader: Reader, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not in .* \(data.root\); put the folder val, or ILSVRC2012_img_val.tar"):
        reader(at(tmp_path), "test")


@pytest.mark.parametrize("left", ["n01440764.tar", "ILSVRC2012_val_00000001.JPEG"])
def test_archives_that_were_unpacked_half_way_do_not_look_complete(left: str, tmp_path: Path) -> None:
    for wnid in imagenet100_classes():
        save_solid(tmp_path / "train" / wnid / "0.png")
    (tmp_path / "train" / left).touch()
    with pytest.raises(UserError, match=rf"train was not unpacked to the end: {left} \(data.root\); remove"):
        open_imagenet100(at(tmp_path), "train")


def test_imagenet_with_folders_missing_is_refused(tmp_path: Path) -> None:
    for wnid in imagenet100_classes()[1:]:
        save_solid(tmp_path / "train" / wnid / "0.png")
    with pytest.raises(UserError, match=r"has 99 class folders, imagenet has 1000 \(data.root\); .* --data"):
        open_imagenet(at(tmp_path), "train")
    with pytest.raises(UserError, match=r"lacks 1 of imagenet100's class folders, as n01558993 \(data.root\)"):
        open_imagenet100(at(tmp_path), "train")


def test_archives_are_unpacked_when_the_folder_is_not_there(tmp_path: Path, monkeypatch: Monkey) -> None:
    import torchvision.datasets.imagenet as stored

    inner = tmp_path / "inner"
    with tarfile.open(tmp_path / "ILSVRC2012_img_train.tar", "w") as outer:
        for wnid in imagenet100_classes():
            image = save_solid(inner / wnid / "0.png")
            with tarfile.open(inner / f"{wnid}.tar", "w") as tar:
                tar.add(image, "0.png")
            outer.add(inner / f"{wnid}.tar", f"{wnid}.tar")
    checksum = md5((tmp_path / "ILSVRC2012_img_train.tar").read_bytes()).hexdigest()
    monkeypatch.setitem(stored.ARCHIVE_META, "train", ("ILSVRC2012_img_train.tar", checksum))
    torch.save(({wnid: ("name",) for wnid in imagenet100_classes()}, []), tmp_path / stored.META_FILE)  # the devkit's

    assert len(open_imagenet100(at(tmp_path), "train")) == 100
