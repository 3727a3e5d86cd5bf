-- Makes PostgreSQL refuse the writes of a leader that was replaced, for applications that write into a database which
-- is elsewhere: not the one that the leader itself runs.
--
--   psql -v ON_ERROR_STOP=1 -f fence.sql                              once, as the owner of the database
--   SELECT tiebreak.protect('orders', 'shop');                        for each table; 'shop' is the resource
--
-- and the writer, in each transaction, with the token of its lease (Lease::token, TIEBREAK_TOKEN):
--
--   BEGIN; SET LOCAL tiebreak.token = '30064771072'; INSERT INTO orders …; COMMIT;
--
-- A transaction with a token below the highest that the resource has seen fails (SQLSTATE TB001), as does one without
-- a token (TB002) or with a broken one (TB003). Whoever reads needs none.
-- But what a leader reads before its first write may be from before its predecessor's last commit, and so may what its first
-- statement itself reads (INSERT … SELECT, UPDATE … WHERE). So raise the token first, with a statement of its own that changes
-- nothing (DELETE FROM orders WHERE false), commit, and read then.
--
-- Why nothing slips through: a writer locks the row of its resource in share mode until it commits, and raising the
-- token takes that row for itself. So a higher token is admitted only when every transaction with a lower one has ended,
-- and the ones that come later see it. Under REPEATABLE READ and SERIALIZABLE a transaction that loses such a race fails
-- with 40001 and is to be tried again, as always there.
--
-- And nobody is starved: who raises the token waits in one line with all who come (an advisory lock for each resource, of
-- the class 7230), so a replaced writer that goes on and on is let through no more once its successor waits.
--
-- The price: a replaced leader that hangs with an open transaction holds up its successor. Give the writers' role an end
-- for that, no longer than the lease, and let it prepare no transactions (PREPARE TRANSACTION), which no time-out ends:
--
--   ALTER ROLE app SET idle_in_transaction_session_timeout = '2s';
--   ALTER ROLE app SET tcp_user_timeout = '5s';   ALTER ROLE app SET statement_timeout = '10s';
--
-- What passes by it: superusers and owners can drop or disable the triggers. So could a role with the privilege TRIGGER,
-- which GRANT ALL includes: tiebreak.protect refuses a table on which another role has it. Do not grant it later. What is done
-- outside of protected tables (other tables, sequences, large objects, files) is not looked at. Children made by INHERIT need
-- tiebreak.protect of their own; partitions that exist are protected with their parent, later ones when it is called again.
-- What logical replication brings from elsewhere bears no token, and is refused: a protected table is no table to subscribe to.

BEGIN;

CREATE SCHEMA IF NOT EXISTS tiebreak;

CREATE TABLE IF NOT EXISTS tiebreak.fence (
    resource text PRIMARY KEY,
    -- 64 bits without a sign.
    token numeric(20) NOT NULL CHECK (token BETWEEN 0 AND 18446744073709551615)
);

-- Lets the transaction go on if its token is not below the highest that the resource has seen, and keeps it from
-- being overtaken until it ends.
CREATE OR REPLACE FUNCTION tiebreak.admit(resource text, token numeric) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    highest numeric;
    line CONSTANT int := hashtext(admit.resource);
