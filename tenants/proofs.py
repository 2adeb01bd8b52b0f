"""How a person has shown who they are, for a session and for the tokens that are made in it."""

from typing import Final, Literal, get_args

Proof = Literal["password", "second_factor", "oidc"]
"""`password` alone; `second_factor`: with a code besides; `oidc`: an identity provider has said it."""
PROOFS: Final[tuple[Proof, ...]] = get_args(Proof)
