"""Vendors' packages: a device with a name and a driver of its own.

A vendor ships a Python package with a driver library and one entry point of the group `torch_outrigger.vendors`, which
leads to a `Vendor`. With the package installed, torch has a device type of the vendor's name. torch has room for one
such name in a process, so of several packages a user chooses one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points

import torch

GROUP = "torch_outrigger.vendors"
CHOICE = "OUTRIGGER_VENDOR"

autocast_dtypes: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16)
"""The dtypes that autocast may use in this process; a vendor's package may say less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """The description of a device by its vendor's package."""

    name: str
    """The device type in torch: `torch.ones(3, device="acme")`. Lower-case letters, digits and underscores."""
    driver: str | os.PathLike[str]
    """The driver library's path."""
    options: Mapping[str, str | int] = field(default_factory=dict)
    """Options of the driver, as behind the `?` in OUTRIGGER_DRIVER."""
    autocast: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16)
    """The dtypes that autocast may use."""
    whole_operators: tuple[str, ...] = ()
    """Operators that torch.compile calls instead of taking them apart, by their names in `torch.ops.aten`: those that the
    driver has as one kernel which is quicker than a generated one."""

    def __post_init__(self) -> None:
        """ValueError names what is wrong."""
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ValueError(
                f"a vendor's device cannot be called {self.name!r}: lower-case letters, digits and underscores make a name"
            )
        if any(mark in part for part in map(str, (self.driver, *self.options.values())) for mark in ",?&"):
            raise ValueError(f"the driver {self.driver!s} or one of its options has a ',', a '?' or a '&'")
        unknown = [dtype for dtype in self.autocast if dtype not in (torch.float16, torch.bfloat16)]
        if unknown:
            raise ValueError(f"autocast computes in torch.float16 or torch.bfloat16, not in {unknown[0]}")

    def specification(self) -> str:
        """The driver with its options, as OUTRIGGER_DRIVER takes it."""
        options = "&".join(f"{key}={value}" for key, value in self.options.items())
        return f"{os.fspath(self.driver)}?{options}" if options else os.fspath(self.driver)


def find() -> Vendor | None:
    """The vendor that is installed; None if there is none, and then the device is called outrigger.

    RuntimeError if several are installed and none is chosen, or if the chosen one is not there.
    """
    installed = {point.name: point for point in entry_points(group=GROUP)}
    chosen = os.environ.get(CHOICE, "")
    if chosen:
        if chosen not in installed:
            raise RuntimeError(f"{CHOICE}={chosen}: {_listing(installed.values())}")
        return _load(installed[chosen])
    if len(installed) > 1:
        raise RuntimeError(
            f"{_listing(installed.values())} A process has one of them: set {CHOICE} to {' or '.join(sorted(installed))}."
        )
    return _load(*installed.values()) if installed else None


def _load(point: EntryPoint) -> Vendor:
    try:
        vendor = point.load()
    except (ImportError, AttributeError) as error:
        raise RuntimeError(f"the entry point {point.name} of {GROUP} cannot be loaded: {error}") from error
    if not isinstance(vendor, Vendor):
        raise TypeError(f"the entry point {point.name} of {GROUP} leads to {vendor!r}, which is no torch_outrigger.Vendor")
    if vendor.name != point.name:
        raise ValueError(f"the entry point {point.name} of {GROUP} leads to a device of another name, {vendor.name}")
    if _is_known(vendor.name):
        raise ValueError(f"a vendor's device cannot be called {vendor.name}: torch has a device of that name")
    return vendor


def _is_known(name: str) -> bool:
    """Whether torch has a device type of this name already."""
    try:
        torch.device(name)
    except RuntimeError:
        return False
    return True


def _listing(points: Iterable[EntryPoint]) -> str:
    names = [f"{point.name} (of {point.dist.name} {point.dist.version})" for point in points if point.dist]
    if not names:
        return "no vendor's package is installed."
    return f"installed vendors' packages: {', '.join(sorted(names))}."
