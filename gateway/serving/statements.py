"""Makes the statements of a closed month in a child process, and sends them: reading a month and
drawing its pages takes seconds of CPU, which callers of this process would feel.
"""

from __future__ import annotations

import asyncio
import base64
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import date

import msgspec

from gateway.domain.alerts.delivery import AlertMessage, AttachedFile, NotDelivered
from gateway.domain.reports.schedule import DueStatement, Receiver, ReceiverKind
from gateway.providers.alerts.folder import write_files
from gateway.providers.alerts.mail import Mail
from gateway.providers.alerts.webhook import Webhook
from gateway.services.reports.statement_job import SendTo, StatementJob
from gateway.serving.context import ProcessContext
from gateway.settings import Settings
from gateway.storage.postgres.leadership import Leadership
from gateway.storage.postgres.locks import TableLock
from gateway.storage.reports.schedules import StatementDeliveries

CHILD = (sys.executable, "-P", "-m", "gateway.serving.statement_child")
RETRIED = "They are made again."
OF_DATABASE = {"home", "database_url", "reports_database_url"}


class Wanted(msgspec.Struct, frozen=True):
    """The question to the child process, as JSON; `settings` name this process's database."""

    settings: str
    month: date
    version: int
    cost_centre: str | None


class Made(msgspec.Struct, frozen=True):
    """One statement of the child process's answer, its content in base64."""

    name: str
    media_type: str
    content: str


def build_statement_job(context: ProcessContext) -> StatementJob:
    """Build the job that sends statements, without starting it."""

    async def make(due: DueStatement) -> Sequence[AttachedFile]:
        return await made_by_child(context.settings, due)

    def secret() -> str | None:
        version = context.policy()
        alerts = None if version is None else version.policy.alerts
        return None if alerts is None else alerts.secret

    database = context.stores.database
    return StatementJob(
        store=StatementDeliveries(database),
        make=make,
        senders=senders(
            Webhook(context.clock.now), Mail(context.settings.mail_account), secret=secret
        ),
        is_leader=Leadership(database, TableLock.LEADER_STATEMENTS).is_mine,
        clock=context.clock,
        draw=random.random,
        on_given_up=context.metrics.given_up_statements.inc,
    )


def senders(
    webhook: Webhook, mail: Mail, *, secret: Callable[[], str | None]
) -> Mapping[ReceiverKind, SendTo]:
    """Return the function that sends to each kind of receiver. `secret` returns the reference to
    the secret that signs webhooks, None without one.
    """

    async def to_folder(message: AlertMessage, receiver: Receiver) -> None:
        await write_files(message, receiver.place)

    async def to_webhook(message: AlertMessage, receiver: Receiver) -> None:
        await webhook.post(message, receiver.place, secret=secret())

    async def to_addresses(message: AlertMessage, receiver: Receiver) -> str | None:
        return await mail.mail(message, receiver.addresses)

    return {
        ReceiverKind.FOLDER: to_folder,
        ReceiverKind.WEBHOOK: to_webhook,
        ReceiverKind.EMAIL: to_addresses,
    }


async def made_by_child(settings: Settings, due: DueStatement) -> list[AttachedFile]:
    """Return the statements of a delivery as PDF files. Raises `NotDelivered`.

    The child ends with this call, also if that is cancelled.
    """
    wanted = Wanted(
        settings=settings.model_dump_json(include=OF_DATABASE),
        month=due.month,
        version=due.version,
        cost_centre=due.cost_centre,
    )
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*CHILD, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        out, errors = await child.communicate(msgspec.json.encode(wanted))
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode != 0:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise NotDelivered(f"{lines[-1] if lines else 'The statements were not made.'} {RETRIED}")
    return [
        AttachedFile(
            name=one.name, media_type=one.media_type, content=base64.b64decode(one.content)
        )
        for one in msgspec.json.decode(out, type=list[Made])
    ]
