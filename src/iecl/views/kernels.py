"""Views in machine code: what `apply` does by tensor operations, image by image within the processor's cache.

Importing this needs numba. All compiled code stands in this one file, because numba's cache on disk notices a change
of the file it belongs to and of no other. Two habits make plain loops into vector instructions:

- numbers are 32-bit: a bare 0.5 would be 64-bit and take the whole loop with it;
- arrays are flat, and places in them unsigned: a place that could be negative would be tested, since it counts from the
  end in Python. Unsigned numbers may only meet each other, a signed one would make the sum a float.
"""

import math
from collections.abc import Callable

import numpy as np
from numba import njit, types

ZERO, HALF, ONE, TWO, THREE, FOUR, SIX = (np.float32(number) for number in (0, 0.5, 1, 2, 3, 4, 6))
RED, GREEN, BLUE = (np.float32(number) for number in (0.2989, 0.587, 0.114))
BRIGHT, WHITE = np.float32(128 / 255), np.float32(255)
TINY = np.finfo(np.float32).tiny
FAINT = np.float32(1e-9)
"""Smaller weights of a blur do not reach the last bit of a pixel."""
NEVER = np.bool_(False)
NEXT, CHANNELS, BLOCK = np.uintp(1), np.uintp(3), np.uintp(1024)

# `numpy`: a division is not tested for zero. `fast` may add in any order and fuse products with sums; NaN and clamps
# stay as they are. What is not fast says so, or it would inherit the freedom of what calls it.
fast = njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})
exact = njit(nogil=True, error_model="numpy", fastmath=False)


@exact
def _within(x, low, high):
    x = x if x > low else low
    return x if x < high else high


@fast
def _gray_of(red, green, blue):
    return red * RED + green * GREEN + blue * BLUE


@exact
def _find_taps(start, length, size, pixels, mirrored, scale, first, count, weights):
    """The non-zero part of each row of `resample.cut_matrix`: where it begins, how long it is, its weights, scaled.

    Exact, because a place in a large image is known to few digits: other rounding would shift the view a little.
    """
    begin, end = start * np.float32(pixels), (start + length) * np.float32(pixels)
    step = (end - begin) / np.float32(size)
    reach = max(step, ONE)
    most = 0
    for i in range(size):
        sample = np.float32(size - i) - HALF if mirrored else np.float32(i) + HALF
        center = begin + step * sample
        low = max(0, int(max(begin, center - reach - HALF)))
        high = min(pixels, low + weights.shape[1], int(min(end, center + reach - HALF)) + 1)
        taps, total = 0, ZERO
        for pixel in range(low, high):
            edge = np.float32(pixel)
            covered = _within(min(edge + ONE, end) - max(edge, begin), ZERO, ONE)
            weight = (ONE - abs(edge + HALF - center) / reach) * covered
            if weight > ZERO:
                weights[i, taps] = weight
                total += weight
                taps += 1
            elif taps == 0:
                low = pixel + 1
        if taps == 0:  # the part is empty: 0 / 0 shows it, as in the matrix
            low, taps, weights[i, 0] = min(low, pixels - 1), 1, ZERO
        first[i], count[i] = low, taps
        most = max(most, taps)
        for tap in range(taps):
            weights[i, tap] = weights[i, tap] / total / scale
        for tap in range(taps, 2):  # so that `_narrow` may always take two
            weights[i, tap] = ZERO
    return most


@fast
def _set_row(to, at, source, begin, length, weight):
    for x in range(length):
        to[at + x] = weight * np.float32(source[begin + x])


@fast
def _add_row(to, at, source, begin, length, weight):
    for x in range(length):
        to[at + x] += weight * np.float32(source[begin + x])


@fast
def _add_two_rows(to, at, source, one, other, length, weight):
    for x in range(length):
        to[at + x] += weight * (source[one + x] + source[other + x])


@fast
def _narrow(lines, wide, first, count, weights, most, planes, at, area):
    """A row of each plane from a line of each channel: every pixel is a weighted sum of a few neighbors."""
    if most <= 2:
        for x in range(first.size):
            red, green, blue = first[x], first[x] + wide, first[x] + wide + wide
            one, other = weights[x, 0], weights[x, 1]
            planes[at] = one * lines[red] + other * lines[red + NEXT]
            planes[at + area] = one * lines[green] + other * lines[green + NEXT]
            planes[at + area + area] = one * lines[blue] + other * lines[blue + NEXT]
            at += NEXT
    else:
        for x in range(first.size):
            place, red, green, blue = first[x], ZERO, ZERO, ZERO
            for tap in range(count[x]):
                red += weights[x, tap] * lines[place]
                green += weights[x, tap] * lines[place + wide]
                blue += weights[x, tap] * lines[place + wide + wide]
                place += NEXT
            planes[at], planes[at + area], planes[at + area + area] = red, green, blue
            at += NEXT


