"""compile_layers: the same numbers and the same model, with few graphs; eager where it should be."""

from __future__ import annotations

import copy
import io
import logging
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import lookup_backend
from torch.utils.checkpoint import checkpoint

from speedruntime import _support, compile_layers

ROOT = Path(__file__).parents[2]
TOLERANCE = 1e-5
VOCABULARY = 61


class Backend:
    """aot_eager, counted."""

    def __init__(self) -> None:
        self.num_graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        self.num_graphs += 1
        return lookup_backend("aot_eager")(graph, inputs)


@pytest.fixture
def backend() -> Iterator[Backend]:
    torch._dynamo.reset()
    yield Backend()
    torch._dynamo.reset()


class Layer(nn.Module):
    def __init__(self, dim: int, index: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.index = index
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        query, key, value = (t.unsqueeze(1) for t in self.qkv(self.norm(hidden)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
        return hidden + self.dropout(self.out(mixed.squeeze(1)))


class Model(nn.Module):
    def __init__(self, num_layers: int = 3, dropout: float = 0.0, checkpointing: bool | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.use_reentrant = checkpointing
        self.embed = nn.Embedding(VOCABULARY, 24)
        self.layers = nn.ModuleList([Layer(24, index, dropout) for index in range(num_layers)])
        self.head = nn.Linear(24, VOCABULARY)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        hidden = self.embed(ids)
        if mask is not None:
            mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril() & mask[:, None, None, :].bool()
        for layer in self.layers:
            if self.use_reentrant is None or not self.training:
                hidden = layer(hidden, mask)
            else:
                hidden = checkpoint(layer, hidden, mask, use_reentrant=self.use_reentrant)
        return self.head(hidden)


def batch(num_samples: int, length: int, num_pads: int = 0) -> tuple[torch.Tensor, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(num_samples * 1000 + length)
    ids = torch.randint(VOCABULARY, (num_samples, length), generator=generator)
    if num_pads == 0:
        return ids, None
    mask = torch.ones_like(ids)
    mask[0, -num_pads:] = 0
    return ids, mask


def step(model: nn.Module, ids: torch.Tensor, mask: torch.Tensor | None = None) -> tuple[float, torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(7)
    loss = nn.functional.cross_entropy(model(ids, mask).flatten(0, 1), ids.roll(-1, 1).flatten())
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def assert_same_step(model: nn.Module, reference: nn.Module, *inputs: Any) -> None:
    loss, gradient = step(model, *inputs)
    expected_loss, expected = step(reference, *inputs)
    assert loss == pytest.approx(expected_loss, rel=TOLERANCE)
    assert ((gradient - expected).norm() / expected.norm()).item() <= TOLERANCE


def is_plain(model: nn.Module) -> bool:
    names = ("forward", "_replicate_for_data_parallel")
    return not any(name in layer.__dict__ for layer in model.layers for name in names)


LENGTHS = [(4, 17, 3), (4, 23, 0), (4, 9, 2), (3, 40, 0), (1, 12, 0), (4, 24, 5), (2, 31, 1), (1, 8, 2), (5, 11, 0)]


def test_d48_d49_checkpoint_keys(backend: Backend) -> None:
    model = Model()
    before = list(model.state_dict())
    assert compile_layers(model, backend=backend) is model
    step(model, *batch(2, 9))
    assert backend.num_graphs == 1
    assert list(model.state_dict()) == before
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in Model().named_parameters()]
    Model().load_state_dict(model.state_dict())
    model.load_state_dict(Model().state_dict())


def test_d50_classes_stay(backend: Backend) -> None:
    model = compile_layers(Model(), backend=backend)
    step(model, *batch(2, 9))
    assert {type(layer) for layer in model.layers} == {Layer}


def test_d51_hooks_fire(backend: Backend) -> None:
    fired: list[str] = []
    model = compile_layers(Model(), backend=backend)
    layer = model.layers[1]
    layer.register_forward_pre_hook(lambda *_: fired.append("before"))
    layer.register_forward_hook(lambda *_: fired.append("after"))
    layer.register_full_backward_hook(lambda *_: fired.append("backward"))
    step(model, *batch(2, 9))
    assert fired == ["before", "after", "backward"]
    assert backend.num_graphs > 0


@pytest.mark.parametrize("num_layers", [2, 12])
def test_d52_d53_two_graphs_for_any_length_depth_and_mask(backend: Backend, num_layers: int) -> None:
    model, reference = compile_layers(Model(num_layers), backend=backend), Model(num_layers)
    for shape in LENGTHS:
        assert_same_step(model, reference, *batch(*shape))
    assert backend.num_graphs == 2  # one with a mask, one without


@pytest.mark.parametrize("first", [(24, 24), (2, 24)], ids=["square", "as_wide_as_hidden"])
def test_d52_unlucky_first_shape(backend: Backend, first: tuple[int, int]) -> None:
    model = compile_layers(Model(), backend=backend)
    for shape in [first, (3, 17), (5, 40), (7, 33)]:
        assert_same_step(model, Model(), *batch(*shape))
    assert backend.num_graphs <= 2


def test_d52_batches_of_one(backend: Backend) -> None:
    model = compile_layers(Model(), backend=backend)
    for length in (9, 17, 30):
        assert_same_step(model, Model(), *batch(1, length))
    assert backend.num_graphs == 1


def test_d54_eager_without_grad_and_in_eval(backend: Backend) -> None:
    model = compile_layers(Model(), backend=backend)
    with torch.no_grad():
        model(*batch(2, 9))
    with torch.inference_mode():
        model(*batch(2, 10))
    model.eval()
    step(model, *batch(2, 11))
    assert backend.num_graphs == 0
    model.train()
    step(model, *batch(2, 9))
    with torch.no_grad():
        model.eval()(*batch(3, 13))
    model.train()
    step(model, *batch(2, 9))
    assert backend.num_graphs == 1


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_d55_checkpointing(backend: Backend, use_reentrant: bool) -> None:
    model = compile_layers(Model(checkpointing=use_reentrant), backend=backend)
    for shape in LENGTHS[:5]:
        assert_same_step(model, Model(checkpointing=use_reentrant), *batch(*shape))
    assert backend.num_graphs == 2


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_d55_recompute_takes_the_way_of_the_forward(use_reentrant: bool) -> None:
    """With inductor's own random numbers a recompute in the other mode would have another dropout mask."""
    num_runs = 0

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        code = lookup_backend("aot_eager")(graph, inputs)

        def run(*args: Any) -> Any:
            nonlocal num_runs
            num_runs += 1
            torch.rand(1)  # now the compiled code draws other numbers than the eager code
            return code(*args)

        return run

    torch._dynamo.reset()
    model = compile_layers(Model(dropout=0.5, checkpointing=use_reentrant), backend=backend)
    if use_reentrant:  # all of it eager
        reference = Model(dropout=0.5, checkpointing=True)
    else:
        reference = compile_layers(Model(dropout=0.5), backend=backend)
    assert_same_step(model, reference, *batch(2, 9))
    assert num_runs == (0 if use_reentrant else 9)  # forward and recompute of three layers, forward of the others


def test_d55_train_mode_validation_before_a_step(backend: Backend) -> None:
    model = compile_layers(Model(dropout=0.1), backend=backend)
    with torch.no_grad():
        model(*batch(2, 9))
    step(model, *batch(2, 9))
    assert backend.num_graphs == 1


def test_d58_lora_after_compile_layers(backend: Backend) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["qkv"], init_lora_weights=False)

    def make(order: str) -> nn.Module:
        model = Model()
        if order == "before":
            compile_layers(model, backend=backend)
        torch.manual_seed(1)
        model = peft.get_peft_model(model, config)
        return compile_layers(model, backend=backend) if order == "after" else model

    for order in ("before", "after"):
        model, reference, num_graphs = make(order), make("never"), backend.num_graphs
        for shape in LENGTHS[:4]:
            assert_same_step(model, reference, *batch(*shape))
        assert 1 <= backend.num_graphs - num_graphs <= 2


def test_d58_to_and_unfreeze_after_compile_layers(backend: Backend) -> None:
    model, reference = compile_layers(Model(), backend=backend), Model()
    for each in (model, reference):
        each.to(torch.float64)
    assert_same_step(model, reference, *batch(2, 9))
    for each in (model, reference):
        each.layers[0].requires_grad_(False)
    assert_same_step(model, reference, *batch(2, 9))
    for each in (model, reference):
        each.layers[0].requires_grad_(True)
    assert_same_step(model, reference, *batch(2, 9))


def test_d59_ddp_cuts_no_layer_into_pieces(backend: Backend, tmp_path: Any) -> None:
    distributed = torch.distributed
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(compile_layers(Model(), backend=backend), bucket_cap_mb=1e-3)
        for shape in LENGTHS[:4]:
            assert_same_step(model, Model(), *batch(*shape))
    finally:
        distributed.destroy_process_group()
    assert backend.num_graphs == 2


def test_d60_loss_parity_without_dropout(backend: Backend) -> None:
    model, reference = compile_layers(Model(), backend=backend), Model()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, reference)]
    for number in range(8):
        assert_same_step(model, reference, *batch(3, 10 + number))
        for optimizer in optimizers:
            optimizer.step()


def test_data_parallel_replicas_are_plain(backend: Backend) -> None:
    layer = compile_layers(Model(), backend=backend).layers[0]
    replica = layer._replicate_for_data_parallel()
    assert "forward" not in replica.__dict__
    assert replica.forward.__self__ is replica
    assert "forward" in copy.deepcopy(layer).__dict__


def test_pickle_and_deepcopy(backend: Backend) -> None:
    model = compile_layers(Model(), backend=backend)
    step(model, *batch(2, 9))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)]
    assert b"speedruntime" not in file.getvalue()
    for each in copies:
        with torch.no_grad():
            for parameter in each.parameters():
                parameter.mul_(1.5)
        reference = Model()
        reference.load_state_dict(each.state_dict())
        assert_same_step(each, reference, *batch(2, 9))
    assert_same_step(model, Model(), *batch(2, 9))
    num_graphs = backend.num_graphs
    step(compile_layers(copies[1], backend=backend), *batch(2, 9))
    assert backend.num_graphs == num_graphs + 1


