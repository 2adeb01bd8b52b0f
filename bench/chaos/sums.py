"""Queries on the books of a run in which nothing but requests and grants is booked. Each must return no row.

They do not use the platform's own verification (billing/ledger/verification.py), and assume no constraint of a table: a
request that is charged twice is found by what it costs, whichever way the second charge was booked.
"""

FREE = "('engine_failed', 'zero_output')"

EMPTY = {
    "no hold is left": "SELECT request_id, tenant_id, state FROM holds WHERE state = 'open'",
    "no money is held, none is below zero": "SELECT tenant_id, balance, held FROM billing_accounts "
    "WHERE held <> 0 OR balance < 0",
    "one row per request": "SELECT request_id, count(*), array_agg(tableoid::regclass::text) AS partitions "
    "FROM usage_rows GROUP BY 1 HAVING count(*) > 1",
    "a row costs what its tokens cost": f"""
        SELECT u.request_id, u.outcome, u.cost, c.cost AS priced
        FROM usage u LEFT JOIN price_versions p ON p.id = u.price_version, LATERAL (
            SELECT CASE WHEN u.outcome IN {FREE} THEN 0 ELSE
                (u.input_tokens - u.cached_input_tokens) * p.input + u.cached_input_tokens * p.cached_input
                + (u.output_tokens - u.reasoning_tokens) * p.output + u.reasoning_tokens * p.reasoning END AS cost) c
        WHERE u.cost IS DISTINCT FROM c.cost""",
    "the ledger charges what a row costs": """
        SELECT coalesce(u.request_id, t.source_id) AS request_id, u.cost, t.charged, t.kinds
        FROM usage u FULL JOIN (
            SELECT l.source_id, array_agg(l.kind) AS kinds,
                sum(CASE WHEN c.code = 'revenue' THEN l.amount ELSE -l.amount END) AS charged
            FROM ledger_transfers l
            JOIN ledger_accounts d ON d.id = l.debit_account JOIN ledger_accounts c ON c.id = l.credit_account
            WHERE 'revenue' IN (c.code, d.code) GROUP BY l.source_id) t ON t.source_id = u.request_id
        WHERE coalesce(u.cost, 0) <> coalesce(t.charged, 0)""",
    "the budget counts each row once": """
        SELECT b.tenant_id, b.spent_month, coalesce(u.cost, 0) AS cost
        FROM billing_accounts b LEFT JOIN (
            SELECT tenant_id, (date_trunc('month', ended_at, 'UTC') AT TIME ZONE 'UTC')::date AS month,
                sum(cost) AS cost FROM usage GROUP BY 1, 2) u ON u.tenant_id = b.tenant_id AND u.month = b.month
        WHERE b.spent_month <> coalesce(u.cost, 0)""",
    "nothing is parked": "SELECT request_id, reason FROM settle_errors",
    "the ledger sums to zero": "SELECT sum(debit) AS debit, sum(credit) AS credit FROM ledger_balances "
    "HAVING sum(debit) <> sum(credit)",
    "credit granted is credit used and left": """
        SELECT b.tenant_id, b.balance, g.granted, u.cost, coalesce(x.uncollectible, 0) AS uncollectible
        FROM billing_accounts b
        JOIN (SELECT tenant_id, sum(amount) AS granted FROM ledger_transfers WHERE kind = 'grant' GROUP BY 1) g
            USING (tenant_id)
        LEFT JOIN (SELECT tenant_id, sum(cost) AS cost FROM usage GROUP BY 1) u USING (tenant_id)
        LEFT JOIN (SELECT tenant_id, sum(amount) AS uncollectible FROM ledger_transfers WHERE kind = 'uncollectible'
            GROUP BY 1) x USING (tenant_id)
        WHERE g.granted - coalesce(u.cost, 0) + coalesce(x.uncollectible, 0) <> b.balance""",
}
"""Queries by what must be so."""
