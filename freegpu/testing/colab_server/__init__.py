"""Google Colab on the loopback, for the real `colab` program: `python -m freegpu.testing.colab_server FOLDER`.

Its session backend, Google's token endpoint, a proxy that reaches these two and nobody else, and a real Jupyter
server with a real kernel for each runtime that is assigned.
"""

from freegpu.testing.colab_server.server import ColabServer

__all__ = ["ColabServer"]