def test_second_call_changes_nothing(backend: Backend) -> None:
    model = compile_layers(compile_layers(Model(), backend=backend), backend=backend)
    assert_same_step(model, Model(), *batch(2, 9))
    assert backend.num_graphs == 1


def test_two_towers_share_no_budget(backend: Backend) -> None:
    class TwoTowers(Model):
        def __init__(self) -> None:
            super().__init__()
            self.vision = nn.ModuleList([Layer(24, 0), Layer(24, 1)])

        def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            hidden = self.embed(ids[:, :3])
            for layer in self.vision:
                hidden = layer(hidden)
            return super().forward(ids, mask) + hidden.mean()

    model = compile_layers(TwoTowers(), backend=backend)
    for shape in LENGTHS:
        assert_same_step(model, TwoTowers(), *batch(*shape))
    assert backend.num_graphs == 3


def test_nested_lists_compile_the_blocks(backend: Backend) -> None:
    class Stage(nn.Module):
        def __init__(self, dim: int) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Layer(dim, 0), Layer(dim, 1)])

    stages, experts = nn.Module(), nn.Module()
    stages.stages = nn.ModuleList([Stage(8), Stage(16)])
    experts.layers = nn.ModuleList([Stage(8), Stage(8)])
    compile_layers(stages, backend=backend)
    compile_layers(experts, backend=backend)
    own = [[name for name, m in model.named_modules() if "forward" in m.__dict__] for model in (stages, experts)]
    assert own == [[f"stages.{i}.blocks.{j}" for i in (0, 1) for j in (0, 1)], ["layers.0", "layers.1"]]


