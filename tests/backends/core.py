"""The core of the contract, which `make test` runs on stores that share their decisions with the shipped ones.

Plain SQLite is one `Dialect`, and collections are one form of storage. Everything else is the code of the other stores,
whose full contract runs in `tests/contract`. A promise is in the core by these rules:

- For each call of `Store`: its main effect, and the error for a wrong id or value.
- For each part of a query (filter, order, page): one promise, because the storage evaluates it.
- For each rule that reads several rows before it writes: one promise for the rows that it finds.
- Calls at the same time, and calls that wait: one promise for each kind of call.

`make torture` runs the other promises. With `ROLLBOOK_WHOLE_CONTRACT=1`, `make test` runs them as well.
"""

from __future__ import annotations

from store.testing import contract

CORE: dict[type, tuple[str, ...]] = {
    contract.QueueContract: (
        "test_an_enqueued_rollout_is_queuing_and_has_no_attempt",
        "test_rollout_preserves_the_fields_of_its_creation",
        "test_an_input_of_any_json_type_is_returned_unchanged",
        "test_enqueue_many_keeps_the_order_and_assigns_distinct_ids_and_start_times",
        "test_calls_in_sequence_have_strictly_rising_times_even_when_the_clock_stands_still",
        "test_claiming_makes_the_rollout_preparing_with_a_first_attempt",
        "test_a_claim_from_an_empty_queue_returns_nothing",
        "test_dequeue_many_claims_in_order_and_returns_fewer_if_the_queue_is_short",
        "test_dequeue_many_skips_rollouts_that_are_no_longer_queued",
        "test_setting_a_queuing_status_puts_the_rollout_at_the_end_of_the_queue",
        "test_a_started_rollout_is_preparing_with_its_first_attempt_and_never_queued",
    ),
    contract.PlanKeyContract: (
        "test_enqueue_with_a_known_key_and_an_equal_input_returns_the_existing_rollout",
        "test_one_conflict_refuses_the_whole_call",
    ),
    contract.RolloutUpdatesContract: (
        "test_unset_fields_of_a_rollout_are_not_changed",
        "test_metadata_and_config_are_replaced_and_never_merged",
        "test_an_update_of_an_unknown_rollout_raises_item_does_not_exist",
        "test_reads_return_a_rollout_with_its_latest_attempt",
    ),
    contract.AttemptsContract: (
        "test_a_new_attempt_takes_the_next_number_and_prepares_the_rollout",
        "test_the_latest_attempt_has_the_greatest_number",
        "test_an_attempt_for_an_unknown_rollout_is_refused",
        "test_an_attempt_of_another_rollout_is_unknown",
        "test_an_update_returns_the_stored_attempt",
        "test_an_earlier_attempt_does_not_change_the_status_of_the_rollout",
    ),
    contract.AttemptErrorsContract: (
        "test_none_is_not_accepted_as_an_error",
        "test_an_active_rollout_follows_an_attempt_that_failed_with_an_error",
    ),
    contract.FinishingContract: (
        "test_an_attempt_ends_with_its_last_spans_and_the_next_claim",
        "test_refused_spans_are_reported_one_by_one_and_stop_nothing_else",
        "test_an_unknown_attempt_is_reported_and_the_next_rollout_claimed",
        "test_an_end_with_wrong_arguments_is_invalid",
    ),
    contract.RetriesContract: (
        "test_attempts_are_retried_up_to_max_attempts",
        "test_a_late_success_removes_a_pending_retry_from_the_queue",
        "test_statuses_from_the_queue_to_success",
    ),
    contract.WatchdogContract: (
        "test_an_attempt_above_its_time_limit_times_out",
        "test_silence_since_the_last_span_makes_an_attempt_unresponsive",
        "test_only_the_latest_attempt_is_watched",
        "test_one_sweep_ends_all_overdue_attempts",
        "test_a_claim_finds_the_retry_of_an_attempt_that_just_timed_out",
        "test_the_worker_of_an_overdue_attempt_becomes_unknown_and_has_no_attempt",
    ),
    contract.SpansContract: (
        "test_a_stored_span_is_returned_unchanged",
        "test_attribute_values_keep_their_types",
        "test_the_first_span_sets_the_attempt_and_its_rollout_to_running",
        "test_a_duplicate_is_not_stored_again_and_is_logged",
        "test_a_conflict_among_many_spans_loses_no_other_span",
        "test_an_equal_span_id_of_another_trace_is_stored_under_a_derived_id",
        "test_the_same_span_id_in_another_attempt_or_rollout_is_another_span",
        "test_a_span_of_an_unknown_rollout_or_attempt_is_refused",
        "test_many_spans_are_stored_and_returned_group_by_group_in_order_of_appearance",
        "test_groups_before_an_unknown_attempt_are_stored_and_later_groups_are_not",
        "test_a_span_of_the_opentelemetry_sdk_is_converted_and_numbered",
    ),
    contract.SpanNumbersContract: (
        "test_the_attempts_of_a_rollout_share_its_numbers",
        "test_many_numbers_are_drawn_as_if_one_by_one",
        "test_the_next_number_is_greater_than_an_explicit_number",
    ),
    contract.WorkersContract: (
        "test_get_worker_by_id_returns_none_for_an_unknown_worker",
        "test_a_heartbeat_without_statistics_keeps_the_earlier_statistics",
        "test_a_claim_makes_the_worker_busy_and_sets_the_time_of_the_dequeue",
        "test_a_reported_end_makes_the_worker_idle_and_clears_its_ids",
        "test_workers_are_listed_in_the_order_of_their_first_calls",
    ),
    contract.ResourcesContract: (
        "test_every_kind_of_resource_is_returned_unchanged",
        "test_an_update_replaces_the_whole_set_and_raises_the_version",
        "test_an_update_of_an_older_id_makes_it_the_latest",
        "test_a_rollout_captures_the_latest_resources_at_its_creation",
    ),
    contract.QueriesContract: (
        "test_rollouts_are_listed_in_the_order_of_creation",
        "test_rollouts_are_filtered_by_status",
        "test_a_query_may_contain_thousands_of_ids",
        "test_wildcards_in_a_partial_condition_are_literal_characters",
        "test_conditions_are_joined_by_and_unless_or_is_requested",
        "test_an_empty_list_of_values_matches_nothing",
        "test_limit_and_offset_apply_after_filtering_and_total_counts_all_matches",
        "test_limit_and_offset_apply_after_sorting",
        "test_missing_times_are_last_in_ascending_and_first_in_descending_order",
        "test_missing_texts_are_first_in_ascending_and_last_in_descending_order",
        "test_texts_sort_by_code_point",
        "test_every_scalar_field_can_be_used_for_sorting",
        "test_an_invalid_sort_field_is_refused_with_the_names_of_valid_fields",
        "test_attempts_are_listed_by_number_or_in_the_order_of_creation",
        "test_workers_are_filtered_by_status_and_by_a_part_of_their_id",
        "test_resources_are_filtered_by_id_and_by_a_part_of_the_id",
    ),
    contract.SpanQueriesContract: (
        "test_spans_are_filtered_exactly_and_by_parts",
        "test_or_applies_only_within_the_rollout_and_the_attempt",
        "test_spans_are_paged_after_filtering_and_sorting",
        "test_spans_with_equal_numbers_are_ordered_by_time_and_then_by_arrival",
        "test_spans_of_the_latest_attempts_of_several_rollouts_can_be_queried",
    ),
    contract.WaitingContract: (
        "test_ended_rollouts_are_returned_at_once_in_the_requested_order",
        "test_at_the_deadline_the_ended_rollouts_are_returned",
        "test_a_wait_ends_promptly_when_the_last_rollout_ends",
        "test_a_timeout_of_the_rollout_ends_the_wait",
    ),
    contract.WaitingForWorkContract: (
        "test_a_waiting_claim_gets_the_next_rollout_promptly",
        "test_a_claim_cancelled_during_an_enqueue_loses_neither_rollout_nor_attempt",
    ),
    contract.StatisticsContract: ("test_everything_is_counted_once",),
    contract.ResultsContract: ("test_changing_a_result_does_not_change_the_store",),
    contract.BadInputContract: (
        "test_one_invalid_rollout_refuses_the_whole_call",
        "test_one_invalid_span_refuses_the_whole_call",
        "test_names_that_cannot_be_stored_are_refused_or_match_nothing",
    ),
    contract.WrongKindsContract: ("test_ids_must_be_text",),
    contract.ConcurrencyContract: (
        "test_concurrent_claims_give_each_rollout_to_one_worker",
        "test_thirty_concurrent_spans_get_the_numbers_one_to_thirty",
        "test_concurrent_enqueues_with_one_plan_key_create_one_rollout",
        "test_concurrent_spans_and_updates_of_an_attempt_are_all_stored",
        "test_a_refused_call_does_not_affect_concurrent_calls",
        "test_several_event_loops_at_once_share_the_queue",
    ),
    contract.ClosingContract: (
        "test_calls_of_a_closed_store_raise_closed",
        "test_closing_ends_every_wait",
    ),
}
"""The promises of each part of the contract."""

NAMES = frozenset(name for names in CORE.values() for name in names)
