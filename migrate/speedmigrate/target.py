"""The versions and the hardware that a patch is made for (DESIGN 2, "Target"), and where that knowledge came from."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from speedmigrate.pins import Read, Version, folders_above, pinned, trim, vendored

LIBRARIES = ("torch", "transformers")
# Names that exist from a version on; each with its source.
_SINCE: dict[str, tuple[str, Version]] = {
    "torch.amp.GradScaler": ("torch", (2, 3)),  # pytorch.org/docs/2.3/amp.html; absent from docs/2.2/amp.html
    "torch.nn.attention.sdpa_kernel": ("torch", (2, 3)),  # torch 2.3 release notes
    "torch.nn.RMSNorm": ("torch", (2, 4)),  # torch 2.4 release notes
    "torch.nn.attention.flex_attention": ("torch", (2, 5)),  # torch 2.5 release notes
    "torch.distributed.fsdp.fully_shard": ("torch", (2, 6)),  # torch 2.6 release notes
    "eval_strategy": ("transformers", (4, 41)),  # transformers 4.41 release notes: replaces evaluation_strategy
    "processing_class": ("transformers", (4, 46)),  # transformers 4.46 release notes: replaces Trainer's tokenizer
    "dtype": ("transformers", (4, 56)),  # transformers 4.56 release notes: replaces torch_dtype at from_pretrained
}


@dataclass(frozen=True, slots=True)
class Target:
    """torch, transformers and GPU architecture, each with the place it was read from.

    Attributes:
        arch_named: the user said `--target arch=...`; FP8 asks for that word.
    """

    torch: Version = (2, 1)
    transformers: Version = (4, 36)
    arch: int = 80
    arch_named: bool = False
    torch_from: str = "default"
    transformers_from: str = "default"
    arch_from: str = "default"

    @property
    def torch_said(self) -> str:
        """torch's version and where it was read, for reasons."""
        return f"{'.'.join(map(str, self.torch))} ({self.torch_from})"

    @property
    def old_transformers(self) -> str:
        """Why nothing of transformers can be relied on, where it is below 4.30; else nothing."""
        if self.transformers >= (4, 30) or self.transformers_from == "default":
            return ""
        version = ".".join(map(str, self.transformers))
        return f"transformers {version} ({self.transformers_from}) is below 4.30, the oldest that is supported here"

    def __str__(self) -> str:
        torch, transformers = (".".join(map(str, v)) for v in (self.torch, self.transformers))
        return (
            f"torch {torch} ({self.torch_from}), transformers {transformers} ({self.transformers_from}), "
            f"sm_{self.arch} ({self.arch_from})"
        )

    def version(self, library: str) -> Version:
        """Return the version of `torch` or `transformers`."""
        return self.torch if library == "torch" else self.transformers

    def source(self, library: str) -> str:
        """Return where the version of `torch` or `transformers` was read."""
        return self.torch_from if library == "torch" else self.transformers_from

    def move(self, library: str, version: Version, source: str) -> Target:
        """Return this target with another version of `torch` or `transformers`."""
        if library == "torch":
            return dataclasses.replace(self, torch=version, torch_from=source)
        return dataclasses.replace(self, transformers=version, transformers_from=source)


def detect_target(root: Path, files: Sequence[str], entry: str, read: Read, *, override: str | None = None) -> Target:
    """Return the target of an entry point: `--target` > a vendored library > the nearest pins > the defaults.

    Args:
        root: unused by the search itself; kept so that every reader of a repository is called alike.

    Raises:
        ValueError: `override` is not `torch=2.4,transformers=4.41,arch=sm_80` or a part of it.
    """
    paths, folders = frozenset(files), list(folders_above(entry))
    target = Target()
    for library in LIBRARIES:
        found = vendored(library, paths, folders, read) or pinned(
            library, paths, folders, read, target.version(library)
        )
        if found:
            target = target.move(library, *found)
    return parse_target(override, target) if override is not None else target


def parse_target(text: str, target: Target | None = None) -> Target:
    """Read a `--target` value over what is known otherwise.

    Raises:
        ValueError: with one line that says what was expected.
    """
    target = target or Target()
    for part in text.split(","):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key in LIBRARIES and re.fullmatch(r"[0-9]+(\.[0-9]+){1,2}", value):
            target = target.move(key, trim(tuple(map(int, value.split(".")))), "--target")
        elif key == "arch" and re.fullmatch(r"sm_[0-9]{2,3}", value):
            target = dataclasses.replace(target, arch=int(value[3:]), arch_named=True, arch_from="--target")
        else:
            raise ValueError(f"--target: expected torch=2.4, transformers=4.41 or arch=sm_80, got {part.strip()!r}")
    return target


def raise_for_api(target: Target, names: Iterable[str]) -> Target:
    """Return the target raised to the versions in which the names that the code uses exist.

    A version that the user gave or that is vendored stays. Names are qualified (`torch.amp.GradScaler`), or bare
    keywords that the caller found at TrainingArguments (`eval_strategy`), Trainer (`processing_class`) or
    from_pretrained (`dtype`).
    """
    for name in names:
        library, version = _SINCE.get(name, ("torch", (0,)))
        source = target.source(library)
        fixed = source == "--target" or source.endswith("/__init__.py")
        if not fixed and target.version(library) < version:
            target = target.move(library, version, f"{name} is used")
    return target
