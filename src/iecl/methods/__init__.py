"""The table of methods: one file each, resolved by name when a run asks for it."""

from iecl.registry import Entry

METHODS: dict[str, Entry] = {
    "ie-cl": Entry("iecl.objective.wrapper:IECL", "a momentum-contrast host behind an input block, with entropy terms"),
    "moco-v2": Entry("iecl.methods.moco_v2:MoCoV2", "match a momentum copy's key among the batch or a queue of keys"),
}

HOSTS: dict[str, str] = {"ie-cl": "moco-v2"}
"""Methods that are a host inside the IE-CL objective, and the host whose settings they take."""
