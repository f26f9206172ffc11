-- What each role may do. `migrations/rights.tsv` lists every right, and a test compares it with a
-- new database.

-- ---- nobody

-- Functions that roles call are granted below; the others are for triggers and for other functions.
REVOKE ALL ON FUNCTION
    closed.idle_costs(timestamptz, timestamptz), finance.idle_costs(timestamptz, timestamptz),
    finance.time_quantile(bigint[], double precision), team.idle_costs(timestamptz, timestamptz),
    team_closed.idle_costs(timestamptz, timestamptz), tollgate.adopt_ledger(),
    tollgate.append_audit(text, text, jsonb), tollgate.append_noted(), tollgate.attach_month(date),
    tollgate.audit_adjustments(), tollgate.audit_allocation(), tollgate.audit_changes(jsonb, jsonb),
    tollgate.audit_gpu_bill(), tollgate.audit_journal(), tollgate.audit_key(),
    tollgate.audit_month(), tollgate.audit_prices(), tollgate.audit_row(),
    tollgate.audit_truncate(), tollgate.audited(jsonb, text[]), tollgate.begin_close(date),
    tollgate.book_reallocation(), tollgate.budget_carried(text, timestamptz, timestamptz),
    tollgate.budget_charged(text, timestamptz, timestamptz, timestamptz, timestamptz, bigint),
    tollgate.budget_mistakes(), tollgate.budget_outside(text, timestamptz, timestamptz),
    tollgate.busy_rollup_of(timestamptz[]), tollgate.check_approval(),
    tollgate.check_currency_rate(), tollgate.check_reallocated(), tollgate.check_shares(),
    tollgate.end_leases(uuid, boolean), tollgate.ensure_month(date),
    tollgate.exchange_slices(uuid, jsonb, integer), tollgate.exchange_units(uuid, bigint, jsonb),
    tollgate.finish_close(date, timestamptz, jsonb, jsonb, text, bigint, bigint, numeric),
    tollgate.forget_idle_limits(), tollgate.is_closing(date), tollgate.is_gateway(),
    tollgate.live_idle_costs(timestamptz, timestamptz),
    tollgate.lock_budget_period(text, timestamptz, timestamptz, text),
    tollgate.make_immutable(regclass), tollgate.note_audit(text, text, jsonb, bigint, numeric),
    tollgate.note_budget_overlaps(text, timestamptz), tollgate.note_loss(),
    tollgate.open_budget_windows(jsonb), tollgate.posting_months(date[]),
    tollgate.refresh_days(integer, date), tollgate.refresh_hours(integer, timestamptz),
    tollgate.refresh_months(integer, date), tollgate.refuse_allocation(),
    tollgate.refuse_audit_change(), tollgate.refuse_fact(), tollgate.refuse_later_date(),
    tollgate.refuse_policy(), tollgate.refuse_reopening(), tollgate.refuse_true_up(),
    tollgate.refuse_writer(), tollgate.reopen_month(date, text), tollgate.require_begun_close(),
    tollgate.require_next_close(date), tollgate.set_aside(uuid, uuid, jsonb),
    tollgate.settle_holds(uuid, jsonb), tollgate.show_to_teams(regclass, text, text[]),
    tollgate.spend_rollup_of(timestamptz[]), tollgate.try_lock(text, text),
    tollgate.undo_losses(uuid), tollgate.units_granted(bigint, jsonb, bigint, bigint),
    tollgate.wait_for_lock(text)
    FROM PUBLIC;
REVOKE UPDATE, DELETE, TRUNCATE ON
    tollgate.usage_events, tollgate.adjustments, tollgate.prices, tollgate.price_entries, tollgate.deployment_prices
    FROM PUBLIC, tollgate_reader, tollgate_gateway;

-- ---- the reader of reports

GRANT USAGE ON SCHEMA finance, closed TO tollgate_reader;
GRANT SELECT ON ALL TABLES IN SCHEMA finance, closed TO tollgate_reader;
ALTER DEFAULT PRIVILEGES IN SCHEMA finance GRANT SELECT ON TABLES TO tollgate_reader;
GRANT EXECUTE ON FUNCTION
    finance.time_quantile(bigint[], double precision), finance.idle_costs(timestamptz, timestamptz),
    closed.idle_costs(timestamptz, timestamptz) TO tollgate_reader;

-- ---- the reader of teams; `show_to_teams` grants its views

