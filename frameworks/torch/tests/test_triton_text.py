"""The text of Triton's modules: a kept one of each operation is read and written, and what is not known is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_outrigger.triton import emit, ttir

MODULES = Path(__file__).parent / "triton_modules"
NOT_SERVED = {"tt.elementwise_inline_asm"}


@pytest.mark.parametrize("name", sorted(ttir.RULES))
def test_a_kept_module_with_each_operation_is_read_and_written(name):
    """As Triton 3.9 prints it. An operation without such a file has no test of its text."""
    text = (MODULES / f"{name}.ttir").read_text()
    names = [one.name for function in ttir.read(text).values() for one in ttir.operations(function.blocks)]
    assert name in names
    if name in NOT_SERVED:
        with pytest.raises(ttir.Refused, match=rf"kernel.py:\d+: the operation {name} "):
            emit.write(text, "kernel", overlap=False)
    else:
        kernel = emit.write(text, "kernel", overlap=False)
        assert "OTR_KERNEL(kernel)" in kernel.text


def test_no_module_is_kept_of_an_operation_that_is_not_read():
    assert {one.stem for one in MODULES.glob("*.ttir")} == set(ttir.RULES)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("tt.future %0 : i32 loc(#loc1)", "kernel.py:7: the operation tt.future has no form on this device"),
        ("%1 = arith.addi %0, %0 : vector<4xi32> loc(#loc1)", "the type vector<4xi32> has no form on this device"),
        ("%1 = arith.constant dense<[1, 2]> : tensor<2xi32> loc(#loc1)", "kernel.py:7: the operation arith.constant is a constant of several"),
        ("%1 = arith.constant 1.0 : f4E2M1FN loc(#loc1)", "kernel.py:7: the operation arith.constant is not served: the element type f4E2M1FN"),
        ("%1 = tt.make_range {end = 4 : i32} : tensor<4xi32> loc(#loc1)", "kernel.py:7: the operation tt.make_range has no attribute start"),
    ],
)
def test_text_that_is_not_known_is_refused_by_name(line, error):
    with pytest.raises(ttir.Refused) as raised:
        emit.write(with_line(line, '"kernel.py":7:3'), "kernel", overlap=False)
    assert error in str(raised.value)


def with_line(line, location):
    """A module with one more line, which is at a location."""
    text = (MODULES / "tt.get_program_id.ttir").read_text()
    first, rest = text.split("    tt.return", 1)
    lines = f"{first}    {line}\n    tt.return{rest}".splitlines()
    return "\n".join([*(one for one in lines if not one.startswith("#loc1 ")), f"#loc1 = loc({location})", ""])


def test_a_function_of_elements_that_prints_is_refused():
    head, end = (MODULES / "tt.reduce.ttir").read_text().split("      tt.reduce.return", 1)
    printing = 'tt.print " x" {hex = false, isSigned = array<i32>} loc("kernel.py":7:3)\n'
    with pytest.raises(ttir.Refused, match="kernel.py:7: the operation tt.print stands in a function of elements, which does not know"):
        emit.write(f"{head}{printing}tt.reduce.return{end}", "kernel", overlap=False)


def test_the_line_of_an_operation_in_a_function_of_tritons_own_is_that_of_the_call():
    text = with_line("tt.future %0 : i32 loc(#loc1)", "callsite(#loc8 at #loc9)")
    text += '#loc8 = loc("/packages/triton/language/standard.py":5:1)\n#loc9 = loc("name"(#loc10))\n#loc10 = loc("kernel.py":8:2)\n'
    with pytest.raises(ttir.Refused, match="^kernel.py:8: the operation tt.future"):
        emit.write(text, "kernel", overlap=False)
