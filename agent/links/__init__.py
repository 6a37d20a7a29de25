"""The links between agents: they prove who they are, bound what strangers can cost, and look for the job.

Each line of a link is a greeting or its answer (`handshake`), then messages (`softrun.agent.protocol.codec`); with a
job secret every message carries a proof of its own (`sealing`). `links` is the interface.
"""
