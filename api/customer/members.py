"""The routes with which members manage their own organisation, assembled from their modules."""

from fastapi import APIRouter

from api.admin.deps import AdminDeps
from api.customer import adapters, member_keys, member_money, member_people, second_factor, sign_in
from api.customer.member_deps import MemberDeps


def routers(deps: AdminDeps) -> list[APIRouter]:
    """The routers under /v1/organization, which take a member's own token, and those that give one."""
    members = MemberDeps(deps)
    parts = (member_money, member_keys, member_people, sign_in, second_factor, adapters)
    return [part.router(members) for part in parts]
