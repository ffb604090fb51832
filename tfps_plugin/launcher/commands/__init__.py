"""The commands of `tfps`, a module each: options in, exit code out.

    plan         `tfps plan`: memory, messages and speed before a job runs
    run          `tfps run`: a whole cluster on this machine
    scale        `tfps scale`: another size of a job that runs
    serve        `tfps serve`: one task of a cluster
    help_texts   help texts of options that several commands have

A command imports what it needs when it runs, so `tfps --help` answers at once.
"""
