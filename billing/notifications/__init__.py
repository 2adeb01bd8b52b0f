"""Notices and how they are sent: budget alerts, webhook endpoints, e-mail, deliveries with retries.

Tables: notices, notice_endpoints, notice_deliveries, alert_rules, alert_events. May import billing.ledger.
"""
