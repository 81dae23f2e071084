import sys


def main() -> None:
    try:
        from edgefl.cli.main import run_command

        sys.exit(run_command())
    except KeyboardInterrupt:  # while Python still imports
        sys.exit(130)


if __name__ == "__main__":
    main()
