"""The record and the messages, their wire format, and the engine's observations and effects. Pure."""
