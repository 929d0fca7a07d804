"""Check what the wheel and the sdist hold: the package as git knows it, and nothing else.

python tests/package/contents.py build/package
"""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
BESIDE = {"CHANGELOG.md", "CITATION.cff", "LICENSE", "README.md", "constraints.txt"}
"""What the sdist has beside the package; tests, docs and benchmarks stay in the repository."""
MADE = {".gitignore", "PKG-INFO", "pyproject.toml"}
"""What hatchling adds to an sdist."""
LARGEST = 1_000_000
"""Bytes of either file."""


def package() -> set[str]:
    """Return the package's files, as git lists them, from ``surefind/`` on."""
    listed = subprocess.run(
        ["git", "ls-files", "src/surefind"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {line.removeprefix("src/") for line in listed.stdout.splitlines()}


def in_wheel(file: Path) -> set[str]:
    """Return the files of a wheel without its metadata."""
    names = zipfile.ZipFile(file).namelist()
    return {name for name in names if ".dist-info/" not in name}


def in_sdist(file: Path) -> set[str]:
    """Return the files of an sdist without its top folder."""
    with tarfile.open(file) as archive:
        return {m.name.partition("/")[2] for m in archive.getmembers() if m.isfile()}


def differences(found: set[str], expected: set[str]) -> list[str]:
    """Say what is missing and what is too much."""
    return [f"missing: {name}" for name in sorted(expected - found)] + [
        f"too much: {name}" for name in sorted(found - expected)
    ]


def main(folder: Path) -> None:
    """Check the only wheel and the only sdist of a folder.

    Args:
        folder: Where they were built.
    """
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    wrong = differences(in_wheel(wheel), package())
    wrong += differences(in_sdist(sdist), {f"src/{n}" for n in package()} | BESIDE | MADE)
    wrong += [f"too large: {file.name}" for file in (wheel, sdist) if file.stat().st_size > LARGEST]
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{wheel.name} and {sdist.name} hold the package and nothing else.")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
