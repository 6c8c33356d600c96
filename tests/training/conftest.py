"""Short runs are without plots, unless a test is about them."""

import pytest

from tests.support.scripts import leave_out_plots


@pytest.fixture(autouse=True)
def without_plots(request, monkeypatch):
    if request.node.get_closest_marker("plots") is None:
        leave_out_plots(monkeypatch)
