"""Bodies of requests that are damaged at random, some of them not enough to be refused."""

import json
import random

from served import as_text, encode


def draw_body(rng: random.Random) -> tuple[str, bytes]:
    """A content type, and a body that is damaged somehow."""
    image = encode(rng.choice(("red", "blue")), seed=rng.randrange(9), kind=rng.choice(("PNG", "JPEG", "GIF", "BMP")))
    kind = rng.choice(("form", "json", "image", "other"))
    if kind == "form":
        edge = b"b0undary"
        head = b'Content-Disposition: form-data; name="image"; filename="x"\r\n\r\n'
        body = b"--" + edge + b"\r\n" + head + image + b"\r\n--" + edge + b"--\r\n"
        said = rng.choice(("b0undary", "b0undary", "other", ""))
        content = f"multipart/form-data; boundary={said}" if said else "multipart/form-data"
    elif kind == "json":
        body = json.dumps(
            {"images": [as_text(image)], "top": rng.choice((3, -1, 10**30, "x", "--3", None, [], 1.5))}
        ).encode()
        content = "application/json"
    else:
        body = image
        content = rng.choice(("image/png", "application/octet-stream", "text/html", "", "*/*; x=\u00e9", "image/"))
    changed = bytearray(body)
    for _ in range(rng.randrange(4)):
        how, place = rng.randrange(4), rng.randrange(len(changed) or 1)
        if how == 0 and changed:
            changed[place] ^= 1 << rng.randrange(8)
        elif how == 1:
            del changed[place:]
        elif how == 2:
            changed[place:place] = rng.randbytes(rng.randrange(1, 40))
        else:
            changed += changed[: rng.randrange(200)]
    return content, bytes(changed)
