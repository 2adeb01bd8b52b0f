-- What an account has spent in the current UTC month. The counter of an earlier month counts as 0.
CREATE OR REPLACE FUNCTION penstock_spent(a billing_accounts) RETURNS numeric LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN a.month = date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC')::date
        THEN a.spent_month ELSE 0 END
$$;

-- The money that new work may cost, before open holds are subtracted: the balance of a prepaid account; of a postpaid
-- one the credit limit less what it owes, invoiced and unpaid or not invoiced yet; null when it has no limit.
CREATE OR REPLACE FUNCTION penstock_funds(a billing_accounts) RETURNS numeric LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN a.mode = 'prepaid' THEN a.balance
        WHEN a.credit_limit IS NOT NULL THEN greatest(a.credit_limit - a.owed - a.invoiced, 0) END
$$;
