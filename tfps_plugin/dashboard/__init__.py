"""The live page of a job, `tfps dashboard`.

    history   pure: what the curves are drawn from
    feed      asks the job for its state, and hands it to all open pages
    app       the page and its data over HTTP
    static/   the page: HTML, style, script; uPlot draws the curves

`static/` has uPlot 1.6.32 as it is published, with its licence (MIT). Nothing
is loaded from another host.
"""
