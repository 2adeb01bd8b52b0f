-- Every credit is a lot: what it is, when it ends, in which order it is used, what is left of it.
ALTER TABLE credit_grants ADD COLUMN kind text NOT NULL DEFAULT 'promotional';
ALTER TABLE credit_grants ADD COLUMN priority smallint NOT NULL DEFAULT 10;
ALTER TABLE credit_grants ADD COLUMN expires_at timestamptz;
ALTER TABLE credit_grants ADD COLUMN remaining numeric(38,0) NOT NULL DEFAULT 0;
-- When the lot was found to be over: use booked after its expiry is no longer taken from it first.
ALTER TABLE credit_grants ADD COLUMN ended_at timestamptz;
ALTER TABLE credit_grants ALTER COLUMN kind DROP DEFAULT;
ALTER TABLE credit_grants ALTER COLUMN priority DROP DEFAULT;
ALTER TABLE credit_grants ALTER COLUMN remaining DROP DEFAULT;
ALTER TABLE credit_grants ADD CONSTRAINT ck_credit_grants_kind
    CHECK (kind IN ('purchased', 'promotional', 'sla', 'adjustment'));
ALTER TABLE credit_grants ADD CONSTRAINT ck_credit_grants_remaining CHECK (remaining BETWEEN 0 AND amount);
CREATE INDEX ix_credit_grants_open ON credit_grants (tenant_id) WHERE remaining > 0;
CREATE INDEX ix_credit_grants_due ON credit_grants (expires_at) WHERE remaining > 0 AND expires_at IS NOT NULL;
-- What was taken from a lot and why; a clawback that was won comes back as a negative draw.
CREATE TABLE grant_draws (
    id bigint GENERATED ALWAYS AS IDENTITY,
    grant_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    kind text NOT NULL,
    amount numeric(38,0) NOT NULL,
    source_id uuid,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_grant_draws PRIMARY KEY (id),
    CONSTRAINT fk_grant_draws_grant_id FOREIGN KEY (grant_id) REFERENCES credit_grants (id),
    CONSTRAINT uq_grant_draws_source_id_kind UNIQUE (source_id, kind),
    CONSTRAINT ck_grant_draws_kind CHECK (kind IN ('use', 'expiry', 'refund', 'clawback', 'clawback_return')),
    CONSTRAINT ck_grant_draws_sign CHECK (CASE kind WHEN 'clawback_return' THEN amount <= 0
        WHEN 'use' THEN amount > 0 WHEN 'expiry' THEN amount > 0 ELSE amount >= 0 END),
    CONSTRAINT ck_grant_draws_source CHECK ((kind = 'use') = (source_id IS NULL))
);
CREATE INDEX ix_grant_draws_grant_id ON grant_draws (grant_id);
CREATE TRIGGER grant_draws_append_only BEFORE UPDATE OR DELETE ON grant_draws
    FOR EACH STATEMENT EXECUTE FUNCTION penstock_append_only();
-- Take from a lot; the caller has locked the account.
CREATE FUNCTION penstock_draw(p_grant uuid, p_kind text, p_amount numeric, p_source uuid) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE credit_grants SET remaining = remaining - p_amount WHERE id = p_grant;
    INSERT INTO grant_draws (grant_id, tenant_id, kind, amount, source_id)
        SELECT id, tenant_id, p_kind, p_amount, p_source FROM credit_grants WHERE id = p_grant;
END $$;
-- Take up to p_use from a tenant's lots in their order; lots that are over come last. Returns what was taken.
CREATE FUNCTION penstock_draw_use(p_tenant uuid, p_use numeric) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
    v_left numeric := p_use;
    v_take numeric;
    l credit_grants;
BEGIN
    FOR l IN SELECT * FROM credit_grants WHERE tenant_id = p_tenant AND remaining > 0
        ORDER BY (ended_at IS NOT NULL), priority, expires_at NULLS LAST, created_at, id
    LOOP
        EXIT WHEN v_left <= 0;
        v_take := least(v_left, l.remaining);
        PERFORM penstock_draw(l.id, 'use', v_take, NULL);
        v_left := v_left - v_take;
    END LOOP;
    RETURN p_use - v_left;
