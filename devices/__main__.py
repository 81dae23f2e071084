import sys

from edgefl.cli.main import run

sys.exit(run(["device", *sys.argv[1:]]))
