"""Uploads that servers die of, each with the statuses that are a right answer to it."""

import struct
import zlib
from io import BytesIO

import numpy as np
from PIL import Image


def save(image, kind, **options):
    out = BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def noise(width=40, height=30, channels=3):
    rng = np.random.default_rng(0)
    return Image.fromarray(rng.integers(0, 256, (height, width, channels), dtype=np.uint8))


def png_bomb(side):
    """A PNG of a few kB that claims side × side pixels, all of them black."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes(min(side * (side // 8 + 1), 2**22)), 9)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    )


def text_bomb():
    """A PNG with a text that unpacks to 64 MB."""
    image = save(noise(), "PNG")
    body = b"zTXt" + b"Comment\0\0" + zlib.compress(bytes(2**26), 9)
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return image[:33] + chunk + image[33:]


def rotated():
    exif = Image.Exif()
    exif[0x0112] = 6
    return save(noise(), "JPEG", exif=exif)


def broken_exif():
    return save(noise(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff" + bytes(20))


def animated(kind, frames=30):
    images = [Image.new("RGB", (60, 40), (8 * i, 0, 0)) for i in range(frames)]
    return save(images[0], kind, save_all=True, append_images=images[1:])


def sixteen_bits():
    ramp = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    return save(Image.fromarray(ramp), "PNG")


def uploads():
    jpeg, png = save(noise(), "JPEG"), save(noise(), "PNG")
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    fine, no_image, broken, large = (200,), (415,), (415, 422), (413,)
    return {
        "bomb": (png_bomb(60_000), large),
        "bomb below Pillow's own limit": (png_bomb(9_600), large),
        "text bomb": (text_bomb(), (200, 415, 422)),
        "truncated jpeg": (jpeg[: len(jpeg) // 2], broken),
        "truncated png": (png[: len(png) // 2], broken),
        "header only": (png[:33], broken),
        "empty": (b"", (422,)),
        "animated gif": (animated("GIF"), fine),
        "animated webp": (animated("WEBP"), fine),
        "cmyk": (save(noise().convert("CMYK"), "JPEG"), fine),
        "16 bit": (sixteen_bits(), fine),
        "alpha": (save(noise(channels=4), "PNG"), fine),
        "palette": (save(noise().convert("P"), "PNG"), fine),
        "rotated": (rotated(), fine),
        "broken exif": (broken_exif(), (200, 415, 422)),
        "one pixel": (save(Image.new("L", (1, 1)), "PNG"), fine),
        "thin": (save(Image.new("L", (5000, 1)), "PNG"), fine),
        "svg": (svg, no_image),
        "html": (b"<!doctype html><script>alert(1)</script>", no_image),
        "zip": (b"PK\x03\x04" + bytes(500), no_image),
        "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", no_image),
        "tiff": (save(noise(), "TIFF"), no_image),
        "noise": (np.random.default_rng(1).bytes(5000), no_image),
        "jpeg with a tail": (jpeg + bytes(10_000), fine),
    }