GRANT USAGE ON SCHEMA team, team_closed, finance TO tollgate_team_reader;
GRANT EXECUTE ON FUNCTION
    finance.time_quantile(bigint[], double precision), team.idle_costs(timestamptz, timestamptz),
    team_closed.idle_costs(timestamptz, timestamptz) TO tollgate_team_reader;

-- ---- the gateway

GRANT USAGE ON SCHEMA tollgate TO tollgate_gateway;
GRANT SELECT ON
    tollgate.alembic_version, tollgate.api_keys, tollgate.policies, tollgate.periods, tollgate.price_entries,
    tollgate.usage_events_default, tollgate.month_closes, tollgate.ejections, tollgate.report_schedules
    TO tollgate_gateway;
GRANT SELECT, INSERT ON
    tollgate.usage_events, tollgate.adjustments, tollgate.dead_letters, tollgate.prices, tollgate.deployment_prices,
    tollgate.peppers, tollgate.demo_organisations TO tollgate_gateway;
GRANT SELECT, INSERT, UPDATE ON tollgate.journals TO tollgate_gateway;
-- The month alone: the gateway opens periods, it cannot make a closed one.
GRANT INSERT (month) ON tollgate.periods TO tollgate_gateway;
GRANT EXECUTE ON FUNCTION tollgate.ensure_month(date), tollgate.posting_months(date[]) TO tollgate_gateway;

-- Sums.
GRANT SELECT ON
    tollgate.spend_rollup, tollgate.spend_rollup_by_key, tollgate.busy_rollup, tollgate.dirty_days
    TO tollgate_gateway;
GRANT SELECT, INSERT ON tollgate.dirty_hours TO tollgate_gateway;
GRANT EXECUTE ON FUNCTION
    tollgate.spend_rollup_of(timestamptz[]), tollgate.busy_rollup_of(timestamptz[]),
    tollgate.refresh_hours(integer, timestamptz), tollgate.refresh_days(integer, date),
    tollgate.refresh_months(integer, date) TO tollgate_gateway;

-- It reads all of the budgets and moves money by the functions alone; rules and grants are not its
-- to make.
GRANT SELECT ON
    tollgate.budgets, tollgate.budget_periods, tollgate.leases, tollgate.budget_grants, tollgate.budget_losses,
    tollgate.budget_overlaps TO tollgate_gateway;
GRANT EXECUTE ON FUNCTION
    tollgate.exchange_slices(uuid, jsonb, integer), tollgate.settle_holds(uuid, jsonb),
    tollgate.end_leases(uuid, boolean), tollgate.undo_losses(uuid), tollgate.set_aside(uuid, uuid, jsonb),
    tollgate.budget_mistakes(), tollgate.budget_carried(text, timestamptz, timestamptz) TO tollgate_gateway;

GRANT SELECT, INSERT, UPDATE, DELETE ON tollgate.idempotency_claims, tollgate.engine_probes TO tollgate_gateway;
GRANT SELECT, INSERT, UPDATE ON
    tollgate.refusals, tollgate.refusal_counts, tollgate.budget_alerts, tollgate.alert_deliveries,
    tollgate.spike_alerts, tollgate.statement_deliveries, tollgate.gpu_hours TO tollgate_gateway;
GRANT SELECT, INSERT ON tollgate.spike_days TO tollgate_gateway;
GRANT SELECT, INSERT, DELETE ON tollgate.engine_samples TO tollgate_gateway;
GRANT INSERT (deployment, promised, stated, request_id, attempt) ON tollgate.ejections TO tollgate_gateway;
GRANT EXECUTE ON FUNCTION tollgate.exchange_units(uuid, bigint, jsonb) TO tollgate_gateway;

-- The right to lock. Functions take their locks as the owner.
GRANT UPDATE ON
    tollgate.lock_deployment_prices, tollgate.lock_adjustments, tollgate.lock_demo_organisations,
    tollgate.lock_engine_samples, tollgate.lock_leader_engines, tollgate.lock_leader_budget_alerts,
    tollgate.lock_leader_statements TO tollgate_gateway;
-- The locks are the only tables of `tollgate` that the gateway does not read.

-- ---- administration

