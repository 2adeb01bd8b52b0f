-- Settle ended requests as penstock_settle does, and store tokens of theirs that no customer pays for. A record of a
-- request that is settled already adds nothing: what a dead process left may know less than what was settled.
CREATE OR REPLACE FUNCTION penstock_settle_with_unbilled(p_batch settle_record[], p_notes jsonb)
RETURNS TABLE (request_id uuid, result text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_requests uuid[];
    v_results text[];
BEGIN
    SELECT array_agg(s.request_id), array_agg(s.result) INTO v_requests, v_results FROM penstock_settle(p_batch) s;
    INSERT INTO usage_unbilled (request_id, part, replica_id, boot_id, cause, input_tokens, output_tokens, tail_input,
        tail_output, again_us)
    SELECT n.request_id, n.part, n.replica_id, n.boot_id, n.cause, greatest(n.input_tokens, 0),
        greatest(n.output_tokens, 0), greatest(n.tail_input, 0), greatest(n.tail_output, 0), greatest(n.again_us, 0)
    FROM jsonb_to_recordset(p_notes) AS n (request_id uuid, part smallint, replica_id text, boot_id text, cause text,
        input_tokens bigint, output_tokens bigint, tail_input bigint, tail_output bigint, again_us bigint)
    JOIN unnest(v_requests, v_results) AS s (request_id, result) ON s.request_id = n.request_id
    WHERE s.result <> 'duplicate'
    ORDER BY n.request_id, n.part
    ON CONFLICT DO NOTHING;
    RETURN QUERY SELECT * FROM unnest(v_requests, v_results);
END $$;
