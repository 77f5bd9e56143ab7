"""Pictures of a page, inside its file or beside it, with their captions."""

import base64

from vitrail.pages.words import Html, text


def embed_image(content: bytes, *, kind: str = "jpeg") -> str:
    """An address for `<img>` that holds the encoded image itself."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def render_image(address: str | None, *, title: str = "", is_small: bool = False) -> str:
    """An image, or an empty box where there is none to show; a small one is enlarged without blurring its pixels."""
    if address is None:
        return '<div class="none"></div>'
    hint = f' title="{text(title)}"' if title else ""
    style = ' class="small"' if is_small else ""
    return f'<img src="{text(address)}" alt="" loading="lazy"{hint}{style}>'


def render_figure(image: str, caption: str, *, title: str = "", is_wide: bool = False) -> str:
    """An image above its caption, both HTML; one that is wide has a line of the page for itself."""
    hint = f' title="{text(title)}"' if title else ""
    style = ' class="wide"' if is_wide else ""
    return Html(f"<figure{style}{hint}>{image}<figcaption>{caption}</figcaption></figure>")
