"""Help texts of options that several commands have."""

LOGICAL_CPUS = (
    "Number of CPU devices of {}. Without accelerators, it has a replica on "
    "each."
)
TUNE = (
    "Tune this machine for {}: cores, scheduling and memory. TFPS_TUNE=1 in "
    "the environment does the same. See docs/tuning_the_machine.md."
)
LOG_FORMAT = (
    "The form of the log. With json, each line is an object; see "
    "docs/logging.md. TFPS_LOG_FORMAT in the environment does the same."
)
