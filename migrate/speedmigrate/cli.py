"""The command line (DESIGN 3). Everything heavier than click is imported by the command that needs it."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
from click_default_group import DefaultGroup

from speedmigrate import __version__
from speedmigrate.rule import EFFECTS, GOALS, Options, Rule, load_rules

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 118}
_FORMAT = click.Choice(["text", "json", "markdown"])


class _Cli(DefaultGroup):
    """The group's help is that of its default command, with the other commands below."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "PATH... [OPTIONS]")
        self.format_help_text(ctx, formatter)
        migrate.format_options(ctx, formatter)
        self.format_commands(ctx, formatter)  # type: ignore[no-untyped-call]  # click-default-group has no types


@click.group(cls=_Cli, default="migrate", no_args_is_help=True, context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="speedmigrate", message="%(prog)s %(version)s")
def cli() -> None:
    """Make a legacy training script faster: a reviewable patch, and why each line of it is right.

    PATH is a training script, a launch file (.sh, .yaml, .json), a folder or a repository. Nothing is ever imported or
    run, and nothing is written unless --write, --patch-dir or undo says so.

    \b
    Examples:
      speedmigrate train.py                          what would change, and why
      speedmigrate train.py --diff | git apply       the patch alone on stdout, the report on stderr
      speedmigrate train.py --only optimizer --diff  one goal: padding, compile, precision, optimizer
      speedmigrate train.py --effect exact --write   only what keeps the loss as it is, written in place
      speedmigrate . --patch-dir patches             a series for `git am`, one patch per goal and effect
      speedmigrate . --check                         exit 1 if anything is left to migrate (for CI)
      speedmigrate train.py --target arch=sm_90      what the patch may rely on; sm_90 allows FP8

    \b
    Effects: exact (same loss), order (same samples, batched differently), precision (fewer bits),
    corrects (the old code counted or attended padding).
    Exit: 0 done, 1 --check found something, 2 bad usage or a PATH that cannot be read.
    """


def _words(allowed: Callable[[], Sequence[str]], what: str) -> Callable[..., tuple[str, ...]]:
    """Return a click callback that splits a comma list and checks each word."""

    def split(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, ...]:
        words = tuple(word.strip() for word in (value or "").split(",") if word.strip())
        if value is not None and not words:
            raise click.BadParameter(f"expected one {what} or more, got {value!r}")
        known = allowed() if words else ()
        return tuple(_known(word, known, what) for word in words)

    return split


def _known(word: str, known: Sequence[str], what: str) -> str:
    by_lower = {name.lower(): name for name in known}
    if word.lower() in by_lower:
        return by_lower[word.lower()]
    close = get_close_matches(word.lower(), by_lower, 1, 0.5)
    hint = f"did you mean {by_lower[close[0]]}?" if close else f"expected one of {', '.join(known)}"
    raise click.BadParameter(f"unknown {what} {word!r}; {hint}")


def _selectable() -> Sequence[str]:
    return (*GOALS, *(word for rule in load_rules() for word in (rule.code, rule.name)))


