"""Asset checks that verify tables, datasets and pipelines."""

# Dagster does not know the annotation of a context that is text, so annotations are evaluated here.
from typing import Any, Final

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetKey,
    AssetsDefinition,
    AssetSpec,
    asset_check,
)

from pds import errors
from pds.dagster.datasets import DatasetIOManager
from pds.dagster.tables import PdsTableIOManager
from pds.errors import InvalidInput, InvalidType, NotFound

_MAX_PROBLEMS: Final = 100
# Errors that tell of damage; a store that cannot be reached is an error of the check itself.
_DAMAGE: Final = (NotFound, errors.DatasetIncomplete, errors.ManifestCorrupted, errors.PartCorrupted)


def verify_checks(
    *assets: AssetsDefinition | AssetSpec | AssetKey | str,
    read_data: bool = True,
    blocking: bool = False,
    io_manager_key: str = "io_manager",
) -> list[AssetChecksDefinition]:
    """Return an asset check `verify` for each asset, which looks for missing and damaged files.

    The assets have the IO manager `PdsTableIOManager` or `DatasetIOManager`. An asset whose table or dataset does not
    exist fails its check. The whole newest snapshot is checked, or the datasets of all partitions.

    Args:
        assets: The assets, their specs or their keys. All assets of a multi-asset are checked.
        read_data: Whether every byte is read, and compared with its checksums, as by `Table.verify`. Otherwise it is
            checked that the objects exist with the right sizes, as by `Table.check`; for tables only.
        blocking: Whether assets downstream wait for the check, and are not run if it fails.
        io_manager_key: The resource key of the IO manager.

    Raises:
        InvalidType: An argument is not an asset.
    """
    return [_make_check(key, read_data, blocking, io_manager_key) for asset in assets for key in _get_keys(asset)]


def _make_check(key: AssetKey, read_data: bool, blocking: bool, io_manager_key: str) -> AssetChecksDefinition:  # noqa: FBT001 all are given
    @asset_check(
        asset=key,
        name="verify",
        description="No file is missing or damaged.",
        blocking=blocking,
        required_resource_keys={io_manager_key},
    )
    def verify(context: AssetCheckExecutionContext) -> AssetCheckResult:
        manager = getattr(context.resources, io_manager_key)
        try:
            if isinstance(manager, PdsTableIOManager):
                return _verify_table(manager, key, read_data)
            if isinstance(manager, DatasetIOManager):
                return _verify_datasets(manager, key, read_data)
        except _DAMAGE as error:
            return make_check_result([(key.to_user_string(), str(error))], {})
        raise InvalidType(f"resource {io_manager_key!r} must be an IO manager of pds, not {type(manager).__name__}")

    return verify


def _get_keys(asset: object) -> list[AssetKey]:
    if isinstance(asset, AssetsDefinition):
        return sorted(asset.keys)
    if isinstance(asset, AssetSpec):
        return [asset.key]
    if isinstance(asset, AssetKey):
        return [asset]
    if isinstance(asset, str):
        return [AssetKey.from_user_string(asset)]
    raise InvalidType(
        f"an asset must be an asset definition, an AssetSpec, an AssetKey or a string, not {type(asset).__name__}"
    )


def make_check_result(problems: list[tuple[str, str]], metadata: dict[str, Any]) -> AssetCheckResult:
    """Return the result of a check with these problems, which are pairs of an object and a text; none if it passed."""
    if not problems:
        return AssetCheckResult(passed=True, metadata=metadata)
    path, text = problems[0]
    others = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    listed = [list(problem) for problem in problems[:_MAX_PROBLEMS]]
    return AssetCheckResult(
        passed=False, description=f"{path}: {text}{others}", metadata={**metadata, "problems": listed}
    )


def _verify_table(manager: PdsTableIOManager, key: AssetKey, read_data: bool) -> AssetCheckResult:  # noqa: FBT001 passed on
    table = manager.open_table(key)
    if read_data:
        verified = table.verify()
        metadata = {
            "version": verified.version,
            "files": verified.files,
            "rows": verified.rows,
            "bytes": verified.bytes,
        }
        return make_check_result(verified.problems, metadata)
    checked = table.check()
    problems = [(path, "does not exist") for path in checked.missing]
    problems += [(path, "has another size than in its metadata") for path in checked.mismatched]
    return make_check_result(problems, {"version": checked.version, "orphans": len(checked.orphans)})


def _verify_datasets(manager: DatasetIOManager, key: AssetKey, read_data: bool) -> AssetCheckResult:  # noqa: FBT001 passed on
    if not read_data:
        raise InvalidInput("datasets are checked by reading them: use read_data=True")
    rows = parts = size = 0
    problems: list[tuple[str, str]] = []
    paths = list(manager.list_datasets(key))
    if not paths:
        raise NotFound("the asset has no dataset", path=key.to_user_string())
    for path in paths:
        try:
            report = manager.datasets.verify_dataset(path)
        except _DAMAGE as error:
            problems.append((path, str(error)))
        else:
            rows, parts, size = rows + report.rows, parts + report.parts, size + report.bytes
    return make_check_result(problems, {"datasets": len(paths), "parts": parts, "rows": rows, "bytes": size})
