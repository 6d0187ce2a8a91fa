"""keep_fused: the flags of the groups after a resume."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch

from speedruntime import _support, keep_fused

LR = 1e-3


def parameters(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(5, 7, generator=generator).to(dtype)) for _ in range(3)]


def train(optimizer: torch.optim.Optimizer, num_steps: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    for _ in range(num_steps):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator).to(weight.dtype)
        optimizer.step()
    return weights


def legacy_state(**options: Any) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(parameters(), lr=LR, **options)
    train(optimizer)
    return optimizer.state_dict()


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": False}])
def test_d76_flags_after_resume(options: dict[str, Any]) -> None:
    state = legacy_state(**options)
    plain = torch.optim.AdamW(parameters(), lr=LR, fused=True)
    plain.load_state_dict(copy.deepcopy(state))
    assert not plain.param_groups[0]["fused"], "torch keeps the flag now: keep_fused can go"
    kept = keep_fused(torch.optim.AdamW(parameters(), lr=LR, fused=True))
    for _ in range(2):
        kept.load_state_dict(copy.deepcopy(state))
        assert [(g["fused"], g["foreach"]) for g in kept.param_groups] == [(True, False)]


def test_d76_resumed_run_goes_on_as_the_old_one() -> None:
    state = legacy_state()
    old = torch.optim.AdamW(parameters(), lr=LR)
    new = keep_fused(torch.optim.AdamW(parameters(), lr=LR, fused=True))
    for optimizer in (old, new):
        optimizer.load_state_dict(copy.deepcopy(state))
    for a, b in zip(train(old), train(new), strict=True):
        torch.testing.assert_close(a, b, rtol=3e-7, atol=3e-7)
    assert {s["step"].item() for s in new.state.values()} == {6.0}


@pytest.mark.parametrize("step", [3, torch.tensor(3), torch.tensor(3.0, dtype=torch.float64)])
def test_d76_step_counts_of_old_checkpoints(step: Any) -> None:
    state = legacy_state()
    for entry in state["state"].values():
        entry["step"] = step
    optimizer = keep_fused(torch.optim.AdamW(parameters(), lr=LR, fused=True))
    optimizer.load_state_dict(state)
    assert {(s["step"].dtype, s["step"].item()) for s in optimizer.state.values()} == {(torch.float32, 3.0)}
    train(optimizer, 1)


def test_d77_fused_equals_default_in_fp32() -> None:
    fused = train(keep_fused(torch.optim.AdamW(parameters(), lr=LR, fused=True)), 20)
    default = train(torch.optim.AdamW(parameters(), lr=LR), 20)
    assert max((a - b).abs().max().item() for a, b in zip(fused, default, strict=True)) <= 3e-7


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_d78_class_stays_genuine(make: Any) -> None:
    optimizer = make(parameters(), lr=LR, fused=True)
    assert keep_fused(optimizer) is optimizer
    assert type(optimizer) is make


def test_d80_foreach_never_stays_beside_fused() -> None:
    optimizer = keep_fused(torch.optim.AdamW(parameters(), lr=LR, fused=True))
    optimizer.load_state_dict(legacy_state(foreach=True))
    train(optimizer)  # torch raises where both are set


def test_d82_groups_keep_their_own_settings() -> None:
    first, *rest = parameters()
    groups = [{"params": [first], "weight_decay": 0.0, "lr": 5e-4}, {"params": rest}]
    optimizer = keep_fused(torch.optim.AdamW(groups, lr=LR, weight_decay=0.1, eps=1e-6, fused=True))
    before = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    optimizer.load_state_dict(optimizer.state_dict())
    after = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    assert after == [{**group, "foreach": False} for group in before]


def test_without_the_hook_of_torch_2_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_support, "has_load_state_dict_hook", lambda optimizer: False)
    optimizer = keep_fused(torch.optim.AdamW(parameters(), lr=LR, fused=True))
    optimizer.load_state_dict(legacy_state())
    assert optimizer.param_groups[0]["fused"] is True
    assert type(optimizer) is torch.optim.AdamW


def test_an_unfused_optimizer_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    optimizer = torch.optim.AdamW(parameters(), lr=LR, foreach=True)
    with caplog.at_level(logging.INFO, "speedruntime"):
        assert keep_fused(optimizer) is optimizer
    optimizer.load_state_dict(legacy_state())
    assert not optimizer.param_groups[0]["fused"]
    assert [r.getMessage() for r in caplog.records] == [
        "keep_fused: AdamW was not made with fused=True, nothing to keep"
    ]
