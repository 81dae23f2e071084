import sys

from edgefl.cli import run

sys.exit(run(["device", *sys.argv[1:]]))
