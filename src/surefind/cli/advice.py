"""Commands to go on with, as they can be typed.

A line that begins with "Next" works when what follows its colon is copied as it stands. Where only the user
knows what to give, a word in capitals stands for it, and the line does not begin so.
"""

import shlex

DEFAULTS = {"on_bad": "refuse"}
"""What commands do unless they are told otherwise, of options that are never empty."""


def spelled(command: str, *arguments: object, **options: object) -> str:
    """Spell a command.

    Args:
        command: Its name.
        *arguments: What follows it.
        **options: By their names; those that are None, False, empty or the default are left out.

    Returns:
        The command, quoted for a shell.
    """
    words = ["surefind", command, *map(str, arguments)]
    for name, value in options.items():
        if value is None or value is False or value in ("", DEFAULTS.get(name)):
            continue
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join(words)
