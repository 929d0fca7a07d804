"""Write docs/reference/service.toml, an example of settings: python docs/make_service_toml.py."""

from pathlib import Path

from surefind.service.configuration import example

FILE = Path(__file__).parent / "reference" / "service.toml"

if __name__ == "__main__":
    FILE.write_text(example(), encoding="utf-8")
