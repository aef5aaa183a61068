"""Tests that take long. `make test-long-rest` runs those of the first table, `make test-more` those of the second.

Continuous integration runs `make test`, then one part of `make test-more`, which the commit's name draws. In
`make test`, quicker tests of a class stand for both. Other tests that take long have the mark `long` themselves.
"""

from __future__ import annotations

from collections.abc import Iterable

_CASES = {
    "kafka/test_kills.py::test_killed_queries_are_exact": (),
    "kafka/test_lost_input.py::test_what_is_left_can_be_accepted": ("mean-false", "n+mean-true"),
    "test_acknowledgement.py::test_acknowledgements_are_held_back_to_t": ("openings only",),
    "test_agent.py::test_a_query_goes_on_when_its_agent_is_killed_between_commits": (),
    "test_agent.py::test_executors_write_what_is_dirty_though_their_agents_are_dead": ("stop",),
    "test_batches_again.py::test_a_batch_that_is_evaluated_twice_is_the_same_twice": ("join", "sessions"),
    "test_bench.py::test_a_user_interface_is_watched": (),
    "test_bench.py::test_every_peer_runs": (),
    "test_bench.py::test_zstd_is_the_codec_of_the_files": ("hdfs-zstd-kinds1",),
    "test_connect.py::test_the_server_is_killed_and_the_query_resumed": ("json",),
    "test_committed_batch.py::test_a_query_that_has_lost_commits_runs_its_newest_batch_again": ("all",),
    "test_falling_back.py::test_a_lost_frame_costs_a_longer_replay": (
        *("of a join, with checkpoint ids", "of a join, the newest, whose ids Spark has"),
        *("the first, with checkpoint ids", "the first: from the beginning"),
        "a link of the chain, with checkpoint ids",
    ),
    "test_kill_matrix.py::test_a_killed_run_equals_an_undisturbed_one": (
        *("files-grand-total.files.cec", "rate-totals.rate.foreachBatch", "rate-window-update.rate.cec"),
        *("tight-distinct-within.rate.foreachBatch", "tight-join.rate.cec"),
    ),
    "test_full_spool.py::test_a_query_goes_on": ("task",),
    "test_lease.py::test_of_two_starts_at_once_one_goes_on": ("eager-false",),
    "test_object_store.py::test_a_killed_query_with_its_checkpoint_on_s3_is_exact": ("integers",),
    "test_log_location.py::test_a_log_that_is_not_shared_is_refused_at_the_first_commit": (
        "window-update-foreachBatch",
    ),
    "test_migration.py::test_a_query_changes_its_store_again_and_again": (
        *("join-rocksdb-rocksdb-2", "grand-total-rocksdb-rocksdb-1"),
    ),
    "test_nexmark.py::test_a_query_with_state": ("q4", "q9"),
    "test_other_sinks.py::test_a_killed_query_writes_each_row_once": ("table-table",),
    "test_passed_over.py::test_the_file_sink": ("long-windows-auto-auto-1", "window-append-eager-eager-2"),
    "test_pipeline.py::test_a_killed_pipeline_is_exact": ("diamond",),
    "test_pipeline.py::test_executors_are_lost_under_a_pipeline": ("away", "buckets", "chain"),
    "test_pipeline.py::test_flows_wait_for_executors_and_every_row_is_there": (),
    "test_pipeline.py::test_protocols_under_kills": ("closure-communication-induced-checkpoint",),
    "test_replay_run.py::test_two_watermarks": (
        *("avg(int(amount))-clean", "avg(int(amount))-crash", "sum(amount)-clean", "sum(double(amount))-clean"),
    ),
    "test_replicas.py::test_a_sink_goes_on_in_the_other_replica": ("b",),
    "test_rollback.py::test_after_a_kill_too": ("appending-False-local[2]", "committed-False-local[2]"),
    "test_rollback.py::test_every_row_is_that_of_an_undisturbed_run": (
        *("a join", "a join, with ids", "a sink that passes over what it has", "count windows", "eager, cec, with ids"),
    ),
    "test_running_pipeline.py::test_a_channel_keeps_what_its_readers_may_ask_for": (),
    "test_running_pipeline.py::test_a_reader_that_runs_now_and_then_lets_its_channel_go": (),
    "test_running_protocols.py::test_a_damaged_frame_of_the_line_is_named_and_mended": (),
    "test_session_settings.py::test_a_replay_has_the_settings_of_its_batches": (
        *("expressions", "set to unset", "subquery"),
    ),
    "test_statestore_reader.py::test_every_row_is_as_with_sparks_own_provider": (
        *("1-chain", "1-count-windows", "1-distinct", "1-join", "1-sessions", "1-window-append"),
    ),
    "test_stores_move.py::test_the_query_does_not_notice": ("more-stores-than-cores",),
    "test_hdfs.py::test_a_killed_query_with_its_checkpoint_on_hdfs_is_exact": ("doubles",),
    "test_typed_queries.py": (),
    "test_written_behind.py::test_a_batch_that_the_log_lacks_is_made_again": ("integers-both", "named-one"),
    "test_written_together.py::test_a_batch_whose_executor_dies_before_it_writes_does_not_count": ("doubles",),
    "test_written_together.py::test_an_executor_that_ends_in_good_order_costs_nothing": ("doubles",),
}
"""By test, its cases; none: the test has no cases. A file stands for all its tests."""

