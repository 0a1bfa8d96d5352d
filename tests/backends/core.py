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
        "test_an_input_of_any_json_kind_comes_back_as_it_was_sent",
        "test_enqueueing_many_keeps_their_order_and_gives_each_an_id_and_a_start_of_its_own",
        "test_calls_in_sequence_have_strictly_rising_times_even_when_the_clock_stands_still",
        "test_claiming_makes_the_rollout_preparing_with_a_first_attempt",
        "test_an_empty_queue_gives_nothing",
        "test_many_are_claimed_first_in_first_out_and_fewer_when_the_queue_runs_out",
        "test_claiming_many_goes_on_past_rollouts_that_are_no_longer_queued",
        "test_setting_a_queuing_status_puts_the_rollout_at_the_end_of_the_queue",
        "test_a_started_rollout_is_preparing_with_its_first_attempt_and_never_queued",
    ),
    contract.PlanKeyContract: (
        "test_an_equal_key_with_an_equal_input_gives_the_rollout_that_exists",
        "test_one_conflict_refuses_the_whole_call",
    ),
    contract.RolloutUpdatesContract: (
        "test_a_field_left_unset_stays_as_it_is",
        "test_metadata_and_config_are_replaced_and_never_merged",
        "test_updating_an_unknown_rollout_says_that_the_item_does_not_exist",
        "test_a_rollout_with_attempts_reads_with_its_latest",
    ),
    contract.AttemptsContract: (
        "test_a_new_attempt_takes_the_next_number_and_prepares_the_rollout",
        "test_the_latest_attempt_is_the_one_with_the_greatest_number",
        "test_an_attempt_for_an_unknown_rollout_is_refused",
        "test_an_attempt_of_another_rollout_is_unknown",
        "test_an_update_gives_the_attempt_as_it_is_then_stored",
        "test_an_attempt_that_is_not_the_latest_never_moves_the_rollout",
    ),
    contract.AttemptErrorsContract: (
        "test_no_error_is_left_out_not_none",
        "test_a_rollout_at_work_follows_the_attempt_as_without_an_error",
    ),
    contract.RetriesContract: (
        "test_attempts_are_made_until_the_budget_is_spent",
        "test_a_late_success_takes_a_pending_retry_off_the_queue",
        "test_the_way_to_success",
    ),
    contract.WatchdogContract: (
        "test_an_attempt_above_its_time_limit_times_out",
        "test_silence_since_the_last_span_makes_an_attempt_unresponsive",
        "test_only_the_latest_attempt_is_watched",
        "test_one_look_finds_every_stuck_attempt",
        "test_a_claim_finds_the_retry_of_an_attempt_that_just_timed_out",
        "test_the_worker_of_a_stuck_attempt_becomes_unknown_and_has_no_work",
    ),
    contract.SpansContract: (
        "test_a_stored_span_is_given_back_as_it_came",
        "test_the_kinds_of_attribute_values_survive",
        "test_the_first_span_makes_the_attempt_and_its_rollout_run",
        "test_a_duplicate_is_not_stored_again_and_is_logged",
        "test_a_conflict_among_many_spans_loses_no_other_span",
        "test_an_equal_span_id_of_another_trace_is_stored_under_a_derived_id",
        "test_the_same_span_id_in_another_attempt_or_rollout_is_another_span",
        "test_a_span_of_an_unknown_rollout_or_attempt_is_refused",
        "test_many_spans_are_stored_and_returned_group_by_group_in_order_of_appearance",
        "test_an_unknown_attempt_among_many_keeps_the_groups_before_it_and_drops_those_after",
        "test_a_span_of_the_opentelemetry_sdk_is_converted_and_numbered",
    ),
    contract.SpanNumbersContract: (
        "test_the_attempts_of_a_rollout_share_its_numbers",
        "test_many_numbers_are_drawn_as_if_one_by_one",
        "test_an_explicit_number_lifts_the_next_one_above_it",
    ),
    contract.WorkersContract: (
        "test_an_unknown_worker_reads_as_nothing",
        "test_a_heartbeat_replaces_the_statistics_only_when_it_brings_some",
        "test_a_claim_makes_the_worker_busy_and_stamps_the_dequeue",
        "test_a_reported_end_makes_the_worker_idle_and_clears_its_ids",
        "test_workers_are_listed_in_the_order_first_seen",
    ),
    contract.ResourcesContract: (
        "test_every_kind_of_resource_comes_back_as_it_was",
        "test_an_update_replaces_the_whole_set_and_raises_the_version",
        "test_an_updated_older_snapshot_becomes_the_latest",
        "test_a_rollout_captures_the_latest_resources_at_its_creation",
    ),
    contract.QueriesContract: (
        "test_rollouts_are_listed_in_the_order_of_creation",
        "test_rollouts_are_filtered_by_status",
        "test_thousands_of_ids_can_be_asked_for_at_once",
        "test_a_part_is_taken_literally",
        "test_conditions_are_joined_by_and_unless_or_is_asked_for",
        "test_an_empty_list_of_wanted_values_matches_nothing",
        "test_a_page_is_cut_after_filtering_and_counts_all_matches",
        "test_a_page_is_cut_after_sorting",
        "test_times_that_are_missing_sort_last_rising_and_first_falling",
        "test_texts_that_are_missing_sort_first_rising_and_last_falling",
        "test_texts_sort_by_code_point",
        "test_every_plain_field_can_be_sorted_by",
        "test_a_field_that_cannot_be_sorted_by_is_refused_and_those_that_can_are_named",
        "test_attempts_are_listed_by_number_or_in_the_order_of_creation",
        "test_workers_are_filtered_by_status_and_by_a_part_of_their_id",
        "test_resources_are_found_by_their_id_and_a_part_of_it_together",
    ),
    contract.SpanQueriesContract: (
        "test_spans_are_filtered_exactly_and_by_parts",
        "test_or_never_leads_out_of_the_rollout_or_the_attempt",
        "test_spans_are_paged_after_filtering_and_sorting",
        "test_spans_of_one_number_are_listed_by_their_times_and_then_as_they_came",
        "test_the_latest_attempts_of_several_rollouts",
    ),
    contract.WaitingContract: (
        "test_rollouts_that_have_ended_are_returned_at_once_in_the_order_asked_for",
        "test_at_the_deadline_those_that_have_ended_are_returned",
        "test_a_waiter_wakes_promptly_when_the_last_rollout_ends",
        "test_a_rollout_that_times_out_during_the_wait_ends_it",
    ),
    contract.WaitingForWorkContract: (
        "test_a_claim_that_waits_gets_the_next_rollout_promptly",
        "test_a_claim_whose_caller_leaves_as_it_is_made_is_not_lost_and_costs_no_attempt",
    ),
    contract.StatisticsContract: ("test_everything_is_counted_once",),
    contract.ResultsContract: ("test_changing_a_result_does_not_change_the_store",),
    contract.BadInputContract: (
        "test_one_bad_rollout_among_many_refuses_them_all",
        "test_one_bad_span_among_many_refuses_them_all",
        "test_names_that_no_database_keeps_are_refused_or_find_nothing",
    ),
    contract.WrongKindsContract: ("test_ids_must_be_text",),
    contract.ConcurrencyContract: (
        "test_thirty_claims_of_twenty_rollouts_give_each_of_them_to_one",
        "test_thirty_spans_at_once_are_numbered_one_to_thirty",
        "test_one_plan_key_enqueued_at_once_makes_one_rollout",
        "test_spans_and_updates_of_an_attempt_at_once_lose_nothing_of_each_other",
        "test_a_refused_call_does_not_disturb_those_beside_it",
        "test_several_event_loops_at_once_share_the_queue",
    ),
    contract.ClosingContract: (
        "test_a_closed_store_says_so",
        "test_closing_ends_every_wait",
    ),
}
"""The promises of each part of the contract."""

NAMES = frozenset(name for names in CORE.values() for name in names)
