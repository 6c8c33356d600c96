import pytest

from tests.support.backbones import BACKBONES


@pytest.fixture(params=BACKBONES)
def name(request) -> str:
    """Each of the classes that there is a file for."""
    return request.param
