import pytest
import torch
import torchvision

from iecl.backbones import BACKBONES
from iecl.backbones.factory import make_backbone, width_of
from iecl.errors import UserError

SMALL = [name for name in BACKBONES if name.endswith(("-small", "-w16", "-w32"))]


@pytest.mark.parametrize(
    "name", ["resnet10-w16", "resnet10-w32", "resnet18-small", "resnet18", "convnext_tiny", "torchvision/squeezenet1_1"]
)
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
    ],
)
def test_an_unknown_name_is_an_error_with_the_nearest(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_backbone(name)


def test_a_module_that_hides_its_width_is_refused() -> None:
    with pytest.raises(UserError, match="num_features"):
        width_of(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(("name", "norm"), [("resnet10-w16", "bn2"), ("resnet18-small", "bn2"), ("resnet50", "bn3")])
def test_each_residual_can_start_at_zero(name: str, norm: str) -> None:
    plain, zeroed = make_backbone(name, 3), make_backbone(name, 3, zero_init_residual=True)
    changed = {key for key, value in plain.state_dict().items() if not torch.equal(value, zeroed.state_dict()[key])}
    last = {key for key in plain.state_dict() if key.endswith(f".{norm}.weight")}
    assert changed == last
    assert last
    assert not any(zeroed.state_dict()[key].any() for key in last)


def test_zeroed_residuals_are_those_that_torchvision_zeroes() -> None:
    reference = torchvision.models.resnet50(zero_init_residual=True).state_dict()
    zeroed = make_backbone("resnet50", zero_init_residual=True).state_dict()
    scales = [key for key in zeroed if "bn" in key and key.endswith(".weight")]
    assert [bool(zeroed[key].any()) for key in scales] == [bool(reference[key].any()) for key in scales]


@pytest.mark.parametrize("name", ["torchvision/vgg11_bn", "convnext_tiny"])
def test_a_network_without_such_residuals_refuses_to_start_them_at_zero(name: str) -> None:
    with pytest.raises(UserError, match=rf"{name} has no residual .*\(backbone.zero_init_residual\)"):
        make_backbone(name, zero_init_residual=True)
