"""How fast this machine trains, beside other libraries where they are installed: the table of questions."""

from iecl.registry import Entry

QUESTIONS: dict[str, Entry] = {
    "views": Entry("benchmarks.bench.views:measure", "what do two random views of a batch cost, here and elsewhere?"),
    "pipeline": Entry(
        "benchmarks.bench.pipeline:measure", "how fast do images arrive, beside torchvision's ImageFolder?"
    ),
    "listing": Entry("benchmarks.bench.listing:measure", "what does it take to find the files of a large folder?"),
    "training": Entry(
        "benchmarks.bench.training:measure", "how fast is training as a whole, beside the bare step and beside peers?"
    ),
    "overhead": Entry("benchmarks.bench.overhead:measure", "what does each part of IE-CL add to a training step?"),
    "memory": Entry("benchmarks.bench.memory:measure", "how much memory does one more image in a batch take?"),
    "evaluation": Entry("benchmarks.bench.evaluation:measure", "what do features, kNN and the linear probe cost?"),
    "startup": Entry("benchmarks.bench.startup:measure", "how long until the command answers?"),
    "growth": Entry("benchmarks.bench.growth:measure", "how does a step grow with batch, image side and queue?"),
    "roofline": Entry("benchmarks.bench.roofline:measure", "how near is a training step to what the machine can do?"),
}
"""Each has a function of an `Effort` that returns what was found, as `report.write_result` keeps it."""
