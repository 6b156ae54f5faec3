import pytest
import torch
import torchvision

from iecl.backbones import BACKBONES
from iecl.backbones.factory import make_backbone, width_of
from iecl.errors import UserError

SMALL = [name for name in BACKBONES if name.endswith(("-small", "-w16", "-w32"))]


@pytest.mark.parametrize("name", ["resnet10-w16", "resnet10-w32", "resnet18-small", "resnet18", "convnext_tiny"])
def test_a_backbone_gives_features_of_the_width_it_says(name: str) -> None:
    backbone = make_backbone(name).eval()
    with torch.no_grad():
        assert backbone(torch.randn(2, 3, 32, 32)).shape == (2, width_of(backbone))


def test_the_same_seed_gives_the_same_weights_and_leaves_torch_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second, other = (make_backbone("resnet10-w16", seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(first.conv1.weight, second.conv1.weight)
    assert not torch.equal(first.conv1.weight, other.conv1.weight)


def test_a_resnet_is_torchvisions_own_without_its_last_layer() -> None:
    backbone, reference = make_backbone("resnet18"), torchvision.models.resnet18()
    assert type(backbone) is type(reference)
    expected = {name: value.shape for name, value in reference.state_dict().items() if not name.startswith("fc.")}
    assert {name: value.shape for name, value in backbone.state_dict().items()} == expected


def test_the_small_stem_keeps_the_resolution() -> None:
    backbone = make_backbone("resnet18-small")
    with torch.no_grad():
        assert backbone.maxpool(backbone.conv1(torch.randn(1, 3, 32, 32))).shape == (1, 64, 32, 32)


def test_other_torchvision_models_go_by_their_full_name() -> None:
    backbone = make_backbone("torchvision/mobilenet_v3_small").eval()
    with torch.no_grad():
        assert backbone(torch.randn(1, 3, 64, 64)).shape == (1, width_of(backbone))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet81", "no backbone is called 'resnet81' .* did you mean resnet"),
        ("torchvision/resnet81", "no backbone is called 'torchvision/resnet81'.* did you mean torchvision/resnet"),
        ("timm/vit_smal_patch16_224", "did you mean timm/vit_small_patch16_224"),
        ("swin_t", r"did you mean torchvision/swin_t\?"),
        ("zzzz", "see: iecl list backbones"),
        ("torchvision/squeezenet1_0", "SqueezeNet ends in no linear layer"),
    ],
)
def test_an_unknown_name_is_an_error_with_the_nearest(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_backbone(name)


def test_a_module_that_hides_its_width_is_refused() -> None:
    with pytest.raises(UserError, match="num_features"):
        width_of(torch.nn.Linear(2, 2))
