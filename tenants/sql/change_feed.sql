-- The change feed that API processes follow. Triggers write it with the owner's rights, so that no code path can skip
-- it. Arguments of the trigger: kind, column of the tenant, column of the object.
CREATE OR REPLACE FUNCTION penstock_note_tenancy_change() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public AS $$
DECLARE
    changed jsonb;
BEGIN
    IF TG_OP = 'DELETE' THEN changed := to_jsonb(OLD); ELSE changed := to_jsonb(NEW); END IF;
    INSERT INTO tenancy_changes (kind, tenant_id, object_id, xact)
    VALUES (TG_ARGV[0], (changed ->> TG_ARGV[1])::uuid, (changed ->> TG_ARGV[2])::uuid,
        pg_current_xact_id()::text::bigint);
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER note_change AFTER INSERT OR UPDATE OR DELETE ON tenants
FOR EACH ROW EXECUTE FUNCTION penstock_note_tenancy_change('tenant', 'id', 'id');
CREATE OR REPLACE TRIGGER note_change AFTER INSERT OR UPDATE OR DELETE ON projects
FOR EACH ROW EXECUTE FUNCTION penstock_note_tenancy_change('project', 'tenant_id', 'id');
-- Not on last_used_at: its updates come in batches and must not make every API process read keys again.
CREATE OR REPLACE TRIGGER note_change AFTER INSERT OR DELETE
    OR UPDATE OF tenant_id, project_id, kind, hash, status, allowed_models, expires_at, networks,
        scopes, regions, gpus, previous_hash, previous_until, quota_status, cors_origins ON api_keys
FOR EACH ROW EXECUTE FUNCTION penstock_note_tenancy_change('key', 'tenant_id', 'id');
CREATE OR REPLACE TRIGGER note_change AFTER INSERT OR UPDATE OR DELETE ON limits
FOR EACH ROW EXECUTE FUNCTION penstock_note_tenancy_change('limits', 'tenant_id', 'scope_id');
