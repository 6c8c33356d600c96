import pytest


@pytest.fixture(params=["gpt2", "marian", "t5"])
def name(request) -> str:
    """A model that generates, of each kind."""
    return request.param