END $$;
-- Say which lots the credit used so far came from. The hot path only moves the balance: what lots still show beyond it
-- has been used. Lots whose time has come end in the order of their expiry, each after the use booked until then.
-- Always sum(remaining) >= balance; after this call they are equal. Returns what was allocated.
CREATE FUNCTION penstock_allocate(p_tenant uuid) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
    v_balance numeric;
    v_used numeric;
    v_later numeric;
    v_account bigint := penstock_ledger_account(p_tenant, 'credit');
    v_now timestamptz;
    v_taken numeric := 0;
    v_end timestamptz;
BEGIN
    SELECT balance INTO v_balance FROM billing_accounts WHERE tenant_id = p_tenant FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    v_now := clock_timestamp();
    SELECT coalesce(sum(remaining), 0) - v_balance INTO v_used FROM credit_grants
        WHERE tenant_id = p_tenant AND remaining > 0;
    FOR v_end IN SELECT DISTINCT expires_at FROM credit_grants
        WHERE tenant_id = p_tenant AND remaining > 0 AND ended_at IS NULL AND expires_at <= v_now
        ORDER BY expires_at
    LOOP
        -- Every earlier allocation happened before this expiry, so all use booked after it is among v_used.
        SELECT coalesce(sum(amount), 0) INTO v_later FROM ledger_transfers
            WHERE tenant_id = p_tenant AND at > v_end AND debit_account = v_account
                AND kind NOT IN ('refund', 'clawback', 'expiry');
        IF v_used > v_later THEN
            v_taken := v_taken + penstock_draw_use(p_tenant, v_used - v_later);
            v_used := v_later;
        END IF;
        UPDATE credit_grants SET ended_at = v_now WHERE tenant_id = p_tenant AND ended_at IS NULL
            AND expires_at <= v_end AND remaining > 0;
    END LOOP;
    IF v_used > 0 THEN
        v_taken := v_taken + penstock_draw_use(p_tenant, v_used);
    END IF;
    RETURN v_taken;
END $$;
-- Credit for a prepaid customer: one lot, one transfer. Idempotent by id; returns whether it is new. The same id with
-- other facts is an error (PS002).
CREATE FUNCTION penstock_add_lot(p_id uuid, p_tenant uuid, p_amount numeric, p_kind text, p_priority smallint,
    p_expires timestamptz, p_reason text, p_by text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_mode text;
BEGIN
    SELECT mode INTO v_mode FROM billing_accounts WHERE tenant_id = p_tenant FOR UPDATE;
    IF v_mode IS DISTINCT FROM 'prepaid' THEN
        RAISE EXCEPTION 'only a prepaid account takes credit lots' USING ERRCODE = 'PS002';
    END IF;
    -- What was used before must not be taken from a lot that came later.
    PERFORM penstock_allocate(p_tenant);
    INSERT INTO credit_grants (id, tenant_id, amount, kind, priority, expires_at, remaining, reason, created_by,
            created_at)
        VALUES (p_id, p_tenant, p_amount, p_kind, p_priority, p_expires, p_amount, p_reason, p_by, clock_timestamp())
        ON CONFLICT (id) DO NOTHING;
    IF NOT FOUND THEN
        PERFORM 1 FROM credit_grants WHERE id = p_id AND tenant_id = p_tenant AND amount = p_amount AND kind = p_kind;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the credit % was given already with other facts', p_id USING ERRCODE = 'PS002';
        END IF;
        RETURN false;
    END IF;
    PERFORM penstock_book(
        CASE p_kind WHEN 'purchased' THEN 'purchase' WHEN 'promotional' THEN 'grant' WHEN 'sla' THEN 'sla_credit'
            ELSE 'adjustment' END, p_tenant,
        CASE p_kind WHEN 'purchased' THEN 'cash' WHEN 'promotional' THEN 'promotions' WHEN 'sla' THEN 'sla_credits'
            ELSE 'revenue' END, 'credit', p_amount, p_id);
    RETURN true;
END $$;
CREATE OR REPLACE FUNCTION penstock_grant(p_id uuid, p_tenant uuid, p_amount numeric, p_reason text, p_by text)
RETURNS numeric LANGUAGE plpgsql AS $$
BEGIN
    PERFORM penstock_add_lot(p_id, p_tenant, p_amount, 'promotional', 10::smallint, NULL, p_reason, p_by);
    RETURN (SELECT balance FROM billing_accounts WHERE tenant_id = p_tenant);
END $$;
