"""The billing benchmark: settlement and sealing, bytes per row, month reports, archive, invoice run."""
