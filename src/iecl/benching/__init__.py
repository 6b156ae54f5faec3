"""How fast this machine trains, beside other libraries where they are installed: the table of questions."""

from iecl.registry import Entry

QUESTIONS: dict[str, Entry] = {
    "views": Entry("iecl.benching.views:measure", "what do two random views of a batch cost, here and elsewhere?"),
    "pipeline": Entry("iecl.benching.pipeline:measure", "how fast do images arrive, beside torchvision's ImageFolder?"),
    "listing": Entry("iecl.benching.listing:measure", "what does it take to find the files of a large folder?"),
    "training": Entry(
        "iecl.benching.training:measure", "how fast is training as a whole, beside the bare step and beside peers?"
    ),
    "overhead": Entry("iecl.benching.overhead:measure", "what does each part of IE-CL add to a training step?"),
    "memory": Entry("iecl.benching.memory:measure", "how much memory does one more image in a batch take?"),
    "evaluation": Entry("iecl.benching.evaluation:measure", "what do features, kNN and the linear probe cost?"),
    "startup": Entry("iecl.benching.startup:measure", "how long until the command answers?"),
    "growth": Entry("iecl.benching.growth:measure", "how does a step grow with batch, image side and queue?"),
    "roofline": Entry("iecl.benching.roofline:measure", "how near is a training step to what the machine can do?"),
}
"""Each has a function of an `Effort` that returns what was found, as `report.write_result` keeps it."""
