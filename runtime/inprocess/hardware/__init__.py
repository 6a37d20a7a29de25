"""What the driver and the kernel know about the GPUs and NICs of this node, for health checks."""
