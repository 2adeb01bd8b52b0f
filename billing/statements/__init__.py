"""What customers hold in their hands: signed monthly statements, receipts, and credits for missed service levels."""