def _target(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    from speedmigrate.target import parse_target

    if value is not None:
        try:
            parse_target(value)
        except ValueError as error:
            raise click.BadParameter(str(error).removeprefix("--target: ")) from error
    return value


@click.command(context_settings={"show_default": True})
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--diff", is_flag=True, help="Print only the patch on stdout, the report on stderr.")
@click.option("--write", is_flag=True, help="Write the changes, all or nothing; `undo` takes them back.")
@click.option("--check", is_flag=True, help="Exit 1 if anything is left to migrate.")
@click.option("--patch-dir", metavar="DIR", help="Write a series of patches for `git am`.")
@click.option("--root", metavar="DIR", help="Where code may be followed to.  [default: git root, else PATH's folder]")
@click.option("--only", metavar="GOAL|CODE,...", callback=_words(_selectable, "goal or rule"), help="Take only these.")
@click.option("--skip", metavar="GOAL|CODE,...", callback=_words(_selectable, "goal or rule"), help="Leave these out.")
@click.option(
    "--effect", metavar="LIST", callback=_words(lambda: EFFECTS, "effect"), help="Effects allowed.  [default: all]"
)
@click.option("--precision", type=click.Choice(["auto", "fp8", "bf16", "keep"]), default="auto", help="Number format.")
@click.option("--target", metavar="KEY=V,...", callback=_target, help="torch=2.4,transformers=4.41,arch=sm_80")
@click.option("--launch", metavar="GLOB", multiple=True, help="Launch files to edit, where an entry point has many.")
@click.option("--format", "form", type=_FORMAT, default="text", help="Form of the report.")
@click.option("-j", "jobs", type=click.IntRange(1), default=1, metavar="N", help="Processes; the result is the same.")
@click.option("--allow-dirty", is_flag=True, help="Let --write change a tree with uncommitted changes.")
def migrate(**given: Any) -> int:
    """Report, print or apply the changes of PATH... (the default command)."""
    _refuse_contradictions(given)
    from speedmigrate.migrate import Wish, run

    launch = tuple(given["launch"])
    return run(
        Wish(
            paths=tuple(given["paths"]),
            mode=next((mode for mode in ("diff", "write", "check") if given[mode]), "report"),
            patch_dir=given["patch_dir"],
            root=given["root"],
            only=given["only"],
            skip=given["skip"],
            effects=given["effect"] or EFFECTS,
            options=Options(precision=given["precision"], launch=launch),
            target=given["target"],
            form=given["form"],
            jobs=given["jobs"],
            allow_dirty=given["allow_dirty"],
        )
    )


def _refuse_contradictions(given: dict[str, Any]) -> None:
    """Raise a usage error where two options cannot both be meant."""
    modes = [f"--{name.replace('_', '-')}" for name in ("diff", "write", "check", "patch_dir") if given[name]]
    if len(modes) > 1:
        raise click.UsageError(f"{modes[0]} and {modes[1]} contradict each other; give one of them")
    if given["allow_dirty"] and not given["write"]:
        raise click.UsageError("--allow-dirty says nothing without --write")
    both = set(given["only"]) & set(given["skip"])
    if both:
        raise click.UsageError(f"--only and --skip both name {', '.join(sorted(both))}")
    if given["precision"] == "fp8" and "precision" in given["skip"]:
        raise click.UsageError("--precision fp8 and --skip precision contradict each other")


@click.command(context_settings={"show_default": True})
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="Form of the facts.")
@click.option("--root", metavar="DIR", help="Where code may be followed to.  [default: git root, else PATH's folder]")
@click.option("--target", metavar="KEY=V,...", callback=_target, help="torch=2.4,transformers=4.41,arch=sm_80")
def facts(paths: tuple[str, ...], form: str, root: str | None, target: str | None) -> int:
    """Print what is understood of the runs that PATH starts, each word with the place that it stands on.

    PATH is a training script, a launch file (.sh, .yaml, .json), a folder or a repository. Code is followed by imports,
    calls and values from the script to its data, padding, collate, loader, batch, model, loss, optimizer, number format
    and launch files; names of functions and variables count for nothing. Nothing is imported, run or written.

    \b
    Examples:
      speedmigrate facts train.py                the chain of one script, as a tree with file:line
      speedmigrate facts run.sh                  the scripts that a launch file starts
      speedmigrate facts .                       every entry point of a repository
      speedmigrate facts train.py --format json  for programs; the schema is chain/facts.schema.json

    \b
    Reading the tree:
      padding                                          a hop of the chain
        place: getitem, self.max_len (data.py:31)      question: word, what the code says (the decisive place)
          labels are filled up too (data.py:32)        more that the word stands on
          unknown: **kwargs is not followed (run.py:9) where the trail broke: for this branch nothing is claimed
        side: unknown: ... (data.py:40)                no word, because the code does not say it here

    \b
    Exit: 0 done, 2 bad usage or a PATH that cannot be read.
    """
    from speedmigrate.migrate import print_facts

    return print_facts(paths, root, target, form)


@click.command()
@click.option("--format", "form", type=_FORMAT, default="text", help="Form of the list.")
def rules(form: str) -> int:
    """List every rule with its goal and effect."""
    from speedmigrate.ruledocs import rules_list
    from speedmigrate.screen import write_text

    write_text(rules_list(load_rules(), form), sys.stdout)
    return 0


def _rule(_ctx: click.Context, _param: click.Parameter, value: str) -> Rule:
    by_word = {word: rule for rule in load_rules() for word in (rule.code, rule.name)}
    return by_word[_known(value, tuple(by_word), "rule")]


@click.command()
@click.argument("rule", metavar="CODE", callback=_rule)
def explain(rule: Rule) -> int:
    """Explain a rule, by its code or name: what it does, when it is refused, its effect, examples."""
    from speedmigrate.ruledocs import rule_page
    from speedmigrate.screen import write_text

    write_text(rule_page(rule), sys.stdout)
    return 0


@click.command()
@click.option("--root", metavar="DIR", help="The root that --write worked on.  [default: git root, else this folder]")
def undo(root: str | None) -> int:
    """Give the files that the last --write changed their old bytes back."""
    from speedmigrate.migrate import undo_last

    return undo_last(root)


for _command in (migrate, facts, rules, explain, undo):
    cli.add_command(_command)


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit code; whatever goes wrong is one line on stderr."""
    from speedmigrate.analyse import BUG
    from speedmigrate.screen import complain, prepare

    prepare()
    collect_rarely()
    try:
        code: int | None = cli.main(list(arguments), prog_name="speedmigrate", standalone_mode=False)
        return code or 0
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        complain(error.format_message())
        return 2
    except click.Abort:
        return 130
    except Exception as error:
        complain(f"{_origin(error)}: {type(error).__name__}: {error}; nothing more was done. {BUG}")
        return 2
    finally:
        _drop_unread_output()


def collect_rarely() -> None:
    """Let garbage be collected rarely: the syntax trees live to the end, and looking through them took 40 % of parsing.

    876 files of six repositories on CPython 3.11, two shared x86 cores: 5.8 CPU-s before, 3.5 after, 195 MB both.
    """
    gc.set_threshold(100_000, 50, 100)


def _origin(error: BaseException) -> str:
    """Return `module.py:line` of where an error of our own was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def _drop_unread_output() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
