"""The commands of `tfps`, a module each: options in, exit code out.

    plan         `tfps plan`: memory, messages and speed before a job runs
    run          `tfps run`: a whole cluster on this machine
    scale        `tfps scale`: another size of a job that runs
    serve        `tfps serve`: one task of a cluster
    status       `tfps status`: what a job is and does now, once
    top          `tfps top`: the same, live
    dashboard    `tfps dashboard`: the same as a page in the browser
    profile      `tfps profile`: traces of tasks
    job_choice   options that choose the job to watch
    manifest     `tfps manifest`: a job for Kubernetes, Compose or Slurm
    probe        `tfps probe`: one task, asked whether it lives
    help_texts   help texts of options that several commands have

A command imports what it needs when it runs, so `tfps --help` answers at once.
"""
