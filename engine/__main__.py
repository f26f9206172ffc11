"""Entry point of `python -m engine`."""

import sys

from engine.command_line import main

sys.exit(main())
