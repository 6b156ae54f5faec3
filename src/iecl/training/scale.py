"""What a run takes on GPUs that are not here: closed formulas over what was counted. Free of torch.

Every number that was not counted is an assumption with a name: a row of `GPUS`, or a field of `Assumed`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any

from iecl.console import duration, plain_table
from iecl.errors import UserError, did_you_mean

MOST_IMAGES = 1e15


@dataclass(frozen=True)
class Gpu:
    """What a manufacturer says of a GPU."""

    flops: float
    """Dense 16-bit multiply-adds of its tensor cores in a second, each counted as two."""
    bandwidth: float
    """Bytes of its memory in a second."""
    memory: float
    """Bytes."""
    link: float
    """Bytes in a second to the other GPUs of its machine, in one direction."""
    source: str


GPUS = {
    "t4": Gpu(65e12, 320e9, 16e9, 16e9, "NVIDIA T4 datasheet; PCIe 3.0 x16"),
    "v100": Gpu(125e12, 900e9, 32e9, 150e9, "NVIDIA V100 datasheet, SXM2 32 GB"),
    "a100": Gpu(312e12, 2039e9, 80e9, 300e9, "NVIDIA A100 datasheet, SXM4 80 GB"),
    "h100": Gpu(989e12, 3350e9, 80e9, 450e9, "NVIDIA H100 datasheet, SXM5 80 GB"),
    "rtx4090": Gpu(165e12, 1008e9, 24e9, 32e9, "NVIDIA Ada GPU architecture whitepaper; PCIe 4.0 x16"),
}


@dataclass(frozen=True)
class Assumed:
    """What nobody can know before the run."""

    utilization: float = 0.2
    """Share of the peak that products reach: NVIDIA's own ResNet-50 trains 2,711 images/s on an A100, 21 % of it."""
    passes: float = 5.0
    """How often a step goes through what it keeps for the backward pass: written, read, and the same for gradients."""
    bandwidth_share: float = 0.8
    """Share of the memory's and the links' peak that is reached."""
    network: float = 25e9
    """Bytes in a second between machines for each GPU, in one direction: 200 Gbit/s InfiniBand."""
    gpus_per_machine: int = 8
    overlap: float = 2 / 3
    """Share of a step, its backward pass, behind which gradients travel; gathered rows are waited for."""
    reserve: float = 0.9
    """Share of the memory that tensors may take; the rest is CUDA's, and gaps."""
    cores_per_gpu: int = 16
    decode: float = 150.0
    """Images in a second that a core reads, decodes and shrinks."""
    image_bytes: float = 110e3
    """A file of the size of ImageNet's."""


USUAL = Assumed()


@dataclass(frozen=True)
class Growth:
    """a + b n + c m + d n m + e m m, for n images of a process and m of all."""

    a: float
    b: float
    c: float
    d: float
    e: float

    @classmethod
    def through(cls, points: Sequence[tuple[int, int]], values: Sequence[float]) -> "Growth":
        """The one that has these values at five points.

        >>> Growth.through([(1, 1), (2, 2), (1, 2), (2, 4), (1, 4)], [6, 15, 11, 33, 27])
        Growth(a=1.0, b=2.0, c=1.0, d=1.0, e=1.0)
        """
        rows = [[Fraction(x) for x in (1, n, m, n * m, m * m)] for n, m in points]
        answers = [Fraction(value) for value in values]
        for i in range(len(rows)):  # Gauss, in fractions: exact
            pivot = next(r for r in range(i, len(rows)) if rows[r][i])
            rows[i], rows[pivot], answers[i], answers[pivot] = rows[pivot], rows[i], answers[pivot], answers[i]
            for r in range(len(rows)):
                if r != i:
                    factor = rows[r][i] / rows[i][i]
                    rows[r] = [x - factor * y for x, y in zip(rows[r], rows[i], strict=True)]
                    answers[r] -= factor * answers[i]
        return cls(*(float(answer / rows[i][i]) for i, answer in enumerate(answers)))

    def in_16_bits(self) -> "Growth":
        """Bytes of a mixed-precision run: half, except what compares images with images, which stays in 32 bits."""
        return Growth(self.a / 2, self.b / 2, self.c / 2, self.d, self.e)

    def at(self, n: float, m: float) -> float:
        """Its value."""
        return max(0.0, self.a + self.b * n + self.c * m + self.d * n * m + self.e * m * m)