@fast
def _cut(images, at, height, width, box, mirrored, size, planes, room):
    """Crop, antialiased resize and mirror image: rows are added up as vectors, then the sum is narrowed."""
    first_y, count_y, weights_y, first_x, count_x, weights_x, lines = room
    _find_taps(box[0], box[2], size, height, NEVER, ONE, first_y, count_y, weights_y)
    most = _find_taps(box[1], box[3], size, width, mirrored, WHITE, first_x, count_x, weights_x)
    left = min(first_x[0], first_x[size - 1])
    right = max(first_x[0] + np.uintp(count_x[0]), first_x[size - 1] + np.uintp(count_x[size - 1]))
    for x in range(size):
        first_x[x] -= left
    length, side, wide = right - left, np.uintp(size), np.uintp(width)
    for y in range(size):
        for channel in range(CHANNELS):
            line = channel * (wide + NEXT)
            source = at + (channel * np.uintp(height) + first_y[y]) * wide + left
            _set_row(lines, line, images, source, length, weights_y[y, 0])
            for tap in range(1, count_y[y]):
                source += wide
                _add_row(lines, line, images, source, length, weights_y[y, tap])
            lines[line + length] = ZERO  # the second of two neighbors may lie here, with weight 0
        _narrow(lines, wide + NEXT, first_x, count_x, weights_x, most, planes, np.uintp(y) * side, side * side)


@fast
def _brighten(planes, area, factor):
    for i in range(CHANNELS * area):
        planes[i] = _within(planes[i] * factor, ZERO, ONE)


@fast
def _mean_gray(planes, area):
    total = 0.0
    for begin in range(np.uintp(0), area, BLOCK):  # short sums in 32 bits, added up in 64
        part = ZERO
        for i in range(begin, min(begin + BLOCK, area)):
            part += _gray_of(planes[i], planes[i + area], planes[i + area + area])
        total += part
    return np.float32(total / area)


@fast
def _contrast(planes, area, factor):
    rest = _mean_gray(planes, area) * (ONE - factor)
    for i in range(CHANNELS * area):
        planes[i] = _within(planes[i] * factor + rest, ZERO, ONE)


@fast
def _saturate(planes, area, factor):
    for i in range(area):
        red, green, blue = planes[i], planes[i + area], planes[i + area + area]
        rest = _gray_of(red, green, blue) * (ONE - factor)
        planes[i] = _within(red * factor + rest, ZERO, ONE)
        planes[i + area] = _within(green * factor + rest, ZERO, ONE)
        planes[i + area + area] = _within(blue * factor + rest, ZERO, ONE)


@fast
def _turn_hue(planes, area, turn):
    """As `color.hue`, where the formula is explained."""
    turn = SIX * turn
    for i in range(area):
        red, green, blue = planes[i], planes[i + area], planes[i + area + area]
        top, bottom = max(red, max(green, blue)), min(red, min(green, blue))
        chroma = top - bottom
        lead = blue - red + TWO * chroma if top == green else red - green + FOUR * chroma
        lead = green - blue if top == red else lead
        sixth = lead / max(chroma, TINY) + turn
        sixth -= SIX * np.floor(sixth / SIX)
        planes[i] = bottom + chroma * _within(abs(sixth - THREE) - ONE, ZERO, ONE)
        planes[i + area] = bottom + chroma * _within(TWO - abs(sixth - TWO), ZERO, ONE)
        planes[i + area + area] = bottom + chroma * _within(TWO - abs(sixth - FOUR), ZERO, ONE)


@fast
def _jitter(planes, area, order, factors):
    for number in order:
        if number == 0:
            _brighten(planes, area, factors[0])
        elif number == 1:
            _contrast(planes, area, factors[1])
        elif number == 2:
            _saturate(planes, area, factors[2])
        else:
            _turn_hue(planes, area, factors[3])


@fast
def _make_gray(planes, area):
    for i in range(area):
        gray = _gray_of(planes[i], planes[i + area], planes[i + area + area])
        planes[i], planes[i + area], planes[i + area + area] = gray, gray, gray


