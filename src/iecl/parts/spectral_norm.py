"""Spectral norm for convolutions, iterated once per optimizer step and not at every forward pass.

torch's own version runs a power iteration whenever `.weight` is read in training mode: two views cost two iterations,
and anything that looks at the weight changes the run. Here reading is pure. The weight is the stored kernel divided by
`u^T W v`, and `iterate` moves u and v when the optimizer has moved the kernel. The norm is that of the kernel reshaped
to (out, in·height·width), which bounds the norm of the convolution only up to the side of the kernel; or, given the
size of its input, that of the convolution itself.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils import parametrize

from iecl import counter
from iecl.errors import UserError
from iecl.estimators.convolution import Geometry, normalized, start_vectors
from iecl.estimators.precision import full_precision

FIRST_ITERATIONS = 15  # a random start is within a percent after this many
OPERATOR_PACE = 4  # so many for each one of the kernel's: neighboring frequencies have nearly equal norms
Sizes = Mapping[str, tuple[int, int]]
"""Height and width of the input of each convolution of an encoder, by its name there."""


class SpectralScale(nn.Module):
    """Divides a kernel by its largest singular value, as estimated by the vectors u and v.

    With a geometry it is that of the convolution, and u and v are an output and an input of it.
    """

    u: Tensor
    v: Tensor
    made: Tensor | None = None
    """The divided kernel, while one is to serve several passes."""

    def __init__(self, weight: Tensor, geometry: Geometry | None = None, iterations: int | None = None) -> None:
        super().__init__()
        self.geometry = geometry
        if not weight.any():
            raise UserError(
                "a convolution with zero weights cannot be normalized", do="initialize it, or leave spectral norm off"
            )
        if geometry is None:
            matrix = weight.detach().flatten(1)
            start = counter.normal(counter.key(0, "spectral norm"), torch.arange(1), len(matrix))[0].to(matrix)
            u, v = normalize(start, dim=0), normalize(matrix.T @ normalize(start, dim=0), dim=0)
        else:
            u, v = start_vectors(weight.detach(), geometry)
        self.register_buffer("u", u)
        self.register_buffer("v", v)
        self.iterate(weight, FIRST_ITERATIONS if iterations is None else iterations)

    def forward(self, weight: Tensor) -> Tensor:
        """The kernel with norm 1; the gradient passes through the norm too."""
        return self.divide(weight) if self.made is None else self.made

    def divide(self, weight: Tensor) -> Tensor:
        """The same, made anew."""
        # Copies, since u and v move in place between this forward pass and a later one.
        u, v = self.u.clone(), self.v.clone()
        if self.geometry is None:
            divided: Tensor = _Divided.apply(weight, u, v)[0]
            return divided
        return weight / _stretch(u, weight, v, self.geometry)

    @torch.no_grad()
    def iterate(self, weight: Tensor, times: int = 1) -> None:
        """Follow a kernel that has moved."""
        if self.geometry is not None:
            for _ in range(OPERATOR_PACE * times):
                self.u.copy_(normalized(self.geometry.push(weight.detach(), self.v)))
                self.v.copy_(normalized(self.geometry.pull(weight.detach(), self.u)))
            return
        matrix, columns = _matrix(weight.detach()), _in_columns(self.v, weight)
        for _ in range(times):
            self.u.copy_(normalize(matrix @ columns, dim=0))
            columns = normalize(matrix.T @ self.u, dim=0)
        self.v.copy_(_out_of_columns(columns, weight))


def _lies_by_pixel(kernel: Tensor) -> bool:
    return not kernel.is_contiguous() and kernel.is_contiguous(memory_format=torch.channels_last)


def _matrix(kernel: Tensor) -> Tensor:
    """A kernel with a row for each output, its columns in the order of memory: otherwise all of it would be copied."""
    return kernel.permute(0, 2, 3, 1).flatten(1) if _lies_by_pixel(kernel) else kernel.flatten(1)


def _in_columns(v: Tensor, kernel: Tensor) -> Tensor:
    """The numbers of v, one for each (channel, row, column) of a kernel, in the order of its matrix."""
    return v.view(kernel.shape[1:]).permute(1, 2, 0).flatten() if _lies_by_pixel(kernel) else v


def _out_of_columns(columns: Tensor, kernel: Tensor) -> Tensor:
    _, channels, high, wide = kernel.shape
    return columns.view(high, wide, channels).permute(2, 0, 1).flatten() if _lies_by_pixel(kernel) else columns


class _Divided(torch.autograd.Function):
    """A kernel W over n = u'Wv, and n. For slopes S and s of the two, that of W is (S - (<S, W / n> - s n) uv') / n.

    Left to torch, the formula takes twice as many walks through all weights.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(kernel: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        norm = _bilinear(u, _matrix(kernel), _in_columns(v, kernel))
        return kernel / norm, norm

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        (_, u, v), (divided, norm) = inputs, output
        ctx.save_for_backward(divided, norm, u, v)

    @staticmethod
    @full_precision
    def backward(ctx: Any, slope: Tensor, slope_of_norm: Tensor) -> tuple[Tensor, None, None]:
        divided, norm, u, v = ctx.saved_tensors
        slope = torch.empty_like(divided).copy_(slope) if slope.stride() != divided.stride() else slope
        matrix = _matrix(slope)
        along = torch.dot(matrix.flatten(), _matrix(divided).flatten())
        made = torch.addr(matrix, u * (slope_of_norm * norm - along), _in_columns(v, divided)).div_(norm)
        return made.as_strided(divided.shape, divided.stride()), None, None


@full_precision
def _bilinear(u: Tensor, matrix: Tensor, v: Tensor) -> Tensor:
    """The product u'Mv; with three digits, as autocast has it, the bound would be off by a percent."""
    return torch.dot(u, matrix @ v)


@full_precision
def _stretch(u: Tensor, weight: Tensor, v: Tensor, geometry: Geometry) -> Tensor:
    """The product u'Av with the convolution A, in full precision for the same reason."""
    return (u * geometry.push(weight, v)).sum()


def normalize_convolutions(module: nn.Module, sizes: Sizes | None = None, iterations: int | None = None) -> int:
    """Put spectral norm on every convolution of `module`; returns how many there are.

    With `sizes` the norm is that of the convolution at its input's size, else that of its kernel as a matrix. Names may
    have anything before them, so that the sizes of an encoder serve its momentum copy too. `iterations` replaces the
    first power iterations, which weights that are about to be loaded do not need.
    """
    convolutions = {name: part for name, part in module.named_modules() if isinstance(part, nn.Conv2d)}
    for name, convolution in convolutions.items():
        geometry = None if sizes is None else Geometry.of(convolution, *_size_of(name, sizes))
        scale = SpectralScale(convolution.weight, geometry, iterations)
        parametrize.register_parametrization(convolution, "weight", scale, unsafe=True)
    return len(convolutions)


def _size_of(name: str, sizes: Sizes) -> tuple[int, int]:
    ends = [end for end in sizes if name == end or name.endswith(f".{end}")]
    if not ends:
        raise UserError(
            f"the size of what the convolution {name} reads is not known",
            where="objective.encoder_norm = operator",
            do="objective.encoder_norm = kernel",
        )
    return sizes[max(ends, key=len)]


@torch.no_grad()
def input_sizes(encoder: nn.Module, image_size: int) -> dict[str, tuple[int, int]]:
    """Height and width of what each convolution of `encoder` reads when it is given images of `image_size`.

    >>> input_sizes(nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.Conv2d(4, 4, 1)), 9)
    {'0': (9, 9), '1': (4, 4)}
    """
    if image_size < 1:
        raise UserError(
            "the operator norm of a convolution depends on the size of the images",
            where="objective.encoder_norm = operator",
            do="give image_size=, their side, or use encoder_norm = kernel",
        )
    found: dict[str, tuple[int, int]] = {}
    parts = [(name, part) for name, part in encoder.named_modules() if isinstance(part, nn.Conv2d)]
    hooks = [
        part.register_forward_pre_hook(
            lambda _, inputs, name=name: found.update({name: (inputs[0].shape[-2], inputs[0].shape[-1])})
        )
        for name, part in parts
    ]
    was_training = encoder.training
    weight = next(encoder.parameters())
    encoder.eval()(weight.new_zeros(1, 3, image_size, image_size))  # in evaluation mode no statistic moves
    encoder.train(was_training)
    for hook in hooks:
        hook.remove()
    return found


def sizes_in(state: Mapping[str, Tensor]) -> dict[str, tuple[int, int]] | None:
    """The sizes for which the encoder of a checkpoint was normalized; None if by its kernels alone."""
    ending = ".parametrizations.weight.0.v"
    found = {name.removesuffix(ending): v.shape for name, v in state.items() if name.endswith(ending) and v.ndim == 4}
    return {name: (shape[-2], shape[-1]) for name, shape in found.items()} or None


def spectral_scales(module: nn.Module) -> Iterator[tuple[SpectralScale, Tensor]]:
    """Every spectral norm in `module` with the kernel that it divides."""
    for part in module.modules():
        if isinstance(part, parametrize.ParametrizationList):
            for scale in part:
                if isinstance(scale, SpectralScale):
                    yield scale, part.original


@contextmanager
def kernels_made_once(*modules: nn.Module) -> Iterator[None]:
    """Normalized kernels are made here and serve every pass within the block.

    torch's `parametrize.cached` would make them within the first pass, where one that is computed again looks for them.
    Where this process holds a share of a kernel alone (fsdp) each pass makes its own, for which it gets the whole.
    """
    scales = [found for module in modules for found in spectral_scales(module)]
    scales = [(scale, kernel) for scale, kernel in scales if not hasattr(kernel, "full_tensor")]
    for scale, kernel in scales:
        scale.made = scale.divide(kernel)
    try:
        yield
    finally:
        for scale, _ in scales:
            scale.made = None


def follow_kernels(module: nn.Module, times: int = 1) -> None:
    """One power iteration for each normalized kernel: call it after the optimizer step."""
    for scale, kernel in spectral_scales(module):
        scale.iterate(kernel, times)


def fold(module: nn.Module) -> None:
    """Replace every normalized kernel by its value: plain weights under their plain names, for export."""
    for part in list(module.modules()):
        if isinstance(part, nn.Conv2d) and parametrize.is_parametrized(part, "weight"):
            parametrize.remove_parametrizations(part, "weight", leave_parametrized=True)
