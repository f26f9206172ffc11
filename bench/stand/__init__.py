"""The test stand: processes, upstreams, peers, the machine, and the pages for results."""
