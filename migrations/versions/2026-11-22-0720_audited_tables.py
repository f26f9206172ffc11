"""The tables themselves record people's changes for the audit log, whatever program they use."""

from __future__ import annotations

from alembic import op

revision = "20261122_0720"
down_revision = "20261122_0710"
branch_labels = None
depends_on = None

# `current_user` inside these functions is their owner. `role` is the session's role, unless it acts
# as its login.
WHO = """
CREATE FUNCTION tollgate.is_gateway() RETURNS boolean
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
    AS $$
    SELECT CASE current_setting('role') WHEN 'none' THEN session_user::text ELSE current_setting('role') END
           = 'tollgate_gateway'
    $$;

CREATE FUNCTION tollgate.audit_changes(was jsonb, becomes jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
    AS $$
    SELECT jsonb_build_object(
        'was', jsonb_object_agg(key, was -> key), 'becomes', jsonb_object_agg(key, becomes -> key))
    FROM jsonb_object_keys(becomes) AS key WHERE was -> key IS DISTINCT FROM becomes -> key
    $$;

-- A row as the log may show it: columns that are secret or a whole document are named where they change, not shown.
CREATE FUNCTION tollgate.audited(content jsonb, hidden text[]) RETURNS jsonb
    LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
    AS $$
    SELECT content || coalesce((
        SELECT jsonb_object_agg(name, left(encode(sha256(convert_to(content ->> name, 'UTF8')), 'hex'), 16))
        FROM unnest(hidden) AS name WHERE content ? name), '{}')
    $$;
"""

# Arguments: the table's subject, the name of an insert, the column that names the subject, hidden
# columns.
ANY_TABLE = """
CREATE FUNCTION tollgate.audit_row() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    hidden text[] := TG_ARGV[3:];
    was jsonb := tollgate.audited(to_jsonb(OLD), hidden);
    becomes jsonb := tollgate.audited(to_jsonb(NEW), hidden);
    verb text := CASE TG_OP WHEN 'INSERT' THEN TG_ARGV[1] ELSE lower(TG_OP) END;
BEGIN
    IF was IS DISTINCT FROM becomes THEN
        PERFORM tollgate.note_audit(
            TG_ARGV[0] || '.' || verb, coalesce(was, becomes) ->> TG_ARGV[2],
            CASE TG_OP WHEN 'UPDATE' THEN tollgate.audit_changes(was, becomes)
                       ELSE jsonb_strip_nulls(coalesce(becomes, was) - hidden) END);
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION tollgate.audit_truncate() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    PERFORM tollgate.note_audit(TG_ARGV[0] || '.truncate', TG_TABLE_NAME, '{}');
    RETURN NULL;
END
$$;
"""

# A rotation makes one key and sets the end of another: one act, recorded for the replaced one.
KEYS = """
CREATE FUNCTION tollgate.audit_key() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    hidden text[] := '{digest}';
    was jsonb := tollgate.audited(to_jsonb(OLD), hidden);
    becomes jsonb := tollgate.audited(to_jsonb(NEW), hidden);
BEGIN
    IF TG_OP = 'INSERT' AND NEW.replaces IS NOT NULL THEN
        PERFORM tollgate.note_audit(
            'key.rotate', NEW.replaces, jsonb_build_object('new_key', jsonb_strip_nulls(becomes - 'digest')));
    ELSIF TG_OP = 'INSERT' THEN
        PERFORM tollgate.note_audit('key.create', NEW.key_id, jsonb_strip_nulls(becomes - 'digest'));
    ELSIF TG_OP = 'DELETE' THEN
        PERFORM tollgate.note_audit('key.delete', OLD.key_id, jsonb_strip_nulls(was - 'digest'));
    ELSE
        PERFORM tollgate.note_audit(
            CASE
                WHEN OLD.revoked_at IS NULL AND NEW.revoked_at IS NOT NULL THEN 'key.revoke'
                WHEN OLD.paused_at IS NULL AND NEW.paused_at IS NOT NULL THEN 'key.pause'
                WHEN OLD.paused_at IS NOT NULL AND NEW.paused_at IS NULL THEN 'key.resume'
                WHEN EXISTS (SELECT FROM tollgate.audit_notes WHERE xact = pg_current_xact_id()
                             AND action = 'key.rotate' AND subject = NEW.key_id) THEN 'key.rotate'
                WHEN OLD.expires_at IS DISTINCT FROM NEW.expires_at THEN 'key.expire'
                ELSE 'key.update'
            END, OLD.key_id, jsonb_build_object('team', NEW.team) || tollgate.audit_changes(was, becomes));
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER api_keys_noted_for_audit AFTER INSERT OR DELETE ON tollgate.api_keys
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_key();
CREATE TRIGGER api_keys_change_noted_for_audit AFTER UPDATE ON tollgate.api_keys
    FOR EACH ROW WHEN (OLD IS DISTINCT FROM NEW) EXECUTE FUNCTION tollgate.audit_key();
"""

