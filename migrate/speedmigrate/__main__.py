"""Start the command; its own dependencies need a newer Python than the runtime that scripts import."""

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    if sys.version_info < (3, 10):  # noqa: UP036  # the wheel installs on 3.9
        print("speedmigrate: the command needs Python 3.10 or later (migrated scripts run on 3.9)", file=sys.stderr)
        sys.exit(2)
    from speedmigrate.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
