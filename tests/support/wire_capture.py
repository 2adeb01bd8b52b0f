"""What passes over a network device of this machine, for tests of what can be read there. Needs root."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

_ALL_PROTOCOLS = 3
"""ETH_P_ALL of linux/if_ether.h."""
_LARGEST = 1 << 16


class Captured:
    """The bytes of all frames so far."""

    def __init__(self) -> None:
        self.data = bytearray()


@contextmanager
def capture(device: str) -> Iterator[Captured]:
    """Take every frame that passes `device`, such as a bridge."""
    captured, running = Captured(), True
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS)) as tap:
        tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 25)
        tap.bind((device, 0))
        tap.settimeout(0.1)

        def read() -> None:
            while running:
                try:
                    captured.data += tap.recv(_LARGEST)
                except TimeoutError:
                    continue

        thread = Thread(target=read)
        thread.start()
        try:
            yield captured
        finally:
            running = False
            thread.join()
