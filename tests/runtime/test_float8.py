"""convert_to_float8: which layers convert, and how far the numbers are off (through emulation)."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from speedruntime import _support, convert_to_float8, float8

pytest.importorskip("torchao")


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up_proj = nn.Linear(dim, 2 * dim, bias=False)
        self.down_proj = nn.Linear(2 * dim, dim)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.down_proj(torch.relu(self.up_proj(hidden)))


class Model(nn.Module):
    def __init__(self, dim: int = 64, vocabulary: int = 96) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList([Block(dim), Block(dim)])
        self.lm_head = nn.Linear(dim, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(ids)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.lm_head(hidden)


def converted(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if type(module).__name__ == "Float8Linear"]


def with_extra(name: str, module: nn.Module) -> Model:
    model = Model()
    model.layers[0].add_module(name, module)
    return model


LAYERS = ["layers.0.up_proj", "layers.0.down_proj", "layers.1.up_proj", "layers.1.down_proj"]


def sqnr(exact: torch.Tensor, got: torch.Tensor) -> float:
    return 20 * math.log10((exact.norm() / (exact - got).norm()).item())


def step(model: nn.Module) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    ids = torch.arange(48).reshape(2, 24) * 7 % 96
    logits = model(ids)
    nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten().roll(-1)).backward()
    return logits.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def test_d65_head_stays() -> None:
    model = convert_to_float8(Model(), emulate=True)
    assert converted(model) == LAYERS


def test_d65_tied_weights_stay_tied_and_unconverted() -> None:
    model = Model()
    model.layers[0].down_proj.weight = nn.Parameter(model.layers[1].down_proj.weight.detach())
    model.layers[1].down_proj.weight = model.layers[0].down_proj.weight
    model.lm_head.weight = model.embed.weight
    convert_to_float8(model, emulate=True, min_flop_share=0.0)
    assert converted(model) == ["layers.0.up_proj", "layers.1.up_proj"]
    assert model.lm_head.weight is model.embed.weight


def test_d65_head_is_known_by_its_size_too() -> None:
    model = Model()
    model.readout = model.lm_head
    del model.lm_head
    assert converted(convert_to_float8(model, emulate=True)) == LAYERS


@pytest.mark.parametrize("shape", [(64, 40), (40, 64)])
def test_d66_sizes_are_multiples_of_16(shape: tuple[int, int]) -> None:
    assert converted(convert_to_float8(with_extra("odd", nn.Linear(*shape)), emulate=True)) == LAYERS


def test_d66_any_number_of_tokens() -> None:
    model = convert_to_float8(Model(), emulate=True)
    assert all(m.config.pad_inner_dim for m in model.modules() if hasattr(m, "config"))
    model(torch.zeros(1, 7, dtype=torch.long)).sum().backward()


class Scaled(nn.Linear):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(hidden)


@pytest.mark.parametrize(
    "add",
    [
        lambda m: m.register_forward_hook(lambda *_: None),
        lambda m: m.register_forward_pre_hook(lambda *_: None),
        lambda m: m.register_full_backward_hook(lambda *_: None),
        lambda m: m.register_full_backward_pre_hook(lambda *_: None),
        lambda m: m.__dict__.update(forward=lambda hidden: hidden),
        lambda m: setattr(m, "__class__", Scaled),
    ],
    ids=["forward", "forward_pre", "backward", "backward_pre", "own_forward", "subclass"],
)
def test_d67_hooks_and_subclasses_stay(add: Callable[[nn.Module], Any]) -> None:
    model = Model()
    add(model.layers[0].up_proj)
    convert_to_float8(model, emulate=True, min_flop_share=0.0)
    assert converted(model) == LAYERS[1:]


def test_d68_rowwise_confines_an_outlier() -> None:
    def error(recipe: str) -> float:
        torch.manual_seed(0)
        layer, hidden = nn.Linear(64, 64, bias=False), torch.randn(32, 64)
        hidden[0] *= 1e6
        exact = layer(hidden)
        got = convert_to_float8(nn.Sequential(layer), recipe=recipe, emulate=True)(hidden)
        return ((exact - got)[1:].norm() / exact[1:].norm()).item()

    assert error("rowwise") < 0.06 < 0.5 < error("tensorwise")


@pytest.mark.parametrize("name", ["experts", "gate", "router"])
def test_d69_experts_and_routers_stay(name: str) -> None:
    extra = nn.ModuleList([nn.Linear(64, 64)]) if name == "experts" else nn.Linear(64, 64)
    model = convert_to_float8(with_extra(name, extra), emulate=True, min_flop_share=0.0)
    assert converted(model) == LAYERS


def test_d69_gate_proj_is_no_router() -> None:
    assert converted(convert_to_float8(with_extra("gate_proj", nn.Linear(64, 64)), emulate=True)) == [
        *LAYERS[:2],
        "layers.0.gate_proj",
        *LAYERS[2:],
    ]


def test_d70_lora_matrices_stay_whichever_comes_first() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=16, target_modules=["up_proj"])
    after = convert_to_float8(peft.get_peft_model(Model(), config), emulate=True)
    before = peft.get_peft_model(convert_to_float8(Model(), emulate=True), config)
    for model in (before, after):
        assert [name.replace(".base_layer", "")[len("base_model.model.") :] for name in converted(model)] == LAYERS
        _, grads = step(model)
        assert len(grads) == 4
        assert all("lora_" in name for name in grads)


def test_d71_sizes_come_from_the_attributes() -> None:
    model = Model()
    for layer in model.layers:
        layer.up_proj.weight = nn.Parameter(torch.empty(0))  # as under DeepSpeed's zero.Init
    assert converted(convert_to_float8(model, emulate=True)) == LAYERS


@pytest.mark.parametrize(
    ("recipe", "num_in", "num_out", "is_small"),
    [
        ("rowwise", 4096, 4096, False),
        ("rowwise", 2048, 4096, True),
        ("rowwise", 1024, 8192, True),
        ("rowwise", 4096, 2048, True),
        ("rowwise", 1040, 4112, False),
        ("tensorwise", 4096, 1024, True),
        ("tensorwise", 4096, 1040, False),
    ],
)
def test_d72_size_gate(recipe: str, num_in: int, num_out: int, is_small: bool) -> None:
    layer = nn.Linear(num_in, num_out, device="meta")
    assert (float8._size_reason(layer, recipe) is not None) is is_small


def test_d72_flop_share_gate(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "speedruntime"):
        model = convert_to_float8(Model(vocabulary=1600), emulate=True)
    assert converted(model) == []
    assert [r.getMessage() for r in caplog.records] == [
        "convert_to_float8: off, 24% of the linear FLOPs would convert, 60% are needed: "
        "an output head: 1 (lm_head, ...)"
    ]


def test_d73_says_what_it_converted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "speedruntime"):
        convert_to_float8(with_extra("vision_proj", nn.Linear(64, 64)), emulate=True)
    assert [r.getMessage() for r in caplog.records] == [
        "convert_to_float8: 4 of 6 linear layers, 76 % of their FLOPs, in float8 (rowwise); "
        "kept: in a vision or audio tower: 1 (layers.0.vision_proj, ...); an output head: 1 (lm_head, ...)"
    ]


@pytest.mark.parametrize("recipe", ["rowwise", "tensorwise"])
def test_sqnr_of_one_layer(recipe: str) -> None:
    def run(convert: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(128, 256))
        hidden, weights = torch.randn(48, 128, requires_grad=True), torch.randn(48, 256)
        output = (convert_to_float8(model, recipe=recipe, emulate=True) if convert else model)(hidden)
        (output * weights).sum().backward()
        return [output.detach(), hidden.grad, model[0].weight.grad]

    figures = [sqnr(exact, got) for exact, got in zip(run(False), run(True), strict=True)]
    assert all(20 < figure < 40 for figure in figures), figures


def test_sqnr_of_a_model() -> None:
    exact_logits, exact = step(Model())
    logits, grads = step(convert_to_float8(Model(), emulate=True))
    assert 20 < sqnr(exact_logits, logits) < 60
    assert grads.keys() == exact.keys()
    assert sqnr(torch.cat([g.flatten() for g in exact.values()]), torch.cat([g.flatten() for g in grads.values()])) > 20


def test_keys_and_parameters_stay() -> None:
    model = Model()
    state, parameters = model.state_dict(), dict(model.named_parameters())
    convert_to_float8(model, emulate=True)
    assert list(model.state_dict()) == list(state)
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())


def off_line(caplog: pytest.LogCaptureFixture, **options: Any) -> str:
    model = Model()
    with caplog.at_level(logging.INFO, "speedruntime"):
        assert convert_to_float8(model, **options) is model
    assert converted(model) == []
    (record,) = caplog.records
    return record.getMessage()


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_off_without_such_a_gpu(caplog: pytest.LogCaptureFixture) -> None:
    assert off_line(caplog) == "convert_to_float8: off, float8 needs a GPU of sm_89 or later, or an MI300"


@pytest.mark.parametrize(("capability", "is_on"), [((8, 0), False), ((8, 6), False), ((8, 9), True), ((9, 0), True)])
def test_hardware_gate(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], is_on: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert (_support.float8_blocker(emulate=False) is None) is is_on


def test_off_without_torchao(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(_support.importlib.util, "find_spec", lambda name: None)
    assert off_line(caplog, emulate=True) == (
        "convert_to_float8: off, torchao is not installed (pip install 'speedmigrate[fp8]')"
    )


def test_off_by_environment(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("SPEEDRUNTIME_DISABLE", "float8")
    assert off_line(caplog, emulate=True) == "convert_to_float8: off, SPEEDRUNTIME_DISABLE"


def test_import_is_light() -> None:
    code = (
        "import sys, speedruntime as rt; rt.compile_layers, rt.convert_to_float8, rt.keep_fused\n"
        "print([name for name in ('torchao', 'transformers', 'deepspeed') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
