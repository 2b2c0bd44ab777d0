"""What feeds a source: a table, or a stage of another pipeline."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from pds.errors import RemoteStoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from pds.producers.attached import Stager
    from pds.producers.graph import SourceInput
    from pds.store import Store


class Attachment(ABC):
    """What feeds a source: which versions of it are read is said by the caller."""

    kind: ClassVar[str]
    """The word for it in explanations."""
    is_compared: ClassVar[bool]
    """Whether an update looks up the stored rows of a changed key, to compare them."""
    advice: ClassVar[str]
    """What it is and how its rows are changed: the end of "source … is fed by", before "and call refresh()"."""

    def __init__(self) -> None:
        self.failure: RemoteStoreError | None = None
        """The error of a stream that `read` returned; the caller of `read` clears it before."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What it is called in explanations."""

    @property
    @abstractmethod
    def fields(self) -> pa.Schema:
        """The fields `key` and `value` of the source."""

    @property
    @abstractmethod
    def identity(self) -> tuple[Store, str]:
        """What sources have in common that are read at one version."""

    @abstractmethod
    def describe_reads(self) -> str:
        """Say what is read for a changed key."""

    @abstractmethod
    def open_newest(self) -> Any:  # noqa: ANN401 a table or a pipeline
        """Return it at its newest version.

        Raises:
            NotFound: It does not exist any more.
        """

    @abstractmethod
    def read(
        self,
        source: str,
        consumed: dict[str, Any] | None,
        stager: Stager,
        newest: Any,  # noqa: ANN401 as above
    ) -> SourceInput | None:
        """Return what is new since the version that was read last, or everything.

        Args:
            source: The name of the source.
            consumed: The version that was read last, as the manifest of the pipeline has it.
            stager: Stages rows by the tasks of an engine.
            newest: What `open_newest` returned.

        Returns:
            The changes, or None if nothing is new.

        Raises:
            NotFound: The stage was removed or renamed.
            DefinitionChanged: The types of the key or value are others, or a column does not exist any more.
        """

    def _noting_failure(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except RemoteStoreError as error:
            # It reaches the caller as text only.
            self.failure = error
            raise
