import pytest

from tests.support.tiny import SEQ2SEQ


@pytest.fixture(params=SEQ2SEQ)
def name(request) -> str:
    """Each of the encoder-decoder models."""
    return request.param
