"""Shows a change of the books on a page: the button or the command to copy, the confirmation, the
progress and the result. `child` runs it.

Every change has an id from its confirmation on, and each id is started once: a second click on the
same button finds it running or done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import streamlit as st

from dashboard.display import inert
from dashboard.finance.child import EndedCommand, RunningCommand, shell_text
from dashboard.finance.permission import author, obstacle

_ASKED, _STARTED, _RUNNING, _ENDED = (
    f"books_{name}" for name in ("asked", "started", "now", "end")
)
_STATES = (_RUNNING, _ASKED, _ENDED)
LOOK_EVERY_S = 0.3
SHOWN = ("month", "state", "version", "total_usd", "events", "adjustments", "author", "sha256")


@dataclass(frozen=True, slots=True, kw_only=True)
class BooksChange:
    """A command of finance. `warning` is shown before it runs; None: it changes nothing and runs
    at once.
    """

    title: str
    arguments: tuple[str, ...]
    warning: str | None
    icon: str

    @property
    def command(self) -> str:
        """Return the command as a person types it."""
        return shell_text([word for word in self.arguments if word != "--yes"])


def offer(change: BooksChange, *, key: str, missing: str | None = None) -> None:
    """Show the button of a change, or its command if this page may not run it.

    `missing` names the input that the reader still has to give; the button is off until then.
    """
    if obstacle() is not None:
        st.code(change.command, language="bash", wrap_lines=True)
        return
    is_off = missing is not None or _is_busy()
    st.button(
        inert(change.title),
        key=key,
        icon=change.icon,
        disabled=is_off,
        on_click=_ask,
        args=(change,),
        help=missing,
    )
    if missing is not None:
        st.caption(missing)


def show_change() -> None:
    """Show the running change, or the one to confirm, or the result of the last one, as a dialog.

    On the page it would be out of sight: its button may stand a screen below or above it.
    """
    at_hand = [st.session_state[one] for one in _STATES if one in st.session_state]
    if at_hand:
        st.dialog(inert(at_hand[0][0].title), width="medium", on_dismiss=_dismiss)(_show_state)()


def _show_state() -> None:
    """Show the state of the change. A click in a dialog draws the dialog alone again, so one that
    ended the change draws the page.
    """
    if _RUNNING in st.session_state:
        _follow(*st.session_state[_RUNNING])
    elif _ASKED in st.session_state:
        _confirm(*st.session_state[_ASKED])
    elif _ENDED in st.session_state:
        _show_end(*st.session_state[_ENDED])
    else:
        st.rerun()


def _is_busy() -> bool:
    """Return True while a change runs or waits for its confirmation."""
    return _RUNNING in st.session_state or _ASKED in st.session_state


def _ask(change: BooksChange) -> None:
    """Ask for the confirmation of a change; start one that changes nothing at once."""
    if _is_busy():
        return
    st.session_state.pop(_ENDED, None)
    change_id = uuid4().hex
    st.session_state[_ASKED] = (change, change_id)
    if change.warning is None:
        _start(change_id)


def _start(change_id: str) -> None:
    """Start the change that was confirmed, unless a click before this one did."""
    asked = st.session_state.get(_ASKED)
    if asked is None or asked[1] != change_id or st.session_state.get(_STARTED) == change_id:
        return
    person = author()
    if person is None:
        return
    st.session_state[_STARTED] = change_id
    change = asked[0]
    del st.session_state[_ASKED]
    st.session_state[_RUNNING] = (change, RunningCommand(change.arguments, person=person))


def _dismiss() -> None:
    """Drop the change that waits for its confirmation, or the result of the last one."""
    st.session_state.pop(_ASKED, None)
    st.session_state.pop(_ENDED, None)


def _confirm(change: BooksChange, change_id: str) -> None:
    """Ask the reader to confirm a change."""
    st.write(change.warning)
    st.caption(f"In your name: {inert(author() or '')}. The same as:")
    st.code(change.command, language="bash", wrap_lines=True)
    with st.container(horizontal=True):
        st.button(
            f"Yes: {inert(change.title[:1].lower() + change.title[1:])}",
            key="books_yes",
            type="primary",
            on_click=_start,
            args=(change_id,),
        )
        st.button("Cancel", key="books_no", on_click=_dismiss)


def _follow(change: BooksChange, running: RunningCommand) -> None:
    """Show the progress of a running change, and draw the page again at its end."""
    with st.status(f"{inert(change.title)} …", expanded=True):
        newest = st.empty()
        while (end := running.wait(LOOK_EVERY_S)) is None:
            newest.caption(inert(running.newest_message) or "Started.")
    del st.session_state[_RUNNING]
    st.session_state[_ENDED] = (change, end)
    st.cache_data.clear()  # every figure may be another one now
    st.rerun()


def _show_end(change: BooksChange, end: EndedCommand) -> None:
    """Show the result of a change: its record, or the command's own error."""
    if end.is_good:
        st.success(f"{inert(change.title)}: done.", icon=":material/check_circle:")
    elif end.is_unsure:
        st.error(
            f"{inert(change.title)}: it is not known whether it was done. Look at the state of "
            "the month before you try again.",
            icon=":material/help:",
        )
    else:
        st.error(f"{inert(change.title)}: refused.", icon=":material/block:")
    if end.record is not None:
        _show_record(end.record)
    if end.messages:
        st.code(end.messages, language=None, wrap_lines=True)
    st.button("Close this message", key="books_forget", on_click=_dismiss)


def _show_record(record: Mapping[str, Any]) -> None:
    """Show the fields of a command's record that people read."""
    names: Sequence[str] = [name for name in SHOWN if name in record] or list(record)
    lines = [f"{name.replace('_', ' ')}: **{inert(str(record[name]))}**" for name in names]
    if record.get("differs"):
        lines.append(f"differs: **{inert(', '.join(record['differs']))}**")
    st.markdown("  \n".join(lines))
