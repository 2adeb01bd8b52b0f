"""Settings of the jobs role with the fake cloud as DigitalOcean."""

from pydantic import SecretStr

from core.settings import Settings
from tests.support.fake_droplets import TOKEN


def cloud_settings(url: str, **fields: object) -> Settings:
    """Fleet `test`, with other fields as given."""
    made = Settings(fleet="test", digitalocean_url=url, digitalocean_token=SecretStr(TOKEN), database_url="")
    return made.model_copy(update=fields)
