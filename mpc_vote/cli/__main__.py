"""`python -m mpc_vote.cli`."""

import sys

from mpc_vote.cli import main

sys.exit(main())