_LONG = frozenset(
    f"integration-tests/{test}" + (f"[{case}]" if case else "")
    for test, cases in _CASES.items()
    for case in cases or [""]
)


_PARTS = (
    frozenset({
        "kafka/test_away.py",
        "test_acknowledgement.py",
        "test_cluster.py",
        "test_falling_back.py",
        "test_hdfs.py",
        "test_hdfs_storage.py",
        "test_metrics.py",
        "test_reader.py",
        "test_throwing_queries.py",
    }),
    frozenset({
        "test_kill_matrix.py rate",
        "test_object_store.py",
        "test_recovery_target.py",
        "test_replay_run.py",
        "test_rollback.py",
        "test_session_settings.py",
        "test_state_of_others.py",
        "test_tentative.py",
    }),
    frozenset({
        "store/test_moves.py",
        "test_buckets.py",
        "test_foreach_batch.py",
        "test_lease.py",
        "test_pipeline.py",
        "test_sensors.py",
    }),
    frozenset({
        "test_bench.py",
        "test_keep.py",
        "test_kill_matrix.py files",
        "test_refused_replay.py",
        "test_replicas.py",
        "test_same_rows.py",
        "test_stores_move.py",
        "test_ui_at_size.py",
        "test_written_together.py",
    }),
    frozenset({
        "kafka/test_compaction.py",
        "kafka/test_lost_input.py",
        "kafka/test_margin.py",
        "kafka/test_protocols.py",
        "kafka/test_quiet_inputs.py",
        "kafka/test_replicas.py",
        "kafka/test_restarts.py",
        "kafka/test_ui_reach.py",
        "store/test_agent_start.py",
        "test_full_spool.py",
        "test_migration.py",
        "test_storage_keys.py",
        "test_trimming.py",
    }),
    frozenset({
        "store/test_large_values.py",
        "test_batches_again.py",
        "test_kill_matrix.py tight",
        "test_nexmark.py",
        "test_nexmark_flows.py",
        "test_passed_over.py",
        "test_plan_check.py",
        "test_replica_kills.py",
        "test_running_pipeline.py",
        "test_running_protocols.py",
        "test_statestore_reader.py",
        "test_tentative_kills.py",
        "test_written_behind.py",
    }),
)
"""The files, below `integration-tests`, whose tests `make test` leaves to `make test-more`, in parts of equal time.

Of the kill matrix a group of queries is an entry of its own.
"""


def is_long(test: str) -> bool:
    """Whether the test with this id is in the first table, or its file."""
    return test in _LONG or test.partition("::")[0] in _LONG


def part_of(test: str, group: str = "") -> int | None:
    """The part of the second table, from 1 on, that has the file of the test with this id, or its group of queries."""
    file = test.partition("::")[0].removeprefix("integration-tests/")
    found = [number for number, part in enumerate(_PARTS, 1) if file in part or f"{file} {group}" in part]
    return found[0] if found else None


def find_unknown(collected: Iterable[str]) -> list[str]:
    """The ids of the table that no collected test has, of the files that were collected as a whole."""
    known = set(collected)
    files = {each.partition("::")[0] for each in known}
    return sorted(each for each in _LONG - known - files if each.partition("::")[0] in files)
