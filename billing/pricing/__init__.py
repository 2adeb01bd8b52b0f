"""Price books: list prices, prices of one organisation, and contracts with their service levels.

Tables: price_versions, contracts. May import billing.ledger.
"""
