"""Change a gallery while the disk takes everything and then fails to say that it is there.

    python failing_sync.py FOLDER

The system refuses fsync and fdatasync in this process from then on (seccomp), which needs no rights.
"""

import ctypes
import os
import platform
import struct
import sys

import numpy as np

from surefind.errors import StorageError
from surefind.gallery.gallery import Gallery

CALLS = {"x86_64": (74, 75), "aarch64": (82, 83)}[platform.machine()]
LOAD, IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO, EIO = 0x7FFF0000, 0x00050000, 5
NO_NEW_PRIVS, SET_SECCOMP, FILTER = 38, 22, 2


def refuse_sync():
    """Let fsync and fdatasync fail with EIO."""
    steps = [
        (LOAD, 0, 0, 0),
        (IF_EQUAL, 1, 0, CALLS[0]),
        (IF_EQUAL, 0, 1, CALLS[1]),
        (RETURN, 0, 0, ERRNO | EIO),
        (RETURN, 0, 0, ALLOW),
    ]
    program = b"".join(struct.pack("=HBBI", *step) for step in steps)
    kept = ctypes.create_string_buffer(program)
    whole = struct.pack("@HP", len(steps), ctypes.addressof(kept))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(SET_SECCOMP, FILTER, whole, 0, 0) == 0


def main(folder):
    gallery = Gallery.open(folder)
    gallery.add(np.eye(3)[:1], ids=["acknowledged"])
    refuse_sync()
    for change in (
        lambda: gallery.add(np.eye(3)[:2], ids=["failed", "too"]),
        lambda: gallery.delete(["first"]),
    ):
        try:
            change()
        except StorageError:
            os.write(1, b"refused\n")
    os._exit(0)  # as a kill: nothing is tidied up


if __name__ == "__main__":
    main(sys.argv[1])
