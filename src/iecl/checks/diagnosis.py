"""Everything that was found in a folder, for whoever writes it down."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from iecl.checks.duplicates import Copies
from iecl.checks.findings import Finding
from iecl.checks.scan import Scan
from iecl.checks.table import CHECKS, CheckSettings
from iecl.settings import as_values


@dataclass
class Diagnosis:
    """Images, and what the checks say of them."""

    scan: Scan
    settings: CheckSettings
    copies: Copies
    findings: list[Finding]
    """In the order of the checks."""
    facts: dict[str, Any]
    """What is known of the collection as a whole, as plain values."""
    neighborhood: Any = None
    """What a backbone makes of the images, if there is one: `iecl.checks.backbone.Neighborhood`."""

    def of(self, check: str) -> list[Finding]:
        """What one check found."""
        return [one for one in self.findings if one.check == check]

    def to_exclude(self) -> dict[int, Finding]:
        """Images to leave out, each with the first reason; a copy in a test part stays, since results rest on it."""
        found: dict[int, Finding] = {}
        splits = self.scan.splits()
        for one in self.findings:
            is_copy = one.group is not None
            if CHECKS[one.check].excludes and not (is_copy and splits[one.number] == 1):
                found.setdefault(one.number, one)
        return found

    def result(self) -> dict[str, Any]:
        """What is known as plain values, without the single findings."""
        values, counts = as_values(self.settings), Counter(one.check for one in self.findings)
        checks = {
            name: {
                "count": counts[name],
                "what": check.what,
                "sure": check.sure,
                "threshold": {check.threshold: values[check.threshold]} if check.threshold else {},
                "excludes": check.excludes,
            }
            for name, check in CHECKS.items()
            if "run" in self.facts or not check.needs_run
        }
        return self.facts | {"checks": checks, "to_exclude": len(self.to_exclude()), "settings": values}
