"""`python -m freegpu.testing.colab_server FOLDER [--port N]`; FOLDER/env.json says how programs reach it."""

import sys

from freegpu.testing.colab_server import ColabServer
from freegpu.testing.platform_server import main

sys.exit(main(ColabServer))
