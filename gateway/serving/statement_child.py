"""The child process that makes the statements of a closed month: it reads one question from
standard input, and writes the files to standard output.
"""

from __future__ import annotations

import base64
import os
import sys

import msgspec

from gateway.composition import open_reports
from gateway.domain.reports.schedule import file_name
from gateway.errors import NothingFound, TollgateError
from gateway.reports.statements.files import StatementFormat, statement_file
from gateway.reports.statements.statement import StatementQuestion
from gateway.serving.statements import Made, Wanted
from gateway.settings import Settings

BELOW_THE_GATEWAY = 10  # more than the gateway's own niceness: callers come first


def main() -> int:
    """Answer one question; return 1, with the reason on standard error, if that is not possible."""
    os.nice(BELOW_THE_GATEWAY)
    wanted = msgspec.json.decode(sys.stdin.buffer.read(), type=Wanted)
    try:
        made = statements_of(wanted)
    except TollgateError as problem:
        print(problem.message, file=sys.stderr)
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(made))
    return 0


def statements_of(wanted: Wanted) -> list[Made]:
    """Return the statements of one cost centre, or of each, as PDF files. Raises
    `TollgateError`.
    """
    settings = Settings.model_validate_json(wanted.settings)
    asked = StatementQuestion(month=wanted.month, must_be_closed=True, close_version=wanted.version)
    with open_reports(settings) as reports, reports.statements(asked) as statements:
        centres = statements.cost_centres if wanted.cost_centre is None else (wanted.cost_centre,)
        if not centres:
            raise NothingFound(f"No cost centre has an amount in {wanted.month:%Y-%m}.")
        return [
            Made(
                name=file_name(
                    centre,
                    among=statements.cost_centres,
                    month=wanted.month,
                    version=wanted.version,
                    suffix=StatementFormat.PDF.value,
                ),
                media_type="application/pdf",
                content=base64.b64encode(
                    statement_file(statements.of(centre), StatementFormat.PDF)
                ).decode(),
            )
            for centre in centres
        ]


if __name__ == "__main__":
    sys.exit(main())
