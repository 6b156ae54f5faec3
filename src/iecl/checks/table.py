"""The checks as a table: what each asks, how sure an answer is, and which setting is its threshold. Free of torch."""

from dataclasses import dataclass

from iecl.files import LARGEST
from iecl.settings import setting

CERTAIN, LIKELY, HINT = "certain", "likely", "hint"
"""A fact of the file; wrong now and then; worth a look, and often meant to be so."""


@dataclass(frozen=True, kw_only=True)
class CheckSettings:
    """Thresholds of the checks."""

    size: float = setting(3.0, "size: distances of the quartiles beyond which a side is unusual", above=0)
    aspect: float = setting(3.0, "aspect: longer by shorter side from which on an image is unusual", low=1)
    blank: float = setting(
        0.05, "blank: distance of darkest and brightest spots below which there is nothing", low=0, high=1
    )
    dark: float = setting(0.3, "dark: luminance that 99 % of the pixels lie below, 0 to 1", low=0, high=1)
    bright: float = setting(0.9, "bright: luminance that 95 % of the pixels lie above, 0 to 1", low=0, high=1)
    blur: float = setting(0.6, "blur: share of the steps between pixels that one more blur would leave", low=0, high=1)
    gray: float = setting(0.1, "gray: share of the images up to which gray ones are exceptions", low=0, high=1)
    radius: int = setting(11, "near: bits of 64 in which hashes of candidates may differ", low=0, high=19)
    likeness: float = setting(0.75, "near: correlation from which on two images are one picture", low=0, high=1)
    balance: float = setting(5.0, "balance: times a class may be smaller or larger than the median class", low=1)
    outlier: float = setting(5.0, "outlier: spreads beyond the median distance from the middle of all images", above=0)
    label: float = setting(0.8, "label: share of the neighbors' votes that go to one other class", low=0, high=1)
    shortcut: float = setting(
        0.5, "shortcut: share of a property's variance that an embedding gives away", low=0, high=1
    )
    max_pixels: int = setting(100_000_000, "an image with more pixels is not decoded", low=1, high=LARGEST)


@dataclass(frozen=True)
class Check:
    """One question about images."""

    what: str
    """What is wrong with an image that is found."""
    sure: str
    threshold: str = ""
    """Its setting; empty: there is nothing to set."""
    excludes: bool = False
    """Whether such images are put on the list of those to leave out, all but one of a group."""
    needs_run: bool = False
    value: str = ""
    """How the number of an image that is found reads; empty: a note says it."""


CHECKS = {
    "unreadable": Check("cannot be read: damaged, too large, or no image", CERTAIN, "max_pixels", excludes=True),
    "truncated": Check("a part of the file is missing", CERTAIN, excludes=True),
    "extension": Check("the name says one format, the content is another", CERTAIN),
    "animated": Check("has several frames or pages; the first is used", CERTAIN),
    "channels": Check("not 8 bits of gray or RGB, as most others are; converted", CERTAIN),
    "exact": Check("the same pixels as another image", CERTAIN, excludes=True),
    "near": Check(
        "the same picture as another: resized, cut, mirrored, brightened, marked",
        LIKELY,
        "likeness",
        excludes=True,
        value="likeness {:.2f}",
    ),
    "leak": Check(
        "a test image whose picture is in the training part too", LIKELY, "likeness", value="likeness {:.2f}"
    ),
    "two-labels": Check("the same picture as an image of another class", LIKELY, "likeness", value="likeness {:.2f}"),
    "blank": Check("shows next to nothing", LIKELY, "blank", excludes=True, value="from dark to bright {:.2f} of 1"),
    "size": Check("far smaller or larger than the others", LIKELY, "size"),
    "aspect": Check("far longer in one direction than in the other", LIKELY, "aspect", value="{:.1f} : 1"),
    "gray": Check("gray among images in color", LIKELY, "gray"),
    "dark": Check("nearly black all over", HINT, "dark", value="brightest spots {:.2f} of 1"),
    "bright": Check("nearly white all over", HINT, "bright", value="darkest spots {:.2f} of 1"),
    "blur": Check("blurred, or enlarged from few pixels", HINT, "blur", value="blur {:.2f} of 1"),
    "balance": Check("in a class that is far smaller or larger than others", HINT, "balance"),
    "outlier": Check(
        "belongs to nothing: far from what images usually are, by the backbone",
        HINT,
        "outlier",
        needs_run=True,
        value="{:.1f} spreads beyond the median",
    ),
    "label": Check(
        "neighbors by the backbone are of another class", HINT, "label", needs_run=True, value="{:.0%} of the votes"
    ),
}
"""In the order in which they are shown."""
