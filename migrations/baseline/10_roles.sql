-- The two roles that sessions drop to. Roles belong to the whole server: another database's migration may be creating
-- them at the same moment.
DO $$
DECLARE
    v_role text;
BEGIN
    FOREACH v_role IN ARRAY ARRAY['penstock_app', 'penstock_system'] LOOP
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', v_role);
        EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
        END;
        IF NOT pg_has_role(current_user, v_role, 'SET') THEN
            EXECUTE format('GRANT %I TO CURRENT_USER', v_role);
        END IF;
        EXECUTE format('GRANT USAGE ON SCHEMA public TO %I', v_role);
    END LOOP;
END $$;
ALTER DEFAULT PRIVILEGES GRANT USAGE ON SEQUENCES TO penstock_app, penstock_system;
-- A range over text. It stands in for the extension btree_gist, which the embedded PostgreSQL does not have:
-- EXCLUDE USING gist (textrange(model, model, '[]') WITH =, during WITH &&).
CREATE TYPE textrange AS RANGE (subtype = text, collation = "C");
