"""The paper: its arms, planted corpora, readouts, suites and the demo, all through the pipeline of `badpo`."""
