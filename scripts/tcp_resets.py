"""What a firewall that resets connections sends: for a TCP segment that it sees, the resets that both ends believe.

Frames are Ethernet with IPv4 in it. A reset is believed if its sequence number is the one that the receiver expects
next (RFC 9293, 3.10.7), which is why a firewall, or whoever else sees the segments, can write one at any time.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

ETHERNET_BYTES = 14
IPV4, TCP = 0x0800, 6
SYN, RST, ACK = 0x02, 0x04, 0x10


@dataclass(frozen=True)
class Segment:
    """A TCP segment in a frame, as far as its reset needs it."""

    frame: bytes
    header: bytes
    """Of IP: addresses are in its last eight bytes, whatever its options are."""
    ports: bytes
    sequence: int
    acknowledged: int
    flags: int

    @property
    def opens(self) -> bool:
        """It asks for a connection."""
        return self.flags & (SYN | ACK) == SYN


def segment_in(frame: bytes) -> Segment | None:
    """The segment that the frame carries, if any."""
    if len(frame) < ETHERNET_BYTES + 20 or frame[12:14] != IPV4.to_bytes(2, "big"):
        return None
    packet = frame[ETHERNET_BYTES:]
    length = (packet[0] & 0x0F) * 4
    if packet[9] != TCP or len(packet) < length + 20:
        return None
    sequence, acknowledged, _, flags = struct.unpack_from("!IIBB", packet, length + 4)
    return Segment(frame, packet[:20], packet[length : length + 4], sequence, acknowledged, flags)


def to_sender(segment: Segment) -> bytes:
    """The frame that resets it as its receiver would."""
    if segment.flags & ACK:
        sequence, acknowledged, flags = segment.acknowledged, 0, RST
    else:
        sequence, acknowledged, flags = 0, (segment.sequence + 1) % 2**32, RST | ACK
    macs = segment.frame[6:12] + segment.frame[:6]
    addresses = segment.header[16:20] + segment.header[12:16]
    return _frame(macs, addresses, segment.ports[2:] + segment.ports[:2], sequence, acknowledged, flags)


def to_receiver(segment: Segment) -> bytes:
    """The frame that resets it as its sender would."""
    addresses = segment.header[12:20]
    return _frame(segment.frame[:12], addresses, segment.ports, segment.sequence, segment.acknowledged, RST | ACK)


def _frame(macs: bytes, addresses: bytes, ports: bytes, sequence: int, acknowledged: int, flags: int) -> bytes:
    tcp = ports + struct.pack("!IIBBHHH", sequence, acknowledged, 5 << 4, flags, 0, 0, 0)
    pseudo = addresses + struct.pack("!BBH", 0, TCP, len(tcp))
    tcp = tcp[:16] + _checksum(pseudo + tcp) + tcp[18:]
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, TCP, 0) + addresses
    ip = ip[:10] + _checksum(ip) + ip[12:]
    return macs + IPV4.to_bytes(2, "big") + ip + tcp


def _checksum(data: bytes) -> bytes:
    """RFC 1071's."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return (~total & 0xFFFF).to_bytes(2, "big")