-- Reading is not narrowed: the data are figures and digests, and `doctor` reads the next table too.
-- Reports read the live GPU cost through `finance.gpu_cost` alone.
GRANT USAGE ON SCHEMA tollgate TO tollgate_admin;
GRANT SELECT ON ALL TABLES IN SCHEMA tollgate TO tollgate_admin;
REVOKE SELECT ON tollgate.live_gpu_cost FROM tollgate_admin;
ALTER DEFAULT PRIVILEGES IN SCHEMA tollgate GRANT SELECT ON TABLES TO tollgate_admin;

-- Column by column: a key's digest, team and project are never its to change, nor is a policy, a
-- price or an adjustment once it is there. A month's books are locked by `posting_months`, which is
-- the owner's.
GRANT INSERT ON
    tollgate.policies, tollgate.policy_cost_centres, tollgate.policy_idle_rules, tollgate.policy_team_limits,
    tollgate.api_keys, tollgate.peppers, tollgate.prices, tollgate.deployment_prices, tollgate.price_entries,
    tollgate.budget_grants, tollgate.budget_periods, tollgate.adjustments, tollgate.dirty_hours, tollgate.true_ups,
    tollgate.gpu_bill_imports, tollgate.gpu_bill_lines, tollgate.gpu_bill_hours, tollgate.provider_bill_imports,
    tollgate.provider_bill_days, tollgate.provider_bill_lines TO tollgate_admin;
GRANT INSERT, UPDATE ON tollgate.budgets TO tollgate_admin;
GRANT UPDATE (revoked_at, revoked_by, paused_at, paused_by, expires_at) ON tollgate.api_keys TO tollgate_admin;
GRANT UPDATE (state, note, times_lost) ON tollgate.journals TO tollgate_admin;
GRANT UPDATE (resolved_at, resolved_by, resolution) ON tollgate.dead_letters TO tollgate_admin;
GRANT UPDATE (state, finished_at) ON tollgate.idempotency_claims TO tollgate_admin;
GRANT UPDATE (readmitted_at, readmitted_by, reason) ON tollgate.ejections TO tollgate_admin;
GRANT UPDATE (replaced_by) ON tollgate.gpu_bill_hours, tollgate.provider_bill_days TO tollgate_admin;
GRANT DELETE ON tollgate.report_schedules TO tollgate_admin;
GRANT INSERT (name, cost_centre, every, receiver, sent_to) ON tollgate.report_schedules TO tollgate_admin;
GRANT INSERT (currency, first_day, usd_per_unit, source) ON tollgate.currency_rates TO tollgate_admin;
GRANT EXECUTE ON FUNCTION
    tollgate.posting_months(date[]), tollgate.end_leases(uuid, boolean), tollgate.budget_mistakes(),
    tollgate.open_budget_windows(jsonb), tollgate.spend_rollup_of(timestamptz[]),
    tollgate.busy_rollup_of(timestamptz[]) TO tollgate_admin;
GRANT UPDATE ON
    tollgate.lock_policies, tollgate.lock_price_entries, tollgate.lock_deployment_prices,
    tollgate.lock_provider_bills, tollgate.lock_gpu_bills, tollgate.lock_adjustments TO tollgate_admin;

-- ---- finance, with administration

-- Column by column: the author, the approver and the moments are Postgres' own.
GRANT USAGE ON SCHEMA tollgate TO tollgate_finance;
GRANT INSERT (month, from_cost_centre, to_cost_centre, amount_nusd, reason) ON tollgate.reallocations
    TO tollgate_admin, tollgate_finance;
GRANT INSERT (reallocation_id, reason) ON tollgate.reallocation_approvals TO tollgate_admin, tollgate_finance;
GRANT EXECUTE ON FUNCTION
    tollgate.begin_close(date), tollgate.reopen_month(date, text),
    tollgate.finish_close(date, timestamptz, jsonb, jsonb, text, bigint, bigint, numeric)
    TO tollgate_admin, tollgate_finance;
-- Who closes reads the facts that the hash covers.
GRANT SELECT ON
    tollgate.usage_events, tollgate.adjustments, tollgate.true_ups, tollgate.prices, tollgate.policies,
    tollgate.month_closes, tollgate.closed_gpu_hours, tollgate.closed_idle_costs, tollgate.currency_rates,
    tollgate.reallocations, tollgate.reallocation_approvals TO tollgate_finance;

-- ---- the first months

SELECT tollgate.ensure_month((date_trunc('month', now() AT TIME ZONE 'UTC') + n * interval '1 month')::date)
    FROM generate_series(0, 3) AS n;