# Adjustments and prices come in thousands: those of one kind are one act, with their number and
# their sum.
MANY_ROWS = """
CREATE FUNCTION tollgate.audit_adjustments() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    book record;
BEGIN
    FOR book IN
        SELECT kind, posted_period, count(*) AS entries, sum(amount_nusd) AS amount_nusd,
               CASE kind WHEN 'reprice' THEN to_char(posted_period, 'YYYY-MM')
                         WHEN 'lost_journal' THEN coalesce(substring(reason FROM '^journal ([0-9a-f-]{36}): '), team)
                         ELSE coalesce(request_id || '/' || attempt, team) END AS subject,
               CASE WHEN kind IN ('reprice', 'lost_journal') THEN NULL ELSE reason END AS reason
        FROM booked
        -- What a gateway books by itself is its daily work: its rules decided it, nobody did.
        WHERE NOT (tollgate.is_gateway()
                   AND kind IN ('redelivery', 'expired_hold', 'engine_counters', 'lost_journal'))
        GROUP BY 1, 2, 5, 6 ORDER BY 5
    LOOP
        PERFORM tollgate.note_audit(
            CASE book.kind WHEN 'reprice' THEN 'price.reprice' WHEN 'lost_journal' THEN 'journal.lost'
                           ELSE 'adjustment.' || book.kind END,
            book.subject,
            jsonb_strip_nulls(jsonb_build_object(
                'posted_period', to_char(book.posted_period, 'YYYY-MM'), 'booked_as', book.reason)),
            entries => book.entries, amount_nusd => book.amount_nusd);
    END LOOP;
    RETURN NULL;
END
$$;
-- Its name comes after `adjustments_move_budgets`: so that budgets are locked first, and the audit log last.
CREATE TRIGGER adjustments_noted_for_audit AFTER INSERT ON tollgate.adjustments
    REFERENCING NEW TABLE AS booked FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_adjustments();

CREATE FUNCTION tollgate.audit_prices() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    PERFORM tollgate.note_audit(
        'price.add', coalesce(deployment, concat_ws('/', provider, model)),
        jsonb_strip_nulls(to_jsonb(added)), entries => 1)
    FROM added WHERE origin <> 'list' ORDER BY entry_id;
    PERFORM tollgate.note_audit('price.import', source, jsonb_build_object('author', author), entries => count(*))
    FROM added WHERE origin = 'list' GROUP BY source, author ORDER BY source;
    RETURN NULL;
END
$$;
CREATE TRIGGER price_entries_noted_for_audit AFTER INSERT ON tollgate.price_entries
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_prices();
"""

# A gateway gives up a silent journal by rule; only an operator's declaration is an act.
OTHERS = """
CREATE TRIGGER policies_noted_for_audit AFTER INSERT OR UPDATE OR DELETE ON tollgate.policies
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_row('policy', 'apply', 'version', 'document');
CREATE TRIGGER budget_grants_noted_for_audit AFTER INSERT OR UPDATE OR DELETE ON tollgate.budget_grants
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_row('budget', 'grant', 'account_id');
CREATE TRIGGER budgets_noted_for_audit AFTER INSERT OR UPDATE OR DELETE ON tollgate.budgets
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_row('budget_rule', 'create', 'rule_id');
CREATE TRIGGER peppers_noted_for_audit AFTER INSERT OR UPDATE OR DELETE ON tollgate.peppers
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_row('pepper', 'register', 'pepper_id');
CREATE TRIGGER dead_letters_noted_for_audit AFTER UPDATE OR DELETE ON tollgate.dead_letters
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_row('dead_letter', '', 'id', 'document');
CREATE TRIGGER periods_noted_for_audit AFTER UPDATE OR DELETE ON tollgate.periods
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_row('month', '', 'month');
CREATE TRIGGER closed_periods_noted_for_audit AFTER INSERT ON tollgate.periods
    FOR EACH ROW WHEN (NEW.state <> 'open') EXECUTE FUNCTION tollgate.audit_row('month', 'create', 'month');

CREATE FUNCTION tollgate.audit_journal() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    IF NOT tollgate.is_gateway() THEN
        PERFORM tollgate.note_audit(
            'journal.lost', NEW.id::text, jsonb_strip_nulls(jsonb_build_object(
                'replica', NEW.replica, 'note', NEW.note, 'heartbeat', OLD.heartbeat, 'written', OLD.written)));
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER journals_noted_for_audit AFTER UPDATE ON tollgate.journals
    FOR EACH ROW WHEN (NEW.state = 'lost' AND OLD.state <> 'lost') EXECUTE FUNCTION tollgate.audit_journal();
CREATE TRIGGER journals_removal_noted_for_audit AFTER DELETE ON tollgate.journals
    FOR EACH ROW EXECUTE FUNCTION tollgate.audit_row('journal', '', 'id');
"""

EMPTIED = "".join(
    f"CREATE TRIGGER {table}_emptying_noted_for_audit AFTER TRUNCATE ON tollgate.{table}\n"
    f"    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.audit_truncate('{noun}');\n"
    for table, noun in {
        "policies": "policy",
        "api_keys": "key",
        "budget_grants": "budget",
        "budgets": "budget_rule",
        "peppers": "pepper",
        "dead_letters": "dead_letter",
        "periods": "month",
        "journals": "journal",
    }.items()
)

GRANTS = """
REVOKE ALL ON FUNCTION tollgate.audit_row(), tollgate.audit_truncate(), tollgate.audit_key(),
    tollgate.audit_adjustments(), tollgate.audit_prices(), tollgate.audit_journal(), tollgate.is_gateway(),
    tollgate.audit_changes(jsonb, jsonb), tollgate.audited(jsonb, text[]) FROM PUBLIC;
"""

STEPS = (WHO, ANY_TABLE, KEYS, MANY_ROWS, OTHERS, EMPTIED, GRANTS)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = (
        op.get_bind().connection.cursor()
    )  # the driver's own: many statements at once, and % as it stands
    for step in STEPS:
        cursor.execute(step)
