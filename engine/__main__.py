"""Runs `python -m engine` and exits with its code; the commands themselves are in
`command_line.py`.
"""

import sys

from engine.command_line import main

sys.exit(main())
