"""Where the target comes from: `--target`, a vendored library, pins, defaults, and names that the code uses."""

from pathlib import Path

import pytest

from speedmigrate.pins import Read
from speedmigrate.source import SourceFile, decode
from speedmigrate.target import Target, detect_target, parse_target, raise_for_api


def reader(files: dict[str, str]) -> Read:
    def read(path: str) -> SourceFile | None:
        return decode(path, files[path].encode()) if path in files else None

    return read


def detect(files: dict[str, str], *, entry: str = "train.py", override: str | None = None) -> Target:
    return detect_target(Path("/root"), sorted(files), entry, reader(files), override=override)


def test_default() -> None:
    assert str(detect({"train.py": ""})) == "torch 2.1 (default), transformers 4.36 (default), sm_80 (default)"


def test_override_wins_over_pins_and_vendored_code() -> None:
    files = {"requirements.txt": "torch==2.0.1\n", "transformers/__init__.py": '__version__ = "4.30.0"\n'}
    target = detect(files, override="torch=2.4,arch=sm_90")
    assert str(target) == "torch 2.4 (--target), transformers 4.30 (transformers/__init__.py), sm_90 (--target)"
    assert target.arch_named


@pytest.mark.parametrize(
    "text", ["", "torch", "torch=", "torch=x", "torch=2", "jax=1.0", "arch=80", "torch=2.4;arch=sm_90"]
)
def test_override_that_is_not_one(text: str) -> None:
    with pytest.raises(ValueError, match=r"^--target: expected torch=2\.4, transformers=4\.41 or arch=sm_80, got .*$"):
        parse_target(text)


@pytest.mark.parametrize(
    ("specifier", "version", "place"),
    [
        ("==2.0.1", (2, 0, 1), "requirements.txt:2"),
        ("==2.0.0", (2, 0), "requirements.txt:2"),
        ("==2.0.1+cu118", (2, 0, 1), "requirements.txt:2"),
        ("~=2.2.0", (2, 2), "requirements.txt:2"),
        ("==2.2.*", (2, 2), "requirements.txt:2"),
        ("==1.*", (1, 13), "requirements.txt:2"),
        ("<2.3", (2, 2), "requirements.txt:2"),
        ("<=2.3", (2, 3), "requirements.txt:2"),
        ("<2.0", (1, 13), "requirements.txt:2"),
        ("<2.0.1", (2, 0), "requirements.txt:2"),
        (">=1.10,<2.2", (2, 1), "requirements.txt:2"),
        (" >= 2.4 ", (2, 4), "requirements.txt:2"),
        (">=2.4,!=2.5.0", (2, 4), "requirements.txt:2"),
        (">=1.10", (2, 1), "default"),
        ("==1.13.1 ; python_version < '3.11'", (1, 13, 1), "requirements.txt:2"),
        ("==2.0.1  # comment <1.0", (2, 0, 1), "requirements.txt:2"),
        ("", (2, 1), "default"),
        ("==", (2, 1), "default"),
    ],
)
def test_specifier(specifier: str, version: tuple[int, ...], place: str) -> None:
    target = detect({"requirements.txt": f"numpy==1.26\ntorch{specifier}\ntorchvision==0.15.0\n"})
    assert (target.torch, target.torch_from) == (version, place)


def test_names_that_only_look_alike_are_left() -> None:
    lines = [
        "torchvision==0.15",
        "pytorch-lightning==1.9",
        "torch-geometric==2.3",
        "sentence-transformers==2.2",
        "# torch==1.8",
    ]
    assert str(detect({"requirements.txt": "\n".join(lines)})) == str(Target())


