"""The door to a driver's operators, over a driver that does nothing. `cargo xtask bench ops`.

All calls have four operands of rank 4, and two threads call at a time. `door_call`: `otr_operator_call` less the driver's
own `launch` with the same call; the same signature again. `door_call_64`: the same over 64 signatures in turn.
`door_refused`: what a driver with operators adds to a call of an operator that it does not offer, which a host kernel
serves. `door_refused_shape`: the same for one that it offers, with a shape that it refuses.
"""

from __future__ import annotations

from .harness import US, Bar, Metric, Missing, Parts, Seconds
from .subjects import Subjects


def difference(seconds: Seconds) -> float:
    """Nanoseconds that one call takes more than another one."""
    return 1e9 * (seconds["whole"] - seconds["without"])


def metrics(subjects: Subjects) -> list[Metric]:
    """The suite."""

    def metric(name: str, limit: float, whole: str, without: str) -> Metric:
        def contest() -> dict[str, Parts | Missing]:
            return {US: subjects.parts("outrigger_ops", whole=whole, without=without)}

        return Metric(name, contest, (Bar(limit),), "ns", figure=difference)

    return [
        metric("door_call", 50, "call", "direct"),
        metric("door_call_64", 80, "call_64", "direct_64"),
        metric("door_refused", 5, "not_offered", "not_offered_alone"),
        metric("door_refused_shape", 30, "refused_shape", "refused_shape_alone"),
    ]
