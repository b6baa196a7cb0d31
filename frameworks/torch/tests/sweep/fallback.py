"""Which operators ran on the CPU instead of the device, as the device's module reports it.

Never decides whether an operator passes: running on the CPU is a way to be right.
"""

from __future__ import annotations

import torch


class Fallbacks:
    """The calls that fell back since this was made. A device without a report has none."""

    def __init__(self, device: torch.device) -> None:
        module = getattr(torch, device.type, None)
        self.report = getattr(module, "fallback_report", None)
        if self.report is not None:
            module.reset_fallback_report()

    def taken(self) -> dict[str, int]:
        """Calls by operator."""
        if self.report is None:
            return {}
        return {entry["operator"]: entry["calls"] for entry in self.report()}