@dataclass(frozen=True)
class Counted:
    """What was counted of a step: operations, and bytes in 32 bits."""

    least: int
    """Fewest images with which the loss means anything."""
    flops: Growth
    saved: Growth
    """Kept for the backward pass."""
    gathered: Growth
    """Rows of this process that all others are shown."""
    gathered_with_gradient: Growth
    """The same where a gradient comes back."""
    summed: Growth
    """Statistics that are added up over processes."""
    weights: int
    """Weights, copies of them, queues and other buffers, except what grows with the data."""
    trained: int
    """Weights whose gradients are added up over processes."""
    moments: int
    """What the optimizer remembers."""
    broadcast: int
    """Buffers that the first process sends to all: statistics of norms."""
    per_sample: int
    """Held for each image of the data, as labels of clusters are, and sent to all with the buffers."""
    dropped: Growth = Growth(0, 0, 0, 0, 0)
    """What would be kept for the backward pass too, if it were not computed again."""
    again: float = 0.0
    """Bytes for each view while a part of the network is computed again."""
    pass_views: float = 0.0
    """Views that go through the network together, for each image."""
    chunk: int = 0
    """At most so many do (training.grad_cache); 0: all."""

    def held(self, images: int, world: int) -> float:
        """Bytes in 16 bits that the backward pass holds at its largest."""
        views = self.pass_views * images
        again = self.again * (min(self.chunk, views) if self.chunk else views)
        return self.saved.in_16_bits().at(images, images * world) + again / 2

    def touched(self, images: int, world: int) -> float:
        """Bytes in 16 bits that go through memory."""
        parts = (self.saved, self.dropped)
        return sum(part.in_16_bits().at(images, images * world) for part in parts)

    def sent(self, images: int, world: int, samples: float = 0) -> dict[str, float]:
        """Bytes that each of `world` processes with so many images sends in a step, over rings."""
        m, others = images * world, world - 1
        back = self.gathered_with_gradient.at(images, m)
        return {
            "gradients": 2 * others / world * self.trained,
            "rows": others * (self.gathered.at(images, m) + 3 * back),  # shown once; added up on the way back
            "statistics": 2 * others / world * self.summed.at(images, m),
            "buffers": (self.broadcast + self.per_sample * samples) * bool(others),
        }


def gpu_called(name: str) -> Gpu:
    """The GPU with this name.

    Raises:
        UserError: none is called so.
    """
    if name.lower() not in GPUS:
        do = f"{did_you_mean(name, GPUS)}; known are: {', '.join(GPUS)}"
        raise UserError(f"no GPU is called {name!r}", where="--gpu", do=do)
    return GPUS[name.lower()]


