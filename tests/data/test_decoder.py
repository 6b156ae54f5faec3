import io
import json
import os
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from images import save_solid, smooth
from PIL import Image, ImageFile

import iecl.data.decoder as decoding
from iecl.data.decoder import Unreadable, decode, header_size
from iecl.data.listing import list_images

MAX_PIXELS = 100_000_000
ORIENTATION = 0x0112


def pixels(image: Image.Image, path: Path, side: int, **options: object) -> np.ndarray:
    """What decode makes of an image saved at a path, as (height, width, channel)."""
    image.save(path, **options)
    return decode(path, side, MAX_PIXELS)[0].transpose(1, 2, 0)


def test_an_image_of_the_decoded_size_keeps_every_pixel(tmp_path: Path) -> None:
    image = smooth(16, 16)
    assert np.array_equal(pixels(Image.fromarray(image), tmp_path / "a.png", 16), image)


def test_height_and_width_are_those_of_the_file_and_what_is_decoded_is_square(tmp_path: Path) -> None:
    square, size = decode(save_solid(tmp_path / "a.png", size=(30, 20)), 16, MAX_PIXELS)
    assert (square.shape, square.dtype, size) == ((3, 16, 16), np.uint8, (20, 30))
    assert (square == np.array([200, 100, 50]).reshape(3, 1, 1)).all()


def test_shrinking_averages_instead_of_picking_pixels(tmp_path: Path) -> None:
    board = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)  # picking every eighth pixel gives all black
    made = pixels(Image.fromarray(board), tmp_path / "a.png", 8)
    assert np.abs(made.astype(int) - 127).max() <= 2


def ramp(kind: type, top: float) -> Image.Image:
    """Values from 0 to `top`, the same in every row, 16 x 16."""
    row = np.linspace(0, top, 16)
    return Image.fromarray(np.tile(row, (16, 1)).astype(kind))


@pytest.mark.parametrize(
    ("kind", "top", "name"),
    [
        (np.uint8, 255, "a.png"),
        (np.uint16, 65535, "a.png"),
        (np.uint16, 65535, "a.tif"),
        (np.int32, 255, "a.tif"),
        (np.int32, 65535, "a.tif"),
        (np.int32, 2_000_000_000, "a.tif"),
        (np.float32, 1, "a.tif"),
        (np.float32, 255, "a.tif"),
        (np.float32, 7e30, "a.tif"),
    ],
)
def test_a_gray_ramp_of_any_depth_becomes_the_same_ramp(tmp_path: Path, kind: type, top: float, name: str) -> None:
    made = pixels(ramp(kind, top), tmp_path / name, 16)
    # 15 steps of 17 reach 255; the ramp's own values are rounded down once when they are stored as integers
    assert np.abs(made.astype(int) - (17 * np.arange(16))[None, :, None]).max() <= (1 if kind is np.int32 else 0)


def test_a_dark_16_bit_image_stays_dark(tmp_path: Path) -> None:
    assert pixels(ramp(np.uint16, 250), tmp_path / "a.png", 16).max() == 1


def test_values_that_are_not_finite_do_not_spoil_the_others(tmp_path: Path) -> None:
    values = np.tile(np.linspace(0, 1, 16), (16, 1)).astype(np.float32)
    values[0, 0], values[0, 1], values[0, 2] = np.nan, np.inf, -np.inf
    made = pixels(Image.fromarray(values), tmp_path / "a.tif", 16)[:, :, 0]
    assert made[0, :3].tolist() == [0, 255, 0]
    assert made[1].tolist() == (17 * np.arange(16)).tolist()


def test_an_image_without_one_finite_value_is_damaged(tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), np.nan, np.float32)).save(tmp_path / "a.tif")
    with pytest.raises(Unreadable, match="damaged"):
        decode(tmp_path / "a.tif", 8, MAX_PIXELS)


