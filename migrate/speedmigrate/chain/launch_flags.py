"""The settings that the goals need, with the value that wins in each command and where it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from speedmigrate.chain.fact import Fact
from speedmigrate.facts.entry import EntryFacts
from speedmigrate.facts.settings import Setting, winning
from speedmigrate.launch.commands import Flag
from speedmigrate.launch.find import Launch
from speedmigrate.rule import Hop

SETTINGS = (
    "bf16 fp16 tf32 precision mixed_precision optim torch_compile gradient_checkpointing deepspeed deepspeed_config "
    "fsdp per_device_train_batch_size gradient_accumulation_steps group_by_length pad_to_max_length model_max_length "
    "max_length max_seq_length load_in_8bit load_in_4bit"
).split()
_NUMBER = re.compile(r"-?[\d.]+(?:[eE][-+]?\d+)?")
_ORDER = ("command", "file", "set_defaults", "code", "default", "library")


def is_setting(flag: Flag) -> bool:
    """Say whether a flag sets something of the training: a known setting, or a number."""
    return flag.name.replace("-", "_") in SETTINGS or _NUMBER.fullmatch(flag.value or "") is not None


def flags(entry: EntryFacts, launches: Sequence[Launch]) -> Iterator[Fact]:
    """Yield each setting that something of the run has, once a value: what the user wrote before defaults."""
    found: dict[tuple[str, Setting], None] = {}
    for launch in launches or (None,):
        for name in SETTINGS:
            setting = winning(entry, launch, name)
            if setting is not None:
                found[name, setting] = None
    merged: dict[tuple[str, str, str | None], list[Hop]] = {}
    for name, setting in sorted(found, key=lambda pair: (_ORDER.index(pair[1].source), SETTINGS.index(pair[0]))):
        value = str(setting.value) if setting.known else None
        merged.setdefault((name, setting.source, value), []).append(setting.place)
    for (name, source, value), places in merged.items():
        known, unknown = (tuple(places), ()) if value is not None else ((), tuple(places))
        yield Fact("launch.flag", value, f"{name}, {source}", known, unknown)
