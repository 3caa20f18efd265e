"""Opens JupyterLab as `jupyter lab` does, with a token also where the user's own settings have an empty one.

On the command line everybody on the machine could read it, and Jupyter would not print an address with it.
"""

import secrets

from jupyter_server.serverapp import ServerApp
from jupyterlab import labapp

_init_configurables = ServerApp.init_configurables


def init_configurables(server: ServerApp) -> None:
    _init_configurables(server)
    if not server.identity_provider.auth_enabled:
        server.identity_provider.token = secrets.token_hex(24)
        server.identity_provider.token_generated = True  # so it is told


if __name__ == "__main__":
    ServerApp.init_configurables = init_configurables
    labapp.main()
