"""How images are decoded in worker threads: the huge ones few at a time."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from served import encode

from vitrail.serving import decoding
from vitrail.serving.decoding import open_checked


@pytest.mark.parametrize(("least", "together"), [(1000, 5), (100, 2)])
def test_few_huge_images_are_decoded_at_a_time(least: int, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_HUGE", least)
    image = open_checked(encode(), 1000)  # of 16 x 16 pixels
    most, now, changing = 0, 0, threading.Lock()
    all_in = threading.Event()

    def decode() -> None:
        nonlocal most, now
        with decoding.decoding(image):
            with changing:
                now += 1
                most = max(most, now)
                if now == together:
                    all_in.set()
            assert all_in.wait(30.0)
            with changing:
                now -= 1

    with ThreadPoolExecutor(5) as pool:
        for one in [pool.submit(decode) for _ in range(5)]:
            one.result()
    assert most == together