BEGIN
    LOOP
        -- Who raises the token goes first as soon as those before it have ended, and all others are behind it.
        SELECT f.token INTO highest FROM tiebreak.fence f WHERE f.resource = admit.resource;
        IF highest >= admit.token THEN
            PERFORM pg_advisory_xact_lock_shared(7230, line);
        ELSE
            PERFORM pg_advisory_xact_lock(7230, line);
        END IF;
        SELECT f.token INTO highest FROM tiebreak.fence f WHERE f.resource = admit.resource;
        IF NOT FOUND THEN
            INSERT INTO tiebreak.fence VALUES (admit.resource, admit.token) ON CONFLICT DO NOTHING;
            IF FOUND THEN
                RETURN;
            END IF;
            CONTINUE;
        END IF;
        IF highest < admit.token THEN
            -- Not by way of a share lock: two who both had one would wait for one another.
            UPDATE tiebreak.fence f SET token = admit.token
            WHERE f.resource = admit.resource AND f.token < admit.token;
            IF FOUND THEN
                RETURN;
            END IF;
            CONTINUE;
        END IF;
        IF highest = admit.token THEN
            SELECT f.token INTO highest FROM tiebreak.fence f WHERE f.resource = admit.resource FOR SHARE;
            IF highest = admit.token THEN
                RETURN;
            END IF;
        END IF;
        RAISE EXCEPTION 'token % is stale: a writer with token % was here', admit.token, highest
            USING ERRCODE = 'TB001', HINT = 'This writer was replaced and has to stop; trying again does not help.';
    END LOOP;
END
$$;

-- The triggers: the argument is the resource.
CREATE OR REPLACE FUNCTION tiebreak.check_token() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    given text := current_setting('tiebreak.token', true);
BEGIN
    IF given IS NULL OR given = '' THEN
        RAISE EXCEPTION 'this transaction bears no token, and %.% takes none without', TG_TABLE_SCHEMA, TG_TABLE_NAME
            USING ERRCODE = 'TB002', HINT = 'SET LOCAL tiebreak.token = ''…'' with the token of the lease.';
    END IF;
    IF given !~ '^[0-9]{1,20}$' OR given::numeric > 18446744073709551615 THEN
        RAISE EXCEPTION '% is no token', quote_literal(left(given, 40))
            USING ERRCODE = 'TB003', HINT = 'A token is a whole number of 64 bits, in decimal digits.';
    END IF;
    PERFORM tiebreak.admit(TG_ARGV[0], given::numeric);
    RETURN NULL;
END
$$;

-- Protects a table, and the partitions that it has now. Calling it again changes the resource.
CREATE OR REPLACE FUNCTION tiebreak.protect(target regclass, resource text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    part regclass;
    grantee text;
BEGIN
    FOR part IN SELECT target UNION SELECT p.relid FROM pg_partition_tree(target) p LOOP
        SELECT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END INTO grantee
        FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid = part AND a.privilege_type = 'TRIGGER' AND a.grantee <> c.relowner LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION '% may change the triggers of %, and so switch the check off', grantee, part
                USING ERRCODE = 'TB004', HINT = format('REVOKE TRIGGER ON %s FROM %s;', part, grantee);
        END IF;
        EXECUTE format('DROP TRIGGER IF EXISTS tiebreak_fence ON %s', part);
        EXECUTE format('DROP TRIGGER IF EXISTS tiebreak_fence_applied ON %s', part);
        EXECUTE format(
            'CREATE TRIGGER tiebreak_fence BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s '
            'FOR EACH STATEMENT EXECUTE FUNCTION tiebreak.check_token(%L)', part, resource);
        EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER tiebreak_fence', part);
        -- What logical replication applies has triggers of rows alone, but for TRUNCATE.
        IF EXISTS (SELECT FROM pg_class c WHERE c.oid = part AND c.relkind = 'r') THEN
            EXECUTE format(
                'CREATE TRIGGER tiebreak_fence_applied AFTER INSERT OR UPDATE OR DELETE ON %s '
                'FOR EACH ROW EXECUTE FUNCTION tiebreak.check_token(%L)', part, resource);
            EXECUTE format('ALTER TABLE %s ENABLE REPLICA TRIGGER tiebreak_fence_applied', part);
        END IF;
    END LOOP;
END
$$;

-- Writers reach it through the trigger only: whoever may call `admit` could shut everybody out with a high token.
REVOKE ALL ON FUNCTION tiebreak.admit(text, numeric), tiebreak.check_token(), tiebreak.protect(regclass, text) FROM PUBLIC;
REVOKE ALL ON TABLE tiebreak.fence FROM PUBLIC;
GRANT USAGE ON SCHEMA tiebreak TO PUBLIC;

COMMIT;
