-- Store tokens that no customer pays for, before their usage row. Idempotent by request and part.
CREATE OR REPLACE FUNCTION penstock_note_unbilled(p_notes jsonb) RETURNS void LANGUAGE sql AS $$
    INSERT INTO usage_unbilled (request_id, part, replica_id, boot_id, cause, input_tokens, output_tokens, tail_input,
        tail_output, again_us)
    SELECT n.request_id, n.part, n.replica_id, n.boot_id, n.cause, greatest(n.input_tokens, 0),
        greatest(n.output_tokens, 0), greatest(n.tail_input, 0), greatest(n.tail_output, 0), greatest(n.again_us, 0)
    FROM jsonb_to_recordset(p_notes) AS n (request_id uuid, part smallint, replica_id text, boot_id text, cause text,
        input_tokens bigint, output_tokens bigint, tail_input bigint, tail_output bigint, again_us bigint)
    ORDER BY n.request_id, n.part
    ON CONFLICT DO NOTHING
$$;
