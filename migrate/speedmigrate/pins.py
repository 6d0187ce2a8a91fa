"""Read the versions that a repository pins: a vendored library, or the requirements file nearest the entry point."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion
from packaging.version import Version as Release

from speedmigrate.source import SourceFile

Version = tuple[int, ...]
Read = Callable[[str], SourceFile | None]

# The last minor release of each major one, for bounds such as `<2.0` or `<5`.
_LAST = {"torch": {0: 4, 1: 13, 2: 13}, "transformers": {2: 11, 3: 5, 4: 57, 5: 24}}
_REQUIREMENTS = re.compile(
    r"(?:.*[-_])?requirements?.*\.(?:txt|in)|pyproject\.toml|setup\.(?:py|cfg)|environment.*\.ya?ml"
)
_ORDER = ("requirements.txt", "requirements", "pyproject.toml", "setup.cfg", "setup.py", "environment")
_NAMED = re.compile(r"(?<![\w./-])(pytorch|torch|transformers)(?![\w.-])(?:\[[\w,\s-]*\])?\s*(?=([^\"'\n;]*))")
_SPECIFIER = re.compile(r"(?:[<>=!~^]=?=?\s*v?\d[\w.*+!-]*\s*,?\s*)+")
_TAG = re.compile(r"huggingface/transformers(?:\.git)?@v(\d+(?:\.\d+)+)")
_VERSION = re.compile(r"""^__version__\s*=\s*["']([^"']+)["']""", re.MULTILINE)


def folders_above(entry: str) -> Iterator[str]:
    folder = posixpath.dirname(entry)
    while folder:
        yield folder
        folder = posixpath.dirname(folder)
    yield ""


def vendored(library: str, paths: frozenset[str], folders: list[str], read: Read) -> tuple[Version, str] | None:
    for folder in folders:
        for below in (library, f"src/{library}"):
            path = posixpath.join(folder, below, "__init__.py")
            source = read(path) if path in paths else None
            match = _VERSION.search(source.text) if source else None
            version = _release(match[1]) if match else None
            if version:
                return version, path
    return None


def pinned(
    library: str, paths: frozenset[str], folders: list[str], read: Read, default: Version
) -> tuple[Version, str] | None:
    for folder in folders:
        beside = [path for path in paths if posixpath.dirname(path) == folder and _REQUIREMENTS.fullmatch(_name(path))]
        for path in sorted(beside, key=lambda path: (_rank(path), path)):
            source = read(path)
            for number, line in enumerate(source.text.splitlines() if source else (), 1):
                specifier = _requirement(library, line, path)
                version = _bound(library, specifier, default) if specifier else None
                if version:
                    return version, f"{path}:{number}" if version != default or not _only_lower(
                        specifier
                    ) else "default"
    return None


def _name(path: str) -> str:
    return posixpath.basename(path)


def _rank(path: str) -> int:
    return next((rank for rank, start in enumerate(_ORDER) if _name(path).startswith(start)), len(_ORDER))


def _requirement(library: str, line: str, path: str) -> str | None:
    """Return the specifier that a line of a requirements file gives a library, in pip's notation."""
    line = line.split("#")[0] if "git+" not in line else line
    tag = _TAG.search(line)
    if tag and library == "transformers":
        return f"=={tag[1]}"
    for match in _NAMED.finditer(line):
        if match[1].removeprefix("py") != library:
            continue
        rest = match[2].strip("() ")
        if rest.startswith("=") and not rest.startswith("==") and path.endswith((".yml", ".yaml")):
            return f"=={rest[1:].split('=')[0]}"
        if path.endswith("pyproject.toml") and not line[: match.start()].strip() and rest.startswith("="):
            return _poetry(line[match.end() :])
        specifier = _SPECIFIER.match(rest)
        if specifier:
            return specifier.group().strip(" ,")
    return None


def _poetry(text: str) -> str | None:
    """Return the specifier of `name = "^2.1"` or `name = {version = "2.1"}`."""
    match = re.match(r"""=\s*(?:\{.*?\bversion\s*=\s*)?["']([^"']+)["']""", text)
    bare = match[1].strip() if match else "*"
    if bare[:1].isdigit():
        return f"=={bare}"
    return None if bare == "*" else re.sub(r"^[\^~](?!=)\s*", "~=", bare)


def _only_lower(specifier: str | None) -> bool:
    return specifier is not None and all(part.strip().startswith((">", "!")) for part in specifier.split(","))


def _bound(library: str, specifier: str, default: Version) -> Version | None:
    """Return the version that a specifier pins, the newest below its upper bound, or the default raised by `>=`."""
    try:
        parts = [(spec.operator, spec.version) for spec in SpecifierSet(specifier)]
    except InvalidSpecifier:
        match = re.match(r"~=\s*(\d+)$", specifier)
        return _newest_below(library, (int(match[1]) + 1,)) if match else None
    pins = [_wildcard(library, version) for operator, version in parts if operator in ("==", "===", "~=")]
    if pins:
        return pins[0]
    upper = [
        release if operator == "<=" else _newest_below(library, release)
        for operator, version in parts
        if operator in ("<", "<=") and (release := _release(version))
    ]
    bounds = [bound for bound in upper if bound]
    if bounds:
        return min(bounds)
    lower = [release for operator, version in parts if operator in (">", ">=") and (release := _release(version))]
    return max(default, *lower) if lower else None


def _wildcard(library: str, version: str) -> Version | None:
    release = _release(version.removesuffix(".*"))
    return (
        _newest_below(library, (release[0] + 1,)) if release and version.count(".") == 1 and "*" in version else release
    )


def _newest_below(library: str, bound: Version) -> Version | None:
    major, minor, patch = (*bound, 0, 0)[:3]
    if patch:
        return trim((major, minor, patch - 1))
    if minor:
        return major, minor - 1
    last = _LAST[library].get(major - 1)
    return None if last is None else (major - 1, last)


def _release(text: str) -> Version | None:
    try:
        return trim(Release(text).release)
    except InvalidVersion:
        return None


def trim(version: Version) -> Version:
    """Return two or three numbers, a last 0 left out: `2.0.0` and `2.0` are the same target."""
    major, minor, patch = (*version, 0, 0)[:3]
    return (major, minor, patch) if patch else (major, minor)
