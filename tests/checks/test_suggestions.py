"""What a doctor suggests for a run is what a run would choose."""

from pathlib import Path

import pytest
from PIL import Image

from iecl.checks import suggestions
from iecl.checks.doctor import diagnose
from iecl.checks.suggestions import planned


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty images of 160×120 in eight colors."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(40):
        image = Image.effect_noise((160, 120), 60)
        Image.merge("RGB", [image.point(lambda v, n=number: v * (n % 8) // 8), image, image]).save(
            folder / f"{number}.png"
        )
    return folder


@pytest.mark.parametrize(
    ("has_gpu", "expected"),
    [
        (False, {"image size": "64", "backbone": "resnet10-w32", "augmentation": "simclr-small"}),
        (True, {"image size": "128", "backbone": "resnet18", "augmentation": "simclr"}),
    ],
)
def test_suggestions_follow_the_machine(
    photos: Path, has_gpu: bool, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suggestions, "is_gpu_at_hand", lambda: has_gpu)
    made = {row["what"]: row for row in diagnose([str(photos)], "", workers=0).facts["suggestions"]}
    assert {what: made[what]["value"] for what in expected} == expected
    assert made["batch size"]["flag"] == "--batch-size 16"


@pytest.mark.slow
def test_a_plan_says_what_a_run_of_the_suggested_kind_takes(photos: Path) -> None:
    line = planned([str(photos)], "", 0.5, quiet=True)
    assert line.startswith("ie-cl with resnet10-w32, 400 epochs in batches of 16: about ")
    assert " MB of memory, " in line