@exact
def _bell(sigma, radius, kernel):
    """One side of the kernel of `resample.blur_matrix`, middle first, and how many of its weights count."""
    total, taps = ZERO, 1
    for k in range(radius + 1):
        share = np.float32(k) / sigma
        kernel[k] = math.exp(-(share * share) / TWO)
        total += kernel[k] if k == 0 else TWO * kernel[k]
    for k in range(radius + 1):
        kernel[k] /= total
        taps = k + 1 if kernel[k] > FAINT else taps
    return taps


@fast
def _blur(planes, source, to, size, kernel, taps, radius, line):
    """The plane at `source`, blurred, at `to`: sums of rows above and below, then of neighbors left and right."""
    side, last, middle = np.uintp(size), size - 1, np.uintp(radius)
    for y in range(size):
        _set_row(line, middle, planes, source + np.uintp(y) * side, side, kernel[0])
        for k in range(1, taps):
            above, below = np.uintp(abs(y - k)), np.uintp(last - abs(last - (y + k)))
            _add_two_rows(line, middle, planes, source + above * side, source + below * side, side, kernel[k])
        for k in range(1, taps):  # beyond its ends a line goes on as its mirror image
            line[radius - k] = line[radius + k]
            line[radius + last + k] = line[radius + last - k]
        row = to + np.uintp(y) * side
        _set_row(planes, row, line, middle, side, kernel[0])
        for k in range(1, taps):
            _add_two_rows(planes, row, line, middle - np.uintp(k), middle + np.uintp(k), side, kernel[k])


@fast
def _solarize(planes, at, area):
    for i in range(at, at + CHANNELS * area):
        planes[i] = ONE - planes[i] if planes[i] >= BRIGHT else planes[i]


@fast
def _write(planes, at, area, mean, std, by_pixel, out, to):
    """Normalized, plane after plane or pixel after pixel."""
    if by_pixel:
        for i in range(at, at + area):
            out[to] = (planes[i] - mean[0]) / std[0]
            out[to + NEXT] = (planes[i + area] - mean[1]) / std[1]
            out[to + NEXT + NEXT] = (planes[i + area + area] - mean[2]) / std[2]
            to += CHANNELS
    else:
        for channel in range(CHANNELS):
            for i in range(area):
                out[to + i] = (planes[at + i] - mean[channel]) / std[channel]
            at, to = at + area, to + area


@exact
def _room(height, width, size):
    """Memory for the taps of a cut: places, counts and weights, down and across, and a line of each channel."""
    longest = 2 * math.ceil(max(1.0, max(height, width) / size)) + 4
    places, counts = np.empty((2, size), np.uintp), np.empty((2, size), np.int64)
    weights, lines = np.empty((2, size, longest), np.float32), np.empty(3 * (width + 1), np.float32)
    return places[0], counts[0], weights[0], places[1], counts[1], weights[1], lines


def _make(begin, end, height, width, images, box, flags, order, factors, sigma, mean, std, size, by_pixel, out):
    """Make the views of the images from `begin` up to `end`; each depends on its own row and on nothing else."""
    area = np.uintp(size * size)
    radius = min(max(1, size // 20), size - 1)
    kernel, line = np.empty(radius + 1, np.float32), np.empty(size + 2 * radius, np.float32)
    room, planes = _room(height, width, size), np.empty(6 * size * size, np.float32)
    for n in range(begin, end):
        row = np.uintp(n) * CHANNELS
        _cut(images, row * np.uintp(height * width), height, width, box[n], flags[n, 0], size, planes, room)
        if flags[n, 1]:
            _jitter(planes, area, order[n], factors[n])
        if flags[n, 2]:
            _make_gray(planes, area)
        at = np.uintp(0)
        if sigma[n] > ZERO:
            at = CHANNELS * area
            taps = _bell(sigma[n], radius, kernel)
            for channel in range(CHANNELS):
                _blur(planes, channel * area, at + channel * area, size, kernel, taps, radius, line)
        if flags[n, 3]:
            _solarize(planes, at, area)
        _write(planes, at, area, mean, std, by_pixel, out, row * area)


SIGNATURE = types.void(
    types.intp, types.intp, types.intp, types.intp, types.uint8[::1], types.float32[:, ::1], types.boolean[:, ::1],
    types.int64[:, ::1], types.float32[:, ::1], types.float32[::1], types.float32[::1], types.float32[::1],
    types.intp, types.boolean, types.float32[::1],
)  # fmt: skip


def compiled(*, keep: bool) -> Callable[..., None]:
    """`_make` as machine code; `keep`: on disk beside this file or in the user's cache, for the next process."""
    made: Callable[..., None] = njit(SIGNATURE, nogil=True, error_model="numpy", fastmath=False, cache=keep)(_make)
    return made