def test_what_is_transparent_becomes_white(tmp_path: Path) -> None:
    image = Image.new("RGBA", (8, 8), (200, 100, 0, 0))
    image.paste((200, 100, 0, 255), (0, 0, 4, 8))
    image.paste((200, 100, 0, 51), (4, 4, 8, 8))  # a fifth of the color, four fifths of white
    made = pixels(image, tmp_path / "a.png", 8)
    assert made[0, 0].tolist() == [200, 100, 0]
    assert made[0, 7].tolist() == [255, 255, 255]
    assert made[7, 7].tolist() == [244, 224, 204]


def test_gray_with_alpha_becomes_white_where_transparent(tmp_path: Path) -> None:
    image = Image.new("LA", (8, 8), (40, 255))
    image.paste((40, 0), (4, 0, 8, 8))
    assert pixels(image, tmp_path / "a.png", 8)[0, [0, 7], 0].tolist() == [40, 255]


def palette_image() -> Image.Image:
    image = Image.new("P", (8, 8), 0)
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.paste(1, (4, 0, 8, 8))
    return image


@pytest.mark.parametrize(
    ("transparency", "right"),
    [(None, [40, 50, 60]), (1, [255, 255, 255]), (bytes([255, 0]), [255, 255, 255])],
)
@pytest.mark.filterwarnings("error")
def test_a_palette_is_looked_up_and_its_transparent_entry_white(
    tmp_path: Path, transparency: object, right: list[int]
) -> None:
    options = {} if transparency is None else {"transparency": transparency}
    made = pixels(palette_image(), tmp_path / "a.png", 8, **options)
    assert [made[0, 0].tolist(), made[0, 7].tolist()] == [[10, 20, 30], right]


def test_the_transparent_color_of_an_rgb_file_is_white(tmp_path: Path) -> None:
    made = pixels(Image.new("RGB", (8, 8), (1, 2, 3)), tmp_path / "a.png", 8, transparency=(1, 2, 3))
    assert (made == 255).all()


def test_one_bit_becomes_black_and_white(tmp_path: Path) -> None:
    image = Image.new("1", (8, 8), 0)
    image.paste(1, (4, 0, 8, 8))
    assert pixels(image, tmp_path / "a.png", 8)[0, [0, 7]].tolist() == [[0] * 3, [255] * 3]


@pytest.mark.parametrize("name", ["a.jpg", "a.tif"])
def test_cmyk_ink_becomes_its_color(tmp_path: Path, name: str) -> None:
    # full cyan and no other ink leaves no red; JPEG is lossy by a few levels
    made = pixels(Image.new("CMYK", (16, 16), (255, 0, 0, 0)), tmp_path / name, 16)
    assert np.abs(made.astype(int) - [0, 255, 255]).max() <= 3


@pytest.mark.parametrize("name", ["a.gif", "a.webp", "a.png", "a.tif"])
def test_an_animation_gives_its_first_frame(tmp_path: Path, name: str) -> None:
    frames = [Image.new("RGB", (16, 16), color) for color in ((255, 0, 0), (0, 255, 0))]
    made = pixels(frames[0], tmp_path / name, 16, save_all=True, append_images=frames[1:])
    assert np.abs(made.astype(int) - [255, 0, 0]).max() <= 3


@pytest.mark.parametrize("name", ["a.jpg", "a.webp", "a.bmp", "a.ppm", "a.gif", "a.tif", "a.avif"])
def test_every_format_gives_the_image(tmp_path: Path, name: str) -> None:
    image = smooth(32, 32)
    made = pixels(Image.fromarray(image), tmp_path / name, 32)
    assert np.abs(made.astype(int) - image).mean() < 6  # JPEG and WebP lose a little, GIF has 256 colors


def test_the_content_decides_on_the_format_and_not_the_name(tmp_path: Path) -> None:
    save_solid(tmp_path / "a.png").rename(tmp_path / "a.jpg")
    assert decode(tmp_path / "a.jpg", 8, MAX_PIXELS)[1] == (8, 8)


