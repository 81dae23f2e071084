"""Entry point of `python -m edgefl` and of the command `edgefl`."""

import sys


def main() -> None:
    """Run the command line and exit with its status."""
    try:
        from edgefl.cli.main import run_command

        sys.exit(run_command())
    except KeyboardInterrupt:  # Ctrl-C during the import
        sys.exit(130)


if __name__ == "__main__":
    main()
