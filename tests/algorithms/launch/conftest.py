"""No pictures for some tests."""

import pytest

from algorithms.launch.show import plots


@pytest.fixture(scope="module")
def quick_pictures():
    """Drawing would take most of the time, and has tests of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "curve", lambda *_: None)
        patch.setattr(plots, "sweep", lambda *_: None)
        yield
