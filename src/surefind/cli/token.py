"""`surefind token`: make, replace or remove a named token of a service."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from surefind.cli.console import put, to_stderr


def token(
    name: Annotated[str, Argument(help="Whose token: it stands in logs and beside decisions.")],
    file: Annotated[
        Path, Option(help="The file of tokens that `surefind serve --tokens` follows.")
    ] = Path("tokens.toml"),
    write: Annotated[
        bool, Option("--write", help="Let its bearer change things, not only search and look.")
    ] = False,
    remove: Annotated[bool, Option("--remove", help="Forget the token of this name.")] = False,
) -> Any:
    """Make a token for a service, print it once, and keep its hash; the same name again replaces it.

    A running service follows the file: no restart is needed.

    Example: `surefind token scanner-3 --write --file tokens.toml`
    """
    from surefind.service.tokens import make_token, remove_token

    if remove:
        remove_token(file, name)
        to_stderr(f"{name} is no longer in {file}.")
        return {"name": name, "file": file, "removed": True}
    made = make_token(file, name, write=write)
    leave = "read and write" if write else "read"
    to_stderr(f"{name} may {leave}; its hash is in {file}. The token, shown this once:")
    put(f"{made}\n")
    return {"name": name, "file": file, "write": write, "token": made}
