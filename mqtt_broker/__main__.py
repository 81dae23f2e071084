import sys

from edgefl.cli import run

sys.exit(run(sys.argv[1:]))