# How EXIF says a camera was held: what to do with the upright image to get the stored one.
STORED = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, 1),
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
    8: lambda a: np.rot90(a, -1),
    99: lambda a: a,
}


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tif", "a.webp"])
def test_an_image_is_turned_upright_with_its_size(tmp_path: Path, orientation: int, name: str) -> None:
    upright = smooth(16, 24)
    image = Image.fromarray(np.ascontiguousarray(STORED[orientation](upright)))
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    image.save(tmp_path / name, exif=exif)
    square, size = decode(tmp_path / name, 16, MAX_PIXELS)
    # an independent squash of the upright original; lossy formats move smooth colors by a few levels
    expected = np.asarray(Image.fromarray(upright).resize((16, 16), Image.Resampling.BICUBIC))
    assert size == (16, 24)
    assert np.abs(square.transpose(1, 2, 0).astype(int) - expected).mean() < 4


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp"])
@pytest.mark.parametrize("block", [b"garbage", b"II*\0\xff\xff\xff\x7f", b"MM\0*\0\0\0\x08\xff\xff"])
def test_a_damaged_exif_block_does_not_cost_the_image(tmp_path: Path, name: str, block: bytes) -> None:
    Image.fromarray(smooth(16, 16)).save(tmp_path / name, exif=b"Exif\0\0" + block)
    assert decode(tmp_path / name, 16, MAX_PIXELS)[1] == (16, 16)


@pytest.mark.parametrize(("height", "width", "side", "decoded"), [
    (600, 800, 64, (200, 150)),  # a quarter: an eighth would leave less than one and a half times the decoded size
    (600, 800, 100, (200, 150)),
    (600, 800, 101, (400, 300)),
    (600, 800, 201, (800, 600)),
    (600, 100, 64, (100, 200)),  # its height averaged by whole pixels
])  # fmt: skip
def test_a_large_jpeg_is_decoded_small_and_looks_the_same(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    height: int,
    width: int,
    side: int,
    decoded: tuple[int, int],
) -> None:
    Image.fromarray(smooth(height, width)).save(tmp_path / "a.jpg", quality=95)
    loaded: list[tuple[int, int]] = []
    squeeze = decoding._squeeze
    monkeypatch.setattr(decoding, "_squeeze", lambda x, square: (loaded.append(x.shape[1::-1]), squeeze(x, square)))
    square, size = decode(tmp_path / "a.jpg", side, MAX_PIXELS)
    monkeypatch.undo()
    full = np.asarray(Image.open(tmp_path / "a.jpg").convert("RGB").resize((side, side), Image.Resampling.BICUBIC))
    assert size == (height, width)
    assert loaded[0] == decoded
    assert np.abs(square.transpose(1, 2, 0).astype(int) - full).max() <= 3


