"""At the command line a person is known by a token, not by the shell user that other people may share.

Waiting requests of shell users can only be rejected: it is not certain who made them. All shell users count as one.
"""

from alembic import op

revision = "0030_people_by_token"
down_revision = "0029_approval_limit_setting"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "UPDATE approvals SET requested_by_id = 'shell', "
        "decided_by_id = CASE WHEN decision = 'within_limit' THEN 'shell' ELSE decided_by_id END "
        "WHERE requested_by_id LIKE 'shell:%' AND decision IS DISTINCT FROM 'approved'"
    )
    op.execute("DROP TABLE shell_users")
