"""A small S3 over objects in memory that misbehaves on demand.

Enough of the protocol for a few clients, told apart by their access keys: conditional PUT,
complete and DELETE, ranged GET, HEAD, listing, bulk DELETE, multipart uploads and lists of them
and of their pieces. Signatures are not checked. ``bucket`` holds the objects, ``faults`` says what
can be done to a request, ``server`` is what a test starts.
"""

from scripted_s3.bucket import (
    BUCKET,
    CLASS_A,
    CLASS_A_PLAIN_COMPLETE,
    CLASS_B,
    CONDITIONS,
    Answer,
    Bucket,
    Request,
    Stored,
    Upload,
)
from scripted_s3.faults import AFTER, FAULTS, STATUSES, Event, Rule
from scripted_s3.server import ScriptedS3

__all__ = [
    "AFTER",
    "BUCKET",
    "CLASS_A",
    "CLASS_A_PLAIN_COMPLETE",
    "CLASS_B",
    "CONDITIONS",
    "FAULTS",
    "STATUSES",
    "Answer",
    "Bucket",
    "Event",
    "Request",
    "Rule",
    "ScriptedS3",
    "Stored",
    "Upload",
]
