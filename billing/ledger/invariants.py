"""Invariants of the books (billing/README.md) as queries; each row that a query returns is a violation."""

LEDGER_CHECKS = {
    "trial balance does not close": """
        SELECT sum(debit) AS debit, sum(credit) AS credit FROM ledger_balances HAVING sum(debit) <> sum(credit)""",
    "a transfer touches another tenant's account": """
        SELECT t.id FROM ledger_transfers t
        JOIN ledger_accounts d ON d.id = t.debit_account JOIN ledger_accounts c ON c.id = t.credit_account
        WHERE d.tenant_id <> t.tenant_id OR c.tenant_id <> t.tenant_id""",
    "prepaid balance differs from the ledger": """
        SELECT b.tenant_id, b.balance, coalesce(l.credit - l.debit, 0) AS ledger FROM billing_accounts b
        LEFT JOIN ledger_balances l ON l.tenant_id = b.tenant_id AND l.code = 'credit'
        WHERE b.balance <> coalesce(l.credit - l.debit, 0)""",
    "owed amount differs from the ledger": """
        SELECT b.tenant_id, b.owed, coalesce(l.debit - l.credit, 0) AS ledger FROM billing_accounts b
        LEFT JOIN ledger_balances l ON l.tenant_id = b.tenant_id AND l.code = 'receivable'
        WHERE b.owed <> coalesce(l.debit - l.credit, 0)""",
    "unpaid invoices differ from the ledger": """
        SELECT b.tenant_id, b.invoiced, coalesce(l.debit - l.credit, 0) AS ledger FROM billing_accounts b
        LEFT JOIN ledger_balances l ON l.tenant_id = b.tenant_id AND l.code = 'invoiced'
        WHERE b.invoiced <> coalesce(l.debit - l.credit, 0)""",
    "usage and its transfers differ": """
        SELECT coalesce(u.request_id, t.source_id) AS request_id, u.cost, t.amount
        FROM usage u FULL JOIN (
            SELECT source_id, sum(amount) AS amount FROM ledger_transfers
            WHERE kind IN ('usage', 'uncollectible') AND NOT EXISTS (
                SELECT 1 FROM adjustments a WHERE a.id = ledger_transfers.source_id)
            GROUP BY source_id) t ON t.source_id = u.request_id
        WHERE coalesce(u.cost, 0) <> coalesce(t.amount, 0) AND NOT (u.request_id IS NULL AND EXISTS (
            SELECT 1 FROM usage_archives a, ledger_transfers l WHERE a.dropped_at IS NOT NULL
                AND l.source_id = t.source_id AND l.kind IN ('usage', 'uncollectible')
                AND l.effective_at >= a.month::timestamp AT TIME ZONE 'UTC'
                AND l.effective_at < (a.month + interval '1 month') AT TIME ZONE 'UTC'))""",
    "an archived month and its transfers differ": """
        SELECT a.month, a.cost, sum(t.amount) AS amount FROM usage_archives a
        LEFT JOIN ledger_transfers t ON t.kind IN ('usage', 'uncollectible')
            AND NOT EXISTS (SELECT 1 FROM adjustments x WHERE x.id = t.source_id)
            AND t.effective_at >= a.month::timestamp AT TIME ZONE 'UTC'
            AND t.effective_at < (a.month + interval '1 month') AT TIME ZONE 'UTC'
        WHERE a.dropped_at IS NOT NULL GROUP BY a.month, a.cost HAVING a.cost <> coalesce(sum(t.amount), 0)""",
    "transfers are sealed or waiting more than once": """
        WITH c AS (SELECT transfers FROM ledger_seals WHERE transfers IS NOT NULL
            UNION ALL SELECT int8multirange(int8range(transfer_id, transfer_id, '[]')) FROM ledger_seals
                WHERE transfer_id IS NOT NULL
            UNION ALL SELECT transfers FROM ledger_unsealed),
        n AS (SELECT (SELECT coalesce(sum(upper(r) - lower(r)), 0) FROM c, unnest(c.transfers) r) AS entries,
            (SELECT coalesce(sum(upper(r) - lower(r)), 0) FROM unnest((SELECT range_agg(transfers) FROM c)) r)
                AS transfers)
        SELECT entries, transfers FROM n WHERE entries <> transfers""",
    "a transfer is neither sealed nor waiting": """
        WITH covered AS MATERIALIZED (SELECT coalesce(range_agg(c.transfers), '{}') AS ids FROM (
            SELECT transfers FROM ledger_seals WHERE transfers IS NOT NULL
            UNION ALL SELECT int8multirange(int8range(transfer_id, transfer_id, '[]')) FROM ledger_seals
                WHERE transfer_id IS NOT NULL
            UNION ALL SELECT transfers FROM ledger_unsealed) c)
        SELECT t.id FROM ledger_transfers t, covered c WHERE NOT c.ids @> t.id""",
    "what a budget of an end user or tag counts differs from the usage rows": """
        SELECT b.tenant_id, b.scope, b.label, b.spent_month, coalesce(u.cost, 0) AS usage FROM scope_budgets b
        LEFT JOIN (SELECT l.tenant_id, v.name || '=' || v.value AS label, sum(r.cost) AS cost
            FROM usage_labels l JOIN usage_rows r ON r.request_id = l.request_id
            CROSS JOIN LATERAL unnest(l.user_value || l.tag_values) AS i (id) JOIN label_values v ON v.id = i.id
            WHERE l.tenant_id IN (SELECT a.tenant_id FROM billing_accounts a WHERE a.has_label_budgets)
                AND l.ended_at >= date_trunc('month', clock_timestamp(), 'UTC')
            GROUP BY 1, 2) u ON u.tenant_id = b.tenant_id AND u.label = b.label
        WHERE b.label IS NOT NULL AND b.month = date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC')::date
            AND b.spent_month <> coalesce(u.cost, 0)""",
    "an end user who has spent is not counted under the budget of every end user": """
        SELECT DISTINCT l.tenant_id, v.value AS end_user FROM usage_labels l JOIN label_values v ON v.id = l.user_value
        JOIN billing_accounts a ON a.tenant_id = l.tenant_id AND a.end_user_budget IS NOT NULL
        WHERE l.ended_at >= date_trunc('month', clock_timestamp(), 'UTC') AND NOT EXISTS (SELECT FROM scope_budgets b
            WHERE b.scope_id = penstock_label_scope(l.tenant_id, 'user=' || v.value))""",
}
"""Queries on transfers, accounts, usage and seals, by the violation that they find. They read the whole ledger."""

