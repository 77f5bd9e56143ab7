"""What a server takes on at a time, and how long it waits: every number in one place."""

from dataclasses import dataclass

_MEGABYTE = 1 << 20


@dataclass(frozen=True)
class ServingLimits:
    """Bounds of a server; with them its memory is bounded whatever clients send."""

    max_body: int = 32 * _MEGABYTE  # bytes of a request
    max_held: int = 512 * _MEGABYTE  # bytes of all requests that are being answered, and of answers not yet taken
    max_pixels: int = 40_000_000  # of an image, before it is decoded
    max_images: int = 64  # of a request
    max_hits: int = 1000  # of a search, of all its images together
    max_queue: int = 256  # images that may wait for each model, in decoding and computing
    max_batch: int = 16  # images that are computed together; on a CPU, torch's own models take one a thread at least
    batch_wait: float = 0.005  # seconds that a batch waits for images that are being decoded or may come back
    timeout: float = 30.0  # seconds until an answer must be there
    body_timeout: float = 20.0  # seconds until a request must have arrived, head and body each
    unread_timeout: float = 60.0  # seconds in which a client must have taken what it was answered
    drain_timeout: float = 30.0  # seconds that requests may take to end after the server was told to stop
    keep_alive: float = 30.0  # seconds that an idle connection is kept
    max_connections: int = 1024  # at a time

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name != "batch_wait" and not value > 0:
                raise ValueError(f"{name} must be above 0, not {value}")
        if not 0.0 <= self.batch_wait <= 1.0:
            raise ValueError(f"batch_wait is between 0 and 1 second, not {self.batch_wait}")
