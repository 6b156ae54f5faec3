"""The printed block: patches as tokens, the mini-batch in the channel place of a 2-D convolution (section 3.2).

Facts that follow from the batch form. It works only for the batch it was built for. Its batch norm normalizes each
*image* over its own tokens, and the running statistics belong to a slot of the batch, so they mean nothing later: the
block is for training and is never exported. Image i's output depends on the other images of the batch. Weights grow
with the square of the batch: 2.62 million for 256 images with three convolutions. With several processes each has its
own slots. The `sample` form has none of this: every image passes alone and the three colors are the channels.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iecl.counter import Stream
from iecl.errors import UserError, did_you_mean
from iecl.saib.contract import InputBlock
from iecl.saib.settings import SKIPS, SAIBSettings, sides
from iecl.settings import build

FORMS = ("batch", "sample")
ACTIVATIONS = {"silu": nn.SiLU, "relu": nn.ReLU, "softplus": nn.Softplus}


def patchify(x: Float[Tensor, "n c height width"], patch_size: int) -> Float[Tensor, "n c tokens area"]:
    """Cut every channel into square patches, row by row.

    >>> patchify(torch.arange(16.0).reshape(1, 1, 4, 4), 2)[0, 0]
    tensor([[ 0.,  1.,  4.,  5.],
            [ 2.,  3.,  6.,  7.],
            [ 8.,  9., 12., 13.],
            [10., 11., 14., 15.]])
    """
    n, c, height, width = x.shape
    cut = x.reshape(n, c, height // patch_size, patch_size, width // patch_size, patch_size)
    return cut.transpose(3, 4).reshape(n, c, -1, patch_size * patch_size)


def unpatchify(
    tokens: Float[Tensor, "n c tokens area"], height: int, width: int, patch_size: int
) -> Float[Tensor, "n c {height} {width}"]:
    """Put patches back where `patchify` took them from."""
    n, c = tokens.shape[:2]
    cut = tokens.reshape(n, c, height // patch_size, width // patch_size, patch_size, patch_size)
    return cut.transpose(3, 4).reshape(n, c, height, width)


class SAIB(InputBlock):
    """The printed input block: `x + unpatchify(tokens + convolutions(tokens))`.

    >>> block = SAIB(image_size=32, batch=8, patch_size=4)
    >>> block(torch.randn(8, 3, 32, 32)).shape
    torch.Size([8, 3, 32, 32])
    """

    def __init__(
        self,
        *,
        image_size: int | tuple[int, int],
        batch: int = 0,
        patch_size: int = 4,
        form: str = "batch",
        cascade: int = 1,
        convs: int = 3,
        skips: Sequence[str] = SKIPS,
        norm: str = "batch",
        activation: str = "silu",
        pos_embed: str = "learned",
        channels: int = 3,
    ) -> None:
        """Build for images of one size; every argument is a setting of `[saib]` and means the same there.

        Args:
            image_size: a side, or height and width.
            batch: batch form: how many images it is for, no more and no fewer.
            patch_size: side of a patch, a divisor of height and width.
            form: `batch`, as printed: images are channels; `sample`: each image alone.
            cascade: blocks in a row, 1 to 3.
            convs: 3 as in the main text; 4 as in the appendix, the last without norm and activation.
            skips: some of `inner`, `stack` and `image`.
            norm: after each convolution: `batch`, `group` or `none`.
            activation: after that: `silu`, `relu` or `softplus`.
            pos_embed: code added to the tokens: `learned`, `sincos` or `none`.
            channels: colors of an image.
        """
        super().__init__()
        skips = (skips,) if isinstance(skips, str) else tuple(skips)
        given = {"patch_size": patch_size, "cascade": cascade, "convs": convs, "skips": list(skips)}
        build(SAIBSettings, given | {"norm": norm, "activation": activation, "pos_embed": pos_embed}, "saib", "SAIB")
        if form not in FORMS:
            raise UserError(f"SAIB has no form {form!r}", where="form", do=did_you_mean(form, FORMS))
        height, width = sides(image_size)
        if patch_size < 1 or height % patch_size or width % patch_size:
            fits = [p for p in range(1, min(height, width) + 1) if height % p == 0 and width % p == 0]
            raise UserError(
                f"SAIB cannot cut images of {height}×{width} into patches of {patch_size}",
                where="saib.patch_size",
                do=f"a patch that fits: {', '.join(map(str, fits))}",
            )
        if form == "batch" and batch < 1:
            raise UserError(
                "SAIB in its batch form must know its batch",
                where="saib.form = batch",
                do="give batch=, the number of images in every step, or form='sample'",
            )
        self.form, self.batch, self.patch_size = form, batch if form == "batch" else 0, patch_size
        self.gain_images = None if form == "batch" else 32  # so many give its batch norm usual statistics
        self.channels, self.height, self.width = channels, height, width
        grid = (height // patch_size) * (width // patch_size)
        lanes = batch if form == "batch" else channels
        tokens = channels * grid if form == "batch" else grid
        self.blocks = nn.ModuleList(
            _TokenBlock(lanes, tokens, patch_size * patch_size, convs, skips, norm, activation, pos_embed)
            for _ in range(cascade)
        )

    def forward(self, x: Float[Tensor, "n c h w"], stream: Stream | None = None) -> Float[Tensor, "n c h w"]:
        """Images to images of the same shape; the printed block draws no noise from the stream."""
        self._check(x)
        for block in self.blocks:
            tokens = patchify(x, self.patch_size)
            # Batch form: [1, N, C·T, p²]. The images become the channels that the convolutions mix.
            laid = tokens.reshape(1, self.batch, -1, tokens.shape[-1]) if self.form == "batch" else tokens
            mixed = block(laid).reshape(tokens.shape)
            moved = unpatchify(mixed, self.height, self.width, self.patch_size)
            x = x + moved if block.has_image_skip else moved
        return x

    def _check(self, x: Tensor) -> None:
        if x.shape[1:] != (self.channels, self.height, self.width):
            raise UserError(
                f"SAIB was built for images of {self.channels}×{self.height}×{self.width}, "
                f"these are {'×'.join(map(str, x.shape[1:]))}",
                do="build another block for this size",
            )
        if self.form == "batch" and len(x) != self.batch:
            raise UserError(
                f"SAIB was built for {self.batch} images, this batch has {len(x)}",
                where="saib.form = batch",
                do="keep every batch at that size (drop the last one), or use saib.form = sample",
            )

    def extra_repr(self) -> str:
        """What `print` shows beside the parts."""
        built = f"batch of exactly {self.batch} images" if self.form == "batch" else "any batch"
        return f"form={self.form}, {built}, {self.channels}×{self.height}×{self.width} in patches of {self.patch_size}"


class _TokenBlock(nn.Module):
    """Convolutions over the plane (tokens, pixels of a patch), with the inner and the outer skip."""

    def __init__(
        self,
        lanes: int,
        tokens: int,
        area: int,
        convs: int,
        skips: Sequence[str],
        norm: str,
        activation: str,
        pos_embed: str,
    ) -> None:
        super().__init__()
        self.has_stack_skip, self.has_image_skip = "stack" in skips, "image" in skips
        self.has_inner_skip = "inner" in skips
        wide = 2 * lanes  # expansion 2
        # (in, out, kernel) of each convolution, and which of them keeps its shape and so carries the inner skip.
        shapes, self.inner = {
            3: ([(lanes, wide, 1), (wide, wide, 3), (wide, lanes, 1)], 1),
            4: ([(lanes, lanes, 1), (lanes, wide, 3), (wide, wide, 1), (wide, lanes, 1)], 2),
        }[convs]
        after = [(norm, activation)] * convs
        if convs == 4:  # the appendix ends with the convolution itself
            after[-1] = ("none", "")
        self.stages = nn.ModuleList(_stage(*shape, *what) for shape, what in zip(shapes, after, strict=True))
        self.pos_embed = _position(pos_embed, tokens, area)

    def forward(self, tokens: Float[Tensor, "n lanes tokens area"]) -> Float[Tensor, "n lanes tokens area"]:
        tokens = tokens if self.pos_embed is None else tokens + self.pos_embed
        y = tokens
        for number, stage in enumerate(self.stages):
            y = y + stage(y) if self.has_inner_skip and number == self.inner else stage(y)
        return tokens + y if self.has_stack_skip else y


def _stage(narrow: int, wide: int, kernel: int, norm: str, activation: str) -> nn.Sequential:
    """A convolution, with a bias if no norm follows, then norm and activation; without the latter it stands alone."""
    convolution = nn.Conv2d(narrow, wide, kernel, padding=kernel // 2, bias=norm == "none")
    return nn.Sequential(convolution, *([_norm(norm, wide), ACTIVATIONS[activation]()] if activation else []))


def _norm(name: str, lanes: int) -> nn.Module:
    if name == "batch":
        return nn.BatchNorm2d(lanes)
    return nn.GroupNorm(1, lanes) if name == "group" else nn.Identity()


def _position(name: str, tokens: int, area: int) -> Tensor | None:
    """A code of shape (tokens, area) that tells a token where it stands; the same for every image."""
    if name == "none":
        return None
    if name == "learned":
        return nn.Parameter(0.02 * torch.randn(tokens, area))  # ViT's scale
    place = torch.arange(tokens)[:, None]
    wave = torch.exp(-math.log(10_000.0) * (torch.arange(area) // 2 * 2) / area)
    phase = math.pi / 2 * (torch.arange(area) % 2)  # sine in even places, cosine in odd ones
    return nn.Buffer(torch.sin(place * wave + phase))
