"""A worker of the sweep: `python -m sweep.worker --device D --catalog MODULE`, started by `pool.py`.

Reads names of cases from its standard input, one a line, and answers in JSON, one object a line.
Everything else that anything prints goes to the worker's log, so that no case can garble the answers.
Leaves crashes and hangs to the parent.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import os
import sys
import warnings
from typing import Any, TextIO

import torch

from .cases import Module, Operator, Optimizer
from .module_check import ModuleCheck
from .operator_check import OperatorCheck
from .optimizer_check import OptimizerCheck
from .result import Outcome


CHECKS = {Operator: OperatorCheck, Module: ModuleCheck, Optimizer: OptimizerCheck}


class Answers:
    """The way back to the parent."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def send(self, **values: Any) -> None:
        """Sends one answer."""
        self.stream.write(json.dumps(values) + "\n")
        self.stream.flush()

    def heartbeat(self, sample: int, stage: str) -> None:
        """Says which sample comes next, and which stage of it."""
        self.send(sample=sample, stage=stage)


def take_over_stdout() -> TextIO:
    """Standard output for answers only: what others print there goes to standard error, the log."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def unwell(device: torch.device) -> str:
    """The reason why the device cannot be used for the next case; empty if it can."""
    try:
        total = (torch.ones(2, device=device) + 1).cpu().sum().item()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "" if total == 4 else f"1 + 1 twice is {total}"


def main() -> None:
    """Answers until the parent closes the standard input."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True)
    parser.add_argument("--catalog", required=True, help="module with a function cases(dtype)")
    parser.add_argument("--dtype", default="float32", help="dtype of the samples, by its name in torch")
    parser.add_argument("--samples", type=int, help="how many samples of a case; all if not given")
    options = parser.parse_args()
    answers = Answers(take_over_stdout())
    # The parent ends a hanging worker by SIGABRT: the log then shows where it hung.
    faulthandler.enable()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    device = torch.device(options.device)
    cases = importlib.import_module(options.catalog).cases(getattr(torch, options.dtype))
    # Opens the device, so that a missing one is no case's failure.
    if reason := unwell(device):
        answers.send(unusable=reason)
        return
    answers.send(ready=True, torch=torch.__version__)
    for line in sys.stdin:
        case = cases[line.strip()]
        result = CHECKS[type(case)](case, device, answers.heartbeat, options.samples).run()
        reason = unwell(device) if result.outcome is Outcome.FAIL else ""
        answers.send(result=result.to_json(), unwell=reason)


if __name__ == "__main__":
    main()