def estimate(
    counted: Counted, *, gpu: str, devices: int, batch: int, images: float, epochs: int, assumed: Assumed = USUAL
) -> dict[str, Any]:
    """What a run takes on `devices` GPUs, and what ends first.

    Raises:
        UserError: there is no such GPU, it has no share of the batch, or the images do not fill one.
    """
    if not batch <= images < MOST_IMAGES:
        do = f"give {batch} to {MOST_IMAGES:.0e}, or another --batch-size"
        raise UserError(f"{images:g} images cannot be trained on in batches of {batch}", where="--images", do=do)
    card, own = gpu_called(gpu), batch // devices
    if batch % devices or own < 2:
        least = max(2, counted.least // devices) * devices
        raise UserError(
            f"a batch of {batch} cannot be shared by {devices} GPUs",
            where="--batch-size",
            do=f"give {max(least, batch // devices * devices)}",
        )
    link = card.link if devices <= assumed.gpus_per_machine else min(card.link, assumed.network)
    sent = counted.sent(own, devices, images)
    products = counted.flops.at(own, batch) / (card.flops * assumed.utilization)
    traffic = assumed.passes * counted.touched(own, devices) / (card.bandwidth * assumed.bandwidth_share)
    compute = max(products, traffic)
    talk = {name: size / (link * assumed.bandwidth_share) for name, size in sent.items()}
    hidden = min(talk["gradients"], assumed.overlap * compute)
    network = sum(talk.values()) - hidden
    reading = own / (assumed.cores_per_gpu * assumed.decode)
    step = max(compute + network, reading)
    held = counted.weights + counted.trained + counted.moments + counted.per_sample * images
    memory, room = held + counted.held(own, devices), assumed.reserve * card.memory
    largest = own if memory <= room else 0
    while largest and largest < 2**20 and held + counted.held(2 * largest, devices) <= room:
        largest *= 2
    steps = images // batch * epochs
    return {
        "gpu": gpu,
        "devices": devices,
        "batch": batch,
        "images": images,
        "epochs": epochs,
        "step_seconds": step,
        "seconds": step * steps,
        "gpu_hours": step * steps * devices / 3600,
        "images_per_second": batch / step,
        "memory_bytes": memory,
        "memory_share": memory / card.memory,
        "network_share": network / step,
        "sent_bytes": sent,
        "parts_seconds": {"products": products, "memory traffic": traffic, "network": network, "reading": reading},
        "read_bytes_per_second": batch / step * assumed.image_bytes,
        "images_per_gpu": own,
        "most_images_per_gpu": largest,
        **_first_to_end(memory > room, products, traffic, network, reading, sent, compute),
        "assumed": asdict(assumed) | {"source": card.source},
    }


def _first_to_end(
    is_full: bool,
    products: float,
    traffic: float,
    network: float,
    reading: float,
    sent: dict[str, float],
    compute: float,
) -> dict[str, str]:
    """Which resource limits the run, and which setting moves that limit."""
    if is_full:
        do = "more --devices, a smaller --batch-size, training.gradient_checkpointing=true, or training.grad_cache"
        return {"ends_first": "memory of a GPU", "moved_by": do}
    if reading > compute + network:
        return {"ends_first": "reading of images", "moved_by": "iecl pack, more cores for each GPU (data.num_workers)"}
    if network > max(products, traffic):
        rows = max(sent, key=lambda name: sent[name]) == "rows"
        do = (
            "a smaller method.out_dim, or training.sync_batch_norm=off"
            if rows
            else "a larger --batch-size: gradients travel once for each step"
        )
        return {"ends_first": "network", "moved_by": do}
    if traffic > products:
        do = "training.compile=true, which goes through memory less often; a GPU with faster memory"
        return {"ends_first": "bandwidth of a GPU's memory", "moved_by": do}
    return {"ends_first": "arithmetic of a GPU", "moved_by": "more --devices, a smaller --backbone or data.image_size"}


def words(made: dict[str, Any]) -> list[str]:
    """An estimate for people."""
    parts, sent = made["parts_seconds"], made["sent_bytes"]
    rows = [[name, f"{1000 * seconds:,.1f} ms"] for name, seconds in parts.items()]
    rows += [[f"sent: {name}", f"{size / 1e6:,.1f} MB"] for name, size in sent.items()]
    said = made["assumed"]
    return [
        *plain_table(["a step of each GPU", "takes"], rows).split("\n"),
        f"{made['devices']} × {made['gpu']}, {made['images']:,.0f} images, batches of {made['batch']:,} "
        f"({made['images_per_gpu']:,} for each GPU): {made['epochs']} epochs in {duration(made['seconds'])}, "
        f"{made['gpu_hours']:,.0f} GPU hours, {made['images_per_second']:,.0f} images/s",
        f"memory: {made['memory_bytes'] / 1e9:,.1f} GB of each GPU ({100 * made['memory_share']:.0f} %); "
        f"network: {100 * made['network_share']:.0f} % of a step; reading: "
        f"{made['read_bytes_per_second'] / 1e9:,.2f} GB/s in all",
        f"ends first: {made['ends_first']}; moved by: {made['moved_by']}",
        "assumed: " + ", ".join(f"{name.replace('_', ' ')} {_short(said[name])}" for name in NAMES),
        f"source: {said['source']}; no GPU was asked: see the page on scale",
    ]


NAMES = tuple(field.name for field in fields(Assumed))


def _short(number: float) -> str:
    return f"{number:.3g}"