@pytest.mark.parametrize(
    ("path", "text", "place"),
    [
        ("requirements.txt", "-f https://x.org/torch_stable\ntransformers[torch]==4.31.0\n", "requirements.txt:2"),
        ("requirements-train.txt", "transformers==4.31\n", "requirements-train.txt:1"),
        ("pyproject.toml", '[project]\ndependencies = [\n  "transformers==4.31.0",\n]\n', "pyproject.toml:3"),
        ("pyproject.toml", '[project]\ndependencies = ["torch", "transformers==4.31.0", "peft"]\n', "pyproject.toml:2"),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntransformers = "4.31.0"\n', "pyproject.toml:2"),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntransformers = "^4.31"\n', "pyproject.toml:2"),
        (
            "pyproject.toml",
            '[tool.poetry.dependencies]\ntransformers = {version = "~4.31", extras = ["x"]}\n',
            "pyproject.toml:2",
        ),
        ("setup.py", 'setup(\n    install_requires=["torch>=1.10", "transformers==4.31.0"],\n)\n', "setup.py:2"),
        ("setup.cfg", "[options]\ninstall_requires =\n    transformers==4.31.0\n", "setup.cfg:3"),
        ("environment.yml", "dependencies:\n  - pip:\n    - transformers==4.31.0\n", "environment.yml:3"),
        ("environment.yml", "dependencies:\n  - conda-forge::transformers=4.31=py310_0\n", "environment.yml:2"),
        (
            "requirements.txt",
            "git+https://github.com/huggingface/transformers@v4.31.0#egg=transformers\n",
            "requirements.txt:1",
        ),
    ],
)
def test_kinds_of_requirements_files(path: str, text: str, place: str) -> None:
    target = detect({path: text})
    assert (target.transformers, target.transformers_from) == ((4, 31), place)


def test_conda_calls_torch_pytorch() -> None:
    target = detect({"environment.yaml": "dependencies:\n  - pytorch=1.12.1\n  - pytorch-cuda=11.7\n"})
    assert (target.torch, target.torch_from) == ((1, 12, 1), "environment.yaml:2")


def test_nearest_file_that_names_the_library_wins() -> None:
    files = {
        "requirements.txt": "torch==1.13.1\ntransformers==4.28.1\n",
        "examples/sft/requirements.txt": "torch==2.2.0\n",
        "other/requirements.txt": "torch==1.8.0\ntransformers==4.20.0\n",
    }
    target = detect(files, entry="examples/sft/code/train.py")
    assert (target.torch, target.torch_from) == ((2, 2), "examples/sft/requirements.txt:1")
    assert (target.transformers, target.transformers_from) == ((4, 28, 1), "requirements.txt:2")


def test_vendored_library_wins_over_pins() -> None:
    files = {
        "requirements.txt": "transformers==4.40.0\n",
        "nlu/src/transformers/__init__.py": '"""Doc."""\n__version__ = "4.4.0.dev0"\n',
    }
    inside, outside = detect(files, entry="nlu/examples/run.py"), detect(files)
    assert (inside.transformers, inside.transformers_from) == ((4, 4), "nlu/src/transformers/__init__.py")
    assert (outside.transformers, outside.transformers_from) == ((4, 40), "requirements.txt:1")


def test_poetry_major_version_and_unreadable_ones() -> None:
    text = '[tool.poetry.dependencies]\ntorch = "^1"\ntransformers = "*"\n'
    assert detect({"pyproject.toml": text}).torch == (1, 13)
    assert (
        detect({"transformers/__init__.py": '__version__ = "main"\n', "requirements.txt": "torch==2.x\n"}) == Target()
    )


def test_folder_called_transformers_without_a_version_is_not_the_library() -> None:
    assert detect({"transformers/__init__.py": "from .model import Model\n"}) == Target()


def test_unreadable_requirements_are_left() -> None:
    assert detect_target(Path("/root"), ["requirements.txt"], "train.py", lambda path: None) == Target()


def test_raise_for_api() -> None:
    pinned = detect({"requirements.txt": "torch==2.0.1\n"})
    raised = raise_for_api(pinned, ["torch.amp.GradScaler", "processing_class", "eval_strategy", "unknown"])
    assert (raised.torch, raised.torch_from) == ((2, 3), "torch.amp.GradScaler is used")
    assert (raised.transformers, raised.transformers_from) == ((4, 46), "processing_class is used")


def test_what_the_user_said_and_what_is_vendored_is_not_raised() -> None:
    target = detect({"transformers/__init__.py": '__version__ = "4.30.0"\n'}, override="torch=2.0")
    assert raise_for_api(target, ["torch.amp.GradScaler", "dtype"]) == target
