"""Proved bounds on the Jacobian of a certified block, at any depth: the proof is in docs/proofs/certified.md.

A layer has J = I + a (W' D W + V' E V) with D, E >= 0. Leaving out units can only lower its eigenvalues, so that units
within one patch give a block-diagonal matrix below J. Layers in a row multiply: determinants exactly, the smallest and
the largest singular values as bounds. A gain a that depends on the image takes one direction out of the expansion.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv2d, unfold

from iecl.estimators.convolution import circular_norm
from iecl.saib.jacobian import TiedJacobian

LARGEST_PATCH = 256
"""Numbers in a patch up to which its block is written out; larger patches go by the dual determinant alone."""
LARGEST_STRIP = 512
"""Numbers in a row of patches up to which the determinant is computed exactly."""
ROUNDING = 1e-9
"""Bounds are moved outwards by this share: float64 arithmetic on these sizes is off by far less."""


@dataclass(frozen=True)
class Certificate:
    """What is proved of the block's Jacobian at each of n images; natural logarithms."""

    sigma_min: Float[Tensor, " n"]
    """No singular value is below this, which is at least 1 where the gain does not depend on the image."""
    sigma_max: Float[Tensor, " n"]
    """No singular value is above this."""
    log_det: Float[Tensor, " n"]
    """log det J is at least this, which is at least 0."""
    log_det_most: Float[Tensor, " n"]
    """log det J is at most this."""
    exact_log_det: Float[Tensor, " n"] | None
    """log det J itself, up to rounding; None if it was not asked for or would take too long."""


def certify(layers: Sequence[TiedJacobian], *, exact: bool = True, is_gain_fixed: bool = True) -> Certificate:
    """The bounds of all layers in a row; `exact` asks for the determinant itself where that is possible."""
    parts = [_certify_layer(layer, exact) for layer in layers]
    if not is_gain_fixed:
        parts = [_without_one_direction(part) for part in parts]
    known = [part.exact_log_det for part in parts if part.exact_log_det is not None]
    return Certificate(
        sigma_min=torch.stack([part.sigma_min for part in parts]).prod(0),
        sigma_max=torch.stack([part.sigma_max for part in parts]).prod(0),
        log_det=torch.stack([part.log_det for part in parts]).sum(0),
        log_det_most=torch.stack([part.log_det_most for part in parts]).sum(0),
        exact_log_det=torch.stack(known).sum(0) if len(known) == len(parts) else None,
    )


def _certify_layer(layer: TiedJacobian, exact: bool) -> Certificate:
    if layer.coarse[0].numel() <= LARGEST_PATCH:
        spectra = torch.linalg.eigvalsh(_patch_blocks(layer))
        smallest, log_det = spectra.amin((1, 2)), spectra.log().sum((1, 2))
    else:
        log_det = layer.patch_log_det()
        smallest = torch.ones_like(log_det)
    height, width = layer.fine_slopes.shape[-2:]
    size = layer.coarse.shape[1] * height * width
    mean_eigenvalue = 1 + layer.gain * _trace(layer) / size
    strip = size // height * layer.patch
    return Certificate(
        sigma_min=(smallest * (1 - ROUNDING)).clamp_min(1),
        sigma_max=_largest_eigenvalue(layer) * (1 + ROUNDING),
        log_det=(log_det * (1 - ROUNDING)).clamp_min(0),
        log_det_most=size * mean_eigenvalue.log() * (1 + ROUNDING),  # the geometric mean is below the arithmetic one
        exact_log_det=layer.exact_log_det() if exact and strip <= LARGEST_STRIP else None,
    )


def _without_one_direction(part: Certificate) -> Certificate:
    """The bounds where a = budget / RMS of the change: J = I + a S C, with S between 0 and I and of rank one below I.

    det J = det(I + a S^½ C S^½), whose eigenvalues interlace with those of I + a C: the largest one may be lost. And
    J = (I - u w')(I + a C) with |u| <= 1, |w| <= 1 - 1 / sigma_max.
    """
    return replace(
        part,
        sigma_min=1 / part.sigma_max,
        sigma_max=2 * part.sigma_max,
        log_det=(part.log_det - part.sigma_max.log()).clamp_min(0),
    )


def _patch_blocks(layer: TiedJacobian) -> Float[Tensor, "n patches width width"]:
    """I + a (W' D W + the 3×3 units that lie inside the patch), patch by patch."""
    patch, width = layer.patch, layer.coarse[0].numel()
    slopes = layer.coarse_slopes.flatten(2).transpose(1, 2)
    weight = layer.coarse.flatten(1)
    if patch >= 3:
        single = torch.eye(width, dtype=weight.dtype, device=weight.device).reshape(width, -1, patch, patch)
        inside = conv2d(single, layer.fine).flatten(1).T  # a row for each unit and each window inside
        own = unfold(layer.fine_slopes, patch, stride=patch).transpose(1, 2)
        own = own.reshape(*own.shape[:2], -1, patch, patch)
        weight = torch.cat([weight, inside])
        slopes = torch.cat([slopes, own[..., 1:-1, 1:-1].flatten(2)], 2)
    identity = torch.eye(width, dtype=weight.dtype, device=weight.device)
    return identity + torch.einsum("n,npu,ua,ub->npab", layer.gain, slopes, weight, weight)


def _trace(layer: TiedJacobian) -> Float[Tensor, " n"]:
    """Of W' D W + V' E V: each unit's slope times the squared length of its row, cut off at the border."""
    coarse = (layer.coarse_slopes.sum((2, 3)) * layer.coarse.square().sum((1, 2, 3))).sum(1)
    ones = torch.ones_like(layer.fine_slopes[:1, :1]).expand(1, layer.fine.shape[1], -1, -1)
    lengths = conv2d(ones, layer.fine.square(), padding=1)
    return coarse + (layer.fine_slopes * lengths).sum((1, 2, 3))


def _largest_eigenvalue(layer: TiedJacobian) -> Float[Tensor, " n"]:
    """A bound: 1 + a (largest eigenvalue of W' D W, exact, + largest slope times |V|²)."""
    slopes = layer.coarse_slopes.flatten(2).transpose(1, 2)
    weight = layer.coarse.flatten(1)
    roots = slopes.clamp_min(0).sqrt()
    dual = roots[..., :, None] * (weight @ weight.T) * roots[..., None, :]
    coarse = torch.linalg.eigvalsh(dual)[..., -1].amax(1)
    # With zeros around, the convolution is a part of the circular one on an image larger by 2: its norm is no larger.
    height, width = layer.fine_slopes.shape[-2:]
    norm = circular_norm(layer.fine, height + 2, width + 2)
    bound: Tensor = 1 + layer.gain * (coarse + layer.fine_slopes.amax((1, 2, 3)) * norm.square())
    return bound
