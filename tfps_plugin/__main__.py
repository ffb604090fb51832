"""`python -m tfps_plugin`: the same as `tfps`, where that is not on PATH."""

from tfps_plugin.launcher.cli import main

if __name__ == "__main__":
    main(prog_name="tfps")
