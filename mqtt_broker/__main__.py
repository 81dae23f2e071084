import sys

from edgefl.cli.main import run

sys.exit(run(sys.argv[1:]))
