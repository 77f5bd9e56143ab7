"""Files that no decoder takes, named by how they begin; nothing of what they hold is repeated."""

from vitrail.data.decode.opened import BrokenImageError, UnreadFormatError

_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_AVIF_BRANDS = (b"avif", b"avis")
_JPEG_XL_STARTS = (b"\xff\x0a", b"\0\0\0\x0cJXL ")
_STARTS = {  # in small letters
    b"<!doctype html": "an HTML page",
    b"<html": "an HTML page",
    b"<svg": "an SVG drawing: convert it to PNG",
    b"<?xml": "XML",
    b"{": "JSON or other text",
    b"%pdf": "a PDF: convert its pages to PNG",
    b"%!ps": "PostScript",
    b"8bps": "a Photoshop document: save it as JPEG or PNG",
    b"pk\3\4": "a ZIP archive",
    b"\x1f\x8b": "compressed with gzip",
    b"version https://git-lfs": "a pointer of Git LFS: fetch the file with git lfs pull",
    bytes(12): "zeros",
}


def describe_foreign(data: bytes) -> BrokenImageError:
    """What to say of a file that is no image, or of a format that is not read here."""
    if data[4:8] == b"ftyp" and data[8:12] in _HEIC_BRANDS:
        return UnreadFormatError("is a HEIC image: pip install 'vitrail[heic]' reads it, or convert it to JPEG")
    if data[4:8] == b"ftyp" and data[8:12] in _AVIF_BRANDS:
        return UnreadFormatError("is an AVIF image: Pillow 11.3 or later reads it, or convert it to JPEG")
    if data.startswith(_JPEG_XL_STARTS):
        return UnreadFormatError("is a JPEG XL image, which is not read: convert it to JPEG or PNG")
    start = data[:64].lstrip().lower()
    looks = next((f": it looks like {name}" for mark, name in _STARTS.items() if start.startswith(mark)), "")
    return BrokenImageError(f"is not an image that can be read{looks}")
