"""torch's own tests of collectives, as the installed torch carries them, on device tensors over the backend `outrigger`.

Taken are those that pass on three ranks with tensors of the CPU over Gloo. Left out, besides what needs CUDA, NCCL or four ranks:
`all_gather_coalesced`, which Gloo alone has; `isend` and `irecv`, where a request that has been waited for is done, which holds where
waiting blocks the host; sparse tensors; barriers that watch ranks of Gloo; DistributedDataParallel, which `test_distributed.py` has.
Tests of `torch.distributed.rpc` need agents that know CUDA alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import ranks

REDUCTIONS = [f"{kind}_{operator}" for operator in ("sum", "product", "min", "max") for kind in (
    "reduce", "reduce_full_group", "all_reduce", "all_reduce_full_group", "all_reduce_coalesced", "all_reduce_coalesced_full_group",
)]  # fmt: skip
TESTS = {
    "reductions": [*REDUCTIONS, "reduce_sum_twice", "all_reduce_sum_async", "all_reduce_sum_complex",
                   "all_reduce_complex_unsupported_ops", "all_reduce_coalesced_max_complex_unsupported"],  # fmt: skip
    "movements": ["send_recv", "send_recv_any_source", "send_recv_with_tag", "broadcast", "broadcast_full_group", "scatter_checks",
                  "scatter", "scatter_complex", "scatter_full_group", "gather_checks", "gather", "gather_full_group", "all_gather",
                  "all_gather_complex", "all_gather_full_group", "all_to_all_single_equal_split",
                  "all_to_all_single_equal_split_complex", "all_to_all_single_unequal_split",
                  "all_to_all_single_unequal_split_complex", "all_to_all_single_equal_split_full_group",
                  "all_to_all_single_unequal_split_full_group"],  # fmt: skip
}  # fmt: skip
SIZE = 3


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize("family", TESTS)
@pytest.mark.takes_turns
def test_torchs_own_tests_of_collectives(family: str, tmp_path: Path, device_type: str) -> None:
    names = [f"test_{name}" for name in TESTS[family]]
    outcomes = ranks.run(
        "rank_torchs.run",
        SIZE,
        tmp_path,
        OUTRIGGER_DISTRIBUTED="gloo",
        RANK_DEVICE=device_type,
        RANK_TESTS=" ".join(names),
        RANK_FOLDER=str(tmp_path),
    )
    assert outcomes == [[(name, "passed") for name in names]] * SIZE
