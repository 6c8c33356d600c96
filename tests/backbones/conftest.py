import pytest

from tests.support.backbones import BACKBONES


@pytest.fixture(params=BACKBONES)
def name(request) -> str:
    """The name of each named class."""
    return request.param
