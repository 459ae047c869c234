"""Which tests run beside each other: every file in one worker, and all that train through Ray in the same one."""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files share what their fixtures built, and two runs at once would need twice the memory."""
    for item in items:
        trains = item.path.parent.name in ("e2e", "walks")
        item.add_marker(pytest.mark.xdist_group("runs" if trains else item.path.name))
