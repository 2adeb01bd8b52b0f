-- The cents of an invoice that are neither paid nor credited, as our books have it: its total less what Stripe took from
-- the customer's balance, less credit notes as far as they lower the invoice, less payments, plus payments that were
-- refunded without a credit note. The caller locks the invoice when it changes something.
CREATE OR REPLACE FUNCTION penstock_open_cents(p_invoice uuid) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT i.total_cents - i.applied_cents
        - (SELECT coalesce(sum(n.cents - n.balance_cents - n.refund_cents), 0) FROM credit_notes n
            WHERE n.invoice_id = i.id AND n.status <> 'void')::bigint
        - (SELECT coalesce(sum(p.cents), 0) FROM stripe_payments p WHERE p.invoice_id = i.id)::bigint
        + (SELECT coalesce(sum(r.cents), 0) FROM stripe_refunds r JOIN stripe_payments p USING (payment_intent)
            WHERE p.invoice_id = i.id AND r.credit_note_id IS NULL AND r.status <> 'failed')::bigint
    FROM invoices i WHERE i.id = p_invoice
$$;
