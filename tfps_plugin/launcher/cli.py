"""The command line, `tfps`: a group of the modules in `commands/`."""

import click

from tfps_plugin.launcher.commands.dashboard import dashboard
from tfps_plugin.launcher.commands.manifest import manifest
from tfps_plugin.launcher.commands.plan import plan
from tfps_plugin.launcher.commands.probe import probe
from tfps_plugin.launcher.commands.profile import profile
from tfps_plugin.launcher.commands.run import run
from tfps_plugin.launcher.commands.scale import scale
from tfps_plugin.launcher.commands.serve import serve
from tfps_plugin.launcher.commands.status import status
from tfps_plugin.launcher.commands.top import top


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tfps_plugin", prog_name="tfps")
def main() -> None:
    """Parameter-server training for Keras 3."""


for _command in (
    run,
    status,
    top,
    dashboard,
    profile,
    scale,
    plan,
    manifest,
    probe,
    serve,
):
    main.add_command(_command)
