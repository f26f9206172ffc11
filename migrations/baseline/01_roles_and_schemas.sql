-- The roles, their memberships, and the schemas. `tollgate` has the tables, `finance` the stable
-- views, `closed` the views of closed months, `team` and `team_closed` the rows of some teams. `db
-- upgrade` makes `tollgate`.

-- Roles belong to the whole server, so another database may have made them, or be making them right
-- now.
DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY[
        'tollgate_reader',       -- reads the views, for reports
        'tollgate_gateway',      -- serves requests
        'tollgate_admin',        -- may do the commands' work, and nothing else
        'tollgate_finance',      -- approves re-allocations and closes months
        'tollgate_team_reader'   -- reads the rows of some teams
    ] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = wanted) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;
            END;
        END IF;
        IF NOT pg_has_role(current_user, wanted, 'USAGE') THEN
            EXECUTE format('GRANT %I TO %I', wanted, current_user);
        END IF;
    END LOOP;
END
$$;

-- Commands and finance read reports as the reader. The reports' role may act as the reader of
-- teams, so each login of reports may: a transaction for a team begins by it. If this login may not
-- grant a role, an administrator grants it.
DO $$
DECLARE
    role text;
    member text;
    remedy text;
BEGIN
    FOR role, member, remedy IN VALUES
        ('tollgate_reader', 'tollgate_admin', 'grant both to who administers'),
        ('tollgate_reader', 'tollgate_finance', 'grant both to who approves'),
        ('tollgate_team_reader', 'tollgate_reader', 'grant it, or no team lead sees the dashboard')
    LOOP
        IF NOT pg_has_role(member, role, 'MEMBER') THEN
            BEGIN
                EXECUTE format('GRANT %I TO %I', role, member);
            EXCEPTION WHEN insufficient_privilege THEN
                RAISE NOTICE '% does not include %: %', member, role, remedy;
            END;
        END IF;
    END LOOP;
END
$$;

-- Not every login may make temporary tables: they fill the disk of the ledger. The gateway stages
-- the events that it writes in such tables, and commands book with the same statements. Only the
-- owner of the database may take the right away; elsewhere `db check` prints the SQL.
DO $$
BEGIN
    IF pg_has_role((SELECT datdba FROM pg_database WHERE datname = current_database()), 'USAGE') THEN
        EXECUTE format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', current_database());
        EXECUTE format('GRANT TEMPORARY ON DATABASE %I TO tollgate_gateway, tollgate_admin', current_database());
    END IF;
END
$$;

CREATE SCHEMA finance;
CREATE SCHEMA closed;
CREATE SCHEMA team;
CREATE SCHEMA team_closed;
