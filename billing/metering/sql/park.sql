-- Park a record that penstock_settle could not read.
CREATE OR REPLACE FUNCTION penstock_park(p_request uuid, p_reason text, p_record bytea) RETURNS void LANGUAGE sql AS $$
    INSERT INTO settle_errors (request_id, reason, record) VALUES (p_request, p_reason, p_record)
    ON CONFLICT DO NOTHING
$$;