HOLD_CHECKS = {
    "held money differs from the open holds": """
        SELECT b.tenant_id, b.held, b.open_holds, h.amount, h.holds FROM billing_accounts b
        LEFT JOIN (SELECT tenant_id, sum(amount) AS amount, count(*) AS holds FROM holds
            WHERE state = 'open' GROUP BY tenant_id) h ON h.tenant_id = b.tenant_id
        WHERE b.held <> coalesce(h.amount, 0) OR b.open_holds <> coalesce(h.holds, 0)""",
    "money held of a budget differs from the open holds": """
        SELECT b.tenant_id, b.scope, b.scope_id, b.held, coalesce(h.amount, 0) AS holds FROM scope_budgets b
        LEFT JOIN (SELECT s.scope_id, sum(o.amount) AS amount FROM holds o,
            LATERAL (SELECT o.project_id UNION ALL SELECT o.key_id UNION ALL
                SELECT unnest(penstock_label_scopes(o.tenant_id, o.labels))) AS s (scope_id)
            WHERE o.state = 'open' GROUP BY s.scope_id) h ON h.scope_id = b.scope_id
        WHERE b.held <> coalesce(h.amount, 0)""",
    "a settled request's hold is still open": """
        SELECT h.request_id FROM holds h JOIN usage u ON u.request_id = h.request_id WHERE h.state = 'open'""",
}
"""Queries on accounts and open holds, by the violation that they find."""

