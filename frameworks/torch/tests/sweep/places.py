"""The places where operators ran, as the device's module reports them.

Never decides whether an operator passes: running on the CPU is a way to be right.
"""

from __future__ import annotations

import torch

ON_DEVICE = ("device", "compiled")
"""Places where an operator is on the device."""


class Places:
    """The calls since this was made. A device without a report has none."""

    def __init__(self, device: torch.device) -> None:
        module = getattr(torch, device.type, None)
        self.report = getattr(module, "operator_report", None)
        if self.report is not None:
            module.reset_fallback_report()

    def taken(self) -> dict[str, dict[str, int]]:
        """Calls by place and operator."""
        taken: dict[str, dict[str, int]] = {}
        for entry in self.report() if self.report is not None else []:
            taken.setdefault(entry["place"], {})[entry["operator"]] = entry["calls"]
        return taken
