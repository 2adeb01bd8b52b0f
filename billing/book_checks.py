"""Invariants of credit, corrections, invoices and prices, as queries that must never return a row (README.md)."""

BOOK_CHECKS = {
    "credit lots hold less than the balance": """
        SELECT b.tenant_id, b.balance, coalesce(g.remaining, 0) AS lots FROM billing_accounts b
        LEFT JOIN (SELECT tenant_id, sum(remaining) AS remaining FROM credit_grants
            WHERE remaining > 0 GROUP BY tenant_id) g ON g.tenant_id = b.tenant_id
        WHERE coalesce(g.remaining, 0) < b.balance""",
    "what remains of a credit lot differs from what was drawn": """
        SELECT g.id, g.amount, g.remaining, coalesce(d.amount, 0) AS drawn FROM credit_grants g
        LEFT JOIN (SELECT grant_id, sum(amount) AS amount FROM grant_draws GROUP BY grant_id) d ON d.grant_id = g.id
        WHERE g.remaining <> g.amount - coalesce(d.amount, 0)""",
    "a credit lot is not booked": """
        SELECT g.id, g.kind, g.amount, t.amount AS booked FROM credit_grants g
        LEFT JOIN ledger_transfers t ON t.source_id = g.id AND t.tenant_id = g.tenant_id
            AND t.kind = CASE g.kind WHEN 'purchased' THEN 'purchase' WHEN 'promotional' THEN 'grant'
                WHEN 'sla' THEN 'sla_credit' ELSE 'adjustment' END
        WHERE t.amount IS DISTINCT FROM g.amount""",
    "draws and bookings of expiry, refund or clawback differ": """
        SELECT coalesce(d.source_id, t.source_id) AS source_id, coalesce(d.kind, t.kind) AS kind,
            d.amount AS drawn, t.amount AS booked
        FROM (SELECT source_id, kind, tenant_id, abs(amount) AS amount FROM grant_draws
            WHERE kind <> 'use' AND amount <> 0) d
        FULL JOIN (SELECT source_id, kind, tenant_id, amount FROM ledger_transfers
            WHERE kind IN ('expiry', 'refund', 'clawback', 'clawback_return')) t
            ON t.source_id = d.source_id AND t.kind = d.kind AND t.tenant_id = d.tenant_id
        WHERE d.amount IS DISTINCT FROM t.amount""",
    "an adjustment and its transfers differ": """
        SELECT a.id, a.amount, t.signed, t.lost FROM adjustments a
        LEFT JOIN (
            SELECT l.source_id, sum(CASE WHEN d.code = 'revenue' THEN l.amount ELSE -l.amount END) AS signed,
                coalesce(sum(l.amount) FILTER (WHERE l.kind = 'uncollectible'), 0) AS lost
            FROM ledger_transfers l JOIN ledger_accounts d ON d.id = l.debit_account
            WHERE l.kind IN ('adjustment', 'uncollectible') GROUP BY l.source_id) t ON t.source_id = a.id
        WHERE t.signed IS DISTINCT FROM a.amount OR t.lost IS DISTINCT FROM a.uncollectible""",
    "more was paid or written off than invoiced": """
        SELECT t.tenant_id, sum(CASE WHEN d.code = 'invoiced' THEN t.amount ELSE -t.amount END) AS invoiced
        FROM ledger_transfers t
        JOIN ledger_accounts d ON d.id = t.debit_account JOIN ledger_accounts c ON c.id = t.credit_account
        WHERE 'invoiced' IN (d.code, c.code) AND (t.kind IN ('invoice', 'rounding', 'payment', 'write_off')
            OR t.kind = 'credit_note_refund' AND NOT EXISTS (SELECT 1 FROM credit_notes n WHERE n.id = t.source_id))
        GROUP BY t.tenant_id HAVING sum(CASE WHEN d.code = 'invoiced' THEN t.amount ELSE -t.amount END) < 0""",
    "more disputed money was settled than disputed": """
        SELECT tenant_id, debit - credit AS disputed FROM ledger_balances
        WHERE code = 'disputed' AND debit < credit""",
    "a price book has a gap that nobody asked for": """
        SELECT v.id, v.book, upper(v.effective) AS ends FROM price_versions v
        WHERE v.withdrawn_at IS NULL AND v.contract_id IS NULL AND v.ended_by IS NULL
            AND upper(v.effective) IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM price_versions n WHERE n.book = v.book AND n.withdrawn_at IS NULL
                AND n.contract_id IS NULL AND lower(n.effective) = upper(v.effective))""",
    "a discounted price does not follow from its list price": """
        SELECT p.id, p.book FROM price_versions p JOIN contracts c ON c.id = p.contract_id
        JOIN price_versions l ON l.id = p.list_version
        WHERE (p.input, p.cached_input, p.output, p.reasoning) IS DISTINCT FROM (
            penstock_discounted(l.input, c.discount_bps), penstock_discounted(l.cached_input, c.discount_bps),
            penstock_discounted(l.output, c.discount_bps), penstock_discounted(l.reasoning, c.discount_bps))""",
}
"""What is wrong, by the query that finds it."""
