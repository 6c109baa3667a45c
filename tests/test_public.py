"""The public names of the package exist, and importing the package imports no torch."""

import subprocess
import sys

import fp8parity
import pytest


@pytest.mark.parametrize("name", fp8parity.__all__)
def test_public_name_exists(name):
    assert getattr(fp8parity, name)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = fp8parity.nonsense


@pytest.mark.slow
def test_import_of_the_package_needs_no_torch():
    code = "import sys, fp8parity; sys.exit('torch' in sys.modules or 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