FRESH_CHECKS = {
    "a checkpoint differs from the chain": """
        SELECT c.seq FROM ledger_checkpoints c LEFT JOIN ledger_seals s ON s.seq = c.seq
        WHERE s.hash IS DISTINCT FROM c.hash""",
    "what a checkpoint covers did not verify again": """
        SELECT seq, problem FROM ledger_checkpoints WHERE problem IS NOT NULL""",
    "trial balance does not close": """
        SELECT sum(debit) AS debit, sum(credit) AS credit FROM penstock_ledger_sums()
        HAVING sum(debit) <> sum(credit)""",
    "a transfer touches another tenant's account": """
        SELECT t.id FROM ledger_fresh t
        JOIN ledger_accounts d ON d.id = t.debit_account JOIN ledger_accounts c ON c.id = t.credit_account
        WHERE d.tenant_id <> t.tenant_id OR c.tenant_id <> t.tenant_id""",
    "an account differs from the ledger": """
        SELECT b.tenant_id, b.balance, b.owed, b.invoiced,
            s.balance AS ledger_balance, s.owed AS ledger_owed, s.invoiced AS ledger_invoiced
        FROM billing_accounts b LEFT JOIN (
            SELECT a.tenant_id, coalesce(sum(m.credit - m.debit) FILTER (WHERE a.code = 'credit'), 0) AS balance,
                coalesce(sum(m.debit - m.credit) FILTER (WHERE a.code = 'receivable'), 0) AS owed,
                coalesce(sum(m.debit - m.credit) FILTER (WHERE a.code = 'invoiced'), 0) AS invoiced
            FROM penstock_ledger_sums() m JOIN ledger_accounts a ON a.id = m.account
            WHERE a.code IN ('credit', 'receivable', 'invoiced')
            GROUP BY a.tenant_id) s ON s.tenant_id = b.tenant_id
        WHERE b.balance <> coalesce(s.balance, 0) OR b.owed <> coalesce(s.owed, 0)
            OR b.invoiced <> coalesce(s.invoiced, 0)""",
    "usage and its transfers differ": """
        SELECT DISTINCT f.source_id AS request_id FROM ledger_fresh f WHERE f.kind IN ('usage', 'uncollectible')
            AND penstock_usage_differs(f.source_id)""",
    "transfers are sealed or waiting more than once": """
        WITH covered AS (SELECT (SELECT coalesce(max(seq), 0) FROM ledger_checkpoints) AS seq),
        c AS MATERIALIZED (SELECT coalesce(s.transfers, int8multirange(int8range(s.transfer_id, s.transfer_id, '[]')))
                AS transfers FROM ledger_seals s, covered WHERE s.seq > covered.seq - 1000
            UNION ALL SELECT transfers FROM ledger_unsealed)
        SELECT entries, transfers FROM (
            SELECT (SELECT coalesce(sum(upper(r) - lower(r)), 0) FROM c, unnest(c.transfers) r) AS entries,
                (SELECT coalesce(sum(upper(r) - lower(r)), 0) FROM unnest((SELECT range_agg(transfers) FROM c)) r)
                    AS transfers) n WHERE entries <> transfers""",
    "a transfer is neither sealed nor waiting": """
        SELECT t.id FROM ledger_transfers t
        WHERE t.id > (SELECT coalesce(max(last_id), 0) FROM ledger_checkpoints)
        EXCEPT SELECT f.id FROM ledger_fresh f""",
}
"""Queries on what no checkpoint covers and on the sums of what one covers; they read no transfer that one covers."""

CHECKPOINT_CHECKS = {
    "monthly sums differ from the transfers": """
        SELECT month, account, kind, sum(debit) AS debit, sum(credit) AS credit FROM (
            SELECT month, account, kind, debit, credit FROM penstock_ledger_sums()
            UNION ALL
            SELECT (date_trunc('month', effective_at, 'UTC') AT TIME ZONE 'UTC')::date, debit_account, kind, -amount, 0
            FROM ledger_transfers
            UNION ALL
            SELECT (date_trunc('month', effective_at, 'UTC') AT TIME ZONE 'UTC')::date, credit_account, kind, 0, -amount
            FROM ledger_transfers) s
        GROUP BY month, account, kind HAVING sum(debit) <> 0 OR sum(credit) <> 0""",
    "a checkpoint differs from the chain": FRESH_CHECKS["a checkpoint differs from the chain"],
}
"""Queries that compare checkpoints and monthly sums with the whole ledger."""

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
        SELECT a.tenant_id, sum(s.debit - s.credit) AS disputed FROM penstock_ledger_sums() s
        JOIN ledger_accounts a ON a.id = s.account WHERE a.code = 'disputed'
        GROUP BY a.tenant_id HAVING sum(s.debit) < sum(s.credit)""",
    "a price book has a gap that no act has made": """
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
"""Queries on lots, adjustments, invoices, disputes and prices, by the violation that they find."""
