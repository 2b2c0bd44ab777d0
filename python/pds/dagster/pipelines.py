"""Pipelines as assets."""

# Dagster does not know the annotation of a context that is text, so annotations are evaluated here.
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    AssetSpec,
    DataVersion,
    MaterializeResult,
    asset_check,
    multi_asset,
)

from pds import Changes, Pipeline, Replace, UpdateResult
from pds.dagster.checks import make_check_result
from pds.dagster.resource import PdsResource
from pds.dagster.runs import make_update_key
from pds.errors import InvalidInput, NotFound

Declare = Callable[[PdsResource], Pipeline]
MakeChanges = Callable[[AssetExecutionContext], Mapping[str, Changes | Replace]]
Stages = Sequence[str] | Mapping[str, Sequence[str]]
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")


def pipeline_assets(
    declare: Declare,
    *,
    name: str,
    stages: Stages,
    changes: MakeChanges | None = None,
    group_name: str | None = None,
    resource_key: str = "pds",
) -> AssetsDefinition:
    """Return a multi-asset that updates a pipeline by one commit, with one asset for each stage.

        def declare(pds: PdsResource) -> Pipeline:
            p = pds.open_pipeline("revenue")
            orders = p.source("orders", pds.open_table("orders"), key="customer", value="amount")
            p.aggregate(orders, aggregates={"revenue": ("value", "sum")}, name="by_customer")
            return p

        revenue = pipeline_assets(declare, name="revenue", stages={"by_customer": ["orders"]})

    The asset of a stage has the key `[name, stage]`. Its metadata has the keys that changed, the rows that the function
    emitted, the files and bytes that were written, and the version of the pipeline. Its data version is the commit of
    the last update that changed it, so that an update of other keys does not make what is downstream stale.

    Args:
        declare: A function that returns the pipeline with its sources and stages. It is called by each run.
        name: The first segment of the asset keys, and the name of the op.
        stages: The names of the stages that are assets; or a dict by name of what they depend on: other stages of the
            dict, or keys of other assets.
        changes: A function that returns the changes of sources, for `Pipeline.update`. The retries of a step apply its
            changes once, as `PdsTableIOManager` explains for appends. Defaults to `Pipeline.refresh`, which reads what
            is new in the tables of sources.
        group_name: The group of the assets.
        resource_key: The resource key of the `PdsResource`.

    Raises:
        InvalidInput: `stages` is empty, or Dagster does not take a name. Runs raise it for a stage that the pipeline
            does not have.
    """
    dependencies = _check_stages(stages)
    specs = [
        AssetSpec(
            AssetKey([name, stage]),
            deps=[
                AssetKey([name, other]) if other in dependencies else AssetKey.from_user_string(other)
                for other in others
            ],
            group_name=group_name,
            kinds={"pds"},
        )
        for stage, others in dependencies.items()
    ]

    @multi_asset(name=name, specs=specs, required_resource_keys={resource_key})
    def update(context: AssetExecutionContext) -> Iterator[MaterializeResult[Any]]:
        pipeline = declare(getattr(context.resources, resource_key))
        unknown = [stage for stage in dependencies if stage not in pipeline._nodes]  # noqa: SLF001 of the package
        if unknown:
            raise InvalidInput(f"the pipeline {pipeline.path!r} has no stage {unknown[0]!r}")
        if changes is None:
            result = pipeline.refresh()
        else:
            step = context.get_step_execution_context()
            result = pipeline.update(changes(context), idempotency_key=make_update_key(step))
        for stage in dependencies:
            yield _make_result(context, AssetKey([name, stage]), stage, pipeline, result)

    return update


def pipeline_checks(
    declare: Declare,
    *,
    name: str,
    stages: Stages,
    sample: float | None = None,
    blocking: bool = False,
    resource_key: str = "pds",
) -> list[AssetChecksDefinition]:
    """Return an asset check `recompute` for each stage, which computes it anew and compares, as `Pipeline.check` does.

    Args:
        declare: As for `pipeline_assets`.
        name: As for `pipeline_assets`.
        stages: As for `pipeline_assets`.
        sample: About which part of the keys is computed, above 0 and up to 1. Defaults to all keys.
        blocking: Whether assets downstream wait for the check, and are not run if it fails.
        resource_key: The resource key of the `PdsResource`.
    """
    return [
        _make_check(declare, AssetKey([name, stage]), sample, blocking, resource_key) for stage in _check_stages(stages)
    ]


def _make_check(
    declare: Declare,
    key: AssetKey,
    sample: float | None,
    blocking: bool,  # noqa: FBT001 passed on
    resource_key: str,
) -> AssetChecksDefinition:
    @asset_check(
        asset=key,
        name="recompute",
        description="Computed anew, the stage has the rows that are stored.",
        blocking=blocking,
        required_resource_keys={resource_key},
    )
    def recompute(context: AssetCheckExecutionContext) -> AssetCheckResult:
        stage = key.path[-1]
        try:
            result = declare(getattr(context.resources, resource_key)).check(stage, sample=sample)
        except NotFound as error:
            return make_check_result([(stage, str(error))], {})
        problems = [
            (difference.name, f"{difference.keys} keys differ, such as {difference.examples[:3]}")
            for difference in result.differences
        ]
        return make_check_result(problems, {"version": result.version})

    return recompute


def _check_stages(stages: Stages) -> dict[str, Sequence[str]]:
    dependencies: dict[str, Sequence[str]] = dict(stages) if isinstance(stages, Mapping) else dict.fromkeys(stages, ())
    if isinstance(stages, str) or not dependencies:
        raise InvalidInput("stages must be a list of names, or a dict of dependencies by name")
    for stage in dependencies:
        if not _NAME.fullmatch(stage):
            message = (
                f"stage {stage!r} cannot be an asset: Dagster takes ASCII letters, digits, _ and -. Rename it "
                "(a stored stage by Pipeline.rename)"
            )
            raise InvalidInput(message)
    return dependencies


def _make_result(
    context: AssetExecutionContext, key: AssetKey, stage: str, pipeline: Pipeline, result: UpdateResult | None
) -> MaterializeResult[Any]:
    """Return what an update did to a stage; without a result there was nothing to do."""
    if result is None:
        (newest,) = pipeline.history(1)
        version, commit_id, changed = newest["version"], newest["commit_id"], None
        metadata: dict[str, Any] = {"version": version}
    else:
        version, commit_id, changed = result.version, result.commit_id, result.stages.get(stage)
        metadata = {"version": version, "commit_id": commit_id, "replayed": result.replayed}
    if changed is not None:
        metadata |= {
            "keys_in": changed.keys_in,
            "rows_out": changed.rows_out,
            "keys_out": changed.keys_out,
            "files": changed.files_written,
            "bytes": changed.bytes_written,
        }
    is_changed = result is not None and (result.replayed or (changed is not None and changed.keys_out > 0))
    base_version = version if result is None else version - 1
    earlier = None if is_changed else _find_data_version(context, key, base_version)
    return MaterializeResult(asset_key=key, metadata=metadata, data_version=DataVersion(earlier or commit_id))


def _find_data_version(context: AssetExecutionContext, key: AssetKey, version: int) -> str | None:
    """Return the data version of the newest materialization, if it was of this version of the pipeline."""
    event = context.instance.get_latest_materialization_event(key)
    materialization = None if event is None else event.asset_materialization
    if materialization is None or "version" not in materialization.metadata:
        return None
    is_same = materialization.metadata["version"].value == version
    return (materialization.tags or {}).get("dagster/data_version") if is_same else None
