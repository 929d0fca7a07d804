import os
import subprocess
import sys

import pytest

from surefind.cli.options import read_assigned
from surefind.errors import InputError


def test_the_shell_gets_choices(tmp_path):
    """As bash asks, with the answer printed a line each, and no PyTorch loaded for it."""
    code = (
        "import sys\nfrom surefind.cli import main\nsys.argv = ['surefind']\n"
        "try:\n    main()\nfinally:\n    assert 'torch' not in sys.modules"
    )
    asked = {"COMP_WORDS": "surefind train --method laplace-o", "COMP_CWORD": "3"}
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **asked, "_SUREFIND_COMPLETE": "complete_bash"},
        cwd=tmp_path,
        check=False,
    )
    assert found.stdout.split() == ["laplace-online"], found.stderr


def test_settings_are_numbers_or_texts_by_name():
    names = {"margin", "head"}
    read = read_assigned(["margin=5e-1", "head=identity"], names)
    assert read == {"margin": 0.5, "head": "identity"}
    assert isinstance(read_assigned(["views=3"], {"views"})["views"], int)
    assert isinstance(read_assigned(["margin=3"], names)["margin"], float)
    assert read_assigned(None, names) == {}
    for wrong in ("gain=1", "margin"):
        with pytest.raises(InputError, match="head, margin") as caught:
            read_assigned([wrong], names)
        assert caught.value.field == "assigned"