@pytest.mark.parametrize("orientation", range(1, 9))
def test_memory_that_is_there_already_is_filled_upright(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(photograph(60, 90)).save(tmp_path / "a.jpg", exif=exif)
    room = np.zeros((3, 3, 32, 32), np.uint8)
    square, size = decode(tmp_path / "a.jpg", 32, MAX_PIXELS, room[1])
    expected, same_size = decode(tmp_path / "a.jpg", 32, MAX_PIXELS)
    assert square.base is room
    assert size == same_size
    assert np.array_equal(room[1], expected)
    assert not room[0].any()
    assert not room[2].any()


def photograph(height: int, width: int) -> np.ndarray:
    """Edges, gradients and noise of all sizes, as uint8 (height, width, 3)."""
    noise = np.random.default_rng(5)
    layers = [noise.normal(0, 20, (height // n + 1, width // n + 1, 3)).repeat(n, 0).repeat(n, 1) for n in (1, 7, 40)]
    return (128 + sum(layer[:height, :width] for layer in layers)).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize(("height", "width", "side"), [(300, 400, 300), (375, 500, 376), (90, 41, 128), (350, 33, 64)])
def test_the_decoded_image_is_that_of_pillow_s_bicubic_filter_to_within_two_levels(
    tmp_path: Path, height: int, width: int, side: int
) -> None:
    image = Image.fromarray(photograph(height, width))
    expected = np.asarray(image.resize((side, side), Image.Resampling.BICUBIC)).astype(int)
    assert np.abs(pixels(image, tmp_path / "a.png", side) - expected).max() <= 2


@pytest.mark.parametrize("side", [64, 100, 133, 700])
@pytest.mark.parametrize(
    "options",
    [{}, {"subsampling": 0}, {"subsampling": 2, "progressive": True}, {"quality": 30, "restart_marker_rows": 2}],
)
def test_both_decoders_of_jpeg_give_the_same_pixels(
    tmp_path: Path, side: int, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jpg"
    Image.fromarray(photograph(601, 410)).save(path, **options)
    usual, size = decode(path, side, 10**6)
    monkeypatch.setattr(decoding, "_usual_jpeg", lambda *_: None)
    by_pillow, same_size = decode(path, side, 10**6)
    assert size == same_size == (601, 410)
    assert np.array_equal(usual, by_pillow)


def test_a_usual_jpeg_does_not_go_through_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jpg"
    Image.fromarray(photograph(100, 80)).save(path)
    monkeypatch.setattr(decoding, "_by_pillow", None)
    assert decode(path, 64, 10**6)[0].shape == (3, 64, 64)


@pytest.mark.parametrize(("height", "width"), [(1000, 1300), (200, 3001), (3001, 40)])
def test_pixels_of_a_huge_image_are_averaged_first_and_hardly_anything_is_lost(
    tmp_path: Path, height: int, width: int
) -> None:
    image = Image.fromarray(photograph(height, width))
    expected = np.asarray(image.resize((32, 32), Image.Resampling.BICUBIC)).astype(float)
    error = np.square(pixels(image, tmp_path / "a.png", 32) - expected).mean()
    assert 10 * np.log10(255**2 / error) > 38


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *chunks: bytes) -> bytes:
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + png_chunk(b"IEND", b"")


def encoded(name: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(smooth(64, 64)).save(file, format=name)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty file"),
        (b"only text", "not an image"),
        (b"%PDF-1.4 " * 9, "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
        (encoded("JPEG")[:600], "truncated"),
        (encoded("PNG")[:200], "truncated"),
        (encoded("BMP")[:600], "truncated"),
        (encoded("WEBP")[:200], "damaged"),
        (png(30000, 30000, png_chunk(b"IDAT", b"x")), "too large: 30000x30000"),
        (png(8, 8), "damaged"),
        (png(8, 8, png_chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(80_000_000)))), "damaged"),
    ],
)
def test_a_bad_file_is_unreadable_for_a_reason_in_a_few_words(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(Unreadable) as caught:
        decode(tmp_path / "a.png", 8, MAX_PIXELS)
    assert str(caught.value) == reason


def test_the_limit_on_pixels_is_the_caller_s_and_not_pillow_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_solid(tmp_path / "a.png", size=(20, 10))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # Pillow would refuse
    assert decode(tmp_path / "a.png", 8, 200)[1] == (10, 20)
    with pytest.raises(Unreadable, match="too large: 20x10"):
        decode(tmp_path / "a.png", 8, 199)


def test_a_file_that_no_image_within_the_limit_can_fill_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.png").open("wb") as file:
        file.truncate(2**40)  # a sparse file: it takes no space
    with pytest.raises(Unreadable, match="too large: 1099511627776 bytes"):
        decode(tmp_path / "a.png", 8, 1000)


def test_a_file_that_went_away_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="file is gone"):
        decode(tmp_path / "a.png", 8, MAX_PIXELS)


def test_a_pipe_in_an_image_s_place_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(Unreadable, match="not a regular file"):
        decode(tmp_path / "a.png", 8, MAX_PIXELS)


def test_a_forbidden_file_is_unreadable(ordinary_user: Path) -> None:
    save_solid(ordinary_user / "a.png").chmod(0)
    with pytest.raises(Unreadable, match="permission denied"):
        decode(ordinary_user / "a.png", 8, MAX_PIXELS)


def test_the_header_gives_height_and_width_without_decoding(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(30, 20))  # it has no pixels to decode
    assert header_size(tmp_path / "a.png", MAX_PIXELS) == (20, 30)
    with pytest.raises(Unreadable):
        header_size(save_solid(tmp_path / "b.png"), 63)


SEEDS = {name: encoded(name) for name in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM", "AVIF")}


def outcome(path: Path, side: int, max_pixels: int) -> tuple[str, np.ndarray | None, tuple[int, int] | None]:
    """What becomes of a file: (`accept`, image, size), or (the reason, None, None)."""
    try:
        return "accept", *decode(path, side, max_pixels)
    except Unreadable as problem:
        return str(problem), None, None


def fuzz(path: Path, name: str, changes: list[tuple[int, int]], cut: int) -> None:
    content = bytearray(SEEDS[name])
    for place, value in changes:
        content[place % len(content)] = value
    path.write_bytes(bytes(content[: len(content) - cut % len(content)]))
    reason, square, _ = outcome(path, 8, 1_000_000)
    assert 0 < len(reason) < 40
    assert square is None or square.shape == (3, 8, 8)


# Headers decide most, so that half of all changes hit one.
CHANGES = st.lists(st.tuples(st.one_of(st.integers(0, 200), st.integers(0, 2**20)), st.integers(0, 255)), max_size=8)
CUTS = st.one_of(st.just(0), st.integers(0, 2**20))


@pytest.mark.parametrize("name", SEEDS)
@pytest.mark.filterwarnings("error")
def test_mutated_bytes_are_decoded_or_unreadable_and_never_warn(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    run = given(changes=CHANGES, cut=CUTS)(lambda changes, cut: fuzz(tmp_path / "fuzzed", name, changes, cut))
    settings(derandomize=True, deadline=None, max_examples=25)(run)()
    assert capfd.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEDS)
def test_very_many_mutated_bytes_are_decoded_or_unreadable(tmp_path: Path, name: str) -> None:
    run = given(changes=CHANGES, cut=CUTS)(lambda changes, cut: fuzz(tmp_path / "fuzzed", name, changes, cut))
    settings(derandomize=True, deadline=None, max_examples=2000)(run)()


def test_decoding_leaves_pillow_and_the_warnings_as_they_were(tmp_path: Path) -> None:
    before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters))
    decode(save_solid(tmp_path / "a.png"), 8, MAX_PIXELS)
    assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters))


