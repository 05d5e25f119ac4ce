"""The experiments: what is done, what must come of it, and by which parts that is shown."""

from __future__ import annotations

from typing import Final

from tests.chaos.channels import channels
from tests.chaos.clocks import clocks
from tests.chaos.confirms import confirms
from tests.chaos.figures import Form
from tests.chaos.heartbeats import heartbeats
from tests.chaos.hostile_octets import fuzz, mapping
from tests.chaos.link_limit import link_limit
from tests.chaos.nth_statement import nth_statement
from tests.chaos.offsets import offsets
from tests.chaos.parts import BridgeRow, ClusterRow, ConsumerRow, Experiment, FaultRow, Own, Tests
from tests.chaos.same_key import same_key
from tests.chaos.slow_target import slow_target
from tests.chaos.soak import real, soak
from tests.chaos.unroutable import unroutable
from tests.chaos.upgrade import upgrade
from tests.translation.live.test_there_and_back import QUICK as PAIRS


def _tests(name: str, *ids: str, forms: tuple[Form, ...] = (Form.QUICK, Form.FULL)) -> Tests:
    return Tests(name, tuple(f"tests/{id}" for id in ids), forms)


FULL: Final = (Form.FULL,)

EXPERIMENTS: Final = (
    Experiment(
        "F01",
        "kill -9 for the gateway while it bridges, at any moment and at each point of a two-phase bridge",
        "each kill counts; duplicates at most prefetch × kills, each with a mark",
        (
            BridgeRow("gateway killed"),
            BridgeRow("gateway killed in dtx"),
            FaultRow("gateway killed"),
            ConsumerRow("gateway killed"),
            _tests("killed at each labelled point", "bridges/test_two_phase.py::test_neither_gap_nor_duplicate"),
        ),
    ),
    Experiment(
        "F02",
        "kill -9 between the target's confirm and the acknowledgement to the source",
        "duplicates at most what was not recorded, of the same origin id; none in mode dtx",
        (
            BridgeRow("gateway killed behind the confirm"),
            _tests(
                "a record, then the end",
                "bridges/test_outcomes.py::test_a_gateway_that_died_leaves_no_duplicates_of_what_it_recorded",
                "core/test_outbox.py::test_killed_between_confirm_and_record",
                "bridges/test_real_brokers.py::test_neither_gap_nor_duplicate",
            ),
        ),
    ),
    Experiment(
        "F03",
        "SIGTERM under load",
        "exit within 25 s, no publish given up; with two processes no failed request",
        (
            FaultRow("gateway terminated"),
            BridgeRow("gateway terminated"),
            ClusterRow("owners ended"),
            _tests(
                "all processes replaced under load",
                "deploy/test_processes.py::test_all_processes_are_replaced_under_load",
                forms=FULL,
            ),
        ),
    ),
    Experiment(
        "F04",
        "the broker restarted, killed, away for a minute",
        "up again within 2 heartbeats + 2 s of its return; no request hangs",
        (
            FaultRow("broker killed"),
            FaultRow("broker restarted"),
            FaultRow("nobody listens for a while"),
            FaultRow("broker away for a minute", FULL),
            BridgeRow("source killed"),
            BridgeRow("target killed"),
            ConsumerRow("broker restarted"),
        ),
    ),
    Experiment(
        "F05",
        "memory alarm of the broker",
        "seen within 1 s (0-8, which has no word for it: 10 s); publishes get 503; consumers go on",
        (
            FaultRow("broker blocked by an alarm"),
            BridgeRow("target blocked by an alarm"),
            BridgeRow("source blocked by an alarm"),
        ),
    ),
    Experiment(
        "F06",
        "half-open connections, a broker that is stopped",
        "noticed within 2 heartbeats + 1 s",
        (FaultRow("half-open connection"), FaultRow("broker paused"), BridgeRow("source paused")),
    ),
    Experiment(
        "F07",
        "latency 300 ± 200 ms, 64 kB/s, every octet alone",
        "at least 70 % of what the link takes at 300 ms, with 1,000 publishes in flight",
        (
            FaultRow("latency 300 +- 200 ms"),
            FaultRow("bandwidth 64 kB/s"),
            FaultRow("one-octet slices"),
            Own("share of a slow link", link_limit),
        ),
    ),
    Experiment(
        "F08",
        "connections reset in the middle of a frame, at every octet; frames that are broken",
        "every offset",
        (
            Own(
                "cut at every octet",
                offsets,
                ids=(
                    "tests/faults/test_offsets.py::test_a_publish_is_cut_at_every_offset",
                    "tests/faults/test_offsets.py::test_a_delivery_is_cut_at_every_offset",
                ),
            ),
            FaultRow("connections reset"),
            FaultRow("corrupt octets"),
            BridgeRow("connections reset"),
        ),
    ),
    Experiment(
        "F09",
        "a target and a consumer that are slow",
        "no more out than the prefetch; memory grows by at most 50 MB with a million messages at the source",
        (
            Own("slow target", slow_target),
            _tests(
                "slow readers",
                "broker/test_server.py::test_a_consumer_that_does_not_read",
                "core/test_streams.py::test_a_slow_reader_is_not_pulled_for",
                "api/test_events.py::test_who_reads_nothing_is_cut_off",
            ),
        ),
    ),
    Experiment(
        "F10",
        "a webhook that answers 500, 503, 404, 410, 429",
        "each next attempt within ±20 % of the schedule",
        (
            _tests(
                "statuses and schedule",
                "webhooks/test_schedule.py::test_what_a_status_means",
                "webhooks/test_schedule.py::test_what_a_status_means",
                "webhooks/test_schedule.py::test_each_attempt_is_within_its_jitter_and_uses_all_of_it",
                "webhooks/test_push_in_time.py::test_attempts_follow_the_schedule_within_its_jitter",
                "webhooks/test_push_in_time.py::test_retry_after_moves_the_next_attempt_back_and_pauses_the_endpoint",
                "webhooks/test_push_in_time.py::test_an_endpoint_that_is_gone_is_disabled_and_its_messages_wait",
            ),
        ),
    ),
    Experiment(
        "F11",
        "a webhook that does not connect, does not answer, drips its head or its body",
        "the attempt ends with its deadline, and its place is free",
        (
            _tests(
                "deadlines",
                "outbound/test_misbehaviour.py::test_a_drip_ends_with_the_deadline_and_not_before",
                "outbound/test_misbehaviour.py::test_one_that_misbehaves_takes_nothing_from_the_others",
                "outbound/test_transport.py::test_a_connect_that_takes_too_long",
                "outbound/test_tls.py::test_a_server_that_says_nothing_in_the_handshake",
                "webhooks/test_many_endpoints.py::test_endpoints_that_fail_take_nothing_that_good_ones_need",
            ),
        ),
    ),
    Experiment(
        "F12",
        "a webhook with an endless body, a gzip bomb, 100,000 headers",
        "no more is read than is kept; nothing is unpacked",
        (
            _tests(
                "large answers",
                "outbound/test_misbehaviour.py::test_an_endless_body_is_left",
                "outbound/test_misbehaviour.py::test_a_bomb_is_not_unpacked",
                "outbound/test_misbehaviour.py::test_a_hundred_thousand_headers_cost_little",
                "outbound/test_answers.py::test_no_more_of_the_body_is_read_than_is_kept",
                "outbound/test_answers.py::test_heads_over_a_limit",
            ),
        ),
    ),
    Experiment(
        "F13",
        "a webhook that answers 301, 302, 307 to a host inside, or from https to http",
        "no request to the second host",
        (
            _tests(
                "redirects",
                "outbound/test_misbehaviour.py::test_a_redirect_is_an_answer_and_is_not_followed",
                "outbound/test_httpx.py::test_no_redirect_no_cookie_no_unpacking",
                "webhooks/test_auth.py::test_the_token_url_is_under_the_same_guard",
            ),
        ),
    ),
    Experiment(
        "F14",
        "DNS: no such name, failure, no answer, rebinding, many addresses",
        "no connection to a range that is denied in 10,000 tries",
        (
            _tests(
                "names",
                "outbound/test_rebinding.py",
                "outbound/test_resolver.py",
                "outbound/test_transport.py::test_all_addresses_are_judged_and_few_are_tried",
                "webhooks/test_guard.py::test_rebinding",
            ),
        ),
    ),
    Experiment(
        "F15",
        "certificates: expired, of another host, self-signed, renewed on disk",
        "refused with a reason; a renewed one counts within 5 s",
        (
            _tests(
                "certificates",
                "outbound/test_tls.py::test_certificates_that_are_not_taken",
                "outbound/test_tls.py::test_a_renewed_file_is_used_by_the_next_connection",
                "conformance/test_tls.py::test_an_unknown_authority",
                "conformance/test_tls.py::test_another_host_s_name",
                "conformance/test_tls.py::test_an_expired_certificate",
                "transports/test_dial.py::test_tls_is_verified",
                "transports/test_dial.py::test_tls_of_another_host",
                "access/test_certificates.py::test_a_renewed_certificate_counts_within_five_seconds",
            ),
        ),
    ),
    Experiment(
        "F16",
        "the ledger locked by another process for 30 s",
        "503, and nothing acknowledged that is not committed",
        (FaultRow("ledger locked"), BridgeRow("ledger locked")),
    ),
    Experiment(
        "F17",
        "the ledger's disk full",
        "not ready; mends by itself; at most 20 lines of the log for each time",
        (FaultRow("ledger disk full"), BridgeRow("ledger disk full")),
    ),
    Experiment(
        "F18",
        "PostgreSQL away, its backends ended 50 times, statements that time out, commits cut off",
        "no row twice, no gap in a sequence, nothing owed at the end",
        (
            FaultRow("PostgreSQL backends terminated"),
            FaultRow("PostgreSQL away"),
            FaultRow("PostgreSQL statements time out"),
            FaultRow("PostgreSQL commits cut off"),
            ClusterRow("database connections cut off"),
        ),
    ),
    Experiment(
        "F19",
        "the n-th statement and the n-th write of the ledger fail, for every n",
        "each call written whole, or not at all and says so; nothing left open",
        (
            Own("the n-th statement fails", nth_statement),
            _tests(
                "the n-th write fails",
                "faults/test_ledger_faults.py::test_the_nth_write_fails",
                "faults/test_ledger_faults.py::test_the_nth_write_of_a_claim_fails",
            ),
        ),
        "statements and writes to files fail, not every other call to the system",
    ),
    Experiment(
        "F20",
        "clocks that jump by an hour and a day, leap, go backwards",
        "no attempt more than the schedule has, and none at another time",
        (
            Own("clocks that jump", clocks),
            _tests(
                "ids, leases and logs",
                "ledger/test_ids.py::test_ids_increase_when_the_clock_steps_back",
                "ledger/test_deliveries.py::test_a_clock_of_the_process_that_is_ahead",
                "ledger/test_log_retention.py::test_a_clock_that_was_ahead_holds_nothing_up",
            ),
        ),
        "the time of day moves within the process; none was run on a machine whose clock jumps",
    ),
    Experiment(
        "F21",
        "malformed frames: published weaknesses, and a fuzzer that knows the grammar, each version and role",
        "nothing but a session's own close; no case over 1 s; memory of a process +5 MB at most",
        (
            Own("hostile octets", fuzz, ids=("tests/fuzz/test_fuzz.py::test_nothing_breaks",)),
            _tests("published weaknesses", "hostile/test_published_weaknesses.py", "hostile/test_sockets.py"),
        ),
    ),
    Experiment(
        "F22",
        "frames over their limit, every edge of frame_max, bodies of exactly so many frames, 2^63 octets announced",
        "every edge there and back, octet for octet",
        (
            _tests(
                "sizes",
                "classic/test_frames.py::test_content_is_cut_at_frame_max",
                "classic/test_connection.py::test_a_frame_that_fits_exactly",
                "classic/test_client.py::test_zero_is_no_limit",
                "classic/test_client.py::test_a_frame_max_below_the_floor",
                "hostile/test_limits.py",
                "hostile/test_published_weaknesses.py::test_cve_2026_67235_a_gigabyte_behind_a_header_that_says_ten",
                "hostile/test_published_weaknesses.py::test_cve_2026_61547_no_frame_of_ours_is_over_frame_max",
                "conformance/test_publish.py::test_bodies_of_every_size",
            ),
        ),
    ),
    Experiment(
        "F23",
        "channels used up, over the limit, used again, 100,000 opened and closed",
        "nothing is left of them",
        (
            Own("channels", channels),
            FaultRow("channels used up"),
            _tests(
                "channels of peers",
                "broker/test_floods.py::test_channels_opened_and_closed_by_the_ten_thousand",
                "broker/test_floods.py::test_channels_of_all_clients",
                "broker/test_close_codes.py::test_what_was_agreed_counts",
            ),
        ),
    ),
    Experiment(
        "F24",
        "heartbeats lost, none at all while data flows, on another channel",
        "in 24 h at 5 s nobody is taken for dead who lives; who is silent is, after 2 intervals",
        (
            Own("heartbeats", heartbeats),
            _tests(
                "heartbeats on another channel",
                "hostile/test_published_weaknesses.py::test_ghsa_5fp7_heartbeats_on_another_channel",
                "upstreams/test_hostile.py::test_a_server_that_falls_silent_is_noticed",
            ),
        ),
    ),
    Experiment(
        "F25",
        "a queue deleted under its consumers; a broker that loses patience with a delivery",
        "told within 1 s; goes on when the queue is back",
        (
            FaultRow("queue deleted under consumers"),
            BridgeRow("source queue deleted"),
            _tests(
                "consumers that the broker ends",
                "conformance/test_consume.py::test_the_queue_of_a_consumer_goes_and_comes_back",
                "upstreams/test_consumers.py::test_the_broker_ends_it_and_it_comes_back_with_the_queue",
                "upstreams/test_consumers.py::test_a_queue_goes_and_the_broker_does_not_say_so",
                "upstreams/test_leases.py::test_a_lease_ends_before_the_broker_loses_patience",
            ),
        ),
    ),
    Experiment(
        "F26",
        "one Idempotency-Key 50 times at once; redeliveries",
        "one publish, and one answer for all",
        (
            Own("one key fifty times", same_key),
            _tests(
                "keys",
                "api/test_publish.py::test_fifty_in_parallel",
                "ledger/test_keys.py::test_fifty_at_once_one_publishes",
                "core/test_keyed_messages.py::test_fifty_at_once_publish_once",
                "core/test_deduplicator.py::test_what_is_recorded_after_its_channel_went_is_known_when_it_comes_again",
            ),
        ),
    ),
    Experiment(
        "F27",
        "poison: refused by the broker, by the endpoint, not translatable, over a limit",
        "at the dead-letter place with its reason, and nobody else is held up",
        (
            BridgeRow("refused by the target"),
            BridgeRow("one unroutable among others"),
            BridgeRow("untranslatable under strict"),
            BridgeRow("over the target's limit"),
            BridgeRow("over the source's limit"),
            _tests(
                "poison",
                "faults/test_poison.py",
                "webhooks/test_pusher.py::test_what_is_given_up_goes_to_the_dead_letter_place_with_the_reason",
                "webhooks/test_push_in_time.py::test_a_message_that_cannot_be_written_is_dead_at_once_and_takes_no_other_with_it",
                "webhooks/test_many_endpoints.py",
            ),
        ),
    ),
    Experiment(
        "F28",
        "acknowledgements out of order, of many, twice, of what is unknown, of another channel; old leases",
        "406 on the wire, 409 or 410 over HTTP, and nothing changes",
        (
            _tests(
                "acknowledgements",
                "conformance/test_consume.py::test_accept_out_of_order",
                "broker/test_consumers.py::test_unknown_delivery",
                "broker/test_consumers.py::test_release_out_of_order",
                "classic/test_client_channel.py::test_what_is_not_outstanding",
                "classic/test_confirms.py",
                "hostile/test_found_here.py::test_a_delivery_tag_that_came_before",
                "api/test_subscriptions.py::test_forged_foreign_and_lost_ack_ids",
                "core/test_consuming.py::test_a_repeated_acknowledgement_succeeds",
                "core/test_ledger_leases.py::test_forged_and_of_another_subscription",
            ),
        ),
    ),
    Experiment(
        "F29",
        "messages that no queue takes: unbound key, no such exchange, an alternate exchange, returns that race",
        "each is reported, none is taken for delivered",
        (
            Own("unroutable", unroutable),
            _tests(
                "over HTTP, and in each order",
                "api/test_publish.py::test_not_routed",
                "api/test_publish.py::test_unknown_broker_and_exchange",
                "conformance/test_publish.py::test_unroutable_is_reported",
                "conformance/test_publish.py::test_an_unknown_exchange_is_reported_and_no_queue_grows",
                "classic/test_client_channel.py::test_rabbitmq_returns_then_acknowledges",
                "classic/test_client_channel.py::test_broker_j_refuses_then_returns",
            ),
        ),
    ),
    Experiment(
        "F30",
        "confirms that never come, refusals, one for 10,000, numbers near 2^63",
        "unknown in time; nothing pending at the end",
        (Own("confirms", confirms), FaultRow("confirms never come")),
    ),
    Experiment(
        "F31",
        "several processes on one ledger: an owner killed, and one stopped for longer than its lease",
        "never two owners at once; what a process writes that was overtaken is refused",
        (
            ClusterRow("owners killed"),
            ClusterRow("owners paused"),
            _tests(
                "who was overtaken",
                "ledger/test_work.py::test_a_zombie_writes_nothing_and_is_told_before_anybody_is_answered",
                "ledger/test_shards.py::test_kill_nine",
            ),
        ),
    ),
    Experiment(
        "F32",
        "two releases on one database; processes replaced one by one",
        "no failed request",
        (
            _tests(
                "schemas that are older and newer",
                "ledger/test_schema.py::test_a_schema_that_is_newer_by_one_is_taken_and_by_two_is_not",
                "ledger/test_schema.py::test_an_older_schema_is_refused_with_what_to_do",
                "ledger/test_migrations.py::test_down_and_up_again_with_data",
                "test_app_roles.py::test_older_tables_are_refused_and_newer_ones_by_one_are_not",
            ),
            Own("two releases under load", upgrade, FULL),
            _tests("all processes replaced", "deploy/test_processes.py", forms=FULL),
        ),
    ),
    Experiment(
        "F33",
        "bridges between 0-8, 0-9-1 and 0-10 with every property and every type of a header",
        "all comes back as it was, in order, once",
        (
            Own(
                "there and back",
                mapping,
                ids=tuple(
                    f"tests/translation/live/test_there_and_back.py::test_all_comes_back_as_it_was[{source}-{target}]"
                    for source, target in PAIRS
                ),
            ),
            _tests("every reshape and loss", "translation/test_pairs.py", "test_fidelity.py"),
        ),
    ),
    Experiment(
        "F34",
        "a load for hours at half of the greatest rate, and a fault each minute",
        "memory below 1 MB an hour, files flat",
        (Own("virtual time", soak), Own("real time", real, FULL)),
    ),
)
"""In their order."""