def test_single_leaf_and_container_children_are_no_layers(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Module()
    model.single = nn.ModuleList([Layer(8, 0)])
    model.leaves = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
    model.bare = nn.ModuleList([nn.Sequential(nn.ReLU()), nn.Sequential(nn.ReLU())])
    compile_layers(model, backend=backend)
    assert not any("forward" in module.__dict__ for module in model.modules())
    assert messages(caplog) == ["compile_layers: off, no nn.ModuleList with two or more layers of one class"]


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def partition(model: nn.Module) -> None:
    for parameter in model.layers.parameters():
        parameter.ds_id = 0


def flatten(model: nn.Module) -> None:
    model.layers[0]._is_fsdp_managed_module = True


def quantise(model: nn.Module) -> None:
    class Linear4bit(nn.Linear):
        pass

    for layer in model.layers:
        layer.out.__class__ = Linear4bit


FACTS: list[tuple[Callable[[nn.Module], None], str]] = [
    (partition, "DeepSpeed ZeRO-3 partitions the parameters"),
    (flatten, "FSDP flattens the parameters (fully_shard, FSDP2, would not)"),
    (quantise, "the layers are quantised (test_compile.Linear4bit)"),
]


@pytest.mark.parametrize(("change", "reason"), FACTS, ids=lambda value: getattr(value, "__name__", ""))
def test_facts_known_only_at_the_first_forward(
    backend: Backend, caplog: pytest.LogCaptureFixture, change: Callable[[nn.Module], None], reason: str
) -> None:
    model = compile_layers(Model(), backend=backend)
    change(model)
    for shape in LENGTHS[:3]:
        assert_same_step(model, Model(), *batch(*shape))
    assert backend.num_graphs == 0
    assert is_plain(model)
    (message,) = messages(caplog)
    assert message.startswith("compile_layers: off for 3 x Layer in layers, ")
    assert message.split(", ", 1)[1].replace(__name__, "test_compile") == reason


def test_off_where_forward_is_patched(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    model.layers[1].forward = lambda hidden, mask=None: hidden
    compile_layers(model, backend=backend)
    step(model, *batch(2, 9))
    assert backend.num_graphs == 0
    assert messages(caplog) == [
        "compile_layers: off for 3 x Layer in layers, the layers' forward is patched on the instance"
    ]


def test_off_without_a_compiler(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(_support.shutil, "which", lambda name: None)
    model = compile_layers(Model())
    assert_same_step(model, Model(), *batch(2, 9))
    assert is_plain(model)
    assert messages(caplog) == [
        "compile_layers: off for 3 x Layer in layers, no C++ compiler was found (g++, g++, clang++, c++)"
    ]


@pytest.mark.parametrize("device", ["xla:0", "meta"])
def test_off_on_other_devices(device: str) -> None:
    reason = _support._device_blocker({torch.device(device)}, "inductor")
    assert reason == f"device type {device.split(':')[0]!r} is not one that torch.compile serves here"


def test_off_on_several_devices() -> None:
    devices = {torch.device("cuda:0"), torch.device("cuda:1")}
    assert _support._device_blocker(devices, "inductor") == "the layers lie on several devices (cuda:0, cuda:1)"


def test_off_on_an_old_torch(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(torch, "__version__", "1.13.1+cu117")
    model = compile_layers(Model())
    assert is_plain(model)
    assert messages(caplog) == ["compile_layers: off, torch 1.13.1+cu117 has no torch.compile (2.0 is needed)"]


def test_off_by_environment(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("SPEEDRUNTIME_DISABLE", "bucket,compile")
    assert is_plain(compile_layers(Model()))
    assert messages(caplog) == []


def test_a_failing_compiler_never_fails_the_run(caplog: pytest.LogCaptureFixture) -> None:
    def broken(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        raise RuntimeError("no such instruction")

    torch._dynamo.reset()
    model = compile_layers(Model(), backend=broken)
    for shape in LENGTHS:
        assert_same_step(model, Model(), *batch(*shape))
    (message,) = messages(caplog)
    assert message.startswith("compile_layers: eager for 3 x Layer in layers, the compiler failed: ")
    assert "no such instruction" in message


def test_a_backward_that_fails_to_compile_never_fails_the_run(caplog: pytest.LogCaptureFixture) -> None:
    def broken(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        raise RuntimeError("no such instruction")

    torch._dynamo.reset()
    model = compile_layers(Model(), backend=aot_autograd(fw_compiler=lambda graph, _: graph, bw_compiler=broken))
    for shape in LENGTHS[:3]:
        assert_same_step(model, Model(), *batch(*shape))
    (message,) = messages(caplog)
    assert message.endswith("the backward failed to compile: RuntimeError: no such instruction")


def test_a_graph_break_leaves_the_layer_eager(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    class Breaking(Layer):
        def forward(self, hidden: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            return super().forward(hidden * (2.0 if hidden.sum().item() > 0 else 1.0), mask)

    def make() -> Model:
        model = Model()
        for layer in model.layers:
            layer.__class__ = Breaking
        return model

    model = compile_layers(make(), backend=backend)
    for shape in LENGTHS[:3]:
        assert_same_step(model, make(), *batch(*shape))
    assert backend.num_graphs == 0
    assert len(messages(caplog)) == 1


def test_an_index_that_forward_reads_cannot_storm(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    class Indexed(Layer):
        def forward(self, hidden: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            return super().forward(hidden * (1 + self.index), mask)

    def make() -> Model:
        model = Model(12)
        for layer in model.layers:
            layer.__class__ = Indexed
        return model

    model = compile_layers(make(), backend=backend)
    for shape in LENGTHS[:3]:
        assert_same_step(model, make(), *batch(*shape))
    assert backend.num_graphs <= 2
    assert 1 <= len(messages(caplog)) <= 2


def test_an_error_of_the_model_stays_its_own(backend: Backend) -> None:
    model = compile_layers(Model(), backend=backend)
    step(model, *batch(2, 9))
    with pytest.raises(Exception, match=r"(?i)shape|size|expand|broadcast"):
        model.layers[0](torch.zeros(2, 9, 23, requires_grad=True))
    with pytest.raises(IndexError):
        model(torch.full((2, 9), VOCABULARY))
    assert_same_step(model, Model(), *batch(2, 9))


def test_an_outer_compile_traces_through(backend: Backend) -> None:
    model = compile_layers(Model(), backend="no such backend, so an inner compile would fail")
    outer = torch.compile(model, backend=backend, fullgraph=True)
    step(outer, *batch(2, 9))
    assert backend.num_graphs == 1


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 24)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return hidden + torch.relu(self.linear(hidden))


@pytest.mark.slow
def test_inductor() -> None:
    def make() -> Model:
        model = Model()
        torch.manual_seed(1)
        model.layers = nn.ModuleList([Small(), Small()])
        return model

    torch._dynamo.reset()
    model = compile_layers(make())
    for shape in [(2, 9), (3, 14), (2, 30)]:
        assert_same_step(model, make(), *batch(*shape))
    assert model.layers[0].__dict__["forward"].tower.num_graphs == 1


def llama() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, vocab_size=VOCABULARY
    )
    return transformers.LlamaForCausalLM(config).train()


def test_d49_d53_a_transformers_model_with_its_default_cache(backend: Backend, tmp_path: Any) -> None:
    model, reference = compile_layers(llama(), backend=backend), llama()
    for shape in LENGTHS[:6]:
        ids, mask = batch(*shape)
        mask = torch.ones_like(ids) if mask is None else mask
        outputs = [each(input_ids=ids, attention_mask=mask, labels=ids, use_cache=True) for each in (model, reference)]
        gradients = []
        for each, output in zip((model, reference), outputs, strict=True):
            each.zero_grad()
            output.loss.backward()
            gradients.append(torch.cat([p.grad.flatten() for p in each.parameters()]))
        torch.testing.assert_close(outputs[0].loss, outputs[1].loss, rtol=TOLERANCE, atol=0)
        assert ((gradients[0] - gradients[1]).norm() / gradients[1].norm()).item() <= TOLERANCE
        for ours, theirs in zip(*(o.past_key_values.layers for o in outputs), strict=True):
            torch.testing.assert_close(ours.keys, theirs.keys)
            torch.testing.assert_close(ours.values, theirs.values)
    assert backend.num_graphs == 2
    model.eval().generate(ids[:, :4], max_new_tokens=3, do_sample=False)
    assert backend.num_graphs == 2
    model.save_pretrained(tmp_path)
    assert list(type(model).from_pretrained(tmp_path).state_dict()) == list(reference.state_dict())


def test_a_cache_with_a_past_is_served_eagerly(backend: Backend) -> None:
    ids, _ = batch(2, 12)

    def two_parts(model: Any) -> torch.Tensor:
        past = model(input_ids=ids[:, :7], use_cache=True).past_key_values
        output = model(input_ids=ids[:, 7:], past_key_values=past, labels=ids[:, 7:])
        output.loss.backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    gradient, expected = two_parts(compile_layers(llama(), backend=backend)), two_parts(llama())
    assert ((gradient - expected).norm() / expected.norm()).item() <= TOLERANCE


DEEPSPEED = """
import logging, os, sys
os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[1])
import deepspeed, torch
from speedruntime import compile_layers, keep_fused
from tests.runtime.test_compile import Backend, Model, batch
# Not built for one process: it takes a minute, and a build that was killed leaves a lock that is waited for forever.
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
losses, graphs = {}, {}
for stage in (None, 0, 1, 2, 3):
    torch._dynamo.reset()
    model, backend = Model(), Backend()
    if stage is not None:
        compile_layers(model, backend=backend)
    optimizer = keep_fused(torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True))
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": stage or 0}}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    losses[stage] = []
    for length in (9, 14, 11):
        ids, _ = batch(2, length)
        loss = torch.nn.functional.cross_entropy(engine(ids).flatten(0, 1), ids.flatten())
        engine.backward(loss)
        engine.step()
        losses[stage].append(loss.item())
    graphs[stage] = backend.num_graphs
print("RESULT", graphs, max(abs(a - b) for run in losses.values() for a, b in zip(run, losses[None])))
"""


@pytest.mark.slow
def test_d78_deepspeed_stages(tmp_path: Any) -> None:
    pytest.importorskip("deepspeed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    done = subprocess.run([sys.executable, "-c", DEEPSPEED, port], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    result = next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    graphs, difference = result[len("RESULT ") :].rsplit(" ", 1)
    assert graphs == "{None: 0, 0: 1, 1: 1, 2: 1, 3: 0}"
    assert float(difference) < 1e-5
    assert "off for 3 x Layer in layers, DeepSpeed ZeRO-3 partitions the parameters" in done.stderr