DATA = os.environ.get("IECL_TEST_DATA", "")
needs_nasty = pytest.mark.skipif(not DATA, reason="IECL_TEST_DATA does not name the folder with the datasets")
NASTY = json.loads((Path(DATA) / "nasty/manifest.json").read_text())["entries"] if DATA else []


@needs_nasty
@pytest.mark.parametrize("entry", NASTY, ids=lambda entry: ascii(entry["path"])[:60])
@pytest.mark.filterwarnings("error")
def test_every_nasty_entry_is_taken_or_left_out_as_it_deserves(entry: dict[str, Any]) -> None:
    expected = entry["root"] if os.geteuid() == 0 and "root" in entry else entry["expect"]
    listing = list_images(Path(DATA) / "nasty/tree")
    is_listed = os.fsencode(entry["path"]) in {listing.relative(i) for i in range(len(listing))}
    path = Path(DATA) / "nasty/tree" / entry["path"]
    reason, square, size = outcome(path, 32, MAX_PIXELS) if is_listed else ("not listed", None, None)
    assert expected in ("either", "accept" if square is not None else "skip"), reason
    if square is not None:
        assert size is not None
        assert list(size[::-1]) == entry.get("size", list(size[::-1]))
        assert square.mean() / 255 == pytest.approx(entry.get("mean", square.mean() / 255), abs=0.01)


@needs_nasty
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_red_corner_of_a_nasty_image_is_top_left(orientation: int) -> None:
    square, _ = decode(Path(DATA) / f"nasty/tree/exif/orientation_{orientation}.jpg", 32, MAX_PIXELS)
    red, green, _ = square[:, 2, 2].astype(int)
    assert red > 150 > 80 > green
    red, green, _ = square[:, 2, 29].astype(int)
    assert green > 150 or green > 2 * red
